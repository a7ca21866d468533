/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast kernels go through memory: bytes read and written in a second, over those of a copy from
 * device to device in the same run. Medians; each kernel and a copy take turns, so that both meet
 * the same clocks.
 */
#include "kernels.h"
#include "record.h"

enum { WARM = 3, TIMES = 15, SUMMANDS = 8, SMALL = 10000, LARGE = 64 };

static struct {
	size_t bytes, count; /* of an array, and how many f32 it has */
	char *a, *b;         /* the copy is from a to b */
	char *in[SUMMANDS];
	double *parts, *sum;
	device_mark *begin, *end;
} d;

static char *must_alloc(size_t bytes)
{
	char *data = device_alloc(bytes);

	expect(data, "no memory for %zu bytes on the device", bytes);
	return data;
}

/* Random bits of finite numbers: zeros would be faster to move than data are. */
static void fill_random(void *data, uint64_t stream)
{
	struct zero_device_random args =
		random_args(ZERO_F32, data, 0, d.count, 0.5, 1, stream, true);

	launch("zero_device_uniform", &args, d.count, 0);
}

struct timed {
	const char *kernel;
	const void *arguments;
	size_t blocks;
	double bytes; /* read and written */
};

static double ms_of(const struct timed *t)
{
	mark(d.begin);
	if (t)
		launch(t->kernel, t->arguments, d.count, t->blocks);
	else
		device_copy(d.b, d.a, d.bytes);
	mark(d.end);
	return marks_between(d.begin, d.end);
}

/* Of a kernel and of the copy. */
static void times_of(const struct timed *t, double *ms, double *copy_ms)
{
	double ours[TIMES], bare[TIMES];

	for (int i = -WARM; i < TIMES; i++) {
		double one = ms_of(t), other = ms_of(NULL);

		if (i < 0)
			continue;
		ours[i] = one;
		bare[i] = other;
	}
	*ms = median(ours, TIMES);
	*copy_ms = median(bare, TIMES);
}

static void bandwidth(const char *row, const struct timed *t)
{
	double ms, copy_ms, ours, bare;

	times_of(t, &ms, &copy_ms);
	ours = t->bytes / ms / 1e6;
	bare = 2 * (double)d.bytes / copy_ms / 1e6;
	record(row, 1, ours / bare, ours, bare, "GB/s");
}

static void casts(void)
{
	static const zero_dtype floats[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

	for (int to = 0; to < 3; to++)
		for (int from = 0; from < 3; from++) {
			struct zero_device_cast args = {
				.out = d.b, .in = d.a, .to = floats[to], .from = floats[from]};
			size_t size = zero_dtype_size(args.to) + zero_dtype_size(args.from);
			struct timed t = {.kernel = "zero_device_cast", .arguments = &args};
			char row[64];

			if (to == from)
				continue;
			/* the wider of both sides has d.bytes */
			args.count = d.bytes / (to && from ? 2 : 4);
			t.bytes = (double)(args.count * size);
			snprintf(row, sizeof(row), "cast %s to %s", zero_dtype_name(args.from),
				 zero_dtype_name(args.to));
			bandwidth(row, &t);
		}
}

static void sums(void)
{
	for (int n = 2; n <= SUMMANDS; n *= 2) {
		struct zero_device_sum args = {.out = (float *)d.b,
					       .own = d.in[0],
					       .others = d.in[1],
					       .count = d.count,
					       .n = n,
					       .from = ZERO_F32};
		struct timed t = {.kernel = "zero_device_sum",
				  .arguments = &args,
				  .bytes = (double)d.bytes * (n + 1)};
		char row[64];

		snprintf(row, sizeof(row), "sum of %d", n);
		bandwidth(row, &t);
	}
}

static void steps(void)
{
	struct zero_device_adamw args = {.args = {.lr = 1e-3F,
						  .beta1 = 0.9F,
						  .beta2 = 0.95F,
						  .eps = 1e-8F,
						  .decay = 1e-4F,
						  .correction1 = 1,
						  .correction2 = 1,
						  .scale = 1},
					 .p = (float *)d.in[0],
					 .moments.m = (float *)d.in[1],
					 .moments.v = (float *)d.in[2],
					 .g = (float *)d.in[3],
					 .count = d.count,
					 .low_dtype = ZERO_DTYPE_PARAM};
	struct timed t = {
		.kernel = "zero_device_adamw", .arguments = &args, .bytes = 7.0 * (double)d.bytes};

	bandwidth("adamw", &t);
	args.low = d.b;
	args.low_dtype = ZERO_BF16;
	t.bytes += (double)d.bytes / 2;
	bandwidth("adamw with bf16", &t);
}

static void norm_and_fill(void)
{
	struct zero_device_norm2 norm2 = {.x = (float *)d.a, .count = d.count, .parts = d.parts};
	struct zero_device_fill fill = {
		.out = d.b, .count = d.count, .pattern = 0x12345678, .size = 4};

	bandwidth("norm2", &(struct timed){"zero_device_norm2", &norm2, zero_norm2_parts(d.count),
					   (double)d.bytes});
	bandwidth("fill", &(struct timed){"zero_device_fill", &fill, 0, (double)d.bytes});
}

/* Tensors of random sizes that fill d.bytes, each from its place in `a` to one in `b`. */
static void flatten(const char *row, size_t count, bool as_time)
{
	struct zero_device_piece *pieces = memory(count * sizeof(*pieces));
	uint64_t *starts = memory((count + 1) * sizeof(*starts));
	char *tables = must_alloc(count * sizeof(*pieces) + (count + 1) * sizeof(*starts));
	struct zero_device_copy_many args = {.pieces = (void *)tables,
					     .starts = (void *)(tables + count * sizeof(*pieces)),
					     .count = count};
	struct timed t = {.kernel = "zero_device_copy_many", .arguments = &args};
	size_t at = 0, mean = d.bytes / count, bytes = 0;
	double ms, copy_ms;

	for (size_t i = 0; i < count; i++) {
		/* multiples of 4 bytes, from few of them up to twice the mean; gaps of a layout */
		size_t size = (draw() % (2 * mean - 256) + 4) / 4 * 4;

		size = at + size > d.bytes ? 0 : size;
		pieces[i] = (struct zero_device_piece){d.b + at, d.a + at, size};
		at += (size + 255) / 256 * 256;
		at = at < d.bytes ? at : d.bytes;
		bytes += size;
	}
	tiles_of(pieces, count, starts);
	upload(tables, pieces, count * sizeof(*pieces));
	upload((void *)(uintptr_t)args.starts, starts, (count + 1) * sizeof(*starts));
	synchronise();
	t.bytes = 2 * (double)bytes;
	if (!as_time) {
		bandwidth(row, &t);
	} else {
		times_of(&t, &ms, &copy_ms);
		copy_ms *= (double)bytes / (double)d.bytes;
		record(row, 1, ms / copy_ms, ms, copy_ms, "ms");
	}
	device_free(tables);
	free(pieces);
	free(starts);
}

void bandwidths(double scale)
{
	d.bytes = (size_t)(scale * 0x1p30) / 4096 * 4096;
	d.count = d.bytes / 4;
	d.begin = mark_new();
	d.end = mark_new();
	d.parts = (double *)must_alloc(ZERO_NORM2_PARTS * sizeof(double));
	d.sum = (double *)must_alloc(sizeof(double));
	d.in[0] = must_alloc(SUMMANDS * d.bytes);
	for (int k = 0; k < SUMMANDS; k++) {
		d.in[k] = d.in[0] + (size_t)k * d.bytes;
		fill_random(d.in[k], (uint64_t)k);
	}
	d.a = d.in[0];
	d.b = must_alloc(d.bytes);
	device_set(d.b, 1, d.bytes);
	synchronise();
	casts();
	sums();
	norm_and_fill();
	flatten("flatten of 64 large tensors", LARGE, false);
	flatten("flatten of 10,000 small tensors", SMALL, true);
	steps();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrays of more than 2^32 elements. They repeat the same PERIOD elements, so that every element of
 * the result is known, and compared, from one period on the host. What the device has no memory for
 * is said and left out.
 */
#include "kernels.h"

#define MANY   (((size_t)1 << 32) + 12345)
#define PERIOD ((size_t)1048573) /* a prime: no power of two hides a wrong index */

/* Whether the device has so many bytes free, and some more. */
static bool fits(const char *what, size_t bytes)
{
	if (device_memory_free() > bytes + ((size_t)1 << 28))
		return true;
	printf("kernels: %s of %zu elements is left out: it takes %.1f GiB, and %.1f are free\n",
	       what, MANY, (double)bytes / 0x1p30, (double)device_memory_free() / 0x1p30);
	return false;
}

/* Fills MANY elements of the device with repetitions of these, by doubling. */
static char *repeated(const void *period, size_t size)
{
	size_t all = MANY * size, done = PERIOD * size;
	char *data = device_alloc(all);

	expect(data, "no memory for %zu bytes on the device", all);
	upload(data, period, done);
	for (size_t n; done < all; done += n) {
		n = done < all - done ? done : all - done;
		device_copy(data + done, data, n);
	}
	synchronise();
	return data;
}

static char *poisoned(size_t size)
{
	char *data = device_alloc(MANY * size);

	expect(data, "no memory for %zu bytes on the device", MANY * size);
	device_set(data, 0xa5, MANY * size);
	return data;
}

static void expect_repeated(const char *data, const void *want, size_t size, const char *what)
{
	size_t step = 8 * PERIOD;
	char *piece = pinned_alloc(step * size);

	for (size_t at = 0, n; at < MANY; at += n) {
		n = MANY - at < step ? MANY - at : step;
		download(piece, data + at * size, n * size);
		synchronise();
		for (size_t i = 0; i < n; i += PERIOD) {
			size_t part = n - i < PERIOD ? n - i : PERIOD;

			expect(!memcmp(piece + i * size, want, part * size),
			       "%s: an element of %zu to %zu is wrong", what, at + i,
			       at + i + part);
		}
	}
	pinned_free(piece);
	printf("kernels: %s of %zu elements is right\n", what, MANY);
	fflush(stdout);
}

static void large_cast(void)
{
	float *values = memory(PERIOD * 4);
	uint16_t *want = memory(PERIOD * 2);
	struct zero_device_cast args = {.count = MANY, .to = ZERO_BF16, .from = ZERO_F32};

	if (fits("cast", MANY * 6)) {
		random_bits(ZERO_F32, values, PERIOD);
		host->cast(ZERO_BF16, want, ZERO_F32, values, PERIOD);
		args.in = repeated(values, 4);
		args.out = poisoned(2);
		launch("zero_device_cast", &args, MANY, 0);
		expect_repeated(args.out, want, 2, "cast");
		device_free(args.out);
		device_free((void *)args.in);
	}
	free(values);
	free(want);
}

static void large_sum(void)
{
	uint16_t *values[2] = {memory(PERIOD * 2), memory(PERIOD * 2)};
	float *want = memory(PERIOD * 4);
	struct zero_device_sum args = {.count = MANY, .n = 2, .from = ZERO_BF16};

	if (fits("sum", MANY * 8)) {
		for (int k = 0; k < 2; k++) {
			random_values(ZERO_BF16, values[k], PERIOD);
			*(k ? &args.others : &args.own) = repeated(values[k], 2);
		}
		host->sum(want, ZERO_BF16, (const void *[]){values[0], values[1]}, 2, PERIOD,
			  false);
		args.out = (float *)poisoned(4);
		launch("zero_device_sum", &args, MANY, 0);
		expect_repeated((char *)args.out, want, 4, "sum");
		device_free(args.out);
		device_free((void *)args.own);
		device_free((void *)args.others);
	}
	free(values[0]);
	free(values[1]);
	free(want);
}

static void large_adamw(void)
{
	struct zero_device_adamw args = {.args = {.lr = 1e-3F,
						  .beta1 = 0.9F,
						  .beta2 = 0.95F,
						  .eps = 1e-8F,
						  .correction1 = 10,
						  .correction2 = 20,
						  .scale = 1},
					 .count = MANY,
					 .low_dtype = ZERO_BF16};
	float *values[4];
	uint16_t *low = memory(PERIOD * 2);

	for (int k = 0; k < 4; k++)
		values[k] = memory(PERIOD * 4);
	if (fits("adamw", MANY * 18)) {
		for (int k = 0; k < 4; k++)
			random_values(ZERO_F32, values[k], PERIOD);
		args.p = (float *)repeated(values[0], 4);
		args.moments.m = (float *)repeated(values[1], 4);
		args.moments.v = (float *)repeated(values[2], 4);
		args.g = (float *)repeated(values[3], 4);
		args.low = poisoned(2);
		launch("zero_device_adamw", &args, MANY, 0);
		host->adamw(&args.args, values[0], values[1], values[2], values[3], low, ZERO_BF16,
			    PERIOD);
		expect_repeated((char *)args.p, values[0], 4, "adamw, p");
		expect_repeated((char *)args.moments.m, values[1], 4, "adamw, m");
		expect_repeated((char *)args.moments.v, values[2], 4, "adamw, v");
		expect_repeated(args.low, low, 2, "adamw, p of 16 bits");
		device_free(args.p);
		device_free(args.moments.m);
		device_free(args.moments.v);
		device_free((void *)args.g);
		device_free(args.low);
	}
	for (int k = 0; k < 4; k++)
		free(values[k]);
	free(low);
}

static void large_norm2(void)
{
	double norm2 = 0, got, *parts = device_alloc(ZERO_NORM2_PARTS * sizeof(double));
	double *sum = device_alloc(sizeof(double));
	float *values = memory(PERIOD * 4), *data;

	if (fits("norm2", MANY * 4)) {
		for (size_t i = 0; i < PERIOD; i++) {
			values[i] = (float)(int32_t)draw() * 0x1p-31F;
			norm2 += (double)values[i] * (double)values[i] *
				 (double)(MANY / PERIOD + (i < MANY % PERIOD));
		}
		data = (float *)repeated(values, 4);
		got = device_norm2(data, MANY, parts, sum, 0);
		expect(fabs(got - norm2) <= 1e-11 * norm2, "norm2 of %zu: %.17g, not %.17g", MANY,
		       got, norm2);
		printf("kernels: norm2 of %zu elements is right\n", MANY);
		device_free(data);
	}
	device_free(parts);
	device_free(sum);
	free(values);
}

/* A count or index of 32 bits would miss the last elements. */
static void large_random(void)
{
	size_t tail = 100000;
	uint16_t *want = memory(tail * 2), *got = memory(tail * 2);
	struct zero_device_random args;

	for (int uniform = 0; uniform < 2 && fits("random", MANY * 2); uniform++) {
		args = random_args(ZERO_BF16, poisoned(2), 3, MANY, -1, 2, 5, uniform);
		launch(uniform ? "zero_device_uniform" : "zero_device_normal", &args, MANY, 0);
		for (int end = 0; end < 2; end++) {
			size_t at = end ? MANY - tail : 0;

			download(got, (uint16_t *)args.out + at, tail * 2);
			synchronise();
			if (uniform)
				host->fill_uniform(ZERO_BF16, want, 3 + at, tail, -1, 2, seed, 5);
			else
				host->fill_normal(ZERO_BF16, want, 3 + at, tail, -1, 2, seed, 5);
			expect(!memcmp(got, want, tail * 2), "%s at %zu",
			       uniform ? "uniform" : "normal", at);
		}
		printf("kernels: %s of %zu elements is right\n", uniform ? "uniform" : "normal",
		       MANY);
		device_free(args.out);
	}
	free(want);
	free(got);
}

static void large_fill_and_copy(void)
{
	unsigned char *period = memory(PERIOD), *pattern = memory(PERIOD);
	struct zero_device_fill fill = {.count = MANY, .pattern = 0x5b, .size = 1};
	struct zero_device_piece piece = {.bytes = MANY};
	struct zero_device_copy_many copy = {.count = 1};
	uint64_t starts[2];
	char *tables;

	if (fits("fill", MANY * 2)) {
		for (size_t i = 0; i < PERIOD; i++) {
			period[i] = (unsigned char)draw();
			pattern[i] = 0x5b;
		}
		piece.from = repeated(period, 1);
		piece.to = fill.out = poisoned(1);
		launch("zero_device_fill", &fill, MANY, 0);
		expect_repeated(fill.out, pattern, 1, "fill");
		tables = device_alloc(sizeof(piece) + sizeof(starts));
		tiles_of(&piece, 1, starts);
		upload(tables, &piece, sizeof(piece));
		upload(tables + sizeof(piece), starts, sizeof(starts));
		copy.pieces = (void *)tables;
		copy.starts = (void *)(tables + sizeof(piece));
		launch("zero_device_copy_many", &copy, MANY, 0);
		expect_repeated(piece.to, period, 1, "copy_many");
		device_free(tables);
		device_free(piece.to);
		device_free((void *)piece.from);
	}
	free(period);
	free(pattern);
}

void check_large(void)
{
	large_fill_and_copy();
	large_cast();
	large_sum();
	large_norm2();
	large_random();
	large_adamw();
}

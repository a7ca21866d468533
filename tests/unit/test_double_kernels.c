/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the stand-in for CUDA: launches, and what each does to which bytes. */
#include <math.h>

#include "double_cuda.h"
#include "kernels.h"

enum { MOST = 40000, GUARD = 64 };

static const size_t sizes[] = {0, 1, 2, 15, 16, 17, 1000, 4099, 16384, 16385, 32768, MOST};

static uint64_t state;
static const struct zero_kernels *host;

static uint64_t draw(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static void open_kernels(void)
{
	open_device();
	state = seed_of_test();
	host = zero_kernels_choose("auto");
}

/* ---- memory between guards, twice: the device's, and what it should become ------------------- */

struct twin {
	CUdeviceptr device;
	char *x; /* the host's */
	char *base;
	size_t bytes;
};

/* Random bits, or sane f32; begins `offset` bytes off the block's beginning. */
static struct twin twin_new(size_t bytes, size_t offset, bool sane)
{
	struct twin t = {.bytes = bytes + offset + 2 * GUARD};
	float value;

	t.base = malloc(t.bytes);
	for (size_t i = 0; i < t.bytes; i++)
		t.base[i] = (char)draw();
	t.x = t.base + GUARD + offset;
	for (size_t i = 0; sane && i + 4 <= bytes; i += 4) {
		value = (float)(draw() >> 40) * 0x1p-20F - 8;
		memcpy(t.x + i, &value, 4);
	}
	t.device = new_block(t.bytes, NULL);
	GOOD(cu.copy(t.device, (CUdeviceptr)t.base, t.bytes, NULL));
	t.device += GUARD + offset;
	return t;
}

/* The device has what the host has, beyond the ends too. */
static void twin_same(struct twin *t, const char *name, size_t count)
{
	char *got = malloc(t->bytes);
	CUdeviceptr base = t->device - (CUdeviceptr)(t->x - t->base);

	GOOD(cu.copy((CUdeviceptr)got, base, t->bytes, NULL));
	for (size_t i = 0; i < t->bytes; i++)
		if (got[i] != t->base[i])
			ck_abort_msg("%s of %zu: byte %td differs", name, count,
				     (ptrdiff_t)i - (t->x - t->base));
	GOOD(cu.free(base, NULL));
	free(got);
	free(t->base);
}

static size_t size_of(zero_dtype dtype)
{
	return dtype == ZERO_F64 ? 8 : dtype == ZERO_F32 ? 4 : 2;
}

static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

/* ---- the kernels ----------------------------------------------------------------------------- */

static void check_cast(size_t n, zero_dtype to, zero_dtype from)
{
	struct twin in = twin_new(n * size_of(from), size_of(from), false);
	struct twin out = twin_new(n * size_of(to), size_of(to), false);
	struct zero_device_cast a = {(void *)out.device, (void *)in.device, n, to, from};

	GOOD(launch("zero_device_cast", 7, &a, NULL));
	host->cast(to, out.x, from, in.x, n);
	twin_same(&out, "cast", n);
	twin_same(&in, "input of cast", n);
}

static void check_sum(size_t n, zero_dtype from, int summands, bool accumulate)
{
	struct twin out = twin_new(n * 4, 4, false), in[3];
	struct zero_device_sum a = {.out = (float *)out.device,
				    .count = n,
				    .n = summands,
				    .from = from,
				    .accumulate = accumulate};
	const void *x[3];

	for (int i = 0; i < summands; i++) {
		in[i] = twin_new(n * size_of(from), (size_t)i * size_of(from), false);
		a.in[i] = (void *)in[i].device;
		x[i] = in[i].x;
	}
	GOOD(launch("zero_device_sum", 2, &a, NULL));
	host->sum((float *)out.x, from, x, summands, n, accumulate);
	twin_same(&out, "sum", n);
	for (int i = 0; i < summands; i++)
		twin_same(&in[i], "input of sum", n);
}

static void check_adamw(size_t n, bool with_low, zero_dtype low_dtype)
{
	struct twin p = twin_new(n * 4, 4, true), m = twin_new(n * 4, 8, true);
	struct twin v = twin_new(n * 4, 0, true), g = twin_new(n * 4, 4, true);
	struct twin low = twin_new(n * size_of(low_dtype), 0, false);
	struct zero_device_adamw a = {
		.args = {.lr = 0.01F,
			 .beta1 = 0.9F,
			 .beta2 = 0.99F,
			 .eps = 1e-8F,
			 .decay = 0.001F,
			 .correction1 = 3,
			 .correction2 = 5,
			 .scale = 0.5F},
		.p = (float *)p.device,
		.m = (float *)m.device,
		.v = (float *)v.device,
		.g = (float *)g.device,
		.low = with_low ? (void *)low.device : NULL,
		.count = n,
		.low_dtype = low_dtype,
	};

	GOOD(launch("zero_device_adamw", 2, &a, NULL));
	host->adamw(&a.args, (float *)p.x, (float *)m.x, (float *)v.x, (float *)g.x,
		    with_low ? low.x : NULL, low_dtype, n);
	twin_same(&p, "adamw p", n);
	twin_same(&m, "adamw m", n);
	twin_same(&v, "adamw v", n);
	twin_same(&g, "adamw g", n);
	twin_same(&low, "adamw low", n);
}

START_TEST(values_are_the_hosts)
{
	size_t n = sizes[_i];

	for (size_t t = 0; t < COUNT_OF(types); t++) {
		for (size_t f = 0; f < COUNT_OF(types); f++)
			check_cast(n, types[t], types[f]);
		for (int k = 1; k <= 3; k++)
			check_sum(n, types[t], k, k % 2);
		check_adamw(n, true, types[t]);
	}
	check_adamw(n, false, ZERO_F32);
}
END_TEST

/* By parts as device.h says: each part's own sum, and those added from the left. */
START_TEST(norm2_is_of_parts)
{
	const size_t n = _i < (int)COUNT_OF(sizes) ? sizes[_i] : 1024 * 16384 + 5000;
	const size_t parts = zero_norm2_parts(n), length = parts ? (n + parts - 1) / parts : 0;
	struct twin x = twin_new(n * 4, 4, true), sums = twin_new(parts * 8, 0, false);
	struct zero_device_norm2 a = {(float *)x.device, n, (double *)sums.device};
	double *total = new_pinned(8), wanted = 0, plain = 0;
	struct zero_device_norm2_fold fold = {(double *)sums.device, parts, total};

	if (parts)
		GOOD(launch("zero_device_norm2", (unsigned)parts, &a, NULL));
	GOOD(launch("zero_device_norm2_fold", 1, &fold, NULL));
	GOOD(cu.stream_finish(NULL));
	for (size_t b = 0; b < parts; b++) {
		size_t count = n - b * length < length ? n - b * length : length;
		double part = host->norm2((float *)x.x + b * length, count);

		memcpy(sums.x + b * 8, &part, 8);
		wanted += part;
	}
	for (size_t i = 0; i < n; i++)
		plain += (double)((float *)x.x)[i] * ((float *)x.x)[i];
	ck_assert(*total == wanted);
	ck_assert(fabs(plain - wanted) <= 1e-9 * plain);
	twin_same(&sums, "norm2", n);
	twin_same(&x, "input of norm2", n);
}
END_TEST

static void check_random(size_t n, zero_dtype dtype, bool is_normal)
{
	struct twin out = twin_new(n * size_of(dtype), size_of(dtype), false);
	struct zero_device_random a = {.out = (void *)out.device,
				       .first = draw() >> 30,
				       .count = n,
				       .seed = draw(),
				       .stream = draw(),
				       .a = -1,
				       .b = 2,
				       .dtype = dtype};

	GOOD(launch(is_normal ? "zero_device_normal" : "zero_device_uniform", 5, &a, NULL));
	(is_normal ? host->fill_normal : host->fill_uniform)(dtype, out.x, a.first, n, a.a, a.b,
							     a.seed, a.stream);
	twin_same(&out, "random", n);
}

static void check_fill(size_t n, size_t size)
{
	struct twin out = twin_new(n * size, size, false);
	struct zero_device_fill a = {(void *)out.device, n, draw(), size};

	GOOD(launch("zero_device_fill", 1, &a, NULL));
	for (size_t i = 0; i < n; i++)
		memcpy(out.x + i * size, &a.pattern, size);
	twin_same(&out, "fill", n);
}

START_TEST(fills_and_random_numbers)
{
	size_t n = sizes[_i];

	for (size_t t = 0; t < COUNT_OF(types); t++) {
		check_random(n, types[t], false);
		check_random(n, types[t], true);
	}
	check_random(n, ZERO_F64, false);
	check_random(n, ZERO_F64, true);
	for (size_t size = 1; size <= 8; size *= 2)
		check_fill(n, size);
}
END_TEST

START_TEST(many_copies_in_one_launch)
{
	enum { PIECES = 300 };
	struct twin to = twin_new(PIECES * 2000 + 50000, 3, false);
	struct twin from = twin_new(to.bytes, 1, false);
	struct zero_device_piece *pieces = new_pinned(PIECES * sizeof(*pieces));
	uint64_t *starts = new_pinned((PIECES + 1) * sizeof(*starts));
	CUdeviceptr tables = new_block(PIECES * sizeof(*pieces) + (PIECES + 1) * 8, NULL);
	struct zero_device_copy_many a = {(void *)tables,
					  (void *)(tables + PIECES * sizeof(*pieces)), PIECES};
	size_t at = 0;

	starts[0] = 0;
	for (size_t i = 0; i < PIECES; i++) {
		size_t bytes = i == 100 ? 50000 : draw() % 1900, source = draw() % 100000;

		pieces[i] = (struct zero_device_piece){(char *)to.device + at,
						       (char *)from.device + source, bytes};
		memcpy(to.x + at, from.x + source, bytes);
		starts[i + 1] = starts[i] + (bytes + ZERO_COPY_TILE - 1) / ZERO_COPY_TILE;
		at += bytes + draw() % 5;
	}
	GOOD(cu.copy(tables, (CUdeviceptr)pieces, PIECES * sizeof(*pieces), NULL));
	GOOD(cu.copy((CUdeviceptr)a.starts, (CUdeviceptr)starts, (PIECES + 1) * 8, NULL));
	GOOD(launch("zero_device_copy_many", 4, &a, NULL));
	twin_same(&to, "copy_many", PIECES);
	twin_same(&from, "input of copy_many", PIECES);
	/* where a piece points is seen only when it runs */
	a.count = 1;
	pieces[0].to = starts + PIECES;
	pieces[0].from = starts;
	pieces[0].bytes = 9;
	starts[1] = 1;
	GOOD(cu.copy(tables, (CUdeviceptr)pieces, sizeof(*pieces), NULL));
	GOOD(cu.copy((CUdeviceptr)a.starts, (CUdeviceptr)starts, 16, NULL));
	GOOD(launch("zero_device_copy_many", 4, &a, NULL));
	GIVES(cu.stream_finish(NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
}
END_TEST

/* ---- launches -------------------------------------------------------------------------------- */

START_TEST(launches_are_checked)
{
	struct zero_device_fill arguments = {(void *)new_block(400, NULL), 100, 2, 4};
	void *pointers[] = {&arguments};
	CUfunction function;
	CUmodule none;

	GIVES(cu.module_load(&none, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.function_get(&function, module, "zero_device_fills"), CUDA_ERROR_NOT_FOUND);
	GOOD(cu.function_get(&function, module, "zero_device_fill"));
	GIVES(cu.launch(function, 0, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 2, 1, 256, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 1, 1, 128, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	hold(true);
	GOOD(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL));
	arguments.out = NULL;
	hold(false);
	GOOD(cu.stream_finish(NULL));
	arguments.count = 0;
	GOOD(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL));
	GOOD(cu.stream_finish(NULL));
}
END_TEST

/* What a kernel touches must be there; else nothing works in this context any more. */
static const struct {
	size_t offset, count;
	bool plain;
	CUresult error;
} bad[] = {
	{0, 101, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{4, 100, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{0, SIZE_MAX, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{1, 50, false, CUDA_ERROR_MISALIGNED_ADDRESS},
	{0, 1, true, CUDA_ERROR_ILLEGAL_ADDRESS},
};

START_TEST(faults_stay)
{
	static float plain[100];
	CUdeviceptr x = new_block(400, NULL), y;
	CUstream stream = new_stream();
	CUevent event = new_event();

	GOOD(twice((bad[_i].plain ? (CUdeviceptr)plain : x) + bad[_i].offset, bad[_i].count, NULL));
	GIVES(cu.stream_finish(NULL), bad[_i].error);
	GIVES(cu.stream_finish(stream), bad[_i].error);
	GIVES(cu.event_query(event), bad[_i].error);
	GIVES(cu.alloc(&y, 4, pool, stream), bad[_i].error);
	/* but what is given back is given back */
	GIVES(cu.free(x, NULL), bad[_i].error);
	GIVES(cu.stream_delete(stream), bad[_i].error);
	GIVES(cu.event_delete(event), bad[_i].error);
	GIVES(cu.module_unload(module), bad[_i].error);
	GOOD(cu.pool_delete(pool));
	GOOD(cu.context_release(0));
	ck_assert_uint_eq(alive(false), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("double_kernels");
	TCase *test = tcase_create("kernels");
	SRunner *runner = srunner_create(suite);
	const int count = (int)COUNT_OF(sizes);
	int failed;

	tcase_set_timeout(test, 120);
	tcase_add_checked_fixture(test, open_kernels, NULL);
	tcase_add_loop_test(test, values_are_the_hosts, 0, count);
	tcase_add_loop_test(test, norm2_is_of_parts, 0, count + 1);
	tcase_add_loop_test(test, fills_and_random_numbers, 0, count);
	tcase_add_test(test, many_copies_in_one_launch);
	tcase_add_test(test, launches_are_checked);
	tcase_add_loop_test(test, faults_stay, 0, (int)COUNT_OF(bad));
	suite_add_tcase(suite, test);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

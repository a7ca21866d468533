/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's kernels, emulated, against the host's: the same bits for any input, alignment, grid
 * and order of threads. Sums and norms are in test_device_sums.c.
 */
#include <sys/mman.h>

#include "device_arrays.h"

/* ---- casts ----------------------------------------------------------------------------------- */

static void cast_is_the_hosts(zero_dtype to, zero_dtype from, const struct output *in, size_t count)
{
	struct output right = random_elements(to, count, in->offset / zero_dtype_size(from));
	struct output o = copy_of(&right);
	const struct zero_device_cast args = {o.out, in->out, count, to, from};
	char what[64];

	snprintf(what, sizeof what, "cast of type %d to %d", from, to);
	scalar->cast(to, right.out, from, in->out, count);
	launch("zero_device_cast", &args);
	guards_stand(in, what);
	same_bits(&right, &o, what, count);
}

START_TEST(casts_are_the_hosts)
{
	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t t = 0; t < 9 * 4; t++) {
			const zero_dtype to = floats[t % 3], from = floats[t / 3 % 3];
			struct output in = random_elements(from, counts[c], t % 5);

			cast_is_the_hosts(to, from, &in, counts[c]);
			free(in.base);
		}
}
END_TEST

START_TEST(casts_know_every_half)
{
	for (size_t t = 0; t < 6; t++) {
		struct output in = output_new(65536 * sizeof(uint16_t), 2 * (t % 2));

		for (size_t i = 0; i < 65536; i++)
			((uint16_t *)in.out)[i] = (uint16_t)i;
		cast_is_the_hosts(floats[t / 2], floats[1 + t % 2], &in, 65536);
		free(in.base);
	}
}
END_TEST

START_TEST(casts_to_the_same_copy)
{
	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (zero_dtype t = ZERO_F32; t <= ZERO_BOOL; t++) {
			struct output in = random_elements(t, counts[c], c % 5);

			cast_is_the_hosts(t, t, &in, counts[c]);
			free(in.base);
		}
}
END_TEST

/* ---- adamw ----------------------------------------------------------------------------------- */

static void adamw_is_the_hosts(const struct zero_adamw_args *args, zero_dtype low, size_t count,
			       bool sane)
{
	const size_t same = random64() % 5;
	struct output right[5], o[5], g = random_elements(ZERO_F32, count, same);
	struct zero_device_adamw a = {.args = *args, .count = count, .low_dtype = low};

	for (int k = 0; k < 4; k++)
		right[k] = random_elements(k < 3 ? ZERO_F32 : low, count, same);
	for (size_t i = 0; sane && i < count; i++) {
		((float *)right[0].out)[i] = random_sane();
		((float *)right[1].out)[i] = random_sane();
		((float *)right[2].out)[i] = fabsf(random_sane());
		((float *)g.out)[i] = random_sane();
	}
	for (int k = 0; k < 4; k++)
		o[k] = copy_of(&right[k]);
	a.p = o[0].out;
	a.m = o[1].out;
	a.v = o[2].out;
	a.g = g.out;
	a.low = low ? o[3].out : NULL;
	scalar->adamw(args, right[0].out, right[1].out, right[2].out, g.out,
		      low ? right[3].out : NULL, low, count);
	launch("zero_device_adamw", &a);
	guards_stand(&g, "adamw");
	same_bits(&right[0], &o[0], "p", count);
	same_bits(&right[1], &o[1], "m", count);
	same_bits(&right[2], &o[2], "v", count);
	same_bits(&right[3], &o[3], "low", count);
	free(g.base);
}

START_TEST(adamw_is_the_same)
{
	static const zero_dtype lows[] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t t = 0; t < 16; t++) {
			const struct zero_adamw_args args = {
				.lr = (float)random_unit(),
				.beta1 = (float)random_unit(),
				.beta2 = (float)random_unit(),
				.eps = t % 3 ? 1e-8f : 0,
				.decay = (float)random_unit() * 1e-3f,
				.correction1 = 1 + (float)random_unit(),
				.correction2 = 1 + (float)random_unit(),
				.scale = t % 5 ? (float)random_unit() : 1,
			};

			adamw_is_the_hosts(&args, lows[t % 4], counts[c], t / 8);
		}
}
END_TEST

/* ---- fill ------------------------------------------------------------------------------------ */

START_TEST(fills_repeat_the_pattern)
{
	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t size = 1; size <= 8; size *= 2)
			for (size_t t = 0; t < 5; t++) {
				const uint64_t pattern = random64();
				const size_t offset = random64() % 17 * size;
				struct output o = output_new(counts[c] * size, offset);
				const struct zero_device_fill args = {o.out, counts[c], pattern,
								      size};

				launch("zero_device_fill", &args);
				guards_stand(&o, "fill");
				for (size_t i = 0; i < counts[c]; i++)
					must(!memcmp((char *)o.out + i * size, &pattern, size),
					     "fill of %zu of %zu bytes: %zu", counts[c], size, i);
				free(o.base);
			}
}
END_TEST

/* ---- random ---------------------------------------------------------------------------------- */

static void random_is_the_hosts(zero_dtype dtype, size_t first, size_t count, bool normal)
{
	const double a = random_unit() * 4 - 2, b = a + 1e-3 + random_unit();
	struct output right =
		output_new(count * zero_dtype_size(dtype), random64() % 9 * zero_dtype_size(dtype));
	struct output o = output_new(right.bytes, right.offset);
	struct zero_device_random args = {
		.out = o.out,
		.first = first,
		.count = count,
		.seed = random64(),
		.stream = random64(),
		.a = a,
		.b = b,
		.dtype = dtype,
	};

	args.cut = scalar->uniform_ends(dtype, a, b, &args.first_value, &args.last_value);
	if (normal)
		scalar->fill_normal(dtype, right.out, first, count, a, b, args.seed, args.stream);
	else
		scalar->fill_uniform(dtype, right.out, first, count, a, b, args.seed, args.stream);
	launch(normal ? "zero_device_normal" : "zero_device_uniform", &args);
	same_bits(&right, &o, normal ? "normal" : "uniform", count);
}

START_TEST(random_numbers_are_the_hosts)
{
	static const zero_dtype dtypes[] = {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64};

	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t t = 0; t < COUNT_OF(dtypes); t++)
			for (size_t skip = 0; skip < 6; skip++) {
				const size_t far = skip % 2 ? random64() >> 24 : 0;

				random_is_the_hosts(dtypes[t], far + skip, counts[c], false);
				random_is_the_hosts(dtypes[t], far + skip, counts[c], true);
			}
}
END_TEST

/* ---- many copies ----------------------------------------------------------------------------- */

static size_t random_bytes(void)
{
	switch (random64() % 8) {
	case 0:
		return 0;
	case 1:
		return random64() % 4 * ZERO_COPY_TILE + random64() % 3;
	case 2:
		return random64() % 100000;
	default:
		return random64() % 300;
	}
}

static void copies_are_copies(size_t count)
{
	struct zero_device_piece *pieces = calloc(count + 1, sizeof *pieces);
	struct output *from = calloc(count + 1, sizeof *from), *to = calloc(count + 1, sizeof *to);
	uint64_t *starts = calloc(count + 1, sizeof *starts);
	const struct zero_device_copy_many args = {pieces, starts, count};

	ck_assert(pieces && from && to && starts);
	for (size_t k = 0; k < count; k++) {
		const size_t bytes = random_bytes();

		from[k] = random_elements(ZERO_U8, bytes, k % 17);
		to[k] = output_new(bytes, random64() % 2 ? from[k].offset : random64() % 32);
		pieces[k] = (struct zero_device_piece){to[k].out, from[k].out, bytes};
		starts[k + 1] = starts[k] + (bytes + ZERO_COPY_TILE - 1) / ZERO_COPY_TILE;
	}
	launch("zero_device_copy_many", &args);
	for (size_t k = 0; k < count; k++) {
		guards_stand(&to[k], "copy_many");
		must(!to[k].bytes || !memcmp(to[k].out, from[k].out, to[k].bytes),
		     "piece %zu of %zu, %zu bytes at +%zu to +%zu", k, count, to[k].bytes,
		     from[k].offset, to[k].offset);
		free(from[k].base);
		free(to[k].base);
	}
	free(pieces);
	free(from);
	free(to);
	free(starts);
}

START_TEST(many_copies_are_copies)
{
	for (size_t count = 0; count < 20; count++)
		copies_are_copies(count);
	for (int t = 0; t < 10; t++)
		copies_are_copies(random64() % 300);
}
END_TEST

/* ---- beyond 2^32 ----------------------------------------------------------------------------- */

/* An array of which only what is touched takes memory. */
static void *far_array(size_t bytes)
{
	void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return data == MAP_FAILED ? NULL : data;
}

/* The last tile, of every length that a kernel may have, and the elements after it. */
static void launch_end(const char *kernel, const void *args, size_t count)
{
	for (size_t tile = 256; tile <= 16384; tile *= 2) {
		const size_t tiles = count / tile + (count % tile != 0);

		if (tiles > 0x7fffffff)
			continue;
		ck_assert(zero_emulate_block(kernel, (unsigned int)tiles, args, 0));
		ck_assert(zero_emulate_block(kernel, (unsigned int)tiles, args,
					     (unsigned int)tiles - 1));
	}
}

START_TEST(counts_beyond_32_bits)
{
	const size_t count = ((size_t)1 << 35) + 5003; /* so that groups of 4 are beyond too */
	float *x = far_array(count * sizeof(float)), *y = far_array(count * sizeof(float));
	const struct zero_device_fill fill = {x, count, 0x3f800000, 4};
	const struct zero_device_cast cast = {y, x, count, ZERO_F16, ZERO_F32};
	const struct zero_device_sum sum = {y, {x, x}, count, 2, ZERO_F32, false};
	const uint16_t *h = (const uint16_t *)y;

	if (!x || !y) {
		printf("no address space for %zu elements\n", count);
		return;
	}
	launch_end("zero_device_fill", &fill, count);
	for (size_t i = count - 500; i < count; i++)
		must(x[i] == 1, "fill: %zu", i);
	launch_end("zero_device_cast", &cast, count);
	for (size_t i = count - 500; i < count; i++)
		must(h[i] == 0x3c00, "cast: %zu", i);
	launch_end("zero_device_sum", &sum, count);
	for (size_t i = count - 500; i < count; i++)
		must(y[i] == 2, "sum: %zu", i);
	munmap(x, count * sizeof(float));
	munmap(y, count * sizeof(float));
}
END_TEST

START_TEST(unknown_kernels_are_not_there)
{
	ck_assert(!zero_emulate_kernel("zero_device_none", 1, NULL, 0));
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("device");
	TCase *tests = tcase_create("device");
	SRunner *runner = srunner_create(suite);

	find_sets();
	suite_add_tcase(suite, tests);
	tcase_set_timeout(tests, 300);
	tcase_add_test(tests, casts_are_the_hosts);
	tcase_add_test(tests, casts_know_every_half);
	tcase_add_test(tests, casts_to_the_same_copy);
	tcase_add_test(tests, adamw_is_the_same);
	tcase_add_test(tests, fills_repeat_the_pattern);
	tcase_add_test(tests, random_numbers_are_the_hosts);
	tcase_add_test(tests, many_copies_are_copies);
	tcase_add_test(tests, counts_beyond_32_bits);
	tcase_add_test(tests, unknown_kernels_are_not_there);

	srunner_run_all(runner, CK_VERBOSE);
	const int failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

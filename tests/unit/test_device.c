/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's kernels, emulated, against the host's: the same bits for any input, alignment, grid
 * and order of threads. Only the norm has an order of its own.
 */
#include <sys/mman.h>

#include "sets.h"

#include "device.h"
#include "double/kernels.h"

static const size_t counts[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 1000, 1023, 4099, 21003};
static const zero_dtype floats[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

/* Some grid, in some order. */
static void launch(const char *kernel, const void *args)
{
	static const unsigned int blocks[] = {1, 2, 3, 5, 8, 37};

	must(zero_emulate_kernel(kernel, blocks[random64() % COUNT_OF(blocks)], args,
				 random64() % 2 ? random64() : 0),
	     "there is no kernel %s", kernel);
}

static size_t size_of(zero_dtype dtype)
{
	switch (dtype) {
	case ZERO_F64:
	case ZERO_I64:
		return 8;
	case ZERO_F32:
	case ZERO_I32:
		return 4;
	case ZERO_F16:
	case ZERO_BF16:
		return 2;
	default:
		return 1;
	}
}

/* Elements of any bits; half of the arrays have an alignment of their own, the others the same. */
static struct output random_elements(zero_dtype dtype, size_t count, size_t same)
{
	const size_t size = size_of(dtype), elements = random64() % 2 ? same : random64() % 17;
	struct output o = output_new(count * size, elements * size);

	for (size_t i = 0; i < count; i++) {
		const float x = random_any();
		const uint64_t bits = random64();

		memcpy((char *)o.out + i * size, dtype == ZERO_F32 ? (void *)&x : (void *)&bits,
		       size);
	}
	return o;
}

static struct output copy_of(const struct output *o)
{
	struct output copy = output_new(o->bytes, o->offset);

	if (o->bytes)
		memcpy(copy.out, o->out, o->bytes);
	return copy;
}

/* Frees both. */
static void same_bits(struct output *right, struct output *o, const char *what, size_t count)
{
	guards_stand(right, what);
	guards_stand(o, what);
	for (size_t i = 0; i < o->bytes; i++)
		must(((char *)right->out)[i] == ((char *)o->out)[i],
		     "%s of %zu at +%zu bytes: byte %zu differs", what, count, o->offset, i);
	free(right->base);
	free(o->base);
}

/* ---- casts ----------------------------------------------------------------------------------- */

static void cast_is_the_hosts(zero_dtype to, zero_dtype from, const struct output *in, size_t count)
{
	struct output right = random_elements(to, count, in->offset / size_of(from));
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

/* ---- sums ------------------------------------------------------------------------------------ */

/* `own`: the summand that out is, or -1. */
static void sum_is_the_hosts(zero_dtype from, int n, size_t count, bool accumulate, int own)
{
	const size_t same = random64() % 5;
	struct output in[ZERO_DEVICE_SUMMANDS], right = random_elements(ZERO_F32, count, same), o;
	struct zero_device_sum args = {
		.count = count, .n = n, .from = from, .accumulate = accumulate};

	for (int k = 0; k < n; k++) {
		in[k] = random_elements(from, count, same);
		/* NaNs and infinities are for the sums of few: of many, all would be NaN. */
		for (size_t i = 0; from == ZERO_F32 && n > 2 && i < count; i++)
			((float *)in[k].out)[i] = random_sane();
		args.in[k] = in[k].out;
	}
	if (own >= 0)
		memcpy(right.out, in[own].out, right.bytes);
	o = copy_of(&right);
	args.out = o.out;
	if (own >= 0)
		args.in[own] = right.out;
	scalar->sum(right.out, from, args.in, n, count, accumulate);
	if (own >= 0)
		args.in[own] = o.out;
	launch("zero_device_sum", &args);
	same_bits(&right, &o, "sum", count);
	for (int k = 0; k < n; k++)
		free(in[k].base);
}

START_TEST(sums_are_the_hosts)
{
	static const int ns[] = {1, 2, 3, 8, 9, 16, 17, 64};

	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t k = 0; k < COUNT_OF(ns); k++)
			for (size_t t = 0; t < 3; t++) {
				const int own = (int)(random64() % (uint64_t)ns[k]);

				sum_is_the_hosts(floats[t], ns[k], counts[c], false, -1);
				sum_is_the_hosts(floats[t], ns[k], counts[c], true, -1);
				if (floats[t] == ZERO_F32)
					sum_is_the_hosts(ZERO_F32, ns[k], counts[c], c % 2, own);
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
	static const zero_dtype lows[] = {ZERO_PARAM, ZERO_F32, ZERO_F16, ZERO_BF16};

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

/* ---- norms ----------------------------------------------------------------------------------- */

static double norm2_of(const float *x, size_t count)
{
	const size_t parts = zero_norm2_parts(count);
	struct output o = output_new(parts * sizeof(double), 0), of = output_new(sizeof(double), 8);
	const struct zero_device_norm2 args = {x, count, o.out};
	const struct zero_device_norm2_fold fold = {o.out, parts, of.out};
	double sum;

	if (random64() % 2 && parts)
		zero_emulate_kernel("zero_device_norm2", (unsigned int)parts, &args, random64());
	else
		launch("zero_device_norm2", &args);
	zero_emulate_kernel("zero_device_norm2_fold", 1, &fold, random64());
	guards_stand(&o, "norm2");
	guards_stand(&of, "norm2_fold");
	memcpy(&sum, of.out, sizeof sum);
	free(o.base);
	free(of.base);
	return sum;
}

START_TEST(norms_are_right_and_always_the_same)
{
	static const size_t long_counts[] = {16384, 16385, 40000, BIG};

	for (size_t c = 0; c < COUNT_OF(counts) + COUNT_OF(long_counts); c++) {
		const size_t count =
			c < COUNT_OF(counts) ? counts[c] : long_counts[c - COUNT_OF(counts)];
		struct array a = random_array(count, 0, random_sane);
		const double sum = norm2_of(a.x, count);
		long double exact = 0;

		for (size_t i = 0; i < count; i++)
			exact += (long double)a.x[i] * (long double)a.x[i];
		must(fabsl(sum - exact) <= exact * 1e-13L, "norm2 of %zu: %.17g, not %.17Lg", count,
		     sum, exact);
		for (size_t offset = 0; offset < 5; offset++) {
			struct output o = output_of(a.x, count, offset);
			const double again = norm2_of(o.out, count);

			must(again == sum, "norm2 of %zu at +%zu: %.17g, then %.17g", count, offset,
			     sum, again);
			free(o.base);
		}
		free(a.base);
	}
}
END_TEST

START_TEST(norms_have_one_nan)
{
	const size_t count = 20000;
	struct array a = random_array(count, 1, random_sane);
	uint64_t bits;
	double sum;

	a.x[random64() % count] = -INFINITY;
	sum = norm2_of(a.x, count);
	ck_assert(isinf(sum) && sum > 0);
	a.x[random64() % count] = float_of(0xffc01234);
	sum = norm2_of(a.x, count);
	memcpy(&bits, &sum, sizeof bits);
	ck_assert_uint_eq(bits, 0x7ff8000000000000);
	free(a.base);
}
END_TEST

/* Also with more than ZERO_NORM2_PART elements in each of ZERO_NORM2_PARTS. */
START_TEST(parts_cover_all_elements)
{
	static const size_t powers[] = {0, 10, 14, 15, 20, 24, 25, 33, 40, 60};

	for (size_t p = 0; p < COUNT_OF(powers); p++)
		for (int t = 0; t < 1000; t++) {
			const size_t count = ((size_t)1 << powers[p]) + random64() % 5000;
			const size_t parts = zero_norm2_parts(count),
				     length = zero_norm2_length(count);

			must(parts && parts <= ZERO_NORM2_PARTS && length % 64 == 0 &&
				     length <= count / parts + 64 && count / parts <= length &&
				     length >= (count - 1) / parts + 1,
			     "%zu elements: %zu parts of %zu", count, parts, length);
		}
}
END_TEST

START_TEST(norms_of_many_parts)
{
	const size_t count = (size_t)ZERO_NORM2_PARTS * ZERO_NORM2_PART + 12345;
	struct array a = random_array(count, 0, random_sane);
	const double sum = norm2_of(a.x, count);
	long double exact = 0;

	for (size_t i = 0; i < count; i++)
		exact += (long double)a.x[i] * (long double)a.x[i];
	must(fabsl(sum - exact) <= exact * 1e-13L, "%.17g, not %.17Lg", sum, exact);
	free(a.base);
}
END_TEST

/* ---- finite, scale, fill --------------------------------------------------------------------- */

static uint32_t bad_of(const float *x, size_t count, uint32_t before)
{
	struct output o = output_new(sizeof(uint32_t), 4);
	const struct zero_device_finite args = {x, count, o.out};
	uint32_t bad;

	memcpy(o.out, &before, sizeof before);
	launch("zero_device_finite", &args);
	guards_stand(&o, "finite");
	memcpy(&bad, o.out, sizeof bad);
	free(o.base);
	return bad;
}

START_TEST(one_that_is_not_finite_is_found)
{
	static const uint32_t odd[] = {0x7f800000, 0xff800000, 0x7f800001,
				       0xff800001, 0x7fc00000, 0xffffffff};

	for (size_t c = 0; c < COUNT_OF(counts); c++) {
		struct array a = random_array(counts[c], c % 5, random_sane);

		ck_assert_uint_eq(bad_of(a.x, counts[c], 0), 0);
		ck_assert_uint_eq(bad_of(a.x, counts[c], 1), 1);
		for (size_t t = 0; counts[c] && t < 20; t++) {
			const size_t at =
				t % 4 ? random64() % counts[c] : (t % 8 ? counts[c] - 1 : 0);
			const float was = a.x[at];

			a.x[at] = float_of(odd[t % COUNT_OF(odd)]);
			must(bad_of(a.x, counts[c], 0) == 1, "finite of %zu misses %zu", counts[c],
			     at);
			a.x[at] = t % 2 ? FLT_MAX : -FLT_MAX;
			ck_assert_uint_eq(bad_of(a.x, counts[c], 0), 0);
			a.x[at] = was;
		}
		free(a.base);
	}
}
END_TEST

START_TEST(scales_are_the_hosts)
{
	for (size_t c = 0; c < COUNT_OF(counts); c++)
		for (size_t t = 0; t < 5; t++) {
			struct output right = random_elements(ZERO_F32, counts[c], t);
			struct output o = copy_of(&right);
			const struct zero_device_scale args = {o.out, counts[c],
							       t ? random_sane() : random_any()};

			scalar->scale(right.out, counts[c], args.factor);
			launch("zero_device_scale", &args);
			same_bits(&right, &o, "scale", counts[c]);
		}
}
END_TEST

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

/* The type's smallest value that is at least `low`, and its largest below `high`, by looking at all
   of them or at the neighbours. */
static void ends_of(zero_dtype dtype, double low, double high, double *first, double *last)
{
	*first = INFINITY;
	*last = -INFINITY;
	if (dtype == ZERO_F64) {
		*first = low;
		*last = nextafter(high, -INFINITY);
		return;
	}
	if (dtype == ZERO_F32) {
		*first = (float)low < low ? nextafterf((float)low, INFINITY) : (float)low;
		*last = (float)high >= high ? nextafterf((float)high, -INFINITY) : (float)high;
		return;
	}
	for (uint32_t h = 0; h < 65536; h++) {
		const double x = meaning_of(dtype, (uint16_t)h);

		*first = x >= low && x < *first ? x : *first;
		*last = x < high && x > *last ? x : *last;
	}
}

static void random_is_the_hosts(zero_dtype dtype, size_t first, size_t count, bool normal)
{
	const double a = random_unit() * 4 - 2, b = a + 1e-3 + random_unit();
	struct output right = output_new(count * size_of(dtype), random64() % 9 * size_of(dtype));
	struct output o = output_new(right.bytes, right.offset);
	struct zero_device_random args = {
		.out = o.out,
		.first = first,
		.count = count,
		.seed = random64(),
		.stream = random64(),
		.a = a,
		.b = b,
		.cut = dtype == ZERO_F64 ? 0 : 8,
		.dtype = dtype,
	};

	ends_of(dtype, a, b, &args.first_value, &args.last_value);
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
	uint32_t bad = 0;
	const struct zero_device_fill fill = {x, count, 0x3f800000, 4};
	const struct zero_device_cast cast = {y, x, count, ZERO_F16, ZERO_F32};
	const struct zero_device_sum sum = {y, {x, x}, count, 2, ZERO_F32, false};
	const struct zero_device_scale scale = {x, count, 0};
	const struct zero_device_finite finite = {x, count, &bad};
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
	launch_end("zero_device_scale", &scale, count);
	for (size_t i = count - 500; i < count; i++)
		must(x[i] == 0, "scale: %zu", i);
	launch_end("zero_device_finite", &finite, count);
	ck_assert_uint_eq(bad, 0);
	x[count - 4] = INFINITY;
	launch_end("zero_device_finite", &finite, count);
	ck_assert_uint_eq(bad, 1);
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
	tcase_add_test(tests, sums_are_the_hosts);
	tcase_add_test(tests, adamw_is_the_same);
	tcase_add_test(tests, norms_are_right_and_always_the_same);
	tcase_add_test(tests, norms_have_one_nan);
	tcase_add_test(tests, parts_cover_all_elements);
	tcase_add_test(tests, norms_of_many_parts);
	tcase_add_test(tests, one_that_is_not_finite_is_found);
	tcase_add_test(tests, scales_are_the_hosts);
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

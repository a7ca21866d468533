/* SPDX-License-Identifier: Apache-2.0 */
/* Elements of one storage type made another, matrices transposed, constants. */
#include "sets.h"

static const zero_dtype types[] = {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64,
				   ZERO_I64, ZERO_I32, ZERO_U8,   ZERO_BOOL};
enum { FLOATS = 4, TYPES = COUNT_OF(types) };

static size_t size_of(zero_dtype dtype)
{
	static const size_t of[] = {
		[ZERO_F32] = 4, [ZERO_F16] = 2, [ZERO_BF16] = 2, [ZERO_F64] = 8,
		[ZERO_I64] = 8, [ZERO_I32] = 4, [ZERO_U8] = 1,   [ZERO_BOOL] = 1,
	};

	return of[dtype];
}

static uint64_t bits_at(zero_dtype dtype, const void *x, size_t i)
{
	const size_t size = size_of(dtype);
	uint64_t bits = 0;

	memcpy(&bits, (const char *)x + i * size, size);
	return bits;
}

static double f64_of(uint64_t bits)
{
	double x;

	memcpy(&x, &bits, sizeof x);
	return x;
}

/* ---- floats ---------------------------------------------------------------------------------- */

static double value_of(zero_dtype dtype, uint64_t bits)
{
	if (dtype == ZERO_F64)
		return f64_of(bits);
	if (dtype == ZERO_F32)
		return float_of((uint32_t)bits);
	return meaning_of(dtype, (uint16_t)bits);
}

static void is_converted(zero_dtype to, uint64_t got, zero_dtype from, uint64_t bits)
{
	static const uint64_t quiet[] = {
		[ZERO_F32] = 0x7fc00000,
		[ZERO_F16] = 0x7e00,
		[ZERO_BF16] = 0x7fc0,
		[ZERO_F64] = 0x7ff8000000000000,
	};
	const double x = value_of(from, bits);
	uint64_t right;

	if (to == from) {
		must(got == bits, "type %d: %llx became %llx", to, (unsigned long long)bits,
		     (unsigned long long)got);
		return;
	}
	if (isnan(x)) {
		must((got & quiet[to]) == quiet[to] &&
			     got >> (8 * size_of(to) - 1) == bits >> (8 * size_of(from) - 1),
		     "type %d to %d: NaN %llx became %llx", from, to, (unsigned long long)bits,
		     (unsigned long long)got);
		return;
	}
	if (to == ZERO_F64)
		memcpy(&right, &x, sizeof right);
	else
		right = nearest(to, x);
	must(got == right, "type %d to %d: %llx (%.17g) became %llx, not %llx", from, to,
	     (unsigned long long)bits, x, (unsigned long long)got, (unsigned long long)right);
}

/* By every set; `in` has `count` elements of `from`. */
static void floats_are_right(zero_dtype to, zero_dtype from, const void *in, size_t count,
			     size_t offset)
{
	struct output first = {0};

	for (int s = 0; sets[s]; s++) {
		struct output o = output_new(count * size_of(to), offset * size_of(to));
		size_t bad = 12345;

		must(zero_convert(sets[s], to, o.out, from, in, count, &bad) && bad == 12345,
		     "type %d to %d failed", from, to);
		for (size_t i = 0; !s && i < count; i++)
			is_converted(to, bits_at(to, o.out, i), from, bits_at(from, in, i));
		same_as(&first, &o, "zero_convert", sets[s]->isa, count);
	}
	free(first.base);
}

/* Around `x`, the middle of two neighbours: less than any f32 or f16 can tell, and a little. */
static size_t around(double *out, double x)
{
	const double near[] = {x, nextafter(x, 0), nextafter(x, INFINITY), x * (1 + 0x1p-30),
			       x * (1 - 0x1p-30)};

	for (size_t k = 0; k < COUNT_OF(near); k++) {
		out[2 * k] = near[k];
		out[2 * k + 1] = -near[k];
	}
	return 2 * COUNT_OF(near);
}

/* Rounding first to f32 puts these on the middle, and then to even. */
START_TEST(f64_is_rounded_once)
{
	static double x[10 << 16];
	size_t count;

	for (size_t t = ZERO_F16; t <= ZERO_BF16; t++) {
		const zero_dtype dtype = (zero_dtype)t;

		count = 0;
		for (uint16_t h = 0; isfinite(meaning_of(dtype, h)); h++) {
			const double low = meaning_of(dtype, h);
			double high = meaning_of(dtype, (uint16_t)(h + 1));

			if (isinf(high))
				high = 2 * low - meaning_of(dtype, (uint16_t)(h - 1));
			count += around(x + count, low + (high - low) / 2);
		}
		ck_assert(count > 10 << 14);
		floats_are_right(dtype, ZERO_F64, x, count, 0);
	}
	count = 0;
	while (count + 10 <= COUNT_OF(x)) {
		const uint32_t bits = (uint32_t)random64() % 0x7f7fffff;
		const double low = float_of(bits), high = float_of(bits + 1);

		count += around(x + count, low + (high - low) / 2);
	}
	floats_are_right(ZERO_F32, ZERO_F64, x, count, 0);
}
END_TEST

START_TEST(f64_edges_are_kept)
{
	static const double edges[] = {
		INFINITY, 0x1p-1074, DBL_MIN,  FLT_MAX,  FLT_MAX * (1 + 0x1p-25),
		0x1p-149, 0x1p-150,  0x1p-133, 0x1p-134, FLT_MAX * (1 + 0x1p-24),
		0x1p-24,  0x1p-25,   65504,    65520,
	};
	double x[COUNT_OF(edges) * 10 + 3] = {
		f64_of(0x7ff0000000000001), f64_of(0xfff0000000000001), f64_of(0xfff00000ffffffff)};
	size_t count = 3;

	for (size_t e = 0; e < COUNT_OF(edges); e++)
		count += around(x + count, edges[e]);
	for (size_t t = 0; t < FLOATS; t++)
		floats_are_right(types[t], ZERO_F64, x, count, t);
}
END_TEST

/* Anything, but mostly of the size that the 16-bit types have. */
static uint64_t random_f64(void)
{
	const uint64_t bits = random64();

	switch (random64() % 8) {
	case 0:
		return bits;
	case 1:
		return bits | 0x7ff0000000000000;
	case 2:
		return bits & 0x800fffffffffffff;
	case 3: /* the exponents of f32 and bf16 */
		return (bits & 0x800fffffffffffff) | (0x360 + random64() % 0x120) << 52;
	default: /* of f16 */
		return (bits & 0x800fffffffffffff) | (0x3e4 + random64() % 0x2c) << 52;
	}
}

static void *random_floats(zero_dtype dtype, size_t count, size_t offset, void **base)
{
	const size_t size = size_of(dtype);
	char *x = malloc((count + offset) * size + 1);

	ck_assert_ptr_nonnull(x);
	*base = x;
	x += offset * size;
	for (size_t i = 0; i < count; i++) {
		const uint64_t bits = dtype == ZERO_F64   ? random_f64()
				      : dtype == ZERO_F32 ? bits_of(random_any())
							  : random64();

		memcpy(x + i * size, &bits, size);
	}
	return x;
}

START_TEST(floats_become_any_float)
{
	for (size_t c = 0; c < COUNT_OF(sizes) * FLOATS * FLOATS; c++) {
		const zero_dtype to = types[c % FLOATS], from = types[c / FLOATS % FLOATS];
		const size_t count = sizes[c / FLOATS / FLOATS];
		const size_t turn = count == BIG ? 0 : c;
		void *base, *in = random_floats(from, count, turn % 3, &base);

		floats_are_right(to, from, in, count, turn % 5);
		free(base);
	}
}
END_TEST

START_TEST(every_16_bit_float_becomes_any_float)
{
	static uint16_t h[1 << 16];

	for (size_t i = 0; i < COUNT_OF(h); i++)
		h[i] = (uint16_t)i;
	for (size_t t = 0; t < FLOATS; t++) {
		floats_are_right(types[t], ZERO_F16, h, COUNT_OF(h), 0);
		floats_are_right(types[t], ZERO_BF16, h, COUNT_OF(h), 0);
	}
}
END_TEST

/* ---- integers -------------------------------------------------------------------------------- */

static int64_t integer_of(zero_dtype dtype, uint64_t bits)
{
	return dtype == ZERO_I32 ? (int32_t)bits : (int64_t)bits;
}

static bool fits(zero_dtype to, int64_t x)
{
	switch (to) {
	case ZERO_I64:
		return true;
	case ZERO_I32:
		return x == (int32_t)x;
	case ZERO_U8:
		return x == (uint8_t)x;
	default:
		return x == 0 || x == 1;
	}
}

static int64_t random_integer(void)
{
	static const int64_t edges[] = {
		INT64_MIN + 1, INT32_MIN,        -256,         -128, 0, 1, 128, 255,
		INT32_MAX,     UINT32_MAX + 1LL, INT64_MAX - 1};

	if (random64() % 2)
		return edges[random64() % COUNT_OF(edges)] + ((int64_t)(random64() % 3) - 1);
	return (int64_t)random64() >> random64() % 64;
}

/* A value of `from` that fits into `to`, or does not; 0 if none was met. */
static int64_t draw_integer(zero_dtype to, zero_dtype from, bool fit)
{
	int64_t x = 0;

	for (int t = 0; t < 10000; t++) {
		x = random_integer();
		if (fits(from, x) && fits(to, x) == fit)
			break;
		x = 0;
	}
	return x;
}

/* Elements from `first_bad` do not fit, and then any. */
static void integers_are_right(zero_dtype to, zero_dtype from, size_t count, size_t first_bad,
			       size_t offset)
{
	const size_t size = size_of(from);
	char *base = malloc((count + offset) * size + 1), *in = base + offset * size;
	struct output o = output_new(count * size_of(to), offset * size_of(to));
	size_t bad = 12345, right = count;
	char what[80];

	ck_assert_ptr_nonnull(base);
	for (size_t i = 0; i < count; i++) {
		const int64_t x = draw_integer(to, from, i != first_bad);

		memcpy(in + i * size, &x, size);
		if (right == count && !fits(to, x))
			right = i;
	}
	snprintf(what, sizeof what, "type %d to %d, %zu elements, the bad one %zu", from, to, count,
		 right);
	must(zero_convert(scalar, to, o.out, from, in, count, &bad) == (right == count), "%s",
	     what);
	must(bad == (right < count ? right : 12345), "%s, not %zu", what, bad);
	for (size_t i = 0; i < right; i++)
		must(integer_of(to, bits_at(to, o.out, i)) ==
			     integer_of(from, bits_at(from, in, i)),
		     "%s: element %zu", what, i);
	guards_stand(&o, what);
	free(base);
	free(o.base);
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* What a code of f8 means, by the formats' definition. */
static double f8_means(zero_dtype dtype, unsigned code)
{
	const int bits = dtype == ZERO_F8_E4M3 ? 3 : 2, bias = dtype == ZERO_F8_E4M3 ? 7 : 15;
	const int exponent = (int)(code & 0x7f) >> bits, fraction = (int)code & ((1 << bits) - 1);
	const double whole = exponent ? 1 : 0;
	double x = ldexp(whole + fraction / (double)(1 << bits), (exponent ? exponent : 1) - bias);

	if (dtype == ZERO_F8_E4M3 ? (code & 0x7f) == 0x7f : exponent == 31)
		x = dtype == ZERO_F8_E5M2 && !fraction ? INFINITY : NAN;
	return code & 0x80 ? -x : x;
}

START_TEST(every_f8_becomes_any_float)
{
	uint8_t codes[256];
	double wide[256];
	uint16_t half;

	for (int i = 0; i < 256; i++)
		codes[i] = (uint8_t)i;
	for (zero_dtype from = ZERO_F8_E4M3; from <= ZERO_F8_E5M2; from++) {
		ck_assert(zero_convert(sets[0], ZERO_F64, wide, from, codes, 256, NULL));
		for (unsigned i = 0; i < 256; i++) {
			const double right = f8_means(from, i);

			must(isnan(right) ? isnan(wide[i]) : wide[i] == right,
			     "f8 %02x is %g, not %g", i, wide[i], right);
			must((signbit(wide[i]) != 0) == (i >= 0x80), "f8 %02x has another sign", i);
			ck_assert(zero_convert(sets[0], ZERO_F16, &half, from, &codes[i], 1, NULL));
			must(isnan(right) || meaning_of(ZERO_F16, half) == right, "f8 %02x as f16",
			     i);
		}
	}
}
END_TEST

/* The middle of two codes is the even one; beyond the last one and its middle there is no value. */
START_TEST(f8_is_rounded_once)
{
	for (zero_dtype to = ZERO_F8_E4M3; to <= ZERO_F8_E5M2; to++)
		for (unsigned code = 0; !isnan(f8_means(to, code + 1)); code++) {
			const double low = f8_means(to, code);
			const double high = isinf(f8_means(to, code + 1))
						    ? 2 * low - f8_means(to, code - 1)
						    : f8_means(to, code + 1);
			double x[10];
			size_t count = around(x, low + (high - low) / 2);
			uint8_t got[10];

			if (isinf(low))
				break;
			ck_assert(zero_convert(sets[0], to, got, ZERO_F64, x, count, NULL));
			for (size_t i = 0; i < count; i++) {
				const double distance = fabs(x[i]) - low, other = high - fabs(x[i]);
				const bool up = distance > other || (distance == other && code % 2);

				must(got[i] == (code + up) + (x[i] < 0 ? 0x80 : 0),
				     "%.17g became f8 %02x, beside %02x", x[i], got[i], code);
			}
		}
}
END_TEST

START_TEST(what_f8_cannot_have)
{
	static const double x[] = {448, 464, 465, 1e9, INFINITY, NAN, 57344, 61439, 61440, -1e300};
	static const uint8_t e4m3[] = {0x7e, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0xff};
	static const uint8_t e5m2[] = {0x5f, 0x5f, 0x5f, 0x7c, 0x7c, 0x7f, 0x7b, 0x7b, 0x7c, 0xfc};
	uint8_t got[COUNT_OF(x)];

	ck_assert(zero_convert(sets[0], ZERO_F8_E4M3, got, ZERO_F64, x, COUNT_OF(x), NULL));
	for (size_t i = 0; i < COUNT_OF(x); i++)
		must((got[i] & 0x7f) == (e4m3[i] & 0x7f), "%g became e4m3 %02x", x[i], got[i]);
	ck_assert(zero_convert(sets[0], ZERO_F8_E5M2, got, ZERO_F64, x, COUNT_OF(x), NULL));
	for (size_t i = 0; i < COUNT_OF(x); i++)
		must(got[i] == e5m2[i] || isnan(x[i]), "%g became e5m2 %02x", x[i], got[i]);
	ck_assert(!zero_convertible(ZERO_F8_E4M3, ZERO_U8) &&
		  !zero_convertible(ZERO_U8, ZERO_F8_E5M2));
	ck_assert(zero_convertible(ZERO_F8_E4M3, ZERO_F8_E5M2));
}
END_TEST

START_TEST(integers_become_what_they_fit)
{
	for (size_t c = 0; c < (COUNT_OF(sizes) - 1) * 16; c++) {
		const zero_dtype to = types[FLOATS + c % 4], from = types[FLOATS + c / 4 % 4];
		const size_t count = sizes[c / 16];

		integers_are_right(to, from, count, SIZE_MAX, c % 3);
		if (!count)
			continue;
		integers_are_right(to, from, count, 0, c % 3);
		integers_are_right(to, from, count, count - 1, c % 3);
		for (int t = 0; t < 4; t++)
			integers_are_right(to, from, count, random64() % count, c % 3);
	}
}
END_TEST

START_TEST(floats_and_integers_do_not_mix)
{
	for (size_t a = 0; a < TYPES; a++) {
		for (size_t b = 0; b < TYPES; b++)
			ck_assert(zero_convertible(types[a], types[b]) ==
				  ((a < FLOATS) == (b < FLOATS)));
		ck_assert(!zero_convertible(types[a], ZERO_DTYPE_PARAM));
		ck_assert(!zero_convertible(ZERO_DTYPE_PARAM, types[a]));
	}
	ck_assert(!zero_convertible(ZERO_DTYPE_PARAM, ZERO_DTYPE_PARAM));
}
END_TEST

/* ---- transpose ------------------------------------------------------------------------------- */

/* The gaps after a row in elements, `offset` in bytes. */
static void transpose_is_right(size_t rows, size_t columns, size_t in_gap, size_t out_gap,
			       size_t size, size_t offset)
{
	const size_t in_stride = columns + in_gap, out_stride = rows + out_gap;
	unsigned char *in = malloc(rows * in_stride * size + 1);
	struct output o = output_new(columns * out_stride * size, offset);
	const unsigned char *out = o.out;
	char what[128];

	ck_assert_ptr_nonnull(in);
	snprintf(what, sizeof what, "transpose of %zu (+%zu) x %zu (+%zu), %zu bytes at +%zu", rows,
		 out_gap, columns, in_gap, size, offset);
	for (size_t i = 0; i < rows * in_stride * size; i++)
		in[i] = (unsigned char)random64();
	zero_transpose(o.out, out_stride, in, in_stride, rows, columns, size);
	for (size_t c = 0; c < columns; c++) {
		for (size_t r = 0; r < rows; r++)
			must(!memcmp(out + (c * out_stride + r) * size,
				     in + (r * in_stride + c) * size, size),
			     "%s: row %zu, column %zu", what, r, c);
		for (size_t b = rows * size; b < out_stride * size; b++)
			must(out[c * out_stride * size + b] == 0xa5, "%s wrote after column %zu",
			     what, c);
	}
	guards_stand(&o, what);
	free(in);
	free(o.base);
}

START_TEST(transposes_are_exact)
{
	static const size_t sides[] = {0, 1, 2, 63, 64, 65, 130};

	for (size_t size = 1; size <= 8; size *= 2) {
		for (size_t t = 0; t < COUNT_OF(sides) * COUNT_OF(sides); t++)
			transpose_is_right(sides[t / COUNT_OF(sides)], sides[t % COUNT_OF(sides)],
					   t % 3, t % 4, size, random64() % 9);
		for (int t = 0; t < 50; t++)
			transpose_is_right(random64() % 200, random64() % 200, random64() % 9,
					   random64() % 9, size, random64() % 64);
		/* Large enough for stores past the cache, with rows that are whole lines and rows
		   that are not. */
		transpose_is_right(1024, 1024 + 1, 0, 0, size, 0);
		transpose_is_right(1024 - 30, 1100, 5, 30, size, 0);
		transpose_is_right(1024, 1030, 5, 64, size, 64);
		transpose_is_right(1023, 1060, 0, 0, size, 0);
		transpose_is_right(1024, 1024, 0, 0, size, size);
	}
}
END_TEST

/* ---- constants ------------------------------------------------------------------------------ */

static void constant_is(zero_dtype dtype, double value, const void *expected)
{
	static const size_t counts[] = {0, 1, 2, 3, 100, 4096, 4097, 20001};
	const size_t size = size_of(dtype);

	for (size_t c = 0; c < COUNT_OF(counts); c++) {
		struct output o = output_new(counts[c] * size, size);

		zero_fill_constant(dtype, o.out, counts[c], value);
		guards_stand(&o, "zero_fill_constant");
		for (size_t i = 0; i < counts[c]; i++)
			must(!memcmp((char *)o.out + i * size, expected, size),
			     "%g as type %d, element %zu of %zu", value, dtype, i, counts[c]);
		free(o.base);
	}
}

START_TEST(constants_are_converted)
{
	static const struct {
		double value;
		float f32;
		uint16_t f16, bf16;
		int64_t i64;
		int32_t i32;
		uint8_t u8, truth;
	} known[] = {
		{0, 0, 0, 0, 0, 0, 0, 0},
		{1, 1, 0x3c00, 0x3f80, 1, 1, 1, 1},
		{-2.5, -2.5f, 0xc100, 0xc020, -2, -2, 0, 1},
		{0.6, 0.6f, 0x38cd, 0x3f1a, 1, 1, 1, 1},
		{300, 300, 0x5cb0, 0x4396, 300, 300, 255, 1},
		{1e30, 1e30f, 0x7c00, 0x714a, INT64_MAX, INT32_MAX, 255, 1},
		{-1e30, -1e30f, 0xfc00, 0xf14a, INT64_MIN, INT32_MIN, 0, 1},
		{NAN, NAN, 0x7e00, 0x7fc0, 0, 0, 0, 1},
		/* a little more than halfway between two, and f32 has only halfway */
		{1 + 0x1p-11 + 0x1p-40, 1 + 0x1p-11f, 0x3c01, 0x3f80, 1, 1, 1, 1},
		{1 + 0x1p-8 + 0x1p-40, 1 + 0x1p-8f, 0x3c04, 0x3f81, 1, 1, 1, 1},
	};

	for (size_t t = 0; t < COUNT_OF(known); t++) {
		const void *const right[TYPES] = {&known[t].f32,   &known[t].f16,  &known[t].bf16,
						  &known[t].value, &known[t].i64,  &known[t].i32,
						  &known[t].u8,    &known[t].truth};

		for (size_t i = 0; i < TYPES; i++)
			constant_is(types[i], known[t].value, right[i]);
	}
}
END_TEST

int main(void)
{
	find_sets();
	TCase *tests = tcase_create("convert");

	tcase_add_test(tests, f64_is_rounded_once);
	tcase_add_test(tests, f64_edges_are_kept);
	tcase_add_test(tests, floats_become_any_float);
	tcase_add_test(tests, every_16_bit_float_becomes_any_float);
	tcase_add_test(tests, every_f8_becomes_any_float);
	tcase_add_test(tests, f8_is_rounded_once);
	tcase_add_test(tests, what_f8_cannot_have);
	tcase_add_test(tests, integers_become_what_they_fit);
	tcase_add_test(tests, floats_and_integers_do_not_mix);
	tcase_add_test(tests, transposes_are_exact);
	tcase_add_test(tests, constants_are_converted);
	return run_cases(tests, NULL);
}

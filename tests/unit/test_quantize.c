/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit states: the maps, the nearest code, and the same bits by every instruction set. */
#include "sets.h"

/* The values of a map, by the paper: 0, the middles of the parts of seven decades, and 1. */
static void values_of(bool is_signed, double *value)
{
	int at = is_signed ? 128 : 1;

	memset(value, 0, 256 * sizeof(*value));
	for (int decade = 0; decade < 7; decade++)
		for (int n = 1 << (decade + !is_signed), i = 0; i < n; i++, at++) {
			value[at] = pow(10, decade - 6) * (0.1 + 0.9 * (2 * i + 1) / (2 * n));
			if (is_signed)
				value[254 - at] = -value[at];
		}
	value[at] = 1;
	ck_assert_int_eq(at, 255);
}

static const struct zero_dynamic_map *map_of(bool is_signed)
{
	return zero_dynamic_map(is_signed);
}

START_TEST(values_are_those_of_the_paper)
{
	uint8_t codes[256];
	double value[256];

	for (int c = 0; c < 256; c++)
		codes[c] = (uint8_t)c;
	for (int sign = 0; sign < 2; sign++) {
		float absmax = 1, x[256];

		values_of(sign, value);
		sets[_i]->dequantize(map_of(sign), x, codes, &absmax, 256);
		for (int c = 0; c < 256; c++)
			must(fabs((double)x[c] - value[c]) <= 1e-6 * fabs(value[c]),
			     "%s: code %d is %a, not %a", sets[_i]->isa, c, (double)x[c], value[c]);
	}
}
END_TEST

/* Magnitudes of all sizes, also near bounds between two codes. */
static float random_state(void)
{
	double value[256], x = ldexp(random_unit() * 2 - 1, -(int)(random64() % 30));
	size_t code = random64() % 255;

	if (random64() % 2)
		return (float)x;
	values_of(true, value);
	return (float)((value[code] + value[code + 1]) / 2 * (1 + 1e-5 * (random_unit() - 0.5)));
}

/* A bound between codes is exact to some units of f32. */
static void check_nearest(const char *isa, const double *value, const float *x,
			  const uint8_t *codes, float absmax, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		double q = (double)x[i] / (double)absmax, best = 2;

		for (int c = 0; c < 256; c++)
			best = fmin(best, fabs(q - value[c]));
		must(fabs(q - value[codes[i]]) <= best + 2e-6 * fabs(q),
		     "%s: %a has code %d, whose value is %a", isa, q, codes[i], value[codes[i]]);
	}
}

START_TEST(codes_are_the_nearest)
{
	enum { COUNT = 16 * ZERO_BLOCK + 33 };
	float x[COUNT], absmax[17];
	uint8_t codes[COUNT];
	double value[256];

	for (int sign = 0; sign < 2; sign++) {
		values_of(sign, value);
		for (size_t i = 0; i < COUNT; i++) {
			x[i] = random_state() * ldexpf(1, 20 - 3 * (int)(i / ZERO_BLOCK));
			x[i] = sign ? x[i] : fabsf(x[i]);
		}
		sets[_i]->quantize(map_of(sign), codes, absmax, x, COUNT);
		for (size_t b = 0; b < 17; b++) {
			size_t count = b < 16 ? ZERO_BLOCK : 33;
			float most = 0;

			for (size_t i = 0; i < count; i++)
				most = fmaxf(most, fabsf(x[b * ZERO_BLOCK + i]));
			ck_assert(absmax[b] == most);
			check_nearest(sets[_i]->isa, value, x + b * ZERO_BLOCK,
				      codes + b * ZERO_BLOCK, most, count);
		}
	}
}
END_TEST

/* What a block becomes that has an extreme value among others. */
START_TEST(extremes_are_of_their_block)
{
	static const struct {
		float with, others, absmax;
	} cases[] = {
		{NAN, 1, NAN},         {INFINITY, 1, NAN},
		{-INFINITY, 0, NAN},   {0, 0, 0},
		{0x1p-127F, 0, 0},     {0x1p-126F, 0x1p-127F, 0x1p-126F},
		{FLT_MAX, 1, FLT_MAX}, {-0.0F, 0, 0},
	};
	float x[2 * ZERO_BLOCK], absmax[2], back[2 * ZERO_BLOCK];
	uint8_t codes[2 * ZERO_BLOCK];

	for (size_t c = 0; c < COUNT_OF(cases); c++) {
		size_t place = random64() % ZERO_BLOCK;

		for (size_t i = 0; i < 2 * ZERO_BLOCK; i++)
			x[i] = i < ZERO_BLOCK ? cases[c].others : 3;
		x[place] = cases[c].with;
		sets[_i]->quantize(map_of(true), codes, absmax, x, 2 * ZERO_BLOCK);
		sets[_i]->dequantize(map_of(true), back, codes, absmax, 2 * ZERO_BLOCK);
		ck_assert(bits_of(absmax[0]) == bits_of(cases[c].absmax));
		for (size_t i = 0; i < ZERO_BLOCK; i++)
			must(isnan(absmax[0]) ? bits_of(back[i]) == 0x7fc00000
					      : fabsf(back[i]) <= absmax[0],
			     "case %zu: element %zu is %a", c, i, (double)back[i]);
		ck_assert(isnan(absmax[0]) || back[place] == (absmax[0] > 0 ? x[place] : 0));
		for (size_t i = ZERO_BLOCK; i < 2 * ZERO_BLOCK; i++)
			ck_assert(back[i] == 3);
	}
}
END_TEST

static void are_the_same(bool is_signed, size_t count, size_t offset, float (*draw)(void))
{
	struct array in = random_array(count, offset, draw);
	struct output first[3] = {0};
	size_t blocks = (count + ZERO_BLOCK - 1) / ZERO_BLOCK;

	for (size_t i = 0; i < count && !is_signed; i++)
		in.x[i] = fabsf(in.x[i]);
	for (int s = 0; sets[s]; s++) {
		struct output codes = output_new(count, offset);
		struct output absmax = output_new(blocks * sizeof(float), 4 * offset);
		struct output back = output_new(count * sizeof(float), 4 * offset);

		sets[s]->quantize(map_of(is_signed), codes.out, absmax.out, in.x, count);
		sets[s]->dequantize(map_of(is_signed), back.out, codes.out, absmax.out, count);
		same_as(&first[0], &codes, "quantize (codes)", sets[s]->isa, count);
		same_as(&first[1], &absmax, "quantize (absmax)", sets[s]->isa, count);
		same_as(&first[2], &back, "dequantize", sets[s]->isa, count);
	}
	for (int a = 0; a < 3; a++)
		free(first[a].base);
	free(in.base);
}

START_TEST(sets_give_the_same_bits)
{
	for (size_t c = 0; c < COUNT_OF(sizes) * 2; c++) {
		are_the_same(c % 2, sizes[c / 2], c % 3, random_sane);
		are_the_same(c % 2, sizes[c / 2], c % 3, random_any);
	}
	for (int turn = 0; turn < 200; turn++)
		are_the_same(turn % 2, ZERO_BLOCK, 0, random_state);
}
END_TEST

int main(void)
{
	const int count = find_sets();
	TCase *tests = tcase_create("quantize");

	tcase_add_loop_test(tests, values_are_those_of_the_paper, 0, count);
	tcase_add_loop_test(tests, codes_are_the_nearest, 0, count);
	tcase_add_loop_test(tests, extremes_are_of_their_block, 0, count);
	tcase_add_test(tests, sets_give_the_same_bits);
	return run_cases(tests, NULL);
}

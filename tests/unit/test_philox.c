/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: Philox itself, what is made of its words, and the same bits in every set. */
#include "sets.h"

static const zero_dtype reals[] = {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64};

/* Philox 4x32-10 as the paper has it. */
static void philox(uint32_t x[4], uint32_t k0, uint32_t k1)
{
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)x[0] * 0xd2511f53, b = (uint64_t)x[2] * 0xcd9e8d57;

		x[0] = (uint32_t)(b >> 32) ^ x[1] ^ k0;
		x[1] = (uint32_t)b;
		x[2] = (uint32_t)(a >> 32) ^ x[3] ^ k1;
		x[3] = (uint32_t)a;
		k0 += 0x9e3779b9;
		k1 += 0xbb67ae85;
	}
}

static void words_of(uint32_t x[4], uint64_t block, uint64_t seed, uint64_t stream)
{
	x[0] = (uint32_t)block;
	x[1] = (uint32_t)(block >> 32);
	x[2] = (uint32_t)stream;
	x[3] = (uint32_t)(stream >> 32);
	philox(x, (uint32_t)seed, (uint32_t)(seed >> 32));
}

/* The known answers that come with Random123. */
START_TEST(philox_reference_is_philox)
{
	static const uint32_t known[][10] = {
		{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
		{~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
		{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
		 0x94fdcceb, 0x5001e420, 0x24126ea1},
	};

	for (size_t t = 0; t < COUNT_OF(known); t++) {
		uint32_t x[4];

		memcpy(x, known[t], sizeof x);
		philox(x, known[t][4], known[t][5]);
		ck_assert_mem_eq(x, known[t] + 6, sizeof x);
	}
}
END_TEST

/* An f64 uniform in [0, 1) is the whole word, an f32 one its upper 24 bits. */
START_TEST(uniforms_are_philox)
{
	for (int t = 0; t < 200; t++) {
		const uint64_t seed = t ? random64() : 0, stream = t ? random64() : 0;
		const size_t first = t ? (size_t)random64() / 2 : 0;
		double f64[600];
		float f32[600];

		sets[_i]->fill_uniform(ZERO_F64, f64, first, 600, 0, 1, seed, stream);
		sets[_i]->fill_uniform(ZERO_F32, f32, first, 600, 0, 1, seed, stream);
		for (size_t i = 0; i < 600; i++) {
			uint32_t x[4];

			words_of(x, (first + i) / 4, seed, stream);
			const uint32_t word = x[(first + i) % 4];

			must(f64[i] == word * 0x1p-32 && f32[i] == (float)(word >> 8) * 0x1p-24f,
			     "element %zu is %g and %g, not of word %08x", first + i, f64[i],
			     f32[i], word);
		}
	}
}
END_TEST

static double element_of(zero_dtype dtype, const void *out, size_t i)
{
	if (dtype == ZERO_F64)
		return ((const double *)out)[i];
	if (dtype == ZERO_F32)
		return ((const float *)out)[i];
	return meaning_of(dtype, ((const uint16_t *)out)[i]);
}

START_TEST(uniforms_stay_within)
{
	static const double bounds[][2] = {{-0.1, 0.1}, {0, 1},  {1, 1.01},  {-1e-3, 3e-3},
					   {0.1, 0.2},  {-3, 5}, {-1, -0.9}, {1000.1, 1009.9}};

	for (size_t t = 0; t < COUNT_OF(bounds) * COUNT_OF(reals); t++) {
		const zero_dtype dtype = reals[t % COUNT_OF(reals)];
		const double low = bounds[t / COUNT_OF(reals)][0];
		const double high = bounds[t / COUNT_OF(reals)][1];
		enum { COUNT = 20000 };
		static double out[COUNT];
		double sum = 0;

		sets[_i]->fill_uniform(dtype, out, 0, COUNT, low, high, random64(), 1);
		for (size_t i = 0; i < COUNT; i++) {
			const double x = element_of(dtype, out, i);

			must(x >= low && x < high, "%.17g is not in [%.17g, %.17g)", x, low, high);
			sum += x - low;
		}
		if (dtype == ZERO_F32 || dtype == ZERO_F64)
			ck_assert(fabs(sum / COUNT / (high - low) - 0.5) < 0.02);
	}
}
END_TEST

/* The upper half of them would round to 1. */
START_TEST(uniforms_never_round_up_to_the_end)
{
	uint16_t h[4096];
	float f, last = nextafterf(1, 0);
	double d;

	sets[_i]->fill_uniform(ZERO_F16, h, 0, 4096, 0.9995, 1, 1, 1);
	for (size_t i = 0; i < 4096; i++)
		must(h[i] == 0x3bff, "%04x is not the last before 1", h[i]);
	sets[_i]->fill_uniform(ZERO_F32, &f, 0, 1, last, 1, 1, 1);
	ck_assert(f == last);
	/* Nothing of the type in it, or nothing at all: the one next to low. */
	sets[_i]->fill_uniform(ZERO_F32, &f, 0, 1, 0.1, 0.1 + 1e-12, 1, 1);
	ck_assert(f == 0.1f);
	sets[_i]->fill_uniform(ZERO_F64, &d, 0, 1, 7, 7, 1, 1);
	ck_assert(d == 7);
	sets[_i]->fill_uniform(ZERO_F16, h, 0, 4096, -1e30, 1e30, 1, 1);
	for (size_t i = 0; i < 4096; i++)
		must(isfinite(meaning_of(ZERO_F16, h[i])), "%04x", h[i]);
}
END_TEST

START_TEST(normals_are_box_and_mullers)
{
	enum { COUNT = 10000 };

	for (size_t t = 0; t < 4; t++) {
		const uint64_t seed = random64(), stream = random64();
		const size_t first = (size_t)random64() / 8 * 4 + t;
		static double f64[COUNT];
		static float f32[COUNT];

		sets[_i]->fill_normal(ZERO_F64, f64, first, COUNT, 0, 1, seed, stream);
		sets[_i]->fill_normal(ZERO_F32, f32, first, COUNT, 1, 2, seed, stream);
		for (size_t i = 0; i < COUNT; i++) {
			uint32_t x[4];

			words_of(x, (first + i) / 4, seed, stream);
			const uint32_t *pair = x + ((first + i) % 4 & 2);
			const long double u = (pair[0] + 0.5L) * 0x1p-32L;
			const long double angle = 2 * acosl(-1) * pair[1] * 0x1p-32L;
			const long double radius = sqrtl(-2 * logl(u));
			const long double z =
				radius * ((first + i) % 2 ? sinl(angle) : cosl(angle));

			must(fabsl(f64[i] - z) <= 1e-12L * radius, "%.17g is not %.17Lg", f64[i],
			     z);
			must(f32[i] == (float)fma(2, f64[i], 1), "%.9g is not of %.17g", f32[i],
			     f64[i]);
		}
	}
}
END_TEST

START_TEST(random_numbers_are_the_same_bits)
{
	for (size_t c = 0; c < COUNT_OF(sizes) * COUNT_OF(reals) * 2; c++) {
		const size_t count = sizes[c / 8], offset = c / 8 % 3;
		const zero_dtype dtype = reals[c / 2 % 4];
		const size_t size = dtype == ZERO_F64 ? 8 : dtype == ZERO_F32 ? 4 : 2;
		const uint64_t seed = random64(), stream = random64();
		const size_t start = (size_t)random64() / 2;
		struct output first = {0};

		for (int s = 0; sets[s]; s++) {
			const struct zero_kernels *k = sets[s];
			struct output o = output_new(count * size, offset * size);

			(c % 2 ? k->fill_normal : k->fill_uniform)(dtype, o.out, start, count, -1.5,
								   0.7, seed, stream);
			same_as(&first, &o, c % 2 ? "normal" : "uniform", k->isa, count);
		}
		free(first.base);
	}
}
END_TEST

int main(void)
{
	const int count = find_sets();
	TCase *tests = tcase_create("philox");

	tcase_add_test(tests, philox_reference_is_philox);
	tcase_add_loop_test(tests, uniforms_are_philox, 0, count);
	tcase_add_loop_test(tests, uniforms_stay_within, 0, count);
	tcase_add_loop_test(tests, uniforms_never_round_up_to_the_end, 0, count);
	tcase_add_loop_test(tests, normals_are_box_and_mullers, 0, count);
	tcase_add_test(tests, random_numbers_are_the_same_bits);
	return run_cases(tests, NULL);
}

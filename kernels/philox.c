/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counter-based random numbers: Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
 * numbers: as easy as 1, 2, 3", SC11). Element i depends on i, seed and stream alone, so every rank
 * fills its own part and the whole is the same for any number of ranks.
 *
 * Written as plain loops over a batch of blocks, which compilers turn into vectors. Everything
 * between the words and the result is in f64 with explicit fma, and nothing is from libm but fma
 * and sqrt, which are exactly defined.
 */
#include "simd.h"

enum {
	BLOCKS = 64,        /* of a batch */
	BATCH = 4 * BLOCKS, /* elements */
};

/* Word k of block b is word[k][b]: each statement below is a vector over the blocks. */
static void philox(uint32_t word[4][BLOCKS], uint64_t first_block, uint64_t seed, uint64_t stream)
{
	for (size_t b = 0; b < BLOCKS; b++) {
		const uint64_t block = first_block + b;
		uint32_t x0 = (uint32_t)block, x1 = (uint32_t)(block >> 32);
		uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
		uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#pragma GCC unroll 10
		for (int round = 0; round < 10; round++) {
			const uint64_t a = (uint64_t)x0 * 0xd2511f53, c = (uint64_t)x2 * 0xcd9e8d57;

			x0 = (uint32_t)(c >> 32) ^ x1 ^ k0;
			x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
			x1 = (uint32_t)c;
			x3 = (uint32_t)a;
			k0 += 0x9e3779b9;
			k1 += 0xbb67ae85;
		}
		word[0][b] = x0;
		word[1][b] = x1;
		word[2][b] = x2;
		word[3][b] = x3;
	}
}

static inline double from_bits(uint64_t u)
{
	double x;

	memcpy(&x, &u, sizeof(x));
	return x;
}

static inline uint64_t to_bits(double x)
{
	uint64_t u;

	memcpy(&u, &x, sizeof(u));
	return u;
}

#define ZERO_INLINE static inline
#include "log_sin_cos.h"

/* Sine and cosine of 2 pi * w / 2^32; chosen by bits, which vectors can. */
static inline void sincos_of(uint32_t w, double *sine, double *cosine)
{
	uint32_t quarter;
	const double r = angle_of(w, &quarter);
	const uint64_t odd = -(uint64_t)(quarter & 1);
	const uint64_t sb = to_bits(sine_of(r)), cb = to_bits(cosine_of(r));

	*sine = from_bits(((sb & ~odd) | (cb & odd)) ^ (uint64_t)(quarter & 2) << 62);
	*cosine = from_bits(((cb & ~odd) | (sb & odd)) ^ (uint64_t)((quarter + 1) & 2) << 62);
}

/*
 * Box and Muller: words 0 and 1 make two normals, words 2 and 3 two more. The first of a pair is
 * read as the middle of its 2^-32, so it is never 0, and no value is beyond 6.8 deviations.
 */
static void normals(double x[4][BLOCKS], uint32_t word[4][BLOCKS], double mean, double stddev)
{
	for (int k = 0; k < 4; k += 2) {
		for (size_t b = 0; b < BLOCKS; b++) {
			const double radius = sqrt(-2 * log_of(middle_of(word[k][b]) * 0x1p-32));
			double sine, cosine;

			sincos_of(word[k + 1][b], &sine, &cosine);
			x[k][b] = fma(stddev, radius * cosine, mean);
			x[k + 1][b] = fma(stddev, radius * sine, mean);
		}
	}
}

struct interval {
	double low, high;
	double first, last; /* the type's own values at both ends of [low, high) */
	int cut;            /* bits of a word that are not used */
};

static void uniforms(double x[4][BLOCKS], uint32_t word[4][BLOCKS], const struct interval *in)
{
	const struct interval t = *in;
	const double unit = 1 / (double)(UINT64_C(1) << (32 - t.cut));

	for (int k = 0; k < 4; k++) {
		for (size_t b = 0; b < BLOCKS; b++) {
			const double u =
				(from_bits((word[k][b] >> t.cut) | 0x4330000000000000) - 0x1p52) *
				unit;
			const double v = fma(t.high, u, t.low * (1 - u));
			const double above = v < t.first ? t.first : v;

			x[k][b] = above > t.last ? t.last : above;
		}
	}
}

static float to_f32(zero_dtype dtype, uint16_t h)
{
	float f;

	ZERO_NAME(cast)(ZERO_F32, &f, dtype, &h, 1);
	return f;
}

static uint16_t from_f32(zero_dtype dtype, float f)
{
	uint16_t h;

	ZERO_NAME(cast)(dtype, &h, ZERO_F32, &f, 1);
	return h;
}

/* A value of the type next to x, or x itself if it is one. */
static double rounded(zero_dtype dtype, double x)
{
	if (dtype == ZERO_F64)
		return x;
	if (dtype == ZERO_F32)
		return (double)(float)x;
	return (double)to_f32(dtype, from_f32(dtype, (float)x));
}

/* The type's next value above x, which is one of its values. */
static double next_above(zero_dtype dtype, double x)
{
	if (dtype == ZERO_F64)
		return nextafter(x, (double)INFINITY);
	if (dtype == ZERO_F32)
		return (double)nextafterf((float)x, INFINITY);
	if (x == 0)
		return (double)to_f32(dtype, 1);
	return (double)to_f32(dtype, (uint16_t)(from_f32(dtype, (float)x) + (x > 0 ? 1 : -1)));
}

/* If no value of the type is in [low, high), every element is the one next to low. */
static struct interval interval_of(zero_dtype dtype, double low, double high)
{
	struct interval t = {.low = low, .high = high, .cut = dtype == ZERO_F64 ? 0 : 8};

	t.first = rounded(dtype, low);
	if (t.first < low)
		t.first = next_above(dtype, t.first);
	t.last = rounded(dtype, high);
	if (t.last >= high)
		t.last = -next_above(dtype, -t.last);
	if (t.last < t.first)
		t.first = t.last = rounded(dtype, low);
	return t;
}

/* Elements begin .. begin + count of a batch, in their order, to out[at] and on. */
static void store(zero_dtype dtype, void *out, size_t at, double x[4][BLOCKS], size_t begin,
		  size_t count)
{
	if (dtype == ZERO_F64) {
		double in_order[BATCH];

		for (size_t b = 0; b < BLOCKS; b++)
			for (size_t k = 0; k < 4; k++)
				in_order[4 * b + k] = x[k][b];
		memcpy((double *)out + at, in_order + begin, count * sizeof(double));
		return;
	}
	float in_order[BATCH];

	for (size_t b = 0; b < BLOCKS; b++)
		for (size_t k = 0; k < 4; k++)
			in_order[4 * b + k] = (float)x[k][b];
	ZERO_NAME(cast)
	(dtype, (char *)out + at * vec_dtype_size(dtype), ZERO_F32, in_order + begin, count);
}

void ZERO_NAME(fill_uniform)(zero_dtype dtype, void *out, size_t first, size_t count, double low,
			     double high, uint64_t seed, uint64_t stream)
{
	const struct interval interval = interval_of(dtype, low, high);
	uint32_t word[4][BLOCKS];
	double x[4][BLOCKS];

	for (size_t done = 0, n; done < count; done += n) {
		const size_t i = first + done, left = count - done;

		n = left < BATCH - i % 4 ? left : BATCH - i % 4;
		philox(word, i / 4, seed, stream);
		uniforms(x, word, &interval);
		store(dtype, out, done, x, i % 4, n);
	}
}

void ZERO_NAME(fill_normal)(zero_dtype dtype, void *out, size_t first, size_t count, double mean,
			    double stddev, uint64_t seed, uint64_t stream)
{
	uint32_t word[4][BLOCKS];
	double x[4][BLOCKS];

	for (size_t done = 0, n; done < count; done += n) {
		const size_t i = first + done, left = count - done;

		n = left < BATCH - i % 4 ? left : BATCH - i % 4;
		philox(word, i / 4, seed, stream);
		normals(x, word, mean, stddev);
		store(dtype, out, done, x, i % 4, n);
	}
}

int ZERO_NAME(uniform_ends)(zero_dtype dtype, double low, double high, double *first, double *last)
{
	const struct interval interval = interval_of(dtype, low, high);

	*first = interval.first;
	*last = interval.last;
	return interval.cut;
}

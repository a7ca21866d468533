/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers: element i depends on i, seed and stream alone, so every rank fills its own part
 * and the whole is the same for any number of ranks. Plain loops over a batch of blocks of
 * philox.h, which compilers vectorise.
 */
#include "simd.h"

enum {
	BLOCKS = 64,        /* of a batch */
	BATCH = 4 * BLOCKS, /* elements */
};

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
#include "philox.h"

/* Word k of block b is word[k][b], so that each statement vectorises over the blocks. */
static void philox_blocks(uint32_t word[4][BLOCKS], uint64_t first_block, uint64_t seed,
			  uint64_t stream)
{
	for (size_t b = 0; b < BLOCKS; b++)
		philox(first_block + b, seed, stream, &word[0][b], &word[1][b], &word[2][b],
		       &word[3][b]);
}

/* Words 0 and 1 make two elements, words 2 and 3 two more. */
static void normals(double x[4][BLOCKS], uint32_t word[4][BLOCKS], double mean, double stddev)
{
	for (int k = 0; k < 4; k += 2)
		for (size_t b = 0; b < BLOCKS; b++)
			normals_of(word[k][b], word[k + 1][b], mean, stddev, &x[k][b],
				   &x[k + 1][b]);
}

struct interval {
	double low, high;
	double first, last; /* the first and last value of the type in [low, high) */
	int cut;            /* bits of a word that are not used */
};

static void uniforms(double x[4][BLOCKS], uint32_t word[4][BLOCKS], const struct interval *in)
{
	const struct interval t = *in;

	for (int k = 0; k < 4; k++)
		for (size_t b = 0; b < BLOCKS; b++)
			x[k][b] = uniform_of(word[k][b], t.low, t.high, t.first, t.last, t.cut);
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

/* Stores elements begin .. begin + count of a batch at out[at]. */
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
		philox_blocks(word, i / 4, seed, stream);
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
		philox_blocks(word, i / 4, seed, stream);
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

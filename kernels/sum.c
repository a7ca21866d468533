/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of many arrays in one pass, added from left to right whatever n is. Up to FEW arrays are
 * added in registers. The processor would not follow more streams than that, so more arrays are
 * added FEW at a time to a block that stays in the first-level cache. 16-bit types are widened to
 * f32 as they are read, which is exact.
 */
#include "simd.h"

enum {
	FEW = 8,
	STEP = VEC > 4 ? 64 : 32, /* elements added in registers at a time */
	BLOCK = 2048,             /* elements of a block */
};

/*
 * out[i] = before[i] + in[0][at + i] + ... + in[n - 1][at + i], or `after` plus that sum; both may
 * be NULL. All STEP elements are read before any is written.
 */
static inline __attribute__((always_inline)) void step(float *out, const float *before,
						       const float *after, zero_dtype from,
						       const void *const *in, int n, size_t at,
						       bool stream)
{
	vec s[STEP / VEC];

	for (size_t j = 0; j < STEP / VEC; j++)
		s[j] = before ? vec_load(before + j * VEC) : vec_load_as(from, in[0], at + j * VEC);
	for (int k = before ? 0 : 1; k < n; k++)
		for (size_t j = 0; j < STEP / VEC; j++)
			s[j] += vec_load_as(from, in[k], at + j * VEC);
	for (size_t j = 0; j < STEP / VEC; j++) {
		if (after)
			s[j] = vec_load(after + j * VEC) + s[j];
		const vec v = vec_canon(s[j]);
		if (stream)
			vec_stream(out + j * VEC, v);
		else
			vec_store(out + j * VEC, v);
	}
}

/* Adds elements at .. at + count; count is a multiple of STEP. Inlined with a constant type, so
   that there is one loop for each. */
static inline __attribute__((always_inline)) void fold_as(float *out, const float *before,
							  const float *after, zero_dtype from,
							  const void *const *in, int n, size_t at,
							  size_t count)
{
	for (size_t i = 0; i < count; i += STEP)
		step(out + i, before ? before + i : NULL, after ? after + i : NULL, from, in, n,
		     at + i, false);
}

static void fold(float *out, const float *before, const float *after, zero_dtype from,
		 const void *const *in, int n, size_t at, size_t count)
{
	if (from == ZERO_F32)
		fold_as(out, before, after, ZERO_F32, in, n, at, count);
	else if (from == ZERO_F16)
		fold_as(out, before, after, ZERO_F16, in, n, at, count);
	else
		fold_as(out, before, after, ZERO_BF16, in, n, at, count);
}

static inline __attribute__((always_inline)) void
fold_past_cache_as(float *out, zero_dtype from, const void *const *in, int n, size_t count)
{
	for (size_t i = 0; i < count; i += STEP)
		step(out + i, NULL, NULL, from, in, n, i, true);
	vec_fence();
}

static void fold_past_cache(float *out, zero_dtype from, const void *const *in, int n, size_t count)
{
	if (from == ZERO_F32)
		fold_past_cache_as(out, ZERO_F32, in, n, count);
	else if (from == ZERO_F16)
		fold_past_cache_as(out, ZERO_F16, in, n, count);
	else
		fold_past_cache_as(out, ZERO_BF16, in, n, count);
}

static void fold_blocks(float *out, zero_dtype from, const void *const *in, int n, size_t count,
			bool accumulate)
{
	_Alignas(64) float block[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t size = count - at < BLOCK ? count - at : BLOCK;
		int k = FEW;

		fold(block, NULL, NULL, from, in, FEW, at, size);
		for (; k + FEW < n; k += FEW)
			fold(block, block, NULL, from, in + k, FEW, at, size);
		fold(out + at, block, accumulate ? out + at : NULL, from, in + k, n - k, at, size);
	}
}

/* Fewer than STEP elements from `at`; they too are read before any is written. */
static void fold_rest(float *out, zero_dtype from, const void *const *in, int n, size_t at,
		      size_t count, bool accumulate)
{
	const size_t size = vec_dtype_size(from);
	float s[STEP], x[STEP];

	for (int k = 0; k < n; k++) {
		ZERO_NAME(cast)(ZERO_F32, k ? x : s, from, (const char *)in[k] + at * size, count);
		for (size_t i = 0; k && i < count; i++)
			s[i] += x[i];
	}
	for (size_t i = 0; i < count; i++) {
		const float sum = accumulate ? out[at + i] + s[i] : s[i];

		out[at + i] = isnan(sum) ? NAN : sum;
	}
}

static bool is_one_of(const float *out, const void *const *in, int n)
{
	for (int k = 0; k < n; k++)
		if (in[k] == out)
			return true;
	return false;
}

void ZERO_NAME(sum)(float *out, zero_dtype from, const void *const *in, int n, size_t count,
		    bool accumulate)
{
	const size_t whole = count - count % STEP;

	if (n > FEW)
		fold_blocks(out, from, in, n, whole, accumulate);
	else if (!accumulate && vec_may_stream(out, whole) && !is_one_of(out, in, n))
		fold_past_cache(out, from, in, n, whole);
	else
		fold(out, NULL, accumulate ? out : NULL, from, in, n, 0, whole);
	if (whole < count)
		fold_rest(out, from, in, n, whole, count - whole, accumulate);
}

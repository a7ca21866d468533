/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of many arrays in one pass, each element folded from the left, whatever n is. Up to FEW
 * arrays are added in registers. More of them would be more streams than the processor follows, so
 * a block that stays in the first-level cache takes them FEW at a time.
 */
#include "vec.h"

enum {
	FEW = 8,
	STEP = 64,    /* elements added in registers at a time */
	BLOCK = 2048, /* elements of a block */
};

/*
 * out[i] = before[i] + in[0][at + i] + ... + in[n - 1][at + i], or `after` plus that sum; both may
 * be NULL. All STEP elements are read before any is written.
 */
static inline __attribute__((always_inline)) void step(float *out, const float *before,
						       const float *after, const float *const *in,
						       int n, size_t at, bool stream)
{
	vec s[STEP / VEC];

	for (size_t j = 0; j < STEP / VEC; j++)
		s[j] = vec_load((before ? before : in[0] + at) + j * VEC);
	for (int k = before ? 0 : 1; k < n; k++)
		for (size_t j = 0; j < STEP / VEC; j++)
			s[j] += vec_load(in[k] + at + j * VEC);
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

/* Steps over at .. at + count; count is a multiple of STEP. */
static void fold(float *out, const float *before, const float *after, const float *const *in, int n,
		 size_t at, size_t count)
{
	for (size_t i = 0; i < count; i += STEP)
		step(out + i, before ? before + i : NULL, after ? after + i : NULL, in, n, at + i,
		     false);
}

static void fold_past_cache(float *out, const float *const *in, int n, size_t count)
{
	for (size_t i = 0; i < count; i += STEP)
		step(out + i, NULL, NULL, in, n, i, true);
	vec_fence();
}

static void fold_blocks(float *out, const float *const *in, int n, size_t count, bool accumulate)
{
	_Alignas(64) float block[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t size = count - at < BLOCK ? count - at : BLOCK;
		int k = FEW;

		fold(block, NULL, NULL, in, FEW, at, size);
		for (; k + FEW < n; k += FEW)
			fold(block, block, NULL, in + k, FEW, at, size);
		fold(out + at, block, accumulate ? out + at : NULL, in + k, n - k, at, size);
	}
}

static bool is_one_of(const float *out, const float *const *in, int n)
{
	for (int k = 0; k < n; k++)
		if (in[k] == out)
			return true;
	return false;
}

void ZERO_NAME(sum)(float *out, const float *const *in, int n, size_t count, bool accumulate)
{
	const size_t whole = count - count % STEP;

	if (n > FEW)
		fold_blocks(out, in, n, whole, accumulate);
	else if (!accumulate && vec_may_stream(out, whole) && !is_one_of(out, in, n))
		fold_past_cache(out, in, n, whole);
	else
		fold(out, NULL, accumulate ? out : NULL, in, n, 0, whole);

	for (size_t i = whole; i < count; i++) {
		float s = in[0][i];

		for (int k = 1; k < n; k++)
			s += in[k][i];
		if (accumulate)
			s += out[i];
		out[i] = isnan(s) ? NAN : s;
	}
}

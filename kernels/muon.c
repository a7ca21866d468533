/* SPDX-License-Identifier: Apache-2.0 */
/* What a step of Muon does to a rank's own elements, before and after the matrices are
   orthogonalised: see kernels.h. The last elements go by way of a full line on the stack. */
#include "simd.h"

enum { LINE = 16 }; /* elements of f32 in a cache line */

static inline void momentum_line(const struct zero_muon_args *args, float *m, const float *g,
				 float *out)
{
	const vec scale = vec_set(args->scale), keep = vec_set(args->momentum),
		  rest = vec_set(1.0f - args->momentum);

	for (size_t j = 0; j < LINE; j += VEC) {
		const vec gj = rest * (vec_load(g + j) * scale);
		const vec mj = vec_canon(vec_fma(keep, vec_load(m + j), gj));

		vec_store(m + j, mj);
		vec_store(out + j, args->nesterov ? vec_canon(vec_fma(keep, mj, gj)) : mj);
	}
}

void ZERO_NAME(muon_momentum)(const struct zero_muon_args *args, float *m, const float *g,
			      float *out, size_t count)
{
	const size_t whole = count - count % LINE, bytes = (count - whole) * sizeof(float);
	float lm[LINE] = {0}, lg[LINE] = {0}, lo[LINE];

	for (size_t i = 0; i < whole; i += LINE)
		momentum_line(args, m + i, g + i, out + i);
	if (!bytes)
		return;
	memcpy(lm, m + whole, bytes);
	memcpy(lg, g + whole, bytes);
	momentum_line(args, lm, lg, lo);
	memcpy(m + whole, lm, bytes);
	memcpy(out + whole, lo, bytes);
}

static inline void update_line(const struct zero_muon_args *args, float *p, const float *update)
{
	const vec rate = vec_set(args->lr), decay = vec_set(args->decay);

	for (size_t j = 0; j < LINE; j += VEC) {
		const vec pj = vec_load(p + j);

		/* Decay and step are added first, so that p is rounded once. */
		vec_store(p + j, vec_canon(pj - vec_fma(decay, pj, rate * vec_load(update + j))));
	}
}

void ZERO_NAME(muon_update)(const struct zero_muon_args *args, float *p, const float *update,
			    void *low, zero_dtype low_dtype, size_t count)
{
	const size_t whole = count - count % LINE, bytes = (count - whole) * sizeof(float);
	float lp[LINE] = {0}, lu[LINE] = {0};

	for (size_t i = 0; i < whole; i += LINE)
		update_line(args, p + i, update + i);
	if (bytes) {
		memcpy(lp, p + whole, bytes);
		memcpy(lu, update + whole, bytes);
		update_line(args, lp, lu);
		memcpy(p + whole, lp, bytes);
	}
	if (low)
		ZERO_NAME(cast)(low_dtype, low, ZERO_F32, p, count);
}

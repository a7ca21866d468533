/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) in one pass over memory. Four
 * streams are read and three written, more than the processor's prefetchers follow well, so each
 * cache line is prefetched. p, m and v were just read and are written through the cache; the
 * low-precision copy was not read, and is written past it.
 */
#include "simd.h"

enum {
	LINE = 16,    /* elements of f32 in a cache line */
	AHEAD = 1024, /* prefetch distance in bytes; the best of 0 to 4096 */
};

struct constants {
	vec scale, beta1, beta2, rest1, rest2, root, eps, rate, decay;
};

static struct constants constants_of(const struct zero_adamw_args *args)
{
	return (struct constants){
		.scale = vec_set(args->scale),
		.beta1 = vec_set(args->beta1),
		.beta2 = vec_set(args->beta2),
		.rest1 = vec_set(1.0f - args->beta1),
		.rest2 = vec_set(1.0f - args->beta2),
		.root = vec_set(sqrtf(args->correction2)),
		.eps = vec_set(args->eps),
		.rate = vec_set(args->lr * args->correction1),
		.decay = vec_set(args->decay),
	};
}

static inline __attribute__((always_inline)) void
line(const struct constants *c, float *restrict p, float *restrict m, float *restrict v,
     const float *restrict g, void *low, zero_dtype low_dtype, size_t low_at, bool stream)
{
	for (size_t j = 0; j < LINE; j += VEC) {
		const vec gj = vec_load(g + j) * c->scale, pj = vec_load(p + j);
		vec mj = vec_fma(c->beta1, vec_load(m + j), c->rest1 * gj);
		vec vj = vec_fma(c->beta2, vec_load(v + j), c->rest2 * gj * gj);
		const vec root = vec_fma(c->root, vec_sqrt(vj), c->eps);
		/* Decay and step are added first, so that p is rounded once. */
		vec next = pj - vec_fma(c->decay, pj, c->rate * mj / root);

		/* If m or v is NaN, so is p. */
		if (__builtin_expect(vec_any_nan(next), false)) {
			next = vec_canon(next);
			mj = vec_canon(mj);
			vj = vec_canon(vj);
		}
		vec_store(p + j, next);
		vec_store(m + j, mj);
		vec_store(v + j, vj);
		if (low_dtype != ZERO_DTYPE_PARAM)
			vec_store_as(low_dtype, low, low_at + j, next, stream);
	}
}

/* The last elements, fewer than a line, by way of a full line on the stack. */
static void last_line(const struct constants *c, float *p, float *m, float *v, const float *g,
		      void *low, zero_dtype low_dtype, size_t count)
{
	const size_t bytes = count * sizeof(float);
	float lp[LINE] = {0}, lm[LINE] = {0}, lv[LINE] = {0}, lg[LINE] = {0};

	memcpy(lp, p, bytes);
	memcpy(lm, m, bytes);
	memcpy(lv, v, bytes);
	memcpy(lg, g, bytes);
	line(c, lp, lm, lv, lg, NULL, ZERO_DTYPE_PARAM, 0, false);
	memcpy(p, lp, bytes);
	memcpy(m, lm, bytes);
	memcpy(v, lv, bytes);
	if (low_dtype != ZERO_DTYPE_PARAM)
		ZERO_NAME(cast)(low_dtype, low, ZERO_F32, lp, count);
}

/* The callers' constant low_dtype (ZERO_DTYPE_PARAM: none) makes one loop for each. */
static inline __attribute__((always_inline)) void lines(const struct constants *shared, float *p,
							float *m, float *v, const float *g,
							void *low, zero_dtype low_dtype,
							size_t count)
{
	const struct constants c = *shared; /* a copy that no store can alias: in registers */
	const size_t size = low_dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	const size_t whole = count - count % LINE;
	const bool stream = vec_may_stream(low, count);

	for (size_t i = 0; i < whole; i += LINE) {
		vec_prefetch(p + i, AHEAD);
		vec_prefetch(m + i, AHEAD);
		vec_prefetch(v + i, AHEAD);
		vec_prefetch(g + i, AHEAD);
		line(&c, p + i, m + i, v + i, g + i, low, low_dtype, i, stream);
	}
	if (stream)
		vec_fence();
	if (whole < count)
		last_line(&c, p + whole, m + whole, v + whole, g + whole,
			  low ? (char *)low + whole * size : NULL, low_dtype, count - whole);
}

void ZERO_NAME(adamw)(const struct zero_adamw_args *args, float *p, float *m, float *v,
		      const float *g, void *low, zero_dtype low_dtype, size_t count)
{
	const struct constants c = constants_of(args);

	if (!low)
		lines(&c, p, m, v, g, NULL, ZERO_DTYPE_PARAM, count);
	else if (low_dtype == ZERO_BF16)
		lines(&c, p, m, v, g, low, ZERO_BF16, count);
	else if (low_dtype == ZERO_F16)
		lines(&c, p, m, v, g, low, ZERO_F16, count);
	else
		lines(&c, p, m, v, g, low, ZERO_F32, count);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW: the kernel beside memory's own bandwidth, and the library's step beside the kernel. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "bench.h"

enum { TRIAD_BYTES = 12, ADAMW_BYTES = 28, LOW_BYTES = 2, SETS = 4 };

static const struct zero_adamw_args args = {.lr = 1e-3f,
					    .beta1 = 0.9f,
					    .beta2 = 0.999f,
					    .eps = 1e-8f,
					    .decay = 1e-5f,
					    .correction1 = 10,
					    .correction2 = 1000,
					    .scale = 0.5f};

/* What AdamW reads and writes. */
struct state {
	float *p, *m, *v, *g;
	uint16_t *low;
	size_t count;
};

static struct state state_new(size_t count)
{
	struct state s = {.count = count};
	size_t bytes = count * sizeof(float);

	s.p = pages_new(bytes, false);
	s.m = pages_new(bytes, false);
	s.v = pages_new(bytes, false);
	s.g = pages_new(bytes, false);
	s.low = pages_new(bytes / 2, true);
	/* Everyday numbers: some processors are slow with subnormal ones. */
	for (size_t i = 0; i < count; i++) {
		s.p[i] = 1;
		s.m[i] = 0.01f;
		s.v[i] = 0.001f;
		s.g[i] = 0.1f;
	}
	return s;
}

static void state_free(struct state *s)
{
	size_t bytes = s->count * sizeof(float);

	pages_free(s->p, bytes);
	pages_free(s->m, bytes);
	pages_free(s->v, bytes);
	pages_free(s->g, bytes);
	pages_free(s->low, bytes / 2);
}

/* McCalpin's triad, out = a + s * b. */
static void triad(float *restrict out, const float *restrict a, const float *restrict b,
		  size_t count)
{
	for (size_t i = 0; i < count; i++)
		out[i] = a[i] + 0.5f * b[i];
}

/* The same past the cache: without reading what it overwrites, it moves no more than it counts. */
static void triad_past_cache(float *restrict out, const float *restrict a, const float *restrict b,
			     size_t count)
{
#ifdef __SSE2__
	const __m128 half = _mm_set1_ps(0.5f);

	for (size_t i = 0; i < count; i += 4)
		_mm_stream_ps(out + i,
			      _mm_add_ps(_mm_load_ps(a + i), _mm_mul_ps(half, _mm_load_ps(b + i))));
	_mm_sfence();
#else
	triad(out, a, b, count);
#endif
}

static void write_bandwidth(struct bench *bench, const char *what, const char *goal,
			    const double *seconds, double bytes, double bare, const char *bare_name)
{
	double rate = bytes / median(seconds, REPEATS) / 1e9;
	struct row row = {what, rate / bare, "x", goal, rate, bare, "GB/s", bare_name};

	write_row(bench, &row);
}

void bench_adamw(struct bench *bench)
{
	struct state s = state_new(scaled(bench, (size_t)64 << 20));
	double stream[REPEATS], plain[REPEATS], full[SETS][REPEATS], low[SETS][REPEATS], start;
	const double n = (double)s.count;
	char what[80];

	for (int i = 0; i < REPEATS; i++) {
		start = clock_start(bench);
		triad_past_cache(s.p, s.m, s.v, s.count);
		stream[i] = clock_stop(bench, start);
		start = clock_start(bench);
		triad(s.p, s.m, s.v, s.count);
		plain[i] = clock_stop(bench, start);
		for (size_t k = 0; k < SETS && zero_kernels_isa(k); k++) {
			const struct zero_kernels *set = zero_kernels_choose(zero_kernels_isa(k));

			start = clock_start(bench);
			set->adamw(&args, s.p, s.m, s.v, s.g, NULL, ZERO_PARAM, s.count);
			full[k][i] = clock_stop(bench, start);
			start = clock_start(bench);
			set->adamw(&args, s.p, s.m, s.v, s.g, s.low, ZERO_BF16, s.count);
			low[k][i] = clock_stop(bench, start);
		}
	}
	double bare = n * TRIAD_BYTES / median(stream, REPEATS) / 1e9;

	write_bandwidth(bench, "triad, ordinary stores", NULL, plain, n * TRIAD_BYTES, bare,
			"triad, streaming stores");
	for (size_t k = 0; k < SETS && zero_kernels_isa(k); k++) {
		const char *goal = k ? NULL : ">= 1.1";

		snprintf(what, sizeof(what), "AdamW, %s, one thread", zero_kernels_isa(k));
		write_bandwidth(bench, what, goal, full[k], n * ADAMW_BYTES, bare,
				"triad, streaming stores");
		snprintf(what, sizeof(what), "AdamW with bf16 copy, %s, one thread",
			 zero_kernels_isa(k));
		write_bandwidth(bench, what, goal, low[k], n * (ADAMW_BYTES + LOW_BYTES), bare,
				"triad, streaming stores");
	}
	state_free(&s);
}

/* ---- the library's step ---------------------------------------------------------------------- */

static double timed_step(struct bench *bench, zero_job *job, struct layer layer, size_t count)
{
	const zero_adamw adamw = {.lr = 1e-3f,
				  .beta1 = 0.9f,
				  .beta2 = 0.999f,
				  .eps = 1e-8f,
				  .weight_decay = 0.01f,
				  .clip = 1};
	float *gradient = zero_gradient(layer.param);
	double start;

	must_be(gradient, zero_last_error());
	for (size_t i = 0; i < count; i++)
		gradient[i] = 0.1f;
	must(zero_reduce(layer.group));
	must(zero_agree(job, NULL));
	start = clock_start(bench);
	must(zero_step(job, &adamw, NULL));
	return clock_stop(bench, start);
}

static void write_rate(struct bench *bench, const char *what, const char *goal, const double *ours,
		       const double *bare, double elements, const char *bare_name)
{
	double x = elements / median(ours, REPEATS) / 1e9;
	double y = elements / median(bare, REPEATS) / 1e9;
	struct row row = {what, x / y, "x", goal, x, y, "G/s", bare_name};

	write_row(bench, &row);
}

/* Both ranks step at one time, as in training: they share the memory's bandwidth. */
void bench_step(struct bench *bench)
{
	const struct zero_kernels *kernels = zero_kernels_choose("auto");
	double ours[REPEATS], kernel[REPEATS], norm[REPEATS], start, sum = 0;
	zero_job *job = open_job(bench);
	size_t count = scaled(bench, (size_t)128 << 20), part = count / (size_t)bench->world;
	struct layer layer = add_layer(job, "layer", ZERO_F32, count, true);
	struct state s;

	must(zero_layout(job));
	s = state_new(part);
	timed_step(bench, job, layer, count);
	for (int i = 0; i < REPEATS; i++) {
		ours[i] = timed_step(bench, job, layer, count);
		start = clock_start(bench);
		kernels->adamw(&args, s.p, s.m, s.v, s.g, NULL, ZERO_PARAM, part);
		kernel[i] = clock_stop(bench, start);
		start = clock_start(bench);
		sum += kernels->norm2(s.g, part);
		norm[i] = kernel[i] + clock_stop(bench, start);
	}
	must_be(isfinite(sum), "the norm is not finite");
	write_rate(bench, "step of f32, elements a rank", NULL, ours, kernel, (double)part,
		   "AdamW's kernel alone");
	write_rate(bench, "step of f32, elements a rank", ">= 0.95", ours, norm, (double)part,
		   "kernels of norm and AdamW");
	state_free(&s);
	must(zero_close(job));
}

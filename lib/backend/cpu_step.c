/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of a step on the CPU, cut into parts for several threads. */
#include "workers.h"

enum {
	LINE = 64,         /* no cache line has two writers */
	PIECE = 512,       /* elements whose moments are f32 for a moment */
	SHORTEST = 16384,  /* elements of a part: less is done before another thread wakes up */
	LONGEST = 1 << 18, /* so many let the kernels store past the cache */
	NORM_PARTS = 1024,
	NORM_SHORTEST = 65536,
};

static size_t rounded_up(size_t count, size_t to)
{
	return (count + to - 1) / to * to;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

struct adamw {
	const struct zero_kernels *kernels;
	const struct zero_adamw_args *args;
	float *p;
	const struct zero_moments *moments;
	const float *g;
	char *low;
	zero_dtype low_dtype;
	size_t count, length;
};

/* The part from element `at` on. */
static void step_8bit(const struct adamw *a, size_t at, size_t count)
{
	const struct zero_moments *moments = a->moments;
	const struct zero_dynamic_map *of_m = zero_dynamic_map(true),
				      *of_v = zero_dynamic_map(false);
	size_t low_size = a->low_dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	float m[PIECE], v[PIECE];

	for (size_t end = at + count, now; at < end; at += now) {
		uint8_t *m_codes = moments->m_codes + at, *v_codes = moments->v_codes + at;
		float *m_absmax = moments->m_absmax + at / ZERO_BLOCK;
		float *v_absmax = moments->v_absmax + at / ZERO_BLOCK;

		now = end - at < PIECE ? end - at : (size_t)PIECE;
		a->kernels->dequantize(of_m, m, m_codes, m_absmax, now);
		a->kernels->dequantize(of_v, v, v_codes, v_absmax, now);
		a->kernels->adamw(a->args, a->p + at, m, v, a->g + at,
				  a->low ? a->low + at * low_size : NULL, a->low_dtype, now);
		a->kernels->quantize(of_m, m_codes, m_absmax, m, now);
		a->kernels->quantize(of_v, v_codes, v_absmax, v, now);
	}
}

static void adamw_part(void *context, size_t i)
{
	const struct adamw *a = context;
	size_t first = i * a->length, count = a->count - first;
	size_t low_size = a->low_dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);

	if (count > a->length)
		count = a->length;
	if (a->moments->m)
		a->kernels->adamw(a->args, a->p + first, a->moments->m + first,
				  a->moments->v + first, a->g + first,
				  a->low ? a->low + first * low_size : NULL, a->low_dtype, count);
	else
		step_8bit(a, first, count);
}

/* Long arrays are cut into parts of LONGEST, shorter ones into 16. */
void zero_cpu_adamw(struct zero_workers *workers, const struct zero_kernels *kernels,
		    const struct zero_adamw_args *args, float *p,
		    const struct zero_moments *moments, const float *g, void *low,
		    zero_dtype low_dtype, size_t count)
{
	struct adamw a = {kernels, args, p, moments, g, low, low_dtype, count, 0};

	a.length = rounded_up(count / 16 + 1, ZERO_BLOCK);
	a.length = a.length < SHORTEST ? SHORTEST : a.length > LONGEST ? LONGEST : a.length;
	zero_workers_run(workers, adamw_part, &a, count / a.length + (count % a.length != 0));
}

/* ---- Muon ------------------------------------------------------------------------------------ */

struct muon {
	const struct zero_kernels *kernels;
	const struct zero_muon_args *args;
	float *changed; /* momentum, or values */
	const float *from;
	void *out;
	zero_dtype low_dtype;
	size_t count;
};

static size_t muon_length(const struct muon *muon, size_t i)
{
	size_t left = muon->count - i * SHORTEST;

	return left < SHORTEST ? left : (size_t)SHORTEST;
}

static void momentum_part(void *context, size_t i)
{
	const struct muon *muon = context;
	size_t at = i * SHORTEST;

	muon->kernels->muon_momentum(muon->args, muon->changed + at, muon->from + at,
				     (float *)muon->out + at, muon_length(muon, i));
}

static void update_part(void *context, size_t i)
{
	const struct muon *muon = context;
	size_t at = i * SHORTEST, size = zero_core->dtype_size(muon->low_dtype);

	muon->kernels->muon_update(muon->args, muon->changed + at, muon->from + at,
				   muon->out ? (char *)muon->out + at * size : NULL,
				   muon->low_dtype, muon_length(muon, i));
}

void zero_cpu_muon_momentum(struct zero_workers *workers, const struct zero_kernels *kernels,
			    const struct zero_muon_args *args, float *m, const float *g, float *out,
			    size_t count)
{
	struct muon muon = {kernels, args, m, g, out, ZERO_F32, count};

	zero_workers_run(workers, momentum_part, &muon, (count + SHORTEST - 1) / SHORTEST);
}

void zero_cpu_muon_update(struct zero_workers *workers, const struct zero_kernels *kernels,
			  const struct zero_muon_args *args, float *p, const float *update,
			  void *low, zero_dtype low_dtype, size_t count)
{
	struct muon muon = {kernels, args, p, update, low, low_dtype, count};

	zero_workers_run(workers, update_part, &muon, (count + SHORTEST - 1) / SHORTEST);
}

/* ---- the norm -------------------------------------------------------------------------------- */

struct norm2 {
	const struct zero_kernels *kernels;
	const float *x;
	size_t count, length;
	double sums[NORM_PARTS];
};

static void norm2_part(void *context, size_t i)
{
	struct norm2 *n = context;
	size_t first = i * n->length, count = n->count - first;

	n->sums[i] = n->kernels->norm2(n->x + first, count < n->length ? count : n->length);
}

double zero_cpu_norm2(struct zero_workers *workers, const struct zero_kernels *kernels,
		      const float *x, size_t count)
{
	struct norm2 n = {.kernels = kernels, .x = x, .count = count};
	size_t parts;
	double sum = 0;

	n.length = rounded_up(count / NORM_PARTS + 1, LINE);
	n.length = n.length < NORM_SHORTEST ? NORM_SHORTEST : n.length;
	parts = count / n.length + (count % n.length != 0);
	zero_workers_run(workers, norm2_part, &n, parts);
	for (size_t i = 0; i < parts; i++)
		sum += n.sums[i];
	return sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels that have a number, on host memory. Those of a step are cut into parts for
   threads. */
#include "backend/step_rule.h"
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

/* A kernel's work in parts of `length` elements. */
struct parts {
	const struct zero_kernels *kernels;
	const void *arguments;
	size_t count, length;
};

static size_t part_count(const struct parts *parts, size_t first)
{
	return parts->count - first < parts->length ? parts->count - first : parts->length;
}

static void run_parts(const struct zero_cpu *cpu, struct parts *parts,
		      void (*run)(void *context, size_t i))
{
	zero_workers_run(cpu->workers, run, parts,
			 parts->count / parts->length + (parts->count % parts->length != 0));
}

static void *low_at(void *low, zero_dtype dtype, size_t at)
{
	return low ? (char *)low + at * zero_dtype_size(dtype) : NULL;
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

/* The part from element `at` on. */
static void step_8bit(const struct zero_kernels *kernels, const struct zero_device_adamw *a,
		      size_t at, size_t count)
{
	const struct zero_moments *moments = &a->moments;
	float m[PIECE], v[PIECE];

	for (size_t end = at + count, now; at < end; at += now) {
		uint8_t *m_codes = moments->m_codes + at, *v_codes = moments->v_codes + at;
		float *m_absmax = moments->m_absmax + at / ZERO_BLOCK;
		float *v_absmax = moments->v_absmax + at / ZERO_BLOCK;

		now = end - at < PIECE ? end - at : (size_t)PIECE;
		kernels->dequantize(&a->maps[true], m, m_codes, m_absmax, now);
		kernels->dequantize(&a->maps[false], v, v_codes, v_absmax, now);
		kernels->adamw(&a->args, a->p + at, m, v, a->g + at,
			       low_at(a->low, a->low_dtype, at), a->low_dtype, now);
		kernels->quantize(&a->maps[true], m_codes, m_absmax, m, now);
		kernels->quantize(&a->maps[false], v_codes, v_absmax, v, now);
	}
}

static void adamw_part(void *context, size_t i)
{
	const struct parts *parts = context;
	const struct zero_device_adamw *a = parts->arguments;
	size_t at = i * parts->length, count = part_count(parts, at);

	if (a->moments.m)
		parts->kernels->adamw(&a->args, a->p + at, a->moments.m + at, a->moments.v + at,
				      a->g + at, low_at(a->low, a->low_dtype, at), a->low_dtype,
				      count);
	else
		step_8bit(parts->kernels, a, at, count);
}

/* Long arrays are cut into parts of LONGEST, shorter ones into 16. */
static void adamw(const struct zero_cpu *cpu, const void *arguments)
{
	struct zero_device_adamw a = *(const struct zero_device_adamw *)arguments;
	struct parts parts = {cpu->kernels, &a, a.count, 0};

	if (a.state && a.state->skipped)
		return;
	if (a.state)
		a.args = zero_adamw_args_of_step(&a.args, a.state);
	parts.length = rounded_up(a.count / 16 + 1, ZERO_BLOCK);
	parts.length = parts.length < SHORTEST  ? SHORTEST
		       : parts.length > LONGEST ? LONGEST
						: parts.length;
	run_parts(cpu, &parts, adamw_part);
}

/* ---- Muon ------------------------------------------------------------------------------------ */

static void momentum_part(void *context, size_t i)
{
	const struct parts *parts = context;
	const struct zero_device_muon *muon = parts->arguments;
	size_t at = i * parts->length;

	parts->kernels->muon_momentum(&muon->args, muon->changed + at, muon->from + at,
				      (float *)muon->out + at, part_count(parts, at));
}

static void update_part(void *context, size_t i)
{
	const struct parts *parts = context;
	const struct zero_device_muon *muon = parts->arguments;
	size_t at = i * parts->length;

	parts->kernels->muon_update(&muon->args, muon->changed + at, muon->from + at,
				    low_at(muon->out, muon->low_dtype, at), muon->low_dtype,
				    part_count(parts, at));
}

static void run_muon(const struct zero_cpu *cpu, const struct zero_device_muon *arguments,
		     void (*run)(void *context, size_t i))
{
	struct zero_device_muon muon = *arguments;
	struct parts parts = {cpu->kernels, &muon, muon.count, SHORTEST};

	if (muon.state->skipped)
		return;
	muon.args.scale = muon.state->scale;
	run_parts(cpu, &parts, run);
}

static void muon_momentum(const struct zero_cpu *cpu, const void *arguments)
{
	run_muon(cpu, arguments, momentum_part);
}

static void muon_update(const struct zero_cpu *cpu, const void *arguments)
{
	run_muon(cpu, arguments, update_part);
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

double zero_cpu_norm2(const struct zero_cpu *cpu, const float *x, size_t count)
{
	struct norm2 n = {.kernels = cpu->kernels, .x = x, .count = count};
	size_t parts;
	double sum = 0;

	n.length = rounded_up(count / NORM_PARTS + 1, LINE);
	n.length = n.length < NORM_SHORTEST ? NORM_SHORTEST : n.length;
	parts = count / n.length + (count % n.length != 0);
	zero_workers_run(cpu->workers, norm2_part, &n, parts);
	for (size_t i = 0; i < parts; i++)
		sum += n.sums[i];
	return sum;
}

/* ---- the others ------------------------------------------------------------------------------ */

static void step_rule(const struct zero_cpu *cpu, const void *arguments)
{
	(void)cpu;
	zero_step_rule_apply(arguments);
}

static void group_rule(const struct zero_cpu *cpu, const void *arguments)
{
	const struct zero_group_rule *rule = arguments;

	(void)cpu;
	for (size_t i = 0; i < rule->count; i++)
		zero_group_rule_apply(rule, &rule->groups[i]);
}

static void cast(const struct zero_cpu *cpu, const void *arguments)
{
	const struct zero_device_cast *c = arguments;

	cpu->kernels->cast(c->to, c->out, c->from, c->in, c->count);
}

static void uniform(const struct zero_cpu *cpu, const void *arguments)
{
	const struct zero_device_random *r = arguments;

	cpu->kernels->fill_uniform(r->dtype, r->out, r->first, r->count, r->a, r->b, r->seed,
				   r->stream);
}

static void normal(const struct zero_cpu *cpu, const void *arguments)
{
	const struct zero_device_random *r = arguments;

	cpu->kernels->fill_normal(r->dtype, r->out, r->first, r->count, r->a, r->b, r->seed,
				  r->stream);
}

void zero_cpu_run(const struct zero_cpu *cpu, enum zero_kernel kernel, const void *arguments)
{
	static void (*const kernels[ZERO_KERNELS])(const struct zero_cpu *, const void *) = {
		[ZERO_K_CAST] = cast,
		[ZERO_K_ADAMW] = adamw,
		[ZERO_K_ADAMW_8BIT] = adamw,
		[ZERO_K_STEP_RULE] = step_rule,
		[ZERO_K_GROUP_RULE] = group_rule,
		[ZERO_K_UNIFORM] = uniform,
		[ZERO_K_NORMAL] = normal,
		[ZERO_K_MUON_MOMENTUM] = muon_momentum,
		[ZERO_K_MUON_UPDATE] = muon_update,
	};

	kernels[kernel](cpu, arguments);
}

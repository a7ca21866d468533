/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "step_model.h"

int world, rank, last;
uint64_t seed;

const struct tensor tensors[PARAMS] = {
	{"a", 0, 3001, ZERO_F32, true}, {"b", 0, 1, ZERO_F32, true},
	{"c", 1, 777, ZERO_BF16, true}, {"d", 1, 1025, ZERO_F32, true},
	{"e", 2, 640, ZERO_F16, true},  {"f", 2, 50, ZERO_F32, false},
	{"g", 2, 0, ZERO_F32, true},    {"h", 2, 260, ZERO_BF16, true},
	{"i", 3, 129, ZERO_F32, false},
};

const zero_adamw plain = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

/* ---- a job and its reference ----------------------------------------------------------------- */

void compare_group(struct model *m, size_t g, zero_dtype as)
{
	static unsigned char want[4 * 3001];

	ok(zero_gather(m->groups[g], as));
	for (size_t p = 0; p < PARAMS; p++) {
		const struct tensor *tensor = &tensors[p];
		zero_dtype dtype = as == ZERO_DTYPE_PARAM ? tensor->dtype : as;
		size_t at;

		if (tensor->group != g || !tensor->count)
			continue;
		check(zero_gathered_dtype(m->params[p]) == dtype, "'%s'", tensor->name);
		ref_cast(dtype, want, tensor->dtype, m->refs[p].values, tensor->count);
		at = ref_difference(dtype, zero_data(m->params[p]), want, tensor->count);
		check(at == tensor->count, "%s: step %llu: '%s' differs at %zu of %zu", m->settings,
		      (unsigned long long)m->steps, tensor->name, at, tensor->count);
	}
	ok(zero_release(m->groups[g]));
}

void compare(struct model *m)
{
	for (size_t g = 0; g < GROUPS; g++)
		compare_group(m, g, ZERO_DTYPE_PARAM);
}

void load(struct model *m, uint64_t from)
{
	for (size_t p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_uniform(-1, 1, from);
		void *data;

		ok(zero_load(m->params[p], &source));
		ok(zero_gather(m->groups[tensors[p].group], ZERO_DTYPE_PARAM));
		data = zero_data(m->params[p]);
		if (data)
			memcpy(m->refs[p].values, data,
			       tensors[p].count * zero_dtype_size(tensors[p].dtype));
		ok(zero_release(m->groups[tensors[p].group]));
		ref_loaded(&m->refs[p]);
	}
}

void begin(struct model *m, const char *settings, const zero_dtype gradients[GROUPS])
{
	*m = (struct model){.settings = settings, .random = seed};
	m->job = open_job("allgather=grouped %s", settings);
	for (size_t g = 0; g < GROUPS; g++) {
		m->groups[g] = new_group(m->job, tensors[2 * g].name);
		m->gradients[g] = gradients ? gradients[g] : ZERO_F32;
		if (gradients)
			ok(zero_group_gradient_dtype(m->groups[g], gradients[g]));
	}
	for (size_t p = 0; p < PARAMS; p++) {
		m->params[p] = new_param(m->groups[tensors[p].group], tensors[p].name,
					 tensors[p].dtype, tensors[p].count, tensors[p].trainable);
		m->refs[p] = (struct ref_param){.dtype = tensors[p].dtype,
						.trainable = tensors[p].trainable,
						.weight_decay = 1,
						.count = tensors[p].count,
						.world = world};
		check(ref_new(&m->refs[p]), "no memory");
	}
	ok(zero_layout(m->job));
	load(m, seed);
}

void end(struct model *m)
{
	ok(zero_close(m->job));
	for (size_t p = 0; p < PARAMS; p++)
		ref_free(&m->refs[p]);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* All types have it: 7 bits before an exponent that differs from element to element. */
static float gradient(uint64_t pass, int from, size_t i)
{
	uint64_t bits = mixed(pass + mixed(i * 64 + (uint64_t)from));

	return ldexpf((float)(bits % 255) - 127, (int)(bits >> 20 & 7) - 8);
}

/* Of one micro-batch, times `factor`; ranks differ in what they use. */
static void add_gradients(struct model *m, size_t g, float factor)
{
	uint64_t pass = draw(&m->random);
	size_t size = zero_dtype_size(m->gradients[g]);

	for (size_t p = 0; p < PARAMS; p++)
		for (int from = 0; from < world; from++) {
			char *own = NULL;

			if (tensors[p].group != g || !tensors[p].trainable || !tensors[p].count ||
			    mixed(pass ^ (uint64_t)(from + 1)) % 4 == 0)
				continue;
			if (from == rank)
				own = zero_gradient_as(m->params[p], m->gradients[g]);
			check(own || from != rank, "'%s': %s", tensors[p].name, zero_last_error());
			for (size_t i = 0; i < tensors[p].count; i++) {
				float *sum = &m->refs[p].pending[from][i], added;

				added = *sum + factor * gradient(pass + p, from, i);
				ref_cast(m->gradients[g], &added, ZERO_F32, &added, 1);
				if (own)
					memcpy(own + i * size, &added, size);
				*sum = ref_widen(m->gradients[g], &added);
			}
		}
}

void backward(struct model *m, float factor)
{
	for (size_t g = GROUPS - 1; g-- > 0;)
		for (size_t times = below(&m->random, 3) + 1; times; times--) {
			add_gradients(m, g, factor);
			if (times == 1 && draw(&m->random) % 2)
				continue;
			ok(zero_reduce(m->groups[g]));
			for (size_t p = 0; p < PARAMS; p++)
				if (tensors[p].group == g)
					ref_reduce(&m->refs[p], m->reduced[g]);
			m->reduced[g] = true;
		}
}

/* The norm of all sums. */
static double reduce_references(struct model *m)
{
	double norm2 = 0;

	for (size_t p = 0; p < PARAMS; p++) {
		if (!m->reduced[tensors[p].group])
			ref_reduce(&m->refs[p], false);
		norm2 += ref_norm2(&m->refs[p]);
	}
	memset(m->reduced, 0, sizeof(m->reduced));
	/* What came after a group's last reduce counts for the next step. */
	return sqrt(norm2);
}

double step(struct model *m, const zero_adamw *adamw, double mean)
{
	double norm = reduce_references(m) * mean, clip = 1;
	zero_step_result result;

	memset(&result, 0xa5, sizeof(result));
	ok(zero_step(m->job, adamw, &result));
	check(result.skipped == !isfinite(norm), "%s: norm %g, skipped %d", m->settings, norm,
	      result.skipped);
	check(adamw->loss_scale ? result.loss_scale == adamw->loss_scale->scale
				: result.loss_scale == 1,
	      "%g", (double)result.loss_scale);
	if (result.skipped)
		return result.grad_norm;
	check(fabs(result.grad_norm - norm) <= 1e-12 * norm, "%s: norm %.17g, not %.17g",
	      m->settings, result.grad_norm, norm);
	if (adamw->clip > 0 && result.grad_norm > (double)adamw->clip)
		clip = (double)adamw->clip / result.grad_norm;
	m->steps++;
	for (size_t p = 0; p < PARAMS; p++)
		ref_step(&m->refs[p], adamw, (float)(clip * mean), m->steps);
	return result.grad_norm;
}

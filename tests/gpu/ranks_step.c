/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce and step against a reference in plain arrays. Gradients have few bits, so that sums over
 * the ranks and squares are exact in whatever order they are added, and values must be the same
 * bits; check_reduce_order is about others.
 */
#include <math.h>

#include "ranks.h"

static const struct tensor {
	const char *name;
	size_t group, count;
	zero_dtype dtype;
	bool trainable;
	float weight_decay, lr_scale;
} tensors[] = {
	{"a", 0, 30001, ZERO_F32, true, 1, 0}, {"b", 0, 1, ZERO_F32, true, 0, 0.5F},
	{"c", 1, 777, ZERO_BF16, true, 1, 2},  {"d", 1, 20025, ZERO_F32, true, 0.5F, 0},
	{"e", 2, 640, ZERO_F16, true, 1, 0},   {"f", 2, 50, ZERO_F32, false, 0, 0},
	{"g", 2, 0, ZERO_F32, true, 1, 0},     {"h", 2, 16383, ZERO_BF16, true, 0, 0},
};

enum { GROUPS = 3, TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

static const zero_adamw plain = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[TENSORS], *tied; /* to "d" */
	zero_dtype gradients;
	struct ref_param refs[TENSORS];
	bool reduced[GROUPS];
	uint64_t random; /* the same on all ranks */
	uint64_t steps;
	const char *settings;
};

/* ---- a job and its reference ----------------------------------------------------------------- */

static void load(struct model *m, uint64_t from)
{
	for (size_t t = 0; t < TENSORS; t++) {
		zero_source source = zero_from_all(m->refs[t].values);

		random_elements(tensors[t].dtype, m->refs[t].values, tensors[t].count, from + t);
		ok(zero_load(m->params[t], &source));
		ref_loaded(&m->refs[t]);
	}
}

static void begin(struct model *m, const char *settings, zero_dtype gradients)
{
	zero_param_spec spec = {.name = "tied", .dtype = ZERO_F32, .ndim = 1, .trainable = true};

	*m = (struct model){.settings = settings, .random = seed, .gradients = gradients};
	m->job = open_tested("%s", settings);
	for (size_t g = 0; g < GROUPS; g++) {
		m->groups[g] = new_group(m->job, g == 0 ? "g0" : g == 1 ? "g1" : "g2");
		ok(zero_group_gradient_dtype(m->groups[g], gradients));
	}
	for (size_t t = 0; t < TENSORS; t++) {
		zero_param_spec one = {.name = tensors[t].name,
				       .dtype = tensors[t].dtype,
				       .ndim = 1,
				       .shape = &tensors[t].count,
				       .trainable = tensors[t].trainable,
				       .no_weight_decay = tensors[t].weight_decay == 0,
				       .weight_decay_scale = tensors[t].weight_decay,
				       .lr_scale = tensors[t].lr_scale};

		ok(zero_param_new(m->groups[tensors[t].group], &one, &m->params[t]));
		m->refs[t] = (struct ref_param){.dtype = tensors[t].dtype,
						.trainable = tensors[t].trainable,
						.weight_decay = tensors[t].weight_decay,
						.lr_scale = tensors[t].lr_scale,
						.count = tensors[t].count,
						.world = world};
		check(ref_new(&m->refs[t]), "no memory");
	}
	spec.shape = &tensors[3].count;
	spec.alias_of = m->params[3];
	ok(zero_param_new(m->groups[1], &spec, &m->tied));
	ok(zero_layout(m->job));
	load(m, 8000);
}

static void end(struct model *m)
{
	ok(zero_close(m->job));
	for (size_t t = 0; t < TENSORS; t++)
		ref_free(&m->refs[t]);
}

static void compare(struct model *m)
{
	char what[200];

	snprintf(what, sizeof(what), "%s, after step %llu", m->settings,
		 (unsigned long long)m->steps);
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		for (size_t t = 0; t < TENSORS; t++)
			if (tensors[t].group == g)
				expect_gathered(m->params[t], tensors[t].dtype, m->refs[t].values,
						what);
		if (g == 1)
			expect_gathered(m->tied, ZERO_F32, m->refs[3].values, what);
		ok(zero_release(m->groups[g]));
	}
	for (size_t t = 0; t < TENSORS; t++)
		expect_stored(m->params[t], tensors[t].dtype, m->refs[t].values, what);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A multiple of 2^-6 in (-1, 1): every type has it, and sums of some. */
static float gradient(uint64_t pass, int from, size_t i)
{
	return ((float)(mixed(seed + pass + mixed(i * 64 + (uint64_t)from)) % 127) - 63) * 0x1p-6F;
}

/* Adds to the gradient that this rank has accumulated. It is zero at first. */
static void add_on_device(struct model *m, size_t t, zero_param *param, uint64_t pass, float factor)
{
	size_t size = zero_dtype_size(m->gradients), count = tensors[t].count;
	char *sums = host_memory(count * size);
	void *own = zero_gradient_as(param, m->gradients);

	check(own, "'%s': %s", tensors[t].name, zero_last_error());
	fetch(sums, own, count * size);
	for (size_t i = 0; i < count; i++) {
		float sum = ref_widen(m->gradients, sums + i * size);

		check(sum == m->refs[t].pending[rank][i],
		      "%s: the gradient of '%s' has %g at %zu, not %g", m->settings,
		      tensors[t].name, (double)sum, i, (double)m->refs[t].pending[rank][i]);
		sum += factor * gradient(pass, rank, i);
		ref_narrow(m->gradients, (double)sum, sums + i * size);
	}
	upload(own, sums, count * size);
	synchronise();
	free(sums);
}

static void add_gradients(struct model *m, size_t g, float factor)
{
	uint64_t pass = draw(&m->random);

	for (size_t t = 0; t < TENSORS; t++) {
		if (tensors[t].group != g || !tensors[t].trainable || !tensors[t].count)
			continue;
		/* Ranks differ in what they use. */
		if (mixed(pass ^ (uint64_t)(rank + 1)) % 4)
			add_on_device(m, t, t == 3 && pass % 2 ? m->tied : m->params[t], pass + t,
				      factor);
		for (int from = 0; from < world; from++)
			for (size_t i = 0; i < tensors[t].count; i++) {
				float *sum = &m->refs[t].pending[from][i];

				if (!(mixed(pass ^ (uint64_t)(from + 1)) % 4))
					break;
				*sum += factor * gradient(pass + t, from, i);
				ref_cast(m->gradients, sum, ZERO_F32, sum, 1);
				*sum = ref_widen(m->gradients, sum);
			}
	}
}

static void reduce(struct model *m, size_t g)
{
	ok(zero_reduce(m->groups[g]));
	for (size_t t = 0; t < TENSORS; t++)
		if (tensors[t].group == g)
			ref_reduce(&m->refs[t], m->reduced[g], ZERO_F32);
	m->reduced[g] = true;
}

static void backward(struct model *m, float factor)
{
	for (size_t g = GROUPS; g-- > 0;)
		for (size_t times = below(&m->random, 3) + 1; times; times--) {
			add_gradients(m, g, factor);
			/* The step reduces the gradients that were not reduced. */
			if (times > 1 || draw(&m->random) % 2)
				reduce(m, g);
		}
}

/* Steps the job and the reference; the sums are multiplied by `mean`. */
static double step(struct model *m, const zero_adamw *adamw, double mean)
{
	double norm = 0, clip = 1;
	zero_step_result result;

	/* A gradient written after the group's last reduce counts for the next step. */
	for (size_t t = 0; t < TENSORS; t++) {
		if (!m->reduced[tensors[t].group])
			ref_reduce(&m->refs[t], false, ZERO_F32);
		norm += ref_norm2(&m->refs[t]);
	}
	memset(m->reduced, 0, sizeof(m->reduced));
	norm = sqrt(norm) * mean;
	ok(zero_step(m->job, adamw, &result));
	check(result.skipped == !isfinite(norm), "%s: norm %g, skipped %d", m->settings, norm,
	      result.skipped);
	if (result.skipped)
		return result.grad_norm;
	check(fabs(result.grad_norm - norm) <= 1e-12 * norm, "%s: norm %.17g, not %.17g",
	      m->settings, result.grad_norm, norm);
	if (adamw->clip > 0 && result.grad_norm > (double)adamw->clip)
		clip = (double)adamw->clip / result.grad_norm;
	m->steps++;
	for (size_t t = 0; t < TENSORS; t++)
		ref_step(&m->refs[t], adamw, (float)(clip * mean), m->steps);
	return result.grad_norm;
}

/* ---- checks ---------------------------------------------------------------------------------- */

void check_steps(const char *settings)
{
	zero_adamw adamw = plain;
	struct model m;

	begin(&m, settings, ZERO_F32);
	for (int pass = 0; pass < 4; pass++) {
		if (pass == 2) /* loading sets the masters and keeps the moments */
			load(&m, 9000);
		adamw.clip = pass % 2 ? 0.25F : 0;
		adamw.micro_batches = pass == 3 ? 2 : 0;
		backward(&m, 1);
		step(&m, &adamw, 1 / (double)world / (pass == 3 ? 2 : 1));
		compare(&m);
	}
	end(&m);
}

/* A gradient that is not finite, on one rank and in one place, changes nothing but the scale. */
void check_skips(const char *settings)
{
	static const float bad[] = {NAN, INFINITY, -INFINITY};
	zero_adamw adamw = plain;
	zero_loss_scale scale;
	struct model m;

	zero_loss_scale_init(&scale);
	scale.scale = 8;
	adamw.loss_scale = &scale;
	begin(&m, settings, ZERO_F32);
	for (int pass = 0; pass < 3; pass++) {
		int from = pass % world;
		size_t at = pass == 0 ? 0 : tensors[0].count - 1;
		float *own, before = scale.scale;

		backward(&m, before);
		if (rank == from) {
			own = zero_gradient(m.params[0]);
			check(own, "%s", zero_last_error());
			upload(own + at, &bad[pass], sizeof(float));
			synchronise();
		}
		m.refs[0].pending[from][at] = bad[pass];
		reduce(&m, 0);
		step(&m, &adamw, 1 / (double)world / (double)before);
		check(scale.scale == before / 2, "%s: %g", settings, (double)scale.scale);
		compare(&m);
		backward(&m, scale.scale);
		step(&m, &adamw, 1 / (double)world / (double)scale.scale);
		compare(&m);
	}
	end(&m);
}

/* Ranks reduce different groups. A later reduce is refused, and frees a gradient that was just
   written, while nothing was waited for. */
void check_refused(const char *settings)
{
	static const float one = 1;
	float *gradients[TENSORS];
	struct model m;

	begin(&m, settings, ZERO_F32);
	for (size_t t = 0; t < TENSORS; t++)
		gradients[t] = tensors[t].trainable ? zero_gradient(m.params[t]) : NULL;
	ok(zero_reduce(m.groups[rank > 0]));
	if (world > 1)
		fails(zero_gather(m.groups[2], ZERO_DTYPE_PARAM), ZERO_E_ORDER, "");
	for (size_t t = 0; t < TENSORS; t++)
		if (tensors[t].group == 2 && tensors[t].count && gradients[t])
			upload(gradients[t], &one, sizeof(one));
	zero_reduce(m.groups[2]);
	end(&m);
}

void check_low_gradients(const char *settings)
{
	static const zero_dtype low[] = {ZERO_BF16, ZERO_F16};
	struct model m;

	for (size_t i = 0; i < 2; i++) {
		begin(&m, settings, low[i]);
		for (int pass = 0; pass < 2; pass++) {
			backward(&m, 1);
			step(&m, &plain, 1 / (double)world);
			compare(&m);
		}
		end(&m);
	}
}

/*
 * Gradients of all bits: a sum is right within the rounding of any order. Betas of 0 and an eps of
 * 2^40 make a step that is the sum itself, times 2^-40.
 */
void check_reduce_order(const char *settings)
{
	zero_adamw adamw = {.lr = 0x1p40F, .eps = 0x1p40F};
	size_t count = tensors[0].count, differ = 0;
	zero_source zeros = zero_from_constant(0);
	float *got = host_memory(count * sizeof(float));
	struct model m;

	begin(&m, settings, ZERO_F32);
	ok(zero_load(m.params[0], &zeros));
	for (int from = 0; from < world; from++)
		random_elements(ZERO_F32, m.refs[0].pending[from], count,
				10000 + (uint64_t)from * 1000);
	upload(zero_gradient(m.params[0]), m.refs[0].pending[rank], count * sizeof(float));
	reduce(&m, 0);
	ok(zero_step(m.job, &adamw, NULL));
	ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
	fetch(got, zero_data(m.params[0]), count * sizeof(float));
	ok(zero_release(m.groups[0]));
	for (size_t i = 0; i < count; i++) {
		float want = -m.refs[0].sums[i] * (float)(1 / (double)world);

		check(fabsf(got[i] - want) <= (float)world * 0x1p-23F, "%s: %g at %zu, not %g",
		      settings, (double)got[i], i, (double)want);
		differ += fabsf(got[i] - want) > 0x1p-20F * fabsf(want);
	}
	check(differ * 10 <= count, "%s: %zu of %zu sums are far off", settings, differ, count);
	end(&m);
	free(got);
}

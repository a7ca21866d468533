/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small training with made-up gradients. Parameters are the same bits at every stage, in every
 * gather mode, on every instruction set and however many ranks share memory, and agree with a
 * reference in f64 that each rank computes by itself from the gradients of all ranks.
 */
#include <math.h>

#include "ranks.h"

enum { GROUPS = 3, PARAMS = 9, STEPS = 5, COUNT_MAX = 3000, WORLD_MAX = 16 };

struct shape {
	const char *name;
	size_t group, count;
	zero_dtype dtype;
	bool trainable;
	float weight_decay, lr_scale;
};

/* Group 2 has no gradient on odd ranks, and in step 3 on no rank. */
static const struct shape shapes[PARAMS] = {
	{"embedding", 0, 3000, ZERO_F32, true, 1, 0},  {"scale", 0, 1, ZERO_F32, true, 0, 2},
	{"low", 0, 777, ZERO_BF16, true, 0.5F, 0.25F}, {"weight", 1, 1025, ZERO_F32, true, 1, 1},
	{"frozen", 1, 500, ZERO_F32, false, 1, 1},     {"half", 1, 260, ZERO_F16, true, 1, 1},
	{"table", 1, 99, ZERO_I32, false, 1, 1},       {"rare", 2, 640, ZERO_F32, true, 1, 1},
	{"empty", 2, 0, ZERO_F32, true, 1, 1},
};

struct config {
	const char *name;
	float clip;
	int micro_batches;
	bool twice;   /* each group is reduced twice in a step */
	int poisoned; /* the step in which the last rank's gradient is not finite; -1: none */
};

static const struct config configs[] = {
	{"plain", 0, 0, false, -1},
	{"clip", 0.05F, 3, false, -1},
	{"twice", 0, 1, true, -1},
	{"poisoned", 1, 1, false, 2},
};

static int world, rank;
static uint64_t seed;

/* ---- gradients and initial values, functions of their arguments ------------------------------ */

static float initial(size_t p, size_t i)
{
	return signed_unit(mixed(seed ^ mixed(p * 1000003 + i)));
}

static bool has_gradient(size_t p, int step, int from)
{
	return shapes[p].trainable && !(shapes[p].group == 2 && (from % 2 || step == 3));
}

/* The gradient of one of `parts` reduces. Magnitudes differ, so that the order of a sum matters. */
static float gradient(const struct config *config, size_t p, int step, int from, int part, size_t i)
{
	uint64_t at =
		(((uint64_t)p * 64 + (uint64_t)step) * 64 + (uint64_t)from) * 4 + (uint64_t)part;
	uint64_t bits = mixed(seed + mixed(at * COUNT_MAX + i));

	if (!has_gradient(p, step, from))
		return 0;
	if (step == config->poisoned && from == world - 1 && p == 3 && i == 1000)
		return part ? 0 : (seed & 1 ? INFINITY : NAN);
	return signed_unit(bits) * (bits & 1 ? 1.0F : 1000.0F);
}

/* ---- the reference --------------------------------------------------------------------------- */

struct reference {
	double p[PARAMS][COUNT_MAX], m[PARAMS][COUNT_MAX], v[PARAMS][COUNT_MAX];
	double norm;
	int steps;
};

static const zero_adamw adamw = {
	.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F, .weight_decay = 0.1F};

static double mean_gradient(const struct config *config, size_t p, int step, size_t i)
{
	int micro_batches = config->micro_batches ? config->micro_batches : 1;
	double sum = 0;

	for (int from = 0; from < world; from++)
		for (int part = 0; part <= config->twice; part++)
			sum += (double)gradient(config, p, step, from, part, i);
	return sum / (world * micro_batches);
}

static bool reference_step(const struct config *config, struct reference *reference, int step)
{
	double norm2 = 0, scale = 1;

	for (size_t p = 0; p < PARAMS; p++)
		for (size_t i = 0; i < shapes[p].count; i++) {
			double g = mean_gradient(config, p, step, i);

			norm2 += g * g;
		}
	reference->norm = sqrt(norm2);
	if (!isfinite(reference->norm))
		return false;
	if (config->clip > 0 && reference->norm > (double)config->clip)
		scale = (double)config->clip / reference->norm;
	reference->steps++;
	for (size_t p = 0; p < PARAMS; p++) {
		double lr = adamw.lr * (shapes[p].lr_scale != 0 ? (double)shapes[p].lr_scale : 1);

		for (size_t i = 0; shapes[p].trainable && i < shapes[p].count; i++) {
			double g = scale * mean_gradient(config, p, step, i), *x, *m, *v;

			x = &reference->p[p][i];
			m = &reference->m[p][i];
			v = &reference->v[p][i];
			*m = adamw.beta1 * *m + (1 - (double)adamw.beta1) * g;
			*v = adamw.beta2 * *v + (1 - (double)adamw.beta2) * g * g;
			*x -= lr * (double)adamw.weight_decay * (double)shapes[p].weight_decay * *x;
			*x -= lr * (*m / (1 - pow(adamw.beta1, reference->steps))) /
			      (sqrt(*v / (1 - pow(adamw.beta2, reference->steps))) +
			       (double)adamw.eps);
		}
	}
	return true;
}

/* ---- the job --------------------------------------------------------------------------------- */

struct training {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[PARAMS];
};

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	size_t p = *(size_t *)context;

	for (size_t i = 0; i < count; i++) {
		float value = initial(p, first + i);
		uint32_t bits;
		uint16_t half;

		memcpy(&bits, &value, sizeof(bits));
		half = shapes[p].dtype == ZERO_BF16 ? (uint16_t)(bits >> 16) : 0;
		/* f16 parameters start as +-0.5, which needs no conversion. */
		if (shapes[p].dtype == ZERO_F16)
			half = value < 0 ? 0xb800 : 0x3800;
		if (zero_dtype_size(shapes[p].dtype) == 4)
			memcpy((char *)elements + 4 * i, &value, 4);
		else
			memcpy((char *)elements + 2 * i, &half, 2);
	}
	return ZERO_OK;
}

static float widen(zero_dtype dtype, const void *values, size_t i)
{
	uint32_t bits;
	uint16_t half;
	float value;

	memcpy(&value, (const char *)values + (zero_dtype_size(dtype) == 4 ? 4 * i : 0), 4);
	if (zero_dtype_size(dtype) == 4)
		return value;
	memcpy(&half, (const char *)values + 2 * i, 2);
	bits = (uint32_t)half << 16;
	if (dtype == ZERO_F16)
		bits = (uint32_t)(half & 0x8000) << 16 |
		       (half & 0x7c00 ? ((uint32_t)(half & 0x7fff) << 13) + (112U << 23) : 0);
	memcpy(&value, &bits, sizeof(value));
	return value;
}

static void begin(struct training *training, const char *settings)
{
	training->job = open_job("%s", settings);
	for (size_t g = 0; g < GROUPS; g++) {
		char name[16];

		snprintf(name, sizeof(name), "g%zu", g);
		training->groups[g] = new_group(training->job, name);
	}
	for (size_t p = 0; p < PARAMS; p++) {
		zero_param_spec spec = {
			.name = shapes[p].name,
			.dtype = shapes[p].dtype,
			.ndim = 1,
			.shape = &shapes[p].count,
			.trainable = shapes[p].trainable,
			.no_weight_decay = shapes[p].weight_decay == 0,
			.weight_decay_scale = shapes[p].weight_decay,
			.lr_scale = shapes[p].lr_scale,
		};

		ok(zero_param_new(training->groups[shapes[p].group], &spec, &training->params[p]));
	}
	ok(zero_layout(training->job));
	for (size_t p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_callback(fill, &p);

		ok(zero_load(training->params[p], &source));
	}
}

static void add_gradients(struct training *training, const struct config *config, size_t group,
			  int step, int part)
{
	for (size_t p = 0; p < PARAMS; p++) {
		float *sums;

		if (shapes[p].group != group || !shapes[p].count || !has_gradient(p, step, rank))
			continue;
		sums = zero_gradient(training->params[p]);
		check(sums, "'%s': %s", shapes[p].name, zero_last_error());
		for (size_t i = 0; i < shapes[p].count; i++)
			sums[i] += gradient(config, p, step, rank, part, i);
	}
}

static void backward(struct training *training, const struct config *config, int step)
{
	for (size_t g = GROUPS; g-- > 0;) {
		ok(zero_gather(training->groups[g], ZERO_DTYPE_PARAM));
		for (int part = 0; part <= config->twice; part++) {
			add_gradients(training, config, g, step, part);
			/* zero_step reduces a group that was not reduced. */
			if (config->twice || g != 1)
				ok(zero_reduce(training->groups[g]));
		}
		ok(zero_release(training->groups[g]));
	}
}

/* Copies the bytes of all parameters, one after the other. */
static size_t take_values(struct training *training, unsigned char *bytes)
{
	size_t at = 0;

	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(training->groups[g], ZERO_DTYPE_PARAM));
		for (size_t p = 0; p < PARAMS; p++) {
			size_t size = shapes[p].count * zero_dtype_size(shapes[p].dtype);

			if (shapes[p].group == g && size)
				memcpy(bytes + at, zero_data(training->params[p]), size);
			at += shapes[p].group == g ? size : 0;
		}
		ok(zero_release(training->groups[g]));
	}
	return at;
}

/* Right after a step, the stored values are those that a gather returns. */
static void check_shards(struct training *training)
{
	for (size_t p = 0; p < PARAMS; p++) {
		static unsigned char own[COUNT_MAX * 4];
		size_t first, count, size = zero_dtype_size(shapes[p].dtype);
		zero_group *group = training->groups[shapes[p].group];
		void *data;

		ok(zero_shard(training->params[p], &data, &first, &count));
		if (count)
			memcpy(own, data, count * size);
		ok(zero_gather(group, ZERO_DTYPE_PARAM));
		check(!count || !memcmp(own, (char *)zero_data(training->params[p]) + first * size,
					count * size),
		      "shard of '%s'", shapes[p].name);
		ok(zero_release(group));
	}
}

static void check_reference(struct training *training, const struct reference *reference,
			    const char *what)
{
	for (size_t p = 0; p < PARAMS; p++) {
		/* A 16-bit value is its f32 master, rounded. */
		double slack = shapes[p].dtype == ZERO_BF16  ? 0x1p-8
			       : shapes[p].dtype == ZERO_F16 ? 0x1p-11
							     : 0;
		void *data;

		ok(zero_gather(training->groups[shapes[p].group], ZERO_DTYPE_PARAM));
		data = zero_data(training->params[p]);
		for (size_t i = 0; shapes[p].dtype != ZERO_I32 && i < shapes[p].count; i++) {
			double want = reference->p[p][i];
			double got = (double)widen(shapes[p].dtype, data, i);

			if (!shapes[p].trainable)
				check(got == want, "%s: frozen '%s' %zu: %g, not %g", what,
				      shapes[p].name, i, got, want);
			check(fabs(got - want) <= 1e-5 + slack * fabs(want),
			      "%s: '%s' element %zu: %.9g, not %.9g", what, shapes[p].name, i, got,
			      want);
		}
		ok(zero_release(training->groups[shapes[p].group]));
	}
}

/* Returns the bytes of all values at the end. */
static size_t train(const char *settings, const struct config *config, bool against_reference,
		    unsigned char *values, double norms[STEPS])
{
	struct reference *reference = calloc(1, sizeof(*reference));
	static unsigned char before[PARAMS * COUNT_MAX * 4];
	struct training training;
	size_t bytes = 0;

	check(reference, "no memory");
	begin(&training, settings);
	for (size_t p = 0; against_reference && p < PARAMS; p++) {
		ok(zero_gather(training.groups[shapes[p].group], ZERO_DTYPE_PARAM));
		for (size_t i = 0; i < shapes[p].count; i++)
			reference->p[p][i] =
				(double)widen(shapes[p].dtype, zero_data(training.params[p]), i);
		ok(zero_release(training.groups[shapes[p].group]));
	}
	for (int step = 0; step < STEPS; step++) {
		zero_adamw now = adamw;
		zero_step_result result = {.grad_norm = -1};
		bool finite;

		now.clip = config->clip;
		now.micro_batches = config->micro_batches;
		bytes = take_values(&training, before);
		backward(&training, config, step);
		ok(zero_step(training.job, &now, &result));
		norms[step] = result.grad_norm;
		check(result.skipped == (step == config->poisoned), "%s, %s, step %d: %d", settings,
		      config->name, step, result.skipped);
		if (step % 2)
			check_shards(&training);
		take_values(&training, values);
		check(!memcmp(before, values, bytes) == result.skipped, "%s, %s, step %d", settings,
		      config->name, step);
		if (!against_reference)
			continue;
		finite = reference_step(config, reference, step);
		check(finite == !result.skipped, "%s, step %d", config->name, step);
		check(!finite || fabs(result.grad_norm - reference->norm) <= 1e-6 * reference->norm,
		      "%s, step %d: %.9g, not %.9g", config->name, step, result.grad_norm,
		      reference->norm);
		check_reference(&training, reference, config->name);
	}
	ok(zero_close(training.job));
	free(reference);
	return bytes;
}

static void compare(const char *settings, const struct config *config, const unsigned char *want,
		    const double *norms)
{
	static unsigned char got[PARAMS * COUNT_MAX * 4];
	double got_norms[STEPS];
	size_t bytes = train(settings, config, false, got, got_norms);

	for (int step = 0; step < STEPS; step++)
		check(!memcmp(&got_norms[step], &norms[step], sizeof(double)) ||
			      (isnan(norms[step]) && isnan(got_norms[step])),
		      "%s, %s: norm of step %d is %a, not %a", settings, config->name, step,
		      got_norms[step], norms[step]);
	for (size_t i = 0; i < bytes; i++)
		check(got[i] == want[i], "%s, %s: byte %zu of %zu", settings, config->name, i,
		      bytes);
}

static bool offers(const char *isa)
{
	char settings[32];
	zero_options options = {.settings = settings};
	zero_status status;
	zero_job *job;

	snprintf(settings, sizeof(settings), "isa=%s", isa);
	status = zero_open(&options, &job);
	if (!status)
		ok(zero_close(job));
	else
		fails(status, ZERO_E_UNSUPPORTED, isa);
	return !status;
}

/* The norm of a gradient of one element is its sum, which depends on the order of the fold. */
static void fold_order(int stage)
{
	zero_job *job = open_job("stage=%d", stage);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 1000, true);

	ok(zero_layout(job));
	for (int round = 0; round < 40; round++) {
		size_t at = (size_t)round * 25;
		zero_step_result result;
		float total = 0;

		for (int part = 0; part < 2; part++) {
			float sum = 0, *sums = zero_gradient(param);

			check(sums, "%s", zero_last_error());
			for (int from = 0; from < world; from++) {
				uint64_t bits = mixed(
					seed + mixed((uint64_t)(round * 32 + from * 2 + part)));
				float mine = ldexpf(signed_unit(bits), (int)(bits % 12));

				sum = from ? sum + mine : mine;
				if (from == rank)
					sums[at] = mine;
			}
			total = part ? total + sum : sum;
			ok(zero_reduce(group));
		}
		ok(zero_step(job, &adamw, &result));
		check(result.grad_norm == fabs((double)total) * (1 / (double)world),
		      "stage %d, round %d: %a, not %a", stage, round, result.grad_norm * world,
		      fabs((double)total));
	}
	ok(zero_close(job));
}

/* ---- losses of a model that learns ----------------------------------------------------------- */

enum { LEARNERS = 3, LEARNER_MAX = 5001 };

static const struct {
	zero_dtype dtype;
	size_t count;
} learners[LEARNERS] = {{ZERO_F32, LEARNER_MAX}, {ZERO_BF16, 301}, {ZERO_F32, 777}};

struct learning {
	zero_job *job;
	zero_group *groups[LEARNERS];
	zero_param *params[LEARNERS];
	uint64_t hash; /* of the bits of all losses and values */
};

static void take_bits(struct learning *learning, const void *data, size_t bytes)
{
	const unsigned char *at = data;

	for (size_t i = 0; i < bytes; i++)
		learning->hash = (learning->hash ^ at[i]) * UINT64_C(0x100000001b3);
}

/* Computes the loss and its gradient from the gathered values. The loss is half the squared
   distance to this rank's target. */
static double learn_from(struct learning *learning, size_t p, zero_dtype as, int step)
{
	zero_dtype type = as == ZERO_DTYPE_PARAM ? learners[p].dtype : as;
	const void *data = zero_data(learning->params[p]);
	float *sums = zero_gradient(learning->params[p]);
	double loss = 0;

	check(data && sums, "%s", zero_last_error());
	for (size_t i = 0; i < learners[p].count; i++) {
		uint64_t at = ((uint64_t)step * WORLD_MAX + (uint64_t)rank) * LEARNERS + p;
		float target = 3 * signed_unit(mixed(seed + mixed(at * LEARNER_MAX + i)));
		float distance = widen(type, data, i) - target;

		sums[i] += distance;
		loss += 0.5 * (double)distance * (double)distance;
	}
	return loss;
}

static double learn_step(struct learning *learning, zero_dtype as, int step)
{
	zero_adamw now = adamw;
	zero_step_result result;
	double loss = 0;

	now.clip = 0.5F;
	ok(zero_prefetch(learning->groups, LEARNERS, as));
	for (size_t p = 0; p < LEARNERS; p++) {
		ok(zero_gather(learning->groups[p], as));
		loss += learn_from(learning, p, as, step);
		ok(zero_reduce(learning->groups[p]));
		ok(zero_release(learning->groups[p]));
	}
	ok(zero_mean(learning->job, &loss, 1, 1));
	ok(zero_step(learning->job, &now, &result));
	take_bits(learning, &loss, sizeof(loss));
	take_bits(learning, &result.grad_norm, sizeof(result.grad_norm));
	return loss;
}

static uint64_t learn(const char *settings, zero_dtype as)
{
	struct learning learning = {.job = open_job("%s", settings)};
	double first = 0, loss = 0;

	for (size_t p = 0; p < LEARNERS; p++) {
		char name[8];

		snprintf(name, sizeof(name), "%zu", p);
		learning.groups[p] = new_group(learning.job, name);
		learning.params[p] = new_param(learning.groups[p], name, learners[p].dtype,
					       learners[p].count, true);
	}
	ok(zero_layout(learning.job));
	for (size_t p = 0; p < LEARNERS; p++) {
		zero_source source = zero_from_normal(2, 1, seed);

		ok(zero_load(learning.params[p], &source));
	}
	for (int step = 0; step < 2 * STEPS; step++) {
		loss = learn_step(&learning, as, step);
		first = step ? first : loss;
	}
	check(loss < first, "%s: the loss was %g and is %g", settings, first, loss);
	for (size_t p = 0; p < LEARNERS; p++) {
		ok(zero_gather(learning.groups[p], ZERO_DTYPE_PARAM));
		take_bits(&learning, zero_data(learning.params[p]),
			  learners[p].count * zero_dtype_size(learners[p].dtype));
		ok(zero_release(learning.groups[p]));
	}
	ok(zero_close(learning.job));
	return learning.hash;
}

/* Losses are the same at every stage. run.sh compares the line that this prints between worlds of N
   ranks that share memory in different ways. */
static void same_losses(zero_dtype as)
{
	static const char *const shares[] = {"", " share=1", " share=2", " isa=scalar"};
	uint64_t want = learn("stage=0", as), got;
	char settings[64];

	for (int stage = 0; stage <= 3; stage++)
		for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++) {
			snprintf(settings, sizeof(settings), "stage=%d%s", stage, shares[i]);
			got = learn(settings, as);
			check(got == want, "%s: other losses as %s", settings, zero_dtype_name(as));
		}
	if (rank == 0)
		printf("world %d same losses as %s: %016llx\n", world, zero_dtype_name(as),
		       (unsigned long long)want);
}

int main(void)
{
	static const char *const others[] = {
		"stage=1 allgather=grouped",
		"stage=2 allgather=grouped",
		"stage=3 allgather=grouped",
		"stage=3 allgather=auto",
		"stage=3 allgather=grouped isa=scalar",
		"stage=1 allgather=grouped isa=avx2",
		"stage=0 allgather=grouped isa=avx512",
		"stage=0 allgather=grouped share=1",
		"stage=1 allgather=grouped share=2",
		"stage=2 allgather=grouped share=1",
		"stage=3 allgather=grouped share=2",
		"stage=3 allgather=grouped share=1",
	};
	static unsigned char want[PARAMS * COUNT_MAX * 4];
	double norms[STEPS];
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	seed = test_seed();
	check(world <= WORLD_MAX, "%d", world);
	ok(zero_close(job));
	for (int stage = 0; stage <= 3; stage++)
		fold_order(stage);
	same_losses(ZERO_DTYPE_PARAM);
	same_losses(ZERO_BF16);
	for (size_t c = 0; c < sizeof(configs) / sizeof(configs[0]); c++) {
		train("stage=0 allgather=grouped", &configs[c], true, want, norms);
		for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
			const char *isa = strstr(others[i], "isa=");

			if (!isa || offers(isa + 4))
				compare(others[i], &configs[c], want, norms);
		}
		/* With allgather=single each parameter has a norm of its own. Bits are again the
		   same at all stages. */
		train("stage=3 allgather=single", &configs[c], true, want, norms);
		compare("stage=0 allgather=single", &configs[c], want, norms);
		compare("stage=2 allgather=single", &configs[c], want, norms);
	}
	return 0;
}

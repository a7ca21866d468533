/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps of some of the groups, by means that the program made, with factors that change; and groups
 * that are laid out later.
 */
#include <math.h>

#include "ranks.h"

static int world, rank, last;

enum { COUNT = 3000 };

static const char *const stages[] = {"stage=0", "stage=1", "stage=2 share=1", "stage=3"};

static size_t optimizer_bytes(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.optimizer.now;
}

/* Sets all elements of this rank's gradient. */
static void give(zero_param *param, float value)
{
	float *gradient = zero_gradient(param);

	check(gradient, "%s", zero_last_error());
	for (size_t i = 0; i < zero_param_numel(param); i++)
		gradient[i] = value;
}

/* All elements of a parameter are this. */
static void expect(zero_param *param, double want)
{
	const float *values;

	ok(zero_gather(zero_param_group(param), ZERO_DTYPE_PARAM));
	values = zero_data(param);
	for (size_t i = 0; i < zero_param_numel(param); i++)
		check(fabs((double)values[i] - want) < 1e-6, "element %zu of '%s' is %g, not %g", i,
		      zero_param_name(param), (double)values[i], want);
	ok(zero_release(zero_param_group(param)));
}

static double first_value(zero_param *param)
{
	double value;

	ok(zero_gather(zero_param_group(param), ZERO_DTYPE_PARAM));
	value = (double)*(const float *)zero_data(param);
	ok(zero_release(zero_param_group(param)));
	return value;
}

/* ---- means ----------------------------------------------------------------------------------- */

/* Sums are stepped by as they are, but for the loss scale. */
static void means(const char *settings)
{
	zero_job *job = open_job("%s", settings);
	zero_param *param = new_param(new_group(job, "g"), "p", ZERO_F32, COUNT, true);
	zero_loss_scale scale = {
		.scale = 4, .growth = 1, .backoff = 1, .min = 1, .max = 8, .interval = 9};
	zero_adamw adamw = {.lr = 1, .eps = 1, .gradients_are_means = true, .loss_scale = &scale};
	double sum = world / 4.0;
	zero_step_result result;

	ok(zero_layout(job));
	give(param, 1);
	ok(zero_step(job, &adamw, &result));
	check(fabs(result.grad_norm - sum * sqrt(COUNT)) < 1e-6, "%g", result.grad_norm);
	expect(param, -sum / (sum + 1));
	adamw.loss_scale = NULL;
	if (rank == last)
		adamw.samples = 1;
	fails(zero_step(job, &adamw, NULL), ZERO_E_INVALID, "means are not divided");
	adamw.samples = 0;
	adamw.micro_batches = 2;
	fails(zero_step(job, &adamw, NULL), ZERO_E_INVALID, "means are not divided");
	adamw.micro_batches = 1;
	adamw.gradients_are_means = rank != last;
	if (world > 1)
		fails(zero_step(job, &adamw, NULL), ZERO_E_ORDER, "of means");
	ok(zero_close(job));
}

/* ---- the program steps ----------------------------------------------------------------------- */

/* A forecast counts no states, unless zero_step makes them. */
static void program_steps(void)
{
	const uint64_t flat = 12 << 16, ranks = (uint64_t)world;
	uint64_t need = flat + (world > 1 ? flat : 0) + flat / ranks;
	zero_memory memory;
	zero_job *job = open_job("stage=2 share=1");

	ok(zero_memory_now(job, &memory));
	/* values, own gradients and sums, and the values once more while they are flattened; with a
	   GPU the state of the group's steps */
	need += memory.staging.now + flat + (on_gpu() ? 4096 : 0);
	ok(zero_close(job));
	for (int own = 0; own < 2; own++) {
		char settings[128];
		zero_options options = {.settings = settings, .program_steps = own};

		snprintf(settings, sizeof(settings), "stage=2 share=1 budget=%llu",
			 (unsigned long long)need);
		ok(zero_open(&options, &job));
		new_param(new_group(job, "g"), "p", ZERO_F32, flat / sizeof(float), true);
		ok(zero_layout(job));
		check((strcmp(zero_setting(job, "flatten"), "device") == 0) == own, "%s",
		      zero_setting(job, "flatten"));
		check(!optimizer_bytes(job), "%zu bytes of states", optimizer_bytes(job));
		ok(zero_step(job, &(zero_adamw){.lr = 1, .eps = 1}, NULL));
		check(optimizer_bytes(job) == 2 * flat / ranks, "%zu bytes of states",
		      optimizer_bytes(job));
		ok(zero_close(job));
	}
	if (world == 1)
		return;
	ok(zero_open(&(zero_options){.program_steps = rank == last}, &job));
	fails(zero_layout(job), ZERO_E_ORDER, "model");
	ok(zero_close(job));
}

/* ---- some groups ----------------------------------------------------------------------------- */

/* With the same gradient in each step, a step of AdamW moves by lr, if its corrections are
   right. */
static const zero_adamw unit = {.lr = 0.25F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-12F};

struct model {
	zero_job *job;
	zero_group *groups[3];
	zero_param *params[3];
};

/* Three groups of one parameter each. */
static struct model begin(const char *settings)
{
	struct model m = {.job = open_job("%s", settings)};

	for (int g = 0; g < 3; g++) {
		m.groups[g] = new_group(m.job, (const char *[]){"a", "b", "c"}[g]);
		m.params[g] = new_param(m.groups[g], (const char *[]){"p", "q", "r"}[g], ZERO_F32,
					COUNT, true);
	}
	ok(zero_layout(m.job));
	return m;
}

/* How many steps each parameter has moved by. */
static void expect_steps(const struct model *m, int a, int b, int c)
{
	const int steps[] = {a, b, c};

	for (int g = 0; g < 3; g++)
		expect(m->params[g], steps[g] * -(double)unit.lr);
}

/* The groups that are not stepped keep gradients and sums, and may be gathered; states and counts
   are each group's own. */
static void some_groups(const char *settings)
{
	struct model m = begin(settings);
	zero_group *backwards[] = {m.groups[2], m.groups[0]};
	zero_step_result result;
	size_t states;

	give(m.params[0], 1);
	give(m.params[1], 1);
	ok(zero_reduce(m.groups[1]));
	ok(zero_gather(m.groups[1], ZERO_DTYPE_PARAM));
	ok(zero_step_groups(m.job, m.groups, 1, &unit, &result));
	ok(zero_release(m.groups[1]));
	check(fabs(result.grad_norm - sqrt(COUNT)) < 1e-3, "%g", result.grad_norm);
	expect_steps(&m, 1, 0, 0);
	states = optimizer_bytes(m.job);
	/* what was given before, and reduced, is stepped now; its count is 1 */
	ok(zero_step_groups(m.job, m.groups + 1, 1, &unit, &result));
	check(fabs(result.grad_norm - sqrt(COUNT)) < 1e-3, "%g", result.grad_norm);
	expect_steps(&m, 1, 1, 0);
	check(optimizer_bytes(m.job) == 2 * states, "%zu bytes of states, after %zu of a group",
	      optimizer_bytes(m.job), states);
	for (int g = 0; g < 3; g++)
		give(m.params[g], 1);
	ok(zero_step_groups(m.job, backwards, 2, &unit, NULL));
	expect_steps(&m, 2, 1, 1);
	ok(zero_step(m.job, &unit, NULL));
	expect(m.params[1], -2 * (double)unit.lr);
	/* none of them is stepped by a call that fails */
	fails(zero_step_groups(m.job, (zero_group *[]){m.groups[0], m.groups[1], m.groups[0]}, 3,
			       &unit, NULL),
	      ZERO_E_INVALID, "group 'a' is twice in a step");
	ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
	fails(zero_step_groups(m.job, m.groups, 2, &unit, NULL), ZERO_E_STATE, "is gathered");
	ok(zero_release(m.groups[0]));
	expect(m.params[1], -2 * (double)unit.lr);
	if (world > 1)
		fails(zero_step_groups(m.job, rank == last ? backwards : m.groups, 1, &unit, NULL),
		      ZERO_E_ORDER, "");
	ok(zero_close(m.job));
}

/* ---- factors --------------------------------------------------------------------------------- */

static void factors(const char *settings)
{
	struct model m = begin(settings);
	zero_step_result result;
	zero_adamw adamw = unit;

	fails(zero_param_set_lr_scale(m.params[0], -1), ZERO_E_INVALID, "must be finite and >= 0");
	fails(zero_param_set_weight_decay_scale(m.params[0], NAN), ZERO_E_INVALID, "weight decay");
	ok(zero_param_set_lr_scale(m.params[0], 2));
	ok(zero_param_set_lr_scale(m.params[1], 0));
	for (int g = 0; g < 3; g++)
		give(m.params[g], 1);
	ok(zero_step(m.job, &unit, NULL));
	expect_steps(&m, 2, 0, 1);
	ok(zero_param_set_lr_scale(m.params[0], 1));
	ok(zero_param_set_lr_scale(m.params[1], 1));
	ok(zero_param_set_weight_decay_scale(m.params[2], 2));
	adamw.weight_decay = 0.5F;
	for (int g = 0; g < 3; g++)
		give(m.params[g], 1);
	ok(zero_step(m.job, &adamw, &result));
	expect(m.params[0], -0.25 + (1 - 0.25 * 0.5) * -0.5);
	expect(m.params[1], -0.25);
	expect(m.params[2], -0.25 + (1 - 0.25 * 0.5 * 2) * -0.25);
	if (rank == last)
		ok(zero_param_set_lr_scale(m.params[0], 3));
	if (world > 1)
		fails(zero_step(m.job, &unit, NULL), ZERO_E_ORDER, "over 3 groups");
	ok(zero_close(m.job));
}

/* A frozen parameter keeps its value and its moments, and its gradient counts as nothing. */
static void frozen(const char *settings)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param *free = new_param(group, "p", ZERO_F32, COUNT, true);
	zero_param *held = new_param(group, "q", ZERO_F32, COUNT, true);
	zero_param *never = new_param(group, "r", ZERO_F32, COUNT, false);
	zero_step_result result;
	double moved;

	fails(zero_param_set_trainable(held, false), ZERO_E_STATE, "must be laid out");
	ok(zero_layout(job));
	fails(zero_param_set_trainable(never, true), ZERO_E_STATE, "cannot be trained");
	ok(zero_param_set_trainable(never, false));
	ok(zero_param_set_trainable(held, false));
	give(free, 1);
	give(held, INFINITY);
	ok(zero_step(job, &unit, &result));
	check(!result.skipped && fabs(result.grad_norm - sqrt(COUNT)) < 1e-3, "%g",
	      result.grad_norm);
	expect(free, -0.25);
	expect(held, 0);
	/* frozen after the reduce */
	ok(zero_param_set_trainable(held, true));
	give(free, 1);
	give(held, 1);
	ok(zero_reduce(group));
	ok(zero_param_set_trainable(held, false));
	ok(zero_step(job, &unit, &result));
	check(fabs(result.grad_norm - sqrt(COUNT)) < 1e-3, "%g", result.grad_norm);
	expect(free, -0.5);
	expect(held, 0);
	/* a group of frozen parameters is not stepped, and its count stands still at 2 */
	ok(zero_param_set_trainable(free, false));
	give(free, 1000);
	for (int i = 0; i < 5; i++)
		ok(zero_step(job, &unit, &result));
	check(!result.skipped && !result.grad_norm, "%g", result.grad_norm);
	ok(zero_param_set_trainable(free, true));
	check(!*zero_gradient(free), "a gradient of before the thaw");
	give(free, 1);
	ok(zero_step(job, &unit, &result));
	check(fabs(result.grad_norm - sqrt(COUNT)) < 1e-3, "%g", result.grad_norm);
	expect(free, -0.75);
	/* its moments do not move it on */
	ok(zero_param_set_trainable(held, true));
	give(held, 1);
	ok(zero_step(job, &unit, NULL));
	moved = first_value(held);
	check(moved < -0.01, "%g", moved);
	ok(zero_param_set_trainable(held, false));
	give(free, 1);
	ok(zero_step(job, &unit, NULL));
	expect(held, moved);
	ok(zero_close(job));
}

/* ---- groups that are laid out later ---------------------------------------------------------- */

static void laid_out_later(const char *settings)
{
	zero_job *job = open_job("%s", settings);
	zero_group *early = new_group(job, "early"), *late;
	zero_param *p = new_param(early, "p", ZERO_F32, COUNT, true), *q;
	const zero_param_spec spec = {.name = "r", .dtype = ZERO_F32};
	float adopted[COUNT];
	const zero_adopt_spec given = {.data = adopted};
	/* At stage 3 no tensor is adopted. */
	double begun = strstr(settings, "stage=3") ? 0 : 2;
	void *before, *after;
	zero_param *refused;
	size_t first, count;

	ok(zero_layout(job));
	give(p, 1);
	ok(zero_step(job, &unit, NULL));
	ok(zero_shard(p, &before, &first, &count));
	late = new_group(job, "late");
	q = new_param(late, "q", ZERO_F32, COUNT, true);
	for (size_t i = 0; i < COUNT; i++)
		adopted[i] = 2;
	if (begun > 0)
		ok(zero_adopt(q, &given));
	fails(zero_param_new(early, &spec, &refused), ZERO_E_STATE, "lays out group 'early'");
	fails(zero_gather(late, ZERO_DTYPE_PARAM), ZERO_E_STATE, "before zero_layout");
	fails(zero_step_groups(job, &late, 1, &unit, NULL), ZERO_E_STATE, "before zero_layout");
	check(!zero_gradient(q), "a gradient without a layout");
	/* all groups are those that are laid out */
	give(p, 1);
	ok(zero_step(job, &unit, NULL));
	/* and such a group may be in use */
	ok(zero_gather(early, ZERO_DTYPE_PARAM));
	ok(zero_layout(job));
	ok(zero_release(early));
	ok(zero_shard(p, &after, &first, &count));
	check(before == after, "the shard has moved");
	expect(p, -0.5);
	expect(q, begun);
	give(p, 1);
	give(q, 1);
	ok(zero_step(job, &unit, NULL));
	expect(p, -0.75);
	expect(q, begun - 0.25);
	ok(zero_layout(job));
	if (rank == last)
		new_group(job, "of one rank");
	if (world > 1)
		fails(zero_layout(job), ZERO_E_ORDER, "layout of ");
	ok(zero_close(job));
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* The counts of groups, and that one has no states. */
static void saved(int stage)
{
	struct model m = begin(stages[stage]);
	const char *folder = file_path("steps");
	zero_status status;
	zero_group *both;
	zero_job *job;

	for (int i = 0; i < 3; i++) {
		give(m.params[0], 1);
		give(m.params[1], 1);
		ok(zero_step_groups(m.job, m.groups, i == 1 ? 2 : 1, &unit, NULL));
	}
	status = zero_save(m.job, folder, &(zero_save_options){.keep_last = 1});
	ok(zero_close(m.job));
	if (status == ZERO_E_UNSUPPORTED)
		return;
	check(!status, "%s", zero_last_error());
	m = begin(stages[3 - stage]);
	/* what the checkpoint has no states of begins anew */
	for (int g = 0; g < 3; g++)
		give(m.params[g], 1);
	ok(zero_step(m.job, &unit, NULL));
	ok(zero_restore(m.job, folder, NULL));
	expect_steps(&m, 3, 1, 0);
	for (int g = 0; g < 3; g++)
		give(m.params[g], 1);
	ok(zero_step(m.job, &unit, NULL));
	expect_steps(&m, 4, 2, 1);
	ok(zero_close(m.job));
	job = open_job("%s", stages[stage]);
	both = new_group(job, "both");
	for (int g = 0; g < 3; g++)
		new_param(both, (const char *[]){"p", "q", "r"}[g], ZERO_F32, COUNT, true);
	ok(zero_layout(job));
	fails(zero_restore(job, folder, NULL), ZERO_E_FORMAT, "put them into groups of their own");
	ok(zero_close(job));
}

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	for (int stage = 0; stage <= 3; stage++) {
		means(stages[stage]);
		some_groups(stages[stage]);
		factors(stages[stage]);
		frozen(stages[stage]);
		laid_out_later(stages[stage]);
		saved(stage);
	}
	some_groups("stage=3 offload=optimizer");
	frozen("stage=3 offload=optimizer");
	program_steps();
	return 0;
}

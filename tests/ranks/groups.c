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
	/* values, own gradients and sums, and the values once more while they are flattened */
	need += memory.staging.now + flat;
	ok(zero_close(job));
	for (int own = 0; own < 2; own++) {
		char settings[128];
		zero_options options = {.settings = settings, .program_steps = own};

		snprintf(settings, sizeof(settings), "stage=2 share=1 budget=%llu",
			 (unsigned long long)need);
		ok(zero_open(&options, &job));
		new_param(new_group(job, "g"), "p", ZERO_F32, flat / sizeof(float), true);
		ok(zero_layout(job));
		check(!strcmp(zero_setting(job, "flatten"), "device") == own, "%s",
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

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	for (int stage = 0; stage <= 3; stage++)
		means(stages[stage]);
	program_steps();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_view right after a step returns the values that all ranks stepped, without a gather, and so
 * does zero_shard where each rank stores all. At stages 1 and 2 the ranks of a node write to one
 * buffer, and ranks of several nodes send their values.
 */
#include "ranks.h"

enum { COUNT = (1 << 20) + 7, STEPS = 12 };

/* All elements have the same history, so an element that was not stepped differs. */
static void check_view(zero_param *param, int stage, int step)
{
	size_t first, count = 0;
	void *shard = NULL;
	const float *view;

	if (step % 2)
		ok(zero_shard(param, &shard, &first, &count));
	view = count == COUNT ? shard : zero_view(param);
	check(view, "%s", zero_last_error());
	check(view[0] < 1 - 0.005F * (float)step, "stage %d, step %d: %g", stage, step,
	      (double)view[0]);
	for (size_t i = 1; i < COUNT; i++)
		check(view[i] == view[0], "stage %d, step %d: element %zu is %g, the first is %g",
		      stage, step, i, (double)view[i], (double)view[0]);
}

static void train(int stage)
{
	zero_adamw adamw = {.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_source ones = zero_from_constant(1);
	zero_job *job = open_job("stage=%d", stage);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, COUNT, true);
	float *gradient;

	ok(zero_layout(job));
	ok(zero_load(param, &ones));
	for (int step = 1; step <= STEPS; step++) {
		gradient = zero_gradient(param);
		check(gradient, "%s", zero_last_error());
		for (size_t i = 0; i < COUNT; i++)
			gradient[i] = 1;
		ok(zero_step(job, &adamw, NULL));
		check_view(param, stage, step);
	}
	ok(zero_close(job));
}

int main(void)
{
	for (int stage = 0; stage < 3; stage++)
		train(stage);
	return 0;
}

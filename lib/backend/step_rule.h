/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step does with the norm, on the host and on a device alike: the same operations in the
 * same order, each rounded once, so that both have the same bits. The device keeps the result in
 * its own memory, and nothing asks the host.
 */
#ifndef ZERO_STEP_RULE_H
#define ZERO_STEP_RULE_H

#include <math.h>

#include "backend.h"

#ifdef __CUDACC__
#define ZERO_STEP_INLINE static __host__ __device__ inline
#else
#define ZERO_STEP_INLINE static inline
#endif

/* beta^steps in f64 by squaring, since libm's pow differs in the last bit between machines. */
ZERO_STEP_INLINE double zero_step_power(double beta, uint64_t steps)
{
	double result = 1;

	for (; steps; steps >>= 1, beta *= beta)
		if (steps & 1)
			result *= beta;
	return result;
}

/* The loss scale after a step, or after one that was skipped because the norm was not finite. */
ZERO_STEP_INLINE void zero_step_update_loss_scale(zero_loss_scale *scale, bool finite)
{
	if (!finite) {
		scale->scale *= scale->backoff;
		if (scale->scale < scale->min)
			scale->scale = scale->min;
		scale->good_steps = 0;
		return;
	}
	scale->good_steps += scale->good_steps < UINT32_MAX;
	if (!scale->interval || scale->good_steps < scale->interval)
		return;
	scale->scale *= scale->growth;
	/* Also if it became infinite. */
	if (scale->scale > scale->max)
		scale->scale = scale->max;
	scale->good_steps = 0;
}

/* All ranks have the same norms in the same order, and so the same result. */
ZERO_STEP_INLINE void zero_step_rule_apply(const struct zero_step_rule *rule)
{
	struct zero_step_state *state = rule->state;
	/* The loss scale is applied last: a power of two then leaves the other bits as they are. */
	const double mean =
		rule->scaled ? rule->mean / (double)state->loss_scale.scale : rule->mean;
	double sum = 0, clip = 1;
	bool finite;

	for (int rank = 0; rank < rule->world; rank++)
		sum += rule->norms[rank];
	state->norm = sqrt(sum) * mean;
	finite = state->norm - state->norm == 0;
	if (finite && rule->clip > 0 && state->norm > (double)rule->clip)
		clip = (double)rule->clip / state->norm;
	if (finite) {
		state->steps++;
		state->scale = (float)(clip * mean);
	}
	state->skipped = !finite;
	if (rule->scaled)
		zero_step_update_loss_scale(&state->loss_scale, finite);
}

/* The state of one group in a step of the job: how often the group itself was stepped gives the
   corrections. */
ZERO_STEP_INLINE void zero_group_rule_apply(const struct zero_group_rule *rule,
					    struct zero_step_state *group)
{
	group->skipped = rule->state->skipped;
	if (group->skipped)
		return;
	group->steps++;
	group->scale = rule->state->scale;
	group->correction1 = (float)(1 / (1 - zero_step_power((double)rule->beta1, group->steps)));
	group->correction2 = (float)(1 / (1 - zero_step_power((double)rule->beta2, group->steps)));
}

/* The arguments of a kernel, with the state's scale and corrections. */
ZERO_STEP_INLINE struct zero_adamw_args zero_adamw_args_of_step(const struct zero_adamw_args *args,
								const struct zero_step_state *state)
{
	struct zero_adamw_args of_step = *args;

	of_step.scale = state->scale;
	of_step.correction1 = state->correction1;
	of_step.correction2 = state->correction2;
	return of_step;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step leaves where the device reads it: how many steps were taken, of the job and of each
 * group, by which factor gradients are multiplied, whether the step is skipped. The host reads it
 * only where it is asked for.
 */
#include <stdlib.h>

#include "train.h"

/* On the host the device's memory is the host's, and what is read is what is there. */
zero_status zero_step_state_alloc(zero_job *job)
{
	struct zero_trainer *trainer = job->trainer;
	size_t bytes = zero_step_state_bytes((size_t)job->place.world);
	zero_status status = ZERO_OK;
	void *state = NULL, *seen = NULL;

	if (job->ops->host_memory) {
		seen = state = calloc(1, bytes);
		if (!state)
			status = zero_fail(ZERO_E_MEMORY, "no memory for the norms of %d ranks",
					   job->place.world);
	} else {
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING, bytes, true, &state);
		if (!status)
			status = job->ops->alloc(job->backend, ZERO_MEM_PINNED,
						 sizeof(*trainer->seen), true, &seen);
	}
	trainer->state = state;
	trainer->seen = seen;
	if (!status)
		trainer->norms = (double *)(void *)(trainer->state + 1);
	return status;
}

void zero_step_state_free(zero_job *job)
{
	struct zero_trainer *trainer = job->trainer;

	if (trainer->seen == trainer->state) {
		free(trainer->state);
	} else {
		job->ops->free(job->backend, trainer->state);
		job->ops->free(job->backend, trainer->seen);
	}
	trainer->state = trainer->seen = NULL;
}

zero_status zero_step_state_read(zero_job *job)
{
	struct zero_trainer *trainer = job->trainer;
	zero_status status;

	if (trainer->seen != trainer->state)
		job->ops->copy(job->backend, trainer->seen, trainer->state,
			       sizeof(*trainer->state));
	status = zero_device_sync(job);
	if (!status)
		trainer->steps = trainer->seen->steps;
	return status;
}

void zero_steps_set(zero_job *job, uint64_t steps)
{
	job->trainer->steps = job->trainer->begun = steps;
	job->ops->copy(job->backend, &job->trainer->state->steps, &job->trainer->steps,
		       sizeof(steps));
}

zero_status zero_group_steps_read(zero_job *job)
{
	for (size_t g = 0; g < job->model->group_count; g++)
		job->ops->copy(job->backend, &job->model->groups[g]->steps,
			       &job->model->groups[g]->step_state->steps, sizeof(uint64_t));
	return zero_device_sync(job);
}

void zero_group_steps_set(zero_group *group, uint64_t steps)
{
	zero_job *job = group->job;

	group->steps = steps;
	job->ops->copy(job->backend, &group->step_state->steps, &group->steps, sizeof(steps));
}

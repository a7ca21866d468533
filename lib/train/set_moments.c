/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments and the number of steps that another program has made, as of a checkpoint that is not the
 * library's.
 */
#include <string.h>

#include "load/load.h"
#include "train.h"

static zero_status check(const zero_param *param, size_t first, size_t count)
{
	if (!param->flat)
		return zero_fail(ZERO_E_STATE,
				 "zero_set_moments of parameter '%s': zero_layout has not been "
				 "called",
				 param->name);
	if (!param->trainable || zero_param_moments(param) != ZERO_MOMENTS_F32)
		return zero_fail(ZERO_E_STATE,
				 "zero_set_moments of parameter '%s': it has no f32 moments of "
				 "AdamW, being %s",
				 param->name,
				 !param->trainable ? "frozen"
				 : param->muon     ? "stepped by Muon"
						   : "of the setting states=8bit");
	if (first > param->count || count > param->count - first)
		return zero_fail(ZERO_E_INVALID,
				 "zero_set_moments of parameter '%s' has the elements [%zu, %zu); "
				 "there are %zu",
				 param->name, first, first + count, param->count);
	return zero_require_state(param->group->job, ZERO_IDLE, "zero_set_moments");
}

static zero_status copy_piece(void *context, void *data, size_t at, size_t bytes)
{
	memcpy(data, (const char *)context + at, bytes);
	return ZERO_OK;
}

static zero_status copy(zero_job *job, float *to, const float *from, size_t count)
{
	if (!job->ops->host_memory && !zero_states_staged(job))
		return zero_staging_in(job, to, count * sizeof(float), copy_piece, (void *)from);
	memcpy(to, from, count * sizeof(float));
	return ZERO_OK;
}

zero_status zero_set_moments(zero_param *param, size_t first, size_t count, const float *exp_avg,
			     const float *exp_avg_sq)
{
	zero_job *job = param->group->job;
	size_t segment_first, segment_count, own_first, own_count, end = first + count;
	zero_status status = check(param, first, count), synced;

	if (!status)
		status = zero_states_alloc(param->group);
	if (status)
		return status;
	zero_stepped_part(param->group, &param->flat->segments[param->segment], &segment_first,
			  &segment_count);
	zero_param_part(param, segment_first, segment_count, &own_first, &own_count);
	if (first > own_first) {
		own_count -= own_count < first - own_first ? own_count : first - own_first;
		own_first = first;
	}
	if (own_first >= end || !own_count)
		return ZERO_OK;
	own_count = own_count < end - own_first ? own_count : end - own_first;
	zero_hooks_before_change(job, param->group, true);
	status = copy(job, zero_param_state_at(param, ZERO_SAVED_EXP_AVG, own_first),
		      exp_avg + (own_first - first), own_count);
	if (!status)
		status = copy(job, zero_param_state_at(param, ZERO_SAVED_EXP_AVG_SQ, own_first),
			      exp_avg_sq + (own_first - first), own_count);
	synced = zero_device_sync(job);
	return status ? status : synced;
}

static zero_status check_groups(const zero_job *job, zero_group **groups, size_t count)
{
	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_set_steps must be called after zero_layout");
	for (size_t g = 0; g < count; g++)
		if (!groups[g]->trainable)
			return zero_fail(ZERO_E_INVALID,
					 "zero_set_steps of group '%s', which is frozen",
					 groups[g]->name);
	return zero_require_state(job, ZERO_IDLE, "zero_set_steps");
}

zero_status zero_set_steps(zero_job *job, zero_group **groups, size_t count, uint64_t steps)
{
	zero_status status = check_groups(job, groups, count);

	for (size_t g = 0; !status && steps && g < count; g++)
		status = zero_states_alloc(groups[g]);
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM,
				  "zero_set_steps of %zu groups to %llu", count,
				  (unsigned long long)steps);
	if (status)
		return status;
	for (size_t g = 0; g < count; g++) {
		zero_hooks_before_change(job, groups[g], true);
		zero_group_steps_set(groups[g], steps);
		if (!steps)
			zero_states_free(groups[g], false);
	}
	zero_steps_set(job, steps);
	return ZERO_OK;
}

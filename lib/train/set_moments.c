/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The moments of AdamW for the program to see and to change, and the number of steps: of a
 * checkpoint that is not the library's.
 */
#include <string.h>

#include "load/load.h"
#include "train.h"

static zero_status check(const char *function, const zero_param *param, size_t first, size_t count)
{
	if (!param->flat)
		return zero_fail(ZERO_E_STATE,
				 "%s of parameter '%s': zero_layout has not been called", function,
				 param->name);
	if (!param->trainable || zero_param_moments(param) != ZERO_MOMENTS_F32)
		return zero_fail(ZERO_E_STATE,
				 "%s of parameter '%s': it has no f32 moments of AdamW, being %s",
				 function, param->name,
				 !param->trainable ? "frozen"
				 : param->muon     ? "stepped by Muon"
						   : "of the setting states=8bit");
	if (first > param->count || count > param->count - first)
		return zero_fail(ZERO_E_INVALID,
				 "%s of parameter '%s' has the elements [%zu, %zu); there are %zu",
				 function, param->name, first, first + count, param->count);
	return zero_require_state(param->group->job, ZERO_IDLE, function);
}

/* Of the elements [*first, *first + *count) those that this rank steps, whose moments are there
   then. */
static zero_status own_part(const char *function, zero_param *param, size_t *first, size_t *count)
{
	size_t segment_first, segment_count, own_first, own_count, end = *first + *count, own_end;
	zero_status status = check(function, param, *first, *count);

	if (!status)
		status = zero_states_alloc(param->group);
	if (status)
		return status;
	zero_stepped_part(param->group, &param->flat->segments[param->segment], &segment_first,
			  &segment_count);
	zero_param_part(param, segment_first, segment_count, &own_first, &own_count);
	own_end = own_first + own_count;
	*first = *first > own_first ? *first : own_first;
	end = end < own_end ? end : own_end;
	*count = *first < end ? end - *first : 0;
	return ZERO_OK;
}

static bool on_device(const zero_job *job)
{
	return !job->ops->host_memory && !zero_states_staged(job);
}

static zero_status fill_piece(void *context, void *data, size_t at, size_t bytes)
{
	memcpy(data, (const char *)context + at, bytes);
	return ZERO_OK;
}

static zero_status use_piece(void *context, const void *data, size_t at, size_t bytes)
{
	memcpy((char *)context + at, data, bytes);
	return ZERO_OK;
}

static zero_status set(zero_job *job, float *to, const float *from, size_t count)
{
	if (on_device(job))
		return zero_staging_in(job, to, count * sizeof(float), fill_piece, (void *)from);
	memcpy(to, from, count * sizeof(float));
	return ZERO_OK;
}

static zero_status get(zero_job *job, float *to, const float *from, size_t count)
{
	if (on_device(job))
		return zero_staging_out(job, from, count * sizeof(float), use_piece, to);
	memcpy(to, from, count * sizeof(float));
	return ZERO_OK;
}

zero_status zero_set_moments(zero_param *param, size_t first, size_t count, const float *exp_avg,
			     const float *exp_avg_sq)
{
	zero_job *job = param->group->job;
	size_t at = first;
	zero_status status = own_part("zero_set_moments", param, &at, &count), synced;

	if (status || !count)
		return status;
	zero_hooks_before_change(job, param->group, true);
	status = set(job, zero_param_state_at(param, ZERO_SAVED_EXP_AVG, at), exp_avg + at - first,
		     count);
	if (!status)
		status = set(job, zero_param_state_at(param, ZERO_SAVED_EXP_AVG_SQ, at),
			     exp_avg_sq + at - first, count);
	synced = zero_device_sync(job);
	return status ? status : synced;
}

zero_status zero_get_moments(zero_param *param, size_t first, size_t count, float *exp_avg,
			     float *exp_avg_sq)
{
	zero_job *job = param->group->job;
	size_t at = first;
	zero_status status = own_part("zero_get_moments", param, &at, &count);

	if (status || !count)
		return status;
	status = zero_device_sync(job);
	if (!status)
		status = get(job, exp_avg + at - first,
			     zero_param_state_at(param, ZERO_SAVED_EXP_AVG, at), count);
	if (!status)
		status = get(job, exp_avg_sq + at - first,
			     zero_param_state_at(param, ZERO_SAVED_EXP_AVG_SQ, at), count);
	return status;
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that exist before the layout: zero_adopt and zero_view. flatten.c packs what is adopted
 * here.
 */
#include <stdlib.h>

#include "load.h"

/*
 * From now on allocations beyond the budget fail. Only jobs that flatten limit themselves: for
 * others a budget that was measured before the job began is no more than an estimate.
 */
static void limit_device(zero_job *job)
{
	uint64_t budget = job->settings.value[ZERO_OPT_BUDGET].number;

	if (zero_settings_budget_known(&job->settings))
		job->ops->limit(job->backend, budget < SIZE_MAX ? budget : SIZE_MAX);
}

zero_status zero_device_alloc(zero_job *job, size_t bytes, void **data)
{
	zero_status status = zero_job_check_memory(job, "zero_device_alloc");

	*data = NULL;
	if (status)
		return status;
	limit_device(job);
	return bytes ? job->ops->alloc(job->backend, ZERO_MEM_CALLER, bytes, false, data) : ZERO_OK;
}

void zero_device_free(zero_job *job, void *data)
{
	if (data)
		job->ops->free(job->backend, data);
}

static zero_status check_data(const zero_param *param, const zero_adopt_spec *spec)
{
	const zero_job *job = param->group->job;
	size_t bytes;

	/* A rank that is not in the team has no tensor to adopt. */
	if (!spec->data && param->count && zero_is_member(param->group) &&
	    (spec->values != ZERO_VALUES_OF_RANK || spec->rank == job->place.rank))
		return zero_fail(ZERO_E_INVALID, "parameter '%s' adopts no data", param->name);
	if (!spec->data)
		return ZERO_OK;
	if (job->ops->caller_block(job->backend, spec->data, &bytes) !=
	    (spec->location == ZERO_ON_DEVICE))
		return zero_fail(
			ZERO_E_INVALID, "parameter '%s' adopts a tensor on the %s that is %s",
			param->name, spec->location == ZERO_ON_DEVICE ? "device" : "host",
			spec->location == ZERO_ON_DEVICE ? "not in its memory (zero_device_alloc)"
							 : "in the device's memory");
	return ZERO_OK;
}

static zero_status check_spec(const zero_param *param, const zero_adopt_spec *spec)
{
	const zero_group *group = param->group;

	if (group->job->stage > 2)
		return zero_fail(
			ZERO_E_STATE,
			"parameter '%s' cannot adopt a tensor at stage 3, where parameters "
			"are sharded: use zero_load",
			param->name);
	if (group->flats)
		return zero_fail(ZERO_E_STATE, "parameter '%s' adopts a tensor after zero_layout",
				 param->name);
	if (param->alias_of)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is an alias of '%s': adopt its target",
				 param->name, param->alias_of->name);
	if (param->adopted)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has adopted a tensor already",
				 param->name);
	if ((spec->location != ZERO_ON_HOST && spec->location != ZERO_ON_DEVICE) ||
	    spec->values < ZERO_VALUES_EQUAL || spec->values > ZERO_VALUES_OWN)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' adopts a tensor with location %d and values %d, "
				 "which are not both constants of zero.h",
				 param->name, (int)spec->location, (int)spec->values);
	if (spec->values == ZERO_VALUES_OF_RANK &&
	    (spec->rank < 0 || spec->rank >= group->job->place.world ||
	     zero_team_rank_of(group->team, spec->rank) < 0))
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is to have the values of rank %d, which is not in "
				 "the team of group '%s'",
				 param->name, spec->rank, group->name);
	return check_data(param, spec);
}

zero_status zero_adopt(zero_param *param, const zero_adopt_spec *spec)
{
	zero_group *group = param->group;
	zero_status status = check_spec(param, spec);
	zero_adopt_spec *copy;

	if (status)
		return status;
	copy = malloc(sizeof(*copy));
	if (!copy)
		return zero_fail(ZERO_E_MEMORY, "no memory to adopt parameter '%s'", param->name);
	*copy = *spec;
	/* The rank has no meaning otherwise, and enters the hash that ranks compare. */
	if (copy->values != ZERO_VALUES_OF_RANK)
		copy->rank = 0;
	param->adopted = copy;
	group->adopts = true;
	group->job->model->adopts = true;
	limit_device(group->job);
	return ZERO_OK;
}

void *zero_view(zero_param *param)
{
	const zero_group *group = param->group;
	const struct zero_segment *segment;

	if (!group->flats || group->job->stage > 2) {
		zero_fail(ZERO_E_STATE, "parameter '%s' has no view %s", param->name,
			  group->flats ? "at stage 3" : "before zero_layout");
		return NULL;
	}
	if (zero_require_member(group, "viewed") || zero_wait_post_step_gather(param->group) ||
	    !param->count)
		return NULL;
	segment = &param->flat->segments[param->segment];
	return param->flat->stored + segment->first_at +
	       param->first * zero_dtype_size(segment->dtype);
}

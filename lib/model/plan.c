/* SPDX-License-Identifier: Apache-2.0 */
/* What a model needs, before there is a job: a job that is never opened describes it. */
#include "plan.h"

#include <stdlib.h>

#include "core/options.h"

void zero_planned_begin(struct zero_planned *planned, const struct zero_settings *settings,
			size_t world, size_t share)
{
	zero_job *job = &planned->job;
	struct zero_value *threshold = &job->settings.value[ZERO_OPT_STREAM_THRESHOLD];

	*planned = (struct zero_planned){
		/* what backend=auto becomes is known to a node alone */
		.ops.host_memory = settings->value[ZERO_OPT_BACKEND].number != ZERO_BACKEND_CUDA,
		.job = {.ops = &planned->ops,
			.model = &planned->groups,
			.settings = *settings,
			.stage = (int)settings->value[ZERO_OPT_STAGE].number,
			.place = {.world = (int)world, .shm_world_min = (int)share},
			.lock = PTHREAD_MUTEX_INITIALIZER}};
	/* It is a part of what is free, which a job measures, and which is not known here. */
	if (!settings->value[ZERO_OPT_BUDGET].number && threshold->kind == ZERO_VALUE_AUTO)
		*threshold = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = UINT64_MAX};
	zero_settings_set_sizes(&job->settings);
	job->all.job = job;
	job->all.place = job->place;
}

void zero_planned_end(struct zero_planned *planned)
{
	for (size_t g = 0; g < planned->groups.made_count; g++)
		zero_group_free(planned->groups.groups[g]);
	free(planned->groups.groups);
	planned->groups = (struct zero_model){0};
}

zero_status zero_planned_group(struct zero_planned *planned, const char *name, zero_group **group)
{
	zero_status status = zero_group_new(&planned->job, name, NULL, group);

	planned->groups.group_count = planned->groups.made_count;
	return status;
}

size_t zero_planned_slice(const struct zero_planned *planned, const zero_param_spec *spec)
{
	const struct zero_value *value = planned->job.settings.value;
	uint64_t threshold = value[ZERO_OPT_STREAM_THRESHOLD].number;
	uint64_t bytes = zero_dtype_size(spec->dtype);

	/* What is wrong with it is zero_param_new's to say. */
	if (!value[ZERO_OPT_STREAM].number || !spec->shape || spec->ndim > ZERO_MAX_DIMS)
		return 0;
	for (int i = 0; i < spec->ndim; i++)
		if (__builtin_mul_overflow(bytes, spec->shape[i], &bytes))
			return 0;
	return bytes > threshold ? value[ZERO_OPT_STREAM_CHUNK].number : 0;
}

zero_status zero_planned_param(struct zero_planned *planned, const zero_param_spec *spec,
			       size_t slice, zero_group **group, zero_param **param)
{
	zero_group *own = slice ? NULL : *group;
	zero_status status = ZERO_OK;

	if (!own)
		status = zero_planned_group(planned, spec->name, &own);
	if (!status && slice)
		status = zero_group_set_slices(own, slice);
	if (!status && !slice)
		*group = own;
	return status ? status : zero_param_new(own, spec, param);
}

/* ---- the interface --------------------------------------------------------------------------- */

static zero_status check_spec(const zero_plan_spec *spec)
{
	if (spec->world < 1 || spec->share < 0 || spec->share > spec->world)
		return zero_fail(ZERO_E_INVALID,
				 "zero_plan is for world %d, share %d: a world is at least 1, and "
				 "share from 0 to that",
				 spec->world, spec->share);
	for (size_t i = 0; i < spec->count; i++) {
		size_t before = i ? spec->groups[i - 1] : 0;

		if (spec->groups[i] != before && spec->groups[i] != before + (i > 0))
			return zero_fail(ZERO_E_INVALID,
					 "zero_plan: groups[%zu] is %zu after %zu: groups are "
					 "numbered from 0 as they come",
					 i, spec->groups[i], before);
	}
	return ZERO_OK;
}

static zero_status read_settings(const zero_plan_spec *spec, struct zero_planned *planned)
{
	zero_job reader = {0};
	zero_status status = ZERO_OK;

	if (!zero_settings_init(&reader.settings))
		status = zero_fail(ZERO_E_MEMORY, "no memory for the options of a plan");
	else
		status = zero_job_read_settings(&reader,
						&(zero_options){.settings = spec->settings});
	zero_planned_begin(planned, &reader.settings, (size_t)spec->world,
			   spec->share ? (size_t)spec->share : 1);
	planned->ops.host_memory = !spec->device;
	return status;
}

static zero_status describe(const zero_plan_spec *spec, struct zero_planned *planned)
{
	zero_status status = ZERO_OK;
	zero_group *group = NULL;
	zero_param *param;
	size_t whole = 0;

	for (size_t i = 0; !status && i < spec->count; i++) {
		size_t *slice = spec->slices ? &spec->slices[i] : &whole;

		if (*slice == ZERO_SLICES_AUTO)
			*slice = zero_planned_slice(planned, &spec->params[i]);
		if (i && spec->groups[i] != spec->groups[i - 1])
			group = NULL;
		status = zero_planned_param(planned, &spec->params[i], *slice, &group, &param);
	}
	return status;
}

zero_status zero_plan(const zero_plan_spec *spec, zero_memory *need)
{
	const struct zero_nodes none = {0};
	uint64_t bytes[ZERO_MEM_KINDS];
	struct zero_planned planned;
	struct zero_sizing sizing;
	zero_status status = check_spec(spec);
	size_t size;

	*need = (zero_memory){0};
	if (status)
		return status;
	status = read_settings(spec, &planned);
	size = (size_t)spec->world;
	if (!status)
		status = describe(spec, &planned);
	if (!status && planned.job.stage == 3)
		status = zero_grid_setting(&planned.job, &none, &size);
	if (!status)
		status = zero_grid_measure(&planned.job, size, &sizing);
	sizing.one_stays = spec->one_stays;
	if (!status) {
		zero_sizing_bytes(&sizing, bytes);
		need->shards.peak = bytes[ZERO_MEM_SHARDS];
		need->gathered.peak = bytes[ZERO_MEM_GATHERED];
		need->gradients.peak = bytes[ZERO_MEM_GRADIENTS];
		need->optimizer.peak = bytes[ZERO_MEM_OPTIMIZER];
		need->staging.peak = bytes[ZERO_MEM_STAGING];
		need->offload.peak = bytes[ZERO_MEM_OFFLOAD];
		need->total.peak = zero_sizing_total(&sizing);
		for (size_t i = 0; spec->slices && !sizing.streamed.count && i < spec->count; i++)
			spec->slices[i] = 0;
	}
	zero_planned_end(&planned);
	zero_settings_clear(&planned.job.settings);
	return status;
}

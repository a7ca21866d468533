/* SPDX-License-Identifier: Apache-2.0 */
/* Groups and parameters: making them, laying them out, and finding one's place. */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

static bool grow(void *array, size_t size, size_t count, size_t *room)
{
	void **items = array;
	size_t more = *room ? *room * 2 : 8;
	void *grown;

	if (count < *room)
		return true;
	grown = realloc(*items, more * size);
	if (!grown)
		return false;
	*items = grown;
	*room = more;
	return true;
}

static zero_status check_open(const zero_job *job, const char *what, const char *name)
{
	if (!name || !*name)
		return zero_fail(ZERO_E_INVALID, "a %s needs a name", what);
	if (job->laid_out)
		return zero_fail(ZERO_E_STATE, "%s '%s' comes after zero_layout, which fixed all",
				 what, name);
	return ZERO_OK;
}

static int by_group_name(const void *a, const void *b)
{
	return strcmp(((const zero_group *)a)->name, ((const zero_group *)b)->name);
}

zero_status zero_group_new(zero_job *job, const char *name, zero_group **group)
{
	zero_group *made;
	zero_status status;

	*group = NULL;
	status = check_open(job, "group", name);
	if (status)
		return status;
	if (tfind(&(zero_group){.name = (char *)(uintptr_t)name}, &job->group_names, by_group_name))
		return zero_fail(ZERO_E_INVALID, "group '%s' is there already", name);
	made = calloc(1, sizeof(*made));
	if (!made || !grow(&job->groups, sizeof(zero_group *), job->group_count, &job->group_room))
		goto no_memory;
	made->job = job;
	made->name = strdup(name);
	if (!made->name || !tsearch(made, &job->group_names, by_group_name))
		goto no_memory;
	job->groups[job->group_count++] = made;
	*group = made;
	return ZERO_OK;
no_memory:
	if (made)
		free(made->name);
	free(made);
	return zero_fail(ZERO_E_MEMORY, "no memory for group '%s'", name);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const zero_param *)a)->name, ((const zero_param *)b)->name);
}

/* The product of the shape, 1 for ndim 0. False if its bytes are beyond 2^63. */
static bool element_count(const zero_param_spec *spec, size_t *count)
{
	size_t bytes;

	*count = 1;
	/* An empty tensor is empty however large its other dimensions are. */
	for (int i = 0; i < spec->ndim; i++)
		if (!spec->shape[i])
			*count = 0;
	for (int i = 0; *count && i < spec->ndim; i++)
		if (__builtin_mul_overflow(*count, spec->shape[i], count))
			return false;
	return !__builtin_mul_overflow(*count, zero_dtype_size(spec->dtype), &bytes) &&
	       bytes <= INT64_MAX;
}

static zero_status check_spec(const zero_group *group, const zero_param_spec *spec, size_t *count)
{
	zero_status status = check_open(group->job, "parameter", spec->name);
	zero_param key = {.name = (char *)(uintptr_t)spec->name};
	void *other;

	if (status)
		return status;
	if (!zero_dtype_size(spec->dtype))
		return zero_fail(ZERO_E_INVALID, "parameter '%s' has dtype %d, which is no type",
				 spec->name, (int)spec->dtype);
	if (spec->ndim < 0 || spec->ndim > ZERO_MAX_DIMS)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' has %d dimensions, not 0 to %d",
				 spec->name, spec->ndim, ZERO_MAX_DIMS);
	if (spec->ndim && !spec->shape)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' has no shape", spec->name);
	if (!element_count(spec, count))
		return zero_fail(ZERO_E_INVALID, "parameter '%s' has more than 2^63 bytes",
				 spec->name);
	if (spec->trainable && spec->dtype != ZERO_F32 && spec->dtype != ZERO_F16 &&
	    spec->dtype != ZERO_BF16)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is %s; what is trained is f32, f16 or bf16",
				 spec->name, zero_dtype_name(spec->dtype));
	other = tfind(&key, &group->job->names, by_name);
	if (other)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' is there already, in group '%s'",
				 spec->name, (*(zero_param **)other)->group->name);
	if (!spec->alias_of)
		return ZERO_OK;
	if (spec->alias_of->group != group || spec->alias_of->alias_of)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is tied to '%s', which is %s: tie it to a "
				 "parameter of its own group",
				 spec->name, spec->alias_of->name,
				 spec->alias_of->alias_of ? "tied itself" : "in another group");
	if (spec->alias_of->trainable != spec->trainable)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is %strainable, but '%s', to which it is tied, "
				 "is %s: both must be the same",
				 spec->name, spec->trainable ? "" : "not ", spec->alias_of->name,
				 spec->trainable ? "not" : "trainable");
	if (spec->alias_of->dtype != spec->dtype || spec->alias_of->count != *count)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' (%zu of %s) is tied to '%s' (%zu of %s): both "
				 "must be the same",
				 spec->name, *count, zero_dtype_name(spec->dtype),
				 spec->alias_of->name, spec->alias_of->count,
				 zero_dtype_name(spec->alias_of->dtype));
	return ZERO_OK;
}

zero_status zero_param_new(zero_group *group, const zero_param_spec *spec, zero_param **param)
{
	zero_param *made;
	zero_status status;
	size_t count = 0;

	*param = NULL;
	status = check_spec(group, spec, &count);
	if (status)
		return status;
	made = calloc(1, sizeof(*made));
	if (!made ||
	    !grow(&group->params, sizeof(zero_param *), group->param_count, &group->param_room))
		goto no_memory;
	made->name = strdup(spec->name);
	if (!made->name || !tsearch(made, &group->job->names, by_name))
		goto no_memory;
	made->group = group;
	made->alias_of = spec->alias_of;
	made->count = count;
	made->dtype = spec->dtype;
	made->ndim = spec->ndim;
	for (int i = 0; i < spec->ndim; i++)
		made->shape[i] = spec->shape[i];
	made->trainable = spec->trainable;
	made->weight_decay = spec->weight_decay;
	made->lr_scale = spec->lr_scale != 0 ? spec->lr_scale : 1;
	group->trainable = group->trainable || spec->trainable;
	group->params[group->param_count++] = made;
	*param = made;
	return ZERO_OK;
no_memory:
	if (made)
		free(made->name);
	free(made);
	return zero_fail(ZERO_E_MEMORY, "no memory for parameter '%s'", spec->name);
}

size_t zero_param_count(const zero_param *param)
{
	return param->count;
}

const char *zero_param_name(const zero_param *param)
{
	return param->name;
}

/* ---- layout ---------------------------------------------------------------------------------- */

void zero_stored_part(const zero_job *job, const struct zero_run *run, size_t *first, size_t *count)
{
	*first = job->whole ? 0 : run->shard * (size_t)job->place.rank;
	*count = job->whole ? run->count : run->shard;
}

void zero_stepped_part(const zero_job *job, const struct zero_run *run, size_t *first,
		       size_t *count)
{
	*first = job->step_whole ? 0 : run->shard * (size_t)job->place.rank;
	*count = job->step_whole ? run->count : run->shard;
}

void zero_param_part(const zero_param *param, size_t run_first, size_t run_count, size_t *first,
		     size_t *count)
{
	size_t begin = param->first > run_first ? param->first : run_first;
	size_t end = param->first + param->count;

	if (end > run_first + run_count)
		end = run_first + run_count;
	*count = end > begin ? end - begin : 0;
	*first = *count ? begin - param->first : 0;
}

char *zero_stored_at(const zero_job *job, const struct zero_flat *flat, const struct zero_run *run,
		     size_t element)
{
	size_t first, count;

	zero_stored_part(job, run, &first, &count);
	return flat->stored + run->stored_at + (element - first) * zero_dtype_size(run->dtype);
}

/* Offsets of the runs in the flat's buffers. Runs begin at multiples of 4096 bytes. */
static void place_runs(const zero_job *job, struct zero_flat *flat)
{
	const size_t page = 4096;

	for (size_t i = 0; i < flat->run_count; i++) {
		struct zero_run *run = &flat->runs[i];
		size_t first, stored, stepped;

		zero_stored_part(job, run, &first, &stored);
		zero_stepped_part(job, run, &first, &stepped);
		run->stored_at = flat->stored_bytes;
		flat->stored_bytes += stored * zero_dtype_size(run->dtype) + page - 1;
		flat->stored_bytes -= flat->stored_bytes % page;
		if (!run->trainable)
			continue;
		run->gradient_at = flat->gradient_count;
		run->state_at = flat->state_count;
		flat->gradient_count += run->count;
		flat->state_count += stepped;
	}
}

static zero_status lay_out_flat(zero_job *job, struct zero_flat *flat, zero_group *group,
				size_t index, const struct zero_layout_item *items,
				zero_param **params, size_t item_count,
				const struct zero_layout_run *runs, size_t run_count)
{
	for (size_t i = 0; i < run_count; i++)
		flat->run_count += runs[i].flat == index;
	flat->runs = calloc(flat->run_count, sizeof(*flat->runs));
	if (!flat->runs)
		return zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
	for (size_t i = 0; i < item_count; i++) {
		if (items[i].flat != index)
			continue;
		params[i]->flat = flat;
		params[i]->run = items[i].run;
		params[i]->first = items[i].first;
	}
	for (size_t i = 0, at = 0; i < run_count; i++)
		if (runs[i].flat == index)
			flat->runs[at++] = (struct zero_run){
				.dtype = runs[i].dtype,
				.trainable = runs[i].trainable,
				.count = runs[i].count,
				.shard = runs[i].count / (size_t)job->place.world,
			};
	place_runs(job, flat);
	if (!flat->stored_bytes)
		return ZERO_OK;
	return job->ops->alloc(job->backend, ZERO_MEM_SHARDS, flat->stored_bytes, true,
			       (void **)&flat->stored);
}

/* The option's choices are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

static zero_status lay_out_group(zero_job *job, zero_group *group)
{
	enum zero_layout_mode mode =
		(enum zero_layout_mode)job->settings.value[ZERO_OPT_ALLGATHER].number;
	size_t bucket = job->settings.value[ZERO_OPT_BUCKET].number;
	struct zero_layout_item *items;
	struct zero_layout_run *runs = NULL;
	size_t item_count = 0, run_count = 0, flat_count = 0;
	zero_status status;
	zero_param **params; /* those that are no aliases */

	items = calloc(group->param_count + 1, sizeof(*items));
	params = calloc(group->param_count + 1, sizeof(zero_param *));
	if (!items || !params) {
		status = zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
		goto out;
	}
	for (size_t i = 0; i < group->param_count; i++) {
		zero_param *param = group->params[i];

		if (param->alias_of)
			continue;
		items[item_count] = (struct zero_layout_item){.dtype = param->dtype,
							      .trainable = param->trainable,
							      .count = param->count};
		params[item_count++] = param;
	}
	status = zero_layout_group(items, item_count, (size_t)job->place.world, mode, bucket, &runs,
				   &run_count, &flat_count);
	if (status)
		goto out;
	group->flats = calloc(flat_count ? flat_count : 1, sizeof(*group->flats));
	if (!group->flats) {
		status = zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
		goto out;
	}
	group->flat_count = flat_count;
	zero_sizing_group(&job->sizing, runs, run_count);
	for (size_t f = 0; !status && f < flat_count; f++)
		status = lay_out_flat(job, &group->flats[f], group, f, items, params, item_count,
				      runs, run_count);
	for (size_t i = 0; !status && i < group->param_count; i++) {
		zero_param *param = group->params[i], *target = param->alias_of;

		if (!target)
			continue;
		param->flat = target->flat;
		param->run = target->run;
		param->first = target->first;
	}
out:
	free(runs);
	free(params);
	free(items);
	return status;
}

/* A hash of all that must be the same on all ranks. */
static uint64_t model_hash(const zero_job *job)
{
	uint64_t hash = 0;

	for (size_t g = 0; g < job->group_count; g++) {
		const zero_group *group = job->groups[g];

		hash = zero_hash(group->name, strlen(group->name) + 1, hash);
		for (size_t p = 0; p < group->param_count; p++) {
			const zero_param *param = group->params[p];
			int kind[] = {(int)param->dtype, param->trainable, param->alias_of != NULL,
				      param->ndim};

			hash = zero_hash(param->name, strlen(param->name) + 1, hash);
			hash = zero_hash(kind, sizeof(kind), hash);
			hash = zero_hash(param->shape, sizeof(param->shape), hash);
			hash = zero_hash(&param->weight_decay, sizeof(float), hash);
			hash = zero_hash(&param->lr_scale, sizeof(float), hash);
		}
	}
	return hash;
}

static void drop_layout(zero_job *job, zero_group *group)
{
	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		job->ops->free(job->backend, flat->stored);
		job->ops->free(job->backend, flat->gathered);
		job->ops->free(job->backend, flat->gradient);
		job->ops->free(job->backend, flat->reduced);
		job->ops->free(job->backend, flat->m);
		job->ops->free(job->backend, flat->v);
		job->ops->free(job->backend, flat->master);
		free(flat->runs);
	}
	free(group->flats);
	group->flats = NULL;
	group->flat_count = 0;
	for (size_t i = 0; i < group->param_count; i++)
		group->params[i]->flat = NULL;
}

zero_status zero_layout(zero_job *job)
{
	zero_status status = ZERO_OK;
	size_t params = 0, elements = 0;

	for (size_t g = 0; g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++, params++)
			elements += job->groups[g]->params[p]->count;
	if (job->laid_out)
		return zero_run(job, zero_fail(ZERO_E_STATE, "zero_layout was called twice"), NULL,
				0, "layout");
	job->sizing = (struct zero_sizing){.world = (size_t)job->place.world, .stage = job->stage};
	for (size_t g = 0; !status && g < job->group_count; g++)
		status = lay_out_group(job, job->groups[g]);
	status =
		zero_run(job, status, NULL, 0,
			 "layout of %zu groups with %zu parameters of %zu elements (model %016llx)",
			 job->group_count, params, elements, (unsigned long long)model_hash(job));
	if (!status)
		zero_job_choose_tier(job);
	job->laid_out = !status;
	for (size_t g = 0; status && g < job->group_count; g++)
		drop_layout(job, job->groups[g]);
	return status;
}

void zero_group_free(zero_group *group)
{
	zero_gather_drop(group);
	drop_layout(group->job, group);
	for (size_t i = 0; i < group->param_count; i++) {
		tdelete(group->params[i], &group->job->names, by_name);
		free(group->params[i]->name);
		free(group->params[i]);
	}
	free(group->params);
	tdelete(group, &group->job->group_names, by_group_name);
	free(group->name);
	free(group);
}

zero_status zero_shard(const zero_param *param, void **data, size_t *first, size_t *count)
{
	zero_job *job = param->group->job;
	const struct zero_run *run;
	size_t run_first, run_count;
	zero_status status;

	*data = NULL;
	*first = *count = 0;
	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has no shard before zero_layout",
				 param->name);
	/* What other ranks stepped may be on its way here. */
	status = zero_finish_update(param->group);
	if (status)
		return status;
	run = &param->flat->runs[param->run];
	zero_stored_part(job, run, &run_first, &run_count);
	zero_param_part(param, run_first, run_count, first, count);
	if (*count)
		*data = zero_stored_at(job, param->flat, run, param->first + *first);
	return ZERO_OK;
}

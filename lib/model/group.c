/* SPDX-License-Identifier: Apache-2.0 */
/* Creates and frees groups and parameters. */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static bool grow(void *array, size_t size, size_t count, size_t *capacity)
{
	void **items = array;
	size_t more = *capacity ? *capacity * 2 : 8;
	void *grown;

	if (count < *capacity)
		return true;
	grown = realloc(*items, more * size);
	if (!grown)
		return false;
	*items = grown;
	*capacity = more;
	return true;
}

static zero_status check_name(const char *what, const char *name)
{
	if (!name || !*name)
		return zero_fail(ZERO_E_INVALID, "a %s needs a name", what);
	return ZERO_OK;
}

/* Other threads may look for a gathered group meanwhile. */
static bool grow_groups(zero_job *job)
{
	bool grown;

	pthread_mutex_lock(&job->lock);
	grown = grow(&job->model->groups, sizeof(zero_group *), job->model->made_count,
		     &job->model->group_capacity);
	pthread_mutex_unlock(&job->lock);
	return grown;
}

static int by_group_name(const void *a, const void *b)
{
	return strcmp(((const zero_group *)a)->name, ((const zero_group *)b)->name);
}

zero_status zero_group_new(zero_job *job, const char *name, zero_team *team, zero_group **group)
{
	zero_group *made;
	zero_status status;

	*group = NULL;
	status = zero_job_check_memory(job, "zero_group_new");
	if (!status)
		status = check_name("group", name);
	if (status)
		return status;
	if (team && team->job != job)
		return zero_fail(ZERO_E_INVALID, "group '%s' has a team of another job", name);
	if (tfind(&(zero_group){.name = (char *)(uintptr_t)name}, &job->model->groups_by_name,
		  by_group_name))
		return zero_fail(ZERO_E_INVALID, "group '%s' exists already", name);
	made = calloc(1, sizeof(*made));
	if (!made || !grow_groups(job))
		goto no_memory;
	made->job = job;
	made->index = job->model->made_count;
	made->team = made->shard_team = team ? team : &job->all;
	made->gradient_dtype = ZERO_F32;
	made->state = ZERO_IDLE;
	made->name = strdup(name);
	if (!made->name || !tsearch(made, &job->model->groups_by_name, by_group_name))
		goto no_memory;
	job->model->groups[job->model->made_count++] = made;
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
	/* An empty tensor has no elements, however large its other dimensions are. */
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
	zero_status status = check_name("parameter", spec->name);
	zero_param key = {.name = (char *)(uintptr_t)spec->name};
	void *other;

	if (status)
		return status;
	if (group->flats)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' must be added before zero_layout lays out group "
				 "'%s'",
				 spec->name, group->name);
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
	if (spec->no_weight_decay && spec->weight_decay_scale != 0)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' has no_weight_decay and weight_decay_scale %g: "
				 "set one of them",
				 spec->name, (double)spec->weight_decay_scale);
	other = tfind(&key, &group->job->model->params_by_name, by_name);
	if (other)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' exists already, in group '%s'",
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

/* A factor that is not set leaves the value of the step as it is. */
static float scale_or_one(float scale)
{
	return scale != 0 ? scale : 1;
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
	    !grow(&group->params, sizeof(zero_param *), group->param_count, &group->param_capacity))
		goto no_memory;
	made->name = strdup(spec->name);
	if (!made->name || !tsearch(made, &group->job->model->params_by_name, by_name))
		goto no_memory;
	made->group = group;
	made->alias_of = spec->alias_of;
	made->count = count;
	made->dtype = spec->dtype;
	made->ndim = spec->ndim;
	for (int i = 0; i < spec->ndim; i++)
		made->shape[i] = spec->shape[i];
	made->trainable = spec->trainable;
	made->weight_decay = spec->no_weight_decay ? 0 : scale_or_one(spec->weight_decay_scale);
	made->lr_scale = scale_or_one(spec->lr_scale);
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

void zero_group_empty(zero_group *group)
{
	zero_group **named;

	for (size_t i = 0; i < group->param_count; i++) {
		tdelete(group->params[i], &group->job->model->params_by_name, by_name);
		free(group->params[i]->name);
		free(group->params[i]->adopted);
		free(group->params[i]->states);
		free(group->params[i]);
	}
	free(group->params);
	group->params = NULL;
	group->param_count = group->param_capacity = 0;
	group->trainable = false;
	/* Its name may be another one's since. */
	named = tfind(group, &group->job->model->groups_by_name, by_group_name);
	if (named && *named == group)
		tdelete(group, &group->job->model->groups_by_name, by_group_name);
}

void zero_group_free(zero_group *group)
{
	zero_group_empty(group);
	free(group->name);
	free(group);
}

zero_status zero_require_member(const zero_group *group, const char *what)
{
	if (zero_is_member(group))
		return ZERO_OK;
	return zero_fail(ZERO_E_INVALID, "group '%s' is %s on a rank that is not in its team",
			 group->name, what);
}

bool zero_group_is_stepped(const zero_group *group)
{
	for (size_t p = 0; group->trainable && p < group->param_count; p++)
		if (group->params[p]->trainable && !group->params[p]->frozen &&
		    !group->params[p]->alias_of)
			return true;
	return false;
}

int zero_shard_owner(const zero_group *group, int shard)
{
	if (shard < 0 || shard >= group->team->place.world)
		return -1;
	return group->replica_team ? group->job->grid->owners[shard] : shard;
}

zero_status zero_wait_post_step_gather(zero_group *group)
{
	zero_status status;

	pthread_mutex_lock(&group->job->lock);
	status = zero_work_wait(group->job, &group->post_step_gather);
	pthread_mutex_unlock(&group->job->lock);
	return status ? zero_mark_inconsistent(group->job, status) : ZERO_OK;
}

zero_status zero_mark_inconsistent(zero_job *job, zero_status status)
{
	struct zero_saved_error error;

	job->model->inconsistent = true;
	zero_error_save(&error);
	snprintf(error.text + strlen(error.text), sizeof(error.text) - strlen(error.text),
		 "; the step had begun, so parameters and optimizer states are undefined until "
		 "zero_restore");
	zero_error_restore(&error);
	return status;
}

static enum zero_values_state state_of(const struct zero_model *model)
{
	if (model->stepping)
		return ZERO_STEPPING;
	for (size_t g = 0; g < model->group_count; g++)
		if (model->groups[g]->state == ZERO_WRITING)
			return ZERO_WRITING;
	return model->inconsistent ? ZERO_INCONSISTENT : ZERO_IDLE;
}

zero_status zero_require_state(const zero_job *job, unsigned allowed, const char *what)
{
	enum zero_values_state state = state_of(job->model);
	const char *why = "a step has failed half-way, and parameters and optimizer states are "
			  "undefined until zero_restore";

	if (state & allowed)
		return ZERO_OK;
	if (state == ZERO_STEPPING)
		why = "the program takes a step; call zero_step_end first";
	else if (state == ZERO_WRITING)
		why = "the program writes to a group; call zero_write_end first";
	return zero_fail(ZERO_E_STATE, "%s is refused: %s", what, why);
}

zero_status zero_require_group_state(const zero_group *group, unsigned allowed, const char *what)
{
	enum zero_values_state state = group->parent ? group->parent->state : group->state;

	if (state & allowed)
		return ZERO_OK;
	return zero_fail(ZERO_E_STATE, "group '%s' is %s while the program %s first", group->name,
			 what,
			 state == ZERO_STEPPING ? "steps it: call zero_step_end"
						: "writes to it: call zero_write_end");
}

unsigned zero_group_wait_count(zero_group *group)
{
	return group->shard_team->wait_count + group->job->all.wait_count;
}

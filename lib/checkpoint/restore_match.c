/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the parameter for each tensor of a checkpoint, by name: groups, teams and the order of both
 * may have changed. Nothing here is collective; all ranks come to the same result.
 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/restore.h"
#include "core/text.h"

static int by_name(const void *a, const void *b)
{
	return strcmp(((const zero_param *)a)->name, ((const zero_param *)b)->name);
}

static zero_status compare(const struct zero_restore *restore,
			   const struct zero_manifest_tensor *tensor, const zero_param *param)
{
	char have[256], want[256];

	if (tensor->dtype != param->dtype)
		return zero_fail(ZERO_E_FORMAT, "%s: tensor '%s' is %s, parameter '%s' is %s",
				 restore->folder, tensor->name, zero_dtype_name(tensor->dtype),
				 param->name, zero_dtype_name(param->dtype));
	if (tensor->ndim != param->ndim ||
	    memcmp(tensor->shape, param->shape, (size_t)param->ndim * sizeof(*param->shape)) != 0)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' has shape %s, parameter '%s' has %s",
				 restore->folder, tensor->name,
				 zero_shape_text(have, sizeof(have), tensor->ndim, tensor->shape),
				 param->name,
				 zero_shape_text(want, sizeof(want), param->ndim, param->shape));
	if (tensor->trainable && !param->trainable)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' was trainable, parameter '%s' is not",
				 restore->folder, tensor->name, param->name);
	return ZERO_OK;
}

/* Lists the first parameters that have no tensor, and returns the number of all. */
static size_t list_missing(const zero_job *job, const char **names)
{
	size_t count = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_param *param = job->model->groups[g]->params[p];

			if (param->alias_of || param->matched)
				continue;
			if (count < ZERO_NAMES_SHOWN)
				names[count] = param->name;
			count++;
		}
	return count;
}

/* One message has both lists, so that names that differ slightly can be compared. */
static zero_status check_names(const struct zero_restore *restore, size_t found)
{
	const struct zero_manifest *manifest = restore->manifest;
	const char *names[ZERO_NAMES_SHOWN];
	size_t missing = list_missing(restore->job, names), shown = 0, length = 0;
	char text[900] = "";

	if (!missing && found == manifest->tensor_count)
		return ZERO_OK;
	if (missing) {
		length = zero_append(text, sizeof(text), length,
				     "%zu parameters have no tensor there", missing);
		length = zero_append_names(text, sizeof(text), length, names, missing);
	}
	if (found < manifest->tensor_count) {
		length = zero_append(text, sizeof(text), length,
				     "%s%zu of %zu tensors there have no parameter",
				     missing ? "; " : "", manifest->tensor_count - found,
				     manifest->tensor_count);
		for (size_t i = 0; i < manifest->tensor_count && shown < ZERO_NAMES_SHOWN; i++)
			if (!restore->params[i])
				names[shown++] = manifest->tensors[i].name;
		zero_append_names(text, sizeof(text), length, names,
				  manifest->tensor_count - found);
	}
	return zero_fail(ZERO_E_FORMAT, "%s: %s", restore->folder, text);
}

/* The checkpoint may have the name of an alias instead of its target's. */
static zero_status find_params(struct zero_restore *restore)
{
	const struct zero_manifest *manifest = restore->manifest;
	const struct zero_model *model = restore->job->model;
	zero_status status = ZERO_OK;
	size_t found = 0;

	for (size_t g = 0; g < model->group_count; g++)
		for (size_t p = 0; p < model->groups[g]->param_count; p++)
			model->groups[g]->params[p]->matched = false;
	for (size_t i = 0; !status && i < manifest->tensor_count; i++) {
		const struct zero_manifest_tensor *tensor = &manifest->tensors[i];
		zero_param key = {.name = tensor->name};
		zero_param **node = tfind(&key, &model->params_by_name, by_name), *param;

		if (!node)
			continue;
		param = (*node)->alias_of ? (*node)->alias_of : *node;
		if (param->matched)
			return zero_fail(ZERO_E_FORMAT,
					 "%s: the checkpoint has two tensors for parameter '%s', "
					 "one of them by the name of an alias",
					 restore->folder, param->name);
		param->matched = true;
		restore->params[i] = param;
		status = compare(restore, tensor, param);
		found++;
	}
	return status ? status : check_names(restore, found);
}

/* ---- named states ---------------------------------------------------------------------------- */

static zero_status compare_state(const struct zero_restore *restore,
				 const struct zero_manifest_tensor *tensor,
				 const struct zero_named_state *state)
{
	const struct zero_manifest_state *saved = NULL;

	for (size_t i = 0; i < tensor->state_count; i++)
		if (!strcmp(tensor->states[i].name, state->name))
			saved = &tensor->states[i];
	if (!saved)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' has no state '%s', which is registered for the "
				 "parameter; unregister it to restore the rest",
				 restore->folder, tensor->name, state->name);
	if (saved->dtype != state->dtype)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: state '%s' of tensor '%s' is %s; the one that is registered "
				 "is %s",
				 restore->folder, state->name, tensor->name,
				 zero_dtype_name(saved->dtype), zero_dtype_name(state->dtype));
	if (saved->block == state->block)
		return ZERO_OK;
	/* Whole parameters are told as 0 elements. */
	return zero_fail(ZERO_E_FORMAT,
			 "%s: state '%s' of tensor '%s' has a value for each %llu elements, the "
			 "one that is registered for each %llu (0: one for all of them)",
			 restore->folder, state->name, tensor->name,
			 (unsigned long long)(saved->block == ZERO_BLOCK_WHOLE ? 0 : saved->block),
			 (unsigned long long)(state->block == ZERO_BLOCK_WHOLE ? 0 : state->block));
}

static bool is_own(const char *name)
{
	return !strncmp(name, ZERO_STATE_OWN, strlen(ZERO_STATE_OWN));
}

/* The library's own states are all parts of one kind of moments, or there are none. */
static zero_status check_own_states(const struct zero_restore *restore,
				    const struct zero_manifest_tensor *tensor)
{
	enum zero_moments_kind kind = zero_tensor_moments(tensor);
	size_t own = 0, parts = 0, all = 0;

	for (size_t s = 0; s < tensor->state_count; s++) {
		const struct zero_manifest_state *state = &tensor->states[s];

		own += is_own(state->name);
		for (int i = 0; i < ZERO_MOMENT_PARTS; i++)
			parts += zero_moment_parts[i].kind == kind &&
				 !strcmp(state->name, zero_moment_parts[i].name) &&
				 state->dtype == zero_moment_parts[i].dtype &&
				 state->block == zero_moment_parts[i].block;
	}
	for (int i = 0; i < ZERO_MOMENT_PARTS; i++)
		all += zero_moment_parts[i].kind == kind;
	if (own == parts && own == all)
		return ZERO_OK;
	return zero_fail(ZERO_E_FORMAT,
			 "%s: tensor '%s' has states that begin with '%s', but not those of 8-bit "
			 "moments or of Muon: was it saved by another release?",
			 restore->folder, tensor->name, ZERO_STATE_OWN);
}

/* Moments have the type that the checkpoint's have: a conversion is asked for. */
static zero_status compare_moments(const struct zero_restore *restore,
				   const struct zero_manifest_tensor *tensor,
				   const zero_param *param)
{
	enum zero_moments_kind saved = zero_tensor_moments(tensor),
			       wanted = zero_param_moments(param);

	if (!zero_tensor_is_stepped(restore->manifest, tensor) || saved == wanted)
		return ZERO_OK;
	if (saved == ZERO_MOMENTS_MUON || wanted == ZERO_MOMENTS_MUON)
		return zero_fail(
			ZERO_E_FORMAT,
			"%s: tensor '%s' was stepped by %s, and has %s in this job: neither "
			"can go on with the states of the other",
			restore->folder, tensor->name,
			saved == ZERO_MOMENTS_MUON ? "Muon" : "AdamW",
			wanted == ZERO_MOMENTS_MUON ? "`muon`" : "no `muon`");
	return zero_fail(ZERO_E_FORMAT,
			 "%s: the moments of tensor '%s' are %s, and those of this job states=%s: "
			 "restore with states=%s, and then convert them with zero_set_states",
			 restore->folder, tensor->name, saved == ZERO_MOMENTS_8BIT ? "8bit" : "f32",
			 wanted == ZERO_MOMENTS_8BIT ? "8bit" : "f32",
			 saved == ZERO_MOMENTS_8BIT ? "8bit" : "f32");
}

/* Each state that is registered is there, and, if any is registered, no other. */
static zero_status compare_states(const struct zero_restore *restore)
{
	const struct zero_manifest *manifest = restore->manifest;
	zero_status status = ZERO_OK;
	bool registered = false;

	for (size_t i = 0; i < manifest->tensor_count; i++)
		for (size_t s = 0; s < restore->params[i]->state_count; s++)
			registered = registered || !restore->params[i]->states[s].moment;
	for (size_t i = 0; !status && i < manifest->tensor_count; i++) {
		const struct zero_manifest_tensor *tensor = &manifest->tensors[i];
		const zero_param *param = restore->params[i];

		status = check_own_states(restore, tensor);
		if (!status)
			status = compare_moments(restore, tensor, param);
		for (size_t s = 0; !status && s < param->state_count; s++)
			if (!param->states[s].moment)
				status = compare_state(restore, tensor, &param->states[s]);
		for (size_t s = 0; registered && !status && s < tensor->state_count; s++)
			if (!is_own(tensor->states[s].name) &&
			    !zero_param_find_state(param, tensor->states[s].name))
				status = zero_fail(
					ZERO_E_FORMAT,
					"%s: tensor '%s' has state '%s', which is not registered "
					"for the parameter; register it, or register no state at "
					"all to leave the checkpoint's unread",
					restore->folder, tensor->name, tensor->states[s].name);
	}
	return status;
}

/* ---- steps of groups ------------------------------------------------------------------------- */

/* Finds the number of steps of each group, which is that of all its tensors. */
static zero_status find_steps(const struct zero_restore *restore)
{
	const struct zero_manifest *manifest = restore->manifest;

	/* not known yet */
	for (size_t g = 0; g < restore->job->model->group_count; g++)
		restore->steps[g] = UINT64_MAX;
	for (size_t i = 0; i < manifest->tensor_count; i++) {
		const struct zero_manifest_tensor *tensor = &manifest->tensors[i];
		const zero_group *group = restore->params[i]->group;
		uint64_t *known = &restore->steps[group->index];
		uint64_t steps = !zero_tensor_is_stepped(manifest, tensor) ? 0
				 : tensor->has_steps                       ? tensor->steps
									   : manifest->step;

		if (!restore->params[i]->trainable)
			continue;
		if (*known != UINT64_MAX && *known != steps)
			return zero_fail(ZERO_E_FORMAT,
					 "%s: tensor '%s' was stepped %llu times, others of group "
					 "'%s' %llu times: put them into groups of their own",
					 restore->folder, tensor->name, (unsigned long long)steps,
					 group->name, (unsigned long long)*known);
		*known = steps;
	}
	for (size_t g = 0; g < restore->job->model->group_count; g++)
		if (restore->steps[g] == UINT64_MAX)
			restore->steps[g] = 0;
	return ZERO_OK;
}

zero_status zero_restore_match(struct zero_restore *restore)
{
	size_t count = restore->manifest->tensor_count;
	zero_status status;

	restore->params = calloc(count + 1, sizeof(zero_param *));
	restore->steps = calloc(restore->job->model->group_count + 1, sizeof(uint64_t));
	if (!restore->params || !restore->steps)
		return zero_fail(ZERO_E_MEMORY, "no memory to list the %zu tensors of %s", count,
				 restore->folder);
	status = find_params(restore);
	if (!status)
		status = compare_states(restore);
	return status ? status : find_steps(restore);
}

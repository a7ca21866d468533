/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which parameter takes which tensor of a checkpoint. They go by name: groups, teams and the order
 * of both may have changed. Nothing here is collective; all ranks come to the same.
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
	char want[256], have[256];

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
	if (tensor->trainable != param->trainable)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' was %strainable, parameter '%s' is %strainable",
				 restore->folder, tensor->name, tensor->trainable ? "" : "not ",
				 param->name, param->trainable ? "" : "not ");
	return ZERO_OK;
}

/* Both at once: names that do not meet are seen at a glance. */
static zero_status refuse_names(const struct zero_restore *restore, zero_param *const *missing,
				size_t missing_count, size_t unexpected_count)
{
	const struct zero_manifest *manifest = restore->manifest;
	const char *names[ZERO_NAMES_SHOWN];
	size_t length = 0, shown = 0;
	char text[900] = "";

	if (missing_count) {
		length = zero_append(text, sizeof(text), length,
				     "%zu parameters have no tensor there", missing_count);
		for (size_t i = 0; i < missing_count && i < ZERO_NAMES_SHOWN; i++)
			names[i] = missing[i]->name;
		length = zero_append_names(text, sizeof(text), length, names, missing_count);
	}
	if (unexpected_count) {
		length = zero_append(
			text, sizeof(text), length, "%s%zu of %zu tensors there have no parameter",
			missing_count ? "; " : "", unexpected_count, manifest->tensor_count);
		for (size_t i = 0; i < manifest->tensor_count && shown < ZERO_NAMES_SHOWN; i++)
			if (!restore->params[i])
				names[shown++] = manifest->tensors[i].name;
		zero_append_names(text, sizeof(text), length, names, unexpected_count);
	}
	return zero_fail(ZERO_E_FORMAT, "%s: %s", restore->folder, text);
}

/* Those that are no aliases, in the order of their addresses. */
static zero_param **list_params(const zero_job *job, size_t *count)
{
	zero_param **params;
	size_t room = 0;

	for (size_t g = 0; g < job->group_count; g++)
		room += job->groups[g]->param_count;
	params = calloc(room + 1, sizeof(zero_param *));
	*count = 0;
	for (size_t g = 0; params && g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++)
			if (!job->groups[g]->params[p]->alias_of)
				params[(*count)++] = job->groups[g]->params[p];
	return params;
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t) * (zero_param *const *)a,
		  y = (uintptr_t) * (zero_param *const *)b;

	return (x > y) - (x < y);
}

/* Each parameter takes one tensor: `params` are all of them, `taken` those that have one, sorted.
   What is missing is left in `params`. */
static zero_status find_missing(zero_param **params, size_t *count, zero_param *const *taken,
				size_t taken_count, const char *folder)
{
	size_t missing = 0;

	for (size_t i = 1; i < taken_count; i++)
		if (taken[i] == taken[i - 1])
			return zero_fail(ZERO_E_FORMAT,
					 "%s: two tensors there are parameter '%s' here, one of "
					 "them by a name that is tied to it",
					 folder, taken[i]->name);
	for (size_t i = 0; i < *count; i++)
		if (!bsearch(&params[i], taken, taken_count, sizeof(*taken), by_address))
			params[missing++] = params[i];
	*count = missing;
	return ZERO_OK;
}

/* By name; one that is tied is its target, whichever of the names the checkpoint has. */
static zero_status find_params(struct zero_restore *restore, size_t *found)
{
	const struct zero_manifest *manifest = restore->manifest;
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < manifest->tensor_count; i++) {
		const struct zero_manifest_tensor *tensor = &manifest->tensors[i];
		zero_param key = {.name = tensor->name};
		zero_param **node = tfind(&key, &restore->job->names, by_name);

		if (!node)
			continue;
		restore->params[i] = (*node)->alias_of ? (*node)->alias_of : *node;
		status = compare(restore, tensor, restore->params[i]);
		++*found;
	}
	return status;
}

zero_status zero_restore_plan(struct zero_restore *restore)
{
	const struct zero_manifest *manifest = restore->manifest;
	size_t count = 0, found = 0, at = 0;
	zero_param **params = list_params(restore->job, &count);
	zero_param **taken = calloc(manifest->tensor_count + 1, sizeof(zero_param *));
	zero_status status = ZERO_OK;

	restore->params = calloc(manifest->tensor_count + 1, sizeof(zero_param *));
	if (!params || !taken || !restore->params)
		status = zero_fail(ZERO_E_MEMORY, "no memory to list the %zu tensors of %s",
				   manifest->tensor_count, restore->folder);
	if (!status)
		status = find_params(restore, &found);
	for (size_t i = 0; !status && i < manifest->tensor_count; i++)
		if (restore->params[i])
			taken[at++] = restore->params[i];
	if (!status) {
		qsort(taken, found, sizeof(*taken), by_address);
		status = find_missing(params, &count, taken, found, restore->folder);
	}
	if (!status && (count || found < manifest->tensor_count))
		status = refuse_names(restore, params, count, manifest->tensor_count - found);
	free(taken);
	free(params);
	return status;
}

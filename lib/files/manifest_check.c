/* SPDX-License-Identifier: Apache-2.0 */
/* Checks that the members of a manifest agree with each other. Each has been checked by itself. */
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of ranks that a tensor is sharded over. */
static int world_of(const struct zero_manifest *m, const struct zero_manifest_tensor *tensor)
{
	return tensor->team < 0 ? m->world : m->teams[tensor->team].count;
}

/* `seen` is [world], all false. */
static zero_status check_ranks(const char *path, const struct zero_manifest *m, size_t t,
			       bool *seen)
{
	const struct zero_manifest_team *team = &m->teams[t];

	for (int i = 0; i < team->count; i++) {
		int rank = team->ranks[i];

		if (rank >= m->world || seen[rank])
			return zero_core->fail(ZERO_E_FORMAT,
					       "%s: team %zu has rank %d in place %d; each rank "
					       "must be there once and be less than \"world\", "
					       "which is %d",
					       path, t, rank, i, m->world);
		seen[rank] = true;
	}
	for (int i = 0; i < team->count; i++)
		seen[team->ranks[i]] = false;
	return ZERO_OK;
}

static zero_status check_teams(const char *path, const struct zero_manifest *m)
{
	bool *seen = calloc((size_t)m->world, sizeof(*seen));
	zero_status status = ZERO_OK;

	if (!seen)
		return zero_core->fail(ZERO_E_MEMORY, "no memory to check %s", path);
	for (size_t t = 0; !status && t < m->team_count; t++) {
		const struct zero_manifest_team *team = &m->teams[t];

		if (!team->count || team->count > m->world)
			status = zero_core->fail(ZERO_E_FORMAT,
						 "%s: team %zu has %d ranks; allowed are 1 to "
						 "the %d of \"world\"",
						 path, t, team->count, m->world);
		else
			status = check_ranks(path, m, t, seen);
	}
	free(seen);
	return status;
}

static bool is_floating(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static zero_status check_tensor(const char *path, const struct zero_manifest *m,
				const struct zero_manifest_tensor *tensor)
{
	const char *name = tensor->name;
	zero_tensor plain = {.dtype = tensor->dtype, .ndim = tensor->ndim};
	uint64_t bytes, segment, end;

	memcpy(plain.shape, tensor->shape, sizeof(plain.shape));
	if (!safetensors_bytes(&plain, &bytes))
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: tensor \"%s\" has a shape of 2^63 bytes or more", path,
				       files_printable(name).text);
	if (tensor->team >= 0 && (size_t)tensor->team >= m->team_count)
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: tensor \"%s\" has team %d; there are %zu teams, "
				       "counted from 0",
				       path, files_printable(name).text, tensor->team,
				       m->team_count);
	if (tensor->trainable && !is_floating(tensor->dtype))
		return zero_core->fail(ZERO_E_FORMAT,
				       "%s: tensor \"%s\" is trainable and %s; allowed are F32, "
				       "F16 and BF16",
				       path, files_printable(name).text,
				       safetensors_dtype_name(tensor->dtype, NULL));
	if (__builtin_mul_overflow(tensor->shard, (uint64_t)world_of(m, tensor), &segment) ||
	    __builtin_add_overflow(tensor->first, zero_manifest_elements(tensor), &end) ||
	    end > segment)
		return zero_core->fail(
			ZERO_E_FORMAT,
			"%s: tensor \"%s\" has %" PRIu64 " elements from %" PRIu64
			" of its segment; %d shards of %" PRIu64 " elements cannot hold them",
			path, files_printable(name).text, zero_manifest_elements(tensor),
			tensor->first, world_of(m, tensor), tensor->shard);
	return ZERO_OK;
}

static zero_status check_states(const char *path, const struct zero_manifest_tensor *tensor)
{
	for (size_t i = 1; i < tensor->state_count; i++)
		if (strcmp(tensor->states[i - 1].name, tensor->states[i].name) >= 0)
			return zero_core->fail(
				ZERO_E_FORMAT,
				"%s: tensor \"%s\" has named state \"%s\" in place %zu; their "
				"names must ascend",
				path, files_printable(tensor->name).text,
				files_printable(tensor->states[i].name).text, i);
	return ZERO_OK;
}

static int by_name(const void *a, const void *b)
{
	const struct zero_manifest_tensor *const *x = a, *const *y = b;

	return strcmp((*x)->name, (*y)->name);
}

static zero_status check_names(const char *path, const struct zero_manifest *m)
{
	const struct zero_manifest_tensor **sorted = calloc(m->tensor_count + 1, sizeof(*sorted));
	zero_status status = sorted ? ZERO_OK : files_no_memory(path);

	for (size_t i = 0; !status && i < m->tensor_count; i++)
		sorted[i] = &m->tensors[i];
	if (!status)
		qsort(sorted, m->tensor_count, sizeof(*sorted), by_name);
	for (size_t i = 1; !status && i < m->tensor_count; i++)
		if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
			status = zero_core->fail(ZERO_E_FORMAT,
						 "%s: tensor \"%s\" occurs for the second "
						 "time; it may occur once only",
						 path, files_printable(sorted[i]->name).text);
	free(sorted);
	return status;
}

static zero_status check_files(const char *path, const struct zero_manifest *m)
{
	char name[64];

	for (int i = 0; i < m->world; i++) {
		snprintf(name, sizeof(name), ZERO_SHARD_FILE, i, m->world);
		if (strcmp(m->files[i].name, name) != 0)
			return zero_core->fail(
				ZERO_E_FORMAT, "%s: file %d is named \"%s\"; it must be \"%s\"",
				path, i, files_printable(m->files[i].name).text, name);
	}
	return ZERO_OK;
}

zero_status manifest_check(const char *path, const struct zero_manifest *manifest)
{
	zero_status status = check_files(path, manifest);

	if (!status)
		status = check_teams(path, manifest);
	for (size_t i = 0; !status && i < manifest->tensor_count; i++) {
		status = check_tensor(path, manifest, &manifest->tensors[i]);
		if (!status)
			status = check_states(path, &manifest->tensors[i]);
	}
	if (!status)
		status = check_names(path, manifest);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the file of one rank holds, and where: a function of the manifest alone, so that a reader
 * knows which ranges it wants before it has opened any file.
 */
#include "files/safetensors.h"
#include "files/input.h"

#include <inttypes.h>
#include <stdlib.h>

struct laying {
	const struct zero_manifest *manifest;
	int *places; /* of the rank in each team; -1: it is not of it */
	int rank;
	struct zero_shard_layout *layout;
};

static int place_in(const struct zero_manifest_team *team, int rank)
{
	int low = 0, high = team->count;

	while (low < high) {
		int middle = low + (high - low) / 2;

		if (team->ranks[middle] < rank)
			low = middle + 1;
		else
			high = middle;
	}
	return low < team->count && team->ranks[low] == rank ? low : -1;
}

static bool has_kind(const struct zero_manifest *manifest,
		     const struct zero_manifest_tensor *tensor, enum zero_slice_kind kind)
{
	return zero_has_slice(kind, manifest->states, tensor->trainable, tensor->dtype);
}

/* The rank's elements of a tensor. */
static void own_part(const struct laying *laying, const struct zero_manifest_tensor *tensor,
		     uint64_t *first, uint64_t *count)
{
	int place = tensor->team < 0 ? laying->rank : laying->places[tensor->team];
	uint64_t begin, end, own = tensor->shard * (uint64_t)(place < 0 ? 0 : place);

	*first = *count = 0;
	if (place < 0)
		return;
	begin = own > tensor->first ? own : tensor->first;
	end = tensor->first + zero_manifest_elements(tensor);
	end = end < own + tensor->shard ? end : own + tensor->shard;
	if (begin >= end)
		return;
	*first = begin - tensor->first;
	*count = end - begin;
}

/* Adds the rank's slice of a tensor, if it has one. */
static bool add_slice(const struct laying *laying, size_t index, enum zero_slice_kind kind)
{
	const struct zero_manifest_tensor *tensor = &laying->manifest->tensors[index];
	struct zero_shard_layout *layout = laying->layout;
	struct zero_shard_slice *slice = &layout->slices[layout->count];
	size_t size;

	*slice = (struct zero_shard_slice){.tensor = index,
					   .kind = kind,
					   .dtype = zero_slice_dtype(kind, tensor->dtype),
					   .at = layout->bytes,
					   .sum = layout->sums};
	own_part(laying, tensor, &slice->first, &slice->count);
	if (!slice->count)
		return true;
	entry_dtype_name(slice->dtype, &size);
	if (__builtin_mul_overflow(slice->count, size, &slice->bytes) ||
	    __builtin_add_overflow(layout->bytes, slice->bytes, &layout->bytes) ||
	    layout->bytes > (uint64_t)INT64_MAX / 2)
		return false;
	layout->sums += (slice->bytes + ZERO_SUM_BLOCK - 1) / ZERO_SUM_BLOCK;
	layout->count++;
	return true;
}

zero_status manifest_shard(const struct zero_manifest *manifest, int rank,
			   struct zero_shard_layout *layout)
{
	struct laying laying = {.manifest = manifest, .rank = rank, .layout = layout};
	size_t most = manifest->tensor_count * ZERO_SLICE_KINDS + 1;
	zero_status status = ZERO_OK;

	*layout = (struct zero_shard_layout){.slices = calloc(most, sizeof(*layout->slices))};
	laying.places = calloc(manifest->team_count + 1, sizeof(*laying.places));
	if (!layout->slices || !laying.places)
		status = files_core()->fail(ZERO_E_MEMORY, "no memory to list %zu tensors of %s",
					    most, manifest->files[rank].name);
	for (size_t t = 0; !status && t < manifest->team_count; t++)
		laying.places[t] = place_in(&manifest->teams[t], rank);
	for (int kind = 0; !status && kind < ZERO_SLICE_KINDS; kind++)
		for (size_t i = 0; !status && i < manifest->tensor_count; i++)
			if (has_kind(manifest, &manifest->tensors[i], (enum zero_slice_kind)kind) &&
			    !add_slice(&laying, i, (enum zero_slice_kind)kind))
				status = files_core()->fail(
					ZERO_E_FORMAT,
					"%s would hold 2^62 bytes or more, with tensor \"%s\"",
					manifest->files[rank].name,
					files_words(manifest->tensors[i].name).text);
	free(laying.places);
	if (status) {
		free(layout->slices);
		*layout = (struct zero_shard_layout){.slices = NULL};
	}
	return status;
}

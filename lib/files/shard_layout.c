/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists the slices in the file of one rank. The list follows from the manifest alone, so that a
 * reader knows the ranges it needs before it opens any file.
 */
#include "files/manifest.h"
#include "files/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>

struct layout_builder {
	const struct zero_manifest *manifest;
	int *places; /* the rank's place in each team; -1: it is not a member */
	int rank;
	struct zero_shard_layout *layout;
};

static int place_in(const struct zero_manifest_team *team, int rank)
{
	for (int place = 0; place < team->count; place++)
		if (team->ranks[place] == rank)
			return place;
	return -1;
}

/* The rank's elements of a tensor. */
static void own_part(const struct layout_builder *builder,
		     const struct zero_manifest_tensor *tensor, uint64_t *first, uint64_t *count)
{
	int place = tensor->team < 0 ? builder->rank : builder->places[tensor->team];
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

/* The values of a named state that the rank has saved. */
static void saved_part(const struct layout_builder *builder,
		       const struct zero_manifest_tensor *tensor, uint64_t block, uint64_t *first,
		       uint64_t *count)
{
	int place = tensor->team < 0 ? builder->rank : builder->places[tensor->team];
	struct zero_state_part part;

	own_part(builder, tensor, first, count);
	part = zero_state_saved(block, *first, *count, place == 0);
	*first = part.first;
	*count = part.count;
}

/* Adds the rank's slice of a tensor, or of its named state `state`, if it has one. False: the file
   would be too large. */
static bool add_slice(const struct layout_builder *builder, size_t index, enum zero_saved_kind kind,
		      size_t state)
{
	const struct zero_manifest_tensor *tensor = &builder->manifest->tensors[index];
	struct zero_shard_layout *layout = builder->layout;
	struct zero_shard_slice *slice = &layout->slices[layout->count];
	size_t size;

	*slice = (struct zero_shard_slice){.tensor = index,
					   .kind = kind,
					   .state = state,
					   .dtype = kind == ZERO_SAVED_NAMED
							    ? tensor->states[state].dtype
							    : zero_saved_dtype(kind, tensor->dtype),
					   .at = layout->bytes,
					   .first_checksum = layout->checksums};
	if (kind == ZERO_SAVED_NAMED)
		saved_part(builder, tensor, tensor->states[state].block, &slice->first,
			   &slice->count);
	else
		own_part(builder, tensor, &slice->first, &slice->count);
	if (!slice->count)
		return true;
	safetensors_dtype_name(slice->dtype, &size);
	if (__builtin_mul_overflow(slice->count, size, &slice->bytes) ||
	    __builtin_add_overflow(layout->bytes, slice->bytes, &layout->bytes) ||
	    layout->bytes > (uint64_t)INT64_MAX / 2)
		return false;
	layout->checksums += (slice->bytes + ZERO_CHECKSUM_BLOCK - 1) / ZERO_CHECKSUM_BLOCK;
	layout->count++;
	return true;
}

/* Adds the slices of a tensor that are of one kind. */
static bool add_slices(const struct layout_builder *builder, size_t index,
		       enum zero_saved_kind kind)
{
	const struct zero_manifest_tensor *tensor = &builder->manifest->tensors[index];
	bool fits = true;

	if (kind != ZERO_SAVED_NAMED)
		return !zero_tensor_has(builder->manifest, tensor, kind) ||
		       add_slice(builder, index, kind, 0);
	for (size_t state = 0; fits && state < tensor->state_count; state++)
		fits = add_slice(builder, index, kind, state);
	return fits;
}

zero_status manifest_shard(const struct zero_manifest *manifest, int rank,
			   struct zero_shard_layout *layout)
{
	struct layout_builder builder = {.manifest = manifest, .rank = rank, .layout = layout};
	size_t capacity = manifest->tensor_count * ZERO_SAVED_NAMED + 1;
	zero_status status = ZERO_OK;

	for (size_t i = 0; i < manifest->tensor_count; i++)
		capacity += manifest->tensors[i].state_count;
	*layout = (struct zero_shard_layout){.slices = calloc(capacity, sizeof(*layout->slices))};
	builder.places = calloc(manifest->team_count + 1, sizeof(*builder.places));
	if (!layout->slices || !builder.places)
		status = zero_core->fail(ZERO_E_MEMORY, "no memory to list %zu tensors of %s",
					 capacity, manifest->files[rank].name);
	for (size_t t = 0; !status && t < manifest->team_count; t++)
		builder.places[t] = place_in(&manifest->teams[t], rank);
	for (int kind = 0; !status && kind < ZERO_SAVED_KINDS; kind++)
		for (size_t i = 0; !status && i < manifest->tensor_count; i++)
			if (!add_slices(&builder, i, (enum zero_saved_kind)kind))
				status = zero_core->fail(
					ZERO_E_FORMAT,
					"%s would have 2^62 bytes or more with tensor \"%s\"",
					manifest->files[rank].name,
					files_printable(manifest->tensors[i].name).text);
	free(builder.places);
	if (status) {
		free(layout->slices);
		*layout = (struct zero_shard_layout){.slices = NULL};
	}
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where parameters are stored: each rank's part of them, the buffers, and the place of an
   element. */
#include <stdlib.h>
#include <string.h>

#include "slices.h"

/* All of the segment, or of the neighbouring `shards` the ones with this rank's own; nothing on a
   rank that is not in the team. */
static void part_of(const zero_group *group, const struct zero_segment *segment, bool all,
		    size_t shards, size_t *first, size_t *count)
{
	*first = *count = 0;
	if (group->own_shard < 0)
		return;
	if (!all)
		*first = (size_t)group->own_shard / shards * shards * segment->shard;
	*count = all ? segment->count : shards * segment->shard;
}

void zero_owned_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		     size_t *count)
{
	part_of(group, segment, false, 1, first, count);
}

void zero_stored_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		      size_t *count)
{
	part_of(group, segment, group->replicated, zero_replicas(group), first, count);
}

void zero_stepped_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		       size_t *count)
{
	part_of(group, segment, group->steps_replicated, 1, first, count);
}

void zero_param_part(const zero_param *param, size_t segment_first, size_t segment_count,
		     size_t *first, size_t *count)
{
	size_t begin = param->first > segment_first ? param->first : segment_first;
	size_t end = param->first + param->count;

	if (end > segment_first + segment_count)
		end = segment_first + segment_count;
	*count = end > begin ? end - begin : 0;
	*first = *count ? begin - param->first : 0;
}

char *zero_stored_at(const struct zero_flat *flat, const struct zero_segment *segment,
		     size_t element)
{
	size_t first, count;

	zero_stored_part(flat->group, segment, &first, &count);
	return flat->stored + segment->stored_at +
	       (element - first) * zero_dtype_size(segment->dtype);
}

/* Offsets of the segments in the flat's buffers. Each begins at a multiple of 4096 bytes. */
static void place_segments(struct zero_flat *flat)
{
	const zero_group *group = flat->group;
	const struct zero_rank_info *place = &group->shard_team->place;

	if (!zero_is_member(group))
		return;
	for (size_t i = 0; i < flat->segment_count; i++) {
		struct zero_segment *segment = &flat->segments[i];
		size_t size = zero_dtype_size(segment->dtype), first, stored, stepped;
		size_t ranks = group->replicated ? 1 : (size_t)place->shm_world;

		zero_stored_part(group, segment, &first, &stored);
		zero_stepped_part(group, segment, &first, &stepped);
		segment->first_at = segment->stored_at = flat->stored_bytes;
		if (!group->replicated)
			segment->stored_at += (size_t)place->shm_rank * stored * size;
		flat->stored_bytes += zero_round_to_pages(ranks * stored * size);
		if (!segment->trainable)
			continue;
		segment->gradient_at = flat->gradient_count;
		segment->state_at = flat->state_count;
		flat->gradient_count += segment->count;
		flat->state_count += stepped;
	}
}

zero_status zero_storage_alloc(zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	for (size_t f = 0; !status && f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		place_segments(flat);
		/* Ranks that share memory allocate together; flatten allocates what is adopted. */
		if (flat->stored_bytes && group->replicated && !group->adopts)
			status = job->ops->alloc(job->backend, ZERO_MEM_SHARDS, flat->stored_bytes,
						 true, (void **)&flat->stored);
	}
	return status;
}

static void free_flat(zero_job *job, struct zero_flat *flat)
{
	if (flat->shared_stored.data)
		job->ops->shared_free(job->backend, &flat->shared_stored);
	else
		job->ops->free(job->backend, flat->stored);
	job->ops->shared_free(job->backend, &flat->gathered);
	for (size_t i = 0; i < ZERO_GATHER_BUFFERS; i++)
		if (flat->buffers[i].address)
			job->ops->unreserve(job->backend, flat->buffers[i].address,
					    flat->buffers[i].bytes);
	job->ops->free(job->backend, flat->gradient);
	job->ops->free(job->backend, flat->reduced);
	job->ops->free(job->backend, flat->team_sums);
	free(flat->segments);
}

static void free_flats(zero_group *group)
{
	for (size_t f = 0; f < group->flat_count; f++)
		free_flat(group->job, &group->flats[f]);
	free(group->flats);
	group->flats = NULL;
	group->flat_count = 0;
}

void zero_storage_free(zero_group *group)
{
	zero_states_free(group, true);
	for (size_t s = 0; s < group->slice_count; s++)
		free_flats(&group->slices[s]);
	zero_slices_free(group);
	free_flats(group);
	for (size_t i = 0; i < group->param_count; i++)
		group->params[i]->flat = NULL;
}

void zero_step_states_free(zero_group *group)
{
	zero_job *job = group->job;

	if (group->own_step_states && !job->ops->host_memory)
		job->ops->free(job->backend, group->own_step_states);
	else
		free(group->own_step_states);
	group->own_step_states = group->step_state = NULL;
}

zero_status zero_storage_alloc_shared(zero_job *job, zero_team *team)
{
	struct zero_op *ops;
	zero_status status = ZERO_OK;
	size_t flats = 0, count = 0;

	for (size_t g = job->model->layout_first; g < job->model->group_count; g++)
		flats += job->model->groups[g]->flat_count;
	ops = calloc(flats + 1, sizeof(*ops));
	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory for a layout of %zu buffers", flats);
	for (size_t g = job->model->layout_first; ops && g < job->model->group_count; g++) {
		zero_group *group = job->model->groups[g];

		for (size_t f = 0; group->shard_team == team && f < group->flat_count; f++)
			if (!group->replicated && !group->adopts && group->flats[f].stored_bytes)
				ops[count++] = (struct zero_op){
					.kind = ZERO_OP_ALLOC,
					.memory = ZERO_MEM_SHARDS,
					.zeroed = true,
					.shared = &group->flats[f].shared_stored,
					.count = group->flats[f].stored_bytes,
				};
	}
	status = zero_submit_wait(team, status, ops, count, ZERO_WORK_OTHER,
				  "shards of %zu buffers", count);
	for (size_t i = 0; i < count; i++) {
		struct zero_flat *flat =
			(struct zero_flat *)(void *)((char *)ops[i].shared -
						     offsetof(struct zero_flat, shared_stored));

		flat->stored = flat->shared_stored.data;
	}
	free(ops);
	return status;
}

zero_status zero_shard(const zero_param *param, void **data, size_t *first, size_t *count)
{
	const struct zero_segment *segment;
	size_t segment_first, segment_count;
	zero_status status;

	*data = NULL;
	*first = *count = 0;
	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has no shard before zero_layout",
				 param->name);
	/* Values that other ranks stepped may still be under way. */
	status = zero_wait_post_step_gather(param->group);
	if (status)
		return status;
	segment = &param->flat->segments[param->segment];
	zero_stored_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
	if (*count)
		*data = zero_stored_at(param->flat, segment, param->first + *first);
	return ZERO_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where parameters lie: what each rank stores of them, the buffers for it, and finding one's
   place. */
#include <stdlib.h>
#include <string.h>

#include "job/internal.h"

static void part_of(const zero_group *group, const struct zero_segment *segment, bool whole,
		    size_t *first, size_t *count)
{
	int rank = group->team->place.rank;

	*first = whole || rank < 0 ? 0 : segment->shard * (size_t)rank;
	*count = rank < 0 ? 0 : whole ? segment->count : segment->shard;
}

void zero_stored_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		      size_t *count)
{
	part_of(group, segment, group->replicated, first, count);
}

void zero_stepped_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		       size_t *count)
{
	part_of(group, segment, group->steps_replicated, first, count);
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

/* Offsets of the segments in the flat's buffers. Runs begin at multiples of 4096 bytes. */
static void place_runs(struct zero_flat *flat)
{
	const zero_group *group = flat->group;
	const struct zero_place *place = &group->team->place;

	if (!zero_is_member(group))
		return;
	for (size_t i = 0; i < flat->segment_count; i++) {
		struct zero_segment *segment = &flat->segments[i];
		size_t size = zero_dtype_size(segment->dtype), first, stepped;
		size_t shards = group->replicated ? (size_t)place->world : (size_t)place->shm_world;

		zero_stepped_part(group, segment, &first, &stepped);
		segment->first_at = segment->stored_at = flat->stored_bytes;
		if (!group->replicated)
			segment->stored_at += (size_t)place->shm_rank * segment->shard * size;
		flat->stored_bytes += zero_round_to_pages(shards * segment->shard * size);
		if (!segment->trainable)
			continue;
		segment->gradient_at = flat->gradient_count;
		segment->state_at = flat->state_count;
		flat->gradient_count += segment->count;
		flat->state_count += stepped;
	}
}

static zero_status lay_out_flat(zero_job *job, struct zero_flat *flat, zero_group *group,
				size_t index, const struct zero_layout_item *items,
				zero_param **params, size_t item_count,
				const struct zero_layout_segment *segments, size_t segment_count)
{
	flat->group = group;
	for (size_t i = 0; i < segment_count; i++)
		flat->segment_count += segments[i].flat == index;
	flat->segments = calloc(flat->segment_count, sizeof(*flat->segments));
	if (!flat->segments)
		return zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
	for (size_t i = 0; i < item_count; i++) {
		if (items[i].flat != index)
			continue;
		params[i]->flat = flat;
		params[i]->segment = items[i].segment;
		params[i]->first = items[i].first;
	}
	for (size_t i = 0, at = 0; i < segment_count; i++)
		if (segments[i].flat == index)
			flat->segments[at++] = (struct zero_segment){
				.dtype = segments[i].dtype,
				.trainable = segments[i].trainable,
				.count = segments[i].count,
				.shard = segments[i].count / (size_t)group->team->place.world,
			};
	place_runs(flat);
	/* What ranks share is allocated by all of them together, and what is given when it is
	   laid. */
	if (!flat->stored_bytes || !group->replicated || group->adopts)
		return ZERO_OK;
	return job->ops->alloc(job->backend, ZERO_MEM_SHARDS, flat->stored_bytes, true,
			       (void **)&flat->stored);
}

/* The option's choices are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

/* At stages 1 and 2 ranks of one node need no copies either: what one steps, all of them see. */
static void choose_storage(const zero_job *job, zero_group *group)
{
	const struct zero_place *place = &group->team->place;

	group->steps_replicated = place->world == 1 || job->stage == 0;
	group->replicated =
		group->steps_replicated || (job->stage < 3 && !zero_place_all_share_memory(place));
	group->in_place = group->replicated || zero_place_all_share_memory(place);
}

static zero_status lay_out_group(zero_job *job, zero_group *group)
{
	enum zero_layout_mode mode =
		(enum zero_layout_mode)job->settings.value[ZERO_OPT_ALLGATHER].number;
	size_t bucket = job->settings.value[ZERO_OPT_BUCKET].number;
	struct zero_layout_item *items;
	struct zero_layout_segment *segments = NULL;
	size_t item_count = 0, segment_count = 0, flat_count = 0;
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
	choose_storage(job, group);
	status = zero_layout_group(items, item_count, (size_t)group->team->place.world, mode,
				   bucket, &segments, &segment_count, &flat_count);
	if (status)
		goto out;
	group->flats = calloc(flat_count ? flat_count : 1, sizeof(*group->flats));
	if (!group->flats) {
		status = zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
		goto out;
	}
	group->flat_count = flat_count;
	job->sizing.world = (size_t)group->team->place.world;
	job->sizing.share = (size_t)group->team->place.shm_world_min;
	job->sizing.gradient_size = zero_dtype_size(group->gradient_dtype);
	if (zero_is_member(group))
		zero_sizing_group(&job->sizing, segments, segment_count);
	for (size_t f = 0; !status && f < flat_count; f++)
		status = lay_out_flat(job, &group->flats[f], group, f, items, params, item_count,
				      segments, segment_count);
	for (size_t i = 0; !status && i < group->param_count; i++) {
		zero_param *param = group->params[i], *target = param->alias_of;

		if (!target)
			continue;
		param->flat = target->flat;
		param->segment = target->segment;
		param->first = target->first;
	}
out:
	free(segments);
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
		hash = zero_hash(&group->gradient_dtype, sizeof(group->gradient_dtype), hash);
		if (group->team->ranks)
			hash = zero_hash(group->team->ranks,
					 (size_t)group->team->place.world * sizeof(int), hash);
		for (size_t p = 0; p < group->param_count; p++) {
			const zero_param *param = group->params[p];
			int kind[] = {(int)param->dtype, param->trainable, param->alias_of != NULL,
				      param->ndim};

			hash = zero_hash(param->name, strlen(param->name) + 1, hash);
			if (param->alias_of)
				hash = zero_hash(param->alias_of->name,
						 strlen(param->alias_of->name) + 1, hash);
			hash = zero_hash(kind, sizeof(kind), hash);
			hash = zero_hash(param->shape, sizeof(param->shape), hash);
			hash = zero_hash(&param->weight_decay, sizeof(float), hash);
			hash = zero_hash(&param->lr_scale, sizeof(float), hash);
			if (param->adopted) {
				int given[] = {(int)param->adopted->location,
					       (int)param->adopted->values, param->adopted->rank};

				hash = zero_hash(given, sizeof(given), hash);
			}
		}
	}
	return hash;
}

void zero_storage_drop(zero_group *group)
{
	zero_job *job = group->job;

	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		if (flat->window.data)
			job->ops->shared_free(job->backend, &flat->window);
		else
			job->ops->free(job->backend, flat->stored);
		job->ops->shared_free(job->backend, &flat->gathered);
		job->ops->free(job->backend, flat->gradient);
		job->ops->free(job->backend, flat->reduced);
		job->ops->free(job->backend, flat->m);
		job->ops->free(job->backend, flat->v);
		job->ops->free(job->backend, flat->master);
		free(flat->segments);
	}
	free(group->flats);
	group->flats = NULL;
	group->flat_count = 0;
	for (size_t i = 0; i < group->param_count; i++)
		group->params[i]->flat = NULL;
}

/* COLLECTIVE over the team: the windows of its groups. */
static zero_status alloc_windows(zero_job *job, zero_team *team)
{
	struct zero_op *ops;
	zero_status status = ZERO_OK;
	size_t flats = 0, count = 0;

	for (size_t g = 0; g < job->group_count; g++)
		flats += job->groups[g]->flat_count;
	ops = calloc(flats + 1, sizeof(*ops));
	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory for a layout of %zu buffers", flats);
	for (size_t g = 0; ops && g < job->group_count; g++) {
		zero_group *group = job->groups[g];

		for (size_t f = 0; group->team == team && f < group->flat_count; f++)
			if (!group->replicated && !group->adopts && group->flats[f].stored_bytes)
				ops[count++] = (struct zero_op){
					.kind = ZERO_OP_ALLOC,
					.memory = ZERO_MEM_SHARDS,
					.zeroed = true,
					.shared = &group->flats[f].window,
					.count = group->flats[f].stored_bytes,
				};
	}
	status = zero_submit_wait(team, status, ops, count, "shards of %zu buffers", count);
	for (size_t i = 0; i < count; i++) {
		struct zero_flat *flat =
			(struct zero_flat *)(void *)((char *)ops[i].shared -
						     offsetof(struct zero_flat, window));

		flat->stored = flat->window.data;
	}
	free(ops);
	return status;
}

static zero_status alloc_all_windows(zero_job *job)
{
	zero_status status = alloc_windows(job, &job->all);

	if (status)
		return status;
	/* Also after an error: a peer may be in a further team, and waits there. */
	for (zero_team *team = job->teams; team; team = team->next) {
		zero_status one = team->place.rank < 0 ? ZERO_OK : alloc_windows(job, team);

		status = status ? status : one;
	}
	return status;
}

zero_status zero_layout(zero_job *job)
{
	zero_status status = ZERO_OK;
	size_t params = 0, elements = 0;

	for (size_t g = 0; g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++, params++)
			elements += job->groups[g]->params[p]->count;
	if (job->laid_out)
		return zero_submit_wait(&job->all,
					zero_fail(ZERO_E_STATE, "zero_layout was called twice"),
					NULL, 0, "layout");
	job->sizing = (struct zero_sizing){
		.stage = job->stage,
		.device = !job->ops->host_memory,
		.offload = job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER,
	};
	for (size_t g = 0; !status && g < job->group_count; g++)
		status = lay_out_group(job, job->groups[g]);
	job->sizing.world = (size_t)job->place.world;
	job->sizing.share = (size_t)job->place.shm_world_min;
	status = zero_submit_wait(
		&job->all, status, NULL, 0,
		"layout of %zu groups with %zu parameters of %zu elements (model %016llx)",
		job->group_count, params, elements, (unsigned long long)model_hash(job));
	if (!status) {
		status = alloc_all_windows(job);
		/* A team's error is not yet known to the others. */
		if (job->teams)
			status = zero_submit_wait(&job->all, status, NULL, 0,
						  "memory of the layout");
	}
	if (!status)
		zero_job_choose_tier(job);
	if (!status && job->adopts)
		status = zero_flatten_adopted(job);
	job->laid_out = !status;
	for (size_t g = 0; status && g < job->group_count; g++)
		zero_storage_drop(job->groups[g]);
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
	/* What other ranks stepped may be on its way here. */
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

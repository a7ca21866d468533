/* SPDX-License-Identifier: Apache-2.0 */
/* zero_layout: fixes the layout of new groups, agrees on it, and allocates what is stored. */
#include "model.h"

#include <stdlib.h>
#include <string.h>

/* The option's values are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

static zero_status lay_out_flat(struct zero_flat *flat, zero_group *group, size_t index,
				const struct zero_layout_item *items, zero_param **params,
				size_t item_count, const struct zero_layout_segment *segments,
				size_t segment_count)
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
	return ZERO_OK;
}

/* At stages 1 and 2 the ranks of a node need no copies: they all see what one of them steps. */
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
	zero_param **params; /* all but aliases */

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
	job->model->sizing.world = (size_t)group->team->place.world;
	job->model->sizing.share = (size_t)group->team->place.shm_world_min;
	job->model->sizing.gradient_size = zero_dtype_size(group->gradient_dtype);
	if (zero_is_member(group))
		zero_sizing_group(&job->model->sizing, segments, segment_count);
	for (size_t f = 0; !status && f < flat_count; f++)
		status = lay_out_flat(&group->flats[f], group, f, items, params, item_count,
				      segments, segment_count);
	if (!status)
		status = zero_storage_alloc(group);
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

/* A hash of everything that must be equal on all ranks. */
static uint64_t model_hash(const zero_job *job)
{
	uint64_t hash = zero_hash(&job->program_steps, sizeof(job->program_steps), 0);

	for (size_t g = job->model->layout_first; g < job->model->group_count; g++) {
		const zero_group *group = job->model->groups[g];

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

static zero_status alloc_shared(zero_job *job)
{
	zero_status status = zero_storage_alloc_shared(job, &job->all);

	if (status)
		return status;
	/* Also after an error, since a peer may be waiting in a further team. */
	for (zero_team *team = job->teams; team; team = team->next) {
		zero_status one =
			team->place.rank < 0 ? ZERO_OK : zero_storage_alloc_shared(job, team);

		status = status ? status : one;
	}
	return status;
}

/* The tier for tensors that are on the device and equal on all ranks. The hook of the load room
   replaces it if tensors were adopted. */
static void forecast_tier(zero_job *job)
{
	job->model->tier = zero_tier_forecast(
		&job->model->sizing, job->settings.value[ZERO_OPT_FLATTEN].number,
		job->settings.value[ZERO_OPT_BUDGET].number, job->stream_chunk);
}

/* Allocates the states of steps of the groups that are laid out now, for as long as the job is open.
   Where the states are staged, the host computes these too. */
static zero_status alloc_step_states(zero_job *job)
{
	size_t first = job->model->layout_first, count = job->model->group_count - first;
	size_t bytes = zero_round_to_pages(count * sizeof(struct zero_step_state));
	enum zero_memory_kind kind = zero_states_staged(job) ? ZERO_MEM_PINNED : ZERO_MEM_STAGING;
	zero_status status = ZERO_OK;
	void *states = NULL;

	if (!count)
		return ZERO_OK;
	if (!job->ops->host_memory)
		status = job->ops->alloc(job->backend, kind, bytes, true, &states);
	else if (!(states = calloc(1, bytes)))
		status = zero_fail(ZERO_E_MEMORY, "no memory for the steps of %zu groups", count);
	if (status)
		return status;
	job->model->groups[first]->own_step_states = states;
	for (size_t i = 0; i < count; i++)
		job->model->groups[first + i]->step_state = (struct zero_step_state *)states + i;
	return ZERO_OK;
}

/* COLLECTIVE. Lays out groups [layout_first, group_count). */
static zero_status lay_out_groups(zero_job *job)
{
	struct zero_model *model = job->model;
	zero_status status = ZERO_OK;
	size_t params = 0, elements = 0;

	for (size_t g = model->layout_first; g < model->group_count; g++)
		for (size_t p = 0; p < model->groups[g]->param_count; p++, params++)
			elements += model->groups[g]->params[p]->count;
	for (size_t g = model->layout_first; !status && g < model->group_count; g++)
		status = lay_out_group(job, model->groups[g]);
	model->sizing.world = (size_t)job->place.world;
	model->sizing.share = (size_t)job->place.shm_world_min;
	if (!status)
		status = alloc_step_states(job);
	status = zero_submit_wait(
		&job->all, status, NULL, 0,
		"layout of %zu groups with %zu parameters of %zu elements (model %016llx)",
		model->group_count - model->layout_first, params, elements,
		(unsigned long long)model_hash(job));
	if (!status) {
		status = alloc_shared(job);
		/* So far only the team's ranks know of an error in a team. */
		if (job->teams)
			status = zero_submit_wait(&job->all, status, NULL, 0,
						  "memory of the layout");
	}
	if (!status) {
		forecast_tier(job);
		status = zero_hooks_after_layout(job);
	}
	return status;
}

zero_status zero_layout(zero_job *job)
{
	struct zero_model *model = job->model;
	struct zero_sizing before = model->sizing;
	zero_status status = zero_job_check_memory(job, "zero_layout");

	if (status)
		return status;
	if (!job->laid_out) {
		model->states = (zero_states)job->settings.value[ZERO_OPT_STATES].number;
		model->sizing = (struct zero_sizing){
			.stage = job->stage,
			.device = !job->ops->host_memory,
			.no_states = job->program_steps,
			.offload = job->settings.value[ZERO_OPT_OFFLOAD].number ==
				   ZERO_OFFLOAD_OPTIMIZER,
			.states_8bit = model->states == ZERO_STATES_8BIT,
		};
	}
	model->layout_first = model->group_count;
	model->group_count = model->made_count;
	status = lay_out_groups(job);
	if (!status) {
		job->laid_out = true;
		model->adopts = false;
		if (job->stage < 3)
			job->flatten_tier = zero_tier_name(model->tier);
		return ZERO_OK;
	}
	for (size_t g = model->layout_first; g < model->group_count; g++)
		zero_storage_free(model->groups[g]);
	model->group_count = model->layout_first;
	model->sizing = before;
	return status;
}

static bool close_model(zero_job *job)
{
	struct zero_model *model = job->model;

	for (size_t g = 0; g < model->made_count; g++) {
		zero_storage_free(model->groups[g]);
		zero_group_free(model->groups[g]);
	}
	free(model->groups);
	return true;
}

const struct zero_hooks zero_model_hooks = {.close = close_model};

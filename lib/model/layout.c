/* SPDX-License-Identifier: Apache-2.0 */
/* zero_layout: fixes the layout of new groups, agrees on it, and allocates what is stored. */
#include "model.h"
#include "slices.h"

#include <stdlib.h>
#include <string.h>

/* The option's values are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

static zero_status lay_out_flat(struct zero_flat *flat, size_t index,
				const struct zero_group_layout *layout, zero_group *group)
{
	flat->group = group;
	for (size_t i = 0; i < layout->segment_count; i++)
		flat->segment_count += layout->segments[i].flat == index;
	flat->segments = calloc(flat->segment_count, sizeof(*flat->segments));
	if (!flat->segments)
		return zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
	for (size_t i = 0; i < layout->item_count; i++) {
		if (layout->items[i].flat != index)
			continue;
		layout->params[i]->flat = flat;
		layout->params[i]->segment = layout->items[i].segment;
		layout->params[i]->first = layout->items[i].first;
	}
	for (size_t i = 0, at = 0; i < layout->segment_count; i++)
		if (layout->segments[i].flat == index)
			flat->segments[at++] = (struct zero_segment){
				.dtype = layout->segments[i].dtype,
				.trainable = layout->segments[i].trainable,
				.count = layout->segments[i].count,
				.shard = layout->segments[i].count /
					 (size_t)group->team->place.world,
			};
	return ZERO_OK;
}

/* Where the group is sharded, and which ranks store the same. At stages 1 and 2 the ranks of a node
   need no copies: they all see what one of them steps. */
static void choose_storage(const zero_job *job, zero_group *group)
{
	const struct zero_grid *grid = group->team == &job->all ? job->grid : NULL;
	const struct zero_rank_info *place = &group->team->place;

	group->shard_team = grid ? grid->shard_team : group->team;
	group->replica_team = grid ? grid->replica_team : NULL;
	group->own_shard = grid ? (int)grid->own_shard : place->rank;
	group->steps_replicated = place->world == 1 || job->stage == 0;
	group->replicated = group->steps_replicated || group->shard_team->place.world == 1 ||
			    (job->stage < 3 && !zero_all_share_memory(place));
	group->in_place = group->replicated || zero_all_share_memory(&group->shard_team->place);
}

zero_status zero_group_layout_find(const zero_group *group, struct zero_group_layout *layout)
{
	const zero_job *job = group->job;
	enum zero_layout_mode mode =
		(enum zero_layout_mode)job->settings.value[ZERO_OPT_ALLGATHER].number;
	size_t bucket = job->settings.value[ZERO_OPT_BUCKET].number;
	zero_status status;

	*layout = (struct zero_group_layout){
		.items = calloc(group->param_count + 1, sizeof(*layout->items)),
		.params = calloc(group->param_count + 1, sizeof(zero_param *))};
	if (!layout->items || !layout->params)
		return zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
	for (size_t i = 0; i < group->param_count; i++) {
		zero_param *param = group->params[i];

		if (param->alias_of)
			continue;
		layout->items[layout->item_count] =
			(struct zero_layout_item){.dtype = param->dtype,
						  .trainable = param->trainable,
						  .count = param->count};
		layout->params[layout->item_count++] = param;
	}
	status = zero_layout_group(layout->items, layout->item_count,
				   (size_t)group->team->place.world, mode, bucket,
				   &layout->segments, &layout->segment_count, &layout->flat_count);
	return status ? status : zero_slices_align(group, layout);
}

void zero_group_layout_free(struct zero_group_layout *layout)
{
	free(layout->segments);
	free(layout->params);
	free(layout->items);
}

/* `grid` is NULL for a group of another team. */
static void set_sizing_ranks(struct zero_sizing *sizing, const zero_team *team,
			     const struct zero_grid *grid)
{
	sizing->world = (size_t)team->place.world;
	sizing->share = (size_t)team->place.shm_world_min;
	sizing->team = 0;
	if (!grid)
		return;
	sizing->team = (size_t)grid->shard_team->place.world;
	sizing->team_share = (size_t)grid->shard_team->place.shm_world_min;
	sizing->replica_share = (size_t)grid->replica_team->place.shm_world_min;
}

static zero_status lay_out_group(zero_job *job, zero_group *group)
{
	struct zero_group_layout layout;
	zero_status status = zero_group_layout_find(group, &layout);

	if (status)
		goto out;
	choose_storage(job, group);
	group->flats = calloc(layout.flat_count ? layout.flat_count : 1, sizeof(*group->flats));
	if (!group->flats) {
		status = zero_fail(ZERO_E_MEMORY, "no memory to lay out group '%s'", group->name);
		goto out;
	}
	group->flat_count = layout.flat_count;
	set_sizing_ranks(&job->model->sizing, group->team, group->replica_team ? job->grid : NULL);
	zero_sizing_add(&job->model->sizing, group, &layout);
	for (size_t f = 0; !status && f < group->flat_count; f++)
		status = lay_out_flat(&group->flats[f], f, &layout, group);
	if (!status)
		status = zero_storage_alloc(group);
	if (!status)
		status = zero_slices_make(group);
	for (size_t i = 0; !status && i < group->param_count; i++) {
		zero_param *param = group->params[i], *target = param->alias_of;

		if (!target)
			continue;
		param->flat = target->flat;
		param->segment = target->segment;
		param->first = target->first;
	}
out:
	zero_group_layout_free(&layout);
	return status;
}

/* A hash of everything that must be equal on all ranks. */
static uint64_t model_hash(const zero_job *job)
{
	uint64_t hash = zero_hash(&job->program_steps, sizeof(job->program_steps), 0);

	hash = zero_hash(job->shard_ranks, strlen(job->shard_ranks), hash);
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++) {
		const zero_group *group = job->model->groups[g];

		hash = zero_hash(group->name, strlen(group->name) + 1, hash);
		hash = zero_hash(&group->gradient_dtype, sizeof(group->gradient_dtype), hash);
		hash = zero_hash(&group->slice_bytes, sizeof(group->slice_bytes), hash);
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
	zero_status status =
		zero_storage_alloc_shared(job, job->grid ? job->grid->shard_team : &job->all);

	if (status && !job->grid)
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

/* Allocates the states of steps of the groups that are laid out now, for as long as the job is
   open. Where the states are staged, the host computes these too. */
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
	if (!job->laid_out)
		status = zero_grid_choose(job);
	for (size_t g = model->layout_first; !status && g < model->group_count; g++)
		status = lay_out_group(job, model->groups[g]);
	set_sizing_ranks(&model->sizing, &job->all, job->grid);
	if (!status)
		status = alloc_step_states(job);
	status = zero_submit_wait(
		&job->all, status, NULL, 0, ZERO_WORK_OTHER,
		"layout of %zu groups with %zu parameters of %zu elements (model %016llx)",
		model->group_count - model->layout_first, params, elements,
		(unsigned long long)model_hash(job));
	if (!status) {
		status = alloc_shared(job);
		/* So far only the team's ranks know of an error in a team. */
		if (job->teams || job->grid)
			status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_OTHER,
						  "memory of the layout");
	}
	if (!status) {
		forecast_tier(job);
		status = zero_hooks_after_layout(job);
	}
	return status;
}

struct zero_sizing zero_sizing_of(const zero_job *job)
{
	const struct zero_value *value = job->settings.value;

	return (struct zero_sizing){
		.stage = job->stage,
		.device = !job->ops->host_memory,
		.no_states = job->program_steps,
		.offload = value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER,
		.states_8bit = value[ZERO_OPT_STATES].number == ZERO_STATES_8BIT,
	};
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
		model->sizing = zero_sizing_of(job);
	}
	model->layout_first = model->group_count;
	model->group_count = model->made_count;
	status = lay_out_groups(job);
	if (!status) {
		job->laid_out = true;
		model->adopts = false;
		model->released_tensors = false;
		if (job->stage < 3)
			job->flatten_tier = zero_tier_name(model->tier);
		return ZERO_OK;
	}
	for (size_t g = model->layout_first; g < model->group_count; g++) {
		zero_storage_free(model->groups[g]);
		zero_step_states_free(model->groups[g]);
	}
	model->group_count = model->layout_first;
	model->sizing = before;
	return status;
}

static bool close_model(zero_job *job)
{
	struct zero_model *model = job->model;

	for (size_t g = 0; g < model->made_count; g++) {
		zero_storage_free(model->groups[g]);
		zero_step_states_free(model->groups[g]);
		zero_group_free(model->groups[g]);
	}
	free(model->groups);
	return true;
}

const struct zero_hooks zero_model_hooks = {.close = close_model};

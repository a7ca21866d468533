/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Over how many ranks one copy of the model is sharded: the option `shard`. With `auto` as few as
 * have room for what the model is known to need, so that what stays within a node is not sent
 * beyond it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "slices.h"

zero_status zero_grid_measure(const zero_job *job, size_t size, struct zero_sizing *sizing)
{
	const struct zero_model *model = job->model;
	zero_status status = ZERO_OK;

	*sizing = zero_sizing_of(job);
	sizing->no_states = false;
	for (size_t g = model->layout_first; !status && g < model->group_count; g++) {
		const zero_group *group = model->groups[g];
		struct zero_group_layout layout;

		status = zero_group_layout_find(group, &layout);
		sizing->world = (size_t)group->team->place.world;
		sizing->share = (size_t)group->team->place.shm_world_min;
		sizing->team = 0;
		if (group->team == &job->all)
			zero_sizing_set_team(sizing, size);
		if (!status)
			zero_sizing_add(sizing, group, &layout);
		zero_group_layout_free(&layout);
	}
	sizing->world = (size_t)job->place.world;
	sizing->share = (size_t)job->place.shm_world_min;
	zero_sizing_set_team(sizing, size);
	return status;
}

zero_status zero_grid_fit(const zero_job *job, const struct zero_nodes *nodes, size_t *size)
{
	uint64_t budget = job->settings.value[ZERO_OPT_BUDGET].number, bytes = UINT64_MAX;
	struct zero_sizing sizing;
	zero_status status = ZERO_OK;

	*size = 0;
	while (!status && *size < (size_t)job->place.world && bytes > budget) {
		*size = zero_grid_size_above(nodes->ranks, nodes->count, *size);
		status = zero_grid_measure(job, *size, &sizing);
		bytes = zero_add_saturated(zero_sizing_total(&sizing), job->held);
	}
	return status;
}

/* COLLECTIVE. Groups of other teams may need more on some ranks than on others. */
static zero_status choose_by_memory(zero_job *job, const struct zero_nodes *nodes, size_t *size)
{
	size_t world = (size_t)job->place.world, fits = 0;
	uint64_t mine, *all = calloc(world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .recv = all, .count = sizeof(mine)};
	zero_status status = ZERO_OK;

	if (!all)
		status = zero_fail(ZERO_E_MEMORY, "no memory to size %zu ranks", world);
	else
		status = zero_grid_fit(job, nodes, &fits);
	mine = fits;
	status =
		zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_OTHER, "ranks to shard over");
	*size = 1;
	for (size_t rank = 0; !status && rank < world; rank++)
		*size = all[rank] > *size ? all[rank] : *size;
	free(all);
	return status;
}

/* The same on all ranks. */
static zero_status whole_node(const zero_job *job, const struct zero_nodes *nodes, size_t *size)
{
	for (size_t n = 1; n < nodes->count; n++)
		if (nodes->ranks[n] != nodes->ranks[0])
			return zero_fail(
				ZERO_E_INVALID,
				"shard is 'node' (from %s), but one node has %zu ranks and "
				"another %zu: give each as many, or set a number of ranks",
				job->settings.origin[ZERO_OPT_SHARD], nodes->ranks[0],
				nodes->ranks[n]);
	*size = nodes->ranks[0];
	return ZERO_OK;
}

zero_status zero_grid_setting(const zero_job *job, const struct zero_nodes *nodes, size_t *size)
{
	uint64_t setting = job->settings.value[ZERO_OPT_SHARD].number;
	size_t world = (size_t)job->place.world;

	if (setting == ZERO_SHARD_NODE && nodes->count)
		return whole_node(job, nodes, size);
	*size = setting < ZERO_SHARD_ALL ? setting : world;
	if (world % *size == 0)
		return ZERO_OK;
	return zero_fail(ZERO_E_INVALID,
			 "shard is %zu (from %s), which does not divide the %zu ranks of the job",
			 *size, job->settings.origin[ZERO_OPT_SHARD], world);
}

zero_status zero_grid_choose(zero_job *job)
{
	uint64_t setting = job->settings.value[ZERO_OPT_SHARD].number;
	struct zero_nodes nodes = {0};
	zero_status status = ZERO_OK;
	size_t size;

	zero_grid_free(job);
	/* At other stages each rank has all parameters. */
	if (job->stage < 3)
		return ZERO_OK;
	if (setting != ZERO_SHARD_ALL)
		status = zero_nodes_find(job, &nodes);
	if (!status)
		status = zero_grid_setting(job, &nodes, &size);
	if (!status && setting == ZERO_SHARD_AUTO)
		status = choose_by_memory(job, &nodes, &size);
	if (!status && size < (size_t)job->place.world)
		status = zero_grid_new(job, &nodes, size);
	if (!status)
		snprintf(job->shard_ranks, sizeof(job->shard_ranks), "%zu", size);
	zero_nodes_free(&nodes);
	return status;
}

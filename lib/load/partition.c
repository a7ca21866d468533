/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition: every rank fills the part of a parameter that it stores, chunk by chunk, without
 * staging. Threshold and chunk are DeepSpeed's idea; its pull request on streaming partition
 * broadcasts every chunk to every rank. Here each rank is sent its own slice only, and values that
 * a rank can read or compute by slice are never sent.
 */
#include <stdio.h>
#include <stdlib.h>

#include "load.h"

/* Elements of one piece: all of the parameter if it is not above the threshold. */
static size_t piece_elements(const zero_job *job, const zero_param *param)
{
	size_t size = zero_dtype_size(param->dtype), chunk = job->stream_chunk;

	if (param->count * size <= job->stream_threshold)
		return param->count ? param->count : 1;
	/* A device needs as long for fewer bytes. */
	if (!job->ops->host_memory && chunk < ZERO_STAGING_MIN)
		chunk = ZERO_STAGING_MIN;
	return chunk > size ? chunk / size : 1;
}

static zero_status check_load(const zero_param *param, const zero_source *source)
{
	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' is loaded before zero_layout",
				 param->name);
	if (param->alias_of)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is an alias of '%s': load its target", param->name,
				 param->alias_of->name);
	if (param->group->gather)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' is loaded while group '%s' is gathered",
				 param->name, param->group->name);
	if (source->kind == ZERO_FROM_RANK && param->group->team->ranks &&
	    zero_team_rank_of(param->group->team, source->rank) < 0)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is to come from rank %d, which is not in the team "
				 "of group '%s'",
				 param->name, source->rank, param->group->name);
	return zero_source_check(param, source);
}

/* Fills this rank's part with values that the rank can read or compute by itself. */
static zero_status load_own(zero_param *param, const zero_source *source)
{
	size_t size = zero_dtype_size(param->dtype);
	size_t piece = piece_elements(param->group->job, param);
	zero_status status;
	size_t first, count;
	void *data;

	status = zero_shard(param, &data, &first, &count);
	for (size_t at = 0; !status && at < count; at += piece)
		status = zero_source_read(param, source, (char *)data + at * size, first + at,
					  count - at < piece ? count - at : piece);
	return status;
}

struct zero_op zero_scatter_op(const zero_param *param, int rank, const void *data, bool replicated)
{
	const zero_team *team = param->group->team;

	return (struct zero_op){
		.kind = replicated ? ZERO_OP_BROADCAST : ZERO_OP_SCATTER,
		.from = param->dtype,
		.to = param->dtype,
		.root = zero_team_rank_of(team, rank),
		.count = param->count,
		.piece = piece_elements(param->group->job, param),
		.first = param->first,
		.shard = param->flat->segments[param->segment].shard,
		.send = data,
	};
}

/* The operations of the ranks that store a copy between them, one of which has the values, and those of
   the ranks that store the same. */
struct two_steps {
	struct zero_op *in_team, *over_copies;
	size_t in_team_count, over_copies_count;
};

static void add_steps(const struct zero_grid *grid, const struct zero_op *op,
		      struct two_steps *steps)
{
	const struct zero_place *place = &grid->shard_team->place;
	struct zero_op in_team = *op, over_copies = *op;

	in_team.root = zero_team_rank_of(grid->shard_team, op->root);
	in_team.shard *= (size_t)grid->replica_team->place.world;
	if (in_team.root >= 0)
		steps->in_team[steps->in_team_count++] = in_team;
	over_copies.kind = ZERO_OP_BROADCAST;
	over_copies.root = zero_team_rank_of(grid->replica_team, zero_grid_replica(grid, op->root));
	over_copies.send = op->recv;
	over_copies.count =
		zero_op_slice(&in_team, place->rank + 1) - zero_op_slice(&in_team, place->rank);
	if (over_copies.count)
		steps->over_copies[steps->over_copies_count++] = over_copies;
}

/* A rank's values go to the ranks of its team, and from each of these to the ranks that store the same. */
static zero_status scatter_in_grid(const struct zero_grid *grid, zero_status status,
				   const struct zero_op *ops, size_t count, const char *label)
{
	struct two_steps steps = {calloc(count + 1, sizeof(struct zero_op)),
				  calloc(count + 1, sizeof(struct zero_op)), 0, 0};

	if (!status && (!steps.in_team || !steps.over_copies))
		status = zero_fail(ZERO_E_MEMORY, "no memory to send %zu parameters", count);
	for (size_t i = 0; !status && i < count; i++)
		add_steps(grid, &ops[i], &steps);
	status = zero_submit_wait(&grid->shard_team->job->all, status, NULL, 0, "%s", label);
	if (!status && count) {
		if (steps.in_team_count)
			status = zero_submit_wait(grid->shard_team, ZERO_OK, steps.in_team,
						  steps.in_team_count, "%s", label);
		status = zero_submit_wait(grid->replica_team, status, steps.over_copies,
					  steps.over_copies_count, "%s", label);
	}
	free(steps.in_team);
	free(steps.over_copies);
	return status;
}

/* COLLECTIVE over the group's team. */
static zero_status scatter_all(const zero_group *group, zero_status status, struct zero_op *ops,
			       size_t count, const char *label)
{
	if (group->replica_team && !group->replicated)
		return scatter_in_grid(group->job->grid, status, ops, count, label);
	return zero_submit_wait(group->team, status, ops, count, "%s", label);
}

/* Sends a parameter from one rank to where this rank stores its part. */
static struct zero_op scatter_op(zero_param *param, const zero_source *source)
{
	const zero_group *group = param->group;
	struct zero_op op = zero_scatter_op(param, source->rank, source->data, group->replicated);
	size_t segment_first, segment_count, first, count;
	const struct zero_segment *segment = &param->flat->segments[param->segment];

	zero_stored_part(group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count)
		op.recv = zero_stored_at(param->flat, segment, param->first + first);
	return op;
}

/* What one call loads: parameters of one team. */
struct load {
	zero_team *team;
	zero_param **params;
	const zero_source *sources;
	size_t count;
	char *label;
};

/* Loads from all sources but ZERO_FROM_RANK. */
static zero_status load_all_own(const struct load *load)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < load->count; i++)
		if (load->sources[i].kind != ZERO_FROM_RANK && load->params[i]->count)
			status = load_own(load->params[i], &load->sources[i]);
	return status;
}

/* Whether a peer that has not begun this load yet may still be reading in place what this rank is
   about to write. */
static bool must_meet(const struct load *load)
{
	if (load->team->place.shm_groups == load->team->place.world)
		return false;
	for (size_t i = 0; i < load->count; i++)
		if (load->sources[i].kind != ZERO_FROM_RANK && !load->params[i]->group->replicated)
			return true;
	return false;
}

/* COLLECTIVE over the team. Parameters from different ranks are sent at the same time. */
static zero_status load_all(const struct load *load, zero_status status)
{
	zero_status reached;
	struct zero_op *ops = calloc(load->count, sizeof(*ops));
	size_t ops_count = 0;

	if (!status && !ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to load %zu parameters", load->count);
	for (size_t i = 0; !status && i < load->count; i++)
		status = zero_wait_post_step_gather(load->params[i]->group);
	for (size_t i = 0; !status && i < load->count; i++)
		zero_hooks_before_change(load->team->job, load->params[i]->group, false);
	if (must_meet(load)) {
		status = zero_submit_wait(load->team, status, NULL, 0, "%s", load->label);
		if (status)
			goto out;
	}
	if (!status)
		status = load_all_own(load);
	for (size_t i = 0; !status && i < load->count; i++)
		if (load->sources[i].kind == ZERO_FROM_RANK && load->params[i]->count)
			ops[ops_count++] = scatter_op(load->params[i], &load->sources[i]);
	status = scatter_all(load->params[0]->group, status, ops, ops_count, load->label);
	for (size_t i = 0; !status && i < load->count; i++)
		zero_param_update_masters(load->params[i]);
	/* The caller may reuse its data once zero_load returns, also after an error. */
	reached = zero_device_sync(load->team->job);
	status = status ? status : reached;
out:
	free(ops);
	return status;
}

/* Describes the call in words that are the same on all ranks; malloc'ed. */
static char *load_label(zero_param **params, const zero_source *sources, size_t count)
{
	char *text = NULL, one[512];
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		zero_source_label(params[i], &sources[i], one, sizeof(one));
		fprintf(out, "%s%s", i ? ", " : "", one);
	}
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

zero_status zero_load_many(zero_param **params, const zero_source *sources, size_t count)
{
	struct load load = {.params = params, .sources = sources, .count = count};
	zero_status status = ZERO_OK;

	if (!count)
		return ZERO_OK;
	load.team = params[0]->group->team;
	for (size_t i = 1; !status && i < count; i++)
		if (params[i]->group->team != load.team)
			status = zero_fail(ZERO_E_INVALID,
					   "parameters '%s' and '%s' are loaded in one call, but "
					   "their groups have different teams",
					   params[0]->name, params[i]->name);
	if (load.team->place.rank < 0)
		return status;
	for (size_t i = 0; !status && i < count; i++)
		status = check_load(params[i], &sources[i]);
	load.label = load_label(params, sources, count);
	if (!load.label && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to load %zu parameters", count);
	if (!load.label)
		return zero_submit_wait(load.team, status, NULL, 0, "load");
	status = load_all(&load, status);
	free(load.label);
	return status;
}

zero_status zero_load(zero_param *param, const zero_source *source)
{
	return zero_load_many(&param, source, 1);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition: every rank fills the part of a parameter that it stores, chunk by chunk, without
 * staging. Threshold and chunk are DeepSpeed's idea; its pull request on streaming partition
 * broadcasts every chunk to every rank. Here each rank is sent its own slice only, and values that
 * a rank can read or compute by slice are never sent.
 */
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
	if (zero_group_is_gathered(param->group))
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

/* A rank's values go to the ranks of its team, and from each of these to the ranks that store the
   same. */
static zero_status scatter_in_grid(const struct zero_grid *grid, const struct zero_op *op,
				   const char *label)
{
	const struct zero_rank_info *place = &grid->shard_team->place;
	struct zero_op in_team = *op, over_copies = *op;
	zero_status status = ZERO_OK;

	in_team.root = zero_team_rank_of(grid->shard_team, op->root);
	in_team.shard *= (size_t)grid->replica_team->place.world;
	if (in_team.root >= 0)
		status = zero_submit_wait(grid->shard_team, ZERO_OK, &in_team, 1, ZERO_WORK_LOAD,
					  "%s", label);
	over_copies.kind = ZERO_OP_BROADCAST;
	over_copies.root = zero_team_rank_of(grid->replica_team, zero_grid_replica(grid, op->root));
	over_copies.send = op->recv;
	over_copies.count =
		zero_op_slice(&in_team, place->rank + 1) - zero_op_slice(&in_team, place->rank);
	return zero_submit_wait(grid->replica_team, status, &over_copies, over_copies.count != 0,
				ZERO_WORK_LOAD, "%s", label);
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

/* Whether a peer that has not begun this load yet may still be reading in place what this rank is
   about to write. */
static bool must_meet(const zero_param *param, const zero_source *source)
{
	const struct zero_rank_info *place = &param->group->team->place;

	return place->shm_groups != place->world && source->kind != ZERO_FROM_RANK &&
	       !param->group->replicated;
}

zero_status zero_load(zero_param *param, const zero_source *source)
{
	bool sent = source->kind == ZERO_FROM_RANK && param->count;
	zero_group *group = param->group;
	bool in_grid = sent && group->replica_team && !group->replicated;
	zero_status status, reached;
	struct zero_op op = {0};
	char label[512];

	if (group->team->place.rank < 0)
		return ZERO_OK;
	status = check_load(param, source);
	zero_source_label(param, source, label, sizeof(label));
	if (!status)
		status = zero_wait_post_step_gather(group);
	if (!status)
		zero_hooks_before_change(group->job, group, false);
	if (must_meet(param, source)) {
		status =
			zero_submit_wait(group->team, status, NULL, 0, ZERO_WORK_LOAD, "%s", label);
		if (status)
			return status;
	}
	if (!status && sent)
		op = scatter_op(param, source);
	else if (!status && param->count)
		status = load_own(param, source);
	status = zero_submit_wait(group->team, status, &op, !status && sent && !in_grid,
				  ZERO_WORK_LOAD, "%s", label);
	if (!status && in_grid)
		status = scatter_in_grid(group->job->grid, &op, label);
	if (!status)
		zero_param_update_masters(param);
	/* The caller may reuse its data once the call returns, also after an error. */
	reached = zero_device_sync(group->job);
	return status ? status : reached;
}

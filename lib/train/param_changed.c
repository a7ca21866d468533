/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_param_changed: one rank has changed the gathered values of a parameter, and the other ranks'
 * gathered values, the shards and the f32 masters follow. The rank sends the values to every buffer
 * that ranks read from; ranks that share memory have one buffer. Then each rank stores its own
 * part.
 */
#include "train.h"

struct change {
	zero_param *param;
	int rank;
	zero_dtype stored, gathered;
	bool from_here; /* this rank changed the values */
	bool sends;     /* there is more than one buffer to send to */
	bool receives;  /* this rank fills the buffer that it reads from */
	void *staging;  /* for a piece that this rank receives but does not need */
	size_t piece;   /* elements */
};

static bool is_gathered(zero_group *group)
{
	bool gathered;

	pthread_mutex_lock(&group->job->lock);
	gathered = group->gather && group->use_count;
	pthread_mutex_unlock(&group->job->lock);
	return gathered;
}

static zero_status check_change(const zero_param *param, int rank)
{
	zero_group *group = param->group;

	if (!param->flat)
		return zero_fail(
			ZERO_E_STATE,
			"zero_param_changed of parameter '%s': zero_layout has not been called",
			param->name);
	if (zero_team_rank_of(group->team, rank) < 0)
		return zero_fail(ZERO_E_INVALID,
				 "zero_param_changed of parameter '%s': rank %d is not in the team "
				 "of group '%s'",
				 param->name, rank, group->name);
	if (!is_gathered(group))
		return zero_fail(ZERO_E_STATE,
				 "zero_param_changed of parameter '%s': group '%s' is not gathered",
				 param->name, group->name);
	return ZERO_OK;
}

static struct change plan(zero_param *param, int rank)
{
	const zero_group *group = param->group;
	const struct zero_rank_info *place = &group->shard_team->place;
	struct change change = {
		.param = param,
		.rank = rank,
		.stored = param->dtype,
		.gathered = zero_gathered_dtype_locked(param),
		.from_here = zero_team_rank_of(group->team, rank) == group->team->place.rank,
		.sends = group->replica_team ||
			 (group->replicated ? place->world > 1 : place->shm_groups > 1),
		.receives = group->replicated || place->shm_rank == 0,
		.piece = group->job->stream_chunk /
			 zero_dtype_size(zero_gathered_dtype_locked(param)),
	};

	if (change.piece > param->count)
		change.piece = param->count;
	if (!change.piece)
		change.piece = 1;
	return change;
}

static size_t piece_at(const struct change *change, size_t at)
{
	size_t rest = change->param->count - at;

	return rest < change->piece ? rest : change->piece;
}

static char *element_at(const struct change *change, size_t at)
{
	return (char *)zero_data(change->param) + at * zero_dtype_size(change->gathered);
}

/* Rounds the values to the storage dtype, as if they had been gathered from there. */
static void round_values(const struct change *change)
{
	zero_job *job = change->param->group->job;

	for (size_t at = 0; at < change->param->count; at += change->piece) {
		size_t count = piece_at(change, at);

		zero_cast(job, change->stored, change->staging, change->gathered,
			  element_at(change, at), count);
		zero_cast(job, change->gathered, element_at(change, at), change->stored,
			  change->staging, count);
	}
}

/* The part that needs no other rank. */
static zero_status prepare(struct change *change)
{
	zero_job *job = change->param->group->job;
	size_t size = zero_dtype_size(change->gathered);
	bool rounds = change->from_here && size > zero_dtype_size(change->stored);
	zero_status status = ZERO_OK;

	if (!change->param->count)
		return ZERO_OK;
	if (rounds || (change->sends && (change->from_here || !change->receives)))
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING, change->piece * size,
					 false, &change->staging);
	if (!status && rounds)
		round_values(change);
	return status;
}

static zero_status agree(const struct change *change, zero_status status, struct zero_op *op)
{
	return zero_submit_wait(change->param->group->team, status, op, op ? 1 : 0, ZERO_WORK_OTHER,
				"change of parameter '%s' from rank %d", change->param->name,
				change->rank);
}

/*
 * COLLECTIVE. Sends the values to all buffers. The first of the ranks that share a buffer writes
 * it. If another of them made the change, that rank sends from staging, so that nobody reads what
 * is being written.
 */
static zero_status send_all(const struct change *change)
{
	zero_status status = ZERO_OK;

	for (size_t at = 0; !status && at < change->param->count; at += change->piece) {
		bool keeps = change->receives && !change->from_here;
		struct zero_op op = {
			.kind = ZERO_OP_BROADCAST,
			.from = change->gathered,
			.to = change->gathered,
			.root = zero_team_rank_of(change->param->group->team, change->rank),
			.send = element_at(change, at),
			.recv = keeps ? element_at(change, at) : change->staging,
			.count = piece_at(change, at),
			.piece = change->piece,
		};

		status = agree(change, ZERO_OK, &op);
	}
	/* The shared buffer is complete once all ranks are here. */
	return status ? status : agree(change, ZERO_OK, NULL);
}

/* Copies the gathered values to where this rank stores its part, unless both are the same place. */
static void store_own(const struct change *change)
{
	zero_param *param = change->param;
	zero_job *job = param->group->job;
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t segment_first, segment_count, first, count;

	zero_stored_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count && segment->gathered_at != ZERO_IN_PLACE) {
		void *to = zero_stored_at(param->flat, segment, param->first + first);

		if (change->stored == change->gathered)
			job->ops->copy(job->backend, to, element_at(change, first),
				       count * zero_dtype_size(change->stored));
		else
			zero_cast(job, change->stored, to, change->gathered,
				  element_at(change, first), count);
	}
	zero_param_update_masters(param);
}

zero_status zero_param_changed(zero_param *param, int rank)
{
	struct change change = {.param = param->alias_of ? param->alias_of : param, .rank = rank};
	zero_group *group = param->group;
	zero_status status = zero_require_member(group, "changed");

	if (status)
		return status;
	status = check_change(change.param, rank);
	if (!status) {
		change = plan(change.param, rank);
		zero_hooks_before_change(group->job, group, false);
		status = prepare(&change);
	}
	status = agree(&change, status, NULL);
	if (!status && change.sends)
		status = send_all(&change);
	if (status)
		goto out;
	store_own(&change);
	if (zero_check_enabled(group->job))
		zero_check_record_param(change.param);
	/* No rank may change shared values while others still copy them. */
	status = agree(&change, ZERO_OK, NULL);
out:
	group->job->ops->free(group->job->backend, change.staging);
	return status;
}

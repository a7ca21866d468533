/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Update: one rank has changed a parameter's gathered values, and all that follows from these does:
 * the other ranks' gathered values, the shards, the f32 masters. The values go to every buffer that
 * ranks read from, of which those that share memory have one; then each rank stores its own part.
 */
#include "job/internal.h"

struct update {
	zero_param *param;
	int rank;
	zero_dtype stored, gathered;
	bool from_here; /* this rank has changed it */
	bool sends;     /* there is more than one buffer */
	bool takes;     /* this rank fills the one that it reads from */
	void *staging;  /* a piece of values that this rank is sent, but does not keep */
	size_t piece;   /* elements */
};

static bool is_gathered(zero_group *group)
{
	bool gathered;

	pthread_mutex_lock(&group->job->lock);
	gathered = group->gather && group->uses;
	pthread_mutex_unlock(&group->job->lock);
	return gathered;
}

static zero_status check_update(const zero_param *param, int rank)
{
	zero_group *group = param->group;

	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' is updated before zero_layout",
				 param->name);
	if (zero_team_rank_of(group->team, rank) < 0)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is updated from rank %d, which is not in the team "
				 "of group '%s'",
				 param->name, rank, group->name);
	if (!is_gathered(group))
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' is updated, but group '%s' is not gathered",
				 param->name, group->name);
	return ZERO_OK;
}

static struct update plan(zero_param *param, int rank)
{
	const zero_group *group = param->group;
	const struct zero_place *place = &group->team->place;
	struct update update = {
		.param = param,
		.rank = rank,
		.stored = param->dtype,
		.gathered = zero_gathered_dtype_locked(param),
		.from_here = zero_team_rank_of(group->team, rank) == place->rank,
		.sends = group->replicated ? place->world > 1 : place->shm_groups > 1,
		.takes = group->replicated || place->shm_rank == 0,
		.piece = group->job->chunk / zero_dtype_size(zero_gathered_dtype_locked(param)),
	};

	if (update.piece > param->count)
		update.piece = param->count;
	if (!update.piece)
		update.piece = 1;
	return update;
}

static size_t piece_at(const struct update *update, size_t at)
{
	size_t rest = update->param->count - at;

	return rest < update->piece ? rest : update->piece;
}

static char *element_at(const struct update *update, size_t at)
{
	return (char *)zero_data(update->param) + at * zero_dtype_size(update->gathered);
}

/* Values become those that the storage type has, as if they were gathered from there. */
static void round_values(const struct update *update)
{
	zero_job *job = update->param->group->job;

	for (size_t at = 0; at < update->param->count; at += update->piece) {
		size_t count = piece_at(update, at);

		job->ops->cast(job->backend, update->stored, update->staging, update->gathered,
			       element_at(update, at), count);
		job->ops->cast(job->backend, update->gathered, element_at(update, at),
			       update->stored, update->staging, count);
	}
}

/* What this rank does before the others are here. */
static zero_status prepare(struct update *update)
{
	zero_job *job = update->param->group->job;
	size_t size = zero_dtype_size(update->gathered);
	bool rounds = update->from_here && size > zero_dtype_size(update->stored);
	zero_status status = ZERO_OK;

	if (!update->param->count)
		return ZERO_OK;
	if (rounds || (update->sends && (update->from_here || !update->takes)))
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING, update->piece * size,
					 false, &update->staging);
	if (!status && rounds)
		round_values(update);
	return status;
}

static zero_status agree(const struct update *update, zero_status status, struct zero_op *op)
{
	return zero_submit_wait(update->param->group->team, status, op, op ? 1 : 0,
				"update of parameter '%s' from rank %d", update->param->name,
				update->rank);
}

/*
 * COLLECTIVE. To all buffers. The first of the ranks that share one writes it, with the same values
 * where another of them made the change: that rank sends from staging, so that nobody reads what is
 * written.
 */
static zero_status send_all(const struct update *update)
{
	zero_status status = ZERO_OK;

	for (size_t at = 0; !status && at < update->param->count; at += update->piece) {
		bool keeps = update->takes && !update->from_here;
		struct zero_op op = {
			.kind = ZERO_OP_BROADCAST,
			.from = update->gathered,
			.to = update->gathered,
			.root = zero_team_rank_of(update->param->group->team, update->rank),
			.send = element_at(update, at),
			.recv = keeps ? element_at(update, at) : update->staging,
			.count = piece_at(update, at),
			.piece = update->piece,
		};

		status = agree(update, ZERO_OK, &op);
	}
	/* The first of the ranks that share a buffer has filled it once all are here. */
	return status ? status : agree(update, ZERO_OK, NULL);
}

/* From what is gathered to where this rank stores its own part, unless both are the same. */
static void store_own(const struct update *update)
{
	zero_param *param = update->param;
	zero_job *job = param->group->job;
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t segment_first, segment_count, first, count;

	zero_stored_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count && segment->gathered_at != NOT_GATHERED) {
		void *to = zero_stored_at(param->flat, segment, param->first + first);

		if (update->stored == update->gathered)
			job->ops->copy(job->backend, to, element_at(update, first),
				       count * zero_dtype_size(update->stored));
		else
			job->ops->cast(job->backend, update->stored, to, update->gathered,
				       element_at(update, first), count);
	}
	zero_param_update_masters(param);
}

zero_status zero_param_changed(zero_param *param, int rank)
{
	struct update update = {.param = param->alias_of ? param->alias_of : param, .rank = rank};
	zero_group *group = param->group;
	zero_status status = zero_require_member(group, "updated");

	if (status)
		return status;
	status = check_update(update.param, rank);
	if (!status) {
		update = plan(update.param, rank);
		zero_save_snapshot(group->job, group);
		status = prepare(&update);
	}
	status = agree(&update, status, NULL);
	if (!status && update.sends)
		status = send_all(&update);
	if (status)
		goto out;
	store_own(&update);
	if (zero_check_enabled(group->job))
		zero_check_record_param(update.param);
	/* Nobody changes what is shared while others still store it. */
	status = agree(&update, ZERO_OK, NULL);
out:
	group->job->ops->free(group->job->backend, update.staging);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gather: one all-gather for each segment of a group, into the buffer that the parameters are then
 * read from. With another dtype, each rank casts its shard straight into its own slot of that
 * buffer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

static zero_status check_gather(const zero_group *group, zero_dtype as)
{
	zero_status status = zero_require_group_state(group, ZERO_IDLE, "gathered");

	return status ? status : zero_gather_check(group, as);
}

/* Casts a segment of which this rank stores all. */
static struct zero_op cast_op(struct zero_flat *flat, const struct zero_segment *segment,
			      zero_dtype as)
{
	return (struct zero_op){
		.kind = ZERO_OP_CAST,
		.from = segment->dtype,
		.to = zero_gather_buffer_dtype(segment, as),
		.send = flat->stored + segment->stored_at,
		.shared = &flat->gathered,
		.at = segment->gathered_at,
		.count = segment->count,
	};
}

/* What this rank gives of a segment; of a slice, which lies in its parent's memory. */
static const char *own_part(const struct zero_flat *flat, const struct zero_segment *segment)
{
	const zero_group *slice = flat->group;

	if (slice->parent) {
		flat = &slice->parent->flats[0];
		segment = &flat->segments[0];
	}
	return flat->stored + segment->stored_at +
	       slice->slice_first * zero_dtype_size(segment->dtype);
}

static struct zero_op gather_op(struct zero_flat *flat, const struct zero_segment *segment,
				zero_dtype as)
{
	return (struct zero_op){
		.kind = ZERO_OP_ALL_GATHER,
		.from = segment->dtype,
		.to = zero_gather_buffer_dtype(segment, as),
		.send = own_part(flat, segment),
		.shared = &flat->gathered,
		.at = segment->gathered_at,
		.count = segment->shard * zero_replicas(flat->group),
	};
}

/* Adds the operation that gives a gather buffer its memory, unless it has it already. */
static zero_status prepare_buffer(struct zero_flat *flat, zero_dtype as, size_t bytes,
				  struct zero_op *ops, size_t *op_count, bool *allocates)
{
	zero_job *job = flat->group->job;
	struct zero_gather_buffer *buffer = zero_gather_buffer_of(flat, as);
	zero_status status = zero_gather_buffer_reserve(flat, as);

	if (status || (job->ops->reuse &&
		       job->ops->reuse(job->backend, buffer->address, bytes, &flat->gathered)))
		return status;
	/* Memory that no other rank shares may be in use on one rank alone. */
	*allocates |= !flat->group->replicated || !buffer->used;
	buffer->used = true;
	ops[(*op_count)++] = (struct zero_op){
		.kind = ZERO_OP_ALLOC,
		.memory = ZERO_MEM_GATHERED,
		.own = flat->group->replicated,
		.shared = &flat->gathered,
		.recv = buffer->address,
		.count = bytes,
	};
	return ZERO_OK;
}

/* Adds the operations of a group: those of gather buffers, and one for each segment that is not
   read in place. */
static zero_status prepare(zero_group *group, zero_dtype as, struct zero_op *ops, size_t *op_count,
			   bool *allocates)
{
	zero_status status = ZERO_OK;

	for (size_t f = 0; !status && f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];
		size_t bytes = zero_gather_buffer_bytes_before(flat, flat->segment_count, as);

		for (size_t r = 0; r < flat->segment_count; r++)
			flat->segments[r].gathered_at =
				zero_gather_buffer_is_in_place(flat, &flat->segments[r], as)
					? ZERO_IN_PLACE
					: zero_gather_buffer_bytes_before(flat, r, as);
		if (!bytes)
			continue;
		status = prepare_buffer(flat, as, bytes, ops, op_count, allocates);
		for (size_t r = 0; r < flat->segment_count; r++)
			if (flat->segments[r].gathered_at != ZERO_IN_PLACE)
				ops[(*op_count)++] =
					group->replicated ? cast_op(flat, &flat->segments[r], as)
							  : gather_op(flat, &flat->segments[r], as);
	}
	return status;
}

static size_t count_ops(zero_group **groups, size_t count)
{
	size_t ops = 0;

	for (size_t g = 0; g < count; g++)
		for (size_t f = 0; f < groups[g]->flat_count; f++)
			ops += groups[g]->flats[f].segment_count + 1;
	return ops;
}

/* Frees the gather buffers. Called with the job's lock held. */
static void free_buffers(zero_group *group)
{
	zero_job *job = group->job;

	for (size_t f = 0; f < group->flat_count; f++)
		job->ops->shared_free(job->backend, &group->flats[f].gathered);
	zero_work_put(group->gather);
	group->gather = NULL;
	group->ready = false;
	group->use_count = group->other_thread_uses = 0;
	group->checked = false;
	group->live_bytes = 0;
	pthread_cond_broadcast(&job->trainer->released);
}

/*
 * Whether the work that sends the group's stepped values can serve as its gather, on all ranks
 * alike. A submission of its own would have to wait for the values of all later groups too. After
 * any other wait of all ranks there is nothing to gain.
 */
static bool joins_step(zero_group *group)
{
	return group->step_work && group->step_wait_count == zero_group_wait_count(group);
}

/* Makes an error of this rank an error on all ranks, unless the others would not submit anything
   for this call. */
static zero_status agree_on_error(zero_status status, zero_group *group)
{
	struct zero_work *work;

	if (!zero_is_member(group) || joins_step(group))
		return status;
	status = zero_submit(group->shard_team, status, NULL, 0, true, true, &work,
			     ZERO_WORK_GATHER, group->name, "gather from '%s'", group->name);
	return status ? status : zero_work_wait(group->job, &work);
}

/* "'a', 'b'", malloc'ed; NULL: no memory. */
static char *join_names(zero_group **groups, size_t count)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	for (size_t g = 0; g < count; g++)
		fprintf(out, "%s'%s'", g ? ", " : "", groups[g]->name);
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

/* Bytes of a group's gather buffers. */
static size_t buffer_bytes(const zero_group *group, zero_dtype as)
{
	size_t bytes = 0;

	for (size_t f = 0; f < group->flat_count; f++)
		bytes += zero_gather_buffer_bytes_before(&group->flats[f],
							 group->flats[f].segment_count, as);
	return bytes;
}

/* Uses that work if the group is wanted in its storage dtype. Called with the job's lock held. */
static bool join_step(zero_group *group, zero_dtype as)
{
	bool joins = joins_step(group) && !buffer_bytes(group, as);
	struct zero_work *stepped = group->step_work;

	group->step_work = NULL;
	if (joins) {
		group->gathered_as = as;
		group->gather = stepped;
		group->begun_by = pthread_self();
	} else {
		zero_work_put(stepped);
	}
	return joins;
}

/* Lists the groups that are not yet gathered or under way, each once. Called with the job's lock
   held. */
static size_t list_pending(zero_group **groups, size_t count, zero_dtype as, zero_group **pending)
{
	size_t pending_count = 0;

	for (size_t g = 0; g < count; g++) {
		if (groups[g]->gather || groups[g]->listed || join_step(groups[g], as))
			continue;
		groups[g]->listed = true;
		pending[pending_count++] = groups[g];
	}
	for (size_t g = 0; g < pending_count; g++)
		pending[g]->listed = false;
	return pending_count;
}

/* Bytes of gathered groups that every rank of the team counts alike: those of its own groups and of
   the groups of all ranks. Groups of other teams differ between its ranks. */
static size_t live_bytes(const zero_job *job, const zero_team *team)
{
	size_t live = 0;

	for (zero_group *group = NULL; (group = zero_group_after(job->model, group));)
		if (group->team == team || group->team == &job->all)
			live += group->live_bytes;
	return live;
}

/* How many of the groups, which are of one team, fit under gather_limit. */
static size_t count_within(const zero_job *job, zero_group **groups, size_t count, zero_dtype as)
{
	size_t live = live_bytes(job, groups[0]->team);

	for (size_t g = 0; g < count; g++) {
		live += buffer_bytes(groups[g], as);
		if (live > job->gather_limit)
			return g;
	}
	return count;
}

/* Counts a use of a gathered group. */
static void add_use(zero_group *group)
{
	group->use_count++;
	if (!pthread_equal(group->begun_by, pthread_self())) {
		group->other_thread_uses++;
		group->other_user = pthread_self();
	}
}

/* Returns whether uses are left. A thread may end a use of another one. */
static bool end_use(zero_group *group)
{
	bool own = pthread_equal(group->begun_by, pthread_self());

	if (group->other_thread_uses && (!own || group->other_thread_uses == group->use_count))
		group->other_thread_uses--;
	return --group->use_count;
}

/* The operations of all groups, which are of one team. */
static zero_status prepare_all(zero_job *job, zero_group **groups, size_t count, zero_dtype as,
			       struct zero_op *ops, size_t *op_count, bool *allocates)
{
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < count; g++) {
		status = zero_work_wait(job, &zero_group_whole(groups[g])->post_step_gather);
		if (status)
			zero_mark_inconsistent(job, status);
		else
			status = prepare(groups[g], as, ops, op_count, allocates);
	}
	return status;
}

/* Submits one gather of all groups. Called with the job's lock held. */
static zero_status begin_all(zero_job *job, zero_group **groups, size_t count, zero_dtype as,
			     bool waited)
{
	struct zero_op *ops = calloc(count_ops(groups, count) + 1, sizeof(*ops));
	char *names = join_names(groups, count);
	zero_status status, prepared = ZERO_OK;
	struct zero_work *work;
	size_t op_count = 0;
	bool allocates = false;

	if (!ops || !names)
		prepared = zero_fail(ZERO_E_MEMORY, "no memory to gather %zu groups", count);
	else
		prepared = prepare_all(job, groups, count, as, ops, &op_count, &allocates);
	/* Also after an error, which the other ranks have to learn of. */
	status = zero_submit(groups[0]->shard_team, prepared, ops, op_count, allocates, waited,
			     &work, ZERO_WORK_GATHER,
			     count == 1 ? zero_group_whole(groups[0])->name : names,
			     "gather of %s %s as %s", count == 1 ? "group" : "groups",
			     names ? names : "...", zero_dtype_name(as));
	for (size_t g = 0; g < count; g++) {
		groups[g]->gathered_as = as;
		if (status) {
			free_buffers(groups[g]);
			continue;
		}
		zero_work_get(work);
		groups[g]->gather = work;
		groups[g]->begun_by = pthread_self();
		groups[g]->live_bytes = prepared ? 0 : buffer_bytes(groups[g], as);
	}
	if (!status)
		zero_work_put(work);
	free(names);
	free(ops);
	return status;
}

/* Moves the groups of the first group's team to the front, and returns how many there are. */
static size_t move_team_first(zero_group **groups, size_t count)
{
	zero_team *team = groups[0]->team;
	size_t taken = 0;

	for (size_t g = 0; g < count; g++)
		if (groups[g]->team == team) {
			zero_group *group = groups[g];

			/* The others keep their order. */
			memmove(groups + taken + 1, groups + taken, (g - taken) * sizeof(*groups));
			groups[taken++] = group;
		}
	return taken;
}

zero_status zero_prefetch(zero_group **groups, size_t count, zero_dtype as)
{
	zero_group **pending;
	zero_status status = ZERO_OK;
	size_t pending_count;
	zero_job *job;

	if (!count)
		return ZERO_OK;
	job = groups[0]->job;
	as = zero_gather_resolve_dtype(job, as);
	for (size_t g = 0; g < count; g++) {
		status = check_gather(groups[g], as);
		if (status)
			return agree_on_error(status, groups[g]);
	}
	pending = calloc(count, sizeof(*pending));
	if (!pending)
		return agree_on_error(
			zero_fail(ZERO_E_MEMORY, "no memory to gather %zu groups", count),
			groups[0]);
	pthread_mutex_lock(&job->lock);
	for (size_t g = 0; g < count; g++)
		zero_gather_buffer_wait_for_memory(groups[g], as);
	pending_count = list_pending(groups, count, as, pending);
	for (size_t g = 0, team, fit; !status && g < pending_count; g += team) {
		team = move_team_first(pending + g, pending_count - g);
		fit = count_within(job, pending + g, team, as);
		if (fit)
			status = begin_all(job, pending + g, fit, as, false);
	}
	pthread_mutex_unlock(&job->lock);
	free(pending);
	return status;
}

zero_status zero_gather(zero_group *group, zero_dtype as)
{
	zero_job *job = group->job;
	struct zero_work *work = NULL;
	zero_status status;

	as = zero_gather_resolve_dtype(job, as);
	status = check_gather(group, as);
	if (status)
		return agree_on_error(status, group);
	pthread_mutex_lock(&job->lock);
	zero_gather_buffer_wait_for_memory(group, as);
	if (!group->gather && !join_step(group, as))
		status = begin_all(job, &group, 1, as, true);
	else if (group->gathered_as != as)
		status = agree_on_error(
			zero_fail(ZERO_E_STATE,
				  "group '%s' is gathered as %s: release it before it is "
				  "gathered as %s",
				  group->name, zero_dtype_name(group->gathered_as),
				  zero_dtype_name(as)),
			group);
	if (!status) {
		/* The use counts from before the wait, so that a release by another thread does not
		   free the buffer. */
		add_use(group);
		work = group->gather;
		zero_work_get(work);
	}
	pthread_mutex_unlock(&job->lock);
	if (status)
		return status;
	status = zero_work_wait(job, &work);
	if (status) {
		pthread_mutex_lock(&job->lock);
		if (group->use_count && !end_use(group))
			free_buffers(group);
		pthread_mutex_unlock(&job->lock);
		return status;
	}
	group->ready = true;
	if (zero_check_enabled(job))
		zero_check_record(group);
	return ZERO_OK;
}

zero_status zero_release(zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&job->lock);
	if (!group->gather) {
		status = zero_fail(ZERO_E_STATE, "group '%s' is released, but not gathered",
				   group->name);
	} else if (!group->use_count) {
		zero_queue_wait(job->queue, group->gather);
		free_buffers(group);
	} else if (!end_use(group)) {
		if (zero_check_enabled(job))
			status = zero_check_compare(group);
		free_buffers(group);
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

void zero_gather_wait(zero_group *group)
{
	if (group->gather)
		zero_queue_wait(group->job->queue, group->gather);
	for (size_t s = 0; s < group->slice_count; s++)
		zero_gather_wait(&group->slices[s]);
}

void zero_gather_free(zero_group *group)
{
	if (group->gather)
		free_buffers(group);
	zero_work_put(group->step_work);
	group->step_work = NULL;
	for (size_t s = 0; s < group->slice_count; s++)
		zero_gather_free(&group->slices[s]);
}

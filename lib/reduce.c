/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce: a rank's gradients, f32 and as long as the group's trainable runs, are summed over the
 * ranks into the shard of each owner. Stage 0 does the same and gathers the sums afterwards, so
 * that an element is the same sum of the same terms in the same order at every stage.
 */
#include <stdlib.h>

#include "internal.h"

static zero_status alloc_gradient(zero_job *job, struct zero_flat *flat)
{
	return job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
			       flat->gradient_count * sizeof(float), true,
			       (void **)&flat->gradient);
}

/* Waits until a place in the ring is free. With the job's lock. */
static zero_status wait_for_room(zero_job *job)
{
	return zero_finish(job, &job->reduces[job->reduce_next]);
}

float *zero_gradient(zero_param *param)
{
	struct zero_flat *flat = param->flat;
	zero_job *job = param->group->job;
	zero_status status = ZERO_OK;

	if (!flat || !param->trainable) {
		zero_fail(ZERO_E_STATE, "parameter '%s' has no gradient: it is %s", param->name,
			  flat ? "not trainable" : "not laid out yet");
		return NULL;
	}
	pthread_mutex_lock(&job->lock);
	if (!flat->gradient && flat->gradient_count) {
		status = wait_for_room(job);
		if (!status)
			status = alloc_gradient(job, flat);
	}
	pthread_mutex_unlock(&job->lock);
	if (status || !flat->gradient)
		return NULL;
	return flat->gradient + flat->runs[param->run].gradient_at + param->first;
}

/* The operations for one flat buffer; its gradient belongs to them afterwards. */
static zero_status prepare(zero_job *job, struct zero_flat *flat, bool first, struct zero_op *ops,
			   size_t *op_count)
{
	size_t rank = (size_t)job->place.rank;
	zero_status status = ZERO_OK;

	if (!flat->gradient_count)
		return ZERO_OK;
	if (!flat->gradient)
		status = alloc_gradient(job, flat);
	if (first && job->step_whole) {
		/* Summed in place: the gradient's buffer becomes that of the sums. */
		flat->reduced = flat->gradient;
	} else if (first && !status) {
		status = job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
					 flat->state_count * sizeof(float), false,
					 (void **)&flat->reduced);
	}
	for (size_t r = 0; r < flat->run_count; r++) {
		const struct zero_run *run = &flat->runs[r];
		size_t part, part_count;
		float *own;

		if (!run->trainable)
			continue;
		zero_stepped_part(job, run, &part, &part_count);
		/* The own shard within what this rank steps, which may be whole runs. */
		own = status ? NULL : flat->reduced + run->state_at + (rank * run->shard - part);
		ops[(*op_count)++] = (struct zero_op){
			.kind = ZERO_OP_REDUCE_SCATTER,
			.from = ZERO_F32,
			.to = ZERO_F32,
			.send = status ? NULL : flat->gradient + run->gradient_at,
			.recv = own,
			.count = run->shard,
			.accumulate = !first,
		};
		if (job->step_whole)
			ops[(*op_count)++] = (struct zero_op){
				.kind = ZERO_OP_ALL_GATHER,
				.from = ZERO_F32,
				.to = ZERO_F32,
				.send = own,
				.recv = status ? NULL : flat->reduced + run->state_at,
				.count = run->shard,
			};
	}
	if (flat->reduced != flat->gradient)
		ops[(*op_count)++] = (struct zero_op){.kind = ZERO_OP_FREE, .recv = flat->gradient};
	flat->gradient = NULL;
	return status;
}

static size_t count_ops(const zero_group *group)
{
	size_t ops = 0;

	for (size_t f = 0; f < group->flat_count; f++)
		ops += 2 * group->flats[f].run_count + 1;
	return ops;
}

zero_status zero_reduce_locked(zero_group *group)
{
	struct zero_op *ops = calloc(count_ops(group) + 1, sizeof(*ops));
	zero_job *job = group->job;
	zero_status status = ZERO_OK, mine;
	struct zero_work *work = NULL;
	size_t op_count = 0;

	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to reduce group '%s'", group->name);
	else if (!job->laid_out || !group->trainable)
		status = zero_fail(ZERO_E_STATE, "group '%s' is reduced, but %s", group->name,
				   job->laid_out ? "nothing of it is trainable" : "not laid out");
	mine = wait_for_room(job);
	status = status ? status : mine;
	/* Nothing can be added to sums that failed, on any rank. */
	mine = zero_finish(job, &group->reduce);
	status = status ? status : mine;
	for (size_t f = 0; !status && f < group->flat_count; f++)
		status = prepare(job, &group->flats[f], !group->reduced, ops, &op_count);
	status = zero_submit(job, status, ops, op_count, false, &work, "reduce of group '%s'",
			     group->name);
	if (!status) {
		group->reduced = true;
		group->reduce = work;
		job->ops->work_get(job->backend, work);
		job->reduces[job->reduce_next] = work;
		job->reduce_next = (job->reduce_next + 1) % ZERO_REDUCES;
	}
	free(ops);
	return status;
}

zero_status zero_reduce(zero_group *group)
{
	zero_status status;

	pthread_mutex_lock(&group->job->lock);
	status = zero_reduce_locked(group);
	pthread_mutex_unlock(&group->job->lock);
	return status;
}

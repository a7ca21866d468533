/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce: the ranks' gradients of a group are summed into the shard of each owner, by one reduce-
 * scatter for each trainable segment. Stage 0 does the same and gathers the sums afterwards, so
 * that an element is the sum of the same terms in the same order at every stage. Gradients of 16
 * bits are sent as such and summed in f32.
 *
 * In a grid a reduce sums over the ranks that store a copy between them, and once a step, or when
 * the program asks for it, these sums are summed over the copies: k micro-batches send no more
 * between the teams than one does.
 */
#include <stdlib.h>
#include <string.h>

#include "model/slices.h"
#include "train.h"

/* On a device each gap is a launch of its own: with more of them all is cleared by one. */
enum { FEW_GAPS = 16 };

static size_t clear(const struct zero_flat *flat, const struct zero_segment *segment, size_t first,
		    size_t end, bool really)
{
	const zero_group *group = flat->group;
	size_t size = zero_dtype_size(group->gradient_dtype);

	if (end <= first)
		return 0;
	if (really)
		zero_fill(group->job, group->gradient_dtype,
			  (char *)flat->gradient + (segment->gradient_at + first) * size,
			  end - first, 0);
	return 1;
}

/* Of a slice: what is behind the parameter. */
static size_t clear_runs(const struct zero_flat *flat, bool really)
{
	const struct zero_segment *segment = &flat->segments[0];
	size_t gaps = 0;

	for (int rank = 0; rank < flat->group->shard_team->place.world; rank++) {
		zero_run run;

		zero_slice_run(flat->group, (size_t)rank, &run);
		gaps += clear(flat, segment, run.at + run.count, run.at + segment->shard, really);
	}
	return gaps;
}

/* What lies between the parameters and behind the last one is part of sums and norms. Returns in
   how many places that is. */
static size_t clear_padding(const struct zero_flat *flat, bool really)
{
	const zero_group *group = flat->group;
	size_t gaps = 0;

	if (group->parent)
		return clear_runs(flat, really);

	for (size_t r = 0; r < flat->segment_count; r++) {
		const struct zero_segment *segment = &flat->segments[r];
		size_t end = 0;

		for (size_t p = 0; segment->trainable && p < group->param_count; p++) {
			const zero_param *param = group->params[p];

			if (param->flat != flat || param->segment != r || param->alias_of)
				continue;
			gaps += clear(flat, segment, end, param->first, really);
			end = param->first + param->count;
		}
		if (segment->trainable)
			gaps += clear(flat, segment, end, segment->count, really);
	}
	return gaps;
}

static zero_status alloc_gradient(zero_job *job, struct zero_flat *flat, bool zeroed)
{
	bool by_parts =
		!zeroed && (job->ops->host_memory || clear_padding(flat, false) <= FEW_GAPS);
	zero_status status =
		job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
				flat->gradient_count * zero_dtype_size(flat->group->gradient_dtype),
				!by_parts, &flat->gradient);

	if (!status && by_parts)
		clear_padding(flat, true);
	return status;
}

/*
 * Waits until the ring of reduces has a free place. Called with the job's lock held. An error is
 * its group's, which reports it at the step: here some ranks alone would have it.
 */
static void wait_for_slot(zero_job *job)
{
	zero_work_wait(job, &job->trainer->reduces[job->trainer->reduce_next]);
}

zero_status zero_group_gradient_dtype(zero_group *group, zero_dtype dtype)
{
	if (group->flats)
		return zero_fail(ZERO_E_STATE,
				 "zero_group_gradient_dtype of group '%s' must be called before "
				 "zero_layout",
				 group->name);
	if (dtype != ZERO_F32 && dtype != ZERO_F16 && dtype != ZERO_BF16)
		return zero_fail(ZERO_E_INVALID,
				 "group '%s' cannot have gradients of %s: f32, f16 or bf16",
				 group->name, zero_dtype_name(dtype));
	group->gradient_dtype = dtype;
	return ZERO_OK;
}

static zero_status check_gradient(const zero_param *param, zero_dtype dtype)
{
	const zero_group *group = param->group;

	if (!param->flat || !param->trainable)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has no gradient: it is %s",
				 param->name, param->flat ? "not trainable" : "not laid out yet");
	if (!zero_is_member(group))
		return zero_fail(ZERO_E_INVALID,
				 "group '%s' has no gradients on a rank that is not in its team",
				 group->name);
	if (group->slice_count)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' has slices, and no gradient as a whole: call "
				 "zero_slice_gradient",
				 param->name);
	if (dtype != group->gradient_dtype)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is asked for its gradient as %s, but group '%s' "
				 "has gradients of %s",
				 param->name, zero_dtype_name(dtype), group->name,
				 zero_dtype_name(group->gradient_dtype));
	return ZERO_OK;
}

static char *gradient_at(const struct zero_flat *flat, size_t element)
{
	return (char *)flat->gradient + element * zero_dtype_size(flat->group->gradient_dtype);
}

/* Whether the flat buffer has a gradient now. */
static bool need_gradient(struct zero_flat *flat, bool zeroed)
{
	zero_job *job = flat->group->job;
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&job->lock);
	if (!flat->gradient && flat->gradient_count) {
		wait_for_slot(job);
		status = alloc_gradient(job, flat, zeroed);
	}
	pthread_mutex_unlock(&job->lock);
	return !status && flat->gradient;
}

static void *gradient_of(zero_param *param, zero_dtype dtype, bool zeroed)
{
	struct zero_flat *flat = param->flat;

	if (check_gradient(param, dtype) || !need_gradient(flat, zeroed))
		return NULL;
	return gradient_at(flat, flat->segments[param->segment].gradient_at + param->first);
}

float *zero_gradient(zero_param *param)
{
	return gradient_of(param, ZERO_F32, true);
}

void *zero_gradient_as(zero_param *param, zero_dtype dtype)
{
	return gradient_of(param, dtype, true);
}

void *zero_gradient_undefined(zero_param *param, zero_dtype dtype)
{
	return gradient_of(param, dtype, false);
}

void *zero_slice_gradient(zero_group *slice, zero_dtype dtype)
{
	if (!slice->parent)
		return slice->param_count ? zero_gradient_undefined(slice->params[0], dtype) : NULL;
	if (!slice->trainable || dtype != slice->gradient_dtype) {
		zero_fail(slice->trainable ? ZERO_E_INVALID : ZERO_E_STATE,
			  "%s has no gradient of %s: %s", slice->name, zero_dtype_name(dtype),
			  slice->trainable ? zero_dtype_name(slice->gradient_dtype)
					   : "it is not trainable");
		return NULL;
	}
	return need_gradient(&slice->flats[0], false) ? slice->flats[0].gradient : NULL;
}

/* Where a reduce of the group leaves its sums; a slice's are part of its parent's. */
static float **sums_of(struct zero_flat *flat)
{
	if (flat->group->parent)
		flat = &flat->group->parent->flats[0];
	return flat->group->replica_team ? &flat->team_sums : &flat->reduced;
}

static bool *has_sums(zero_group *group)
{
	group = zero_group_whole(group);
	return group->replica_team ? &group->team_reduced : &group->reduced;
}

/* Whether the gradients' buffer becomes that of the sums. */
static bool sums_in_place(const zero_group *group)
{
	return group->gradient_dtype == ZERO_F32 &&
	       (group->steps_replicated || group->shard_team->place.world == 1);
}

/* What a reduce leaves here: in a grid of all that this rank stores; else its shard within
   `reduced`, which holds all of every segment at stage 0. */
static float *own_sums(const struct zero_flat *flat, const struct zero_segment *segment)
{
	size_t stepped, owned, count;

	if (flat->group->parent) {
		const struct zero_flat *whole = &flat->group->parent->flats[0];

		return own_sums(whole, &whole->segments[0]) + flat->group->slice_first;
	}
	if (flat->group->replica_team)
		return flat->team_sums + segment->state_at * zero_replicas(flat->group);
	zero_stepped_part(flat->group, segment, &stepped, &count);
	zero_owned_part(flat->group, segment, &owned, &count);
	return flat->reduced + segment->state_at + (owned - stepped);
}

/* The sums of a parameter that has slices begin at 0, and each reduce of one adds to them. */
static zero_status alloc_sliced_sums(zero_group *group)
{
	struct zero_flat *flat = &group->flats[0];

	if (*has_sums(group) || !flat->gradient_count)
		return ZERO_OK;
	return group->job->ops->alloc(group->job->backend, ZERO_MEM_GRADIENTS,
				      flat->state_count * zero_replicas(group) * sizeof(float),
				      true, (void **)sums_of(flat));
}

/* Allocates the buffers for one flat buffer's sums. */
static zero_status prepare(zero_job *job, struct zero_flat *flat, bool first)
{
	zero_status status = ZERO_OK;

	if (!flat->gradient_count)
		return ZERO_OK;
	if (!flat->gradient)
		status = alloc_gradient(job, flat, true);
	if (!status && flat->group->parent)
		return alloc_sliced_sums(flat->group->parent);
	if (status || !first)
		return status;
	if (sums_in_place(flat->group))
		*sums_of(flat) = flat->gradient;
	else
		status = job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
					 flat->state_count * zero_replicas(flat->group) *
						 sizeof(float),
					 false, (void **)sums_of(flat));
	return status;
}

static void add_sums(const struct zero_flat *flat, bool first, struct zero_op *ops,
		     size_t *op_count)
{
	for (size_t r = 0; r < flat->segment_count; r++)
		if (flat->segments[r].trainable)
			ops[(*op_count)++] = (struct zero_op){
				.kind = ZERO_OP_REDUCE_SCATTER,
				.from = flat->group->gradient_dtype,
				.to = ZERO_F32,
				.send = gradient_at(flat, flat->segments[r].gradient_at),
				.recv = own_sums(flat, &flat->segments[r]),
				.count = flat->segments[r].shard * zero_replicas(flat->group),
				.accumulate = !first,
			};
}

/* Stage 0: gathers the sums on all ranks. */
static void add_gathers(const struct zero_flat *flat, struct zero_op *ops, size_t *op_count)
{
	for (size_t r = 0; r < flat->segment_count; r++)
		if (flat->segments[r].trainable)
			ops[(*op_count)++] = (struct zero_op){
				.kind = ZERO_OP_ALL_GATHER,
				.from = ZERO_F32,
				.to = ZERO_F32,
				.send = own_sums(flat, &flat->segments[r]),
				.recv = flat->reduced + flat->segments[r].state_at,
				.count = flat->segments[r].shard,
			};
}

/* Hands the group's gradient buffers over to the operations. All sums come before all gathers,
   which wait for them on every rank. */
static zero_status prepare_all(zero_job *job, zero_group *group, struct zero_op *ops,
			       size_t *op_count)
{
	bool first = !*has_sums(group) && !group->parent;
	zero_status status = ZERO_OK;

	/* None of its slices has a gradient. */
	if (group->slice_count)
		return alloc_sliced_sums(group);
	for (size_t f = 0; !status && f < group->flat_count; f++)
		status = prepare(job, &group->flats[f], first);
	for (size_t f = 0; !status && f < group->flat_count; f++)
		add_sums(&group->flats[f], first, ops, op_count);
	for (size_t f = 0; !status && group->steps_replicated && f < group->flat_count; f++)
		add_gathers(&group->flats[f], ops, op_count);
	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		if (flat->gradient && *sums_of(flat) != flat->gradient)
			ops[(*op_count)++] =
				(struct zero_op){.kind = ZERO_OP_FREE, .recv = flat->gradient};
		flat->gradient = NULL;
	}
	return status;
}

static size_t count_ops(const zero_group *group)
{
	size_t ops = 0;

	for (size_t f = 0; f < group->flat_count; f++)
		ops += 2 * group->flats[f].segment_count + 1;
	return ops;
}

zero_status zero_reduce_wait(const zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = group->reduce ? zero_queue_wait(job->queue, group->reduce) : ZERO_OK;

	for (size_t s = 0; s < group->slice_count; s++) {
		zero_status one = zero_reduce_wait(&group->slices[s]);

		status = status ? status : one;
	}
	return status;
}

zero_status zero_reduce_end(zero_group *group)
{
	zero_status status = zero_work_wait(group->job, &group->reduce);

	for (size_t s = 0; s < group->slice_count; s++) {
		zero_status one = zero_reduce_end(&group->slices[s]);

		status = status ? status : one;
	}
	return status;
}

zero_status zero_gather_sums(zero_group *group, struct zero_op *ops)
{
	struct zero_work *work;
	zero_status status;
	size_t op_count = 0;

	for (size_t f = 0; f < group->flat_count; f++)
		add_gathers(&group->flats[f], ops, &op_count);
	status = zero_submit(group->team, ZERO_OK, ops, op_count, true, true, &work,
			     ZERO_WORK_GATHER, group->name, "gather of the sums of group '%s'",
			     group->name);
	return status ? status : zero_work_wait(group->job, &work);
}

/* Frees what the operations of a submission that failed did not free. */
static void free_unsubmitted(zero_job *job, const struct zero_op *ops, size_t op_count)
{
	for (size_t i = 0; i < op_count; i++)
		if (ops[i].kind == ZERO_OP_FREE)
			job->ops->free(job->backend, ops[i].recv);
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
	else if (!group->flats || !group->trainable)
		status = zero_fail(ZERO_E_STATE, "group '%s' cannot be reduced: %s", group->name,
				   group->flats ? "it has no trainable parameter"
						: "zero_layout has not been called");
	wait_for_slot(job);
	/* A failed reduce has left no sums to add to, on any rank. */
	mine = zero_reduce_wait(group);
	if (!mine)
		zero_work_wait(job, &group->reduce);
	status = status ? status : mine;
	if (!status)
		status = prepare_all(job, group, ops, &op_count);
	status = zero_submit(group->shard_team, status, ops, op_count, !group->ever_reduced, false,
			     &work, ZERO_WORK_REDUCE, zero_group_whole(group)->name,
			     "reduce of group '%s'", group->name);
	if (!status) {
		*has_sums(group) = group->ever_reduced = true;
		group->reduce = work;
		zero_work_get(work);
		job->trainer->reduces[job->trainer->reduce_next] = work;
		job->trainer->reduce_next = (job->trainer->reduce_next + 1) % ZERO_REDUCES;
	} else {
		free_unsubmitted(job, ops, op_count);
		for (size_t f = 0; !*has_sums(group) && f < group->flat_count; f++) {
			job->ops->free(job->backend, *sums_of(&group->flats[f]));
			*sums_of(&group->flats[f]) = NULL;
		}
	}
	free(ops);
	return status;
}

zero_status zero_reduce(zero_group *group)
{
	zero_status status = zero_require_member(group, "reduced");

	/* So it is on all ranks. The end of a step would free what is added now. */
	if (!status)
		status = zero_require_group_state(group, ZERO_IDLE | ZERO_WRITING, "reduced");
	if (!status && group->slice_count)
		status = zero_fail(ZERO_E_STATE, "group '%s' has slices: reduce each of them",
				   group->name);
	if (status)
		return status;
	pthread_mutex_lock(&group->job->lock);
	status = zero_reduce_locked(group);
	pthread_mutex_unlock(&group->job->lock);
	return status;
}

static zero_status alloc_sums(zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	for (size_t f = 0; !status && f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		if (flat->state_count)
			status = job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
						 flat->state_count * sizeof(float), true,
						 (void **)&flat->reduced);
	}
	return status;
}

zero_status zero_gradient_sums(zero_group *group, bool have)
{
	zero_status status = zero_require_member(group, "asked for its sums");
	bool needs;

	if (!status)
		status = zero_require_group_state(group, ZERO_IDLE | ZERO_WRITING,
						  "asked for its sums");
	if (!status && (!group->flats || !group->trainable || group->team_reduced))
		status = zero_fail(ZERO_E_STATE, "group '%s' has no sums of all ranks: %s",
				   group->name,
				   !group->flats      ? "zero_layout has not been called"
				   : group->trainable ? "call zero_reduce_replicas first"
						      : "it has no trainable parameter");
	if (status)
		return status;
	pthread_mutex_lock(&group->job->lock);
	status = zero_reduce_wait(group);
	needs = !status && have && !group->reduced;
	if (needs)
		status = alloc_sums(group);
	pthread_mutex_unlock(&group->job->lock);
	if (needs && !status)
		group->reduced = true;
	else if (!have || needs)
		zero_step_free_gradients(&group, 1, false);
	return status;
}

/* ---- over the copies of a grid --------------------------------------------------------------- */

/* Adds the operations that sum a flat buffer's sums over replica_team, and free them. */
static zero_status prepare_replicas(struct zero_flat *flat, struct zero_op *ops, size_t *op_count)
{
	const zero_group *group = flat->group;
	zero_job *job = group->job;
	zero_status status = ZERO_OK;

	if (!flat->team_sums)
		return ZERO_OK;
	if (!group->reduced)
		status = job->ops->alloc(job->backend, ZERO_MEM_GRADIENTS,
					 flat->state_count * sizeof(float), false,
					 (void **)&flat->reduced);
	for (size_t r = 0; !status && r < flat->segment_count; r++)
		if (flat->segments[r].trainable)
			ops[(*op_count)++] = (struct zero_op){
				.kind = ZERO_OP_REDUCE_SCATTER,
				.from = ZERO_F32,
				.to = ZERO_F32,
				.send = own_sums(flat, &flat->segments[r]),
				.recv = flat->reduced + flat->segments[r].state_at,
				.count = flat->segments[r].shard,
				.accumulate = group->reduced,
			};
	ops[(*op_count)++] = (struct zero_op){.kind = ZERO_OP_FREE, .recv = flat->team_sums};
	flat->team_sums = NULL;
	return status;
}

/* Called with the job's lock held. */
static zero_status sum_group(zero_group *group, zero_status status)
{
	struct zero_op *ops = calloc(count_ops(group) + 1, sizeof(*ops));
	zero_job *job = group->job;
	struct zero_work *work = NULL;
	size_t op_count = 0;
	zero_status reduced = zero_reduce_wait(group), submitted;

	status = status ? status : reduced;
	if (!status && !ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to sum group '%s'", group->name);
	for (size_t f = 0; !status && f < group->flat_count; f++)
		status = prepare_replicas(&group->flats[f], ops, &op_count);
	submitted = zero_submit(group->replica_team, status, ops, op_count, !group->ever_summed,
				false, &work, ZERO_WORK_REDUCE, group->name,
				"sum of group '%s' over copies", group->name);
	if (!submitted) {
		zero_work_wait(job, &group->reduce);
		group->reduce = work;
		group->reduced = group->ever_summed = true;
		group->team_reduced = false;
	} else {
		free_unsubmitted(job, ops, op_count);
		for (size_t f = 0; f < group->flat_count; f++) {
			job->ops->free(job->backend, group->flats[f].reduced);
			job->ops->free(job->backend, group->flats[f].team_sums);
			group->flats[f].reduced = group->flats[f].team_sums = NULL;
		}
		group->reduced = group->team_reduced = false;
	}
	free(ops);
	return submitted ? submitted : status;
}

zero_status zero_sum_replicas(zero_job *job, zero_group **groups, size_t count, zero_status status)
{
	zero_status first = ZERO_OK;

	pthread_mutex_lock(&job->lock);
	/* Their gradients are freed before other sums are allocated. */
	for (size_t g = 0; job->grid && g < count; g++)
		zero_reduce_wait(groups[g]);
	for (size_t g = 0; job->grid && g < count; g++)
		if (groups[g]->team_reduced) {
			zero_status one = sum_group(groups[g], status);

			first = first ? first : one;
		}
	pthread_mutex_unlock(&job->lock);
	return first;
}

zero_status zero_reduce_replicas(zero_job *job, zero_group **groups, size_t count)
{
	return zero_sum_replicas(job, groups, count, ZERO_OK);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step: AdamW over what this rank owns, with clipping by the global norm. The norm is a sum of
 * one f64 partial for each flat buffer and shard, in that order, whoever computed it: stage 0
 * computes all of them itself from the same virtual shards, so that the bits are the same.
 */
#include <math.h>
#include <stdlib.h>

#include "internal.h"

static size_t count_flats(const zero_job *job)
{
	size_t flats = 0;

	for (size_t g = 0; g < job->group_count; g++)
		flats += job->groups[g]->flat_count;
	return flats;
}

static zero_status check_step(const zero_job *job, const zero_adamw *adamw)
{
	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "a step comes after zero_layout");
	for (size_t g = 0; g < job->group_count; g++)
		if (job->groups[g]->gather)
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is gathered: release it before "
					 "the step changes it",
					 job->groups[g]->name);
	/* Written so that NaN is refused. */
	if (!(adamw->lr >= 0 && adamw->beta1 >= 0 && adamw->beta1 < 1 && adamw->beta2 >= 0 &&
	      adamw->beta2 < 1 && adamw->eps > 0 && adamw->weight_decay >= 0 && adamw->clip >= 0 &&
	      adamw->micro_batches >= 0))
		return zero_fail(ZERO_E_INVALID,
				 "AdamW has lr %g, beta1 %g, beta2 %g, eps %g, weight_decay %g, "
				 "clip %g, micro_batches %d: all are >= 0, betas < 1, eps > 0",
				 (double)adamw->lr, (double)adamw->beta1, (double)adamw->beta2,
				 (double)adamw->eps, (double)adamw->weight_decay,
				 (double)adamw->clip, adamw->micro_batches);
	return ZERO_OK;
}

/* Groups that were not reduced since the last step are now; waits for all. */
static zero_status finish_reduces(zero_job *job)
{
	zero_status status = ZERO_OK, one;

	pthread_mutex_lock(&job->lock);
	for (size_t g = 0; g < job->group_count && !status; g++)
		if (job->groups[g]->trainable && !job->groups[g]->reduced)
			status = zero_reduce_locked(job->groups[g]);
	for (size_t g = 0; g < job->group_count; g++) {
		one = zero_finish(job, &job->groups[g]->reduce);
		status = status ? status : one;
		one = zero_finish(job, &job->groups[g]->update);
		status = status ? status : one;
	}
	for (int i = 0; i < ZERO_REDUCES; i++) {
		one = zero_finish(job, &job->reduces[i]);
		status = status ? status : one;
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

static zero_status alloc_state(zero_job *job, struct zero_flat *flat)
{
	size_t bytes = flat->state_count * sizeof(float);
	zero_status status = ZERO_OK;
	bool needs_master = false;

	for (size_t r = 0; r < flat->run_count; r++)
		needs_master = needs_master ||
			       (flat->runs[r].trainable && flat->runs[r].dtype != ZERO_F32);
	if (!bytes)
		return ZERO_OK;
	if (!flat->m)
		status = job->ops->alloc(job->backend, ZERO_MEM_OPTIMIZER, bytes, true,
					 (void **)&flat->m);
	if (!status && !flat->v)
		status = job->ops->alloc(job->backend, ZERO_MEM_OPTIMIZER, bytes, true,
					 (void **)&flat->v);
	if (status || !needs_master || flat->master)
		return status;
	status = job->ops->alloc(job->backend, ZERO_MEM_OPTIMIZER, bytes, true,
				 (void **)&flat->master);
	for (size_t r = 0; !status && r < flat->run_count; r++) {
		const struct zero_run *run = &flat->runs[r];
		size_t first, count;

		if (!run->trainable || run->dtype == ZERO_F32)
			continue;
		zero_stepped_part(job, run, &first, &count);
		job->ops->cast(job->backend, ZERO_F32, flat->master + run->state_at, run->dtype,
			       zero_stored_at(job, flat, run, first), count);
	}
	return status;
}

/* The sum of squares of one shard of a flat's gradient sums, which lies in what this rank steps. */
static double shard_norm2(zero_job *job, const struct zero_flat *flat, size_t shard)
{
	double sum = 0;

	for (size_t r = 0; r < flat->run_count; r++) {
		const struct zero_run *run = &flat->runs[r];
		size_t first, count;
		double part;

		if (!run->trainable)
			continue;
		zero_stepped_part(job, run, &first, &count);
		job->ops->norm2(job->backend,
				flat->reduced + run->state_at + (shard * run->shard - first),
				run->shard, &part);
		sum += part;
	}
	return sum;
}

/* COLLECTIVE. The squared norm over all groups and ranks, of the sums. Agrees on all else too. */
static zero_status total_norm2(zero_job *job, zero_status status, const zero_adamw *adamw,
			       double *total)
{
	size_t flats = count_flats(job), world = (size_t)job->place.world, at = 0;
	double *all_partials, *partials; /* [world][flats], [flats] */
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE, .count = flats * sizeof(double)};

	*total = 0;
	all_partials = calloc(world * flats + 1, sizeof(double));
	partials = calloc(flats + 1, sizeof(double));
	if ((!all_partials || !partials) && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the norms of %zu groups", flats);
	for (size_t g = 0; !status && g < job->group_count; g++)
		for (size_t f = 0; f < job->groups[g]->flat_count; f++, at++) {
			const struct zero_flat *flat = &job->groups[g]->flats[f];

			for (size_t r = 0; job->step_whole && r < world; r++)
				all_partials[r * flats + at] = shard_norm2(job, flat, r);
			if (!job->step_whole)
				partials[at] = shard_norm2(job, flat, (size_t)job->place.rank);
		}
	op.send = partials;
	op.recv = all_partials;
	/* All that must be equal on all ranks is in the label. */
	status = zero_run(job, status, &op, job->step_whole ? 0 : 1,
			  "step %llu with lr %.9g, betas %.9g and %.9g, eps %.9g, decay %.9g, "
			  "clip %.9g, %d micro-batches",
			  (unsigned long long)job->steps + 1, (double)adamw->lr,
			  (double)adamw->beta1, (double)adamw->beta2, (double)adamw->eps,
			  (double)adamw->weight_decay, (double)adamw->clip, adamw->micro_batches);
	for (size_t f = 0; !status && f < flats; f++)
		for (size_t r = 0; r < world; r++)
			*total += all_partials[r * flats + f];
	free(all_partials);
	free(partials);
	return status;
}

/* beta^steps in f64, by squaring: libm's pow differs in the last bit between machines. */
static double power(double beta, uint64_t steps)
{
	double result = 1;

	for (; steps; steps >>= 1, beta *= beta)
		if (steps & 1)
			result *= beta;
	return result;
}

static void step_param(zero_job *job, const zero_param *param, const zero_adamw *adamw,
		       const struct zero_adamw_args *common)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_run *run = &flat->runs[param->run];
	struct zero_adamw_args args = *common;
	size_t run_first, run_count, first, count, at;
	bool low = run->dtype != ZERO_F32;
	char *stored;

	zero_stepped_part(job, run, &run_first, &run_count);
	zero_param_part(param, run_first, run_count, &first, &count);
	if (!count)
		return;
	args.lr = adamw->lr * param->lr_scale;
	args.decay = args.lr * (adamw->weight_decay * param->weight_decay);
	at = run->state_at + (param->first + first - run_first);
	stored = zero_stored_at(job, flat, run, param->first + first);
	job->ops->adamw(job->backend, &args, low ? flat->master + at : (float *)(void *)stored,
			flat->m + at, flat->v + at, flat->reduced + at, low ? stored : NULL,
			run->dtype, count);
}

/* Stages 1 and 2: the owners' new values go to everyone, while the caller goes on. */
static zero_status share_update(zero_job *job, zero_group *group)
{
	struct zero_op *ops;
	zero_status status = ZERO_OK;
	size_t runs = 0, op_count = 0;

	for (size_t f = 0; f < group->flat_count; f++)
		runs += group->flats[f].run_count;
	ops = calloc(runs + 1, sizeof(*ops));
	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to share group '%s'", group->name);
	for (size_t f = 0; !status && f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].run_count; r++) {
			struct zero_flat *flat = &group->flats[f];
			struct zero_run *run = &flat->runs[r];

			if (!run->trainable)
				continue;
			ops[op_count++] = (struct zero_op){
				.kind = ZERO_OP_ALL_GATHER,
				.from = run->dtype,
				.to = run->dtype,
				.send = zero_stored_at(job, flat, run,
						       (size_t)job->place.rank * run->shard),
				.recv = zero_stored_at(job, flat, run, 0),
				.count = run->shard,
			};
		}
	status = zero_submit(job, status, ops, op_count, false, &group->update,
			     "update of group '%s'", group->name);
	free(ops);
	return status;
}

/* The sums; and after an error also what was not yet reduced. */
static void drop_gradients(zero_job *job, zero_status status)
{
	pthread_mutex_lock(&job->lock);
	for (size_t g = 0; g < job->group_count; g++) {
		job->groups[g]->reduced = false;
		for (size_t f = 0; f < job->groups[g]->flat_count; f++) {
			struct zero_flat *flat = &job->groups[g]->flats[f];

			job->ops->free(job->backend, flat->reduced);
			flat->reduced = NULL;
			if (!status)
				continue;
			job->ops->free(job->backend, flat->gradient);
			flat->gradient = NULL;
		}
	}
	pthread_mutex_unlock(&job->lock);
}

static zero_status apply(zero_job *job, const zero_adamw *adamw, float scale)
{
	struct zero_adamw_args common = {
		.beta1 = adamw->beta1, .beta2 = adamw->beta2, .eps = adamw->eps, .scale = scale};
	zero_status status = ZERO_OK;

	job->steps++;
	common.correction1 = (float)(1 / (1 - power((double)adamw->beta1, job->steps)));
	common.correction2 = (float)(1 / (1 - power((double)adamw->beta2, job->steps)));
	for (size_t g = 0; !status && g < job->group_count; g++) {
		zero_group *group = job->groups[g];

		for (size_t p = 0; p < group->param_count; p++)
			if (group->params[p]->trainable && !group->params[p]->alias_of)
				step_param(job, group->params[p], adamw, &common);
		if (job->whole && !job->step_whole && group->trainable)
			status = share_update(job, group);
	}
	return status;
}

zero_status zero_step(zero_job *job, const zero_adamw *adamw, zero_step_result *result)
{
	int micro_batches = adamw->micro_batches ? adamw->micro_batches : 1;
	double mean = 1 / ((double)job->place.world * micro_batches);
	zero_status status;
	double norm2, norm, clip = 1;
	bool finite;

	/* A call that does not fit on one rank must not leave the others' reduces waiting. */
	status = job->laid_out ? finish_reduces(job) : ZERO_OK;
	if (!status)
		status = check_step(job, adamw);
	for (size_t g = 0; !status && g < job->group_count; g++)
		for (size_t f = 0; !status && f < job->groups[g]->flat_count; f++)
			status = alloc_state(job, &job->groups[g]->flats[f]);
	status = total_norm2(job, status, adamw, &norm2);
	if (status)
		goto out;
	norm = sqrt(norm2) * mean;
	finite = isfinite(norm);
	if (finite && adamw->clip > 0 && norm > (double)adamw->clip)
		clip = (double)adamw->clip / norm;
	if (finite)
		status = apply(job, adamw, (float)(clip * mean));
	if (result)
		*result = (zero_step_result){.grad_norm = norm, .skipped = !finite};
out:
	drop_gradients(job, status);
	return status;
}

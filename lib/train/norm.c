/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step needs from all ranks. The squared norm of the gradient sums is one f64 of each rank,
 * which a device exchanges without the host: the sum over its shards, in the order of flat buffers
 * and segments. Stage 0 computes the same from virtual shards, so that the bits are equal at every
 * stage. The number of samples, and flags, go by way of the host.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* Adds the sum of the squares of x[count]. */
static void add_norm2(zero_job *job, const float *x, size_t count)
{
	if (job->ops->norm2)
		job->ops->norm2(job->backend, x, count, job->trainer->norms);
	else
		*job->trainer->norms += zero_cpu_norm2(&job->cpu, x, count);
}

/* Sums the squares of this rank's shard of a flat buffer's gradient sums. */
static void add_flat(zero_job *job, const struct zero_flat *flat)
{
	for (size_t r = 0; r < flat->segment_count; r++) {
		const struct zero_segment *segment = &flat->segments[r];
		size_t stepped, owned, count;

		if (!segment->trainable)
			continue;
		zero_stepped_part(flat->group, segment, &stepped, &count);
		zero_owned_part(flat->group, segment, &owned, &count);
		add_norm2(job, flat->reduced + segment->state_at + (owned - stepped), count);
	}
}

/* Sums those of groups that have sums. */
static void sum_own(zero_job *job, zero_group **groups, size_t count)
{
	zero_fill(job, ZERO_F64, job->trainer->norms, 1, 0);
	for (size_t g = 0; g < count; g++)
		for (size_t f = 0; f < groups[g]->flat_count; f++)
			if (zero_is_member(groups[g]) && groups[g]->reduced)
				add_flat(job, &groups[g]->flats[f]);
}

/* Sets the sums of a parameter to 0 that this rank has. */
static void drop_sums(zero_job *job, const zero_param *param)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = &flat->segments[param->segment];
	size_t stepped_first, stepped, first, count;

	zero_stepped_part(param->group, segment, &stepped_first, &stepped);
	zero_param_part(param, stepped_first, stepped, &first, &count);
	if (count)
		zero_fill(job, ZERO_F32,
			  flat->reduced + segment->state_at +
				  (param->first + first - stepped_first),
			  count, 0);
}

/* What was frozen is not stepped, and counts as nothing in the norm: also if its gradients were
   reduced before. */
static void drop_frozen(zero_job *job, zero_group **groups, size_t count)
{
	for (size_t g = 0; g < count; g++)
		for (size_t p = 0; groups[g]->reduced && p < groups[g]->param_count; p++)
			if (groups[g]->params[p]->frozen)
				drop_sums(job, groups[g]->params[p]);
}

uint64_t zero_groups_hash(zero_group **groups, size_t count)
{
	uint64_t hash = 0;

	for (size_t g = 0; g < count; g++)
		hash = zero_hash(groups[g]->name, strlen(groups[g]->name) + 1, hash);
	return hash;
}

/* A hash of the groups, and of the factors of their parameters. */
static uint64_t factors_hash(zero_group **groups, size_t count)
{
	uint64_t hash = zero_groups_hash(groups, count);

	for (size_t g = 0; g < count; g++)
		for (size_t p = 0; p < groups[g]->param_count; p++) {
			const zero_param *param = groups[g]->params[p];

			hash = zero_hash(&param->lr_scale, sizeof(float), hash);
			hash = zero_hash(&param->weight_decay, sizeof(float), hash);
			hash = zero_hash(&param->frozen, sizeof(bool), hash);
			hash = zero_hash(&param->muon, sizeof(bool), hash);
		}
	return hash;
}

/* One f64 carries these bits of a rank. */
enum { STOP = 1, SUMS_EXPOSED = 2, FLAGS = 2 /* bits before those of zero_hooks_busy */ };

static double own_flags(const zero_job *job, zero_group **groups, size_t count)
{
	bool exposed = false;

	for (size_t g = 0; g < count; g++)
		exposed = exposed || groups[g]->sums_exposed;
	return (zero_hooks_busy(job) << FLAGS) + (zero_stop_requested() ? STOP : 0) +
	       (exposed ? SUMS_EXPOSED : 0);
}

/* What ranks exchange by way of the host. */
struct from_rank {
	double samples, flags;
};

static struct zero_step_agreed fold(const struct from_rank *all, size_t world)
{
	struct zero_step_agreed agreed = {.busy = 0};

	for (size_t rank = 0; rank < world; rank++) {
		unsigned flags = (unsigned)all[rank].flags;

		agreed.samples += all[rank].samples;
		agreed.busy |= flags >> FLAGS;
		agreed.stop = agreed.stop || flags & STOP;
		agreed.sums_exposed = agreed.sums_exposed || flags & SUMS_EXPOSED;
	}
	return agreed;
}

/* Whether all that ranks tell in this step is known, and nothing is done in it that may fail on one
   rank alone for want of memory. */
static bool is_told(const zero_job *job, const zero_adamw *adamw, zero_group **groups, size_t count)
{
	bool told =
		job->trainer->told && job->stage > 0 && adamw->gradients_are_means && !adamw->muon;

	for (size_t g = 0; told && g < count; g++)
		told = groups[g]->ever_stepped || !zero_group_is_stepped(groups[g]);
	return told;
}

/* What zero_backward_end has told counts for one step. */
static struct zero_step_agreed take_told(zero_job *job)
{
	job->trainer->told = false;
	return (struct zero_step_agreed){.stop = job->trainer->told_stop, .busy = ~0U};
}

zero_status zero_step_agree(zero_job *job, zero_status status, const zero_adamw *adamw,
			    zero_group **groups, size_t count, struct zero_step_agreed *agreed)
{
	struct zero_trainer *trainer = job->trainer;
	size_t world = (size_t)job->place.world;
	struct from_rank mine = {adamw->samples, own_flags(job, groups, count)}, *all;
	bool told = is_told(job, adamw, groups, count);
	char scale[192], muon[192];
	struct zero_op ops[] = {
		{.kind = ZERO_OP_ALLGATHER_BYTES,
		 .on_device = true,
		 .send = trainer->norms,
		 .recv = trainer->norms + 1,
		 .count = sizeof(double)},
		{.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .count = sizeof(mine)}};
	struct zero_work *work;

	*agreed = take_told(job);
	all = calloc(world, sizeof(*all));
	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the samples of %zu ranks", world);
	ops[1].recv = all;
	if (!status) {
		drop_frozen(job, groups, count);
		sum_own(job, groups, count);
	}
	if (zero_loss_scale_is_kept(job, adamw->loss_scale))
		snprintf(scale, sizeof(scale), "the device's loss scale, ");
	else
		zero_loss_scale_label(adamw->loss_scale, scale, sizeof(scale));
	zero_muon_label(adamw->muon, muon, sizeof(muon));
	/* The label holds everything that must be equal on all ranks. */
	status = zero_submit(
		&job->all, status, ops, told ? 1 : 2, !told, !told, &work, ZERO_WORK_STEP, NULL,
		"step %llu with %slr %.9g, betas %.9g and %.9g, eps %.9g, decay %.9g%s, "
		"clip %.9g, %d micro-batches%s, over %zu groups (factors %016llx)",
		(unsigned long long)trainer->begun + 1, scale, (double)adamw->lr,
		(double)adamw->beta1, (double)adamw->beta2, (double)adamw->eps,
		(double)adamw->weight_decay, muon, (double)adamw->clip, adamw->micro_batches,
		adamw->gradients_are_means ? ", of means" : "", count,
		(unsigned long long)factors_hash(groups, count));
	if (!status)
		status = zero_work_wait(job, &work);
	if (!status && !told)
		*agreed = fold(all, world);
	free(all);
	return status;
}

/* ---- steps of the program's own -------------------------------------------------------------- */

zero_status zero_step_agree_end(zero_job *job, zero_status status, struct zero_step_agreed *agreed)
{
	size_t world = (size_t)job->place.world;
	struct from_rank mine = {0, own_flags(job, NULL, 0)}, *all = calloc(world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .recv = all, .count = sizeof(mine)};
	bool told = job->trainer->told;
	struct zero_work *work;

	*agreed = take_told(job);
	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the flags of %zu ranks", world);
	status = zero_submit(&job->all, status, &op, told ? 0 : 1, !told, !told, &work,
			     ZERO_WORK_STEP, NULL, "zero_step_end");
	if (!status)
		status = zero_work_wait(job, &work);
	if (!status && !told)
		*agreed = fold(all, world);
	free(all);
	return status;
}

zero_status zero_backward_end(zero_job *job, unsigned char *flags, size_t count)
{
	size_t world = (size_t)job->place.world, row = sizeof(double) + count;
	unsigned char *mine = malloc((world + 1) * row), *all = mine ? mine + row : NULL;
	double own = own_flags(job, NULL, 0);
	zero_status status = ZERO_OK;
	unsigned busy = 0;
	bool stop = false;

	if (mine) {
		memcpy(mine, &own, sizeof(own));
		if (count)
			memcpy(mine + sizeof(own), flags, count);
	} else {
		status = zero_fail(ZERO_E_MEMORY, "no memory for %zu flags of %zu ranks", count,
				   world);
	}
	status = zero_submit_wait(
		&job->all, status,
		&(struct zero_op){
			.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .recv = all, .count = row},
		1, ZERO_WORK_STEP, "zero_backward_end with %zu flags", count);
	for (size_t rank = 0; !status && rank < world; rank++) {
		const unsigned char *theirs = all + rank * row;

		memcpy(&own, theirs, sizeof(own));
		busy |= (unsigned)own >> FLAGS;
		stop = stop || ((unsigned)own & STOP);
		for (size_t i = 0; i < count; i++)
			flags[i] |= theirs[sizeof(own) + i];
	}
	free(mine);
	if (status)
		return status;
	zero_hooks_all_idle(job, busy);
	job->trainer->told = true;
	job->trainer->told_stop = stop;
	return ZERO_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step needs from all ranks, in one exchange: the norm of the gradient sums, and the number
 * of samples. The norm is a sum of f64 partials, one for each flat buffer and shard, in that order.
 * Stage 0 computes the same partials from virtual shards, so that the bits are equal at every
 * stage.
 */
#include <stdlib.h>

#include "train.h"

static size_t count_flats(const zero_job *job)
{
	size_t flats = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		flats += job->model->groups[g]->flat_count;
	return flats;
}

static size_t count_segments(const zero_job *job)
{
	size_t segments = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t f = 0; f < job->model->groups[g]->flat_count; f++)
			segments += job->model->groups[g]->flats[f].segment_count;
	return segments;
}

/* Begins to sum the squares of this rank's shard of each segment's gradient sums. */
static void begin_flat(zero_job *job, const struct zero_flat *flat, double *sums)
{
	size_t rank = (size_t)flat->group->team->place.rank;

	for (size_t r = 0; r < flat->segment_count; r++) {
		const struct zero_segment *segment = &flat->segments[r];
		size_t first, count;

		sums[r] = 0;
		if (!segment->trainable)
			continue;
		zero_stepped_part(flat->group, segment, &first, &count);
		job->ops->norm2(job->backend,
				flat->reduced + segment->state_at + (rank * segment->shard - first),
				segment->shard, &sums[r]);
	}
}

/* Begins that for all flat buffers; with `partials`, once the sums are there, adds them up to one
   partial for each flat buffer: 0 where this rank is not in the team. */
static void each_flat(zero_job *job, double *sums, double *partials)
{
	size_t at = 0, flats = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t f = 0; f < job->model->groups[g]->flat_count; f++, flats++) {
			const struct zero_flat *flat = &job->model->groups[g]->flats[f];

			if (!zero_is_member(job->model->groups[g]))
				continue;
			if (!partials)
				begin_flat(job, flat, sums + at);
			for (size_t r = 0; partials && r < flat->segment_count; r++)
				partials[flats] += sums[at + r];
			at += flat->segment_count;
		}
}

/* Computes this rank's partials. A device writes them to page-locked memory. */
static zero_status fill_partials(zero_job *job, double *partials)
{
	size_t segments = count_segments(job);
	bool device = !job->ops->host_memory;
	void *sums = device ? NULL : calloc(segments + 1, sizeof(double));
	zero_status status = ZERO_OK;

	if (device && segments)
		status = job->ops->alloc(job->backend, ZERO_MEM_PINNED, segments * sizeof(double),
					 false, &sums);
	else if (!device && !sums)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the norms of %zu segments",
				   segments);
	if (status)
		return status;
	each_flat(job, sums, NULL);
	status = zero_device_sync(job);
	if (!status)
		each_flat(job, sums, partials);
	if (device)
		job->ops->free(job->backend, sums);
	else
		free(sums);
	return status;
}

/* Sums over all flat buffers, each shard by shard in rank order. `all` is [world][row]. */
static double fold_norm2(const zero_job *job, const double *all, size_t row)
{
	double total = 0;
	size_t at = 0;

	for (size_t g = 0; g < job->model->group_count; g++) {
		const zero_team *team = job->model->groups[g]->team;

		for (size_t f = 0; f < job->model->groups[g]->flat_count; f++, at++)
			for (int r = 0; r < team->place.world; r++)
				total += all[(size_t)(team->ranks ? team->ranks[r] : r) * row + at];
	}
	return total;
}

/* One f64 carries these bits of a rank. */
enum { BUSY = 1, STOP = 2 };

static double pack_flags(const zero_job *job)
{
	return (zero_hooks_busy(job) ? BUSY : 0) + (zero_stop_requested() ? STOP : 0);
}

static void unpack_flags(struct zero_step_sums *sums, double flags)
{
	sums->all_idle = sums->all_idle && !((int)flags & BUSY);
	sums->stop = sums->stop || (int)flags & STOP;
}

zero_status zero_step_exchange(zero_job *job, zero_status status, const zero_adamw *adamw,
			       struct zero_step_sums *sums)
{
	size_t flats = count_flats(job), row = flats + 2, world = (size_t)job->place.world;
	/* [world][row] and [row]: a partial for each flat, the samples, the flags. */
	double *all, *mine;
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE, .count = row * sizeof(double)};
	char scale[192];

	*sums = (struct zero_step_sums){.all_idle = true};
	all = calloc(world * row, sizeof(double));
	mine = calloc(row, sizeof(double));
	if ((!all || !mine) && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the norms of %zu groups", flats);
	if (!status) {
		status = fill_partials(job, mine);
		mine[flats] = adamw->samples;
		mine[flats + 1] = pack_flags(job);
	}
	op.send = mine;
	op.recv = all;
	zero_loss_scale_label(adamw->loss_scale, scale, sizeof(scale));
	/* The label holds everything that must be equal on all ranks. */
	status = zero_submit_wait(
		&job->all, status, &op, 1,
		"step %llu with %slr %.9g, betas %.9g and %.9g, eps %.9g, decay %.9g, "
		"clip %.9g, %d micro-batches",
		(unsigned long long)job->trainer->steps + 1, scale, (double)adamw->lr,
		(double)adamw->beta1, (double)adamw->beta2, (double)adamw->eps,
		(double)adamw->weight_decay, (double)adamw->clip, adamw->micro_batches);
	if (!status) {
		sums->norm2 = fold_norm2(job, all, row);
		for (size_t rank = 0; rank < world; rank++) {
			sums->samples += all[rank * row + flats];
			unpack_flags(sums, all[rank * row + flats + 1]);
		}
	}
	free(all);
	free(mine);
	return status;
}

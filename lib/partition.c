/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition: every rank fills the part of a parameter that it stores, chunk by chunk, straight into
 * place. The idea of a threshold and a chunk is DeepSpeed's (its pull request on streaming
 * partition broadcasts every chunk to every rank); here a rank is sent its own slice only, and what
 * can be read or computed by slice is never sent.
 */
#include <stdlib.h>

#include "internal.h"

/* Elements in one piece: all of the parameter if it is not above the threshold. */
static size_t piece_elements(const zero_job *job, const zero_param *param)
{
	size_t size = zero_dtype_size(param->dtype);

	if (param->count * size <= job->threshold)
		return param->count ? param->count : 1;
	return job->chunk > size ? job->chunk / size : 1;
}

static zero_status check_load(const zero_param *param, const zero_source *source)
{
	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' is loaded before zero_layout",
				 param->name);
	if (param->alias_of)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' is tied to '%s': load that",
				 param->name, param->alias_of->name);
	if (param->group->gather)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' is loaded while group '%s' is gathered",
				 param->name, param->group->name);
	return zero_source_check(param, source);
}

/* Values that this rank can make or read itself. */
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

/* Bounds of the ranks' slices, [world + 1] elements of the parameter. */
static void slice_bounds(const zero_param *param, const struct zero_run *run, int world,
			 size_t *bounds)
{
	for (int rank = 0; rank <= world; rank++) {
		size_t at = run->shard * (size_t)rank;

		bounds[rank] = at <= param->first                  ? 0
			       : at - param->first >= param->count ? param->count
								   : at - param->first;
	}
}

static zero_status load_from_rank(zero_param *param, const zero_source *source, zero_status status,
				  const char *label)
{
	zero_job *job = param->group->job;
	int world = job->place.world;
	size_t *bounds = calloc((size_t)world + 1, sizeof(*bounds));
	struct zero_op op = {
		.kind = job->whole ? ZERO_OP_BROADCAST : ZERO_OP_SCATTER,
		.from = param->dtype,
		.to = param->dtype,
		.root = source->rank,
		.count = param->count,
		.piece = piece_elements(job, param),
		.bounds = bounds,
	};
	size_t first, count;

	if (!bounds && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the slices of parameter '%s'",
				   param->name);
	if (!status) {
		slice_bounds(param, &param->flat->runs[param->run], world, bounds);
		status = zero_shard(param, &op.recv, &first, &count);
		op.send = source->data;
	}
	status = zero_run(job, status, &op, param->count ? 1 : 0, "%s", label);
	free(bounds);
	return status;
}

/* f32 masters of 16-bit parameters follow what is loaded. */
static void refresh_master(zero_param *param)
{
	struct zero_flat *flat = param->flat;
	struct zero_run *run = &flat->runs[param->run];
	zero_job *job = param->group->job;
	size_t run_first, run_count, first, count;

	if (!flat->master || !run->trainable || run->dtype == ZERO_F32)
		return;
	zero_stepped_part(job, run, &run_first, &run_count);
	zero_param_part(param, run_first, run_count, &first, &count);
	if (count)
		job->ops->cast(job->backend, ZERO_F32,
			       flat->master + run->state_at + (param->first + first - run_first),
			       run->dtype, zero_stored_at(job, flat, run, param->first + first),
			       count);
}

zero_status zero_load(zero_param *param, const zero_source *source)
{
	zero_job *job = param->group->job;
	zero_status status = check_load(param, source);
	char label[512];

	zero_source_label(param, source, label, sizeof(label));
	if (!status)
		status = zero_finish_update(param->group);
	if (source->kind == ZERO_FROM_RANK) {
		status = load_from_rank(param, source, status, label);
	} else {
		if (!status)
			status = load_own(param, source);
		status = zero_run(job, status, NULL, 0, "%s", label);
	}
	if (!status)
		refresh_master(param);
	return status;
}

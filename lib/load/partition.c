/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Partition: every rank fills the part of a parameter that it stores, chunk by chunk, straight into
 * place. The idea of a threshold and a chunk is DeepSpeed's (its pull request on streaming
 * partition broadcasts every chunk to every rank); here a rank is sent its own slice only, and what
 * can be read or computed by slice is never sent.
 */
#include <stdio.h>
#include <stdlib.h>

#include "job/internal.h"

/* Elements in one piece: all of the parameter if it is not above the threshold. */
static size_t piece_elements(const zero_job *job, const zero_param *param)
{
	size_t size = zero_dtype_size(param->dtype), chunk = job->chunk;

	if (param->count * size <= job->threshold)
		return param->count ? param->count : 1;
	/* Fewer bytes take a device as long. */
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
		return zero_fail(ZERO_E_INVALID, "parameter '%s' is tied to '%s': load that",
				 param->name, param->alias_of->name);
	if (param->group->gather)
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
static void slice_bounds(const zero_param *param, const struct zero_segment *segment, int world,
			 size_t *bounds)
{
	for (int rank = 0; rank <= world; rank++) {
		size_t at = segment->shard * (size_t)rank;

		bounds[rank] = at <= param->first                  ? 0
			       : at - param->first >= param->count ? param->count
								   : at - param->first;
	}
}

struct zero_op zero_scatter_op(const zero_param *param, int rank, const void *data, bool whole,
			       size_t *bounds)
{
	const zero_team *team = param->group->team;

	slice_bounds(param, &param->flat->segments[param->segment], team->place.world, bounds);
	return (struct zero_op){
		.kind = whole ? ZERO_OP_BROADCAST : ZERO_OP_SCATTER,
		.from = param->dtype,
		.to = param->dtype,
		.root = zero_team_rank_of(team, rank),
		.count = param->count,
		.piece = piece_elements(param->group->job, param),
		.bounds = bounds,
		.send = data,
	};
}

/* A parameter that comes from one rank, into what this one stores. */
static struct zero_op scatter_op(zero_param *param, const zero_source *source, size_t *bounds)
{
	const zero_group *group = param->group;
	struct zero_op op =
		zero_scatter_op(param, source->rank, source->data, group->replicated, bounds);
	size_t segment_first, segment_count, first, count;
	const struct zero_segment *segment = &param->flat->segments[param->segment];

	zero_stored_part(group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count)
		op.recv = zero_stored_at(param->flat, segment, param->first + first);
	return op;
}

void zero_param_update_masters(zero_param *param)
{
	struct zero_flat *flat = param->flat;
	struct zero_segment *segment = &flat->segments[param->segment];
	size_t segment_first, segment_count, first, count;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count)
		zero_master_set(flat, segment, param->first + first, count);
}

/* What one call loads: parameters of one team. */
struct load {
	zero_team *team;
	zero_param **params;
	const zero_source *sources;
	size_t count;
	char *label;
};

/* What each rank makes or reads by itself. */
static zero_status load_all_own(const struct load *load)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < load->count; i++)
		if (load->sources[i].kind != ZERO_FROM_RANK && load->params[i]->count)
			status = load_own(load->params[i], &load->sources[i]);
	return status;
}

/* A peer that has not come here yet may still read in place what this rank is about to write. */
static bool must_meet(const struct load *load)
{
	if (load->team->place.shm_groups == load->team->place.world)
		return false;
	for (size_t i = 0; i < load->count; i++)
		if (load->sources[i].kind != ZERO_FROM_RANK && !load->params[i]->group->replicated)
			return true;
	return false;
}

/* COLLECTIVE over the team. What comes from ranks does so at once, whoever they are. */
static zero_status load_all(const struct load *load, zero_status status)
{
	zero_status reached;
	size_t bounds_each = (size_t)load->team->place.world + 1, ops_count = 0;
	struct zero_op *ops = calloc(load->count, sizeof(*ops));
	size_t *bounds = calloc(load->count * bounds_each, sizeof(*bounds));

	if (!status && (!ops || !bounds))
		status = zero_fail(ZERO_E_MEMORY, "no memory to load %zu parameters", load->count);
	for (size_t i = 0; !status && i < load->count; i++)
		status = zero_wait_post_step_gather(load->params[i]->group);
	for (size_t i = 0; !status && i < load->count; i++)
		zero_save_snapshot(load->team->job, load->params[i]->group);
	if (must_meet(load)) {
		status = zero_submit_wait(load->team, status, NULL, 0, "%s", load->label);
		if (status)
			goto out;
	}
	if (!status)
		status = load_all_own(load);
	for (size_t i = 0; !status && i < load->count; i++)
		if (load->sources[i].kind == ZERO_FROM_RANK && load->params[i]->count)
			ops[ops_count++] = scatter_op(load->params[i], &load->sources[i],
						      bounds + i * bounds_each);
	status = zero_submit_wait(load->team, status, ops, ops_count, "%s", load->label);
	for (size_t i = 0; !status && i < load->count; i++)
		zero_param_update_masters(load->params[i]);
	/* What the caller gave is its own again, whatever happened. */
	reached = zero_device_sync(load->team->job);
	status = status ? status : reached;
out:
	free(bounds);
	free(ops);
	return status;
}

/* In words that must be the same on all ranks, malloc'ed. */
static char *load_label(zero_param **params, const zero_source *sources, size_t count)
{
	char *text = NULL, one[512];
	size_t size;
	FILE *out = open_memstream(&text, &size);

	if (!out)
		return NULL;
	for (size_t i = 0; i < count; i++) {
		zero_source_label(params[i], &sources[i], one, sizeof(one));
		fprintf(out, "%s%s", i ? ", " : "", one);
	}
	if (!fclose(out))
		return text;
	free(text);
	return NULL;
}

zero_status zero_load_many(zero_param **params, const zero_source *sources, size_t count)
{
	struct load load = {.params = params, .sources = sources, .count = count};
	zero_status status = ZERO_OK;

	if (!count)
		return ZERO_OK;
	load.team = params[0]->group->team;
	for (size_t i = 1; !status && i < count; i++)
		if (params[i]->group->team != load.team)
			status = zero_fail(ZERO_E_INVALID,
					   "parameters '%s' and '%s' are loaded in one call, but "
					   "their groups have different teams",
					   params[0]->name, params[i]->name);
	if (load.team->place.rank < 0)
		return status;
	for (size_t i = 0; !status && i < count; i++)
		status = check_load(params[i], &sources[i]);
	load.label = load_label(params, sources, count);
	if (!load.label && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to load %zu parameters", count);
	if (!load.label)
		return zero_submit_wait(load.team, status, NULL, 0, "load");
	status = load_all(&load, status);
	free(load.label);
	return status;
}

zero_status zero_load(zero_param *param, const zero_source *source)
{
	return zero_load_many(&param, source, 1);
}

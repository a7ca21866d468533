/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flatten: tensors that already exist become views of flat buffers. One buffer after the other is
 * filled, so that its tensors are released before the next one takes memory. What differs between
 * the tiers is where values are laid first, and when the flat buffer itself comes to be.
 */
#include <stdlib.h>

#include "job/internal.h"

/* One flat buffer on its way, and where its values are laid first. */
struct lay {
	struct zero_flat *flat;
	enum zero_tier tier;
	bool on_host; /* the tensors are */
	bool aside;   /* in a buffer of their own, until the tensors are released */
	bool shard;   /* of each segment the own shard, else all of it */
	bool gather;  /* from the shards */
	char *base;
	size_t *at; /* [segment_count] bytes of base where the part of a segment begins */
};

/* The elements of a segment that are laid. */
static void laid_part(const struct lay *lay, const struct zero_segment *segment, size_t *first,
		      size_t *count)
{
	size_t rank = (size_t)lay->flat->group->team->place.rank;

	*first = lay->shard ? rank * segment->shard : 0;
	*count = lay->shard ? segment->shard : segment->count;
}

static struct lay plan_lay(struct zero_flat *flat, bool on_host)
{
	const zero_group *group = flat->group;
	enum zero_tier tier = group->job->tier;
	bool by_shard =
		tier == ZERO_TIER_DISTRIBUTED && group->replicated && group->team->place.world > 1;

	return (struct lay){
		.flat = flat,
		.tier = tier,
		.on_host = on_host,
		.aside = !on_host && (by_shard || tier == ZERO_TIER_HOST),
		.shard = by_shard || !group->replicated,
		.gather = by_shard,
	};
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* COLLECTIVE over the team. The flat buffer. */
static zero_status make_stored(struct lay *lay, zero_status status)
{
	struct zero_flat *flat = lay->flat;
	zero_group *group = flat->group;
	zero_job *job = group->job;
	bool stays = lay->on_host && lay->tier == ZERO_TIER_HOST;
	struct zero_op op = {
		.kind = ZERO_OP_ALLOC,
		.memory = stays ? ZERO_MEM_OFFLOAD : ZERO_MEM_SHARDS,
		.zeroed = true,
		.shared = &flat->window,
		.count = flat->stored_bytes,
	};

	if (group->replicated)
		return status ? status
			      : job->ops->alloc(job->backend, op.memory, op.count, true,
						(void **)&flat->stored);
	status = zero_submit_wait(group->team, status, &op, 1, "a flat buffer of group '%s'",
				  group->name);
	if (!status)
		flat->stored = flat->window.data;
	return status;
}

/* A buffer for the parts of all segments, one behind the other. */
static zero_status make_aside(struct lay *lay)
{
	struct zero_flat *flat = lay->flat;
	zero_job *job = flat->group->job;
	size_t bytes = 0;

	for (size_t r = 0; r < flat->segment_count; r++) {
		size_t first, count;

		laid_part(lay, &flat->segments[r], &first, &count);
		lay->at[r] = bytes;
		bytes += zero_round_to_pages(count * zero_dtype_size(flat->segments[r].dtype));
	}
	/* What is on the device is counted there, the rest is not. */
	return job->ops->alloc(job->backend,
			       lay->tier == ZERO_TIER_HOST ? ZERO_MEM_OFFLOAD : ZERO_MEM_STAGING,
			       bytes, true, (void **)&lay->base);
}

/* Where a part of a segment has its place in the flat buffer. */
static char *own_place(const struct lay *lay, const struct zero_segment *segment)
{
	size_t first, count;

	laid_part(lay, segment, &first, &count);
	return zero_stored_at(lay->flat, segment, first);
}

static void lay_straight(struct lay *lay)
{
	struct zero_flat *flat = lay->flat;

	lay->base = flat->stored;
	for (size_t r = 0; r < flat->segment_count; r++)
		lay->at[r] = (size_t)(own_place(lay, &flat->segments[r]) - flat->stored);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Where the part of a parameter that is laid begins; NULL if none is. */
static char *param_place(const struct lay *lay, const zero_param *param, size_t *first,
			 size_t *count)
{
	const struct zero_segment *segment = &lay->flat->segments[param->segment];
	size_t segment_first, segment_count;

	laid_part(lay, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
	if (!*count)
		return NULL;
	return lay->base + lay->at[param->segment] +
	       (param->first + *first - segment_first) * zero_dtype_size(segment->dtype);
}

/* What a flat buffer's parameters take: copies of what this rank has, and operations for what comes
   from one rank. */
struct values {
	struct zero_copy *copies;
	struct zero_op *ops;
	size_t *bounds; /* [bounds_each] of each operation */
	size_t copy_count, op_count, bounds_each;
};

static void lay_param(const struct lay *lay, const zero_param *param, struct values *values)
{
	const zero_adopt_spec *given = param->adopted;
	size_t size = zero_dtype_size(param->dtype), first, count;
	char *place = param_place(lay, param, &first, &count);
	size_t *bounds = values->bounds + values->op_count * values->bounds_each;

	if (given->values == ZERO_VALUES_OF_RANK && param->group->team->place.world > 1) {
		struct zero_op *op = &values->ops[values->op_count++];

		*op = zero_scatter_op(param, given->rank, given->data, !lay->shard, bounds);
		op->recv = place;
	} else if (place) {
		values->copies[values->copy_count++] =
			(struct zero_copy){.to = place,
					   .from = (const char *)given->data + first * size,
					   .bytes = count * size};
	}
}

/* COLLECTIVE over the team. Nothing is released on any rank before all is laid on all. */
static zero_status lay_values(struct lay *lay, zero_status status)
{
	zero_group *group = lay->flat->group;
	struct values values = {.bounds_each = (size_t)group->team->place.world + 1};
	zero_job *job = group->job;

	values.copies = calloc(group->param_count + 1, sizeof(*values.copies));
	values.ops = calloc(group->param_count + 1, sizeof(*values.ops));
	values.bounds = calloc(group->param_count * values.bounds_each + 1, sizeof(*values.bounds));
	if (!status && (!values.copies || !values.ops || !values.bounds))
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'", group->name);
	for (size_t p = 0; !status && p < group->param_count; p++) {
		const zero_param *param = group->params[p];

		if (param->adopted && param->flat == lay->flat && param->count)
			lay_param(lay, param, &values);
	}
	if (!status)
		job->ops->copy_many(job->backend, values.copies, values.copy_count);
	status = zero_submit_wait(group->team, status, values.ops, values.op_count,
				  "flattening of group '%s'", group->name);
	free(values.bounds);
	free(values.ops);
	free(values.copies);
	return status;
}

/* The tensors of a flat buffer; of all of the group's for NULL. */
static void release_given(zero_group *group, const struct zero_flat *flat)
{
	for (size_t p = 0; p < group->param_count; p++) {
		zero_adopt_spec *given = group->params[p]->adopted;

		if (!given || !given->release || !given->data ||
		    (flat && group->params[p]->flat != flat))
			continue;
		given->release(given->context, given->data);
		given->release = NULL;
		given->data = NULL;
		group->job->released_tensors = true;
	}
}

/* What was laid aside comes to its place. */
static void bring_back(const struct lay *lay)
{
	struct zero_flat *flat = lay->flat;
	zero_job *job = flat->group->job;

	for (size_t r = 0; r < flat->segment_count; r++) {
		const struct zero_segment *segment = &flat->segments[r];
		size_t first, count;

		laid_part(lay, segment, &first, &count);
		if (count)
			job->ops->copy(job->backend, own_place(lay, segment),
				       lay->base + lay->at[r],
				       count * zero_dtype_size(segment->dtype));
	}
}

/* COLLECTIVE over the team. */
static zero_status gather_shards(const struct lay *lay, zero_status status)
{
	struct zero_flat *flat = lay->flat;
	zero_group *group = flat->group;
	struct zero_op *ops = calloc(flat->segment_count + 1, sizeof(*ops));

	if (!status && !ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'", group->name);
	for (size_t r = 0; !status && r < flat->segment_count; r++)
		ops[r] = (struct zero_op){
			.kind = ZERO_OP_ALL_GATHER,
			.from = flat->segments[r].dtype,
			.to = flat->segments[r].dtype,
			.send = own_place(lay, &flat->segments[r]),
			.recv = zero_stored_at(flat, &flat->segments[r], 0),
			.count = flat->segments[r].shard,
		};
	status = zero_submit_wait(group->team, status, ops, status ? 0 : flat->segment_count,
				  "gather of flattened group '%s'", group->name);
	free(ops);
	return status;
}

/* ---- one after the other --------------------------------------------------------------------- */

/* COLLECTIVE over the team, also after an error elsewhere, for which the others must not wait. */
static zero_status lay_flat(struct zero_flat *flat, bool on_host, zero_status status)
{
	struct lay lay = plan_lay(flat, on_host);
	zero_job *job = flat->group->job;

	lay.at = calloc(flat->segment_count + 1, sizeof(*lay.at));
	if (!status && !lay.at)
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'",
				   flat->group->name);
	if (!lay.aside)
		status = make_stored(&lay, status);
	else if (!status)
		status = make_aside(&lay);
	if (!status && !lay.aside)
		lay_straight(&lay);
	status = lay_values(&lay, status);
	if (!status)
		status = zero_device_sync(job);
	if (!status)
		release_given(flat->group, flat);
	if (lay.aside) {
		status = make_stored(&lay, status);
		if (!status)
			bring_back(&lay);
		job->ops->free(job->backend, lay.base);
	}
	if (lay.gather)
		status = gather_shards(&lay, status);
	free(lay.at);
	return status;
}

/* A group without elements has no buffer to wait for. */
static zero_status lay_group(zero_group *group, bool on_host, zero_status status)
{
	for (size_t f = 0; zero_is_member(group) && f < group->flat_count; f++)
		if (group->flats[f].stored_bytes)
			status = lay_flat(&group->flats[f], on_host, status);
	if (!status)
		release_given(group, NULL);
	return status;
}

static bool is_on_host(const zero_job *job)
{
	for (size_t g = 0; g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++)
			if (job->groups[g]->params[p]->adopted)
				return job->groups[g]->params[p]->adopted->location == ZERO_ON_HOST;
	return false;
}

zero_status zero_flatten_adopted(zero_job *job)
{
	bool on_host = is_on_host(job);
	zero_status status = zero_flatten_plan(job);

	if (status)
		return status;
	for (size_t g = 0; g < job->group_count; g++)
		if (job->groups[g]->adopts)
			status = lay_group(job->groups[g], on_host, status);
	return zero_submit_wait(&job->all, status, NULL, 0, "end of flattening");
}

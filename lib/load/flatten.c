/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flatten: tensors that already exist become views of flat buffers. The buffers are packed one by
 * one, so that a buffer's tensors are released before the next buffer takes memory. The tiers
 * differ in where the values are packed first, and in when the flat buffer itself is allocated.
 */
#include <stdlib.h>

#include "load.h"

/* How one flat buffer is packed. */
struct packing {
	struct zero_flat *flat;
	enum zero_tier tier;
	bool on_host; /* the tensors are in host memory */
	bool staged;  /* values wait in a buffer of their own until the tensors are released */
	bool shard;   /* this rank packs its own shard of each segment, else all of it */
	bool gather;  /* the packed shards are gathered */
	char *base;
	size_t *at; /* [segment_count] bytes of base where the part of a segment begins */
};

/* The elements of a segment that this rank packs. */
static void packed_part(const struct packing *pack, const struct zero_segment *segment,
			size_t *first, size_t *count)
{
	size_t rank = (size_t)pack->flat->group->team->place.rank;

	*first = pack->shard ? rank * segment->shard : 0;
	*count = pack->shard ? segment->shard : segment->count;
}

static struct packing plan_packing(struct zero_flat *flat, bool on_host)
{
	const zero_group *group = flat->group;
	enum zero_tier tier = group->job->model->tier;
	bool by_shard =
		tier == ZERO_TIER_DISTRIBUTED && group->replicated && group->team->place.world > 1;

	return (struct packing){
		.flat = flat,
		.tier = tier,
		.on_host = on_host,
		.staged = !on_host && (by_shard || tier == ZERO_TIER_HOST),
		.shard = by_shard || !group->replicated,
		.gather = by_shard,
	};
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* COLLECTIVE over the team. The flat buffer. */
static zero_status alloc_stored(struct packing *pack, zero_status status)
{
	struct zero_flat *flat = pack->flat;
	zero_group *group = flat->group;
	zero_job *job = group->job;
	bool stays = pack->on_host && pack->tier == ZERO_TIER_HOST;
	struct zero_op op = {
		.kind = ZERO_OP_ALLOC,
		.memory = stays ? ZERO_MEM_OFFLOAD : ZERO_MEM_SHARDS,
		.zeroed = true,
		.shared = &flat->shared_stored,
		.count = flat->stored_bytes,
	};

	if (group->replicated)
		return status ? status
			      : job->ops->alloc(job->backend, op.memory, op.count, true,
						(void **)&flat->stored);
	status = zero_submit_wait(group->team, status, &op, 1, ZERO_WORK_FLATTEN,
				  "a flat buffer of group '%s'", group->name);
	if (!status)
		flat->stored = flat->shared_stored.data;
	return status;
}

/* A buffer for the parts of all segments, one behind the other. */
static zero_status alloc_staging(struct packing *pack)
{
	struct zero_flat *flat = pack->flat;
	zero_job *job = flat->group->job;
	size_t bytes = 0;

	for (size_t r = 0; r < flat->segment_count; r++) {
		size_t first, count;

		packed_part(pack, &flat->segments[r], &first, &count);
		pack->at[r] = bytes;
		bytes += zero_round_to_pages(count * zero_dtype_size(flat->segments[r].dtype));
	}
	/* Only memory of the device counts as the device's. */
	return job->ops->alloc(job->backend,
			       pack->tier == ZERO_TIER_HOST ? ZERO_MEM_OFFLOAD : ZERO_MEM_STAGING,
			       bytes, true, (void **)&pack->base);
}

/* Where this rank's part of a segment belongs in the flat buffer. */
static char *segment_at(const struct packing *pack, const struct zero_segment *segment)
{
	size_t first, count;

	packed_part(pack, segment, &first, &count);
	return zero_stored_at(pack->flat, segment, first);
}

static void pack_in_place(struct packing *pack)
{
	struct zero_flat *flat = pack->flat;

	pack->base = flat->stored;
	for (size_t r = 0; r < flat->segment_count; r++)
		pack->at[r] = (size_t)(segment_at(pack, &flat->segments[r]) - flat->stored);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Where this rank's part of a parameter is packed; NULL if it has none. */
static char *packed_at(const struct packing *pack, const zero_param *param, size_t *first,
		       size_t *count)
{
	const struct zero_segment *segment = &pack->flat->segments[param->segment];
	size_t segment_first, segment_count;

	packed_part(pack, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
	if (!*count)
		return NULL;
	return pack->base + pack->at[param->segment] +
	       (param->first + *first - segment_first) * zero_dtype_size(segment->dtype);
}

/* How a flat buffer's parameters are packed: copies of values that this rank has, and operations
   for values that one rank sends. */
struct values {
	struct zero_copy *copies;
	struct zero_op *ops;
	size_t copy_count, op_count;
};

static void pack_param(const struct packing *pack, const zero_param *param, struct values *values)
{
	const zero_adopt_spec *adopted = param->adopted;
	size_t size = zero_dtype_size(param->dtype), first, count;
	char *place = packed_at(pack, param, &first, &count);

	if (adopted->values == ZERO_VALUES_OF_RANK && param->group->team->place.world > 1) {
		struct zero_op *op = &values->ops[values->op_count++];

		*op = zero_scatter_op(param, adopted->rank, adopted->data, !pack->shard);
		op->recv = place;
	} else if (place) {
		values->copies[values->copy_count++] =
			(struct zero_copy){.to = place,
					   .from = (const char *)adopted->data + first * size,
					   .bytes = count * size};
	}
}

/* COLLECTIVE over the team. Returns once all ranks have packed, so that tensors may be released. */
static zero_status pack_values(struct packing *pack, zero_status status)
{
	zero_group *group = pack->flat->group;
	struct values values = {0};
	zero_job *job = group->job;

	values.copies = calloc(group->param_count + 1, sizeof(*values.copies));
	values.ops = calloc(group->param_count + 1, sizeof(*values.ops));
	if (!status && (!values.copies || !values.ops))
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'", group->name);
	for (size_t p = 0; !status && p < group->param_count; p++) {
		const zero_param *param = group->params[p];

		if (param->adopted && param->flat == pack->flat && param->count)
			pack_param(pack, param, &values);
	}
	if (!status)
		job->ops->copy_many(job->backend, values.copies, values.copy_count);
	status = zero_submit_wait(group->team, status, values.ops, values.op_count,
				  ZERO_WORK_FLATTEN, "flattening of group '%s'", group->name);
	free(values.ops);
	free(values.copies);
	return status;
}

/* Releases the tensors of a flat buffer; NULL stands for all buffers of the group. */
static void release_adopted(zero_group *group, const struct zero_flat *flat)
{
	for (size_t p = 0; p < group->param_count; p++) {
		zero_adopt_spec *adopted = group->params[p]->adopted;

		if (!adopted || !adopted->release || !adopted->data ||
		    (flat && group->params[p]->flat != flat))
			continue;
		adopted->release(adopted->context, adopted->data);
		adopted->release = NULL;
		adopted->data = NULL;
		group->job->model->released_tensors = true;
	}
}

/* Copies the staged values to the flat buffer. */
static void unpack_staged(const struct packing *pack)
{
	struct zero_flat *flat = pack->flat;
	zero_job *job = flat->group->job;

	for (size_t r = 0; r < flat->segment_count; r++) {
		const struct zero_segment *segment = &flat->segments[r];
		size_t first, count;

		packed_part(pack, segment, &first, &count);
		if (count)
			job->ops->copy(job->backend, segment_at(pack, segment),
				       pack->base + pack->at[r],
				       count * zero_dtype_size(segment->dtype));
	}
}

/* COLLECTIVE over the team. */
static zero_status gather_shards(const struct packing *pack, zero_status status)
{
	struct zero_flat *flat = pack->flat;
	zero_group *group = flat->group;
	struct zero_op *ops = calloc(flat->segment_count + 1, sizeof(*ops));

	if (!status && !ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'", group->name);
	for (size_t r = 0; !status && r < flat->segment_count; r++)
		ops[r] = (struct zero_op){
			.kind = ZERO_OP_ALL_GATHER,
			.from = flat->segments[r].dtype,
			.to = flat->segments[r].dtype,
			.send = segment_at(pack, &flat->segments[r]),
			.recv = zero_stored_at(flat, &flat->segments[r], 0),
			.count = flat->segments[r].shard,
		};
	status = zero_submit_wait(group->team, status, ops, status ? 0 : flat->segment_count,
				  ZERO_WORK_FLATTEN, "gather of flattened group '%s'", group->name);
	free(ops);
	return status;
}

/* ---- one buffer after the other -------------------------------------------------------------- */

/* COLLECTIVE over the team, also after an error, so that no rank waits for one that has left. */
static zero_status pack_flat(struct zero_flat *flat, bool on_host, zero_status status)
{
	struct packing pack = plan_packing(flat, on_host);
	zero_job *job = flat->group->job;

	pack.at = calloc(flat->segment_count + 1, sizeof(*pack.at));
	if (!status && !pack.at)
		status = zero_fail(ZERO_E_MEMORY, "no memory to flatten group '%s'",
				   flat->group->name);
	if (!pack.staged)
		status = alloc_stored(&pack, status);
	else if (!status)
		status = alloc_staging(&pack);
	if (!status && !pack.staged)
		pack_in_place(&pack);
	status = pack_values(&pack, status);
	if (!status)
		status = zero_device_sync(job);
	if (!status)
		release_adopted(flat->group, flat);
	if (pack.staged) {
		status = alloc_stored(&pack, status);
		if (!status)
			unpack_staged(&pack);
		job->ops->free(job->backend, pack.base);
	}
	if (pack.gather)
		status = gather_shards(&pack, status);
	free(pack.at);
	return status;
}

/* A group without elements has no buffers, but its tensors are released too. */
static zero_status pack_group(zero_group *group, bool on_host, zero_status status)
{
	for (size_t f = 0; zero_is_member(group) && f < group->flat_count; f++)
		if (group->flats[f].stored_bytes)
			status = pack_flat(&group->flats[f], on_host, status);
	if (!status)
		release_adopted(group, NULL);
	return status;
}

static bool is_on_host(const zero_job *job)
{
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++)
			if (job->model->groups[g]->params[p]->adopted)
				return job->model->groups[g]->params[p]->adopted->location ==
				       ZERO_ON_HOST;
	return false;
}

zero_status zero_flatten_adopted(zero_job *job)
{
	bool on_host = is_on_host(job);
	zero_status status = zero_tier_agree(job);

	if (status)
		return status;
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++)
		if (job->model->groups[g]->adopts)
			status = pack_group(job->model->groups[g], on_host, status);
	return zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_FLATTEN, "end of flattening");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of the layout, written down once more: which rank stores what, and what it sends. */
#include "property.h"

static size_t round_up(size_t x, size_t unit)
{
	return (x + unit - 1) / unit * unit;
}

static bool same_segment(const struct tensor *a, const struct tensor *b)
{
	return a->flat == b->flat && a->spec.dtype == b->spec.dtype &&
	       a->spec.trainable == b->spec.trainable;
}

/* Which tensors are gathered as one. */
static void cut(struct group *group, const char *allgather, size_t bucket)
{
	size_t flat = 0, bytes = 0, small = 256 * (size_t)group->world;
	bool has_large = false;

	for (size_t i = 0; i < group->count; i++) {
		struct tensor *tensor = &group->tensors[i];
		size_t its = tensor->count * zero_dtype_size(tensor->spec.dtype);
		bool full = !strcmp(allgather, "single") ||
			    (!strcmp(allgather, "auto") && bytes + its > bucket);

		if (tensor->tied)
			continue;
		if (full && has_large && tensor->count >= small) {
			flat++;
			bytes = 0;
			has_large = false;
		}
		tensor->flat = flat;
		bytes += its;
		has_large = has_large || tensor->count >= small;
	}
}

void lay_out(struct model *model)
{
	const char *allgather = zero_setting(model->job, "allgather");
	size_t bucket = strtoull(zero_setting(model->job, "bucket"), NULL, 10);

	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		cut(group, allgather, bucket);
		for (size_t i = 0; i < group->count; i++) {
			struct tensor *tensor = &group->tensors[i];
			size_t end = 0;

			for (size_t j = 0; j < group->count && !tensor->tied; j++) {
				if (group->tensors[j].tied ||
				    !same_segment(tensor, &group->tensors[j]))
					continue;
				if (j == i)
					tensor->first = end;
				end = round_up(end + group->tensors[j].count, 256);
			}
			tensor->segment = round_up(end, 256 * (size_t)group->world);
			if (group->slices && model->stage == 3)
				tensor->segment = round_up(
					tensor->segment, slice_unit(tensor) * (size_t)group->world);
		}
	}
}

/* The ranks that store a copy of the group with this one are ranks[*first] and those that follow
   it. Returns how many there are. */
static int sharders(const struct model *model, const struct group *group, int *first)
{
	bool divided = group->world == model->world;

	*first = divided ? model->rank / model->team * model->team : 0;
	return divided ? model->team : group->world;
}

/* Sets of these ranks that share memory. */
static int count_nodes(const struct model *model, const struct group *group)
{
	uint64_t nodes = 0;
	int first, count = sharders(model, group, &first);

	for (int i = first; i < first + count; i++)
		nodes |= UINT64_C(1) << (model->most ? group->ranks[i] / model->most : 0);
	return on_gpu() ? count : __builtin_popcountll(nodes);
}

/* Whether each rank stores all of the group. */
static bool replicates(const struct model *model, const struct group *group)
{
	int first;

	return group->world == 1 || sharders(model, group, &first) == 1 || model->stage == 0 ||
	       (model->stage < 3 && count_nodes(model, group) > 1);
}

void stored(const struct model *model, const struct tensor *tensor, size_t *first, size_t *count)
{
	const struct group *group = tensor->group;
	const struct tensor *target = tensor->tied ? tensor->tied : tensor;
	int index = 0, first_sharer, ranks = sharders(model, group, &first_sharer);
	size_t part = target->segment / (size_t)ranks, begin, end, from, to;

	*first = *count = 0;
	if (!group->member)
		return;
	while (group->ranks[first_sharer + index] != model->rank)
		index++;
	begin = part * (size_t)index;
	end = begin + part;
	if (replicates(model, group)) {
		begin = 0;
		end = target->segment;
	}
	from = target->first > begin ? target->first : begin;
	to = target->first + target->count < end ? target->first + target->count : end;
	*count = to > from ? to - from : 0;
	*first = *count ? from - target->first : 0;
}

uint64_t gather_bytes(const struct model *model, const struct group *group, zero_dtype as)
{
	uint64_t bytes = 0;
	int first;

	if (!group->member || replicates(model, group))
		return 0;
	for (size_t i = 0; i < group->count; i++) {
		const struct tensor *tensor = &group->tensors[i];
		bool seen = tensor->tied;

		for (size_t j = 0; j < i; j++)
			seen = seen || (!group->tensors[j].tied &&
					same_segment(tensor, &group->tensors[j]));
		if (!seen)
			bytes += tensor->segment / (size_t)sharders(model, group, &first) *
				 zero_dtype_size(gathered_as(tensor, as));
	}
	return bytes * (uint64_t)(count_nodes(model, group) - 1);
}

uint64_t scatter_bytes(const struct model *model, const struct tensor *tensor, int root)
{
	size_t size = zero_dtype_size(tensor->spec.dtype), first, count;
	int first_sharer, ranks = sharders(model, tensor->group, &first_sharer);
	bool is_root = model->rank == root;

	stored(model, tensor, &first, &count);
	if (replicates(model, tensor->group))
		return is_root ? tensor->count * size * (uint64_t)(tensor->group->world - 1) : 0;
	/* What the root's team then has goes to the other teams. */
	if (ranks < tensor->group->world && root / ranks == model->rank / ranks)
		return ((is_root ? tensor->count - count : 0) +
			count * (size_t)(tensor->group->world / ranks - 1)) *
		       size;
	return is_root ? (tensor->count - count) * size : 0;
}

/* A parameter is padded to 256 elements, a segment to 256 * world and whole pages, and one that has
   slices to whole rows. */
void check_shards_memory(const struct model *model, const zero_memory *memory)
{
	size_t least = 0, most = 0;

	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++) {
			const struct tensor *tensor = &model->groups[g].tensors[i];
			size_t size = zero_dtype_size(tensor->spec.dtype), first, count;

			if (tensor->tied || !tensor->group->member)
				continue;
			stored(model, tensor, &first, &count);
			least += count * size;
			most += (count + 256 + 256 * (size_t)tensor->group->world) * size + 4096;
			if (tensor->group->slices)
				most += slice_unit(tensor) * (size_t)tensor->group->world * size;
		}
	check(memory->shards.now >= least && memory->shards.now <= most,
	      "shards of %zu bytes, not %zu to %zu", memory->shards.now, least, most);
}

uint64_t sent_so_far(const struct model *model)
{
	zero_traffic traffic;

	/* What was begun before is counted then. */
	ok(zero_agree(model->job, NULL));
	ok(zero_traffic_now(model->job, &traffic));
	return traffic.bytes_sent;
}

void check_sent(const struct model *model, uint64_t before, uint64_t want, const char *what)
{
	zero_traffic after;

	ok(zero_traffic_now(model->job, &after));
	check(after.bytes_sent - before == want, "%s: %llu bytes sent, not %llu", what,
	      (unsigned long long)(after.bytes_sent - before), (unsigned long long)want);
}

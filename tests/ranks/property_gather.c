/* SPDX-License-Identifier: Apache-2.0 */
/* Gather and release: what is gathered holds the reference's values, in the type asked for. */
#include "property.h"

/* Of a prefetch. */
enum { PARTS_MAX = 4000 };

zero_dtype choose_as(struct model *model, unsigned chosen)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_DTYPE_PARAM, ZERO_F32, ZERO_F16,
					   ZERO_BF16};
	zero_dtype as = types[below(&model->random, 5)];

	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; chosen >> g & 1 && i < model->groups[g].count; i++) {
			zero_dtype from = model->groups[g].tensors[i].spec.dtype;
			zero_dtype to = gathered_as(&model->groups[g].tensors[i], as);

			/* Between the 16-bit types nothing is cast. */
			if (from != to && from != ZERO_F32 && to != ZERO_F32)
				return ZERO_DTYPE_PARAM;
		}
	return as;
}

/* Its bytes, the highest first; of two at a time. */
static const char *element_text(zero_dtype dtype, const void *elements, size_t i)
{
	static char text[2][20];
	static int turn;
	size_t size = zero_dtype_size(dtype);
	const unsigned char *bytes = elements;

	turn = 1 - turn;
	for (size_t byte = 0; byte < size; byte++)
		snprintf(text[turn] + 2 * byte, 3, "%02x", bytes[i * size + size - 1 - byte]);
	return text[turn];
}

static void check_gathered(struct tensor *tensor)
{
	zero_dtype from = tensor->spec.dtype, to = gathered_as(tensor, tensor->group->as);
	size_t bytes = tensor->count * zero_dtype_size(to), at;
	const void *data = zero_data(tensor->param);
	char *want = malloc(bytes + 1);

	check(want, "no memory");
	ref_cast(to, want, from, ref_of(tensor)->values, tensor->count);
	if (tensor->group->by_slices) {
		check_slices(tensor, to, want);
		free(want);
		return;
	}
	check(!data == !tensor->count, "'%s': %zu elements at %p", tensor->name, tensor->count,
	      data);
	check(!tensor->tied || data == zero_data(tensor->tied->param), "'%s' lies elsewhere",
	      tensor->name);
	at = ref_difference(to, data, want, tensor->count);
	check(at == tensor->count, "'%s': element %zu of %zu, %s as %s, is %s, not %s",
	      tensor->name, at, tensor->count, zero_dtype_name(from), zero_dtype_name(to),
	      element_text(to, data, at), element_text(to, want, at));
	free(want);
}

/* The same type may be said in two ways. */
static zero_dtype said(struct model *model, zero_dtype as)
{
	return below(&model->random, 2) && as == model->set ? ZERO_DTYPE_DEFAULT : as;
}

/* A parameter that has slices may be gathered as a whole too. */
static void draw_way(struct model *model, struct group *group)
{
	group->by_slices = group->slices && below(&model->random, 4);
}

void gather(struct model *model, struct group *group, zero_dtype as)
{
	zero_dtype argument = said(model, as);
	bool counted = below(&model->random, 3) == 0 && !group->begun;
	uint64_t before = counted ? sent_so_far(model) : 0;

	if (!group->begun)
		draw_way(model, group);
	for (size_t i = 0; i < part_count(group) && group->member; i++)
		ok(zero_gather(part_of(group, i), argument));
	if (counted)
		check_sent(model, before, gather_bytes(model, group, as), "gather");
	group->begun = true;
	group->as = as;
	group->uses++;
	for (size_t i = 0; i < group->count && group->member; i++)
		check_gathered(&group->tensors[i]);
}

void gather_any(struct model *model)
{
	struct group *group = any_group(model);
	zero_dtype as = choose_as(model, 1U << (group - model->groups));

	gather(model, group, group->begun ? group->as : as);
}

/* Slice after slice, of which two are there at a time. */
static void walk(struct group *group, zero_dtype as, uint64_t seed)
{
	const struct tensor *tensor = &group->tensors[0];
	zero_dtype to = gathered_as(tensor, as);
	size_t count = zero_group_slice_count(group->handle);
	char *want = malloc(tensor->count * zero_dtype_size(to) + 1);

	check(want, "no memory");
	ref_cast(to, want, tensor->spec.dtype, tensor->ref.values, tensor->count);
	for (size_t turn = 0; turn < count; turn++) {
		zero_group *slice = slice_by_turn(group, seed, turn);
		zero_group *next = slice_by_turn(group, seed, turn + 1);

		ok(zero_gather(slice, as));
		if (turn + 1 < count && seed % 3)
			ok(zero_prefetch(&next, 1, as));
		check_slice(tensor, slice, to, want);
		ok(zero_release(slice));
		check(!zero_slice_data(slice), "'%s' after the release of a slice", tensor->name);
	}
	free(want);
}

void walk_any(struct model *model)
{
	struct group *group = any_group(model);
	zero_dtype as = choose_as(model, 1U << (group - model->groups));
	uint64_t seed = draw(&model->random);

	if (group->slices && !group->begun && group->member)
		walk(group, as, seed);
}

/* Of the groups that were to begin, some were passed over: by ranks of a team alike. Teams of a
   grid that share memory in other ways have other outputs, so that what only some began is
   released. */
static void ask_what_began(struct model *model, unsigned fresh)
{
	double began[WORLD_MAX];

	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];
		bool mine = group->count && zero_gathered_dtype(group->tensors[0].param);
		int sum = 0;

		if (!(fresh >> g & 1))
			continue;
		all_values(model->job, mine, began);
		for (int rank = 0; rank < model->world; rank++) {
			bool one = began[rank] > 0.5;

			sum += one;
			check(one == mine || rank / model->team != model->rank / model->team,
			      "'%s' is begun on rank %d: %d, here: %d", group->name, rank, one,
			      mine);
		}
		group->begun = sum == group->world;
		if (mine && !group->begun)
			ok(zero_release(group->handle));
	}
}

/* Some groups are named twice, some are gathered already. */
void prefetch_any(struct model *model)
{
	unsigned chosen = (unsigned)below(&model->random, 1U << model->group_count);
	zero_dtype as = choose_as(model, chosen);
	static zero_group *list[PARTS_MAX];
	size_t count = 0;
	unsigned fresh = 0;

	for (size_t turn = 0; turn < 2; turn++)
		for (size_t g = model->group_count; g-- > 0;) {
			struct group *group = &model->groups[g];

			/* Nothing of an empty group could tell whether it began. */
			if (!(chosen >> g & 1) || (model->limited && !group->count) ||
			    (turn && below(&model->random, 2)))
				continue;
			if (!group->begun) {
				fresh |= 1U << g;
				group->as = as;
				group->begun = true;
				group->by_slices = false;
				if (!model->limited)
					draw_way(model, group);
			}
			for (size_t i = 0; i < part_count(group) && group->member; i++) {
				check(count < PARTS_MAX, "%zu parts", count);
				list[count++] = part_of(group, i);
			}
		}
	ok(zero_prefetch(list, count, said(model, as)));
	if (model->limited)
		ask_what_began(model, fresh);
}

/* What is left in a buffer must not help the next gather; what is stored there must stay. */
static void poison(const struct model *model, struct group *group)
{
	const char *share = zero_setting(model->job, "share");
	bool alone = !strcmp(share, "1") && !strcmp(zero_setting(model->job, "check"), "0");

	for (size_t i = 0; i < group->count && group->uses && alone && group->member; i++) {
		struct tensor *tensor = &group->tensors[i];
		zero_dtype as = gathered_as(tensor, group->as);
		bool stored_here = model->stage < 3 || group->world == 1 ||
				   (group->world == model->world && model->team == 1);

		if (stored_here && as == tensor->spec.dtype)
			continue;
		if (group->by_slices)
			poison_slices(tensor, zero_dtype_size(as));
		else if (tensor->count)
			memset(zero_data(tensor->param), 0xa5, tensor->count * zero_dtype_size(as));
	}
}

/* A change takes at most one piece, in whole pages, and gives it back. */
static void check_staging(const struct model *model, const zero_memory *before)
{
	size_t piece = strtoull(zero_setting(model->job, "stream_chunk"), NULL, 10) + 4095 + 8;
	zero_memory now;

	ok(zero_memory_now(model->job, &now));
	check(now.staging.now == before->staging.now, "%zu bytes of staging, %zu before",
	      now.staging.now, before->staging.now);
	check(now.staging.peak <= before->staging.peak ||
		      now.staging.peak <= before->staging.now + piece,
	      "%zu bytes of staging, and %zu before", now.staging.peak, before->staging.now);
}

/* The tensor's values in a type, of which some are others. To be freed. */
static char *changed(struct tensor *tensor, zero_dtype to, uint64_t seed)
{
	size_t size = zero_dtype_size(to);
	char *values = malloc(tensor->count * size + 1);

	check(values, "no memory");
	ref_cast(to, values, tensor->spec.dtype, ref_of(tensor)->values, tensor->count);
	for (size_t i = 0; i < tensor->count; i++) {
		uint64_t bits = mixed(seed + i);

		if (bits % 3 == 0 && is_real(to))
			ref_narrow(to, (double)signed_unit(bits), values + i * size);
		else if (bits % 3 == 0)
			memcpy(values + i * size, &bits, size);
	}
	return values;
}

/* One rank changes some elements of what is gathered, and all ranks have them then. */
void update_any(struct model *model)
{
	struct tensor *tensor = any_tensor(model);
	uint64_t seed = draw(&model->random);
	struct group *group = tensor ? tensor->group : NULL;
	zero_memory before;
	zero_dtype to;
	size_t size;
	char *values;
	int root;

	if (!group || !group->uses || group->by_slices)
		return;
	to = gathered_as(tensor, group->as);
	size = zero_dtype_size(to);
	root = group->ranks[seed % (size_t)group->world];
	values = changed(tensor, to, seed);
	/* Nobody reads what is gathered any more. */
	ok(zero_agree(model->job, NULL));
	ok(zero_memory_now(model->job, &before));
	if (model->rank == root && tensor->count)
		memcpy(zero_data(tensor->param), values, tensor->count * size);
	if (group->member)
		ok(zero_param_changed(tensor->param, root));
	ref_cast(tensor->spec.dtype, ref_of(tensor)->values, to, values, tensor->count);
	ref_loaded(ref_of(tensor));
	for (size_t i = 0; i < group->count && group->member; i++)
		check_gathered(&group->tensors[i]);
	check_staging(model, &before);
	free(values);
}

static void write_owned(const struct model *model, struct tensor *tensor, uint64_t seed)
{
	size_t cuts[WORLD_MAX + 1], size = zero_dtype_size(tensor->spec.dtype), first, count;
	char *values = changed(tensor, tensor->spec.dtype, seed);
	void *data;

	ok(zero_param_cuts(tensor->param, cuts));
	ok(zero_shard(tensor->param, &data, &first, &count));
	for (int i = 0; i < tensor->group->world; i++) {
		int owner = zero_shard_owner(tensor->group->handle, i);

		if (tensor->group->ranks[owner] == model->rank && cuts[i] < cuts[i + 1])
			memcpy((char *)data + (cuts[i] - first) * size, values + cuts[i] * size,
			       (cuts[i + 1] - cuts[i]) * size);
	}
	memcpy(tensor->ref.values, values, tensor->count * size);
	ref_loaded(&tensor->ref);
	free(values);
}

/* Each rank changes some of the elements that it owns. */
void write_any(struct model *model)
{
	struct group *group = any_group(model);
	uint64_t seed = draw(&model->random);

	if (group->begun)
		return;
	if (group->member)
		ok(zero_write_begin(group->handle));
	for (size_t i = 0; i < group->count; i++)
		if (!group->tensors[i].tied)
			write_owned(model, &group->tensors[i], seed + i);
	if (group->member)
		ok(zero_write_end(group->handle));
}

void release(struct model *model, struct group *group)
{
	if (group->uses <= 1)
		poison(model, group);
	for (size_t i = 0; i < part_count(group) && group->member; i++)
		ok(zero_release(part_of(group, i)));
	group->uses -= group->uses > 0;
	group->begun = group->uses > 0;
	for (size_t i = 0; i < group->count && !group->begun; i++)
		check(!zero_data(group->tensors[i].param), "'%s' after its release",
		      group->tensors[i].name);
}

void release_any(struct model *model)
{
	struct group *group = any_group(model);

	if (group->begun)
		release(model, group);
}

void release_all(struct model *model)
{
	for (size_t g = 0; g < model->group_count; g++)
		while (model->groups[g].begun)
			release(model, &model->groups[g]);
}

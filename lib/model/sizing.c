/* SPDX-License-Identifier: Apache-2.0 */
#include "sizing.h"

#include "core/options.h"

uint64_t zero_sizing_threshold(uint64_t chunk, uint64_t budget)
{
	return chunk > budget / 64 ? chunk : budget / 64;
}

uint64_t zero_sizing_gather_limit(uint64_t budget)
{
	return budget / 4;
}

/* ---- what a rank holds ----------------------------------------------------------------------- */

static uint64_t add(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static uint64_t pages(uint64_t bytes)
{
	const uint64_t page = 4096;

	return add(bytes, page - 1) / page * page;
}

static size_t sharing(const struct zero_sizing *sizing)
{
	return sizing->share ? sizing->share : 1;
}

/* What all ranks that share memory have between them: one rank's part of it. */
static uint64_t part(const struct zero_sizing *sizing, uint64_t bytes)
{
	return pages(bytes / sharing(sizing) + (bytes % sharing(sizing) != 0));
}

/* What one flat buffer takes. */
struct flat_bytes {
	uint64_t whole;
	uint64_t stored;          /* by a rank, or by all that share memory */
	uint64_t gradient, state; /* elements */
	bool needs_master;
};

/* Each rank steps whole segments. */
static bool steps_whole(const struct zero_sizing *sizing)
{
	return sizing->world == 1 || sizing->stage == 0;
}

/* Whole segments are a rank's own; shards of one node lie together. */
static bool stores_whole(const struct zero_sizing *sizing)
{
	return steps_whole(sizing) || (sizing->stage < 3 && sharing(sizing) < sizing->world);
}

static void add_run(const struct zero_sizing *sizing, const struct zero_layout_segment *segment,
		    struct flat_bytes *flat)
{
	size_t shard = segment->count / sizing->world;
	size_t stored = stores_whole(sizing) ? segment->count : shard * sharing(sizing);

	flat->whole += pages(segment->count * zero_dtype_size(segment->dtype));
	flat->stored += pages(stored * zero_dtype_size(segment->dtype));
	if (!segment->trainable)
		return;
	flat->gradient += segment->count;
	flat->state += steps_whole(sizing) ? segment->count : shard;
	flat->needs_master = flat->needs_master || segment->dtype != ZERO_F32;
}

static void keep_two(uint64_t largest[2], uint64_t bytes)
{
	if (bytes > largest[0]) {
		largest[1] = largest[0];
		largest[0] = bytes;
	} else if (bytes > largest[1]) {
		largest[1] = bytes;
	}
}

void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_segment *segments,
		       size_t segment_count)
{
	uint64_t gathered = 0, gradients = 0;
	size_t size = sizing->gradient_size ? sizing->gradient_size : sizeof(float);

	for (size_t begin = 0, end; begin < segment_count; begin = end) {
		struct flat_bytes flat = {0};
		uint64_t state;

		for (end = begin; end < segment_count && segments[end].flat == segments[begin].flat;
		     end++)
			add_run(sizing, &segments[end], &flat);
		state = pages(flat.state * sizeof(float));
		sizing->shards =
			add(sizing->shards,
			    stores_whole(sizing) ? flat.stored : part(sizing, flat.stored));
		/* two moments, and f32 values where the parameters' own are of 16 bits */
		for (int i = 0; i < (flat.needs_master ? 3 : 2); i++)
			sizing->optimizer = add(sizing->optimizer, state);
		sizing->sums = add(sizing->sums, state);
		if (flat.whole > sizing->largest_flat)
			sizing->largest_flat = flat.whole;
		sizing->whole = add(sizing->whole, flat.whole);
		gathered = add(gathered, part(sizing, flat.whole));
		/* whole gradients of f32 are summed in place */
		if (!steps_whole(sizing) || size != sizeof(float))
			gradients = add(gradients, pages(flat.gradient * size));
	}
	keep_two(sizing->gathered, gathered);
	keep_two(sizing->gradients, gradients);
}

void zero_sizing_bytes(const struct zero_sizing *sizing, uint64_t bytes[ZERO_MEM_KINDS])
{
	size_t apart = sizing->world - sharing(sizing);

	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		bytes[kind] = 0;
	bytes[ZERO_MEM_SHARDS] = sizing->shards;
	bytes[sizing->offload ? ZERO_MEM_OFFLOAD : ZERO_MEM_OPTIMIZER] = sizing->optimizer;
	bytes[ZERO_MEM_GRADIENTS] =
		add(sizing->sums, add(sizing->gradients[0], sizing->gradients[1]));
	/* whole parameters are read where they are stored, and those of one node too */
	if (sizing->stage == 3 && apart)
		bytes[ZERO_MEM_GATHERED] = add(sizing->gathered[0], sizing->gathered[1]);
	if (apart)
		bytes[ZERO_MEM_STAGING] =
			2 * pages(zero_exchange_piece(apart, sizing->device) * apart);
}

uint64_t zero_sizing_total(const struct zero_sizing *sizing)
{
	uint64_t bytes[ZERO_MEM_KINDS], total = 0;

	zero_sizing_bytes(sizing, bytes);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (zero_on_device((enum zero_memory_kind)kind))
			total = add(total, bytes[kind]);
	return total;
}

/* ---- flattening ------------------------------------------------------------------------------ */

const char *zero_tier_name(enum zero_tier tier)
{
	switch (tier) {
	case ZERO_TIER_DEVICE:
		return "device";
	case ZERO_TIER_DISTRIBUTED:
		return "distributed";
	case ZERO_TIER_HOST:
	case ZERO_TIERS:
		break;
	}
	return "host";
}

uint64_t zero_tier_need(enum zero_tier tier, const struct zero_flatten *flatten)
{
	uint64_t chunks = add(flatten->chunk, flatten->chunk);

	if (tier == ZERO_TIER_HOST)
		return flatten->on_host ? 0 : chunks;
	if (flatten->on_host)
		return add(flatten->flat, chunks);
	if (tier == ZERO_TIER_DEVICE)
		return flatten->flat;
	return flatten->flat / flatten->world + (flatten->flat % flatten->world != 0);
}

enum zero_tier zero_tier_choose(const struct zero_flatten *flatten, const uint64_t need[ZERO_TIERS])
{
	switch (flatten->setting) {
	case ZERO_FLATTEN_DEVICE:
		return ZERO_TIER_DEVICE;
	case ZERO_FLATTEN_DISTRIBUTED:
		return ZERO_TIER_DISTRIBUTED;
	case ZERO_FLATTEN_HOST:
		return ZERO_TIER_HOST;
	default:
		break;
	}
	if (flatten->on_host)
		return flatten->local_world > 1 && flatten->equal ? ZERO_TIER_DISTRIBUTED
								  : ZERO_TIER_DEVICE;
	if (need[ZERO_TIER_DEVICE] <= flatten->room)
		return ZERO_TIER_DEVICE;
	if (flatten->equal && need[ZERO_TIER_DISTRIBUTED] <= flatten->room)
		return ZERO_TIER_DISTRIBUTED;
	return ZERO_TIER_HOST;
}

enum zero_tier zero_sizing_tier(const struct zero_flatten *flatten)
{
	uint64_t need[ZERO_TIERS];

	for (int tier = 0; tier < ZERO_TIERS; tier++)
		need[tier] = zero_tier_need((enum zero_tier)tier, flatten);
	return zero_tier_choose(flatten, need);
}

/* Beside what is held before. What a buffer takes beyond the tensors that it replaces is there in
   every tier, since they are given back before it is allocated or after. */
static uint64_t buffer_need(enum zero_tier tier, const struct zero_laying *laying, uint64_t flat,
			    uint64_t pack, uint64_t released)
{
	uint64_t chunks = add(laying->chunk, laying->chunk);
	uint64_t excess = flat > released ? flat - released : 0;

	if (laying->on_host)
		return tier == ZERO_TIER_HOST ? 0 : add(flat, chunks);
	switch (tier) {
	case ZERO_TIER_DISTRIBUTED:
		return pack ? add(pack, excess) : flat;
	case ZERO_TIER_HOST:
		return excess > chunks ? excess : chunks;
	default:
		return flat;
	}
}

void zero_laying_add(struct zero_laying *laying, uint64_t flat, uint64_t pack, uint64_t released)
{
	for (int tier = 0; tier < ZERO_TIERS; tier++) {
		uint64_t *held = &laying->held[tier], *most = &laying->most[tier];
		uint64_t need = buffer_need((enum zero_tier)tier, laying, flat, pack, released);

		if (add(*held, need) > *most)
			*most = add(*held, need);
		if (!laying->on_host || tier != ZERO_TIER_HOST)
			*held = add(*held, flat);
		*held -= released < *held ? released : *held;
	}
}

enum zero_tier zero_sizing_device_tier(const struct zero_sizing *sizing, uint64_t setting,
				       uint64_t budget, uint64_t chunk)
{
	bool whole = stores_whole(sizing);
	uint64_t taken = zero_sizing_total(sizing);
	struct zero_flatten flatten = {
		.setting = setting,
		.flat = whole ? sizing->largest_flat : part(sizing, sizing->largest_flat),
		.chunk = chunk,
		/* what ranks have between them is laid part by part in any case */
		.world = whole ? sizing->world : 1,
		.local_world = 1,
		.equal = true,
	};

	if (taken != UINT64_MAX)
		taken = add(taken - sizing->shards, sizing->whole);
	flatten.room = budget > taken ? budget - taken : 0;
	return zero_sizing_tier(&flatten);
}

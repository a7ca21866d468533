/* SPDX-License-Identifier: Apache-2.0 */
#include "sizing.h"

#include "options.h"

uint64_t zero_sizing_threshold(uint64_t chunk, uint64_t budget)
{
	return chunk > budget / 64 ? chunk : budget / 64;
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

/* What one group takes, or the part of it that is one flat buffer. */
struct group_bytes {
	uint64_t whole, shards;
	uint64_t gradient, state; /* elements of a flat buffer; bytes of a group */
	bool needs_master;
};

static void add_run(const struct zero_sizing *sizing, const struct zero_layout_run *run,
		    struct group_bytes *flat)
{
	bool alone = sizing->world == 1;
	size_t shard = run->count / sizing->world;
	size_t stored = alone || sizing->stage < 3 ? run->count : shard;

	flat->whole += pages(run->count * zero_dtype_size(run->dtype));
	flat->shards += pages(stored * zero_dtype_size(run->dtype));
	if (!run->trainable)
		return;
	flat->gradient += run->count;
	flat->state += alone || sizing->stage == 0 ? run->count : shard;
	flat->needs_master = flat->needs_master || run->dtype != ZERO_F32;
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

void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_run *runs,
		       size_t run_count)
{
	struct group_bytes group = {0};

	for (size_t begin = 0, end; begin < run_count; begin = end) {
		struct group_bytes flat = {0};
		uint64_t state;

		for (end = begin; end < run_count && runs[end].flat == runs[begin].flat; end++)
			add_run(sizing, &runs[end], &flat);
		state = pages(flat.state * sizeof(float));
		sizing->shards = add(sizing->shards, flat.shards);
		/* two moments, and f32 values where the parameters' own are of 16 bits */
		for (int i = 0; i < (flat.needs_master ? 3 : 2); i++)
			sizing->optimizer = add(sizing->optimizer, state);
		sizing->sums = add(sizing->sums, state);
		if (flat.whole > sizing->largest_flat)
			sizing->largest_flat = flat.whole;
		group.whole = add(group.whole, flat.whole);
		group.gradient = add(group.gradient, pages(flat.gradient * sizeof(float)));
	}
	keep_two(sizing->gathered, group.whole);
	keep_two(sizing->gradients, group.gradient);
}

void zero_sizing_bytes(const struct zero_sizing *sizing, uint64_t bytes[ZERO_MEM_KINDS])
{
	size_t peers = sizing->world - 1;

	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		bytes[kind] = 0;
	bytes[ZERO_MEM_SHARDS] = sizing->shards;
	bytes[ZERO_MEM_OPTIMIZER] = sizing->optimizer;
	bytes[ZERO_MEM_GRADIENTS] = sizing->sums;
	/* whole parameters are read where they are stored */
	if (sizing->stage == 3 && peers)
		bytes[ZERO_MEM_GATHERED] = add(sizing->gathered[0], sizing->gathered[1]);
	/* whole gradients are summed in place */
	if (sizing->stage > 0 && peers)
		bytes[ZERO_MEM_GRADIENTS] =
			add(sizing->sums, add(sizing->gradients[0], sizing->gradients[1]));
	if (peers)
		bytes[ZERO_MEM_STAGING] = 2 * pages(zero_sizing_exchange_piece(peers) * peers);
}

uint64_t zero_sizing_total(const struct zero_sizing *sizing)
{
	uint64_t bytes[ZERO_MEM_KINDS], total = 0;

	zero_sizing_bytes(sizing, bytes);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
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

enum zero_tier zero_sizing_tier(const struct zero_flatten *flatten)
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
	if (zero_tier_need(ZERO_TIER_DEVICE, flatten) <= flatten->room)
		return ZERO_TIER_DEVICE;
	if (flatten->equal && zero_tier_need(ZERO_TIER_DISTRIBUTED, flatten) <= flatten->room)
		return ZERO_TIER_DISTRIBUTED;
	return ZERO_TIER_HOST;
}

enum zero_tier zero_sizing_device_tier(const struct zero_sizing *sizing, uint64_t setting,
				       uint64_t budget, uint64_t chunk)
{
	uint64_t taken = zero_sizing_total(sizing);
	struct zero_flatten flatten = {
		.setting = setting,
		.room = budget > taken ? budget - taken : 0,
		.flat = sizing->largest_flat,
		.chunk = chunk,
		.world = sizing->world,
		.local_world = 1,
		.equal = true,
	};

	return zero_sizing_tier(&flatten);
}

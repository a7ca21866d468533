/* SPDX-License-Identifier: Apache-2.0 */
#include "flatten_tier.h"

#include "core/options.h"

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
	uint64_t chunks = zero_add_saturated(flatten->chunk, flatten->chunk);

	if (tier == ZERO_TIER_HOST)
		return flatten->on_host ? 0 : chunks;
	if (flatten->on_host)
		return zero_add_saturated(flatten->flat, chunks);
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
	if (need[ZERO_TIER_DEVICE] <= flatten->capacity)
		return ZERO_TIER_DEVICE;
	if (flatten->equal && need[ZERO_TIER_DISTRIBUTED] <= flatten->capacity)
		return ZERO_TIER_DISTRIBUTED;
	return ZERO_TIER_HOST;
}

enum zero_tier zero_tier_for(const struct zero_flatten *flatten)
{
	uint64_t need[ZERO_TIERS];

	for (int tier = 0; tier < ZERO_TIERS; tier++)
		need[tier] = zero_tier_need((enum zero_tier)tier, flatten);
	return zero_tier_choose(flatten, need);
}

/* Bytes needed beside what is allocated already. What a buffer takes beyond the tensors that it
   replaces is needed in every tier: tensors are released either before or after it is allocated. */
static uint64_t buffer_need(enum zero_tier tier, const struct zero_packing *packing, uint64_t flat,
			    uint64_t pack, uint64_t released)
{
	uint64_t chunks = zero_add_saturated(packing->chunk, packing->chunk);
	uint64_t excess = flat > released ? flat - released : 0;

	if (packing->on_host)
		return tier == ZERO_TIER_HOST ? 0 : zero_add_saturated(flat, chunks);
	switch (tier) {
	case ZERO_TIER_DISTRIBUTED:
		return pack ? zero_add_saturated(pack, excess) : flat;
	case ZERO_TIER_HOST:
		return excess > chunks ? excess : chunks;
	default:
		return flat;
	}
}

void zero_packing_add(struct zero_packing *packing, uint64_t flat, uint64_t pack, uint64_t released)
{
	for (int tier = 0; tier < ZERO_TIERS; tier++) {
		uint64_t *held = &packing->held[tier], *most = &packing->most[tier];
		uint64_t need = buffer_need((enum zero_tier)tier, packing, flat, pack, released);

		if (zero_add_saturated(*held, need) > *most)
			*most = zero_add_saturated(*held, need);
		if (!packing->on_host || tier != ZERO_TIER_HOST)
			*held = zero_add_saturated(*held, flat);
		*held -= released < *held ? released : *held;
	}
}

enum zero_tier zero_tier_forecast(const struct zero_sizing *sizing, uint64_t setting,
				  uint64_t budget, uint64_t chunk)
{
	bool replicated = zero_sizing_replicated(sizing);
	uint64_t taken = zero_sizing_total(sizing);
	struct zero_flatten flatten = {
		.setting = setting,
		.flat = replicated ? sizing->largest_flat
				   : zero_sizing_part(sizing, sizing->largest_flat),
		.chunk = chunk,
		/* ranks that share a buffer pack one part each in any tier */
		.world = replicated ? sizing->world : 1,
		.local_world = 1,
		.equal = true,
	};

	if (taken != UINT64_MAX)
		taken = zero_add_saturated(taken - sizing->shards, sizing->all_flats);
	flatten.capacity = budget > taken ? budget - taken : 0;
	return zero_tier_for(&flatten);
}

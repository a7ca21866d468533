/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tiers in which existing tensors are flattened: on the device, distributed over the ranks, or
 * through host memory. The functions are pure: `zerorun --plan` and the job choose alike.
 */
#ifndef ZERO_FLATTEN_TIER_H
#define ZERO_FLATTEN_TIER_H

#include "sizing.h"

enum zero_tier { ZERO_TIER_DEVICE, ZERO_TIER_DISTRIBUTED, ZERO_TIER_HOST, ZERO_TIERS };

const char *zero_tier_name(enum zero_tier tier);

/* What decides the tier in which existing tensors are flattened, at stages 0 to 2. */
struct zero_flatten {
	uint64_t setting;  /* ZERO_FLATTEN_AUTO ... of options.h */
	uint64_t capacity; /* bytes that a tier's need is compared with */
	uint64_t flat;     /* of the largest flat buffer */
	uint64_t chunk;
	size_t world;
	size_t local_world; /* ranks of the node; where nodes differ, of the smallest */
	bool on_host;       /* the tensors are in host memory, not on the device */
	bool equal;         /* their values are the same on all ranks */
};

/* Bytes that must be free on the device. */
uint64_t zero_tier_need(enum zero_tier tier, const struct zero_flatten *flatten);
/*
 * The tier of the setting. For `auto` with tensors on the device: the first of device, distributed
 * (if values are equal) and host whose need is met, or else host. For `auto` with tensors on the
 * host: distributed if ranks share the node and values are equal, else device.
 */
enum zero_tier zero_tier_for(const struct zero_flatten *flatten);
/* The same with the needs given. */
enum zero_tier zero_tier_choose(const struct zero_flatten *flatten,
				const uint64_t need[ZERO_TIERS]);

/*
 * Device memory of a rank while flat buffers are packed one by one, for each tier. The caller sets
 * `chunk`, `on_host`, and `held` and `most` to what is allocated at first.
 */
struct zero_packing {
	uint64_t chunk;
	bool on_host; /* the tensors are in host memory */
	uint64_t held[ZERO_TIERS];
	uint64_t most[ZERO_TIERS];
};

/*
 * Adds a buffer of `flat` bytes whose tensors release `released` bytes. `pack` is what a rank packs
 * into staging before the release in the tier distributed; 0 if it packs in place.
 */
void zero_packing_add(struct zero_packing *packing, uint64_t flat, uint64_t pack,
		      uint64_t released);

/*
 * The tier of tensors that are on the device with equal values. `budget` was measured before the
 * tensors existed: they count against it, on each rank, as the buffers that they become.
 */
enum zero_tier zero_tier_forecast(const struct zero_sizing *sizing, uint64_t setting,
				  uint64_t budget, uint64_t chunk);

#endif

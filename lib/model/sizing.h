/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a model takes in memory, from its layout. The functions are pure, so that `zerorun --plan`
 * and the job come to the same numbers.
 */
#ifndef ZERO_SIZING_H
#define ZERO_SIZING_H

#include "backend/backend.h"
#include "backend/exchange.h"
#include "segments.h"

/* ---- what a rank holds ----------------------------------------------------------------------- */

/*
 * Sums over groups, as the library accounts for memory: every buffer is a multiple of 4096 bytes.
 * The caller sets `world`, `share`, `stage`, `offload` and, before each group, `gradient_size`; all
 * other fields begin at 0. All ranks hold equal amounts, since shards are padded to one size. A
 * buffer that ranks of a node share counts in equal parts.
 */
struct zero_sizing {
	size_t world;
	size_t share; /* ranks that share memory; 0 means 1 */
	int stage;
	bool device;          /* ranks have GPUs */
	bool offload;         /* optimizer states are in host memory */
	size_t gradient_size; /* bytes of an element of a rank's own gradients; 0 means 4 */
	uint64_t shards, optimizer;
	uint64_t sums;         /* gradients, summed over the ranks */
	uint64_t gathered[2];  /* outputs of the two groups that need most, the largest first */
	uint64_t gradients[2]; /* a rank's own gradients, likewise; 0 if they become the sums */
	uint64_t largest_flat; /* bytes of all of the largest flat buffer */
	uint64_t all_flats;    /* bytes of all of every flat buffer */
};

/* Adds a group from its layout. Sums that overflow stay at UINT64_MAX. */
void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_segment *segments,
		       size_t segment_count);

/*
 * Bytes by kind at the moment when a training step holds most. It is assumed that
 *  - two groups are gathered at a time, one in use and one on its way, in whatever order: at most
 *    the two largest; and as they are stored, not as another type;
 *  - the backward pass finishes one group's gradient before it begins the next one's, so that with
 *    the reduce under way two are there, at most the two largest, beside the sums of all.
 * A trainer that keeps a tied embedding's gradient through the whole backward pass, or fetches more
 * groups ahead, holds more; activations are not the library's.
 */
void zero_sizing_bytes(const struct zero_sizing *sizing, uint64_t bytes[ZERO_MEM_KINDS]);
/* Sums the kinds that count against the budget: all but ZERO_MEM_OFFLOAD. */
uint64_t zero_sizing_total(const struct zero_sizing *sizing);

/* ---- flattening ------------------------------------------------------------------------------ */

enum zero_tier { ZERO_TIER_DEVICE, ZERO_TIER_DISTRIBUTED, ZERO_TIER_HOST, ZERO_TIERS };

const char *zero_tier_name(enum zero_tier tier);

/* What decides the tier in which existing tensors are flattened, at stages 0 to 2. */
struct zero_flatten {
	uint64_t setting; /* ZERO_FLATTEN_AUTO ... of options.h */
	uint64_t room;    /* bytes free on the device once the stage has allocated all else */
	uint64_t flat;    /* of the largest flat buffer */
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
enum zero_tier zero_sizing_tier(const struct zero_flatten *flatten);
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
void zero_packing_add(struct zero_packing *laying, uint64_t flat, uint64_t pack, uint64_t released);

/*
 * The tier of tensors that are on the device with equal values. `budget` was measured before the
 * tensors existed: they count against it, on each rank, as the buffers that they become.
 */
enum zero_tier zero_sizing_device_tier(const struct zero_sizing *sizing, uint64_t setting,
				       uint64_t budget, uint64_t chunk);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from a budget and from a model's layout: pure functions, so that the plan of a job
 * and the job itself come to the same numbers.
 */
#ifndef ZERO_SIZING_H
#define ZERO_SIZING_H

#include "backend/backend.h"
#include "backend/exchange.h"
#include "layout.h"

/* Bytes above which a parameter is streamed when `stream_threshold` is auto. */
uint64_t zero_sizing_threshold(uint64_t chunk, uint64_t budget);
/* Bytes of gathered groups beyond which none is fetched ahead when `gather_limit` is auto. */
uint64_t zero_sizing_gather_limit(uint64_t budget);

/* ---- what a rank holds ----------------------------------------------------------------------- */

/*
 * Sums over groups, as the library accounts for them: every buffer is a multiple of 4096 bytes. Set
 * `world`, `share`, `stage`, `offload` and, before each group, `gradient_size`, the rest 0. All
 * ranks hold the same, since shards are padded to one size; of what ranks of a node have between
 * them, each counts its part.
 */
struct zero_sizing {
	size_t world;
	size_t share; /* ranks that share memory; 0 is read as 1 */
	int stage;
	bool device;          /* ranks have GPUs */
	bool offload;         /* optimizer states are in host memory */
	size_t gradient_size; /* bytes of an element of a rank's own gradients; 0 is read as 4 */
	uint64_t shards, optimizer;
	uint64_t sums;         /* gradients, summed over the ranks */
	uint64_t gathered[2];  /* parts of the outputs of the two groups that need most, the
	                          largest first */
	uint64_t gradients[2]; /* a rank's own gradients, likewise; none if they become the sums */
	uint64_t largest_flat; /* bytes of the largest flat buffer, whole */
	uint64_t whole;        /* and of all of them */
};

/* Adds a group that zero_layout_group has laid out. Sums that overflow stay at UINT64_MAX. */
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
/* Of all kinds but ZERO_MEM_OFFLOAD: what counts against the budget. */
uint64_t zero_sizing_total(const struct zero_sizing *sizing);

/* ---- flattening ------------------------------------------------------------------------------ */

enum zero_tier { ZERO_TIER_DEVICE, ZERO_TIER_DISTRIBUTED, ZERO_TIER_HOST, ZERO_TIERS };

const char *zero_tier_name(enum zero_tier tier);

/* What decides how tensors that exist already come into flat buffers, at stages 0 to 2. */
struct zero_flatten {
	uint64_t setting; /* ZERO_FLATTEN_AUTO ... of options.h */
	uint64_t room;    /* bytes free on the device once the stage has allocated all else */
	uint64_t flat;    /* of the largest flat buffer */
	uint64_t chunk;
	size_t world;
	size_t local_world; /* ranks that share the node; where nodes differ, the least */
	bool on_host;       /* the tensors are in host memory, not on the device */
	bool equal;         /* their values are the same on all ranks */
};

/* Bytes that must be free on the device. */
uint64_t zero_tier_need(enum zero_tier tier, const struct zero_flatten *flatten);
/*
 * The setting's tier; for `auto`, with tensors on the device, the first of device, distributed (if
 * values are equal) and host whose need is met, or host if none is; with tensors on the host,
 * distributed if ranks share the node and values are equal, else device.
 */
enum zero_tier zero_sizing_tier(const struct zero_flatten *flatten);
/* The same where the needs of the tiers are known. */
enum zero_tier zero_tier_choose(const struct zero_flatten *flatten,
				const uint64_t need[ZERO_TIERS]);

/*
 * What a rank holds on the device while flat buffers are laid one after the other, in each tier.
 * Set `chunk`, `on_host`, and `held` and `most` to what is there at first.
 */
struct zero_laying {
	uint64_t chunk;
	bool on_host; /* the tensors are in host memory */
	uint64_t held[ZERO_TIERS];
	uint64_t most[ZERO_TIERS];
};

/*
 * Lays a buffer that counts `flat` bytes and gives back tensors of `released` bytes. `pack` is what
 * a rank packs for itself, before it gives them back, in the tier distributed; 0 if its part of the
 * buffer is filled straight.
 */
void zero_laying_add(struct zero_laying *laying, uint64_t flat, uint64_t pack, uint64_t released);

/*
 * The tier of tensors that are on the device with equal values. `budget` was taken before the
 * tensors were there: they count against it, on each rank, as the whole buffers that they become.
 */
enum zero_tier zero_sizing_device_tier(const struct zero_sizing *sizing, uint64_t setting,
				       uint64_t budget, uint64_t chunk);

#endif

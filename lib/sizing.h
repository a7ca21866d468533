/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from a budget and from a model's layout: pure functions, so that the plan of a job
 * and the job itself come to the same numbers.
 */
#ifndef ZERO_SIZING_H
#define ZERO_SIZING_H

#include "backend.h"
#include "layout.h"

/* Bytes above which a parameter is streamed when `stream_threshold` is auto. */
uint64_t zero_sizing_threshold(uint64_t chunk, uint64_t budget);

/* ---- what a rank holds ----------------------------------------------------------------------- */

/*
 * Sums over groups, as the library accounts for them: every buffer is a multiple of 4096 bytes. Set
 * `world` and `stage`, the rest 0. All ranks hold the same, since shards are padded to one size.
 */
struct zero_sizing {
	size_t world;
	int stage;
	uint64_t shards, optimizer;
	uint64_t sums;         /* gradients, summed over the ranks */
	uint64_t gathered[2];  /* outputs of the two groups that need most, the largest first */
	uint64_t gradients[2]; /* a rank's own gradients, likewise */
	uint64_t largest_flat; /* bytes of the largest flat buffer, whole */
};

/* Adds a group that zero_layout_group has laid out. Sums that overflow stay at UINT64_MAX. */
void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_run *runs,
		       size_t run_count);

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
uint64_t zero_sizing_total(const struct zero_sizing *sizing);

/* Bytes that one peer's piece of a gradient takes in one of the two sets of exchange buffers. */
static inline size_t zero_sizing_exchange_piece(size_t peers)
{
	const size_t set = (size_t)1 << 20, least = (size_t)16 << 10;
	size_t bytes = set / peers / least * least;

	return bytes ? bytes : least;
}

/* ---- flattening ------------------------------------------------------------------------------ */

enum zero_tier { ZERO_TIER_DEVICE, ZERO_TIER_DISTRIBUTED, ZERO_TIER_HOST };

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
/*
 * The tier of tensors that are on the device with equal values. `budget` was taken before the
 * tensors were there: they count against it as the shards that they become.
 */
enum zero_tier zero_sizing_device_tier(const struct zero_sizing *sizing, uint64_t setting,
				       uint64_t budget, uint64_t chunk);

#endif

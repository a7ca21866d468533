/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory that a model needs, from its layout. The functions are pure, so that `zerorun --plan`
 * and the job come to the same numbers.
 */
#ifndef ZERO_SIZING_H
#define ZERO_SIZING_H

#include "backend/backend.h"
#include "backend/exchange.h"
#include "files/report_content.h"
#include "segments.h"

/*
 * Sums over groups, as the library accounts for memory: every buffer is a multiple of 4096 bytes.
 * The caller sets `world`, `share`, `stage`, `offload`, `states_8bit`, `one_stays`, `no_states`
 * and, before each group, `gradient_size`; zero_sizing_set_team is for a grid; all other fields
 * begin at 0. All ranks need equal amounts, since shards are padded to one size. A buffer that
 * ranks of a node share counts in equal parts.
 */
struct zero_sizing {
	size_t world;
	size_t share; /* ranks that share memory; 0 means 1 */
	/* In a grid: the ranks that store a copy between them, how many of these share memory, and
	   how many of those that store the same do. 0: there is no grid. */
	size_t team, team_share, replica_share;
	int stage;
	bool device;          /* ranks have GPUs */
	bool offload;         /* optimizer states are in host memory */
	bool states_8bit;     /* moments have 8 bits; the f32 ones of small parameters are not
			     counted */
	bool one_stays;       /* a group stays gathered while others are, as PyTorch's outermost */
	bool no_states;       /* the program steps: no optimizer states are counted */
	size_t gradient_size; /* bytes of an element of a rank's own gradients; 0 means 4 */
	uint64_t shards, optimizer;
	uint64_t sums;         /* gradients, summed over the ranks */
	uint64_t team_sums;    /* in a grid, before that: summed over a team */
	uint64_t gathered[3];  /* gather buffers of the largest groups, the largest first */
	uint64_t gradients[2]; /* a rank's own gradients, likewise; 0 if they become the sums */
	uint64_t largest_flat; /* bytes of the largest flat buffer, unsharded */
	uint64_t all_flats;    /* bytes of all flat buffers, unsharded */
	uint64_t saved;        /* that a rank writes to a checkpoint, or protects */
	size_t groups;
	struct zero_streamed streamed;
};

/* a + b, or UINT64_MAX if that overflows. */
static inline uint64_t zero_add_saturated(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/*
 * The grid sizes that `auto` chooses from, ascending: whole divisors of a node, whole nodes, and
 * the world. Returns the least one above `size`, of ranks on nodes with `ranks[nodes]` each.
 */
size_t zero_grid_size_above(const size_t *ranks, size_t nodes, size_t size);
/* Makes teams of `size` ranks, of which so many share memory as of neighbours of the world. */
void zero_sizing_set_team(struct zero_sizing *sizing, size_t size);

/* Whether each rank stores all of every segment. */
bool zero_sizing_replicated(const struct zero_sizing *sizing);
/* One rank's part of a buffer of `bytes` that the ranks sharing memory have in common. */
uint64_t zero_sizing_part(const struct zero_sizing *sizing, uint64_t bytes);

/* How many ranks store a copy between them; whether the node of each has all of it. */
size_t zero_sizing_ranks(const struct zero_sizing *sizing);
bool zero_sizing_in_place(const struct zero_sizing *sizing);
/* Adds a group from its layout. Sums that overflow stay at UINT64_MAX. `slice`: elements of a slice
   of the group; 0: it has none. */
void zero_sizing_group(struct zero_sizing *sizing, const struct zero_layout_segment *segments,
		       size_t segment_count, size_t slice);

/*
 * Bytes by kind at the moment when a training step needs most. It is assumed that
 *  - two groups are gathered at a time, one in use and one on its way, in whatever order: at most
 *    the two largest, or three with `one_stays`; and as they are stored, not as another type;
 *  - the backward pass finishes one group's gradient before it begins the next one's, so that with
 *    the reduce under way there are two, at most the two largest, beside the sums of all; in a grid
 *    these are the sums over a team, and those over all ranks take the place of the gradients.
 * A trainer that keeps a tied embedding's gradient through the whole backward pass, or fetches more
 * groups ahead, needs more; activations are not the library's.
 */
void zero_sizing_bytes(const struct zero_sizing *sizing, uint64_t bytes[ZERO_MEM_KINDS]);
/* Sums the kinds that count against the budget: all but ZERO_MEM_OFFLOAD. */
uint64_t zero_sizing_total(const struct zero_sizing *sizing);

#endif

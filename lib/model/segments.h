/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the parameters of a group lie in flat buffers: a pure function of their types and sizes, the
 * number of ranks and the gather mode, so that a checkpoint of one world size loads at another.
 */
#ifndef ZERO_SEGMENTS_H
#define ZERO_SEGMENTS_H

#include "zero.h"

/* Parameters and shards begin at multiples of so many elements, so that no block of 8-bit states is
   on two ranks, at any number of ranks. */
#define ZERO_ALIGN 256

enum zero_layout_mode { ZERO_LAYOUT_AUTO, ZERO_LAYOUT_SINGLE, ZERO_LAYOUT_GROUPED };

struct zero_layout_item {
	zero_dtype dtype;
	bool trainable;
	size_t count; /* elements */
	/* Out: the flat buffer, the segment in it, and the element of the segment where the item
	   begins. */
	size_t flat, segment, first;
};

struct zero_layout_segment {
	size_t flat;
	zero_dtype dtype;
	bool trainable;
	size_t count; /* elements, a multiple of ZERO_ALIGN * world; 0 if all of it is empty */
};

/*
 * Lays out the items of one group. `*segments` is malloc'ed and ordered by flat buffer; an item's
 * `segment` counts from the first segment of its flat buffer. ZERO_E_INVALID if sizes overflow.
 */
zero_status zero_layout_group(struct zero_layout_item *items, size_t item_count, size_t world,
			      enum zero_layout_mode mode, size_t bucket,
			      struct zero_layout_segment **segments, size_t *segment_count,
			      size_t *flat_count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts a group into flat buffers, and these into segments: a pure function of what it holds. */
#include "model.h"

#include <stdlib.h>

/* The most elements of a group, padding included: 2^62 bytes of the widest type. */
#define MOST_ELEMENTS ((size_t)1 << 59)

static bool round_up(size_t count, size_t unit, size_t *rounded)
{
	size_t rest = count % unit;

	return !__builtin_add_overflow(count, rest ? unit - rest : 0, rounded);
}

static bool item_bytes(const struct zero_layout_item *item, size_t *bytes)
{
	return !__builtin_mul_overflow(item->count, zero_dtype_size(item->dtype), bytes);
}

/* Decides whether a flat buffer ends before an item. */
struct cut {
	enum zero_layout_mode mode;
	size_t small; /* a parameter with fewer elements never gets a flat buffer of its own */
	size_t bucket;
	size_t bytes;   /* bytes of the flat buffer so far */
	bool has_large; /* it has a parameter that may have a buffer of its own */
};

static bool cut_before(const struct cut *cut, size_t count, size_t bytes)
{
	/* A small parameter costs less in an overfull bucket than in a buffer of its own. */
	if (cut->mode == ZERO_LAYOUT_GROUPED || !cut->has_large || count < cut->small)
		return false;
	return cut->mode == ZERO_LAYOUT_SINGLE || bytes > cut->bucket ||
	       cut->bytes > cut->bucket - bytes;
}

static bool assign_flats(struct zero_layout_item *items, size_t item_count, size_t world,
			 enum zero_layout_mode mode, size_t bucket, size_t *flat_count)
{
	struct cut cut = {.mode = mode, .small = ZERO_ALIGN * world, .bucket = bucket};
	size_t flat = 0;

	for (size_t i = 0; i < item_count; i++) {
		size_t bytes;

		if (!item_bytes(&items[i], &bytes))
			return false;
		if (cut_before(&cut, items[i].count, bytes)) {
			flat++;
			cut.bytes = 0;
			cut.has_large = false;
		}
		items[i].flat = flat;
		if (__builtin_add_overflow(cut.bytes, bytes, &cut.bytes))
			return false;
		cut.has_large = cut.has_large || items[i].count >= cut.small;
	}
	*flat_count = item_count ? flat + 1 : 0;
	return true;
}

/* Finds the segment of the item's dtype among those of its flat buffer, which start at `begin`, or
   adds it. */
static struct zero_layout_segment *find_segment(struct zero_layout_segment *segments, size_t begin,
						size_t *segment_count,
						const struct zero_layout_item *item)
{
	for (size_t i = begin; i < *segment_count; i++)
		if (segments[i].dtype == item->dtype && segments[i].trainable == item->trainable)
			return &segments[i];
	segments[*segment_count] = (struct zero_layout_segment){
		.flat = item->flat, .dtype = item->dtype, .trainable = item->trainable};
	return &segments[(*segment_count)++];
}

zero_status zero_layout_group(struct zero_layout_item *items, size_t item_count, size_t world,
			      enum zero_layout_mode mode, size_t bucket,
			      struct zero_layout_segment **segments, size_t *segment_count,
			      size_t *flat_count)
{
	struct zero_layout_segment *made = calloc(item_count ? item_count : 1, sizeof(*made));
	size_t made_count = 0, begin = 0, total = 0;

	if (!made)
		return zero_fail(ZERO_E_MEMORY, "no memory to lay out %zu parameters", item_count);
	if (!assign_flats(items, item_count, world, mode, bucket, flat_count))
		goto overflow;
	for (size_t i = 0; i < item_count; i++) {
		struct zero_layout_segment *segment;

		if (i && items[i].flat != items[i - 1].flat)
			begin = made_count;
		segment = find_segment(made, begin, &made_count, &items[i]);
		items[i].segment = (size_t)(segment - made) - begin;
		items[i].first = segment->count;
		if (__builtin_add_overflow(segment->count, items[i].count, &segment->count) ||
		    !round_up(segment->count, ZERO_ALIGN, &segment->count))
			goto overflow;
	}
	/* A limit on the sum, so that sums over segments and their page padding never overflow. */
	for (size_t i = 0; i < made_count; i++)
		if (!round_up(made[i].count, ZERO_ALIGN * world, &made[i].count) ||
		    __builtin_add_overflow(total, made[i].count, &total) || total > MOST_ELEMENTS)
			goto overflow;
	*segments = made;
	*segment_count = made_count;
	return ZERO_OK;
overflow:
	free(made);
	return zero_fail(ZERO_E_INVALID, "a group of %zu parameters has more than 2^59 elements",
			 item_count);
}

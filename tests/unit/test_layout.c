/* SPDX-License-Identifier: Apache-2.0 */
/* zero_layout_group against its rules, one by one, on random groups. */
#include <string.h>

#include "model/segments.h"
#include "unit.h"

enum { ITEMS_MAX = 24 };

struct group {
	struct zero_layout_item items[ITEMS_MAX];
	size_t item_count, world, bucket;
	enum zero_layout_mode mode;
	/* what came out */
	struct zero_layout_segment *segments;
	size_t segment_count, flat_count;
};

static zero_status lay_out(struct group *group)
{
	/* What comes out must not depend on what was there. */
	for (size_t i = 0; i < group->item_count; i++) {
		group->items[i].flat = group->items[i].segment = 77;
		group->items[i].first = SIZE_MAX;
	}
	return zero_layout_group(group->items, group->item_count, group->world, group->mode,
				 group->bucket, &group->segments, &group->segment_count,
				 &group->flat_count);
}

static void make_group(struct group *group, uint64_t *random)
{
	static const size_t edges[] = {0, 1, 255, 256, 257, 511, 512, 513, 768, 1024, 2048, 2049};

	memset(group, 0, sizeof(*group));
	group->world = 1 + random_below(random, 9);
	group->mode = (enum zero_layout_mode)random_below(random, 3);
	group->bucket = 1 + random_below(random, 20000);
	group->item_count = random_below(random, ITEMS_MAX + 1);
	for (size_t i = 0; i < group->item_count; i++) {
		struct zero_layout_item *item = &group->items[i];

		item->dtype = (zero_dtype)(ZERO_F32 + random_below(random, 8));
		/* Few kinds, so that segments have several items. */
		if (random_below(random, 3))
			item->dtype = ZERO_F32;
		item->trainable = random_below(random, 2);
		item->count = random_below(random, 2) ? edges[random_below(random, 12)]
						      : random_below(random, 6000);
	}
}

static size_t bytes_of(const struct zero_layout_item *item)
{
	return item->count * zero_dtype_size(item->dtype);
}

/* The segment of an item among all of the group. */
static const struct zero_layout_segment *segment_of(const struct group *group, size_t i)
{
	size_t begin = 0;

	while (begin < group->segment_count && group->segments[begin].flat < group->items[i].flat)
		begin++;
	ck_assert_uint_lt(begin + group->items[i].segment, group->segment_count);
	return &group->segments[begin + group->items[i].segment];
}

static void check_segments(const struct group *group)
{
	for (size_t r = 0; r < group->segment_count; r++) {
		const struct zero_layout_segment *segment = &group->segments[r];

		ck_assert_uint_eq(segment->count % (ZERO_ALIGN * group->world), 0);
		ck_assert_uint_lt(segment->flat, group->flat_count);
		for (size_t other = 0; other < r; other++) {
			ck_assert_uint_le(group->segments[other].flat, segment->flat);
			/* One segment of a kind in a flat buffer. */
			ck_assert(group->segments[other].flat != segment->flat ||
				  group->segments[other].dtype != segment->dtype ||
				  group->segments[other].trainable != segment->trainable);
		}
	}
}

static void check_items(const struct group *group)
{
	size_t used[ITEMS_MAX] = {0}, users[ITEMS_MAX] = {0};

	for (size_t i = 0; i < group->item_count; i++) {
		const struct zero_layout_item *item = &group->items[i];
		const struct zero_layout_segment *segment = segment_of(group, i);

		ck_assert_uint_eq(segment->flat, item->flat);
		ck_assert_int_eq((int)segment->dtype, (int)item->dtype);
		ck_assert_int_eq(segment->trainable, item->trainable);
		ck_assert_uint_eq(item->first % ZERO_ALIGN, 0);
		ck_assert_uint_le(item->first + item->count, segment->count);
		/* In the order of the items, without overlap and without a hole. */
		ck_assert_uint_ge(item->first, used[segment - group->segments]);
		ck_assert_uint_lt(item->first - used[segment - group->segments], ZERO_ALIGN);
		used[segment - group->segments] = item->first + item->count;
		users[segment - group->segments]++;
	}
	for (size_t r = 0; r < group->segment_count; r++) {
		ck_assert_uint_gt(users[r], 0);
		/* No longer than the padding makes it. */
		ck_assert_uint_lt(group->segments[r].count - used[r],
				  ZERO_ALIGN * group->world + ZERO_ALIGN);
	}
}

/* What is gathered as one: follows the items' order, and is cut where the mode says. */
static void check_cuts(const struct group *group)
{
	size_t small = ZERO_ALIGN * group->world;

	for (size_t f = 0; f < group->flat_count; f++) {
		size_t first = SIZE_MAX, last = 0, large = 0, bytes = 0, large_bytes = 0;

		for (size_t i = 0; i < group->item_count; i++) {
			if (group->items[i].flat != f)
				continue;
			first = first == SIZE_MAX ? i : first;
			ck_assert(first == i || last == i - 1);
			last = i;
			bytes += bytes_of(&group->items[i]);
			if (group->items[i].count >= small) {
				large++;
				large_bytes = bytes_of(&group->items[i]);
			}
		}
		ck_assert_uint_ne(first, SIZE_MAX);
		/* What is small never stands alone, if there is a large neighbour. */
		ck_assert(large || group->flat_count == 1);
		if (group->mode == ZERO_LAYOUT_SINGLE)
			ck_assert_uint_le(large, 1);
		/* Several large ones fit the bucket together, but for small ones that joined. */
		if (group->mode == ZERO_LAYOUT_AUTO && large > 1) {
			size_t joined = 0;

			for (size_t i = last; group->items[i].count < small; i--)
				joined += bytes_of(&group->items[i]);
			ck_assert_uint_le(bytes - joined, group->bucket);
			ck_assert_uint_gt(large_bytes, 0);
		}
		/* Whoever was cut off would not have fitted. */
		if (group->mode == ZERO_LAYOUT_AUTO && last + 1 < group->item_count) {
			ck_assert_uint_ge(group->items[last + 1].count, small);
			ck_assert_uint_gt(bytes + bytes_of(&group->items[last + 1]), group->bucket);
		}
		if (last + 1 < group->item_count)
			ck_assert_uint_eq(group->items[last + 1].flat, f + 1);
	}
	if (group->mode == ZERO_LAYOUT_GROUPED)
		ck_assert_uint_le(group->flat_count, 1);
	ck_assert_int_eq(group->flat_count == 0, group->item_count == 0);
}

START_TEST(follows_the_rules)
{
	uint64_t random = (uint64_t)_i;

	for (int round = 0; round < 1000; round++) {
		struct group group, again;

		make_group(&group, &random);
		ck_assert_int_eq(lay_out(&group), ZERO_OK);
		check_segments(&group);
		check_items(&group);
		check_cuts(&group);
		again = group;
		ck_assert_int_eq(lay_out(&again), ZERO_OK);
		ck_assert_uint_eq(again.segment_count, group.segment_count);
		for (size_t i = 0; i < group.item_count; i++) {
			ck_assert_uint_eq(again.items[i].flat, group.items[i].flat);
			ck_assert_uint_eq(again.items[i].segment, group.items[i].segment);
			ck_assert_uint_eq(again.items[i].first, group.items[i].first);
		}
		free(again.segments);
		free(group.segments);
	}
}
END_TEST

/* Where a parameter begins does not depend on the number of ranks: only the padding does. */
START_TEST(begins_are_the_same_at_every_world_size)
{
	uint64_t random = 5;

	for (int round = 0; round < 300; round++) {
		struct group group, other;

		make_group(&group, &random);
		group.mode = ZERO_LAYOUT_GROUPED;
		other = group;
		other.world = 1 + random_below(&random, 9);
		ck_assert_int_eq(lay_out(&group), ZERO_OK);
		ck_assert_int_eq(lay_out(&other), ZERO_OK);
		for (size_t i = 0; i < group.item_count; i++) {
			ck_assert_uint_eq(group.items[i].first, other.items[i].first);
			ck_assert_uint_eq(group.items[i].segment, other.items[i].segment);
		}
		free(group.segments);
		free(other.segments);
	}
}
END_TEST

static const struct {
	const char *what;
	enum zero_layout_mode mode;
	size_t world, bucket, count[5], flat[5]; /* of f32; 99 ends them */
} cuts[] = {
	{"a small one joins the one before",
	 ZERO_LAYOUT_SINGLE,
	 2,
	 1,
	 {512, 511, 512, 99},
	 {0, 0, 1}},
	{"the first small one joins the next",
	 ZERO_LAYOUT_SINGLE,
	 2,
	 1,
	 {5, 512, 512, 99},
	 {0, 0, 1}},
	{"small ones alone are one", ZERO_LAYOUT_SINGLE, 4, 1, {5, 1023, 0, 99}, {0, 0, 0}},
	{"256 elements a rank are not small",
	 ZERO_LAYOUT_SINGLE,
	 1,
	 1,
	 {256, 255, 256, 99},
	 {0, 0, 1}},
	{"the bucket is full to the byte",
	 ZERO_LAYOUT_AUTO,
	 1,
	 2400,
	 {300, 300, 300, 99},
	 {0, 0, 1}},
	{"one byte less", ZERO_LAYOUT_AUTO, 1, 2399, {300, 300, 300, 99}, {0, 1, 2}},
	{"larger than the bucket", ZERO_LAYOUT_AUTO, 1, 100, {5, 1000, 7, 300, 99}, {0, 0, 0, 1}},
	{"grouped is one", ZERO_LAYOUT_GROUPED, 1, 1, {1000, 1000, 5, 99}, {0, 0, 0}},
};

START_TEST(cuts_where_it_is_said)
{
	struct group group = {
		.world = cuts[_i].world, .mode = cuts[_i].mode, .bucket = cuts[_i].bucket};

	for (size_t i = 0; cuts[_i].count[i] != 99; i++)
		group.items[group.item_count++] =
			(struct zero_layout_item){.dtype = ZERO_F32, .count = cuts[_i].count[i]};
	ck_assert_int_eq(lay_out(&group), ZERO_OK);
	for (size_t i = 0; i < group.item_count; i++)
		ck_assert_msg(group.items[i].flat == cuts[_i].flat[i], "%s: item %zu in %zu",
			      cuts[_i].what, i, group.items[i].flat);
	free(group.segments);
}
END_TEST

static const struct {
	size_t world, count[4];
} too_large[] = {
	{1, {SIZE_MAX}},
	{1, {SIZE_MAX - 63, 64}},
	{1, {SIZE_MAX / 8 + 1}},
	{1, {SIZE_MAX / 16, SIZE_MAX / 16, SIZE_MAX / 16}},
	{7, {SIZE_MAX / 8 - 10}},
	{1, {(size_t)1 << 60, (size_t)1 << 60}},
	{SIZE_MAX / 128, {(size_t)1 << 61}},
};

START_TEST(refuses_what_overflows)
{
	for (int mode = 0; mode < 3; mode++) {
		struct group group = {.world = too_large[_i].world,
				      .mode = (enum zero_layout_mode)mode,
				      .bucket = SIZE_MAX};

		for (size_t i = 0; i < 4 && too_large[_i].count[i]; i++)
			group.items[group.item_count++] =
				(struct zero_layout_item){.dtype = i % 2 ? ZERO_I64 : ZERO_F64,
							  .count = too_large[_i].count[i]};
		ck_assert_int_eq(lay_out(&group), ZERO_E_INVALID);
		ck_assert_ptr_nonnull(strstr(zero_last_error(), "elements"));
	}
}
END_TEST

START_TEST(lays_out_what_is_merely_large)
{
	struct group group = {.world = 3, .mode = ZERO_LAYOUT_GROUPED, .bucket = 1};

	group.item_count = 2;
	group.items[0] = (struct zero_layout_item){.dtype = ZERO_U8, .count = 5000000001};
	group.items[1] = (struct zero_layout_item){.dtype = ZERO_U8, .count = (size_t)1 << 40};
	ck_assert_int_eq(lay_out(&group), ZERO_OK);
	ck_assert_uint_eq(group.items[1].first, 5000000256);
	ck_assert_uint_eq(group.segments[0].count % 192, 0);
	ck_assert_uint_ge(group.segments[0].count, 5000000256 + ((size_t)1 << 40));
	free(group.segments);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("layout");

	tcase_add_loop_test(tcase, follows_the_rules, 0, 8);
	tcase_add_test(tcase, begins_are_the_same_at_every_world_size);
	tcase_add_loop_test(tcase, cuts_where_it_is_said, 0, COUNT_OF(cuts));
	tcase_add_loop_test(tcase, refuses_what_overflows, 0, COUNT_OF(too_large));
	tcase_add_test(tcase, lays_out_what_is_merely_large);
	return run_cases(tcase, NULL);
}

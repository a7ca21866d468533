/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks are named as slow: against all that could be, tried one after the other, and of
   numbers that show it at once. */
#include <math.h>
#include <string.h>

#include "report/slow.h"
#include "unit.h"

enum { MOST = 24 };

static struct zero_slow_rank ranks[MOST];
static double own[MOST];
static size_t node_of[MOST], node_ranks[MOST];
static bool named[MOST];

/* Fills node_of and node_ranks: random nodes, whose ranks are not one after the other. */
static void draw_nodes(uint64_t *seed, size_t world)
{
	size_t nodes = 1 + random_below(seed, world);

	memset(node_ranks, 0, sizeof(node_ranks));
	for (size_t r = 0; r < world; r++) {
		node_of[r] = random_below(seed, nodes);
		node_ranks[node_of[r]]++;
	}
}

/* Names the slow ranks of own[world]. */
static size_t find(size_t world, double *excess)
{
	size_t count;

	for (size_t r = 0; r < world; r++)
		ranks[r] = (struct zero_slow_rank){own[r], (int)r, node_of[r]};
	count = zero_slow_find(ranks, world, node_ranks, excess);
	memset(named, 0, sizeof(named));
	for (size_t i = 0; i < count; i++)
		named[ranks[i].rank] = true;
	return count;
}

static bool may_be_named(const bool *some, size_t count, size_t world)
{
	size_t node = world;
	bool one_node = true;

	for (size_t r = 0; r < world; r++) {
		if (!some[r])
			continue;
		one_node = one_node && (node == world || node_of[r] == node);
		node = node_of[r];
	}
	return count == 1 || 4 * count <= world ||
	       (one_node && count == node_ranks[node] && 2 * count <= world);
}

/* The most that any ranks which may be named make all the others wait. */
static double most_of_all(size_t world)
{
	double most = -INFINITY;
	bool some[MOST];

	for (unsigned set = 1; set < (1U << world) - 1; set++) {
		size_t count = 0;

		for (size_t r = 0; r < world; r++)
			count += some[r] = set >> r & 1;
		if (may_be_named(some, count, world))
			most = fmax(most, zero_slow_excess(own, some, world));
	}
	return most;
}

START_TEST(finds_what_makes_the_others_wait_most)
{
	uint64_t seed = seed_of_test();
	double excess;

	for (int round = 0; round < 2000; round++) {
		size_t world = 2 + random_below(&seed, 8), count;

		draw_nodes(&seed, world);
		for (size_t r = 0; r < world; r++)
			own[r] = (double)random_below(&seed, round % 2 ? 4 : 1000) / 8;
		count = find(world, &excess);
		must(may_be_named(named, count, world), "%zu of %zu are named", count, world);
		must(excess == zero_slow_excess(own, named, world), "%g s, not %g", excess,
		     zero_slow_excess(own, named, world));
		must(excess == most_of_all(world), "%g s, not %g", excess, most_of_all(world));
	}
}
END_TEST

/* Whatever the others do, and wherever it is. */
START_TEST(names_one_that_is_slower_than_all)
{
	uint64_t seed = seed_of_test();
	double excess;

	for (int round = 0; round < 2000; round++) {
		size_t world = 2 + random_below(&seed, MOST - 1), slow = random_below(&seed, world);

		draw_nodes(&seed, world);
		for (size_t r = 0; r < world; r++)
			own[r] = 5 + (double)random_below(&seed, 100) / 128;
		own[slow] = 7;
		must(find(world, &excess) == 1 && named[slow], "rank %zu of %zu is not named", slow,
		     world);
		must(excess > 1 && excess <= 2, "%g s", excess);
	}
}
END_TEST

/* A node all of whose ranks are slow is named as a whole. */
START_TEST(names_a_node)
{
	uint64_t seed = seed_of_test();
	double excess;

	for (int round = 0; round < 2000; round++) {
		size_t world = 2 + random_below(&seed, MOST - 1), node, count;

		draw_nodes(&seed, world);
		node = node_of[random_below(&seed, world)];
		if (2 * node_ranks[node] > world)
			continue;
		for (size_t r = 0; r < world; r++)
			own[r] = (node_of[r] == node ? 8 : 4) +
				 (double)random_below(&seed, 100) / 128;
		count = find(world, &excess);
		must(count == node_ranks[node] && excess > 3, "%zu of %zu are named", count,
		     node_ranks[node]);
		for (size_t r = 0; r < world; r++)
			must(named[r] == (node_of[r] == node), "rank %zu", r);
	}
}
END_TEST

/* Ranks that are alike, one that is fast, and half of the ranks of a node keep nobody waiting. */
START_TEST(names_nobody_else)
{
	double excess;

	for (size_t world = 2; world <= MOST; world++) {
		memset(node_of, 0, sizeof(node_of));
		node_ranks[0] = world;
		for (size_t r = 0; r < world; r++)
			own[r] = 3;
		find(world, &excess);
		ck_assert(excess == 0);
		own[world / 3] = 1;
		find(world, &excess);
		ck_assert(world == 2 ? excess == 2 : excess == 0);
	}
	for (size_t r = 0; r < 4; r++)
		own[r] = r < 2 ? 9 : 1;
	node_ranks[0] = 4;
	find(4, &excess);
	ck_assert(excess == 0);
	ck_assert_uint_eq(zero_slow_find(ranks, 1, node_ranks, &excess), 0);
	ck_assert(excess == 0);
}
END_TEST

/* Those that were named are slow no more once another rank is slower than one of them. */
START_TEST(knows_when_it_ends)
{
	const double times[] = {1, 5, 4, 2};
	bool both[] = {false, true, true, false};

	ck_assert(zero_slow_excess(times, both, 4) == 2);
	both[3] = true;
	ck_assert(zero_slow_excess(times, both, 4) == 1);
	both[1] = false;
	ck_assert(zero_slow_excess(times, both, 4) == -3);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("slow");

	tcase_add_test(tcase, finds_what_makes_the_others_wait_most);
	tcase_add_test(tcase, names_one_that_is_slower_than_all);
	tcase_add_test(tcase, names_a_node);
	tcase_add_test(tcase, names_nobody_else);
	tcase_add_test(tcase, knows_when_it_ends);
	return run_cases(tcase, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rank keeps the copies of another: the one of the same index on another node, and of another
 * switch where none has more than half of the nodes. Nodes are listed switch by switch, and each
 * one's partner is as many places further as the largest switch has nodes.
 */
#include <stdlib.h>

#include "protect/protect_internal.h"

struct node {
	size_t number;
	size_t place; /* the first node of its switch */
};

static int by_place(const void *a, const void *b)
{
	const struct node *x = a, *y = b;

	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

static void list_nodes(const struct zero_nodes *nodes, const uint64_t *switches, size_t world,
		       struct node *list, size_t *first)
{
	for (size_t rank = world; rank--;)
		first[nodes->of[rank]] = rank;
	for (size_t n = 0; n < nodes->count; n++) {
		size_t place = 0;

		while (switches[first[place]] != switches[first[n]])
			place++;
		list[n] = (struct node){.number = n, .place = place};
	}
	qsort(list, nodes->count, sizeof(*list), by_place);
}

static size_t largest_switch(const struct node *list, size_t count)
{
	size_t largest = 0, now = 0;

	for (size_t n = 0; n < count; n++) {
		now = n && list[n].place == list[n - 1].place ? now + 1 : 1;
		largest = now > largest ? now : largest;
	}
	return largest;
}

/* The rank of a node that has this index among its ranks, or the same modulo their number. */
static int rank_of(const struct zero_nodes *nodes, size_t world, size_t node, size_t index)
{
	size_t rank = 0;

	index %= nodes->ranks[node];
	for (; rank < world; rank++)
		if (nodes->of[rank] == node && !index--)
			break;
	return (int)rank;
}

zero_status zero_protect_partners(const struct zero_nodes *nodes, const uint64_t *switches,
				  size_t world, int *partners)
{
	struct node *list = calloc(nodes->count, sizeof(*list));
	size_t *first = calloc(nodes->count, sizeof(*first));
	size_t *next = calloc(nodes->count, sizeof(*next)), *index = first;
	size_t largest, shift;

	if (!list || !first || !next) {
		free(list);
		free(first);
		free(next);
		return zero_fail(ZERO_E_MEMORY, "no memory for the partners of %zu ranks", world);
	}
	list_nodes(nodes, switches, world, list, first);
	largest = largest_switch(list, nodes->count);
	shift = 2 * largest <= nodes->count ? largest : nodes->count - largest;
	shift = shift ? shift : 1;
	for (size_t n = 0; n < nodes->count; n++)
		next[list[n].number] = list[(n + shift) % nodes->count].number;
	for (size_t n = 0; n < nodes->count; n++)
		index[n] = 0;
	for (size_t rank = 0; rank < world; rank++) {
		size_t node = nodes->of[rank];

		partners[rank] =
			nodes->count > 1 ? rank_of(nodes, world, next[node], index[node]++) : -1;
	}
	free(list);
	free(first);
	free(next);
	return ZERO_OK;
}

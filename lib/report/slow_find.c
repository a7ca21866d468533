/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks make the others wait, from the seconds that each rank had for itself. */
#include <math.h>
#include <stdlib.h>

#include "report/slow.h"

static int slowest_first(const void *a, const void *b)
{
	const struct zero_slow_rank *x = a, *y = b;

	if (x->own != y->own)
		return x->own < y->own ? 1 : -1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

size_t zero_slow_find(struct zero_slow_rank *ranks, size_t world, const size_t *node_ranks,
		      double *excess)
{
	size_t slow = 0;
	bool one_node = true;

	*excess = 0;
	qsort(ranks, world, sizeof(*ranks), slowest_first);
	for (size_t count = 1; count <= world / 2; count++) {
		double gap = ranks[count - 1].own - ranks[count].own;

		one_node = one_node && ranks[count - 1].node == ranks[0].node;
		if (count > 1 && count > world / 4 &&
		    !(one_node && count == node_ranks[ranks[0].node]))
			continue;
		if (!slow || gap > *excess) {
			slow = count;
			*excess = gap;
		}
	}
	return slow;
}

double zero_slow_excess(const double *own, const bool *named, size_t world)
{
	double least = INFINITY, most = -INFINITY;

	for (size_t rank = 0; rank < world; rank++)
		if (named[rank])
			least = own[rank] < least ? own[rank] : least;
		else
			most = own[rank] > most ? own[rank] : most;
	return least - most;
}

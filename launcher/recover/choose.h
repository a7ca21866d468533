/* SPDX-License-Identifier: Apache-2.0 */
/* With which nodes and how many ranks a job goes on that has lost nodes. */
#ifndef ZERORUN_CHOOSE_H
#define ZERORUN_CHOOSE_H

#include <stdbool.h>
#include <stddef.h>

/* What the first attempt had, and the fewest ranks that the user accepts. */
struct layout {
	unsigned ranks, nodes;
	unsigned per_node;  /* ranks on a node, at most */
	unsigned min_ranks; /* --min-ranks; 0: not given */
};

/* How many ranks share a node, of as many nodes; rounded up. */
static inline unsigned ranks_per_node(unsigned ranks, unsigned nodes)
{
	return ranks / nodes + (ranks % nodes != 0);
}

/*
 * Nodes that the last attempt used stay, and others replace the lost ones. used[count] is what the
 * last attempt used, and then what the next one uses. Returns the ranks; 0 if the job cannot go on,
 * and a sentence that says why.
 */
unsigned choose_nodes(const struct layout *layout, const bool *lost, bool *used, size_t count,
		      char *why, size_t size);
/* The GPUs of a job, such as "6" or "a100:6", if it had another number of nodes with as many on
   each; malloc'ed. NULL if nodes have different numbers or types. */
char *scale_gpus(const char *gpus, unsigned first_nodes, unsigned nodes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What all ranks of a job will agree on: the least of the nodes, and which ranks share memory. */
#ifndef ZERORUN_AGREED_H
#define ZERORUN_AGREED_H

#include "launcher/plan/survey.h"

/* How many ranks share memory at a time, in the smallest set of them and in the largest. */
struct share_set {
	size_t least, most;
	enum { SHARING_KNOWN, SHARING_IF_EVEN, SHARING_UNKNOWN } how;
};

/* What all ranks agree on; a threshold of 0 is not known. */
struct agreed {
	const char *node; /* the one with the least budget */
	size_t world, nodes;
	uint64_t budget, chunk, threshold, limit;
	bool budget_known, limit_known;
	struct share_set sharing;
	size_t *node_ranks; /* [nodes], owned; NULL: how many ranks each node has is not known */
};

/*
 * Whether ranks have GPUs, and so share no memory. What backend=auto becomes is known to a node
 * alone: `node` has the settings of the first node, or is NULL.
 */
bool has_gpus(const struct request *request, const struct zero_settings *node);
/* What the ranks will agree on, from what the nodes report. */
struct agreed agree_on_nodes(const struct request *request, const struct survey *survey);
/* The same without a survey: from this machine's memory, if the ranks are to run here. */
struct agreed agree_here(const struct plan *plan, const struct request *request);

#endif

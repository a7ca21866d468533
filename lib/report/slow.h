/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that make the others wait (--zero-slow). What a rank does while it communicates nothing is
 * its own time: in a training all ranks wait for the one that has most of it.
 */
#ifndef ZERO_SLOW_H
#define ZERO_SLOW_H

#include <stdbool.h>
#include <stddef.h>

#include "files/report_content.h"

/* ---- slow_find.c: which ranks are slow ------------------------------------------------------- */

struct zero_slow_rank {
	double own;  /* seconds */
	int rank;    /* of the job */
	size_t node; /* numbered from 0 */
};

/*
 * Sorts ranks[world], the slowest first, and returns how many of them are slow together; *excess is
 * how many seconds each other rank has waited for each of these, at least. These are the ranks
 * before the largest gap between two neighbours. There are no more than a quarter of all ranks, or
 * one; or all ranks of a node, `node_ranks` of which tells how many it has, but no more than half.
 * 0 where there is one rank.
 */
size_t zero_slow_find(struct zero_slow_rank *ranks, size_t world, const size_t *node_ranks,
		      double *excess);
/* The same seconds for the ranks that are named: negative, if some other rank is slower. */
double zero_slow_excess(const double *own, const bool *named, size_t world);

/* ---- slow.c ---------------------------------------------------------------------------------- */

/* What was found on rank 0 so far: *count of them, the last of which may last. */
const struct zero_report_slow *zero_slow_found(const zero_job *job, size_t *count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a reduce-scatter by exchange: which rank sends what to which rank in which round.
 * It follows from the ranks' nodes, the count and the size of the buffers alone, so all ranks have
 * the same.
 *
 * The ranks are a grid. A row has ranks of one node, and all rows have as many: the ranks of a node
 * if nodes have equally many, else their greatest common divisor. A rank sums for the owners of its
 * column. In a round of distance d the ranks of row r
 *   near: exchange within the row their values for the owners in row r + d, and sum them in f32, in
 *         rank order;
 *   far:  send such a sum to its owner, in the same column of row r + d, and receive one from row
 *         r - d.
 * So a rank has (columns - 1) + (rows - 1) peers. Distances are modulo the number of rows, so at
 * any time all rows send to different ones. Each owner adds the sum of its own row, then that of
 * the row before it, and so on. Where rows have one rank there is nothing to do near, and values
 * are sent far as they are.
 */
#ifndef ZERO_REDUCE_SCHEDULE_H
#define ZERO_REDUCE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct zero_reduce_grid {
	int rows, columns;
	int row, column; /* of this rank */
	int *ranks;      /* [rows][columns], malloc'ed */
};

/* Makes the grid of `world` ranks, whose nodes are equal numbers where they are one node. Returns
   false without memory. */
bool zero_reduce_grid_new(const uint64_t *nodes, int world, int rank,
			  struct zero_reduce_grid *grid);

/* The rank in a column of the row at a distance before (< 0) or behind this rank's. */
static inline int zero_reduce_peer(const struct zero_reduce_grid *grid, int distance, int column)
{
	int row = (grid->row + distance + grid->rows) % grid->rows;

	return grid->ranks[row * grid->columns + column];
}

/* Most elements, over its distances, of a round whose buffers fit in `bytes`, for values of `size`
   bytes: a multiple of 64. */
size_t zero_reduce_unit(const struct zero_reduce_grid *grid, size_t size, size_t bytes);

/* Elements [at, at + count) of the parts of the owners at distances [first, end). Only one that has
   all elements has several distances. */
struct zero_reduce_round {
	size_t at, count;
	int first, end;
};

/* How many rounds parts of `count` elements need. */
size_t zero_reduce_rounds(const struct zero_reduce_grid *grid, size_t count, size_t unit);
struct zero_reduce_round zero_reduce_round(const struct zero_reduce_grid *grid, size_t count,
					   size_t unit, size_t index);

#endif

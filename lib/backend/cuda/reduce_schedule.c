/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce_schedule.h"

#include <stdlib.h>

/* ---- the grid -------------------------------------------------------------------------------- */

static int greatest_common_divisor(int a, int b)
{
	while (b) {
		int rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

/* How many of the ranks below `end` are on the node of `rank`. */
static int count_on_node(const uint64_t *nodes, int rank, int end)
{
	int count = 0;

	for (int other = 0; other < end; other++)
		count += nodes[other] == nodes[rank];
	return count;
}

static int previous_on_node(const uint64_t *nodes, int rank)
{
	int other = rank - 1;

	while (nodes[other] != nodes[rank])
		other--;
	return other;
}

bool zero_reduce_grid_new(const uint64_t *nodes, int world, int rank, struct zero_reduce_grid *grid)
{
	int *row_of = calloc((size_t)world, sizeof(*row_of));

	*grid = (struct zero_reduce_grid){.ranks = calloc((size_t)world, sizeof(*grid->ranks))};
	if (!row_of || !grid->ranks) {
		free(row_of);
		free(grid->ranks);
		grid->ranks = NULL;
		return false;
	}
	for (int r = 0; r < world; r++)
		grid->columns =
			greatest_common_divisor(grid->columns, count_on_node(nodes, r, world));
	for (int r = 0; r < world; r++) {
		int column = count_on_node(nodes, r, r) % grid->columns;

		row_of[r] = column ? row_of[previous_on_node(nodes, r)] : grid->rows++;
		grid->ranks[row_of[r] * grid->columns + column] = r;
		if (r == rank) {
			grid->row = row_of[r];
			grid->column = column;
		}
	}
	free(row_of);
	return true;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

size_t zero_reduce_unit(const struct zero_reduce_grid *grid, size_t size, size_t bytes)
{
	bool near = grid->columns > 1, far = grid->rows > 1;
	/* what near peers send; sums that are sent, and received; or what far peers send */
	size_t each = (size_t)(grid->columns - 1) * size + (near && far ? 2 * sizeof(float) : 0) +
		      (!near && far ? size : 0);
	size_t unit = each ? bytes / each / 64 * 64 : 64;

	return unit ? unit : 64;
}

static size_t divide_up(size_t a, size_t b)
{
	return a / b + (a % b != 0);
}

/* Elements of each part in one round: parts are cut in equal pieces, so that none is short. */
static size_t piece_of(size_t count, size_t unit)
{
	return divide_up(divide_up(count, divide_up(count, unit)), 64) * 64;
}

/* How many distances are in one round. */
static size_t distances(const struct zero_reduce_grid *grid, size_t count, size_t unit)
{
	size_t fit = count < unit ? unit / count : 1, rows = (size_t)grid->rows;

	return fit < rows ? fit : rows;
}

size_t zero_reduce_rounds(const struct zero_reduce_grid *grid, size_t count, size_t unit)
{
	if (!count)
		return 0;
	return divide_up(count, piece_of(count, unit)) *
	       divide_up((size_t)grid->rows, distances(grid, count, unit));
}

struct zero_reduce_round zero_reduce_round(const struct zero_reduce_grid *grid, size_t count,
					   size_t unit, size_t index)
{
	size_t each = distances(grid, count, unit), turns = divide_up((size_t)grid->rows, each);
	size_t piece = piece_of(count, unit), at = index / turns * piece;
	size_t first = index % turns * each, end = first + each;

	return (struct zero_reduce_round){
		.at = at,
		.count = count - at < piece ? count - at : piece,
		.first = (int)first,
		.end = end < (size_t)grid->rows ? (int)end : grid->rows,
	};
}

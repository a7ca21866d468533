/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the reduces of a communicator need: the grid of its ranks, communicators for a row and for a
 * column of it, and the window through which all values go. Reduces have communicators and a
 * stream of their own, so that gathers of the next layers do not wait for them.
 */
#include <stdlib.h>

#include "gpu_comm.h"

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

/* Fills the grid. row_of[world] is scratch. */
static void make_grid(struct zero_reduce_grid *grid, const uint64_t *nodes, int world, int rank,
		      int *row_of)
{
	int columns = 0;

	for (int r = 0; r < world; r++)
		columns = greatest_common_divisor(columns, count_on_node(nodes, r, world));
	grid->columns = columns > 0 ? columns : 1;
	grid->rows = world / grid->columns;
	for (int r = 0, rows = 0; r < world; r++) {
		int column = count_on_node(nodes, r, r) % grid->columns;

		row_of[r] = column ? row_of[previous_on_node(nodes, r)] : rows++;
		grid->order[column * grid->rows + row_of[r]] = r;
		if (r == rank) {
			grid->row = row_of[r];
			grid->column = column;
		}
	}
}

zero_status zero_reduce_grid_new(struct zero_cuda_comm *cuda)
{
	const struct zero_comm *comm = &cuda->comm;
	size_t world = (size_t)comm->place.world;
	uint64_t *nodes = calloc(world, sizeof(*nodes));
	int *row_of = calloc(world, sizeof(*row_of));

	cuda->grid = (struct zero_reduce_grid){.order = calloc(world, sizeof(int))};
	if (nodes && row_of && cuda->grid.order) {
		for (int rank = 0; rank < comm->place.world; rank++)
			if (!cuda->first->ordered)
				nodes[rank] = cuda->first->nodes[zero_comm_job_rank(comm, rank)];
		make_grid(&cuda->grid, nodes, comm->place.world, comm->place.rank, row_of);
	} else {
		free(cuda->grid.order);
		cuda->grid.order = NULL;
	}
	free(nodes);
	free(row_of);
	return cuda->grid.order ? ZERO_OK
				: zero_core->fail(ZERO_E_COMM, "no memory for %zu ranks", world);
}

/* ---- communicators and the window ------------------------------------------------------------ */

static int job_rank_at(const struct zero_cuda_comm *cuda, int row, int column)
{
	const struct zero_reduce_grid *grid = &cuda->grid;

	return zero_comm_job_rank(&cuda->comm, grid->order[column * grid->rows + row]);
}

zero_status zero_cuda_split_reduces(struct zero_cuda_comm *first, struct zero_cuda_comm *cuda)
{
	const struct zero_reduce_grid *grid = cuda ? &cuda->grid : NULL;
	zero_status near, far;

	/* NCCL numbers colors from 0: that of a row or column is its first rank. */
	near = zero_nccl_split(&first->parent,
			       grid && grid->columns > 1 ? job_rank_at(cuda, grid->row, 0) : -1,
			       grid ? grid->column : 0, first->open_seconds, false,
			       grid ? &cuda->near : first->not_member);
	far = zero_nccl_split(&first->parent,
			      grid && grid->rows > 1 ? job_rank_at(cuda, 0, grid->column) : -1,
			      grid ? grid->row : 0, first->open_seconds, false,
			      grid ? &cuda->far : first->not_member);
	return near ? near : far;
}

/* The device needs the order if it is not that of the ranks. */
static zero_status upload_order(struct zero_cuda_comm *cuda)
{
	size_t world = (size_t)cuda->comm.place.world, bytes = world * sizeof(int);
	CUstream stream = cuda->device->reduce_stream;
	void *host = NULL;
	zero_status status;

	if (cuda->grid.rows == 1 || cuda->grid.columns == 1)
		return ZERO_OK;
	status = zero_memory_alloc(cuda->memory, ZERO_MEM_STAGING, bytes, false, stream,
				   (void **)&cuda->grid.device_order);
	if (!status)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_PINNED, bytes, false, stream,
					   &host);
	if (status)
		return status;
	memcpy(host, cuda->grid.order, bytes);
	zero_device_copy(cuda->device, stream, cuda->grid.device_order, host, bytes);
	zero_memory_free(cuda->memory, host, stream);
	return ZERO_OK;
}

zero_status zero_cuda_prepare_reduces(struct zero_cuda_comm *cuda)
{
	struct zero_cuda_comm *first = cuda->first;
	zero_status status = ZERO_OK;

	if (!first->window.base)
		status = zero_window_new(first->device, first->memory, ZERO_MEM_STAGING,
					 ZERO_REDUCE_WINDOW, &first->window);
	if (cuda == first && !status)
		status = zero_memory_count(first->memory, ZERO_MEM_STAGING, ZERO_REDUCE_WINDOW);
	cuda->window_bytes = ZERO_REDUCE_WINDOW;
	return status ? status : upload_order(cuda);
}

static zero_status register_window(struct zero_cuda_comm *cuda, struct zero_nccl_comm *nccl,
				   void **registration)
{
	const struct zero_cuda_comm *first = cuda->first;

	return nccl->comm ? zero_nccl_register(nccl, first->window.base, first->window.bytes,
					       first->symmetric, registration)
			  : ZERO_OK;
}

zero_status zero_cuda_register_reduces(struct zero_cuda_comm *cuda)
{
	zero_status status = register_window(cuda, &cuda->near, &cuda->near_registration);

	return status ? status : register_window(cuda, &cuda->far, &cuda->far_registration);
}

static void close_comm(struct zero_cuda_comm *cuda, struct zero_nccl_comm *nccl, void *registration,
		       bool failed)
{
	if (registration)
		zero_nccl_deregister(nccl, registration, cuda->first->symmetric);
	if (nccl->device)
		zero_nccl_close(nccl, failed);
}

void zero_cuda_close_reduces(struct zero_cuda_comm *cuda, bool failed)
{
	close_comm(cuda, &cuda->far, cuda->far_registration, failed);
	close_comm(cuda, &cuda->near, cuda->near_registration, failed);
	zero_memory_free(cuda->memory, cuda->grid.device_order, cuda->device->reduce_stream);
	free(cuda->grid.order);
	cuda->grid = (struct zero_reduce_grid){0};
	if (cuda == cuda->first && cuda->window.base) {
		zero_window_delete(&cuda->window);
		zero_memory_uncount(cuda->memory, ZERO_MEM_STAGING, ZERO_REDUCE_WINDOW);
	}
}

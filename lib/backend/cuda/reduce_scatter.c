/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter by NCCL, first within each node and then across nodes, in pieces that go through
 * the window: one call of NCCL for each of the two, whatever the number of ranks.
 *
 *   pack  copies all owners' values into the window, by columns of the grid;
 *   near  ncclReduceScatter on the ranks of a row leaves here the row's sums for this column;
 *   widen makes them f32, if they are 16 bits;
 *   far   ncclReduceScatter on the ranks of the column leaves here what this rank owns;
 *   add   moves or adds that to the output.
 *
 * With one row there is no far, with one column no near. Let there be N ranks on nodes of L, and a
 * part be an owner's share as it is sent: a rank sends (L - 1) N / L parts within its node, as a
 * ring does, and to other nodes N / L - 1 parts of f32.
 *
 * The copy costs two accesses to the device's memory, which is an order of magnitude faster than
 * NVLink. It buys that all of this is in a symmetric window, at the same offset on all ranks
 * without an agreement; there NCCL sums 16-bit values in f32 and rounds once (since 2.27, among
 * GPUs with NVLink or peer access). Elsewhere it rounds after each addition within the node.
 */
#include "gpu_comm.h"

enum { SUMS_ALIGNMENT = 16 }; /* of f32 sums in the window */

/* Elements of each part that fit in the window, a multiple of 64. */
static size_t unit_of(const struct zero_cuda_comm *cuda, size_t size)
{
	const struct zero_reduce_grid *grid = &cuda->grid;
	size_t rows = (size_t)grid->rows, all = rows * (size_t)grid->columns * size;
	size_t sums = rows > 1 && size < sizeof(float) ? rows * sizeof(float) : 0;
	size_t unit = (cuda->window_bytes - SUMS_ALIGNMENT) / (all + sums) / 64 * 64;

	return unit ? unit : 64;
}

size_t zero_reduce_piece(size_t count, size_t unit)
{
	size_t pieces = count / unit + (count % unit != 0);
	size_t piece = pieces ? count / pieces + (count % pieces != 0) : 0;

	return (piece + 63) / 64 * 64;
}

/* In place: this rank's part of `data`, which has one of `count` elements for each rank of `nccl`,
   becomes the sum. */
static zero_status sum_in_place(struct zero_cuda_comm *cuda, struct zero_nccl_comm *nccl,
				char *data, size_t count, zero_dtype dtype, int ranks, int rank)
{
	static const ncclDataType_t types[] = {
		[ZERO_F32] = ncclFloat32, [ZERO_F16] = ncclFloat16, [ZERO_BF16] = ncclBfloat16};
	size_t bytes = count * zero_core->dtype_size(dtype);
	zero_status status = zero_nccl_group_begin(nccl);

	if (status)
		return status;
	status = zero_nccl_status(
		zero_nccl.reduce_scatter(data, data + (size_t)rank * bytes, count, types[dtype],
					 ncclSum, nccl->comm,
					 (cudaStream_t)cuda->device->reduce_stream),
		"ncclReduceScatter", nccl->comm);
	cuda->comm.bytes_sent += bytes * (size_t)(ranks - 1);
	return zero_nccl_group_end(nccl, status);
}

static void pack_values(struct zero_cuda_comm *cuda, const struct zero_op *op, size_t at,
			size_t count)
{
	const struct zero_device_pack pack = {
		.out = cuda->first->window.base,
		.in = (const char *)op->send + at * zero_core->dtype_size(op->from),
		.order = cuda->grid.device_order,
		.bytes = count * zero_core->dtype_size(op->from),
		.stride = op->count * zero_core->dtype_size(op->from),
		.count = (size_t)cuda->comm.place.world,
	};
	size_t tiles = zero_device_pack_tiles(pack.bytes) * pack.count;
	size_t most = cuda->device->most_blocks[ZERO_K_PACK];

	zero_launch_blocks(cuda->device, cuda->device->reduce_stream, ZERO_K_PACK, &pack,
			   tiles < most ? tiles : most);
}

/* Reduces `count` elements of each owner's part from element `at` on. */
static zero_status reduce_piece(struct zero_cuda_comm *cuda, const struct zero_op *op, size_t at,
				size_t count)
{
	const struct zero_reduce_grid *grid = &cuda->grid;
	struct zero_device *device = cuda->device;
	size_t size = zero_core->dtype_size(op->from), rows = (size_t)grid->rows;
	char *window = cuda->first->window.base;
	char *sums = window + (size_t)grid->column * rows * count * size;
	struct zero_device_sum add = {.out = (float *)op->recv + at,
				      .count = count,
				      .n = 1,
				      .from = op->from,
				      .accumulate = op->accumulate};
	zero_status status = ZERO_OK;

	pack_values(cuda, op, at, count);
	if (grid->columns > 1)
		status = sum_in_place(cuda, &cuda->near, window, rows * count, op->from,
				      grid->columns, grid->column);
	if (!status && rows > 1 && op->from != ZERO_F32) {
		char *wide = window + (size_t)cuda->comm.place.world * count * size;

		wide += -(uintptr_t)wide % SUMS_ALIGNMENT;
		zero_launch_cast(device, device->reduce_stream, ZERO_F32, wide, op->from, sums,
				 rows * count);
		sums = wide;
		add.from = ZERO_F32;
	}
	if (!status && rows > 1)
		status = sum_in_place(cuda, &cuda->far, sums, count, ZERO_F32, grid->rows,
				      grid->row);
	add.own = sums + (size_t)grid->row * count * zero_core->dtype_size(add.from);
	if (!status)
		zero_launch(device, device->reduce_stream, ZERO_K_SUM, &add);
	return status;
}

static void reduce_alone(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct zero_device *device = cuda->device;
	const struct zero_device_sum only = {.out = op->recv,
					     .own = op->send,
					     .count = op->count,
					     .n = 1,
					     .from = op->from,
					     .accumulate = op->accumulate};

	if (op->accumulate || op->from != ZERO_F32)
		zero_launch(device, device->reduce_stream, ZERO_K_SUM, &only);
	else
		zero_device_copy(device, device->reduce_stream, op->recv, op->send,
				 op->count * sizeof(float));
}

zero_status zero_cuda_reduce_scatter(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	size_t piece, count;
	zero_status status = ZERO_OK;

	if (cuda->comm.place.world == 1) {
		reduce_alone(cuda, op);
		return ZERO_OK;
	}
	if (cuda->first->ordered)
		return zero_cuda_reduce_ordered(cuda, op);
	piece = zero_reduce_piece(op->count, unit_of(cuda, zero_core->dtype_size(op->from)));
	for (size_t at = 0; !status && at < op->count; at += count) {
		count = op->count - at < piece ? op->count - at : piece;
		status = reduce_piece(cuda, op, at, count);
	}
	return status;
}

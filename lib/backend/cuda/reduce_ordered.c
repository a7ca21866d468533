/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter with reduce=ordered: every rank sends every owner its values, and the owner adds
 * them in f32 in the order of the ranks. The sum has the same bits wherever the ranks are and
 * whatever NCCL would choose. It costs N - 1 messages a piece, which are short if there are many
 * ranks, and of N ranks on nodes of L it sends N - L parts to other nodes, not N / L - 1. Pieces
 * are exchanged and summed in turn.
 */
#include "gpu_comm.h"

static zero_status exchange(struct zero_cuda_comm *cuda, const struct zero_op *op, size_t at,
			    size_t bytes)
{
	cudaStream_t stream = (cudaStream_t)cuda->device->reduce_stream;
	struct zero_nccl_comm *nccl = &cuda->near;
	size_t size = zero_core->dtype_size(op->from);
	char *received = cuda->first->window.base;
	zero_status status = zero_nccl_group_begin(nccl);

	if (status)
		return status;
	for (int peer = 0; !status && peer < cuda->comm.place.world; peer++) {
		const char *values =
			(const char *)op->send + ((size_t)peer * op->count + at) * size;

		if (peer == cuda->comm.place.rank)
			continue;
		status = zero_nccl_status(
			zero_nccl.send(values, bytes, ncclInt8, peer, nccl->comm, stream),
			"ncclSend", nccl->comm);
		if (!status)
			status = zero_nccl_status(
				zero_nccl.recv(received, bytes, ncclInt8, peer, nccl->comm, stream),
				"ncclRecv", nccl->comm);
		received += bytes;
		cuda->comm.bytes_sent += bytes;
	}
	return zero_nccl_group_end(nccl, status);
}

zero_status zero_cuda_reduce_ordered(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	const int world = cuda->comm.place.world, rank = cuda->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from), count;
	size_t unit = cuda->window_bytes / ((size_t)(world - 1) * size) / 64 * 64;
	size_t piece = zero_reduce_piece(op->count, unit ? unit : 64);
	zero_status status = ZERO_OK;

	for (size_t at = 0; !status && at < op->count; at += count) {
		const char *own = (const char *)op->send + ((size_t)rank * op->count + at) * size;

		count = op->count - at < piece ? op->count - at : piece;
		status = exchange(cuda, op, at, count * size);
		if (!status)
			zero_launch(cuda->device, cuda->device->reduce_stream, ZERO_K_SUM,
				    &(struct zero_device_sum){.out = (float *)op->recv + at,
							      .own = own,
							      .others = cuda->first->window.base,
							      .count = count,
							      .n = world,
							      .own_at = rank,
							      .from = op->from,
							      .accumulate = op->accumulate});
	}
	return status;
}

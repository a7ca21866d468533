/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter. NCCL's own folds in an order of its choice, and 16-bit values hop by hop in 16
 * bits. So ranks of one node, and those with 16-bit values, send each owner its part in pieces, and
 * the owner adds them in rank order in f32: as many bytes as a ring sends, and the sum of one piece
 * beside the exchange of the next. Between nodes a ring crosses the network once for each node, and
 * all pairs once for each GPU: f32 is left to NCCL there, unless the order is asked for.
 */
#include "gpu.h"

struct exchange {
	struct zero_cuda_comm *cuda;
	const struct zero_op *op;
	size_t size; /* of an element */
};

/* Whether a sum is made by the library itself, of pieces that ranks exchange. */
static bool exchanges(const struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return cuda->comm.place.world > 1 && (cuda->ordered || op->from != ZERO_F32);
}

/* The peer's place among the pieces of a set. */
static char *piece_of(const struct exchange *exchange, int set, int rank)
{
	const struct zero_cuda_comm *cuda = exchange->cuda;
	size_t slot = (size_t)(rank < cuda->comm.place.rank ? rank : rank - 1);

	return (char *)cuda->staging[set] + slot * cuda->piece;
}

static const char *part_of(const struct exchange *exchange, int rank, size_t at)
{
	return (const char *)exchange->op->send +
	       ((size_t)rank * exchange->op->count + at) * exchange->size;
}

/* Elements [at, at + count) of each rank's part go to that rank. */
static zero_status send_piece(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	cudaStream_t stream = (cudaStream_t)cuda->device->comm;
	size_t bytes = count * exchange->size;
	zero_status status = zero_nccl_begin(&cuda->nccl);

	if (status)
		return status;
	for (int rank = 0; !status && rank < cuda->comm.place.world; rank++) {
		if (rank == cuda->comm.place.rank)
			continue;
		status = zero_nccl_status(zero_nccl.send(part_of(exchange, rank, at), bytes,
							 ncclInt8, rank, cuda->nccl.comm, stream),
					  "ncclSend", cuda->nccl.comm);
		if (!status)
			status = zero_nccl_status(zero_nccl.recv(piece_of(exchange, set, rank),
								 bytes, ncclInt8, rank,
								 cuda->nccl.comm, stream),
						  "ncclRecv", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes;
	}
	return zero_nccl_end(&cuda->nccl, status);
}

static void sum_piece(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	const struct zero_op *op = exchange->op;
	int world = cuda->comm.place.world;

	for (int rank = 0; rank < world; rank++)
		cuda->summands[rank] = rank == cuda->comm.place.rank
					       ? (const void *)part_of(exchange, rank, at)
					       : piece_of(exchange, set, rank);
	zero_launch_sum(cuda->device, cuda->device->side, (float *)op->recv + at, op->from,
			cuda->summands, world, count, op->accumulate);
}

static zero_status by_exchange(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct exchange exchange = {
		.cuda = cuda, .op = op, .size = zero_core->dtype_size(op->from)};
	size_t piece = cuda->piece / exchange.size;
	struct zero_device *device = cuda->device;
	CUevent summed[2] = {NULL, NULL};
	zero_status status = ZERO_OK;
	int set = 0;

	for (size_t at = 0, now; !status && at < op->count; at += now, set = !set) {
		CUevent here;

		now = op->count - at < piece ? op->count - at : piece;
		/* The pieces of the last turn but one are summed. */
		zero_event_order(device, device->comm, summed[set]);
		zero_event_put(device, summed[set]);
		summed[set] = NULL;
		status = send_piece(&exchange, set, at, now);
		here = zero_event_record(device, device->comm);
		zero_event_order(device, device->side, here);
		zero_event_put(device, here);
		if (!status)
			sum_piece(&exchange, set, at, now);
		summed[set] = zero_event_record(device, device->side);
	}
	for (int i = 0; i < 2; i++) {
		zero_event_order(device, device->comm, summed[i]);
		zero_event_put(device, summed[i]);
	}
	return status;
}

/* What is there already goes in with the own part, and is added once. */
static zero_status by_nccl(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct zero_device *device = cuda->device;
	float *own = (float *)(uintptr_t)op->send + (size_t)cuda->comm.place.rank * op->count;
	const void *before = op->recv;
	zero_status status;

	if (op->accumulate)
		zero_launch_sum(device, device->comm, own, ZERO_F32, &before, 1, op->count, true);
	status = zero_nccl_begin(&cuda->nccl);
	if (status)
		return status;
	status = zero_nccl_status(zero_nccl.reduce_scatter(op->send, op->recv, op->count,
							   ncclFloat32, ncclSum, cuda->nccl.comm,
							   (cudaStream_t)device->comm),
				  "ncclReduceScatter", cuda->nccl.comm);
	cuda->comm.bytes_sent += op->count * sizeof(float) * (size_t)(cuda->comm.place.world - 1);
	return zero_nccl_end(&cuda->nccl, status);
}

zero_status zero_cuda_reduce_scatter(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	const void *own = op->send;

	if (exchanges(cuda, op))
		return by_exchange(cuda, op);
	if (cuda->comm.place.world > 1)
		return by_nccl(cuda, op);
	if (op->accumulate || op->from != ZERO_F32)
		zero_launch_sum(cuda->device, cuda->device->comm, op->recv, op->from, &own, 1,
				op->count, op->accumulate);
	else
		zero_cuda_copy(cuda, op->recv, op->send, op->count * sizeof(float));
	return ZERO_OK;
}

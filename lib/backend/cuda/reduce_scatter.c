/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter. ncclReduceScatter sums in an order of its choice, and rounds 16-bit values to 16
 * bits after each addition. Ranks of one node, and ranks with 16-bit values, therefore exchange:
 * each rank sends every owner its part in pieces, and the owner sums them in rank order in f32.
 * This sends as many bytes as a ring, and a piece is summed while the next is exchanged. Between
 * nodes NCCL's ring crosses the network once for each node, and an exchange once for each GPU, so
 * f32 is left to NCCL there unless the option asks for rank order.
 */
#include <stdlib.h>

#include "backend/exchange.h"
#include "gpu_comm.h"

/* ---- exchange buffers ------------------------------------------------------------------------ */

/* Tests exchange smaller pieces, so that small arrays have several. All ranks must do so. */
static size_t bytes_of_piece(size_t peers)
{
	const char *lower = getenv("ZERO_TEST_EXCHANGE_BYTES");
	size_t most = zero_exchange_piece(peers, true),
	       bytes = lower ? strtoul(lower, NULL, 10) : 0;

	return bytes >= sizeof(float) && bytes < most ? bytes : most;
}

/* Two sets of pieces, with one piece for each peer. */
zero_status zero_cuda_alloc_exchange_buffers(struct zero_cuda_comm *cuda)
{
	size_t peers = (size_t)cuda->comm.place.world - 1;
	zero_status status = ZERO_OK;

	if (!peers)
		return ZERO_OK;
	cuda->piece = bytes_of_piece(peers);
	for (int i = 0; !status && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_STAGING,
					   zero_exchange_piece(peers, true) * peers, false,
					   cuda->device->comm_stream, &cuda->staging[i]);
	return status;
}

void zero_cuda_free_exchange_buffers(struct zero_cuda_comm *cuda)
{
	for (int i = 0; i < 2; i++) {
		zero_memory_free(cuda->memory, cuda->staging[i], cuda->device->comm_stream);
		cuda->staging[i] = NULL;
	}
}

/* ---- by exchange ----------------------------------------------------------------------------- */

struct exchange {
	struct zero_cuda_comm *cuda;
	const struct zero_op *op;
	size_t size; /* of an element */
};

/* The peer's piece of that many bytes in a set of exchange buffers. */
static char *piece_of(const struct exchange *exchange, int set, int rank, size_t bytes)
{
	const struct zero_cuda_comm *cuda = exchange->cuda;
	size_t slot = (size_t)(rank < cuda->comm.place.rank ? rank : rank - 1);

	return (char *)cuda->staging[set] + slot * bytes;
}

static const char *part_of(const struct exchange *exchange, int rank, size_t at)
{
	return (const char *)exchange->op->send +
	       ((size_t)rank * exchange->op->count + at) * exchange->size;
}

/* Sends elements [at, at + count) of each rank's part to that rank, and receives its own. */
static zero_status exchange_piece(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	cudaStream_t stream = (cudaStream_t)cuda->device->comm_stream;
	size_t bytes = count * exchange->size;
	zero_status status = zero_nccl_group_begin(&cuda->nccl);

	if (status)
		return status;
	for (int rank = 0; !status && rank < cuda->comm.place.world; rank++) {
		if (rank == cuda->comm.place.rank)
			continue;
		status = zero_nccl_status(zero_nccl.send(part_of(exchange, rank, at), bytes,
							 ncclInt8, rank, cuda->nccl.comm, stream),
					  "ncclSend", cuda->nccl.comm);
		if (!status)
			status = zero_nccl_status(
				zero_nccl.recv(piece_of(exchange, set, rank, bytes), bytes,
					       ncclInt8, rank, cuda->nccl.comm, stream),
				"ncclRecv", cuda->nccl.comm);
		cuda->comm.bytes_sent += bytes;
	}
	return zero_nccl_group_end(&cuda->nccl, status);
}

static void sum_piece(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	const struct zero_op *op = exchange->op;
	struct zero_device_sum sum = {
		.out = (float *)op->recv + at,
		.own = part_of(exchange, cuda->comm.place.rank, at),
		.others = cuda->staging[set],
		.count = count,
		.n = cuda->comm.place.world,
		.own_at = cuda->comm.place.rank,
		.from = op->from,
		.accumulate = op->accumulate,
	};

	zero_launch_sum(cuda->device, cuda->device->sums_stream, &sum);
}

static zero_status reduce_by_exchange(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct exchange exchange = {
		.cuda = cuda, .op = op, .size = zero_core->dtype_size(op->from)};
	size_t piece = cuda->piece / exchange.size;
	struct zero_device *device = cuda->device;
	CUevent summed[2] = {NULL, NULL};
	zero_status status = ZERO_OK;
	int set = 0;

	for (size_t at = 0, now; !status && at < op->count; at += now, set = !set) {
		CUevent received;

		now = op->count - at < piece ? op->count - at : piece;
		/* The buffers are free when their previous pieces are summed. */
		zero_stream_wait(device, device->comm_stream, summed[set]);
		zero_event_put(device, summed[set]);
		summed[set] = NULL;
		status = exchange_piece(&exchange, set, at, now);
		received = zero_event_record(device, device->comm_stream);
		zero_stream_wait(device, device->sums_stream, received);
		zero_event_put(device, received);
		if (!status)
			sum_piece(&exchange, set, at, now);
		summed[set] = zero_event_record(device, device->sums_stream);
	}
	for (int i = 0; i < 2; i++) {
		zero_stream_wait(device, device->comm_stream, summed[i]);
		zero_event_put(device, summed[i]);
	}
	return status;
}

/* ---- by NCCL --------------------------------------------------------------------------------- */

/* To accumulate, this rank's part of the input gets the present sum added first. */
static zero_status reduce_by_nccl(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	struct zero_device *device = cuda->device;
	float *own = (float *)(uintptr_t)op->send + (size_t)cuda->comm.place.rank * op->count;
	const struct zero_device_sum before = {.out = own,
					       .own = op->recv,
					       .count = op->count,
					       .n = 1,
					       .from = ZERO_F32,
					       .accumulate = true};
	zero_status status;

	if (op->accumulate)
		zero_launch_sum(device, device->comm_stream, &before);
	status = zero_nccl_group_begin(&cuda->nccl);
	if (status)
		return status;
	status = zero_nccl_status(zero_nccl.reduce_scatter(op->send, op->recv, op->count,
							   ncclFloat32, ncclSum, cuda->nccl.comm,
							   (cudaStream_t)device->comm_stream),
				  "ncclReduceScatter", cuda->nccl.comm);
	cuda->comm.bytes_sent += op->count * sizeof(float) * (size_t)(cuda->comm.place.world - 1);
	return zero_nccl_group_end(&cuda->nccl, status);
}

static bool uses_exchange(const struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return cuda->comm.place.world > 1 && (cuda->ordered || op->from != ZERO_F32);
}

zero_status zero_cuda_reduce_scatter(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	const struct zero_device_sum only = {.out = op->recv,
					     .own = op->send,
					     .count = op->count,
					     .n = 1,
					     .from = op->from,
					     .accumulate = op->accumulate};

	if (uses_exchange(cuda, op))
		return reduce_by_exchange(cuda, op);
	if (cuda->comm.place.world > 1)
		return reduce_by_nccl(cuda, op);
	if (op->accumulate || op->from != ZERO_F32)
		zero_launch_sum(cuda->device, cuda->device->comm_stream, &only);
	else
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->recv, op->send,
				 op->count * sizeof(float));
	return ZERO_OK;
}

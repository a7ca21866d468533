/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter. ncclReduceScatter sums in an order of its choice, and rounds 16-bit values to 16
 * bits after each addition. Ranks of one node, and ranks with 16-bit values, therefore exchange
 * values and sum them in f32, as reduce_schedule.h says: first within each node, then one sum of
 * each node. Let there be N ranks, on nodes of L, and let a part be an owner's share of 16 bits.
 *
 *  - Within a node this sends as many bytes as a ring would. A rank sends 2 (N / L - 1) parts to
 *    other nodes, since a sum is of f32. If every rank sent its values to every owner it would be
 *    N - L parts, and if a ring summed in f32 as many as here, in N - 1 steps one after the other:
 *    with buffers of bounded size a step would be latency alone.
 *  - A rank has L - 1 + N / L - 1 peers. Messages are as long as the buffers allow: more than 1 MB
 *    with 8 ranks a node, or else all of a part.
 *
 * f32 that need not be ordered is left to NCCL between nodes: it sums in place, without buffers.
 */
#include <stdlib.h>

#include "backend/exchange.h"
#include "gpu_comm.h"

/* ---- exchange buffers ------------------------------------------------------------------------ */

static zero_status make_grid(struct zero_cuda_comm *cuda)
{
	const struct zero_comm *comm = &cuda->comm;
	uint64_t *nodes = calloc((size_t)comm->place.world, sizeof(*nodes));
	bool made;

	for (int rank = 0; nodes && rank < comm->place.world; rank++)
		nodes[rank] = cuda->first->nodes[zero_comm_job_rank(comm, rank)];
	made = nodes &&
	       zero_reduce_grid_new(nodes, comm->place.world, comm->place.rank, &cuda->grid);
	free(nodes);
	return made ? ZERO_OK
		    : zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks", comm->place.world);
}

/* Two sets of buffers: one is summed while the other is exchanged. */
zero_status zero_cuda_alloc_exchange_buffers(struct zero_cuda_comm *cuda)
{
	zero_status status;

	if (cuda->comm.place.world == 1)
		return ZERO_OK;
	status = make_grid(cuda);
	cuda->exchange_bytes = ZERO_EXCHANGE_SET;
	for (int i = 0; !status && i < 2; i++)
		status = zero_memory_alloc(cuda->memory, ZERO_MEM_STAGING, ZERO_EXCHANGE_SET, false,
					   cuda->device->comm_stream, &cuda->staging[i]);
	return status;
}

void zero_cuda_free_exchange_buffers(struct zero_cuda_comm *cuda)
{
	for (int i = 0; i < 2; i++) {
		zero_memory_free(cuda->memory, cuda->staging[i], cuda->device->comm_stream);
		cuda->staging[i] = NULL;
	}
	free(cuda->grid.ranks);
	cuda->grid.ranks = NULL;
}

/* ---- by exchange ----------------------------------------------------------------------------- */

struct exchange {
	struct zero_cuda_comm *cuda;
	const struct zero_reduce_grid *grid;
	const struct zero_op *op;
	size_t size; /* of an element */
	size_t unit; /* elements that a buffer holds of each peer */
	bool near, far;
	size_t lag; /* rounds by which what is far is behind what is near */
};

/* A round, with the set of buffers that it uses. */
struct round {
	struct zero_reduce_round is;
	char *near;   /* [distance][columns - 1][count] received from near */
	char *sums;   /* [distance][count] of f32, to be sent far */
	char *values; /* [distance][count] received from far: sums, or values if rows have one
			 rank */
};

static struct round round_of(const struct exchange *exchange, size_t index)
{
	size_t near = (size_t)(exchange->grid->columns - 1) * exchange->unit * exchange->size;
	size_t sums = exchange->near && exchange->far ? exchange->unit * sizeof(float) : 0;
	struct round round = {.is = zero_reduce_round(exchange->grid, exchange->op->count,
						      exchange->unit, index)};

	round.near = exchange->cuda->staging[index % 2];
	round.sums = round.near + near;
	round.values = round.sums + sums;
	return round;
}

static char *near_at(const struct exchange *exchange, const struct round *round, int distance,
		     int slot)
{
	size_t row = (size_t)(distance - round->is.first) * (size_t)(exchange->grid->columns - 1);

	return round->near + (row + (size_t)slot) * round->is.count * exchange->size;
}

/* Where values or sums of a distance are, in elements of `size` bytes. */
static void *far_at(char *buffer, const struct round *round, int distance, size_t size)
{
	return buffer + (size_t)(distance - round->is.first) * round->is.count * size;
}

/* This rank's values for an owner. */
static const char *part_of(const struct exchange *exchange, const struct round *round, int owner)
{
	return (const char *)exchange->op->send +
	       ((size_t)owner * exchange->op->count + round->is.at) * exchange->size;
}

static zero_status send_and_receive(const struct exchange *exchange, const void *send, int to,
				    void *recv, int from, size_t bytes)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	cudaStream_t stream = (cudaStream_t)cuda->device->comm_stream;
	zero_status status =
		zero_nccl_status(zero_nccl.send(send, bytes, ncclInt8, to, cuda->nccl.comm, stream),
				 "ncclSend", cuda->nccl.comm);

	if (!status)
		status = zero_nccl_status(
			zero_nccl.recv(recv, bytes, ncclInt8, from, cuda->nccl.comm, stream),
			"ncclRecv", cuda->nccl.comm);
	cuda->comm.bytes_sent += bytes;
	return status;
}

static zero_status exchange_near(const struct exchange *exchange, const struct round *round)
{
	const struct zero_reduce_grid *grid = exchange->grid;
	zero_status status = ZERO_OK;

	for (int distance = round->is.first; distance < round->is.end; distance++)
		for (int column = 0, slot = 0; !status && column < grid->columns; column++) {
			int peer = zero_reduce_peer(grid, 0, column);
			int owner = zero_reduce_peer(grid, distance, column);

			if (column == grid->column)
				continue;
			status = send_and_receive(exchange, part_of(exchange, round, owner), peer,
						  near_at(exchange, round, distance, slot++), peer,
						  round->is.count * exchange->size);
		}
	return status;
}

/* The first distance of a round that is far. */
static int first_far(const struct round *round)
{
	return round->is.first ? round->is.first : 1;
}

static size_t far_size(const struct exchange *exchange)
{
	return exchange->near ? sizeof(float) : exchange->size;
}

static zero_status exchange_far(const struct exchange *exchange, const struct round *round)
{
	const struct zero_reduce_grid *grid = exchange->grid;
	size_t size = far_size(exchange);
	zero_status status = ZERO_OK;

	for (int distance = first_far(round); !status && distance < round->is.end; distance++) {
		int to = zero_reduce_peer(grid, distance, grid->column);
		int from = zero_reduce_peer(grid, -distance, grid->column);

		status =
			send_and_receive(exchange,
					 exchange->near ? far_at(round->sums, round, distance, size)
							: part_of(exchange, round, to),
					 to, far_at(round->values, round, distance, size), from,
					 round->is.count * size);
	}
	return status;
}

/* Sums the row's values for its own owners into the output, and for others to send them far. */
static void sum_near(const struct exchange *exchange, const struct round *round)
{
	const struct zero_reduce_grid *grid = exchange->grid;
	struct zero_device *device = exchange->cuda->device;
	float *out = (float *)exchange->op->recv + round->is.at;

	for (int distance = round->is.first; distance < round->is.end; distance++) {
		int owner = zero_reduce_peer(grid, distance, grid->column);
		struct zero_device_sum sum = {
			.out = distance ? far_at(round->sums, round, distance, sizeof(float)) : out,
			.own = part_of(exchange, round, owner),
			.others = near_at(exchange, round, distance, 0),
			.count = round->is.count,
			.n = grid->columns,
			.own_at = grid->column,
			.from = exchange->op->from,
			.accumulate = !distance && exchange->op->accumulate,
		};

		if (!distance || exchange->near)
			zero_launch(device, device->sums_stream, ZERO_K_SUM, &sum);
	}
}

/* Adds to the output what came from far. The row's own sum is there already. */
static void add_far(const struct exchange *exchange, const struct round *round)
{
	struct zero_device *device = exchange->cuda->device;
	float *out = (float *)exchange->op->recv + round->is.at;
	int first = first_far(round), n = round->is.end - first;
	struct zero_device_sum sum = {
		.out = out,
		.first = out,
		.others = far_at(round->values, round, first, far_size(exchange)),
		.count = round->is.count,
		.n = n,
		.own_at = n,
		.from = exchange->near ? ZERO_F32 : exchange->op->from,
	};

	if (n > 0)
		zero_launch(device, device->sums_stream, ZERO_K_SUM, &sum);
}

/*
 * One iteration: a round near, and an earlier one far, in one group of NCCL. What is far is two
 * rounds behind where it needs the sums of what is near: it uses the same set of buffers, whose
 * sums were made while the other set was exchanged. `summed` is when the set was last read.
 */
static zero_status run_iteration(const struct exchange *exchange, size_t iteration, size_t rounds,
				 struct zero_event **summed)
{
	struct zero_cuda_comm *cuda = exchange->cuda;
	struct zero_device *device = cuda->device;
	bool near = iteration < rounds, far = exchange->far && iteration >= exchange->lag;
	struct round near_round = round_of(exchange, near ? iteration : 0);
	struct round far_round = round_of(exchange, far ? iteration - exchange->lag : 0);
	struct zero_event *received;
	zero_status status;

	if (!near && !far)
		return ZERO_OK;
	zero_stream_wait(device, device->comm_stream, *summed);
	zero_event_put(device, *summed);
	*summed = NULL;
	status = zero_nccl_group_begin(&cuda->nccl);
	if (status)
		return status;
	if (near)
		status = exchange_near(exchange, &near_round);
	if (!status && far)
		status = exchange_far(exchange, &far_round);
	status = zero_nccl_group_end(&cuda->nccl, status);
	received = zero_event_record(device, device->comm_stream);
	zero_stream_wait(device, device->sums_stream, received);
	zero_event_put(device, received);
	if (!status && near)
		sum_near(exchange, &near_round);
	if (!status && far)
		add_far(exchange, &far_round);
	*summed = zero_event_record(device, device->sums_stream);
	return status;
}

static zero_status reduce_by_exchange(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	const struct zero_reduce_grid *grid = &cuda->grid;
	struct exchange exchange = {
		.cuda = cuda,
		.grid = grid,
		.op = op,
		.size = zero_core->dtype_size(op->from),
		.near = grid->columns > 1,
		.far = grid->rows > 1,
	};
	struct zero_event *summed[2] = {NULL, NULL};
	zero_status status = ZERO_OK;
	size_t rounds;

	exchange.unit = zero_reduce_unit(grid, exchange.size, cuda->exchange_bytes);
	exchange.lag = exchange.near && exchange.far ? 2 : 0;
	rounds = zero_reduce_rounds(grid, op->count, exchange.unit);
	for (size_t iteration = 0; !status && rounds && iteration < rounds + exchange.lag;
	     iteration++)
		status = run_iteration(&exchange, iteration, rounds, &summed[iteration % 2]);
	for (int i = 0; i < 2; i++) {
		zero_stream_wait(cuda->device, cuda->device->comm_stream, summed[i]);
		zero_event_put(cuda->device, summed[i]);
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
		zero_launch(device, device->comm_stream, ZERO_K_SUM, &before);
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
		zero_launch(cuda->device, cuda->device->comm_stream, ZERO_K_SUM, &only);
	else
		zero_device_copy(cuda->device, cuda->device->comm_stream, op->recv, op->send,
				 op->count * sizeof(float));
	return ZERO_OK;
}

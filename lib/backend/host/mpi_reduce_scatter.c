/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter. A rank sums its own part of every rank's buffer, in rank order and in one pass.
 * It reads the buffers of ranks that share memory with it in place; other ranks send it its part
 * in pieces. MPI_Reduce_scatter may add in any order: with four ranks 38 % of elements had other
 * bits. It is also several times slower.
 */
#include <stdlib.h>

#include "backend/exchange.h"
#include "mpi_comm.h"

zero_status zero_mpi_reduce_open(struct zero_mpi_comm *mpi)
{
	size_t world = (size_t)mpi->comm.place.world;
	size_t remote = world - (size_t)mpi->node->world;

	mpi->requests = calloc(4 * world, sizeof(MPI_Request));
	mpi->summands = calloc(world, sizeof(*mpi->summands));
	if (!mpi->requests || !mpi->summands)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %zu ranks", world);
	if (!remote)
		return ZERO_OK;
	/* The same size on all ranks, so it follows from the smallest node. */
	mpi->piece = zero_exchange_piece(world - (size_t)mpi->comm.place.shm_world_min);
	for (int set = 0; set < 2; set++) {
		zero_status status =
			zero_pool_alloc(mpi->pool, ZERO_MEM_STAGING, mpi->piece * remote, false,
					(void **)&mpi->staging[set]);

		if (status)
			return status;
	}
	return ZERO_OK;
}

void zero_mpi_reduce_close(struct zero_mpi_comm *mpi)
{
	zero_pool_free(mpi->pool, mpi->staging[0]);
	zero_pool_free(mpi->pool, mpi->staging[1]);
	free(mpi->requests);
	free(mpi->summands);
}

/* One reduce-scatter. Offsets and counts are elements of a rank's part. */
struct exchange {
	struct zero_mpi_comm *mpi;
	const struct zero_op *op;
	size_t index; /* of the operation in its submission */
	size_t size;  /* bytes of an element */
};

static bool is_remote(const struct zero_mpi_comm *mpi, int peer)
{
	return mpi->node_of[peer] != mpi->node_of[mpi->comm.place.rank];
}

/* Where a peer's piece is in a staging buffer; there is one slot for each rank of other nodes. */
static char *slot(const struct exchange *exchange, int set, int peer)
{
	size_t before = 0;

	for (int rank = 0; rank < peer; rank++)
		before += is_remote(exchange->mpi, rank);
	return exchange->mpi->staging[set] + before * exchange->mpi->piece;
}

/* Begins the exchange of a piece. The first `world` requests of a set are receives, the others
   sends. */
static int post(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	int world = mpi->comm.place.world, rank = mpi->comm.place.rank, error = MPI_SUCCESS;
	MPI_Request *requests = mpi->requests + 2 * world * set;
	int bytes = (int)(count * exchange->size);

	/* Each rank begins with its neighbour, so that the first messages go to different ranks. */
	for (int step = 1; !error && step < world; step++) {
		int to = (rank + step) % world, from = (rank - step + world) % world;
		size_t part = (size_t)to * exchange->op->count + at;

		if (is_remote(mpi, from))
			error = MPI_Irecv(slot(exchange, set, from), bytes, MPI_BYTE, from, 1,
					  mpi->mpi_comm, &requests[from]);
		if (error || !is_remote(mpi, to))
			continue;
		error = MPI_Isend((const char *)exchange->op->send + part * exchange->size, bytes,
				  MPI_BYTE, to, 1, mpi->mpi_comm, &requests[world + to]);
		mpi->comm.bytes_sent += (size_t)bytes;
	}
	return error;
}

/* Where the peer's values of this rank's part are, from element `at` on. */
static const char *summand(const struct exchange *exchange, int peer, int set, size_t at)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	size_t part = (size_t)mpi->comm.place.rank * exchange->op->count + at;
	const char *buffer = exchange->op->send;

	if (peer != mpi->comm.place.rank && is_remote(mpi, peer))
		return slot(exchange, set, peer);
	if (peer != mpi->comm.place.rank)
		buffer = zero_node_data(
			mpi->node,
			zero_node_published(mpi->node, mpi->node_index[peer], exchange->index)
				->send);
	return buffer + part * exchange->size;
}

static void sum_piece(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	const struct zero_op *op = exchange->op;
	int world = mpi->comm.place.world;

	for (int rank = 0; rank < world; rank++)
		mpi->summands[rank] = summand(exchange, rank, set, at);
	mpi->kernels->sum((float *)op->recv + at, op->from, mpi->summands, world, count,
			  op->accumulate);
}

/* Each piece is exchanged while the one before it is summed. */
static int exchange_all(const struct exchange *exchange)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	size_t piece = mpi->piece / exchange->size, count = exchange->op->count;
	int world = mpi->comm.place.world, error;

	for (int i = 0; i < 4 * world; i++)
		mpi->requests[i] = MPI_REQUEST_NULL;
	error = post(exchange, 0, 0, count < piece ? count : piece);
	for (size_t at = 0, iteration = 0; !error && at < count; at += piece, iteration++) {
		size_t next = at + piece, now = count - at < piece ? count - at : piece;
		MPI_Request *requests = mpi->requests + (iteration % 2 ? 2 * world : 0);

		/* The other set is free: its piece was summed and its sends are complete. */
		if (next < count)
			error = post(exchange, (int)((iteration + 1) % 2), next,
				     count - next < piece ? count - next : piece);
		if (!error)
			error = MPI_Waitall(2 * world, requests, MPI_STATUSES_IGNORE);
		if (!error)
			sum_piece(exchange, (int)(iteration % 2), at, now);
	}
	return error;
}

zero_status zero_mpi_reduce_scatter(struct zero_mpi_comm *mpi, const struct zero_op *op,
				    size_t index)
{
	struct exchange exchange = {
		.mpi = mpi, .op = op, .index = index, .size = zero_core->dtype_size(op->from)};
	int error = MPI_SUCCESS;

	if (!op->count)
		return ZERO_OK;
	if (zero_all_share_memory(&mpi->comm.place))
		sum_piece(&exchange, 0, 0, op->count);
	else
		error = exchange_all(&exchange);
	return zero_mpi_status(error, "exchange of gradients");
}

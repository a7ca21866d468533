/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter: a rank sums its own part of every rank's buffer, in rank order and in one pass.
 * It reads the buffers of ranks that share memory with it where they are; of the others it is sent
 * its part in pieces. MPI_Reduce_scatter may fold in any order, and other bits were seen in 38 % of
 * elements at four ranks; it is also several times slower.
 */
#include <stdlib.h>

#include "backend/exchange.h"
#include "mpi_comm.h"

zero_status zero_reduce_open(struct zero_mpi_comm *mpi)
{
	size_t world = (size_t)mpi->comm.place.world;
	size_t apart = world - (size_t)mpi->node->world;

	mpi->requests = calloc(4 * world, sizeof(MPI_Request));
	mpi->summands = calloc(world, sizeof(*mpi->summands));
	if (!mpi->requests || !mpi->summands)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %zu ranks", world);
	if (!apart)
		return ZERO_OK;
	/* One size for all ranks, also for those of a larger node. */
	mpi->piece = zero_exchange_piece(world - (size_t)mpi->comm.place.share_least, false);
	for (int set = 0; set < 2; set++) {
		zero_status status =
			zero_pool_alloc(mpi->pool, ZERO_MEM_STAGING, mpi->piece * apart, false,
					(void **)&mpi->staging[set]);

		if (status)
			return status;
	}
	return ZERO_OK;
}

void zero_reduce_close(struct zero_mpi_comm *mpi)
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

static bool is_apart(const struct zero_mpi_comm *mpi, int peer)
{
	return mpi->node_of[peer] != mpi->node_of[mpi->comm.place.rank];
}

/* A peer's place in a set, in the order of those apart. */
static char *slot(const struct exchange *exchange, int set, int peer)
{
	size_t before = 0;

	for (int rank = 0; rank < peer; rank++)
		before += is_apart(exchange->mpi, rank);
	return exchange->mpi->staging[set] + before * exchange->mpi->piece;
}

/* Receives are the first `world` requests of a set, sends the second. */
static int post(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	int world = mpi->comm.place.world, rank = mpi->comm.place.rank, error = MPI_SUCCESS;
	MPI_Request *requests = mpi->requests + 2 * world * set;
	int bytes = (int)(count * exchange->size);

	/* Each begins with its next neighbour, so that no rank is everyone's first. */
	for (int step = 1; !error && step < world; step++) {
		int to = (rank + step) % world, from = (rank - step + world) % world;
		size_t part = (size_t)to * exchange->op->count + at;

		if (is_apart(mpi, from))
			error = MPI_Irecv(slot(exchange, set, from), bytes, MPI_BYTE, from, 1,
					  mpi->world, &requests[from]);
		if (error || !is_apart(mpi, to))
			continue;
		error = MPI_Isend((const char *)exchange->op->send + part * exchange->size, bytes,
				  MPI_BYTE, to, 1, mpi->world, &requests[world + to]);
		mpi->comm.bytes_sent += (size_t)bytes;
	}
	return error;
}

/* Where the elements of this rank's part from `at` on are, in the buffer of `peer`. */
static const char *summand(const struct exchange *exchange, int peer, int set, size_t at)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	size_t part = (size_t)mpi->comm.place.rank * exchange->op->count + at;
	const char *buffer = exchange->op->send;

	if (peer != mpi->comm.place.rank && is_apart(mpi, peer))
		return slot(exchange, set, peer);
	if (peer != mpi->comm.place.rank)
		buffer = zero_node_data(
			mpi->node,
			zero_node_published(mpi->node, mpi->node_index[peer], exchange->index)
				->send);
	return buffer + part * exchange->size;
}

static void fold(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	const struct zero_op *op = exchange->op;
	int world = mpi->comm.place.world;

	for (int rank = 0; rank < world; rank++)
		mpi->summands[rank] = summand(exchange, rank, set, at);
	mpi->kernels->sum((float *)op->recv + at, op->from, mpi->summands, world, count,
			  op->accumulate);
}

/* Pieces travel while those before them are summed. */
static int exchange_all(const struct exchange *exchange)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	size_t piece = mpi->piece / exchange->size, count = exchange->op->count;
	int world = mpi->comm.place.world, error;

	for (int i = 0; i < 4 * world; i++)
		mpi->requests[i] = MPI_REQUEST_NULL;
	error = post(exchange, 0, 0, count < piece ? count : piece);
	for (size_t at = 0, turn = 0; !error && at < count; at += piece, turn++) {
		size_t next = at + piece, now = count - at < piece ? count - at : piece;
		MPI_Request *requests = mpi->requests + (turn % 2 ? 2 * world : 0);

		/* The other set is free: its piece was folded, and its sends are waited for. */
		if (next < count)
			error = post(exchange, (int)((turn + 1) % 2), next,
				     count - next < piece ? count - next : piece);
		if (!error)
			error = MPI_Waitall(2 * world, requests, MPI_STATUSES_IGNORE);
		if (!error)
			fold(exchange, (int)(turn % 2), at, now);
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
	if (zero_place_one_node(&mpi->comm.place))
		fold(&exchange, 0, 0, op->count);
	else
		error = exchange_all(&exchange);
	return zero_mpi_status(error, "exchange of gradients");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter by pairwise exchange: each rank is sent its own part of every peer's buffer, in
 * pieces, and sums them in rank order in one pass. MPI_Reduce_scatter may fold in any order, and
 * other bits were seen in 38 % of elements at four ranks; it is also several times slower.
 */
#include <stdlib.h>
#include <string.h>

#include "mpi_comm.h"
#include "sizing.h"

zero_status zero_pairwise_open(struct zero_mpi_comm *mpi)
{
	size_t world = (size_t)mpi->comm.place.world, peers = world - 1;
	size_t bytes;

	mpi->requests = calloc(4 * world, sizeof(MPI_Request));
	mpi->summands = calloc(world, sizeof(float *));
	if (!mpi->requests || !mpi->summands)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %zu ranks", world);
	if (!peers)
		return ZERO_OK;
	bytes = zero_sizing_exchange_piece(peers);
	mpi->piece = bytes / sizeof(float);
	for (int set = 0; set < 2; set++) {
		zero_status status = zero_pool_alloc(mpi->pool, ZERO_MEM_STAGING, bytes * peers,
						     false, (void **)&mpi->staging[set]);

		if (status)
			return status;
	}
	return ZERO_OK;
}

void zero_pairwise_close(struct zero_mpi_comm *mpi)
{
	zero_pool_free(mpi->pool, mpi->staging[0]);
	zero_pool_free(mpi->pool, mpi->staging[1]);
	free(mpi->requests);
	free(mpi->summands);
}

/* One piece of the exchange: elements [at, at + count) of each rank's part. */
struct exchange {
	struct zero_mpi_comm *mpi;
	const float *send; /* [world][part] */
	size_t part;
};

/* A peer's place in a set; the own rank has none. */
static float *slot(const struct exchange *exchange, int set, int peer)
{
	int index = peer < exchange->mpi->comm.place.rank ? peer : peer - 1;

	return exchange->mpi->staging[set] + (size_t)index * exchange->mpi->piece;
}

/* Receives are the first `world` requests of a set, sends the second. */
static int post(const struct exchange *exchange, int set, size_t at, size_t count)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	int world = mpi->comm.place.world, rank = mpi->comm.place.rank, error = MPI_SUCCESS;
	MPI_Request *requests = mpi->requests + 2 * world * set;

	/* Each begins with its next neighbour, so that no rank is everyone's first. */
	for (int step = 1; !error && step < world; step++) {
		int to = (rank + step) % world, from = (rank - step + world) % world;

		error = MPI_Irecv(slot(exchange, set, from), (int)count, MPI_FLOAT, from, 1,
				  mpi->world, &requests[from]);
		if (!error)
			error = MPI_Isend(exchange->send + (size_t)to * exchange->part + at,
					  (int)count, MPI_FLOAT, to, 1, mpi->world,
					  &requests[world + to]);
		mpi->comm.bytes_sent += count * sizeof(float);
	}
	return error;
}

static void fold(const struct exchange *exchange, int set, float *recv, size_t at, size_t count,
		 bool accumulate)
{
	struct zero_mpi_comm *mpi = exchange->mpi;
	int world = mpi->comm.place.world, own = mpi->comm.place.rank;

	for (int rank = 0; rank < world; rank++)
		mpi->summands[rank] = rank == own
					      ? exchange->send + (size_t)own * exchange->part + at
					      : slot(exchange, set, rank);
	mpi->kernels->sum(recv + at, ZERO_F32, (const void *const *)mpi->summands, world, count,
			  accumulate);
}

zero_status zero_pairwise_reduce_scatter(struct zero_comm *comm, const float *send, float *recv,
					 size_t count, bool accumulate)
{
	struct zero_mpi_comm *mpi = (struct zero_mpi_comm *)comm;
	struct exchange exchange = {.mpi = mpi, .send = send, .part = count};
	int world = comm->place.world, error = MPI_SUCCESS;
	size_t piece = mpi->piece ? mpi->piece : count;

	for (int i = 0; i < 4 * world; i++)
		mpi->requests[i] = MPI_REQUEST_NULL;
	if (count)
		error = post(&exchange, 0, 0, count < piece ? count : piece);
	for (size_t at = 0, turn = 0; !error && at < count; at += piece, turn++) {
		size_t next = at + piece, now = count - at < piece ? count - at : piece;
		MPI_Request *requests = mpi->requests + (turn % 2 ? 2 * world : 0);

		/* The other set is free: its piece was folded, and its sends are waited for. */
		if (next < count)
			error = post(&exchange, (int)((turn + 1) % 2), next,
				     count - next < piece ? count - next : piece);
		if (!error)
			error = MPI_Waitall(2 * world, requests, MPI_STATUSES_IGNORE);
		if (!error)
			fold(&exchange, (int)(turn % 2), recv, at, now, accumulate);
	}
	return zero_mpi_status(error, "exchange of gradients");
}

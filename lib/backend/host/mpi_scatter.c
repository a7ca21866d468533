/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scatter, of several buffers at once whose roots may be different ranks, and broadcast. Ranks that
 * share memory with a root read their slices from its buffer, all at the same time. Where the
 * system forbids such reads, the root writes into their memory. To other ranks it sends messages,
 * piece by piece.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "mpi_comm.h"

/* For each operation and pair of ranks, two pieces are under way at a time. */
struct scatters {
	struct zero_mpi_comm *mpi;
	const struct zero_op *ops;
	size_t count, index;
	MPI_Request *requests; /* [2][count][world] */
	zero_status status;    /* of reading from a root */
};

static size_t slice_length(const struct zero_op *op, int rank)
{
	return zero_op_slice(op, rank + 1) - zero_op_slice(op, rank);
}

/* The bytes of the piece of a rank's slice that begins at element `at` of the slice. */
static size_t piece_bytes(const struct zero_op *op, int rank, size_t at, size_t piece)
{
	size_t count = slice_length(op, rank);

	if (at >= count)
		return 0;
	return (count - at < piece ? count - at : piece) * zero_core->dtype_size(op->from);
}

static size_t longest_slice(const struct zero_op *op, int world)
{
	size_t longest = 0;

	for (int rank = 0; rank < world; rank++)
		if (slice_length(op, rank) > longest)
			longest = slice_length(op, rank);
	return longest;
}

static size_t piece_elements(const struct zero_op *op)
{
	size_t most = ZERO_MESSAGE_MAX / zero_core->dtype_size(op->from);

	return op->piece < most ? op->piece : most;
}

static bool shares_memory(const struct zero_mpi_comm *mpi, int rank)
{
	return mpi->node->world > 1 && mpi->node_of[rank] == mpi->node_of[mpi->comm.place.rank];
}

/* Where a peer wants its slice, if it shares memory and that is in an arena; else NULL. */
static char *peer_slice(const struct zero_mpi_comm *mpi, int rank, size_t index)
{
	zero_address at;

	if (!shares_memory(mpi, rank))
		return NULL;
	at = zero_node_published(mpi->node, mpi->node_index[rank], index)->recv;
	return at ? zero_node_data(mpi->node, at) : NULL;
}

/* Maps the pages of a peer's memory at once: faults one by one would cost as much as the copy. */
static void populate(char *data, size_t bytes)
{
#ifdef MADV_POPULATE_READ
	uintptr_t from = (uintptr_t)data / ZERO_ARENA_PAGE * ZERO_ARENA_PAGE;

	madvise((void *)from, (uintptr_t)data + bytes - from, MADV_POPULATE_READ);
#else
	(void)data;
	(void)bytes;
#endif
}

/* Whether a rank gets its slice by a copy, without a message. */
static bool is_copied(const struct scatters *all, size_t i, int rank)
{
	return shares_memory(all->mpi, rank) &&
	       (zero_node_can_read(all->mpi->node) || peer_slice(all->mpi, rank, all->index + i));
}

/* The root's part of one piece: in each slice, the elements from `at` on. */
static int send_piece(const struct scatters *all, size_t i, size_t at, MPI_Request *requests)
{
	struct zero_mpi_comm *mpi = all->mpi;
	const struct zero_op *op = &all->ops[i];
	size_t size = zero_core->dtype_size(op->from), piece = piece_elements(op);
	int world = mpi->comm.place.world, root = op->root, error = MPI_SUCCESS;

	/* Messages are begun first, so that they travel while the rest is copied. */
	for (int rank = 0; !error && rank < world; rank++) {
		size_t bytes = piece_bytes(op, rank, at, piece);

		if (rank == root || !bytes || is_copied(all, i, rank))
			continue;
		error = MPI_Isend((const char *)op->send + (zero_op_slice(op, rank) + at) * size,
				  (int)bytes, MPI_BYTE, rank, 0, mpi->mpi_comm, &requests[rank]);
		mpi->comm.bytes_sent += bytes;
	}
	for (int rank = 0; rank < world; rank++) {
		size_t bytes = piece_bytes(op, rank, at, piece);
		char *to = rank == root ? op->recv : peer_slice(mpi, rank, all->index + i);

		if (!bytes || !to)
			continue;
		to += at * size;
		if (rank != root)
			mpi->comm.bytes_sent += bytes;
		/* The peer reads it by itself. */
		if (rank != root && zero_node_can_read(mpi->node))
			continue;
		if (rank != root)
			populate(to, bytes);
		memcpy(to, (const char *)op->send + (zero_op_slice(op, rank) + at) * size, bytes);
	}
	return error;
}

/* A receiving rank's part of one piece. */
static int receive_piece(struct scatters *all, size_t i, size_t at, MPI_Request *request)
{
	struct zero_mpi_comm *mpi = all->mpi;
	const struct zero_op *op = &all->ops[i];
	int rank = mpi->comm.place.rank;
	size_t size = zero_core->dtype_size(op->from);
	size_t bytes = piece_bytes(op, rank, at, piece_elements(op));

	if (!bytes)
		return MPI_SUCCESS;
	if (shares_memory(mpi, op->root) && zero_node_can_read(mpi->node) && !all->status) {
		int root = mpi->node_index[op->root];
		const char *source = zero_node_published(mpi->node, root, all->index + i)->source;

		all->status = zero_node_read(mpi->node, root, (char *)op->recv + at * size,
					     source + (zero_op_slice(op, rank) + at) * size, bytes);
	}
	/* It was read, or the root writes it. */
	if (shares_memory(mpi, op->root) && is_copied(all, i, rank))
		return MPI_SUCCESS;
	return MPI_Irecv((char *)op->recv + at * size, (int)bytes, MPI_BYTE, op->root, 0,
			 mpi->mpi_comm, request);
}

/* Begins piece number `iteration` of every operation, after piece iteration - 2 is done. */
static int next_pieces(struct scatters *all, size_t iteration, bool *more)
{
	int world = all->mpi->comm.place.world, error = MPI_SUCCESS;

	*more = false;
	for (size_t i = 0; !error && i < all->count; i++) {
		const struct zero_op *op = &all->ops[i];
		size_t at = iteration * piece_elements(op);
		MPI_Request *requests =
			all->requests + (iteration % 2 * all->count + i) * (size_t)world;

		if (at >= longest_slice(op, world))
			continue;
		*more = true;
		error = MPI_Waitall(world, requests, MPI_STATUSES_IGNORE);
		if (!error && op->root == all->mpi->comm.place.rank)
			error = send_piece(all, i, at, requests);
		else if (!error)
			error = receive_piece(all, i, at, &requests[op->root]);
	}
	return error;
}

zero_status zero_mpi_scatter(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			     size_t index)
{
	size_t requests = 2 * count * (size_t)mpi->comm.place.world;
	struct scatters all = {.mpi = mpi, .ops = ops, .count = count, .index = index};
	int error = MPI_SUCCESS;
	bool more = true;

	all.requests = calloc(requests, sizeof(MPI_Request));
	if (!all.requests)
		return zero_core->fail(ZERO_E_COMM, "no memory for %zu messages", requests);
	for (size_t i = 0; i < requests; i++)
		all.requests[i] = MPI_REQUEST_NULL;
	for (size_t iteration = 0; !error && more; iteration++)
		error = next_pieces(&all, iteration, &more);
	if (!error)
		error = MPI_Waitall((int)requests, all.requests, MPI_STATUSES_IGNORE);
	free(all.requests);
	return error ? zero_mpi_status(error, "scatter") : all.status;
}

static int broadcast_by_mpi(struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	size_t size = zero_core->dtype_size(op->from), bytes = op->count * size;
	size_t piece = piece_elements(op) * size;
	bool root = mpi->comm.place.rank == op->root;
	int error = MPI_SUCCESS;

	for (size_t at = 0; !error && at < bytes; at += piece) {
		size_t now = bytes - at < piece ? bytes - at : piece;

		if (root && op->recv != op->send)
			memcpy((char *)op->recv + at, (const char *)op->send + at, now);
		error = MPI_Bcast((char *)op->recv + at, (int)now, MPI_BYTE, op->root,
				  mpi->mpi_comm);
	}
	return error;
}

zero_status zero_mpi_broadcast(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index)
{
	size_t bytes = op->count * zero_core->dtype_size(op->from);
	bool root = mpi->comm.place.rank == op->root;

	if (root)
		mpi->comm.bytes_sent += bytes * (size_t)(mpi->comm.place.world - 1);
	if (!zero_all_share_memory(&mpi->comm.place) || !zero_node_can_read(mpi->node))
		return zero_mpi_status(broadcast_by_mpi(mpi, op), "MPI_Bcast");
	if (!root)
		return zero_node_read(
			mpi->node, mpi->node_index[op->root], op->recv,
			zero_node_published(mpi->node, mpi->node_index[op->root], index)->source,
			bytes);
	if (op->recv != op->send && bytes)
		memcpy(op->recv, op->send, bytes);
	return ZERO_OK;
}

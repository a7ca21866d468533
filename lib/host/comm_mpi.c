/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives by MPI. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_comm.h"

static struct zero_mpi_comm *of(struct zero_comm *comm)
{
	return (struct zero_mpi_comm *)comm;
}

/* ---- agreement ------------------------------------------------------------------------------- */

/*
 * Waits for peers that may be late by seconds. MPI's own waiting takes a whole core, which the
 * program's compute needs: after a short while this sleeps between looks.
 */
static int wait_idly(MPI_Request *request)
{
	struct timespec pause = {0, 2000};
	int done = 0, error = MPI_SUCCESS;

	for (int look = 0; !error && !done; look++) {
		error = MPI_Test(request, &done, MPI_STATUS_IGNORE);
		if (done || look < 200)
			continue;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 100000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	return error;
}

struct zero_shown_intent {
	char label[160];
	uint64_t hash;
};

/* All ranks know that they differ: who does what? */
static zero_status explain_order(struct zero_mpi_comm *mpi, const struct zero_intent *intent,
				 char *text, size_t size, int *rank)
{
	size_t world = (size_t)mpi->comm.place.world, other = 1;
	struct zero_shown_intent mine = {.hash = intent->hash}, *all = mpi->shown;
	int error;

	snprintf(mine.label, sizeof(mine.label), "%s", intent->label);
	error = MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, all, sizeof(mine), MPI_BYTE,
			      mpi->world);
	if (error)
		return zero_mpi_status(error, "MPI_Allgather");
	while (other < world - 1 && all[other].hash == all[0].hash)
		other++;
	*rank = (int)other;
	if (!strcmp(all[0].label, all[other].label))
		snprintf(text, size,
			 "rank 0 and rank %zu both began '%s', but with other sizes, types or "
			 "values: all "
			 "ranks must make the same groups and parameters and call the same "
			 "functions in the same order",
			 other, all[0].label);
	else
		snprintf(text, size,
			 "rank 0 began '%s' while rank %zu began '%s': all ranks must begin the "
			 "same operations in the same order",
			 all[0].label, other, all[other].label);
	return ZERO_E_ORDER;
}

/* The lowest rank with an error, *rank, tells it to all; *rank is then where it arose. */
static zero_status share_error(struct zero_mpi_comm *mpi, const struct zero_intent *intent,
			       int *rank, zero_status status, char *text, size_t size)
{
	struct {
		int rank;
		char text[1024];
	} told = {.rank = *rank};
	int error;

	if (mpi->comm.place.rank == *rank && intent->error_rank >= 0) {
		told.rank = intent->error_rank;
		snprintf(told.text, sizeof(told.text), "%s", intent->error);
	} else if (mpi->comm.place.rank == *rank) {
		snprintf(told.text, sizeof(told.text), "rank %d (%s): %s", *rank,
			 mpi->comm.place.node, intent->error);
	}
	error = MPI_Bcast(&told, sizeof(told), MPI_BYTE, *rank, mpi->world);
	if (error)
		return zero_mpi_status(error, "MPI_Bcast");
	*rank = told.rank;
	snprintf(text, size, "%s", told.text);
	return status;
}

static zero_status mpi_agree(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank)
{
	enum { HASH, UNHASH, ERROR, FIELDS };
	struct zero_mpi_comm *mpi = of(comm);
	/* Maxima: hashes are equal if the largest is the smallest; the lowest rank's error wins. */
	uint64_t mine[FIELDS] = {intent->hash, ~intent->hash, 0}, all[FIELDS];
	MPI_Request request;
	zero_status status;
	int error;

	if (intent->status)
		mine[ERROR] = (uint64_t)(comm->place.world - comm->place.rank) << 8 |
			      ((uint64_t)intent->status & 0xff);
	error = MPI_Iallreduce(mine, all, FIELDS, MPI_UINT64_T, MPI_MAX, mpi->world, &request);
	if (!error)
		error = wait_idly(&request);
	status = zero_mpi_status(error, "MPI_Iallreduce");
	if (!status && all[ERROR]) {
		*rank = comm->place.world - (int)(all[ERROR] >> 8);
		return share_error(mpi, intent, rank, (zero_status)(all[ERROR] & 0xff), text, size);
	}
	if (!status && all[HASH] != ~all[UNHASH])
		return explain_order(mpi, intent, text, size, rank);
	if (status)
		snprintf(text, size, "%s: %s", intent->label, zero_core->last_error());
	return status;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static zero_status mpi_all_gather(struct zero_comm *comm, const void *send, void *recv,
				  size_t bytes)
{
	struct zero_mpi_comm *mpi = of(comm);
	const char *own = (const char *)recv + bytes * (size_t)comm->place.rank;
	const void *from = send == own ? MPI_IN_PLACE : send;
	MPI_Datatype unit = MPI_BYTE;
	size_t count = bytes;
	int error;

	if (!bytes)
		return ZERO_OK;
	/* Shards are multiples of 64 elements; counting those keeps MPI's int long enough. */
	if (bytes > ZERO_MESSAGE_MAX) {
		if (bytes % 64 || bytes / 64 > INT_MAX)
			return zero_core->fail(
				ZERO_E_UNSUPPORTED,
				"%zu bytes a rank are more than MPI gathers at once: "
				"use more ranks, or smaller groups",
				bytes);
		count = bytes / 64;
		error = MPI_Type_contiguous(64, MPI_BYTE, &unit);
		if (!error)
			error = MPI_Type_commit(&unit);
		if (error)
			return zero_mpi_status(error, "MPI_Type_contiguous");
	}
	error = MPI_Allgather(from, (int)count, unit, recv, (int)count, unit, mpi->world);
	if (unit != MPI_BYTE)
		MPI_Type_free(&unit);
	return zero_mpi_status(error, "MPI_Allgather");
}

/* What the root sends to one rank, from byte `at` of that rank's slice on. */
static size_t piece_bytes(const size_t *bounds, size_t unit, int rank, size_t at, size_t piece)
{
	size_t bytes = (bounds[rank + 1] - bounds[rank]) * unit;

	if (at >= bytes)
		return 0;
	return bytes - at < piece ? bytes - at : piece;
}

static size_t longest_slice(const size_t *bounds, size_t unit, int world)
{
	size_t longest = 0;

	for (int rank = 0; rank < world; rank++)
		if ((bounds[rank + 1] - bounds[rank]) * unit > longest)
			longest = (bounds[rank + 1] - bounds[rank]) * unit;
	return longest;
}

/*
 * The root goes over all slices at once, piece by piece, so that all ranks receive from the
 * begin; two pieces a rank are under way, and its own slice is copied while they are.
 */
static int scatter_root(struct zero_mpi_comm *mpi, const char *send, char *recv,
			const size_t *bounds, size_t unit, size_t piece)
{
	int world = mpi->comm.place.world, root = mpi->comm.place.rank, error = MPI_SUCCESS;
	size_t end = longest_slice(bounds, unit, world);
	MPI_Request *half[2] = {mpi->requests, mpi->requests + world};

	for (int i = 0; i < 2 * world; i++)
		mpi->requests[i] = MPI_REQUEST_NULL;
	for (size_t at = 0, turn = 0; !error && at < end; at += piece, turn++) {
		MPI_Request *requests = half[turn % 2];

		error = MPI_Waitall(world, requests, MPI_STATUSES_IGNORE);
		for (int rank = 0; !error && rank < world; rank++) {
			size_t bytes = piece_bytes(bounds, unit, rank, at, piece);

			if (rank == root || !bytes)
				continue;
			error = MPI_Isend(send + bounds[rank] * unit + at, (int)bytes, MPI_BYTE,
					  rank, 0, mpi->world, &requests[rank]);
			mpi->comm.bytes_sent += bytes;
		}
		if (piece_bytes(bounds, unit, root, at, piece))
			memcpy(recv + at, send + bounds[root] * unit + at,
			       piece_bytes(bounds, unit, root, at, piece));
	}
	if (!error)
		error = MPI_Waitall(2 * world, mpi->requests, MPI_STATUSES_IGNORE);
	return error;
}

static int scatter_other(struct zero_mpi_comm *mpi, int root, char *recv, const size_t *bounds,
			 size_t unit, size_t piece)
{
	MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
	int rank = mpi->comm.place.rank, error = MPI_SUCCESS;
	size_t bytes = 1;

	for (size_t at = 0, turn = 0; !error && bytes; at += piece, turn++) {
		error = MPI_Wait(&requests[turn % 2], MPI_STATUS_IGNORE);
		bytes = piece_bytes(bounds, unit, rank, at, piece);
		if (!error && bytes)
			error = MPI_Irecv(recv + at, (int)bytes, MPI_BYTE, root, 0, mpi->world,
					  &requests[turn % 2]);
	}
	if (!error)
		error = MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	return error;
}

static size_t limit_piece(size_t piece, size_t unit)
{
	if (piece > ZERO_MESSAGE_MAX)
		piece = ZERO_MESSAGE_MAX / unit * unit;
	return piece;
}

static zero_status mpi_scatter(struct zero_comm *comm, int root, const char *send, char *recv,
			       const size_t *bounds, size_t unit, size_t piece)
{
	struct zero_mpi_comm *mpi = of(comm);
	int error;

	piece = limit_piece(piece, unit);
	if (comm->place.rank == root)
		error = scatter_root(mpi, send, recv, bounds, unit, piece);
	else
		error = scatter_other(mpi, root, recv, bounds, unit, piece);
	return zero_mpi_status(error, "scatter");
}

static zero_status mpi_broadcast(struct zero_comm *comm, int root, const char *send, char *recv,
				 size_t bytes, size_t piece)
{
	struct zero_mpi_comm *mpi = of(comm);
	int error = MPI_SUCCESS;

	piece = limit_piece(piece, 1);
	for (size_t at = 0; !error && at < bytes; at += piece) {
		size_t now = bytes - at < piece ? bytes - at : piece;

		if (comm->place.rank == root)
			memcpy(recv + at, send + at, now);
		error = MPI_Bcast(recv + at, (int)now, MPI_BYTE, root, mpi->world);
	}
	if (comm->place.rank == root)
		comm->bytes_sent += bytes * (size_t)(comm->place.world - 1);
	return zero_mpi_status(error, "MPI_Bcast");
}

static void mpi_close(struct zero_comm *comm)
{
	zero_pairwise_close(of(comm));
	free(of(comm)->shown);
	zero_mpi_users -= of(comm)->world != MPI_COMM_NULL;
	free(comm);
}

static const struct zero_comm_ops mpi_ops = {
	.close = mpi_close,
	.agree = mpi_agree,
	.all_gather = mpi_all_gather,
	.reduce_scatter = zero_pairwise_reduce_scatter,
	.scatter = mpi_scatter,
	.broadcast = mpi_broadcast,
};

zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool,
			  struct zero_comm **comm)
{
	struct zero_mpi_comm *mpi = calloc(1, sizeof(*mpi));
	zero_status status;

	*comm = NULL;
	if (!mpi)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a communicator");
	mpi->comm.ops = &mpi_ops;
	mpi->kernels = kernels;
	mpi->pool = pool;
	mpi->world = MPI_COMM_NULL;
	status = zero_mpi_world(&mpi->world, &mpi->comm);
	if (status || mpi->world == MPI_COMM_NULL) {
		mpi_close(&mpi->comm);
		return status;
	}
	zero_mpi_users++;
	*comm = &mpi->comm;
	mpi->shown = calloc((size_t)mpi->comm.place.world, sizeof(*mpi->shown));
	if (!mpi->shown)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for %d ranks",
				       mpi->comm.place.world);
	return zero_pairwise_open(mpi);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather, in one of three ways.
 *
 * A buffer that the ranks of a node share is filled by them together. Each copies its own part into
 * it, and each part of another node arrives once, at one of the node's ranks.
 *
 * A buffer of a rank's own is copied from the peers' buffers if all ranks share memory.
 *
 * All else is MPI_Allgather.
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "mpi_comm.h"

static int all_gather_by_mpi(struct zero_mpi_comm *mpi, const void *send, void *recv, size_t bytes)
{
	const char *own = (const char *)recv + bytes * (size_t)mpi->comm.place.rank;
	const void *from = send == own ? MPI_IN_PLACE : send;
	MPI_Datatype unit = MPI_BYTE;
	size_t count = bytes;
	int error = MPI_SUCCESS;

	/* Shards are multiples of 256 elements. In units of 64 bytes the count fits MPI's int. */
	if (bytes > ZERO_MESSAGE_MAX) {
		count = bytes / 64;
		error = MPI_Type_contiguous(64, MPI_BYTE, &unit);
		if (!error)
			error = MPI_Type_commit(&unit);
	}
	if (!error)
		error = MPI_Allgather(from, (int)count, unit, recv, (int)count, unit,
				      mpi->mpi_comm);
	if (unit != MPI_BYTE)
		MPI_Type_free(&unit);
	return error;
}

zero_status zero_mpi_allgather_bytes(struct zero_mpi_comm *mpi, const void *send, void *recv,
				     size_t bytes)
{
	if (!bytes)
		return ZERO_OK;
	if (bytes > ZERO_MESSAGE_MAX)
		return zero_core->fail(ZERO_E_UNSUPPORTED,
				       "%zu bytes a rank are too many to be exchanged", bytes);
	return zero_mpi_status(all_gather_by_mpi(mpi, send, recv, bytes), "MPI_Allgather");
}

/* The rank of the node (known by its first rank) that receives what `rank` sends to the node. */
static int receiver(const struct zero_mpi_comm *mpi, int rank, int node_first, int node_world)
{
	int behind = mpi->node_index[rank] % node_world, at = node_first;

	for (; at < mpi->comm.place.world; at++)
		if (mpi->node_of[at] == node_first && behind-- == 0)
			break;
	return at;
}

static int node_world(const struct zero_mpi_comm *mpi, int node_first)
{
	int ranks = 0;

	for (int rank = node_first; rank < mpi->comm.place.world; rank++)
		ranks += mpi->node_of[rank] == node_first;
	return ranks;
}

struct slots {
	struct zero_mpi_comm *mpi;
	char *recv;   /* [world][bytes] */
	size_t bytes; /* of one rank's */
	MPI_Request *requests;
	size_t count;
};

static int post(struct slots *slots, int rank, int peer, bool sends)
{
	char *slot = slots->recv + slots->bytes * (size_t)rank;
	int error = MPI_SUCCESS;

	for (size_t at = 0; !error && at < slots->bytes; at += ZERO_MESSAGE_MAX) {
		size_t rest = slots->bytes - at;
		int now = (int)(rest < ZERO_MESSAGE_MAX ? rest : ZERO_MESSAGE_MAX);
		MPI_Request *request = &slots->requests[slots->count++];

		*request = MPI_REQUEST_NULL;
		if (sends)
			error = MPI_Isend(slot + at, now, MPI_BYTE, peer, 2, slots->mpi->mpi_comm,
					  request);
		else
			error = MPI_Irecv(slot + at, now, MPI_BYTE, peer, 2, slots->mpi->mpi_comm,
					  request);
	}
	if (sends)
		slots->mpi->comm.bytes_sent += slots->bytes;
	return error;
}

/* Sends this rank's part to each other node once, and receives this rank's share of theirs. */
static int between_nodes(struct zero_mpi_comm *mpi, char *recv, size_t bytes)
{
	int world = mpi->comm.place.world, own = mpi->comm.place.rank, error = MPI_SUCCESS;
	size_t pieces = bytes / ZERO_MESSAGE_MAX + 1;
	struct slots slots = {.mpi = mpi, .recv = recv, .bytes = bytes};

	slots.requests = calloc(2 * (size_t)world * pieces, sizeof(MPI_Request));
	if (!slots.requests)
		return MPI_ERR_NO_MEM;
	for (int rank = 0; !error && rank < world; rank++)
		if (mpi->node_of[rank] != mpi->node_of[own] &&
		    receiver(mpi, rank, mpi->node_of[own], mpi->node->world) == own)
			error = post(&slots, rank, rank, false);
	/* Each rank begins with the next node, so that the first messages go to different ones. */
	for (int step = 1; !error && step < world; step++) {
		int first = (own + step) % world;

		if (mpi->node_of[first] == first && first != mpi->node_of[own])
			error = post(&slots, own, receiver(mpi, own, first, node_world(mpi, first)),
				     true);
	}
	if (!error)
		error = MPI_Waitall((int)slots.count, slots.requests, MPI_STATUSES_IGNORE);
	free(slots.requests);
	return error;
}

/* Fills a rank's own buffer from those of its peers; all ranks share memory. */
static void copy_from_peers(struct zero_mpi_comm *mpi, char *recv, size_t bytes, size_t index)
{
	int world = mpi->node->world, own = mpi->node->rank;

	for (int step = 1; step < world; step++) {
		int peer = (own + step) % world;
		const char *theirs = zero_node_data(
			mpi->node, zero_node_published(mpi->node, peer, index)->recv);

		memcpy(recv + bytes * (size_t)peer, theirs + bytes * (size_t)peer, bytes);
	}
	/* This rank reads as many bytes as it would have sent. */
	mpi->comm.bytes_sent += bytes * (size_t)(world - 1);
}

/* Whether all ranks share memory and have published where their buffers are. */
static bool peers_are_known(const struct zero_mpi_comm *mpi, size_t index)
{
	if (mpi->node->world == 1 || !zero_all_share_memory(&mpi->comm.place))
		return false;
	for (int rank = 0; rank < mpi->node->world; rank++)
		if (!zero_node_published(mpi->node, rank, index)->recv)
			return false;
	return true;
}

bool zero_mpi_all_gather_has_barrier(const struct zero_mpi_comm *mpi, const struct zero_op *op,
				     size_t index)
{
	return op->kind == ZERO_OP_ALL_GATHER && op->count && !op->shared &&
	       peers_are_known(mpi, index);
}

zero_status zero_mpi_all_gather(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index)
{
	size_t bytes = op->count * zero_core->dtype_size(op->to);
	char *recv = op->shared ? zero_shared_base(op->shared) + op->at : op->recv;
	char *own = recv + bytes * (size_t)mpi->comm.place.rank;
	bool no_sharing = mpi->comm.place.shm_groups == mpi->comm.place.world;
	bool by_copy = zero_mpi_all_gather_has_barrier(mpi, op, index);
	int error = MPI_SUCCESS;

	if (!bytes)
		return ZERO_OK;
	if (op->from != op->to)
		mpi->kernels->cast(op->to, own, op->from, op->send, op->count);
	else if (op->send != own && (op->shared || by_copy) && !no_sharing)
		memcpy(own, op->send, bytes);
	if (op->shared && !no_sharing) {
		error = between_nodes(mpi, recv, bytes);
	} else if (by_copy) {
		/* After this all ranks have copied their own part. */
		zero_node_barrier(mpi->node);
		copy_from_peers(mpi, recv, bytes, index);
	} else {
		if (bytes / 64 > INT_MAX)
			return zero_core->fail(ZERO_E_UNSUPPORTED,
					       "%zu bytes a rank are more than MPI gathers at "
					       "once: use more ranks, or smaller groups",
					       bytes);
		mpi->comm.bytes_sent += bytes * (size_t)(mpi->comm.place.world - 1);
		error = all_gather_by_mpi(mpi, op->from == op->to ? op->send : own, recv, bytes);
	}
	return zero_mpi_status(error, "gathering");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks find out, before any data moves, that they are about to do the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mpi_comm.h"

/*
 * Waits for peers that may be late by seconds, until one of the requests is done: *index, or
 * MPI_UNDEFINED if none is left. MPI's own waiting takes a whole core, which the program's compute
 * needs: after a short while this sleeps between looks.
 */
static int wait_idly(MPI_Request *requests, int count, int *index)
{
	struct timespec pause = {0, 2000};
	int done = 0, error = MPI_SUCCESS;

	for (int look = 0; !error && !done; look++) {
		error = MPI_Testany(count, requests, index, &done, MPI_STATUS_IGNORE);
		if (done || look < 200)
			continue;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 100000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	return error;
}

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
	*rank = zero_mpi_job_rank(mpi, (int)other);
	if (!strcmp(all[0].label, all[other].label))
		snprintf(text, size,
			 "rank %d and rank %d both began '%s', but with other sizes, types or "
			 "values: all "
			 "ranks must make the same groups and parameters and call the same "
			 "functions in the same order",
			 zero_mpi_job_rank(mpi, 0), *rank, all[0].label);
	else
		snprintf(text, size,
			 "rank %d began '%s' while rank %d began '%s': all ranks must begin the "
			 "same operations in the same order",
			 zero_mpi_job_rank(mpi, 0), all[0].label, *rank, all[other].label);
	return ZERO_E_ORDER;
}

/* The lowest rank with an error, `from`, tells it to all; *rank is where it arose. */
static zero_status share_error(struct zero_mpi_comm *mpi, const struct zero_intent *intent,
			       int from, int *rank, zero_status status, char *text, size_t size)
{
	struct {
		int rank;
		char text[1024];
	} told = {.rank = zero_mpi_job_rank(mpi, from)};
	int error;

	if (mpi->comm.place.rank == from && intent->error_rank >= 0) {
		told.rank = intent->error_rank;
		snprintf(told.text, sizeof(told.text), "%s", intent->error);
	} else if (mpi->comm.place.rank == from) {
		snprintf(told.text, sizeof(told.text), "rank %d (%s): %s", told.rank,
			 mpi->comm.place.node, intent->error);
	}
	error = MPI_Bcast(&told, sizeof(told), MPI_BYTE, from, mpi->world);
	if (error)
		return zero_mpi_status(error, "MPI_Bcast");
	*rank = told.rank;
	snprintf(text, size, "%s", told.text);
	return status;
}

/* One agreement under way. Maxima: hashes are equal if the largest is the smallest; the lowest
   rank's error wins. */
enum { HASH, UNHASH, ERROR, FIELDS };

struct agreement {
	uint64_t mine[FIELDS], all[FIELDS];
};

static int begin(const struct zero_mpi_comm *mpi, const struct zero_intent *intent,
		 struct agreement *agreement, MPI_Request *request)
{
	const struct zero_place *place = &mpi->comm.place;

	*agreement = (struct agreement){.mine = {intent->hash, ~intent->hash, 0}};
	if (intent->status)
		agreement->mine[ERROR] = (uint64_t)(place->world - place->rank) << 8 |
					 ((uint64_t)intent->status & 0xff);
	return MPI_Iallreduce(agreement->mine, agreement->all, FIELDS, MPI_UINT64_T, MPI_MAX,
			      mpi->world, request);
}

static zero_status end(struct zero_mpi_comm *mpi, const struct zero_intent *intent,
		       const struct agreement *agreement, int error, char *text, size_t size,
		       int *rank)
{
	zero_status status = zero_mpi_status(error, "MPI_Iallreduce");
	const uint64_t *all = agreement->all;

	if (!status && all[ERROR])
		return share_error(mpi, intent, mpi->comm.place.world - (int)(all[ERROR] >> 8),
				   rank, (zero_status)(all[ERROR] & 0xff), text, size);
	if (!status && all[HASH] != ~all[UNHASH])
		return explain_order(mpi, intent, text, size, rank);
	if (status)
		snprintf(text, size, "%s: %s", intent->label, zero_core->last_error());
	return status;
}

zero_status zero_mpi_agree(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			   size_t size, int *rank)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	struct agreement agreement;
	MPI_Request request;
	int error, index;

	error = begin(mpi, intent, &agreement, &request);
	if (!error)
		error = wait_idly(&request, 1, &index);
	return end(mpi, intent, &agreement, error, text, size, rank);
}

/* Communicators of which this rank is, the first one and its teams', that are not broken. */
static int list_comms(struct zero_mpi_comm *first, struct zero_mpi_comm **comms)
{
	int count = 0;

	for (struct zero_channel *channel = first->channels; channel; channel = channel->next)
		if (channel->comm && !channel->comm->broken) {
			if (comms)
				comms[count] = zero_mpi_of(channel->comm);
			count++;
		}
	if (first->comm.broken)
		return count;
	if (comms)
		comms[count] = first;
	return count + 1;
}

/*
 * Peers may wait in an operation of any team, or of all ranks: this rank tells all of them at once
 * that it leaves, and each hears it wherever it is.
 */
zero_status zero_mpi_leave(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			   size_t size, int *rank)
{
	int count = list_comms(zero_mpi_of(comm), NULL), error = MPI_SUCCESS, index = 0;
	struct zero_mpi_comm **comms = calloc((size_t)count + 1, sizeof(*comms));
	struct agreement *agreements = calloc((size_t)count + 1, sizeof(*agreements));
	MPI_Request *requests = calloc((size_t)count + 1, sizeof(*requests));
	zero_status status = ZERO_OK, one;

	if (!comms || !agreements || !requests)
		goto out; /* its process is about to end for want of memory */
	list_comms(zero_mpi_of(comm), comms);
	for (int i = 0; i < count; i++)
		if (begin(comms[i], intent, &agreements[i], &requests[i]))
			requests[i] = MPI_REQUEST_NULL;
	for (;;) {
		error = wait_idly(requests, count, &index);
		if (error || index == MPI_UNDEFINED)
			break;
		one = end(comms[index], intent, &agreements[index], MPI_SUCCESS, text, size, rank);
		comms[index]->comm.broken |= one != ZERO_OK;
		status = status ? status : one;
	}
out:
	free(comms);
	free(agreements);
	free(requests);
	return status;
}

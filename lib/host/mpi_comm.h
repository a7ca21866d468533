/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that speak MPI share. */
#ifndef ZERO_MPI_COMM_H
#define ZERO_MPI_COMM_H

#include <mpi.h>

#include "host.h"

/* A message is at most this long: MPI counts are int, and some transports count bytes in int. */
#define ZERO_MESSAGE_MAX ((size_t)1 << 30)

struct zero_mpi_comm {
	struct zero_comm comm;
	MPI_Comm world; /* the library's own copy */
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
	/* pairwise.c: two sets of one piece for each peer */
	float *staging[2];
	size_t piece;                    /* elements */
	MPI_Request *requests;           /* [4 * world] */
	const float **summands;          /* [world] */
	struct zero_shown_intent *shown; /* [world]; comm_mpi.c */
};

/* ---- mpi_world.c: MPI itself, once in a process ---------------------------------------------- */

/* MPI_COMM_WORLD's copy for this library; MPI is initialised if the program has not done so.
   *world is MPI_COMM_NULL if no launcher started this process. */
zero_status zero_mpi_world(MPI_Comm *world, struct zero_comm *comm);
/* Communicators that are open; MPI is not finalised while there are any. */
extern int zero_mpi_users;
/* A sentence for an MPI error; ZERO_OK for MPI_SUCCESS. */
zero_status zero_mpi_status(int error, const char *call);

/* ---- pairwise.c ------------------------------------------------------------------------------ */

zero_status zero_pairwise_open(struct zero_mpi_comm *mpi);
void zero_pairwise_close(struct zero_mpi_comm *mpi);
/* ZERO_OP_REDUCE_SCATTER by exchange between each two ranks, in pieces, summed in rank order. */
zero_status zero_pairwise_reduce_scatter(struct zero_comm *comm, const float *send, float *recv,
					 size_t count, bool accumulate);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host module that call MPI share. */
#ifndef ZERO_MPI_COMM_H
#define ZERO_MPI_COMM_H

#include <mpi.h>

#include "host.h"
#include "node_memory.h"

/* A message is at most this long: MPI counts are int, and some transports count bytes in int. */
#define ZERO_MESSAGE_MAX ((size_t)1 << 30)

/* A communicator on MPI: the job's, or a team's. */
struct zero_mpi_comm {
	struct zero_comm comm;
	MPI_Comm mpi_comm; /* a copy of MPI_COMM_WORLD, or a part of it for a team */
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
	struct zero_node *node;   /* the ranks that share memory with this one */
	bool is_first;            /* the job's communicator, which owns peers and arena */
	int first_of_node;        /* the lowest rank that shares memory with this one */
	int *node_of;             /* [world]: first_of_node of each rank */
	int *node_index;          /* [world]: its rank among those that share memory */
	struct zero_arena *arena; /* the pool's; NULL: no memory is shared */
	MPI_Request agreement;    /* mpi_agree.c: the one under way */
	char *staging[2];         /* mpi_reduce_scatter.c: [ranks of other nodes][piece] */
	size_t piece;             /* bytes */
	MPI_Request *requests;    /* [4 * world] */
	const void **summands;    /* [world] */
	struct zero_deferred_free *deferred; /* shared_buffer.c */
	pthread_mutex_t deferred_lock;
	struct zero_mpi_comm *counter; /* of a team: the job's, which counts the traffic of all */
};

static inline struct zero_mpi_comm *zero_mpi_of(struct zero_comm *comm)
{
	return (struct zero_mpi_comm *)comm;
}

/* ---- mpi_init.c ------------------------------------------------------------------------------ */

/*
 * Initialises MPI unless the program has done so, and makes the library's copy of MPI_COMM_WORLD.
 * *world becomes MPI_COMM_NULL if no launcher started this process. *node becomes a communicator of
 * the ranks of this node, which the caller frees. Fills comm->place, threaded, main_thread_only.
 */
zero_status zero_mpi_init(MPI_Comm *world, MPI_Comm *node, struct zero_comm *comm);
/* Number of open communicators of jobs. MPI is not finalised while there are any. */
extern int zero_mpi_users;
/* Fails with a sentence for an MPI error; ZERO_OK for MPI_SUCCESS. */
zero_status zero_mpi_status(int error, const char *call);

/* ---- mpi_agree.c: see zero_comm_ops ---------------------------------------------------------- */

zero_status zero_mpi_begin_max(struct zero_comm *comm);
zero_status zero_mpi_finish_max(struct zero_comm *const *comms, int count, int *index);

/* ---- shared_buffer.c: ZERO_OP_ALLOC ---------------------------------------------------------- */

/* See zero_comm_ops. */
zero_status zero_shared_buffer_begin(struct zero_mpi_comm *mpi, const struct zero_op *ops,
				     size_t count);
/* After the agreement: every rank finds the buffers that the node's first rank made. An error, for
   want of mappings, is this rank's alone. */
zero_status zero_shared_buffer_end(struct zero_mpi_comm *mpi, const struct zero_op *ops,
				   size_t count);
/* Instead, if a rank has an error. */
void zero_shared_buffer_undo(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count);
void zero_shared_buffer_free(struct zero_comm *comm, struct zero_shared *shared);
void zero_shared_buffer_close(struct zero_mpi_comm *mpi);

/* ---- mpi_all_gather.c, mpi_scatter.c, mpi_all_to_all.c, mpi_reduce_scatter.c ----------------- */

/* `op` is number `index` of its submission. */
zero_status zero_mpi_all_gather(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index);
/* Whether zero_mpi_all_gather has a barrier of the node within. */
bool zero_mpi_all_gather_has_barrier(const struct zero_mpi_comm *mpi, const struct zero_op *op,
				     size_t index);
zero_status zero_mpi_allgather_bytes(struct zero_mpi_comm *mpi, const void *send, void *recv,
				     size_t bytes);
zero_status zero_mpi_broadcast(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index);
/* Runs `count` scatters at once; the first is number `index`. */
zero_status zero_mpi_scatter(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			     size_t index);
zero_status zero_mpi_all_to_all(struct zero_mpi_comm *mpi, const struct zero_op *op);
zero_status zero_mpi_reduce_open(struct zero_mpi_comm *mpi);
void zero_mpi_reduce_close(struct zero_mpi_comm *mpi);
zero_status zero_mpi_reduce_scatter(struct zero_mpi_comm *mpi, const struct zero_op *op,
				    size_t index);

#endif

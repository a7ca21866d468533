/* SPDX-License-Identifier: Apache-2.0 */
/* What the files that speak MPI share. */
#ifndef ZERO_MPI_COMM_H
#define ZERO_MPI_COMM_H

#include <mpi.h>

#include "host.h"
#include "node_memory.h"

/* A message is at most this long: MPI counts are int, and some transports count bytes in int. */
#define ZERO_MESSAGE_MAX ((size_t)1 << 30)

/* A communicator of ranks: the first one of all ranks, others of teams. */
struct zero_mpi_comm {
	struct zero_comm comm;
	MPI_Comm world; /* the library's own copy, or a part of it */
	const struct zero_kernels *kernels;
	struct zero_pool *pool;
	struct zero_node *node;
	bool is_first;            /* it has all ranks, and what the others of this process share */
	int first_of_node;        /* the first rank of those that this one shares memory with */
	int *node_of;             /* [world]: the first rank of those it shares memory with */
	int *node_index;          /* [world]: its place among them */
	struct zero_arena *arena; /* the pool's; NULL: no memory is shared */
	MPI_Request agreement;    /* max.c: under way */
	/* reduce.c: two sets of one piece for each peer that no memory is shared with */
	char *staging[2];
	size_t piece;           /* bytes */
	MPI_Request *requests;  /* [4 * world] */
	const void **summands;  /* [world] */
	struct zero_lent *lent; /* shared.c */
	pthread_mutex_t lent_lock;
	struct zero_mpi_comm *counter; /* of a team: that of all ranks, which counts for both */
};

static inline struct zero_mpi_comm *zero_mpi_of(struct zero_comm *comm)
{
	return (struct zero_mpi_comm *)comm;
}

/* ---- mpi_world.c: MPI itself, once in a process ---------------------------------------------- */

/* MPI_COMM_WORLD's copy for this library; MPI is initialised if the program has not done so.
   *world is MPI_COMM_NULL if no launcher started this process. *node: the ranks of this node, the
   caller's. */
zero_status zero_mpi_world(MPI_Comm *world, MPI_Comm *node, struct zero_comm *comm);
/* Communicators that are open; MPI is not finalised while there are any. */
extern int zero_mpi_users;
/* A sentence for an MPI error; ZERO_OK for MPI_SUCCESS. */
zero_status zero_mpi_status(int error, const char *call);

/* ---- max.c: see zero_comm_ops ---------------------------------------------------------------- */

zero_status zero_mpi_begin_max(struct zero_comm *comm);
zero_status zero_mpi_finish_max(struct zero_comm *const *comms, int count, int *index);

/* ---- shared.c: buffers that the ranks of a node have between them ---------------------------- */

/* See zero_comm_ops. */
zero_status zero_shared_begin(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count);
/* Every rank finds what the first one made; or, with an error, gives it back. */
void zero_shared_end(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count, bool ok);
void zero_shared_free(struct zero_comm *comm, struct zero_shared *shared);
void zero_shared_close(struct zero_mpi_comm *mpi);

/* ---- gather.c, scatter.c, reduce.c -------------------------------------------------------- */

/* `op` is number `index` of its submission. */
zero_status zero_mpi_all_gather(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index);
/* Whether that meets the node's ranks by itself. */
bool zero_mpi_gather_meets(const struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index);
zero_status zero_mpi_exchange(struct zero_mpi_comm *mpi, const void *send, void *recv,
			      size_t bytes);
zero_status zero_mpi_broadcast(struct zero_mpi_comm *mpi, const struct zero_op *op, size_t index);
/* `count` scatters at once, from number `index` on. */
zero_status zero_mpi_scatter(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			     size_t index);
zero_status zero_reduce_open(struct zero_mpi_comm *mpi);
void zero_reduce_close(struct zero_mpi_comm *mpi);
/* ZERO_OP_REDUCE_SCATTER: peers' memory is read where it is shared; between other ranks pieces are
   exchanged. All are summed in rank order. */
zero_status zero_mpi_reduce_scatter(struct zero_mpi_comm *mpi, const struct zero_op *op,
				    size_t index);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host module share: a pool of memory, a queue and a communicator. */
#ifndef ZERO_HOST_H
#define ZERO_HOST_H

#include <pthread.h>

#include "available.h"
#include "backend.h"
#include "kernels.h"

/* libzero's functions, kept when the module is opened. */
extern const struct zero_core *zero_core;

/* ---- pool.c: pages, counted by kind ---------------------------------------------------------- */

/*
 * Freed blocks are kept for the next allocation of about their size, since the first touch of fresh
 * pages costs more than the copy that follows. Before fresh pages are asked for, so many idle ones
 * are given back that the process never holds more than it once used.
 */
struct zero_pool;

struct zero_pool *zero_pool_new(void);
void zero_pool_delete(struct zero_pool *pool); /* with all blocks */
zero_status zero_pool_alloc(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes,
			    bool zeroed, void **data);
void zero_pool_free(struct zero_pool *pool, void *data); /* NULL is legal */
void zero_pool_memory(struct zero_pool *pool, zero_memory *memory);

/* ---- comm: what ranks do together, one thing at a time --------------------------------------- */

/* What a rank is about to do; compared before any data moves. */
struct zero_intent {
	const char *label;
	uint64_t hash; /* of all that must be equal on all ranks */
	zero_status status;
	const char *error;
	int error_rank; /* where it arose if all ranks know of it already, else -1 */
};

struct zero_comm {
	const struct zero_comm_ops *ops;
	struct zero_place place;
	bool threaded;  /* may be used from the queue's own thread */
	bool main_only; /* by the thread alone that opened it */
	_Atomic uint64_t bytes_sent, collectives;
};

/* Called by one thread at a time. Errors are sentences of that thread. */
struct zero_comm_ops {
	void (*close)(struct zero_comm *comm);
	/* ZERO_OK if all ranks intend the same and none has an error; else the same on all ranks,
	   with the sentence in `text` and the rank that it is about in *rank. */
	zero_status (*agree)(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank);
	/* recv[world][bytes]; send may be the own part of recv. */
	zero_status (*all_gather)(struct zero_comm *comm, const void *send, void *recv,
				  size_t bytes);
	/* See ZERO_OP_REDUCE_SCATTER. */
	zero_status (*reduce_scatter)(struct zero_comm *comm, const float *send, float *recv,
				      size_t count, bool accumulate);
	/* bounds and piece in bytes. */
	zero_status (*scatter)(struct zero_comm *comm, int root, const char *send, char *recv,
			       const size_t *bounds, size_t unit, size_t piece);
	zero_status (*broadcast)(struct zero_comm *comm, int root, const char *send, char *recv,
				 size_t bytes, size_t piece);
};

/* One rank alone: no MPI. */
zero_status zero_comm_self(const struct zero_kernels *kernels, struct zero_comm **comm);
/* The ranks of MPI_COMM_WORLD; *comm stays NULL if no launcher started this process. An error with
   a *comm is one that the others can still be told. */
zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool,
			  struct zero_comm **comm);

/* ---- queue.c: submissions, run in order by a thread of their own ----------------------------- */

struct zero_queue;

zero_status zero_queue_new(struct zero_comm *comm, struct zero_pool *pool,
			   const struct zero_kernels *kernels, struct zero_queue **queue);
void zero_queue_delete(struct zero_queue *queue); /* after what was submitted is done */
zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work);
zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work);
void zero_work_get(struct zero_work *work);
void zero_work_put(struct zero_work *work);

#endif

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
/* From now on shards, gathered parameters and gradients come from the arena, which becomes the
   pool's. */
struct zero_arena;
void zero_pool_share(struct zero_pool *pool, struct zero_arena *arena);
/* A block of kind ZERO_MEM_KINDS is counted so: by each of its ranks, its part. ZERO_E_MEMORY: that
   is beyond the limit. */
zero_status zero_pool_count(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes);
void zero_pool_uncount(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes);
zero_status zero_pool_no_memory(enum zero_memory_kind kind, size_t bytes);
void zero_pool_limit(struct zero_pool *pool, size_t bytes); /* see limit in backend.h */
bool zero_pool_caller_block(struct zero_pool *pool, const void *data, size_t *bytes);
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
	bool broken;    /* an error has left its ranks apart: nothing more is run on it */
	_Atomic uint64_t bytes_sent, collectives;
};

/* Called by one thread at a time. Errors are sentences of that thread. */
struct zero_comm_ops {
	void (*close)(struct zero_comm *comm);
	/* What this rank does by itself for operations to come: makes what ZERO_OP_ALLOC asks for,
	   and tells peers where its buffers are. */
	zero_status (*begin)(struct zero_comm *comm, const struct zero_op *ops, size_t count);
	/* ZERO_OK if all ranks intend the same and none has an error; else the same on all ranks,
	   with the sentence in `text` and the rank that it is about in *rank. */
	zero_status (*agree)(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank);
	/* The same for the last thing that a rank says, to the ranks of its teams too. */
	zero_status (*leave)(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank);
	/* Runs them, if `status`, the same on all ranks, is ZERO_OK; else takes back what begin
	   made and returns it. */
	zero_status (*run)(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			   zero_status status);
	/* See shared_free in backend.h. From any thread. */
	void (*shared_free)(struct zero_comm *comm, struct zero_shared *shared);
};

/* Counted as traffic. */
static inline bool zero_op_is_payload(const struct zero_op *op)
{
	return op->kind == ZERO_OP_ALL_GATHER || op->kind == ZERO_OP_REDUCE_SCATTER ||
	       op->kind == ZERO_OP_SCATTER || op->kind == ZERO_OP_BROADCAST;
}

/* What a channel is made of: the ranks of a team; comm is NULL where this rank is not of it. */
struct zero_channel {
	struct zero_comm *comm;
	struct zero_place place;
	struct zero_channel *next; /* of the list that its first communicator keeps */
};

/* One rank alone: no MPI. */
zero_status zero_comm_self(const struct zero_kernels *kernels, struct zero_pool *pool,
			   struct zero_comm **comm);
/* The ranks of MPI_COMM_WORLD; *comm stays NULL if no launcher started this process. An error with
   a *comm is one that the others can still be told. `share`: see zero_backend_config. */
zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool, int share,
			  struct zero_comm **comm);

/* ---- queue.c: submissions, run in order by a thread of their own ----------------------------- */

struct zero_queue;

zero_status zero_queue_new(struct zero_comm *comm, struct zero_pool *pool,
			   struct zero_queue **queue);
void zero_queue_delete(struct zero_queue *queue); /* after what was submitted is done */
zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work);
zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work);
void zero_work_get(struct zero_work *work);
void zero_work_put(struct zero_work *work);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host module share: a pool of memory and communicators. */
#ifndef ZERO_HOST_H
#define ZERO_HOST_H

#include "core/available_memory.h"
#include "backend/comm.h"
#include "kernels.h"

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
void zero_pool_high(struct zero_pool *pool, size_t kinds[ZERO_MEM_KINDS]);

/* ---- communicators --------------------------------------------------------------------------- */

/* One rank alone: no MPI. */
zero_status zero_comm_self(const struct zero_kernels *kernels, struct zero_pool *pool,
			   struct zero_comm **comm);
/* The ranks of MPI_COMM_WORLD; *comm stays NULL if no launcher started this process. An error with
   a *comm is one that the others can still be told. `share`: see zero_backend_config. */
zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool, int share,
			  struct zero_comm **comm);
/* Ends all of them; returns where MPI is over. From any thread, where MPI allows that. */
void zero_mpi_abort(int status);

#endif

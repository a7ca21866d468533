/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the host module share: a pool of memory and communicators. */
#ifndef ZERO_HOST_H
#define ZERO_HOST_H

#include "core/available_memory.h"
#include "backend/comm.h"
#include "kernels.h"
#include "gather_buffers.h"

/* ---- memory_pool.c --------------------------------------------------------------------------- */

/*
 * A pool of page-aligned blocks. Freed blocks are kept for later allocations of about their size,
 * since the first touch of fresh pages costs more than the copy that follows. Before fresh pages
 * are mapped, idle blocks are unmapped, so that the process never holds more than its peak of use.
 * Safe from any thread.
 */
struct zero_pool;

struct zero_pool *zero_pool_new(void);
/* Frees the pool with all blocks and its arena. NULL is a no-op. */
void zero_pool_delete(struct zero_pool *pool);
/* See alloc in backend.h. Kind ZERO_MEM_KINDS is a block that several ranks share: each of them
   counts its part by zero_pool_count. */
zero_status zero_pool_alloc(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes,
			    bool zeroed, void **data);
/* Where gather buffers appear. */
struct zero_gather_buffers *zero_pool_gather_buffers(struct zero_pool *pool);
void zero_pool_free(struct zero_pool *pool, void *data); /* NULL is a no-op */
void zero_pool_trim(struct zero_pool *pool);             /* see backend.h */
/* From now on shards, gradients and shared blocks are allocated in the arena, which becomes the
   pool's. */
struct zero_arena;
void zero_pool_share(struct zero_pool *pool, struct zero_arena *arena);
/* Counts bytes of a shared block; ZERO_E_MEMORY if they would pass the limit. */
zero_status zero_pool_count(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes);
void zero_pool_uncount(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes);
/* See limit, caller_block and memory in backend.h. */
void zero_pool_limit(struct zero_pool *pool, size_t bytes);
bool zero_pool_caller_block(struct zero_pool *pool, const void *data, size_t *bytes);
void zero_pool_memory(struct zero_pool *pool, zero_memory *memory, size_t at_peak[ZERO_MEM_KINDS]);

/* ---- own_buffer.c: ZERO_OP_ALLOC of a buffer that no other rank shares ----------------------- */

zero_status zero_own_buffer_alloc(struct zero_pool *pool, const struct zero_op *op);
/* Also clears *shared. A cleared one is a no-op. */
void zero_own_buffer_free(struct zero_pool *pool, struct zero_shared *shared);

/* ---- all_to_all.c ---------------------------------------------------------------------------- */

/* What a rank sends to itself in a ZERO_OP_ALL_TO_ALL. */
void zero_copy_to_self(const struct zero_op *op, int self);

/* ---- communicators --------------------------------------------------------------------------- */

/* single_rank.c: one rank alone, without MPI. */
zero_status zero_comm_single(const struct zero_kernels *kernels, struct zero_pool *pool,
			     struct zero_comm **comm);
/*
 * mpi_comm.c: the ranks of MPI_COMM_WORLD. *comm stays NULL if no launcher started this process. If
 * it fails but sets *comm, zero_agree_status can still report the error to the other ranks.
 * `share`: see zero_backend_config.
 */
zero_status zero_comm_mpi(const struct zero_kernels *kernels, struct zero_pool *pool, int share,
			  struct zero_comm **comm);
/* Finalises MPI as exit would, see struct zero_backend_ops. */
void zero_mpi_finalise(void);
/* mpi_init.c: ends all ranks, or returns if it cannot. From any thread. */
void zero_mpi_abort(int status, const char *text);

/* ---- gemm.c ---------------------------------------------------------------------------------- */

/* The machine's cblas; sgemm is NULL until it is opened. */
struct zero_cblas {
	void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
		      const float *a, int a_stride, const float *b, int b_stride, float beta,
		      float *c, int c_stride);
	const struct zero_kernels *kernels;
};

/* See open_gemm and orthogonalise in backend.h. */
zero_status zero_cblas_open(struct zero_cblas *cblas);
void zero_cblas_orthogonalise(struct zero_cblas *cblas, const struct zero_newton_schulz *rule,
			      float *x, size_t rows, size_t columns, float *scratch);

#endif

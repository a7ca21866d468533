/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZERO_OP_ALLOC: buffers that the ranks of a node share. The node's first rank allocates a buffer
 * in its arena, and the others find it there; each rank counts its part of the bytes. A buffer is
 * freed after the last rank has released it. A release is not COLLECTIVE.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "mpi_comm.h"

/* How many ranks still use a shared buffer; in the page behind its data. */
typedef _Atomic uint32_t users;

/* A buffer that the first rank has released, but others have not. */
struct zero_deferred_free {
	struct zero_deferred_free *next;
	char *base;
	users *left;
};

static users *users_of(const struct zero_shared *shared)
{
	return (users *)(void *)(shared->base + zero_round_to_pages(shared->bytes));
}

static bool is_own(const struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	return op->own || mpi->node->world == 1;
}

/* The bytes that each rank counts, in whole pages. */
static size_t own_part(const struct zero_mpi_comm *mpi, size_t bytes)
{
	size_t ranks = (size_t)mpi->node->world;

	return zero_round_to_pages(bytes / ranks + (bytes % ranks != 0));
}

/* Frees the buffers that the other ranks have released meanwhile. */
static void reclaim(struct zero_mpi_comm *mpi)
{
	struct zero_deferred_free **place = &mpi->deferred;

	pthread_mutex_lock(&mpi->deferred_lock);
	while (*place) {
		struct zero_deferred_free *deferred = *place;

		if (atomic_load(deferred->left)) {
			place = &deferred->next;
			continue;
		}
		*place = deferred->next;
		zero_pool_free(mpi->pool, deferred->base);
		free(deferred);
	}
	pthread_mutex_unlock(&mpi->deferred_lock);
}

/* The first rank allocates for all. */
static zero_status allocate(struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	struct zero_shared *shared = op->shared;
	zero_status status;

	status = zero_pool_alloc(mpi->pool, ZERO_MEM_KINDS,
				 zero_round_to_pages(op->count) + ZERO_ARENA_PAGE, op->zeroed,
				 (void **)&shared->base);
	if (!status)
		atomic_store(users_of(shared), (uint32_t)mpi->node->world);
	return status;
}

zero_status zero_shared_buffer_begin(struct zero_mpi_comm *mpi, const struct zero_op *ops,
				     size_t count)
{
	zero_status status = ZERO_OK;

	reclaim(mpi);
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		*shared = (struct zero_shared){.kind = ops[i].memory};
		if (is_own(mpi, &ops[i])) {
			if (!status)
				status = zero_own_buffer_alloc(mpi->pool, &ops[i]);
			continue;
		}
		if (!status)
			status = zero_pool_count(mpi->pool, shared->kind,
						 own_part(mpi, ops[i].count));
		if (!status)
			shared->bytes = ops[i].count;
		if (mpi->node->rank)
			continue;
		if (!status)
			status = allocate(mpi, &ops[i]);
		zero_node_publish(mpi->node, i)->recv = zero_node_address(mpi->node, shared->base);
	}
	return status;
}

/* Makes the pages of this rank's part resident, in the memory nearest to its core. */
static void populate(const struct zero_mpi_comm *mpi, const struct zero_shared *shared)
{
#ifdef MADV_POPULATE_WRITE
	size_t bytes = own_part(mpi, shared->bytes), at = bytes * (size_t)mpi->node->rank;

	if (at < shared->bytes)
		madvise(shared->base + at, shared->bytes - at < bytes ? shared->bytes - at : bytes,
			MADV_POPULATE_WRITE);
#else
	(void)mpi;
	(void)shared;
#endif
}

/* Finds the buffer that the node's first rank made. */
static zero_status find(struct zero_mpi_comm *mpi, const struct zero_op *op, zero_address address)
{
	struct zero_shared *shared = op->shared;

	shared->owner = mpi;
	shared->base = zero_node_data(mpi->node, address);
	shared->data = op->recv ? op->recv : shared->base;
#ifdef __SANITIZE_THREAD__
	/* Releases by this rank's threads happened before the first rank, a process that the
	   sanitizer does not see, used the block again. */
	atomic_load(users_of(shared));
#endif
	if (op->zeroed)
		populate(mpi, shared);
	if (!op->recv)
		return ZERO_OK;
	return zero_gather_buffers_map(zero_pool_gather_buffers(mpi->pool), op->recv, shared->base);
}

zero_status zero_shared_buffer_end(struct zero_mpi_comm *mpi, const struct zero_op *ops,
				   size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; i < count; i++) {
		zero_status one = ZERO_OK;

		if (ops[i].kind == ZERO_OP_ALLOC && !is_own(mpi, &ops[i]))
			one = find(mpi, &ops[i], zero_node_published(mpi->node, 0, i)->recv);
		status = status ? status : one;
	}
	return status;
}

void zero_shared_buffer_undo(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		if (is_own(mpi, &ops[i])) {
			zero_own_buffer_free(mpi->pool, shared);
			continue;
		}
		if (shared->bytes)
			zero_pool_uncount(mpi->pool, shared->kind, own_part(mpi, shared->bytes));
		zero_pool_free(mpi->pool, shared->base);
		*shared = (struct zero_shared){0};
	}
}

static void defer_free(struct zero_mpi_comm *mpi, const struct zero_shared *shared)
{
	struct zero_deferred_free *deferred = malloc(sizeof(*deferred));

	if (!deferred)
		return; /* it is freed with the arena */
	pthread_mutex_lock(&mpi->deferred_lock);
	*deferred = (struct zero_deferred_free){
		.next = mpi->deferred, .base = shared->base, .left = users_of(shared)};
	mpi->deferred = deferred;
	pthread_mutex_unlock(&mpi->deferred_lock);
}

void zero_shared_buffer_free(struct zero_comm *comm, struct zero_shared *shared)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	bool last;

	zero_gather_buffers_unmap(zero_pool_gather_buffers(mpi->pool), shared->data, NULL);
	zero_pool_uncount(mpi->pool, shared->kind, own_part(mpi, shared->bytes));
	/* The block is in the first rank's pool, so only that rank can free it. */
	last = atomic_fetch_sub(users_of(shared), 1) == 1;
	if (mpi->node->rank)
		return;
	if (last)
		zero_pool_free(mpi->pool, shared->base);
	else
		defer_free(mpi, shared);
}

void zero_shared_buffer_close(struct zero_mpi_comm *mpi)
{
	while (mpi->deferred) {
		struct zero_deferred_free *deferred = mpi->deferred;

		mpi->deferred = deferred->next;
		free(deferred);
	}
}

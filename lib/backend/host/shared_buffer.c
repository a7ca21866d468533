/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZERO_OP_ALLOC: buffers that the ranks of a node share. The node's first rank allocates a buffer
 * in its arena, and the others find it there; each rank counts its part of the bytes. A buffer is
 * freed after the last rank has released it. A release is not COLLECTIVE.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "mpi_comm.h"

/* The page before the data of a shared buffer. */
struct shared_head {
	_Atomic uint32_t users;
};

/* A buffer that the first rank has released, but others have not. */
struct zero_deferred_free {
	struct zero_deferred_free *next;
	struct shared_head *head;
};

static struct shared_head *head_of(void *data)
{
	return (struct shared_head *)(void *)((char *)data - ZERO_ARENA_PAGE);
}

/* The bytes that each rank counts, in whole pages. */
static size_t own_part(const struct zero_mpi_comm *mpi, size_t bytes)
{
	size_t ranks = (size_t)mpi->node->world;

	bytes = bytes / ranks + (bytes % ranks != 0);
	return (bytes + ZERO_ARENA_PAGE - 1) / ZERO_ARENA_PAGE * ZERO_ARENA_PAGE;
}

static void release_block(struct zero_mpi_comm *mpi, struct shared_head *head)
{
	zero_pool_free(mpi->pool, head);
}

/* Frees the buffers that the other ranks have released meanwhile. */
static void reclaim(struct zero_mpi_comm *mpi)
{
	struct zero_deferred_free **place = &mpi->deferred;

	pthread_mutex_lock(&mpi->deferred_lock);
	while (*place) {
		struct zero_deferred_free *deferred = *place;

		if (atomic_load(&deferred->head->users)) {
			place = &deferred->next;
			continue;
		}
		*place = deferred->next;
		release_block(mpi, deferred->head);
		free(deferred);
	}
	pthread_mutex_unlock(&mpi->deferred_lock);
}

static zero_status allocate(struct zero_mpi_comm *mpi, const struct zero_op *op)
{
	enum zero_memory_kind kind = mpi->node->world > 1 ? ZERO_MEM_KINDS : op->memory;
	size_t head = mpi->node->world > 1 ? ZERO_ARENA_PAGE : 0;
	zero_status status;
	void *block;

	status = zero_pool_alloc(mpi->pool, kind, op->count + head, op->zeroed, &block);
	if (status)
		return status;
	op->shared->data = (char *)block + head;
	if (head)
		atomic_store(&((struct shared_head *)block)->users, (uint32_t)mpi->node->world);
	return ZERO_OK;
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
		if (!status && mpi->node->world > 1)
			status = zero_pool_count(mpi->pool, shared->kind,
						 own_part(mpi, ops[i].count));
		if (!status)
			shared->bytes = ops[i].count;
		if (mpi->node->rank)
			continue;
		if (!status)
			status = allocate(mpi, &ops[i]);
		if (mpi->node->world > 1)
			zero_node_publish(mpi->node, i)->recv =
				zero_node_address(mpi->node, shared->data);
	}
	return status;
}

/* Makes the pages of this rank's part resident, in the memory nearest to its core. */
static void populate(const struct zero_mpi_comm *mpi, const struct zero_shared *shared)
{
#ifdef MADV_POPULATE_WRITE
	size_t bytes = own_part(mpi, shared->bytes), at = bytes * (size_t)mpi->node->rank;

	if (at < shared->bytes)
		madvise(shared->data + at, shared->bytes - at < bytes ? shared->bytes - at : bytes,
			MADV_POPULATE_WRITE);
#else
	(void)mpi;
	(void)shared;
#endif
}

void zero_shared_buffer_end(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count,
			    bool ok)
{
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		if (!ok) {
			if (shared->bytes && mpi->node->world > 1)
				zero_pool_uncount(mpi->pool, shared->kind,
						  own_part(mpi, shared->bytes));
			if (!mpi->node->rank && shared->data)
				zero_pool_free(mpi->pool, mpi->node->world > 1
								  ? (void *)head_of(shared->data)
								  : shared->data);
			*shared = (struct zero_shared){0};
			continue;
		}
		shared->owner = mpi;
		if (mpi->node->world == 1)
			continue;
		shared->data =
			zero_node_data(mpi->node, zero_node_published(mpi->node, 0, i)->recv);
#ifdef __SANITIZE_THREAD__
		/* Releases by this rank's threads happened before the first rank, a process that the
		   sanitizer does not see, used the block again. */
		atomic_load(&head_of(shared->data)->users);
#endif
		if (ops[i].zeroed)
			populate(mpi, shared);
	}
}

static void defer_free(struct zero_mpi_comm *mpi, struct shared_head *head)
{
	struct zero_deferred_free *deferred = malloc(sizeof(*deferred));

	if (!deferred)
		return; /* it is freed with the arena */
	pthread_mutex_lock(&mpi->deferred_lock);
	*deferred = (struct zero_deferred_free){.next = mpi->deferred, .head = head};
	mpi->deferred = deferred;
	pthread_mutex_unlock(&mpi->deferred_lock);
}

void zero_shared_buffer_free(struct zero_comm *comm, struct zero_shared *shared)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	struct shared_head *head;
	bool last;

	if (mpi->node->world == 1) {
		zero_pool_free(mpi->pool, shared->data);
		return;
	}
	zero_pool_uncount(mpi->pool, shared->kind, own_part(mpi, shared->bytes));
	head = head_of(shared->data);
	/* The block is in the first rank's pool, so only that rank can free it. */
	last = atomic_fetch_sub(&head->users, 1) == 1;
	if (mpi->node->rank)
		return;
	if (last)
		release_block(mpi, head);
	else
		defer_free(mpi, head);
}

void zero_shared_buffer_close(struct zero_mpi_comm *mpi)
{
	while (mpi->deferred) {
		struct zero_deferred_free *deferred = mpi->deferred;

		mpi->deferred = deferred->next;
		free(deferred);
	}
}

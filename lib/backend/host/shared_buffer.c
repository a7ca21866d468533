/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of which the ranks of a node have one between them. The first rank makes it in its arena
 * and the others find it; each counts its part of the bytes. It goes when the last has done with
 * it, whenever that is: a release is no collective.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "mpi_comm.h"

/* In the page before the data. */
struct shared_head {
	_Atomic uint32_t users;
};

/* What the first rank has done with, while others have not. */
struct zero_lent {
	struct zero_lent *next;
	struct shared_head *head;
};

static struct shared_head *head_of(void *data)
{
	return (struct shared_head *)(void *)((char *)data - ZERO_ARENA_PAGE);
}

/* A rank's part of what all of them count, in whole pages. */
static size_t part(const struct zero_mpi_comm *mpi, size_t bytes)
{
	size_t ranks = (size_t)mpi->node->world;

	bytes = bytes / ranks + (bytes % ranks != 0);
	return (bytes + ZERO_ARENA_PAGE - 1) / ZERO_ARENA_PAGE * ZERO_ARENA_PAGE;
}

static void give_back(struct zero_mpi_comm *mpi, struct shared_head *head)
{
	zero_pool_free(mpi->pool, head);
}

/* Takes back what the other ranks have meanwhile done with. */
static void collect(struct zero_mpi_comm *mpi)
{
	struct zero_lent **place = &mpi->lent;

	pthread_mutex_lock(&mpi->lent_lock);
	while (*place) {
		struct zero_lent *lent = *place;

		if (atomic_load(&lent->head->users)) {
			place = &lent->next;
			continue;
		}
		*place = lent->next;
		give_back(mpi, lent->head);
		free(lent);
	}
	pthread_mutex_unlock(&mpi->lent_lock);
}

static zero_status make(struct zero_mpi_comm *mpi, const struct zero_op *op)
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

zero_status zero_shared_begin(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count)
{
	zero_status status = ZERO_OK;

	collect(mpi);
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		*shared = (struct zero_shared){.kind = ops[i].memory};
		if (!status && mpi->node->world > 1)
			status = zero_pool_count(mpi->pool, shared->kind, part(mpi, ops[i].count));
		if (!status)
			shared->bytes = ops[i].count;
		if (mpi->node->rank)
			continue;
		if (!status)
			status = make(mpi, &ops[i]);
		if (mpi->node->world > 1)
			zero_node_publish(mpi->node, i)->recv =
				zero_node_address(mpi->node, shared->data);
	}
	return status;
}

/* The pages of this rank's part come now, from the memory that is nearest to it. */
static void touch(const struct zero_mpi_comm *mpi, const struct zero_shared *shared)
{
#ifdef MADV_POPULATE_WRITE
	size_t bytes = part(mpi, shared->bytes), at = bytes * (size_t)mpi->node->rank;

	if (at < shared->bytes)
		madvise(shared->data + at, shared->bytes - at < bytes ? shared->bytes - at : bytes,
			MADV_POPULATE_WRITE);
#else
	(void)mpi;
	(void)shared;
#endif
}

void zero_shared_end(struct zero_mpi_comm *mpi, const struct zero_op *ops, size_t count, bool ok)
{
	for (size_t i = 0; i < count; i++) {
		struct zero_shared *shared = ops[i].shared;

		if (ops[i].kind != ZERO_OP_ALLOC)
			continue;
		if (!ok) {
			if (shared->bytes && mpi->node->world > 1)
				zero_pool_uncount(mpi->pool, shared->kind,
						  part(mpi, shared->bytes));
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
		/* The word that this rank's threads have done with the block has come by way of the
		   first rank, a process that the sanitizer does not see. */
		atomic_load(&head_of(shared->data)->users);
#endif
		if (ops[i].zeroed)
			touch(mpi, shared);
	}
}

static void lend(struct zero_mpi_comm *mpi, struct shared_head *head)
{
	struct zero_lent *lent = malloc(sizeof(*lent));

	if (!lent)
		return; /* it goes with the arena */
	pthread_mutex_lock(&mpi->lent_lock);
	*lent = (struct zero_lent){.next = mpi->lent, .head = head};
	mpi->lent = lent;
	pthread_mutex_unlock(&mpi->lent_lock);
}

void zero_shared_free(struct zero_comm *comm, struct zero_shared *shared)
{
	struct zero_mpi_comm *mpi = zero_mpi_of(comm);
	struct shared_head *head;
	bool last;

	if (mpi->node->world == 1) {
		zero_pool_free(mpi->pool, shared->data);
		return;
	}
	zero_pool_uncount(mpi->pool, shared->kind, part(mpi, shared->bytes));
	head = head_of(shared->data);
	/* Only the first rank may use the block again; it looks when it next needs one. */
	last = atomic_fetch_sub(&head->users, 1) == 1;
	if (mpi->node->rank)
		return;
	if (last)
		give_back(mpi, head);
	else
		lend(mpi, head);
}

void zero_shared_close(struct zero_mpi_comm *mpi)
{
	while (mpi->lent) {
		struct zero_lent *lent = mpi->lent;

		mpi->lent = lent->next;
		free(lent);
	}
}

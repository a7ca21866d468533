/* SPDX-License-Identifier: Apache-2.0 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "shared_arena.h"
#include "backend/account.h"
#include "host.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct block {
	char *data; /* what the tree of live blocks is ordered by */
	size_t bytes;
	enum zero_memory_kind kind; /* ZERO_MEM_KINDS: see zero_pool_count */
	bool shared;                /* in the arena */
	struct block *next;         /* in the list of idle blocks, newest first */
};

struct zero_pool {
	pthread_mutex_t lock;
	void *live; /* tsearch tree */
	struct block *idle;
	size_t idle_bytes;
	struct zero_arena *arena; /* NULL: no rank shares memory with this one */
	struct zero_gather_buffers *buffers;
	zero_bytes held; /* by all live blocks */
	struct zero_account account;
};

static int by_address(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return (x->data > y->data) - (x->data < y->data);
}

struct zero_pool *zero_pool_new(void)
{
	struct zero_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return NULL;
	pool->buffers = zero_gather_buffers_new();
	if (!pool->buffers) {
		free(pool);
		return NULL;
	}
	pthread_mutex_init(&pool->lock, NULL);
	zero_account_init(&pool->account);
	return pool;
}

void zero_pool_share(struct zero_pool *pool, struct zero_arena *arena)
{
	pool->arena = arena;
}

struct zero_gather_buffers *zero_pool_gather_buffers(struct zero_pool *pool)
{
	return pool->buffers;
}

static void unmap(struct zero_pool *pool, struct block *block)
{
	if (block->shared)
		zero_arena_free(pool->arena, block->data, block->bytes);
	else
		munmap(block->data, block->bytes);
	free(block);
}

/* For deletion: blocks in the arena are unmapped with it. */
static void unmap_node(void *node)
{
	struct block *block = node;

	if (!block->shared)
		munmap(block->data, block->bytes);
	free(block);
}

void zero_pool_delete(struct zero_pool *pool)
{
	if (!pool)
		return;
	while (pool->idle) {
		struct block *block = pool->idle;

		pool->idle = block->next;
		unmap_node(block);
	}
	tdestroy(pool->live, unmap_node);
	zero_gather_buffers_delete(pool->buffers);
	zero_arena_delete(pool->arena);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

/* Maps fresh pages; large blocks begin at a multiple of the huge page size. NULL: no memory. */
static char *map(size_t bytes)
{
	char *data = zero_arena_addresses(bytes);

	if (!data)
		return NULL;
	if (mmap(data, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		 0) == MAP_FAILED) {
		munmap(data, bytes);
		return NULL;
	}
	/* A hint: it also works with 4K pages, more slowly. */
	if (bytes >= HUGE_PAGE)
		madvise(data, bytes, MADV_HUGEPAGE);
	return data;
}

/* Removes the best fitting idle block from the list. It may be too large by `waste`. NULL: none
   fits. */
static struct block *find_idle(struct zero_pool *pool, size_t bytes, size_t waste, bool shared)
{
	struct block **best = NULL, *block;

	for (struct block **at = &pool->idle; *at; at = &(*at)->next)
		if ((*at)->shared == shared && (*at)->bytes >= bytes &&
		    (*at)->bytes - bytes <= waste && (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	if (!best)
		return NULL;
	block = *best;
	*best = block->next;
	pool->idle_bytes -= block->bytes;
	return block;
}

/* Unmaps idle blocks, the oldest first, of `bytes` in total at least. */
static void trim(struct zero_pool *pool, size_t bytes)
{
	size_t gone = 0;

	while (pool->idle && gone < bytes) {
		struct block **last = &pool->idle;

		while ((*last)->next)
			last = &(*last)->next;
		gone += (*last)->bytes;
		unmap(pool, *last);
		*last = NULL;
	}
	pool->idle_bytes -= gone;
}

/* The idle bytes to unmap before `bytes` more are mapped, so that the process never holds more than
   its peak of live blocks. */
static size_t excess_idle(const struct zero_pool *pool, size_t bytes)
{
	size_t recycled = pool->held.now + bytes;
	size_t allowed = recycled > pool->held.peak ? recycled : pool->held.peak;

	return recycled + pool->idle_bytes > allowed ? recycled + pool->idle_bytes - allowed : 0;
}

static char *find_pages(struct zero_pool *pool, size_t bytes, bool shared)
{
	return shared ? zero_arena_alloc(pool->arena, bytes) : map(bytes);
}

static struct block *new_block(struct zero_pool *pool, size_t bytes, bool shared)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	trim(pool, excess_idle(pool, bytes));
	block->bytes = bytes;
	block->shared = shared;
	block->data = find_pages(pool, bytes, shared);
	if (!block->data) {
		/* Idle blocks may take the room. */
		trim(pool, SIZE_MAX);
		block->data = find_pages(pool, bytes, shared);
	}
	if (!block->data) {
		free(block);
		return NULL;
	}
	return block;
}

/* Called with the lock held. *recycled: the block is not zeroed. */
static struct block *get_block(struct zero_pool *pool, size_t bytes, size_t waste, bool shared,
			       bool *recycled)
{
	struct block *block = find_idle(pool, bytes, waste, shared);

	*recycled = block;
	if (!block)
		block = new_block(pool, bytes, shared);
	if (block && !tsearch(block, &pool->live, by_address)) {
		unmap(pool, block);
		block = NULL;
	}
	if (block)
		zero_bytes_add(&pool->held, block->bytes);
	return block;
}

zero_status zero_pool_count(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes)
{
	zero_status status;

	pthread_mutex_lock(&pool->lock);
	status = zero_account_check(&pool->account, kind, bytes);
	if (!status)
		zero_account_add(&pool->account, kind, bytes);
	pthread_mutex_unlock(&pool->lock);
	return status;
}

void zero_pool_uncount(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes)
{
	pthread_mutex_lock(&pool->lock);
	zero_account_remove(&pool->account, kind, bytes);
	pthread_mutex_unlock(&pool->lock);
}

static zero_status fail_no_memory(enum zero_memory_kind kind, size_t bytes)
{
	return zero_core->fail(ZERO_E_MEMORY,
			       "no memory for %zu bytes of %s: %zu are free; use more "
			       "ranks, or smaller groups or batches",
			       bytes, zero_memory_kind_name(kind), zero_memory_available());
}

/* Whether peers access memory of that kind without a copy. */
static bool is_shared(const struct zero_pool *pool, enum zero_memory_kind kind)
{
	return pool->arena &&
	       (kind == ZERO_MEM_SHARDS || kind == ZERO_MEM_GRADIENTS || kind == ZERO_MEM_KINDS);
}

/* What is soon freed may take an eighth more than it needs, unless there is a limit. */
static size_t most_waste(const struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes)
{
	bool stays =
		kind == ZERO_MEM_SHARDS || kind == ZERO_MEM_OPTIMIZER || kind == ZERO_MEM_OFFLOAD;

	return stays || pool->account.limit != SIZE_MAX ? 0 : bytes / 8;
}

zero_status zero_pool_alloc(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes,
			    bool zeroed, void **data)
{
	struct block *block = NULL;
	zero_status status = ZERO_OK;
	bool recycled = false;

	*data = NULL;
	if (bytes <= SIZE_MAX / 2) {
		bytes = (bytes + PAGE - 1) / PAGE * PAGE;
		pthread_mutex_lock(&pool->lock);
		if (kind != ZERO_MEM_KINDS)
			status = zero_account_check(&pool->account, kind, bytes);
		if (!status)
			block = get_block(pool, bytes, most_waste(pool, kind, bytes),
					  is_shared(pool, kind), &recycled);
		if (block)
			block->kind = kind;
		if (block && kind != ZERO_MEM_KINDS)
			zero_account_add(&pool->account, kind, block->bytes);
		pthread_mutex_unlock(&pool->lock);
	}
	if (!block)
		return status ? status : fail_no_memory(kind, bytes);
	if (zeroed && recycled)
		memset(block->data, 0, bytes);
	*data = block->data;
	return ZERO_OK;
}

void zero_pool_free(struct zero_pool *pool, void *data)
{
	struct block key = {.data = data}, *block;
	void *node;

	if (!data)
		return;
	pthread_mutex_lock(&pool->lock);
	node = tfind(&key, &pool->live, by_address);
	if (node) {
		block = *(struct block **)node;
		tdelete(block, &pool->live, by_address);
		if (block->kind != ZERO_MEM_KINDS)
			zero_account_remove(&pool->account, block->kind, block->bytes);
		pool->held.now -= block->bytes;
		block->next = pool->idle;
		pool->idle = block;
		pool->idle_bytes += block->bytes;
	}
	pthread_mutex_unlock(&pool->lock);
}

void zero_pool_trim(struct zero_pool *pool)
{
	pthread_mutex_lock(&pool->lock);
	trim(pool, SIZE_MAX);
	pthread_mutex_unlock(&pool->lock);
}

void zero_pool_limit(struct zero_pool *pool, size_t bytes)
{
	pthread_mutex_lock(&pool->lock);
	pool->account.limit = bytes;
	pthread_mutex_unlock(&pool->lock);
}

static int by_range(const void *a, const void *b)
{
	const struct block *key = a, *block = b;

	return key->data < block->data ? -1 : key->data >= block->data + block->bytes;
}

bool zero_pool_caller_block(struct zero_pool *pool, const void *data, size_t *bytes)
{
	struct block key = {.data = (char *)(uintptr_t)data}, *block = NULL;
	void *node;

	*bytes = 0;
	pthread_mutex_lock(&pool->lock);
	node = tfind(&key, &pool->live, by_range);
	if (node)
		block = *(struct block **)node;
	if (block && block->kind != ZERO_MEM_CALLER)
		block = NULL;
	if (block && block->data == data)
		*bytes = block->bytes;
	pthread_mutex_unlock(&pool->lock);
	return block;
}

void zero_pool_memory(struct zero_pool *pool, zero_memory *memory, size_t at_peak[ZERO_MEM_KINDS])
{
	pthread_mutex_lock(&pool->lock);
	zero_account_read(&pool->account, memory, at_peak);
	pthread_mutex_unlock(&pool->lock);
}

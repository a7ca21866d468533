/* SPDX-License-Identifier: Apache-2.0 */
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "host.h"

enum { PAGE = 4096, HUGE_PAGE = 2 << 20 };

struct block {
	char *data; /* what the tree of live blocks is ordered by */
	size_t bytes;
	enum zero_memory_kind kind;
	struct block *next; /* of the idle ones, newest first */
};

struct zero_pool {
	pthread_mutex_t lock;
	void *live; /* tsearch tree */
	struct block *idle;
	size_t idle_bytes;
	zero_bytes by_kind[ZERO_MEM_KINDS];
	zero_bytes total;
};

static const char *const kind_names[ZERO_MEM_KINDS] = {
	[ZERO_MEM_SHARDS] = "shards",
	[ZERO_MEM_GATHERED] = "gathered parameters",
	[ZERO_MEM_GRADIENTS] = "gradients",
	[ZERO_MEM_OPTIMIZER] = "optimizer states",
	[ZERO_MEM_STAGING] = "communication buffers",
};

static int by_address(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return (x->data > y->data) - (x->data < y->data);
}

static void count(zero_bytes *bytes, size_t more)
{
	bytes->now += more;
	if (bytes->now > bytes->peak)
		bytes->peak = bytes->now;
}

struct zero_pool *zero_pool_new(void)
{
	struct zero_pool *pool = calloc(1, sizeof(*pool));

	if (pool)
		pthread_mutex_init(&pool->lock, NULL);
	return pool;
}

static void unmap(struct block *block)
{
	munmap(block->data, block->bytes);
	free(block);
}

static void unmap_node(void *block)
{
	unmap(block);
}

void zero_pool_delete(struct zero_pool *pool)
{
	if (!pool)
		return;
	while (pool->idle) {
		struct block *block = pool->idle;

		pool->idle = block->next;
		unmap(block);
	}
	tdestroy(pool->live, unmap_node);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

/* Fresh pages; large blocks begin where a huge page can. NULL: none to be had. */
static char *map(size_t bytes)
{
	size_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0, before;
	char *data;

	data = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		    0);
	if (data == MAP_FAILED)
		return NULL;
	if (!slack)
		return data;
	before = -(uintptr_t)data % HUGE_PAGE;
	if (before)
		munmap(data, before);
	if (slack > before)
		munmap(data + before + bytes, slack - before);
	/* Advice: 4K pages serve too, if more slowly. */
	madvise(data + before, bytes, MADV_HUGEPAGE);
	return data + before;
}

/* The idle block that fits best and wastes at most an eighth; taken off the list. */
static struct block *take_idle(struct zero_pool *pool, size_t bytes)
{
	struct block **best = NULL, *block;

	for (struct block **at = &pool->idle; *at; at = &(*at)->next)
		if ((*at)->bytes >= bytes && (*at)->bytes - bytes <= bytes / 8 &&
		    (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	if (!best)
		return NULL;
	block = *best;
	*best = block->next;
	pool->idle_bytes -= block->bytes;
	return block;
}

/* Gives back idle blocks, the oldest first, until `bytes` are. */
static void trim(struct zero_pool *pool, size_t bytes)
{
	size_t gone = 0;

	while (pool->idle && gone < bytes) {
		struct block **last = &pool->idle;

		while ((*last)->next)
			last = &(*last)->next;
		gone += (*last)->bytes;
		unmap(*last);
		*last = NULL;
	}
	pool->idle_bytes -= gone;
}

/* How much of what is idle must go, so that `bytes` more are no more than was ever in use at
   once. */
static size_t excess(const struct zero_pool *pool, size_t bytes)
{
	size_t used = pool->total.now + bytes;
	size_t allowed = used > pool->total.peak ? used : pool->total.peak;

	return used + pool->idle_bytes > allowed ? used + pool->idle_bytes - allowed : 0;
}

static struct block *fresh(struct zero_pool *pool, size_t bytes)
{
	struct block *block = calloc(1, sizeof(*block));

	if (!block)
		return NULL;
	trim(pool, excess(pool, bytes));
	block->bytes = bytes;
	block->data = map(bytes);
	if (!block->data) {
		/* What is idle may be in the way. */
		trim(pool, SIZE_MAX);
		block->data = map(bytes);
	}
	if (!block->data) {
		free(block);
		return NULL;
	}
	return block;
}

zero_status zero_pool_alloc(struct zero_pool *pool, enum zero_memory_kind kind, size_t bytes,
			    bool zeroed, void **data)
{
	struct block *block = NULL;
	bool used = false;

	*data = NULL;
	if (bytes <= SIZE_MAX / 2) {
		bytes = (bytes + PAGE - 1) / PAGE * PAGE;
		pthread_mutex_lock(&pool->lock);
		block = take_idle(pool, bytes);
		used = block;
		if (!block)
			block = fresh(pool, bytes);
		if (block && !tsearch(block, &pool->live, by_address)) {
			unmap(block);
			block = NULL;
		}
		if (block) {
			block->kind = kind;
			count(&pool->by_kind[kind], block->bytes);
			count(&pool->total, block->bytes);
		}
		pthread_mutex_unlock(&pool->lock);
	}
	if (!block)
		return zero_core->fail(ZERO_E_MEMORY,
				       "no memory for %zu bytes of %s: %zu are free; use more "
				       "ranks, or smaller groups or batches",
				       bytes, kind_names[kind], zero_memory_available());
	if (zeroed && used)
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
		pool->by_kind[block->kind].now -= block->bytes;
		pool->total.now -= block->bytes;
		block->next = pool->idle;
		pool->idle = block;
		pool->idle_bytes += block->bytes;
	}
	pthread_mutex_unlock(&pool->lock);
}

void zero_pool_memory(struct zero_pool *pool, zero_memory *memory)
{
	pthread_mutex_lock(&pool->lock);
	memory->shards = pool->by_kind[ZERO_MEM_SHARDS];
	memory->gathered = pool->by_kind[ZERO_MEM_GATHERED];
	memory->gradients = pool->by_kind[ZERO_MEM_GRADIENTS];
	memory->optimizer = pool->by_kind[ZERO_MEM_OPTIMIZER];
	memory->staging = pool->by_kind[ZERO_MEM_STAGING];
	memory->total = pool->total;
	pthread_mutex_unlock(&pool->lock);
}

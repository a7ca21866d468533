/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates memory: device memory in stream order, from a memory pool of the driver or from the
 * caller's allocator, and page-locked host memory. Page-locking takes long, so some freed
 * page-locked blocks are kept for reuse, until zero_memory_trim_pinned. So are blocks of gradients
 * from the driver's pool, until memory is short: a step allocates nothing. Those that a captured
 * graph writes to are kept to the end.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { PAGE = 4096, POOL_ALIGNMENT = 256 };

/* Most bytes of page-locked blocks that are kept, but for those that the device still uses. */
static const size_t MAX_IDLE = (size_t)128 << 20;

struct block {
	char *data; /* key of the tree of live blocks */
	char *base; /* address of the allocation */
	size_t bytes, base_bytes;
	enum zero_memory_kind kind;
	bool pinned;
	bool captured;            /* a graph that the caller has captured writes to it */
	CUstream stream;          /* it was allocated for; of kept gradients, that used it last */
	struct zero_event *freed; /* when a freed block may be used again */
	struct block *next;       /* in a list of freed blocks */
};

struct zero_memory_pool {
	struct zero_device *device;
	zero_allocator allocator; /* alloc is NULL: the driver's pool is used */
	pthread_mutex_t lock;
	void *live;         /* tree of tsearch */
	struct block *idle; /* page-locked */
	size_t idle_bytes;
	struct block *gradients; /* of the driver's pool, for reuse */
	struct block *leaving;   /* of the allocator, while the device uses them */
	struct zero_account account;
};

static int by_address(const void *a, const void *b)
{
	const struct block *x = a, *y = b;

	return (x->data > y->data) - (x->data < y->data);
}

static int by_range(const void *a, const void *b)
{
	const struct block *key = a, *block = b;

	return key->data < block->data ? -1 : key->data >= block->data + block->bytes;
}

zero_status zero_memory_new(struct zero_device *device, const zero_allocator *allocator,
			    struct zero_memory_pool **memory)
{
	struct zero_memory_pool *made = calloc(1, sizeof(*made));

	if (!made)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a pool");
	if (allocator)
		made->allocator = *allocator;
	made->device = device;
	pthread_mutex_init(&made->lock, NULL);
	zero_account_init(&made->account);
	*memory = made;
	return ZERO_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

/* A caching allocator expects the stream that the block was allocated for; see `leaving`. */
static void free_block(struct zero_memory_pool *memory, struct block *block, CUstream stream)
{
	struct zero_device *device = memory->device;

	if (block->pinned)
		zero_device_check(device, zero_driver.host_free(block->base), "cuMemFreeHost");
	else if (memory->allocator.alloc)
		memory->allocator.free(memory->allocator.context, block->base, block->base_bytes,
				       (int)device->id, block->stream);
	else
		zero_device_check(device,
				  zero_driver.free((CUdeviceptr)(uintptr_t)block->base, stream),
				  "cuMemFreeAsync");
	free(block);
}

static CUresult alloc_from_pool(struct zero_memory_pool *memory, size_t bytes, CUstream stream,
				char **base)
{
	CUdeviceptr data = 0;
	CUresult result = zero_driver.alloc(&data, bytes, memory->device->pool, stream);

	*base = (char *)(uintptr_t)data;
	return result;
}

/* Puts a block that the stream's work still uses on a list. */
static void put_aside(struct zero_memory_pool *memory, struct block *block, CUstream stream,
		      struct block **list)
{
	block->freed = zero_event_record(memory->device, stream);
	block->next = *list;
	*list = block;
}

/* Gives blocks back to the allocator that the device no longer uses; with `wait`, all. Neither the
   stream that used a block last nor the one it was allocated for waits for the other. */
static void give_back(struct zero_memory_pool *memory, bool wait)
{
	for (struct block **at = &memory->leaving; *at;) {
		struct block *block = *at;

		if (wait && block->freed)
			zero_event_synchronize(memory->device, block->freed);
		if (!wait && block->freed && zero_event_is_ahead(memory->device, block->freed)) {
			at = &block->next;
			continue;
		}
		*at = block->next;
		zero_event_put(memory->device, block->freed);
		free_block(memory, block, block->stream);
	}
}

/* With `all`, also those that are part of graphs. */
static void free_gradients(struct zero_memory_pool *memory, bool all)
{
	for (struct block **at = &memory->gradients; *at;) {
		struct block *block = *at;

		if (block->captured && !all) {
			at = &block->next;
			continue;
		}
		*at = block->next;
		zero_event_put(memory->device, block->freed);
		free_block(memory, block, block->stream);
	}
}

/* The driver can reclaim freed memory once the stream has reached the point of the free. */
static void trim_device(struct zero_memory_pool *memory)
{
	struct zero_device *device = memory->device;

	if (device->hung || zero_device_is_capturing(device))
		return;
	give_back(memory, true);
	free_gradients(memory, false);
	zero_driver.stream_finish(device->reduce_stream);
	zero_driver.stream_finish(device->compute_stream);
	zero_driver.pool_trim(device->pool, 0);
}

/* Callers and NCCL are promised alignment to a page; a pool aligns to less. */
static bool alloc_device(struct zero_memory_pool *memory, struct block *block, CUstream stream)
{
	const zero_allocator *allocator = &memory->allocator;
	struct zero_device *device = memory->device;
	CUresult result;

	block->base_bytes = block->bytes;
	block->stream = stream;
	if (allocator->alloc) {
		block->base = allocator->alloc(allocator->context, block->base_bytes, PAGE,
					       (int)device->id, stream,
					       zero_memory_kind_name(block->kind));
		block->data = block->base;
		return block->base;
	}
	block->base_bytes += PAGE - POOL_ALIGNMENT;
	result = alloc_from_pool(memory, block->base_bytes, stream, &block->base);
	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		trim_device(memory);
		result = alloc_from_pool(memory, block->base_bytes, stream, &block->base);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY ||
	    !zero_device_check(device, result, "cuMemAllocFromPoolAsync"))
		return false;
	block->data = block->base + (-(uintptr_t)block->base & (PAGE - 1));
	return true;
}

/* Whether the device no longer uses the block. */
static bool is_free(const struct zero_memory_pool *memory, const struct block *block)
{
	return !block->freed || !zero_event_is_ahead(memory->device, block->freed);
}

static struct block *take_idle(struct zero_memory_pool *memory, struct block **at)
{
	struct block *block = *at;

	*at = block->next;
	memory->idle_bytes -= block->bytes;
	return block;
}

static bool fits(const struct block *block, size_t bytes)
{
	return block->bytes >= bytes && block->bytes - bytes <= bytes / 8;
}

/* Removes and returns the smallest page-locked block that is no longer used and wastes at most an
   eighth; NULL: there is none. */
static struct block *reuse_idle(struct zero_memory_pool *memory, size_t bytes)
{
	struct block **best = NULL;

	for (struct block **at = &memory->idle; *at; at = &(*at)->next)
		if (fits(*at, bytes) && is_free(memory, *at) &&
		    (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	return best ? take_idle(memory, best) : NULL;
}

/*
 * The same for gradients, but the one that was freed first, which the device may still use. Not the
 * one that was freed last: its reduce would have to end before the next gradients are written, so
 * that equal layers have two blocks in turn. What is taken depends on the order of calls alone. A
 * capture allocates nothing if it need not.
 */
static struct block *reuse_gradients(struct zero_memory_pool *memory, size_t bytes)
{
	bool capturing = zero_device_is_capturing(memory->device);
	struct block **first = NULL, *block;

	for (struct block **at = &memory->gradients; *at; at = &(*at)->next)
		if (fits(*at, bytes) && (capturing || *at != memory->gradients))
			first = at;
	if (!first)
		return NULL;
	block = *first;
	*first = block->next;
	return block;
}

static struct block *reuse(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			   size_t bytes)
{
	if (!zero_on_device(kind))
		return reuse_idle(memory, bytes);
	return kind == ZERO_MEM_GRADIENTS ? reuse_gradients(memory, bytes) : NULL;
}

static void free_idle(struct zero_memory_pool *memory, struct block **at)
{
	struct block *block = take_idle(memory, at);

	if (block->freed)
		zero_event_synchronize(memory->device, block->freed);
	zero_event_put(memory->device, block->freed);
	free_block(memory, block, memory->device->compute_stream);
}

static void trim_idle(struct zero_memory_pool *memory)
{
	while (memory->idle)
		free_idle(memory, &memory->idle);
}

/* Waits for nothing. */
static void bound_idle(struct zero_memory_pool *memory)
{
	for (struct block **at = &memory->idle; *at && memory->idle_bytes > MAX_IDLE;)
		if (is_free(memory, *at))
			free_idle(memory, at);
		else
			at = &(*at)->next;
}

static bool alloc_pinned(struct zero_memory_pool *memory, struct block *block)
{
	void *data = NULL;
	CUresult result = zero_driver.host_alloc(&data, block->bytes, CU_MEMHOSTALLOC_PORTABLE);

	if (result == CUDA_ERROR_OUT_OF_MEMORY) {
		trim_idle(memory);
		result = zero_driver.host_alloc(&data, block->bytes, CU_MEMHOSTALLOC_PORTABLE);
	}
	if (result == CUDA_ERROR_OUT_OF_MEMORY ||
	    !zero_device_check(memory->device, result, "cuMemHostAlloc"))
		return false;
	block->base = block->data = data;
	block->base_bytes = block->bytes;
	return true;
}

/* Called with the lock held. Returns NULL without memory. */
static struct block *alloc_block(struct zero_memory_pool *memory, enum zero_memory_kind kind,
				 size_t bytes, CUstream stream)
{
	struct block *block = reuse(memory, kind, bytes);

	if (!block) {
		block = calloc(1, sizeof(*block));
		if (!block)
			return NULL;
		block->bytes = bytes;
		block->kind = kind;
		block->pinned = !zero_on_device(kind);
		if (block->pinned ? !alloc_pinned(memory, block)
				  : !alloc_device(memory, block, stream)) {
			free(block);
			return NULL;
		}
	}
	block->kind = kind;
	block->captured |= kind == ZERO_MEM_GRADIENTS && zero_device_is_capturing(memory->device);
	if (!tsearch(block, &memory->live, by_address)) {
		free_block(memory, block, stream);
		return NULL;
	}
	zero_account_add(&memory->account, kind, block->bytes);
	return block;
}

/* Prepares a block for use: the host may write to it at once. */
static zero_status prepare_block(struct zero_memory_pool *memory, struct block *block, bool zeroed,
				 CUstream stream)
{
	struct zero_device *device = memory->device;
	zero_status status = ZERO_OK;

	if (block->freed) {
		if (block->pinned)
			status = zero_event_synchronize(device, block->freed);
		else
			zero_stream_wait(device, stream, block->freed);
		zero_event_put(device, block->freed);
		block->freed = NULL;
	}
	if (zeroed && block->pinned)
		memset(block->data, 0, block->bytes);
	else if (zeroed)
		zero_device_check(device,
				  zero_driver.set((CUdeviceptr)(uintptr_t)block->data, 0,
						  block->bytes, stream),
				  "cuMemsetD8Async");
	return status;
}

zero_status zero_memory_error(enum zero_memory_kind kind, size_t bytes)
{
	size_t free_bytes = 0, total = 0;

	zero_driver.memory_info(&free_bytes, &total);
	if (!zero_on_device(kind))
		return zero_core->fail(ZERO_E_MEMORY,
				       "no memory for %zu bytes of %s, which must be page-locked "
				       "(ulimit -l may limit it)",
				       bytes, zero_memory_kind_name(kind));
	return zero_core->fail(ZERO_E_MEMORY,
			       "no memory for %zu bytes of %s: %zu of the GPU's %zu are free; use "
			       "more ranks, a higher --zero-stage, smaller groups or batches",
			       bytes, zero_memory_kind_name(kind), free_bytes, total);
}

zero_status zero_memory_alloc(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes, bool zeroed, CUstream stream, void **data)
{
	struct block *block = NULL;
	zero_status status = ZERO_OK;

	*data = NULL;
	if (bytes <= SIZE_MAX / 2) {
		bytes = zero_round_to_pages(bytes);
		pthread_mutex_lock(&memory->lock);
		status = zero_account_check(&memory->account, kind, bytes);
		give_back(memory, false);
		if (!status)
			block = alloc_block(memory, kind, bytes, stream);
		pthread_mutex_unlock(&memory->lock);
	}
	if (!block)
		return status ? status : zero_memory_error(kind, bytes);
	*data = block->data;
	return prepare_block(memory, block, zeroed, stream);
}

/* ---- freeing --------------------------------------------------------------------------------- */

void zero_memory_free(struct zero_memory_pool *memory, void *data, CUstream stream)
{
	struct block key = {.data = data}, *block = NULL;
	void *node;

	if (!data)
		return;
	pthread_mutex_lock(&memory->lock);
	node = tfind(&key, &memory->live, by_address);
	if (node) {
		block = *(struct block **)node;
		tdelete(block, &memory->live, by_address);
		zero_account_remove(&memory->account, block->kind, block->bytes);
	}
	if (block && block->pinned) {
		put_aside(memory, block, stream, &memory->idle);
		memory->idle_bytes += block->bytes;
		bound_idle(memory);
	} else if (block && memory->allocator.alloc && stream != block->stream) {
		put_aside(memory, block, stream, &memory->leaving);
	} else if (block && !memory->allocator.alloc && block->kind == ZERO_MEM_GRADIENTS) {
		block->stream = stream;
		put_aside(memory, block, stream, &memory->gradients);
	} else if (block) {
		free_block(memory, block, stream);
	}
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_trim_pinned(struct zero_memory_pool *memory)
{
	pthread_mutex_lock(&memory->lock);
	trim_idle(memory);
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_trim(struct zero_memory_pool *memory)
{
	pthread_mutex_lock(&memory->lock);
	trim_idle(memory);
	trim_device(memory);
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_delete(struct zero_memory_pool *memory)
{
	if (!memory)
		return;
	trim_idle(memory);
	give_back(memory, true);
	free_gradients(memory, true);
	/* Blocks that the caller has not freed. */
	while (memory->live) {
		struct block *block = *(struct block **)memory->live;

		tdelete(block, &memory->live, by_address);
		free_block(memory, block, memory->device->compute_stream);
	}
	if (!memory->device->hung)
		zero_driver.stream_finish(memory->device->compute_stream);
	pthread_mutex_destroy(&memory->lock);
	free(memory);
}

/* ---- accounting ------------------------------------------------------------------------------ */

zero_status zero_memory_count(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes)
{
	zero_status status;

	pthread_mutex_lock(&memory->lock);
	status = zero_account_check(&memory->account, kind, bytes);
	if (!status)
		zero_account_add(&memory->account, kind, bytes);
	pthread_mutex_unlock(&memory->lock);
	return status;
}

void zero_memory_uncount(struct zero_memory_pool *memory, enum zero_memory_kind kind, size_t bytes)
{
	pthread_mutex_lock(&memory->lock);
	zero_account_remove(&memory->account, kind, bytes);
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_limit(struct zero_memory_pool *memory, size_t bytes)
{
	pthread_mutex_lock(&memory->lock);
	memory->account.limit = bytes;
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_hold(struct zero_memory_pool *memory, size_t bytes)
{
	pthread_mutex_lock(&memory->lock);
	zero_account_hold(&memory->account, bytes);
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_read(struct zero_memory_pool *memory, zero_memory *bytes,
		      size_t at_peak[ZERO_MEM_KINDS])
{
	pthread_mutex_lock(&memory->lock);
	zero_account_read(&memory->account, bytes, at_peak);
	pthread_mutex_unlock(&memory->lock);
}

/* Device memory that is not one of the live blocks belongs to the caller. */
bool zero_memory_caller_block(struct zero_memory_pool *memory, const void *data, size_t *bytes)
{
	struct block key = {.data = (char *)(uintptr_t)data}, *block = NULL;
	bool on_device = false;
	void *node;

	*bytes = 0;
	pthread_mutex_lock(&memory->lock);
	node = tfind(&key, &memory->live, by_range);
	if (node)
		block = *(struct block **)node;
	if (block && block->kind == ZERO_MEM_CALLER && block->data == data)
		*bytes = block->bytes;
	pthread_mutex_unlock(&memory->lock);
	if (block)
		return block->kind == ZERO_MEM_CALLER;
	zero_device_can_read(data, &on_device);
	return on_device;
}

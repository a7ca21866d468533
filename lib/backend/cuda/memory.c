/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocates memory: device memory in stream order, from a memory pool of the driver or from the
 * caller's allocator, and page-locked host memory. Page-locking takes long, so some freed
 * page-locked blocks are kept for reuse, until zero_memory_trim_pinned.
 */
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

enum { PAGE = 4096, POOL_ALIGNMENT = 256 };

/* Most bytes of page-locked blocks that are kept, but for those that the device still uses. */
static const size_t IDLE_MOST = (size_t)128 << 20;

struct block {
	char *data; /* key of the tree of live blocks */
	char *base; /* address of the allocation */
	size_t bytes, base_bytes;
	enum zero_memory_kind kind;
	bool pinned;
	CUstream stream;    /* it was allocated for */
	CUevent freed;      /* when an idle block may be used again */
	bool by_comm;       /* a kept block was freed in the order of the communication stream */
	uint64_t submitted; /* before that */
	struct block *next; /* in the list of idle blocks */
};

struct zero_memory_pool {
	struct zero_device *device;
	zero_allocator allocator; /* alloc is NULL: the driver's pool is used */
	pthread_mutex_t lock;
	void *live; /* tree of tsearch */
	struct block *idle;
	struct block *kept; /* of gradients, from one step to the next */
	size_t kept_bytes;
	bool keeps_nothing;
	size_t idle_bytes;
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

/* A caching allocator expects the stream that the block was allocated for. */
static void free_to_allocator(struct zero_memory_pool *memory, const struct block *block,
			      CUstream stream)
{
	struct zero_device *device = memory->device;

	if (stream != block->stream) {
		CUevent done = zero_event_record(device, stream);

		zero_stream_wait(device, block->stream, done);
		zero_event_put(device, done);
	}
	memory->allocator.free(memory->allocator.context, block->base, block->base_bytes,
			       (int)device->id, block->stream);
}

static void free_block(struct zero_memory_pool *memory, struct block *block, CUstream stream)
{
	struct zero_device *device = memory->device;

	if (block->pinned)
		zero_device_check(device, zero_driver.host_free(block->base), "cuMemFreeHost");
	else if (memory->allocator.alloc)
		free_to_allocator(memory, block, stream);
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

/* ---- gradients: the same blocks in each step, so that a graph can have them ------------------- */

/* A graph allocates nothing. What is kept is within the limit, and at most twice what there ever was of
   gradients; nothing is, once the device had no memory. */
static bool may_keep(const struct zero_memory_pool *memory, const struct block *block)
{
	const struct zero_account *account = &memory->account;
	size_t kept = memory->kept_bytes + block->bytes;

	return block->kind == ZERO_MEM_GRADIENTS && !memory->allocator.alloc &&
	       !memory->keeps_nothing && kept / 2 <= account->by_kind[ZERO_MEM_GRADIENTS].peak &&
	       account->total.now <= account->limit && kept <= account->limit - account->total.now;
}

static void keep(struct zero_memory_pool *memory, struct block *block, CUstream stream)
{
	block->by_comm = stream == memory->device->comm_stream;
	block->submitted = memory->device->submitted;
	block->next = memory->kept;
	memory->kept = block;
	memory->kept_bytes += block->bytes;
}

/* Returns a block that needs no wait, or NULL. */
static struct block *reuse_kept(struct zero_memory_pool *memory, size_t bytes, CUstream stream)
{
	const struct zero_device *device = memory->device;
	uint64_t joined = device->joined;

	if (stream != device->compute_stream)
		return NULL;
	if (device->joined_in_capture > joined && zero_device_capturing(device))
		joined = device->joined_in_capture;
	for (struct block **at = &memory->kept; *at; at = &(*at)->next) {
		struct block *block = *at;

		if (block->bytes != bytes || (block->by_comm && block->submitted > joined))
			continue;
		*at = block->next;
		memory->kept_bytes -= bytes;
		return block;
	}
	return NULL;
}

static void drop_kept(struct zero_memory_pool *memory)
{
	while (memory->kept) {
		struct block *block = memory->kept;

		memory->kept = block->next;
		memory->kept_bytes -= block->bytes;
		free_block(memory, block,
			   block->by_comm ? memory->device->comm_stream
					  : memory->device->compute_stream);
	}
}

/* The driver can reclaim freed memory once the stream has reached the point of the free. */
static void trim_device(struct zero_memory_pool *memory)
{
	struct zero_device *device = memory->device;

	memory->keeps_nothing |= memory->kept != NULL;
	drop_kept(memory);
	if (device->hung)
		return;
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
static bool is_free(const struct block *block)
{
	return !block->freed || zero_driver.event_query(block->freed) != CUDA_ERROR_NOT_READY;
}

static struct block *take_idle(struct zero_memory_pool *memory, struct block **at)
{
	struct block *block = *at;

	*at = block->next;
	memory->idle_bytes -= block->bytes;
	return block;
}

/* Removes and returns the smallest idle block that is large enough, wastes at most an eighth, and
   needs no wait; or returns NULL. */
static struct block *reuse_idle(struct zero_memory_pool *memory, size_t bytes)
{
	struct block **best = NULL;

	for (struct block **at = &memory->idle; *at; at = &(*at)->next)
		if ((*at)->bytes >= bytes && (*at)->bytes - bytes <= bytes / 8 && is_free(*at) &&
		    (!best || (*at)->bytes < (*best)->bytes))
			best = at;
	if (!best)
		return NULL;
	return take_idle(memory, best);
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
	for (struct block **at = &memory->idle; *at && memory->idle_bytes > IDLE_MOST;)
		if (is_free(*at))
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
	struct block *block = zero_on_device(kind) ? NULL : reuse_idle(memory, bytes);

	if (kind == ZERO_MEM_GRADIENTS)
		block = reuse_kept(memory, bytes, stream);
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
		status = zero_event_synchronize(device, block->freed);
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
		block->freed = zero_event_record(memory->device, stream);
		block->next = memory->idle;
		memory->idle = block;
		memory->idle_bytes += block->bytes;
		bound_idle(memory);
	} else if (block && may_keep(memory, block)) {
		keep(memory, block, stream);
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
	drop_kept(memory);
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

void zero_memory_read(struct zero_memory_pool *memory, zero_memory *bytes)
{
	pthread_mutex_lock(&memory->lock);
	zero_account_read(&memory->account, bytes);
	pthread_mutex_unlock(&memory->lock);
}

void zero_memory_at_peak(struct zero_memory_pool *memory, size_t kinds[ZERO_MEM_KINDS])
{
	pthread_mutex_lock(&memory->lock);
	zero_account_at_peak(&memory->account, kinds);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory, with and without pools, and page-locked memory. */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { GRAIN = 512 };

static size_t whole(size_t bytes)
{
	return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

static size_t larger(size_t a, size_t b)
{
	return a > b ? a : b;
}

CUresult CUDAAPI cuMemGetInfo_v2(size_t *unused, size_t *total)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result) {
		*unused = double_settings.memory - double_current()->reserved;
		*total = double_settings.memory;
	}
	return double_leave(result);
}

/* Reduces the reserved bytes to `keep`, or to the bytes in use if they are more. */
static void trim(CUmemoryPool pool, size_t keep)
{
	size_t least = larger(larger(pool->used, pool->held), keep);

	if (pool->reserved > least) {
		pool->context->reserved -= pool->reserved - least;
		pool->reserved = least;
	}
}

void double_pools_trim(CUcontext context)
{
	for (struct double_object *o = double_objects(); o; o = o->next)
		if (o->kind == DOUBLE_POOL && ((CUmemoryPool)o)->context == context)
			trim((CUmemoryPool)o, o->dead ? 0 : ((CUmemoryPool)o)->threshold);
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
			props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
			!double_context_of(props->location.id)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*pool = double_new(1, sizeof(**pool));
		double_object_add(*pool, DOUBLE_POOL);
		(*pool)->context = double_context_of(props->location.id);
		(*pool)->most = props->maxSize;
	}
	return double_leave(result);
}

/* A deleted pool stays until the last of its memory is freed. */
CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && double_object_check(pool, DOUBLE_POOL, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		pool->object.dead = true;
		trim(pool, 0);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
				       void *value)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && double_object_check(pool, DOUBLE_POOL, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (result)
		return double_leave(result);
	switch (attribute) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		pool->threshold = *(const cuuint64_t *)value;
		break;
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		break;
	default:
		result = CUDA_ERROR_INVALID_VALUE;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && double_object_check(pool, DOUBLE_POOL, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		trim(pool, keep);
	return double_leave(result);
}

/* Freed memory counts as free from the call on: an allocation that reuses it waits for it. */
static CUresult reserve(CUmemoryPool pool, size_t bytes)
{
	CUcontext context = pool->context;
	size_t grow = 0;

	if (bytes > double_settings.memory || (pool->most && bytes > pool->most - pool->used))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (pool->used + bytes > pool->reserved)
		grow = pool->used + bytes - pool->reserved;
	if (grow > double_settings.memory - context->reserved)
		return CUDA_ERROR_OUT_OF_MEMORY;
	context->reserved += grow;
	pool->reserved += grow;
	pool->used += bytes;
	pool->held += bytes;
	return CUDA_SUCCESS;
}

/* The free is an operation of its own, so that an unordered use by another stream is detected. */
static CUresult access_whole(struct double_op *op)
{
	void *at = (void *)op->block->base;

	double_access_add(op, &at, op->block->bytes, 1, true);
	return double_access(op, 0);
}

/* Poisons only both ends of a long block, because touching all its pages takes long. */
void double_poison(void *data, size_t bytes)
{
	const size_t end = 512 << 10;

	if (bytes <= 2 * end) {
		memset(data, DOUBLE_POISON, bytes);
		return;
	}
	memset(data, DOUBLE_POISON, end);
	memset((char *)data + bytes - end, DOUBLE_POISON, end);
}

static CUresult run_alloc(struct double_op *op)
{
	CUresult result;

	double_poison(op->block->data, op->block->bytes);
	double_lock();
	op->block->state = DOUBLE_LIVE;
	result = access_whole(op);
	double_unlock();
	return result;
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr *data, size_t bytes, CUmemoryPool pool,
					 CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	struct double_op *op;
	CUstream stream;

	if (!result && double_object_check(pool, DOUBLE_POOL, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	/* the driver would make it memory of the graph, which is not that of the pool */
	if (!result && stream->capture)
		result = double_capture_spoil(stream->capture,
					      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (!result && (!bytes || pool->context != stream->context))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && bytes > SIZE_MAX - GRAIN)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result)
		result = reserve(pool, whole(bytes));
	if (!result) {
		op = double_op_new(__func__, run_alloc);
		op->always = true;
		op->block = double_block_new(bytes, false, false, pool->context);
		op->block->pool = pool;
		*data = op->block->base;
		double_queue(stream, op);
	}
	return double_leave(result);
}

static void block_back(struct double_block *block)
{
	CUmemoryPool pool = block->pool;

	double_block_gone(block);
	if (!pool) {
		block->context->reserved -= block->pinned ? 0 : whole(block->bytes);
		return;
	}
	pool->held -= whole(block->bytes);
	if (pool->object.dead)
		trim(pool, 0);
}

static CUresult run_free(struct double_op *op)
{
	CUresult result;

	double_lock();
	if (op->block->state != DOUBLE_LIVE)
		double_die(
			"cuMemFreeAsync: %p is freed before it is allocated, in the order of the "
			"streams",
			(void *)op->block->base);
	result = access_whole(op);
	block_back(op->block);
	double_unlock();
	return result;
}

/* Returns the block that begins there, for the caller to free. */
static CUresult block_to_free(uintptr_t at, bool pinned, const char *call,
			      struct double_block **block)
{
	*block = double_block_find(at);
	if (!*block || (*block)->base != at || (*block)->pinned != pinned || (*block)->physical)
		return CUDA_ERROR_INVALID_VALUE;
	if ((*block)->freed)
		double_die("%s: %p was freed before (%zu bytes, the %lluth allocated)", call,
			   (void *)at, (*block)->bytes, (unsigned long long)(*block)->number);
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr data, CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);
	struct double_block *block;
	struct double_op *op;
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	/* a graph frees what it allocates */
	if (!result && stream->capture)
		result = double_capture_spoil(stream->capture, CUDA_ERROR_INVALID_VALUE);
	if (!result)
		result = block_to_free(data, false, __func__, &block);
	if (!result) {
		block->freed = true;
		if (block->pool)
			block->pool->used -= whole(block->bytes);
		op = double_op_new(__func__, run_free);
		op->always = true;
		op->block = block;
		double_queue(stream, op);
		result = double_current()->fault;
	}
	return double_leave(result);
}

/* This is not ordered with any stream, so no operation may still use the memory. */
static void free_now(struct double_block *block, const char *call)
{
	double_block_wait(block);
	if (block->pending)
		double_die(
			"%s: %p is still used by %u operations (%zu bytes, the %lluth allocated)",
			call, (void *)block->base, block->pending, block->bytes,
			(unsigned long long)block->number);
	block->freed = true;
	block_back(block);
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr *data, size_t bytes)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUcontext context = double_current();
	struct double_block *block;

	if (!result && !bytes)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && (bytes > double_settings.memory ||
			whole(bytes) > double_settings.memory - context->reserved))
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result) {
		block = double_block_new(bytes, false, true, context);
		context->reserved += whole(bytes);
		memset(block->data, DOUBLE_POISON, bytes);
		block->state = DOUBLE_LIVE;
		*data = block->base;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr data)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);
	struct double_block *block;

	if (!result && data) {
		result = block_to_free(data, false, __func__, &block);
		if (!result) {
			double_context_drain(block->context);
			if (block->pool)
				block->pool->used -= whole(block->bytes);
			free_now(block, __func__);
			result = double_current()->fault;
		}
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemHostAlloc(void **data, size_t bytes, unsigned int flags)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	struct double_block *block;

	if (!result &&
	    (!bytes || flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP |
					   CU_MEMHOSTALLOC_WRITECOMBINED)))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && bytes >= SIZE_MAX / 4)
		result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!result) {
		block = double_block_new(bytes, true, true, double_current());
		memset(block->data, DOUBLE_POISON, bytes);
		block->state = DOUBLE_LIVE;
		*data = block->data;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuMemFreeHost(void *data)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);
	struct double_block *block;

	if (!result)
		result = block_to_free((uintptr_t)data, true, __func__, &block);
	if (!result) {
		free_now(block, __func__);
		result = double_current()->fault;
	}
	return double_leave(result);
}

static CUresult attribute_of(const struct double_block *block, CUpointer_attribute attribute,
			     CUdeviceptr at, void *value)
{
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)value = block->context;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)value = block->pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)value = at;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (!block->pinned)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)value = (void *)at;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)value = 0;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)value = block->number;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = block->context->device;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)value = block->base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)value = block->bytes;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)value = block->pool;
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr at)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);
	const struct double_block *block;

	if (!result) {
		block = double_block_find(at);
		result = block && !block->freed ? attribute_of(block, attribute, at, value)
						: CUDA_ERROR_INVALID_VALUE;
	}
	return double_leave(result);
}

void *double_cuda_reach(CUdeviceptr data, size_t bytes, bool write)
{
	struct double_op *op = double_in_function;
	void *at = (void *)data;
	struct double_block *block;
	size_t first;

	double_lock();
	block = double_block_find(data);
	if (!block || block->state != DOUBLE_LIVE || block->bytes - (data - block->base) < bytes ||
	    !double_block_allows(block, write))
		at = NULL;
	else
		at = block->data + (data - block->base);
	if (at && op) {
		at = (void *)data;
		first = op->access_count;
		double_access_add(op, &at, bytes, 1, write);
		if (double_access(op, first))
			at = NULL;
	}
	double_unlock();
	return at;
}

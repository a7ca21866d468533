/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills. With the program's ordinary memory a copy is what the driver says of it: the
 * source may be changed after the call, and a result is there when the call returns.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

static CUresult run_copy(struct double_op *op)
{
	const char *to = op->to, *from = op->from;

	if (to + op->bytes <= from || from + op->bytes <= to)
		double_write_late(op->stream, op->to, op->bytes);
	memmove(op->to, op->from, op->bytes);
	return CUDA_SUCCESS;
}

static CUresult run_set(struct double_op *op)
{
	double_write_late(op->stream, op->to, op->bytes);
	memset(op->to, (int)op->value, op->bytes);
	return CUDA_SUCCESS;
}

/* *block is NULL for pageable memory. */
static CUresult block_of(uintptr_t at, size_t bytes, struct double_block **block)
{
	*block = double_block_find(at);
	double_virtual_check(at, "a copy or fill");
	if (*block && (*block)->bytes - (at - (*block)->base) < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

/* The source is copied now, because it may change after the call. */
static void stage(struct double_op *op)
{
	op->staging = malloc(op->bytes);
	if (!op->staging)
		double_die("the host has no %zu bytes", op->bytes);
	double_unlock();
	memcpy(op->staging, op->from, op->bytes);
	double_lock();
	op->from = op->staging;
}

static CUresult copy(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
	struct double_block *source, *target;
	struct double_op *op;
	bool wait;

	if (block_of(from, bytes, &source) || block_of(to, bytes, &target))
		return CUDA_ERROR_INVALID_VALUE;
	/* stricter than the driver: a graph would read or write that memory at each launch */
	if (stream->capture && (!source || !target))
		return double_capture_spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	op = double_op_new("cuMemcpyAsync", run_copy);
	op->to = (void *)to;
	op->from = (void *)from;
	op->bytes = bytes;
	if (source)
		double_access_add(op, &op->from, bytes, 1, false);
	if (target)
		double_access_add(op, &op->to, bytes, 1, true);
	wait = !stream->capture && (!target || ((!source || source->pinned) && target->pinned));
	if (!source && !wait)
		stage(op);
	double_queue(stream, op);
	if (!wait)
		return CUDA_SUCCESS;
	double_stream_drain(stream);
	return stream->context->fault;
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && bytes)
		result = copy(stream, to, from, bytes);
	return double_leave(result);
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	struct double_block *block;
	struct double_op *op;
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && bytes && (block_of(to, bytes, &block) || !block))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && bytes) {
		op = double_op_new(__func__, run_set);
		op->to = (void *)to;
		op->value = value;
		op->bytes = bytes;
		double_access_add(op, &op->to, bytes, 1, true);
		double_queue(stream, op);
	}
	return double_leave(result);
}

/* The host may read the value at any time: it is never half of one. */
static CUresult run_write(struct double_op *op)
{
	__atomic_store_n((uint32_t *)op->to, op->value, __ATOMIC_SEQ_CST);
	return CUDA_SUCCESS;
}

static CUresult write_value(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned int flags)
{
	struct double_block *block;
	struct double_op *op;

	if (at % sizeof(value) || flags || block_of(at, sizeof(value), &block) || !block)
		return CUDA_ERROR_INVALID_VALUE;
	/* stricter than new drivers */
	if (stream->capture)
		return double_capture_spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	op = double_op_new("cuStreamWriteValue32", run_write);
	op->to = (void *)at;
	op->value = value;
	op->bytes = sizeof(value);
	double_access_add(op, &op->to, op->bytes, 1, true);
	double_queue(stream, op);
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr at, cuuint32_t value,
					 unsigned int flags)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result)
		result = write_value(stream, at, value, flags);
	return double_leave(result);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Modules, whose image is ignored, and launches. */
#include <string.h>

#include "cuda.h"
#include "../../kernels/kernels.h"

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result && !image)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*module = double_new(1, sizeof(**module));
		double_object_add(*module, DOUBLE_MODULE);
		(*module)->context = double_current();
	}
	return double_leave(result);
}

CUresult CUDAAPI cuModuleUnload(CUmodule module)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);

	if (!result && double_object_check(module, DOUBLE_MODULE, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		module->object.dead = true;
		for (struct double_object *o = double_objects(); o; o = o->next)
			if (o->kind == DOUBLE_FUNCTION && ((CUfunction)o)->module == module)
				o->dead = true;
		result = module->context->fault;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result && double_object_check(module, DOUBLE_MODULE, __func__))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && !double_kernel_find(name))
		result = CUDA_ERROR_NOT_FOUND;
	if (!result) {
		*function = double_new(1, sizeof(**function));
		double_object_add(*function, DOUBLE_FUNCTION);
		(*function)->module = module;
		(*function)->kernel = double_kernel_find(name);
	}
	return double_leave(result);
}

/* A kernel is loaded when it is first asked for, and else at its first launch. */
CUresult CUDAAPI cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function,
							     int threads, size_t shared_bytes)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result)
		result = double_object_check(function, DOUBLE_FUNCTION, __func__);
	if (!result && (threads != ZERO_DEVICE_THREADS || shared_bytes))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		function->loaded = true;
		*blocks = 4;
	}
	return double_leave(result);
}

static CUresult run_kernel(struct double_op *op)
{
	return op->kernel->run(op, op->arguments);
}

static CUresult launch(CUfunction function, unsigned grid, CUstream stream, const void *arguments)
{
	struct double_op *op = double_op_new("cuLaunchKernel", run_kernel);

	op->kernel = function->kernel;
	op->grid = grid;
	op->arguments = double_new(1, op->kernel->size);
	memcpy(op->arguments, arguments, op->kernel->size);
	if (!op->kernel->memory(op, op->arguments))
		double_die("cuLaunchKernel: arguments or blocks that %s does not have",
			   op->kernel->name);
	double_queue(stream, op);
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
				unsigned int grid_z, unsigned int block_x, unsigned int block_y,
				unsigned int block_z, unsigned int shared_bytes, CUstream handle,
				void **arguments, void **extra)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result)
		result = double_object_check(function, DOUBLE_FUNCTION, __func__);
	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && function->module->context != stream->context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result && (!grid_x || grid_x > 0x7fffffff || grid_y != 1 || grid_z != 1 ||
			block_x != ZERO_DEVICE_THREADS || block_y != 1 || block_z != 1 ||
			shared_bytes > 48 * 1024 || !arguments || extra))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && !function->loaded && stream->capture)
		result = double_capture_spoil(stream->capture,
					      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (!result)
		result = launch(function, grid_x, stream, arguments[0]);
	if (!result)
		function->loaded = true;
	return double_leave(result);
}

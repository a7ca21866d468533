/* SPDX-License-Identifier: Apache-2.0 */
/* The device, its context, and the start and end of every call. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

enum { DEPTH = 64 };

/* One lock guards everything. Operations on streams run without it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t happened = PTHREAD_COND_INITIALIZER;

static bool initialised;
static struct CUctx_st only; /* of device 0 */
static struct double_object *objects;
static _Thread_local CUcontext stack[DEPTH];
static _Thread_local size_t depth;

_Thread_local struct double_op *double_in_function;

void double_die(const char *format, ...)
{
	va_list list;

	fputs("stand-in for CUDA: ", stderr);
	va_start(list, format);
	vfprintf(stderr, format, list);
	va_end(list);
	fputc('\n', stderr);
	abort();
}

void *double_new(size_t count, size_t size)
{
	void *data = calloc(count, size);

	if (!data)
		double_die("the host has no %zu bytes", count * size);
	return data;
}

void double_lock(void)
{
	pthread_mutex_lock(&mutex);
}

void double_unlock(void)
{
	pthread_mutex_unlock(&mutex);
}

void double_wait(void)
{
	pthread_cond_wait(&happened, &mutex);
}

bool double_wait_until(const struct timespec *end)
{
	return !pthread_cond_timedwait(&happened, &mutex, end);
}

void double_sleep(CUstream stream)
{
	pthread_cond_wait(&stream->work, &mutex);
}

void double_happened(void)
{
	pthread_cond_broadcast(&happened);
}

CUcontext double_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

CUcontext double_context_of(CUdevice device)
{
	return device == 0 && double_settings.devices ? &only : NULL;
}

static CUresult allowed(enum double_need need)
{
	CUcontext context = double_current();

	if (need == DOUBLE_NOTHING)
		return CUDA_SUCCESS;
	if (double_in_function)
		return CUDA_ERROR_NOT_PERMITTED;
	if (!initialised)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (need == DOUBLE_INIT)
		return CUDA_SUCCESS;
	if (!context)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!context->retained)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	return need == DOUBLE_CONTEXT ? context->fault : CUDA_SUCCESS;
}

CUresult double_enter(const char *call, enum double_need need)
{
	CUcontext context = double_current();
	CUresult result;

	double_lock();
	double_settings_read();
	result = double_injected(call);
	if (!result)
		result = double_capture_allows(call);
	if (double_is_sticky(result) && context && !context->fault)
		context->fault = result;
	return result ? result : allowed(need);
}

CUresult double_leave(CUresult result)
{
	double_unlock();
	return result;
}

void double_object_add(void *added, enum double_kind kind)
{
	struct double_object *object = added;

	object->kind = kind;
	object->next = objects;
	objects = object;
}

struct double_object *double_objects(void)
{
	return objects;
}

static const char *kind_name(enum double_kind kind)
{
	static const char *const names[] = {"stream",
					    "event",
					    "pool",
					    "module",
					    "function",
					    "physical memory",
					    "reserved addresses",
					    "graph",
					    "executable graph"};

	return names[kind - DOUBLE_STREAM];
}

CUresult double_object_check(const void *handle, enum double_kind kind, const char *call)
{
	const struct double_object *object = handle;

	/* small numbers are CUDA's special handles */
	if ((uintptr_t)handle < 4096 || (uintptr_t)handle % 8 || object->kind != kind)
		return CUDA_ERROR_INVALID_HANDLE;
	if (object->dead)
		double_die("%s: %s %p is no more", call, kind_name(kind), handle);
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuInit(unsigned int flags)
{
	CUresult result = double_enter(__func__, DOUBLE_NOTHING);

	if (!result && flags)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && !double_settings.devices)
		result = CUDA_ERROR_NO_DEVICE;
	initialised = initialised || !result;
	return double_leave(result);
}

CUresult CUDAAPI cuDriverGetVersion(int *version)
{
	CUresult result = double_enter(__func__, DOUBLE_NOTHING);

	if (!result)
		*version = CUDA_VERSION;
	return double_leave(result);
}

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	{CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	 "no kernel image is available for execution on the device"},
	{CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
	 "uncorrectable ECC error encountered"},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
	 "an illegal memory access was encountered"},
	{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	 "too many resources requested for launch"},
	{CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT",
	 "the launch timed out and was terminated"},
	{CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED",
	 "context is destroyed"},
	{CUDA_ERROR_MISALIGNED_ADDRESS, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	{CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	{CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE",
	 "the operation cannot be performed in the present state"},
	{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	 "operation not permitted when stream is capturing"},
	{CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
	 "operation failed due to a previous error during capture"},
	{CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
	 "operation would result in a merge of separate capture sequences"},
	{CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
	 "capture was not ended in the same stream as it began"},
	{CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
	 "capturing stream has unjoined work"},
	{CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
	 "dependency created on uncaptured work in another stream"},
	{CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
	 "operation would make the legacy stream depend on a capturing blocking stream"},
	{CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
	 "operation not permitted on an event last recorded in a capturing stream"},
	{CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
	 "attempt to terminate a thread-local capture sequence from another thread"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult look_up(CUresult error, bool name, const char **text)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		if (errors[i].result == error) {
			*text = name ? errors[i].name : errors[i].text;
			return CUDA_SUCCESS;
		}
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **text)
{
	return look_up(error, true, text);
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **text)
{
	return look_up(error, false, text);
}

CUresult CUDAAPI cuDeviceGetCount(int *count)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result)
		*count = double_settings.devices;
	return double_leave(result);
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && !double_context_of(ordinal))
		result = CUDA_ERROR_INVALID_DEVICE;
	if (!result)
		*device = ordinal;
	return double_leave(result);
}

static CUresult enter_device(const char *call, CUdevice device)
{
	CUresult result = double_enter(call, DOUBLE_INIT);

	return result || double_context_of(device) ? result : CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int size, CUdevice device)
{
	CUresult result = enter_device(__func__, device);

	if (!result && size < 1)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		snprintf(name, (size_t)size, "Stand-in");
	return double_leave(result);
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	CUresult result = enter_device(__func__, device);

	if (!result)
		memcpy(uuid->bytes, "stand-in GPU", 13);
	return double_leave(result);
}

CUresult CUDAAPI cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUresult result = enter_device(__func__, device);

	if (result)
		return double_leave(result);
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 3;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*value = 1024;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
		*value = 2048;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X:
		*value = 0x7fffffff;
		break;
	case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
		*value = 1;
		break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = 1;
		break;
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
		*value = getenv("DOUBLE_CUDA_FABRIC") != NULL;
		break;
	default:
		*value = 0;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	CUresult result = enter_device(__func__, device);

	if (!result) {
		*context = double_context_of(device);
		(*context)->retained++;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult result = enter_device(__func__, device);

	if (!result && !double_context_of(device)->retained)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result)
		double_context_of(device)->retained--;
	return double_leave(result);
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && context != &only)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result && !context->retained)
		result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	if (!result && depth == DEPTH)
		double_die("%s: %d contexts on the thread's stack", __func__, DEPTH);
	if (!result)
		stack[depth++] = context;
	return double_leave(result);
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext *context)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result && !depth)
		result = CUDA_ERROR_INVALID_CONTEXT;
	if (!result && context)
		*context = stack[depth - 1];
	depth -= !result;
	return double_leave(result);
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result)
		*context = double_current();
	return double_leave(result);
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result)
		*device = double_current()->device;
	return double_leave(result);
}

CUresult CUDAAPI cuCtxSynchronize(void)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result) {
		double_context_drain(double_current());
		result = double_current()->fault;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result && least)
		*least = 0;
	if (!result && greatest)
		*greatest = -5;
	return double_leave(result);
}

static bool counts(const struct double_object *object)
{
	const struct CUstream_st *stream = (const void *)object;

	return !object->dead && object->kind != DOUBLE_FUNCTION &&
	       (object->kind != DOUBLE_STREAM || stream != stream->context->legacy);
}

static size_t tell_alive(void)
{
	size_t alive = 0;

	double_lock();
	for (struct double_object *object = objects; object; object = object->next) {
		if (!counts(object))
			continue;
		alive++;
		fprintf(stderr, "stand-in for CUDA: left alive: %s %p\n", kind_name(object->kind),
			(void *)object);
	}
	alive += only.retained;
	if (only.retained)
		fprintf(stderr, "stand-in for CUDA: left alive: context, retained %u times\n",
			only.retained);
	alive += double_tell_blocks();
	double_unlock();
	return alive;
}

__attribute__((destructor)) static void at_exit(void)
{
	double_counts_write();
	if (!double_settings.leaks || !tell_alive())
		return;
	fflush(NULL);
	_exit(97);
}

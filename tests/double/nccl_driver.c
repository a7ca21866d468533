/* SPDX-License-Identifier: Apache-2.0 */
/* Calls the stand-in for the CUDA driver, which the program has loaded. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "nccl.h"

static struct {
	pthread_mutex_t mutex;
	_Atomic bool there;
	CUresult (*capturing)(CUstream, CUstreamCaptureStatus *);
	CUresult (*context)(CUcontext *);
	CUresult (*push)(CUcontext);
	CUresult (*pop)(CUcontext *);
	CUresult (*event_new)(CUevent *, unsigned);
	CUresult (*event_delete)(CUevent);
	CUresult (*event_record)(CUevent, CUstream);
	CUresult (*stream_wait)(CUstream, CUevent, unsigned);
	CUresult (*attribute)(void *, CUpointer_attribute, CUdeviceptr);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*handle)(CUmemGenericAllocationHandle *, void *);
	CUresult (*properties)(CUmemAllocationProp *, CUmemGenericAllocationHandle);
	CUresult (*release)(CUmemGenericAllocationHandle);
	/* extra functions of the stand-in for the driver */
	void *(*reach)(CUdeviceptr, size_t, bool);
	void (*quiet)(bool);
	CUresult (*launch)(CUstream, CUhostFn, void *, void *(*)(void *), void (*)(void *));
	bool (*pin)(CUdeviceptr, bool);
} driver = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void *find(const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);
	void *library;

	if (symbol)
		return symbol;
	/* the driver that the program has loaded stays loaded from now on */
	library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
	return library ? dlsym(library, name) : NULL;
}

void driver_find(void)
{
	pthread_mutex_lock(&driver.mutex);
	if (!driver.there) {
		*(void **)&driver.context = find("cuCtxGetCurrent");
		*(void **)&driver.push = find("cuCtxPushCurrent_v2");
		*(void **)&driver.pop = find("cuCtxPopCurrent_v2");
		*(void **)&driver.event_new = find("cuEventCreate");
		*(void **)&driver.event_delete = find("cuEventDestroy_v2");
		*(void **)&driver.event_record = find("cuEventRecord");
		*(void **)&driver.stream_wait = find("cuStreamWaitEvent");
		*(void **)&driver.attribute = find("cuPointerGetAttribute");
		*(void **)&driver.alloc = find("cuMemAlloc_v2");
		*(void **)&driver.free = find("cuMemFree_v2");
		*(void **)&driver.handle = find("cuMemRetainAllocationHandle");
		*(void **)&driver.properties = find("cuMemGetAllocationPropertiesFromHandle");
		*(void **)&driver.release = find("cuMemRelease");
		*(void **)&driver.pin = find("double_cuda_pin");
		*(void **)&driver.reach = find("double_cuda_reach");
		*(void **)&driver.quiet = find("double_cuda_quiet");
		*(void **)&driver.launch = find("double_cuda_launch");
		*(void **)&driver.capturing = find("cuStreamIsCapturing");
		if (!driver.launch || !driver.reach)
			die("there is no stand-in for the driver");
		driver.there = true;
	}
	pthread_mutex_unlock(&driver.mutex);
}

/* Calls made here do not count as calls of the program. */
static void quiet(bool on)
{
	driver.quiet(on);
}

bool driver_context(void **context)
{
	CUcontext current = NULL;
	CUresult result;

	quiet(true);
	result = driver.context(&current);
	quiet(false);
	*context = current;
	return !result && current;
}

void driver_push(void *context)
{
	CUresult result = CUDA_SUCCESS;

	quiet(true);
	if (context)
		result = driver.push(context);
	quiet(false);
	if (result)
		die("the context of a communicator cannot be pushed: %d", (int)result);
}

void driver_pop(void *context)
{
	CUcontext popped;

	quiet(true);
	if (context)
		driver.pop(&popped);
	quiet(false);
}

bool driver_captures(cudaStream_t stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult result;

	quiet(true);
	result = driver.capturing(stream, &status);
	quiet(false);
	return !result && status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

bool driver_run(cudaStream_t stream, void (*run)(void *), void *data, void *(*renew)(void *),
		void (*drop)(void *))
{
	CUresult result;

	quiet(true);
	result = driver.launch(stream, run, data, renew, drop);
	quiet(false);
	return result == CUDA_SUCCESS;
}

bool driver_order(cudaStream_t later, cudaStream_t earlier)
{
	CUevent event;
	bool good;

	if (later == earlier)
		return true;
	quiet(true);
	good = driver.event_new(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
	if (good) {
		good = driver.event_record(event, earlier) == CUDA_SUCCESS &&
		       driver.stream_wait(later, event, 0) == CUDA_SUCCESS;
		driver.event_delete(event);
	}
	quiet(false);
	return good;
}

static const char *refuses(CUdeviceptr at, size_t bytes)
{
	CUdeviceptr start = 0;
	unsigned type = 0;
	size_t size = 0;

	if (driver.attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) ||
	    (type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_HOST))
		return "is neither device nor pinned memory";
	if (driver.attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) ||
	    driver.attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at))
		return NULL;
	return at + bytes > start + size ? "ends after the memory that it lies in" : NULL;
}

const char *driver_refuses(const void *data, size_t bytes)
{
	const char *why;

	if (bytes == 0)
		return NULL;
	quiet(true);
	why = refuses((CUdeviceptr)(uintptr_t)data, bytes);
	quiet(false);
	return why;
}

/* NCCL gives memory of cuMemCreate to other processes by its handle. */
static const char *not_mapped(const void *data)
{
	const char *fabric = getenv("DOUBLE_CUDA_FABRIC");
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp properties;

	if (driver.handle(&handle, (void *)(uintptr_t)data))
		return "is memory of neither ncclMemAlloc nor cuMemCreate";
	if (driver.properties(&properties, handle) || driver.release(handle))
		return "has no handle";
	if (!(properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return "is memory of cuMemCreate without CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
	if (fabric && !strcmp(fabric, "yes") &&
	    !(properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC))
		return "is memory of cuMemCreate without CU_MEM_HANDLE_TYPE_FABRIC";
	if (!properties.allocFlags.gpuDirectRDMACapable)
		return "is memory of cuMemCreate without gpuDirectRDMACapable";
	return NULL;
}

const char *driver_not_mapped(const void *data, size_t bytes)
{
	const char *why = driver_refuses(data, bytes);

	quiet(true);
	if (!why)
		why = not_mapped(data);
	quiet(false);
	return why;
}

void driver_pin(const void *data, bool pin)
{
	driver.pin((CUdeviceptr)(uintptr_t)data, pin);
}

void *driver_reach(const void *data, size_t bytes, bool write)
{
	if (bytes == 0)
		return (void *)(uintptr_t)data;
	return driver.reach((CUdeviceptr)(uintptr_t)data, bytes, write);
}

void *driver_alloc(size_t bytes)
{
	CUdeviceptr data = 0;

	quiet(true);
	if (driver.alloc(&data, bytes))
		data = 0;
	quiet(false);
	return (void *)(uintptr_t)data;
}

bool driver_free(void *data)
{
	bool good;

	quiet(true);
	good = driver.free((CUdeviceptr)(uintptr_t)data) == CUDA_SUCCESS;
	quiet(false);
	return good;
}

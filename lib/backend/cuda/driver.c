/* SPDX-License-Identifier: Apache-2.0 */
/* Loads libcuda and finds its functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

#include "gpu.h"

struct zero_driver zero_driver;

/* Names of the driver's functions, in the order of struct zero_driver. */
static const char *const names[] = {
	"cuInit",
	"cuGetErrorName",
	"cuGetErrorString",
	"cuDeviceGetCount",
	"cuDeviceGet",
	"cuDeviceGetName",
	"cuDeviceGetUuid_v2",
	"cuDeviceGetAttribute",
	"cuDevicePrimaryCtxRetain",
	"cuDevicePrimaryCtxRelease_v2",
	"cuCtxPushCurrent_v2",
	"cuCtxPopCurrent_v2",
	"cuCtxGetCurrent",
	"cuCtxGetDevice",
	"cuCtxGetStreamPriorityRange",
	"cuMemGetInfo_v2",
	"cuMemPoolCreate",
	"cuMemPoolDestroy",
	"cuMemPoolSetAttribute",
	"cuMemPoolTrimTo",
	"cuMemAllocFromPoolAsync",
	"cuMemFreeAsync",
	"cuMemHostAlloc",
	"cuMemFreeHost",
	"cuPointerGetAttribute",
	"cuMemcpyAsync",
	"cuMemsetD8Async",
	"cuMemGetAllocationGranularity",
	"cuMemAddressReserve",
	"cuMemAddressFree",
	"cuMemCreate",
	"cuMemRelease",
	"cuMemMap",
	"cuMemUnmap",
	"cuMemSetAccess",
	"cuStreamCreateWithPriority",
	"cuStreamDestroy_v2",
	"cuStreamSynchronize",
	"cuStreamWaitEvent",
	"cuStreamWriteValue32_v2",
	"cuStreamGetCaptureInfo_v2",
	"cuEventCreate",
	"cuEventDestroy_v2",
	"cuEventRecord",
	"cuEventQuery",
	"cuEventElapsedTime",
	"cuModuleLoadData",
	"cuModuleUnload",
	"cuModuleGetFunction",
	"cuOccupancyMaxActiveBlocksPerMultiprocessor",
	"cuLaunchKernel",
};

_Static_assert(sizeof(names) / sizeof(names[0]) * sizeof(void *) == sizeof(struct zero_driver),
	       "names[] has one name for each function of struct zero_driver");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

static zero_status find_functions(void *library)
{
	void **function = (void **)(void *)&zero_driver;

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		function[i] = dlsym(library, names[i]);
		if (!function[i])
			return zero_core->fail(ZERO_E_UNSUPPORTED,
					       "the CUDA driver has no %s: CUDA 12 or newer is "
					       "needed",
					       names[i]);
	}
	return ZERO_OK;
}

/* The library stays loaded, because the driver leaves threads behind. */
static zero_status open_library(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	zero_status status;

	if (!library)
		return zero_core->fail(ZERO_E_UNSUPPORTED, "this machine has no CUDA driver: %s",
				       dlerror());
	status = find_functions(library);
	if (!status)
		status = zero_driver_status(zero_driver.init(0), "cuInit");
	if (status)
		dlclose(library);
	else
		opened = true;
	return status;
}

zero_status zero_driver_open(void)
{
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&lock);
	if (!opened)
		status = open_library();
	pthread_mutex_unlock(&lock);
	return status;
}

zero_status zero_driver_status(CUresult result, const char *call)
{
	const char *name = NULL, *text = NULL;

	if (result == CUDA_SUCCESS)
		return ZERO_OK;
	zero_driver.error_name(result, &name);
	zero_driver.error_text(result, &text);
	return zero_core->fail(result == CUDA_ERROR_OUT_OF_MEMORY ? ZERO_E_MEMORY : ZERO_E_COMM,
			       "%s failed: %s (%d), %s", call, name ? name : "unknown", (int)result,
			       text ? text : "without a description");
}

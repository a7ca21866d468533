/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver, loaded when the first job asks for it. The module therefore loads on machines
 * without a driver, needs no CUDA runtime, and shares the primary context with the runtime that the
 * program has. Kernels are embedded in the module and launched by name.
 */
#ifndef ZERO_DRIVER_H
#define ZERO_DRIVER_H

#include <cuda.h>

#include "core/module.h"

/* The comment of each member is the function's name in the driver, of CUDA 12 and later. */
struct zero_driver {
	CUresult (*init)(unsigned int flags);                  /* cuInit */
	CUresult (*error_name)(CUresult error, const char **); /* cuGetErrorName */
	CUresult (*error_text)(CUresult error, const char **); /* cuGetErrorString */

	CUresult (*device_count)(int *count);                           /* cuDeviceGetCount */
	CUresult (*device_get)(CUdevice *device, int ordinal);          /* cuDeviceGet */
	CUresult (*device_name)(char *name, int size, CUdevice device); /* cuDeviceGetName */
	CUresult (*device_uuid)(CUuuid *uuid, CUdevice device);         /* cuDeviceGetUuid_v2 */
	CUresult (*device_attribute)(int *value, CUdevice_attribute attribute,
				     CUdevice device);            /* cuDeviceGetAttribute */
	CUresult (*context_retain)(CUcontext *, CUdevice device); /* cuDevicePrimaryCtxRetain */
	CUresult (*context_release)(CUdevice device);             /* cuDevicePrimaryCtxRelease_v2 */
	CUresult (*context_push)(CUcontext);                      /* cuCtxPushCurrent_v2 */
	CUresult (*context_pop)(CUcontext *);                     /* cuCtxPopCurrent_v2 */
	CUresult (*context_current)(CUcontext *);                 /* cuCtxGetCurrent */
	CUresult (*context_device)(CUdevice *);                   /* cuCtxGetDevice */
	CUresult (*priorities)(int *least, int *greatest);        /* cuCtxGetStreamPriorityRange */

	CUresult (*memory_info)(size_t *free, size_t *total);         /* cuMemGetInfo_v2 */
	CUresult (*pool_new)(CUmemoryPool *, const CUmemPoolProps *); /* cuMemPoolCreate */
	CUresult (*pool_delete)(CUmemoryPool);                        /* cuMemPoolDestroy */
	CUresult (*pool_set)(CUmemoryPool, CUmemPool_attribute,
			     void *value);                /* cuMemPoolSetAttribute */
	CUresult (*pool_trim)(CUmemoryPool, size_t keep); /* cuMemPoolTrimTo */
	CUresult (*alloc)(CUdeviceptr *, size_t bytes, CUmemoryPool,
			  CUstream);             /* cuMemAllocFromPoolAsync */
	CUresult (*free)(CUdeviceptr, CUstream); /* cuMemFreeAsync */
	CUresult (*host_alloc)(void **, size_t bytes, unsigned int flags); /* cuMemHostAlloc */
	CUresult (*host_free)(void *);                                     /* cuMemFreeHost */
	CUresult (*pointer_attribute)(void *value, CUpointer_attribute,
				      CUdeviceptr); /* cuPointerGetAttribute */
	CUresult (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes,
			 CUstream); /* cuMemcpyAsync */
	CUresult (*set)(CUdeviceptr, unsigned char value, size_t bytes,
			CUstream); /* cuMemsetD8Async */

	/* Physical memory, which is mapped at addresses that are reserved apart from it. */
	CUresult (*granularity)(
		size_t *bytes, const CUmemAllocationProp *,
		CUmemAllocationGranularity_flags); /* cuMemGetAllocationGranularity */
	CUresult (*address_reserve)(CUdeviceptr *, size_t bytes, size_t alignment, CUdeviceptr wish,
				    unsigned long long flags); /* cuMemAddressReserve */
	CUresult (*address_free)(CUdeviceptr, size_t bytes);   /* cuMemAddressFree */
	CUresult (*physical_new)(CUmemGenericAllocationHandle *, size_t bytes,
				 const CUmemAllocationProp *,
				 unsigned long long flags);        /* cuMemCreate */
	CUresult (*physical_delete)(CUmemGenericAllocationHandle); /* cuMemRelease */
	CUresult (*map)(CUdeviceptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle,
			unsigned long long flags);    /* cuMemMap */
	CUresult (*unmap)(CUdeviceptr, size_t bytes); /* cuMemUnmap */
	CUresult (*set_access)(CUdeviceptr, size_t bytes, const CUmemAccessDesc *,
			       size_t count); /* cuMemSetAccess */

	CUresult (*stream_new)(CUstream *, unsigned int flags,
			       int priority); /* cuStreamCreateWithPriority */
	CUresult (*stream_delete)(CUstream);  /* cuStreamDestroy_v2 */
	CUresult (*stream_finish)(CUstream);  /* cuStreamSynchronize */
	CUresult (*stream_wait)(CUstream, CUevent, unsigned int flags); /* cuStreamWaitEvent */
	CUresult (*write_value)(CUstream, CUdeviceptr, cuuint32_t value,
				unsigned int flags); /* cuStreamWriteValue32_v2 */
	CUresult (*capture_info)(CUstream, CUstreamCaptureStatus *, cuuint64_t *id, CUgraph *,
				 const CUgraphNode **,
				 size_t *count);              /* cuStreamGetCaptureInfo_v2 */
	CUresult (*event_new)(CUevent *, unsigned int flags); /* cuEventCreate */
	CUresult (*event_delete)(CUevent);                    /* cuEventDestroy_v2 */
	CUresult (*event_record)(CUevent, CUstream);          /* cuEventRecord */
	CUresult (*event_query)(CUevent);                     /* cuEventQuery */
	CUresult (*event_elapsed)(float *milliseconds, CUevent begin,
				  CUevent end); /* cuEventElapsedTime */

	CUresult (*module_load)(CUmodule *, const void *image); /* cuModuleLoadData */
	CUresult (*module_unload)(CUmodule);                    /* cuModuleUnload */
	CUresult (*function_get)(CUfunction *, CUmodule,
				 const char *name); /* cuModuleGetFunction */
	CUresult (*occupancy)(
		int *blocks, CUfunction, int threads,
		size_t shared_bytes); /* cuOccupancyMaxActiveBlocksPerMultiprocessor */
	CUresult (*launch)(CUfunction, unsigned int grid_x, unsigned int grid_y,
			   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
			   unsigned int block_z, unsigned int shared_bytes, CUstream,
			   void **arguments, void **extra); /* cuLaunchKernel */
};

extern struct zero_driver zero_driver;

/* Loads libcuda.so.1, once in a process. An error names what is missing. */
zero_status zero_driver_open(void);
/* Returns ZERO_OK, ZERO_E_MEMORY if the device is out of memory, or else ZERO_E_COMM. The sentence
   has the driver's description: "<call> failed: <name>, <text>". */
zero_status zero_driver_status(CUresult result, const char *call);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The device: how it is chosen, opened and closed, and its first error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

/* ---- opening --------------------------------------------------------------------------------- */

/* A context that the program made current decides, because the process may see several GPUs. */
static zero_status find_device(struct zero_device *device, int local_rank)
{
	CUcontext current = NULL;
	zero_status status;
	int count = 0;

	zero_driver.context_current(&current);
	if (current)
		return zero_driver_status(zero_driver.context_device(&device->id),
					  "cuCtxGetDevice");
	status = zero_driver_status(zero_driver.device_count(&count), "cuDeviceGetCount");
	if (!status && !count)
		status = zero_core->fail(
			ZERO_E_UNSUPPORTED, "this process sees no GPU: CUDA_VISIBLE_DEVICES is %s",
			getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES")
						       : "not set");
	if (status)
		return status;
	return zero_driver_status(zero_driver.device_get(&device->id, local_rank % count),
				  "cuDeviceGet");
}

/* CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, which older headers lack. */
enum { FABRIC_SUPPORTED = 128 };

static zero_status query_device(struct zero_device *device)
{
	int pools = 0, fabric = 0;
	zero_status status;

	status = zero_driver_status(
		zero_driver.device_name(device->name, sizeof(device->name), device->id),
		"cuDeviceGetName");
	if (!status)
		status = zero_driver_status(zero_driver.device_uuid(&device->uuid, device->id),
					    "cuDeviceGetUuid");
	if (!status)
		status = zero_driver_status(
			zero_driver.device_attribute(&device->processors,
						     CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
						     device->id),
			"cuDeviceGetAttribute");
	if (!status)
		status = zero_driver_status(
			zero_driver.device_attribute(
				&pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, device->id),
			"cuDeviceGetAttribute");
	if (!status)
		status = zero_driver_status(
			zero_driver.device_attribute(
				&device->gpu_direct,
				CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
				device->id),
			"cuDeviceGetAttribute");
	/* Drivers before 12.3 do not know it. */
	if (!status && !zero_driver.device_attribute(&fabric, (CUdevice_attribute)FABRIC_SUPPORTED,
						     device->id))
		device->fabric = fabric;
	if (!status && !pools)
		status =
			zero_core->fail(ZERO_E_UNSUPPORTED,
					"%s has no stream-ordered memory allocation", device->name);
	return status;
}

/* Freed memory stays in the pool for the next allocation. */
static zero_status make_pool(struct zero_device *device)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device->id},
	};
	cuuint64_t keep = UINT64_MAX;
	zero_status status;

	status = zero_driver_status(zero_driver.pool_new(&device->pool, &props), "cuMemPoolCreate");
	if (status)
		return status;
	return zero_driver_status(
		zero_driver.pool_set(device->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep),
		"cuMemPoolSetAttribute");
}

static zero_status make_streams(struct zero_device *device)
{
	int least = 0, greatest = 0;
	zero_status status;

	/* Communication has priority over compute, because waiting for it means waiting for all
	   ranks. */
	status = zero_driver_status(zero_driver.priorities(&least, &greatest),
				    "cuCtxGetStreamPriorityRange");
	if (!status)
		status =
			zero_driver_status(zero_driver.stream_new(&device->comm_stream,
								  CU_STREAM_NON_BLOCKING, greatest),
					   "cuStreamCreateWithPriority");
	if (!status)
		status =
			zero_driver_status(zero_driver.stream_new(&device->reduce_stream,
								  CU_STREAM_NON_BLOCKING, greatest),
					   "cuStreamCreateWithPriority");
	return status;
}

zero_status zero_device_open(int local_rank, CUstream compute, struct zero_device **opened)
{
	struct zero_device *device = calloc(1, sizeof(*device));
	zero_status status;

	*opened = NULL;
	if (!device)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a device");
	pthread_mutex_init(&device->lock, NULL);
	pthread_mutex_init(&device->waits.lock, NULL);
	device->compute_stream = compute;
	status = find_device(device, local_rank);
	if (!status)
		status = query_device(device);
	if (!status)
		status =
			zero_driver_status(zero_driver.context_retain(&device->context, device->id),
					   "cuDevicePrimaryCtxRetain");
	if (!status) {
		zero_device_enter(device);
		status = make_streams(device);
		if (!status)
			status = make_pool(device);
		if (!status)
			status = zero_kernels_load(device);
		zero_device_leave(device);
	}
	if (status)
		zero_device_close(device);
	else
		*opened = device;
	return status;
}

void zero_device_finish(struct zero_device *device)
{
	CUstream streams[] = {device->comm_stream, device->reduce_stream, device->compute_stream};

	for (int i = 0; i < 3; i++) {
		struct zero_event *end = zero_event_record(device, streams[i]);

		if (end)
			zero_event_synchronize(device, end);
		zero_event_put(device, end);
	}
}

static void finish_stream(CUstream *stream, bool hung)
{
	if (!*stream || hung)
		return;
	zero_driver.stream_finish(*stream);
	zero_driver.stream_delete(*stream);
	*stream = NULL;
}

/* Errors of freeing are ignored. */
void zero_device_close(struct zero_device *device)
{
	if (!device)
		return;
	if (device->context) {
		zero_device_enter(device);
		finish_stream(&device->comm_stream, device->hung);
		finish_stream(&device->reduce_stream, device->hung);
		for (int i = 0; i < ZERO_DEVICE_EVENTS; i++)
			zero_event_put(device, device->events[i]);
		zero_waits_close(&device->waits);
		while (device->spare) {
			struct zero_event *event = device->spare;

			device->spare = event->next;
			zero_driver.event_delete(event->event);
			free(event);
		}
		if (device->module)
			zero_driver.module_unload(device->module);
		if (device->pool && !device->hung)
			zero_driver.pool_delete(device->pool);
		zero_device_leave(device);
		zero_driver.context_release(device->id);
	}
	pthread_mutex_destroy(&device->waits.lock);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

void zero_device_enter(struct zero_device *device)
{
	zero_device_check(device, zero_driver.context_push(device->context), "cuCtxPushCurrent");
}

void zero_device_leave(struct zero_device *device)
{
	CUcontext popped;

	zero_device_check(device, zero_driver.context_pop(&popped), "cuCtxPopCurrent");
}

/* ---- errors ---------------------------------------------------------------------------------- */

bool zero_device_check(struct zero_device *device, CUresult result, const char *call)
{
	zero_status status;

	if (result == CUDA_SUCCESS)
		return true;
	status = zero_driver_status(result, call);
	pthread_mutex_lock(&device->lock);
	if (!device->error) {
		device->error = status;
		snprintf(device->error_text, sizeof(device->error_text), "%s on %s",
			 zero_core->last_error(), device->name);
	}
	pthread_mutex_unlock(&device->lock);
	return false;
}

bool zero_device_failed(struct zero_device *device, char *text, size_t size)
{
	bool failed;

	pthread_mutex_lock(&device->lock);
	failed = device->error && device->error != ZERO_E_MEMORY;
	if (failed)
		snprintf(text, size, "%s", device->error_text);
	pthread_mutex_unlock(&device->lock);
	return failed;
}

zero_status zero_device_error(struct zero_device *device)
{
	zero_status status;

	pthread_mutex_lock(&device->lock);
	status = device->error;
	if (status)
		zero_core->fail(status, "%s", device->error_text);
	/* Memory may be free another time; other errors stay. */
	if (status == ZERO_E_MEMORY)
		device->error = ZERO_OK;
	pthread_mutex_unlock(&device->lock);
	return status;
}

bool zero_device_can_read(const void *data, bool *on_device)
{
	CUmemorytype type = 0;
	CUresult result = zero_driver.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
							(CUdeviceptr)(uintptr_t)data);

	*on_device = result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
	return result == CUDA_SUCCESS && type != 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu.h"

/* In the order of enum zero_kernel. */
static const char *const kernel_names[ZERO_KERNELS] = {
	[ZERO_K_CAST] = "zero_device_cast",
	[ZERO_K_SUM] = "zero_device_sum",
	[ZERO_K_ADAMW] = "zero_device_adamw",
	[ZERO_K_NORM2] = "zero_device_norm2",
	[ZERO_K_NORM2_FOLD] = "zero_device_norm2_fold",
	[ZERO_K_FILL] = "zero_device_fill",
	[ZERO_K_UNIFORM] = "zero_device_uniform",
	[ZERO_K_NORMAL] = "zero_device_normal",
	[ZERO_K_COPY_MANY] = "zero_device_copy_many",
};

/* ---- opening --------------------------------------------------------------------------------- */

/* The program's choice counts: it may have more than one rank's GPUs in sight. */
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

static zero_status look_at_device(struct zero_device *device)
{
	int pools = 0;
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
	if (!status && !pools)
		status = zero_core->fail(ZERO_E_UNSUPPORTED,
					 "%s cannot allocate memory in the order of a stream",
					 device->name);
	return status;
}

/* What was freed stays in the pool for the next allocation. */
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

	/* Communication goes before compute: who waits for it waits for all ranks. */
	status = zero_driver_status(zero_driver.priorities(&least, &greatest),
				    "cuCtxGetStreamPriorityRange");
	if (!status)
		status = zero_driver_status(
			zero_driver.stream_new(&device->comm, CU_STREAM_NON_BLOCKING, greatest),
			"cuStreamCreateWithPriority");
	if (!status)
		status = zero_driver_status(
			zero_driver.stream_new(&device->side, CU_STREAM_NON_BLOCKING, greatest),
			"cuStreamCreateWithPriority");
	return status;
}

static zero_status load_kernels(struct zero_device *device)
{
	zero_status status = zero_driver_status(
		zero_driver.module_load(&device->module, zero_device_image), "cuModuleLoadData");

	for (int k = 0; !status && k < ZERO_KERNELS; k++)
		status = zero_driver_status(zero_driver.function_get(&device->functions[k],
								     device->module,
								     kernel_names[k]),
					    kernel_names[k]);
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
	device->compute = compute;
	status = find_device(device, local_rank);
	if (!status)
		status = look_at_device(device);
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
			status = load_kernels(device);
		zero_device_leave(device);
	}
	if (status)
		zero_device_close(device);
	else
		*opened = device;
	return status;
}

static void finish_stream(CUstream *stream, bool stuck)
{
	if (!*stream || stuck)
		return;
	zero_driver.stream_finish(*stream);
	zero_driver.stream_delete(*stream);
	*stream = NULL;
}

/* At the end nobody asks for the errors of giving things back. */
void zero_device_close(struct zero_device *device)
{
	if (!device)
		return;
	if (device->context) {
		zero_device_enter(device);
		finish_stream(&device->comm, device->stuck);
		finish_stream(&device->side, device->stuck);
		for (int i = 0; i < ZERO_MARKS; i++)
			if (device->marks[i])
				zero_driver.event_delete(device->marks[i]);
		for (size_t i = 0; i < device->spare_count; i++)
			zero_driver.event_delete(device->spare[i]);
		if (device->module)
			zero_driver.module_unload(device->module);
		if (device->pool && !device->stuck)
			zero_driver.pool_delete(device->pool);
		zero_device_leave(device);
		zero_driver.context_release(device->id);
	}
	free(device->spare);
	pthread_mutex_destroy(&device->lock);
	free(device);
}

void zero_device_enter(struct zero_device *device)
{
	zero_device_note(device, zero_driver.context_push(device->context), "cuCtxPushCurrent");
}

void zero_device_leave(struct zero_device *device)
{
	CUcontext popped;

	zero_device_note(device, zero_driver.context_pop(&popped), "cuCtxPopCurrent");
}

/* ---- errors ---------------------------------------------------------------------------------- */

bool zero_device_note(struct zero_device *device, CUresult result, const char *call)
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
	/* What found no memory may find some another time; other errors stay. */
	if (status == ZERO_E_MEMORY)
		device->error = ZERO_OK;
	pthread_mutex_unlock(&device->lock);
	return status;
}

/* ---- events ---------------------------------------------------------------------------------- */

CUevent zero_event_get(struct zero_device *device)
{
	CUevent event = NULL;

	pthread_mutex_lock(&device->lock);
	if (device->spare_count)
		event = device->spare[--device->spare_count];
	pthread_mutex_unlock(&device->lock);
	if (!event &&
	    !zero_device_note(device, zero_driver.event_new(&event, CU_EVENT_DISABLE_TIMING),
			      "cuEventCreate"))
		event = NULL;
	return event;
}

void zero_event_put(struct zero_device *device, CUevent event)
{
	if (!event)
		return;
	pthread_mutex_lock(&device->lock);
	if (device->spare_count == device->spare_room) {
		size_t room = device->spare_room ? 2 * device->spare_room : 64;
		CUevent *more = realloc(device->spare, room * sizeof(CUevent));

		if (more) {
			device->spare = more;
			device->spare_room = room;
		}
	}
	if (device->spare_count < device->spare_room) {
		device->spare[device->spare_count++] = event;
		event = NULL;
	}
	pthread_mutex_unlock(&device->lock);
	if (event)
		zero_driver.event_delete(event);
}

CUevent zero_event_record(struct zero_device *device, CUstream stream)
{
	CUevent event = zero_event_get(device);

	if (event)
		zero_device_note(device, zero_driver.event_record(event, stream), "cuEventRecord");
	return event;
}

void zero_event_order(struct zero_device *device, CUstream stream, CUevent event)
{
	if (event)
		zero_device_note(device, zero_driver.stream_wait(stream, event, 0),
				 "cuStreamWaitEvent");
}

/* Of a communicator that was aborted all work ends soon. */
enum { ABORT_SECONDS = 10 };

/* Whether the ranks have fallen apart, since `*since`. */
static bool is_broken(struct zero_device *device, double *since, zero_status *status)
{
	char text[1024];
	int rank = 0;

	if (!device->is_broken ||
	    !device->is_broken(device->on_failure_context, text, sizeof(text), &rank))
		return false;
	*status = zero_core->fail_on(rank, ZERO_E_COMM, text);
	if (!*since)
		*since = zero_seconds();
	return true;
}

/* A short wait is spun through, as a step's norm should come at once; then the core is left to
   others between looks. */
zero_status zero_event_finish(struct zero_device *device, CUevent event)
{
	struct timespec pause = {0, 5000};
	zero_status status = ZERO_OK;
	double since = 0;
	CUresult result;

	for (int look = 0;; look++) {
		result = zero_driver.event_query(event);
		if (result != CUDA_ERROR_NOT_READY)
			break;
		if (look < 1000)
			continue;
		if (is_broken(device, &since, &status) && zero_seconds() - since > ABORT_SECONDS) {
			device->stuck = true;
			return status;
		}
		if (device->stuck)
			return zero_core->fail(ZERO_E_COMM, "what is under way on %s does not end",
					       device->name);
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 100000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	if (is_broken(device, &since, &status))
		return status;
	if (!zero_device_note(device, result, "cuEventQuery"))
		return zero_device_error(device);
	return ZERO_OK;
}

/* ---- marks ----------------------------------------------------------------------------------- */

/* An event stays in its place: who waits for it while it is recorded again waits longer. */
uint64_t zero_device_mark(struct zero_device *device)
{
	CUevent *event;
	uint64_t mark;

	pthread_mutex_lock(&device->lock);
	mark = ++device->last_mark;
	event = &device->marks[mark % ZERO_MARKS];
	pthread_mutex_unlock(&device->lock);
	if (!*event)
		*event = zero_event_get(device);
	if (*event)
		zero_device_note(device, zero_driver.event_record(*event, device->compute),
				 "cuEventRecord");
	return mark;
}

zero_status zero_device_reach(struct zero_device *device, uint64_t mark)
{
	CUevent event = mark ? device->marks[mark % ZERO_MARKS] : NULL;
	zero_status status = event ? zero_event_finish(device, event) : ZERO_OK;

	return status ? status : zero_device_error(device);
}

bool zero_device_reads(const void *data, bool *on_device)
{
	CUmemorytype type = 0;
	CUresult result = zero_driver.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
							(CUdeviceptr)(uintptr_t)data);

	*on_device = result == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
	return result == CUDA_SUCCESS && type != 0;
}

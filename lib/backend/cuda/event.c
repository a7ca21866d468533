/* SPDX-License-Identifier: Apache-2.0 */
/* Events: they order streams, and the host waits for them. Unused ones are kept for reuse. */
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "gpu.h"

CUevent zero_event_get(struct zero_device *device)
{
	CUevent event = NULL;

	pthread_mutex_lock(&device->lock);
	if (device->spare_count)
		event = device->spare[--device->spare_count];
	pthread_mutex_unlock(&device->lock);
	if (!event &&
	    !zero_device_check(device, zero_driver.event_new(&event, CU_EVENT_DISABLE_TIMING),
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
		zero_device_check(device, zero_driver.event_record(event, stream), "cuEventRecord");
	return event;
}

bool zero_device_capturing(const struct zero_device *device)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return !zero_driver.stream_capturing(device->compute_stream, &status) &&
	       status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

void zero_stream_wait(struct zero_device *device, CUstream stream, CUevent event)
{
	if (event)
		zero_device_check(device, zero_driver.stream_wait(stream, event, 0),
				  "cuStreamWaitEvent");
}

/* Work of a communicator that is aborted should end within this time. */
enum { ABORT_SECONDS = 10 };

bool zero_device_has_lost_peer(const struct zero_device *device, zero_status *status)
{
	char text[1024];
	int rank = 0;

	if (!device->has_failed ||
	    !device->has_failed(device->failure_context, text, sizeof(text), &rank))
		return false;
	*status = zero_core->fail_on(rank, ZERO_E_COMM, text);
	return true;
}

/* The same. *since is when this was first found. */
static bool has_failed(struct zero_device *device, double *since, zero_status *status)
{
	if (!zero_device_has_lost_peer(device, status))
		return false;
	if (!*since)
		*since = zero_seconds();
	return true;
}

/* Spins at first, because a step's norm should come at once. Then it sleeps between queries. */
zero_status zero_event_synchronize(struct zero_device *device, CUevent event)
{
	struct timespec pause = {0, 5000};
	zero_status status = ZERO_OK;
	double since = 0;
	CUresult result;

	for (int query = 0;; query++) {
		result = zero_driver.event_query(event);
		if (result != CUDA_ERROR_NOT_READY)
			break;
		if (query < 1000)
			continue;
		if (has_failed(device, &since, &status) && zero_seconds() - since > ABORT_SECONDS) {
			device->hung = true;
			return status;
		}
		if (device->hung)
			return zero_core->fail(ZERO_E_COMM, "the work on %s does not end",
					       device->name);
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 100000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
	if (has_failed(device, &since, &status))
		return status;
	if (!zero_device_check(device, result, "cuEventQuery"))
		return zero_device_error(device);
	return ZERO_OK;
}

/* ---- numbered events ------------------------------------------------------------------------- */

/* Number n reuses the event of n - ZERO_DEVICE_EVENTS: who waits for that one waits longer. */
uint64_t zero_device_record(struct zero_device *device)
{
	CUevent *event;
	uint64_t number;

	pthread_mutex_lock(&device->lock);
	number = ++device->last_event;
	event = &device->events[number % ZERO_DEVICE_EVENTS];
	pthread_mutex_unlock(&device->lock);
	if (!*event)
		*event = zero_event_get(device);
	if (*event)
		zero_device_check(device, zero_driver.event_record(*event, device->compute_stream),
				  "cuEventRecord");
	return number;
}

zero_status zero_device_wait(struct zero_device *device, uint64_t number)
{
	CUevent event = number ? device->events[number % ZERO_DEVICE_EVENTS] : NULL;
	zero_status status = event ? zero_event_synchronize(device, event) : ZERO_OK;

	return status ? status : zero_device_error(device);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Events: they order streams, and the host waits for them. Unused ones are kept for reuse. */
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "gpu.h"

struct zero_event *zero_event_get(struct zero_device *device)
{
	struct zero_event *event;

	pthread_mutex_lock(&device->lock);
	event = device->spare;
	if (event)
		device->spare = event->next;
	pthread_mutex_unlock(&device->lock);
	if (event)
		return event;
	event = calloc(1, sizeof(*event));
	if (zero_device_check(device,
			      event ? zero_driver.event_new(&event->event, CU_EVENT_DISABLE_TIMING)
				    : CUDA_ERROR_OUT_OF_MEMORY,
			      "cuEventCreate"))
		return event;
	free(event);
	return NULL;
}

void zero_event_put(struct zero_device *device, struct zero_event *event)
{
	if (!event)
		return;
	pthread_mutex_lock(&device->lock);
	event->next = device->spare;
	device->spare = event;
	pthread_mutex_unlock(&device->lock);
}

/* The number of the capture that the stream is in; 0: none. */
static cuuint64_t capture_of(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t id = 0;

	if (zero_driver.capture_info(stream, &status, &id, NULL, NULL, NULL) ||
	    status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return 0;
	return id;
}

bool zero_device_is_capturing(struct zero_device *device)
{
	return capture_of(device->compute_stream);
}

static void record(struct zero_device *device, struct zero_event *event, CUstream stream)
{
	event->capture = capture_of(stream);
	zero_device_check(device, zero_driver.event_record(event->event, stream), "cuEventRecord");
}

struct zero_event *zero_event_record(struct zero_device *device, CUstream stream)
{
	struct zero_event *event = zero_event_get(device);

	if (event)
		record(device, event, stream);
	return event;
}

void zero_stream_wait(struct zero_device *device, CUstream stream, const struct zero_event *event)
{
	if (!event)
		return;
	/* A stream joins the capture by waiting for one of its events. */
	if (event->capture ? event->capture != capture_of(device->compute_stream)
			   : capture_of(stream) != 0)
		return;
	zero_device_check(device, zero_driver.stream_wait(stream, event->event, 0),
			  "cuStreamWaitEvent");
}

bool zero_event_is_ahead(struct zero_device *device, const struct zero_event *event)
{
	/* CUDA refuses to be asked during a capture. */
	return event->capture || zero_device_is_capturing(device) ||
	       zero_driver.event_query(event->event) == CUDA_ERROR_NOT_READY;
}

/* Work of a communicator that is aborted should end within this time. */
enum { ABORT_SECONDS = 10 };

bool zero_device_has_lost_peer(const struct zero_device *device, zero_status *status)
{
	zero_status failed = ZERO_OK;
	char text[1024];
	int rank = 0;

	if (device->has_failed)
		failed = device->has_failed(device->failure_context, text, sizeof(text), &rank);
	if (failed)
		*status = zero_core->fail_on(rank, failed, text);
	return failed;
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
zero_status zero_event_synchronize(struct zero_device *device, const struct zero_event *event)
{
	struct timespec pause = {0, 5000};
	zero_status status = ZERO_OK;
	double since = 0;
	CUresult result;

	if (event->capture)
		return zero_core->fail(ZERO_E_STATE,
				       "the host would wait for %s, while or after the stream of "
				       "the program is captured: a capture may contain no call "
				       "that waits",
				       device->name);
	for (int query = 0;; query++) {
		result = zero_driver.event_query(event->event);
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

uint32_t zero_device_mark(struct zero_device *device)
{
	CUresult result;

	if (!device->reached || capture_of(device->comm_stream))
		return 0;
	device->last_mark += device->last_mark == UINT32_MAX ? 2 : 1;
	result = zero_driver.write_value(device->comm_stream, (CUdeviceptr)device->reached,
					 device->last_mark, CU_STREAM_WRITE_VALUE_DEFAULT);
	/* An error that matters is that of a later call, too. */
	return result ? 0 : device->last_mark;
}

/* ---- numbered events ------------------------------------------------------------------------- */

/* Number n reuses the event of n - ZERO_DEVICE_EVENTS: who waits for that one waits longer. */
uint64_t zero_device_record(struct zero_device *device)
{
	struct zero_event **event;
	uint64_t number;

	pthread_mutex_lock(&device->lock);
	number = ++device->last_event;
	event = &device->events[number % ZERO_DEVICE_EVENTS];
	pthread_mutex_unlock(&device->lock);
	if (!*event)
		*event = zero_event_get(device);
	if (*event)
		record(device, *event, device->compute_stream);
	return number;
}

zero_status zero_device_wait(struct zero_device *device, uint64_t number)
{
	const struct zero_event *event =
		number ? device->events[number % ZERO_DEVICE_EVENTS] : NULL;
	zero_status status = event ? zero_event_synchronize(device, event) : ZERO_OK;

	return status ? status : zero_device_error(device);
}

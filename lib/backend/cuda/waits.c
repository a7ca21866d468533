/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the caller's stream waits for communication: the time between two events on either side
 * of each wait, since the host goes on before the device gets there. While the host itself waits
 * the stream has nothing to do, which counts too.
 */
#include "gpu.h"

static bool make_event(struct zero_device *device, CUevent *event)
{
	return *event || zero_device_check(device, zero_driver.event_new(event, CU_EVENT_DEFAULT),
					   "cuEventCreate");
}

static bool record(struct zero_device *device, CUevent event)
{
	return zero_device_check(device, zero_driver.event_record(event, device->compute_stream),
				 "cuEventRecord");
}

/* Adds the seconds between two events. False: the device has not come to the second one. An error
   of the device comes with another call. */
static bool add_between(double *sum, CUevent begin, CUevent end)
{
	float milliseconds = 0;
	CUresult result = zero_driver.event_elapsed(&milliseconds, begin, end);

	if (result == CUDA_SUCCESS)
		*sum += 1e-3 * (double)milliseconds;
	return result != CUDA_ERROR_NOT_READY;
}

/* Adds the waits that the device has done, and the time before each of them. */
static void collect(struct zero_waits *waits)
{
	for (; waits->first < waits->next; waits->first++) {
		size_t at = waits->first % ZERO_WAITS, before = (waits->first - 1) % ZERO_WAITS;

		if (!add_between(&waits->spent.waited, waits->begins[at], waits->ends[at]))
			break;
		if (waits->first)
			add_between(&waits->spent.own, waits->ends[before], waits->begins[at]);
	}
}

void zero_wait_begins(struct zero_device *device)
{
	struct zero_waits *waits = &device->waits;
	size_t at;

	pthread_mutex_lock(&waits->lock);
	if (!waits->depth++ && !zero_device_is_capturing(device)) {
		collect(waits);
		at = waits->next % ZERO_WAITS;
		/* The end of the one before `first` is still needed. */
		waits->open = waits->next - waits->first < ZERO_WAITS - 1 &&
			      make_event(device, &waits->begins[at]) &&
			      make_event(device, &waits->ends[at]) &&
			      record(device, waits->begins[at]);
	}
	pthread_mutex_unlock(&waits->lock);
}

void zero_wait_ends(struct zero_device *device)
{
	struct zero_waits *waits = &device->waits;

	pthread_mutex_lock(&waits->lock);
	if (!--waits->depth && waits->open) {
		waits->open = false;
		waits->next += record(device, waits->ends[waits->next % ZERO_WAITS]);
	}
	pthread_mutex_unlock(&waits->lock);
}

struct zero_spent zero_wait_times(struct zero_device *device)
{
	struct zero_spent spent;

	pthread_mutex_lock(&device->waits.lock);
	if (!zero_device_is_capturing(device))
		collect(&device->waits);
	spent = device->waits.spent;
	pthread_mutex_unlock(&device->waits.lock);
	return spent;
}

void zero_waits_close(struct zero_waits *waits)
{
	for (size_t i = 0; i < ZERO_WAITS; i++) {
		if (waits->begins[i])
			zero_driver.event_delete(waits->begins[i]);
		if (waits->ends[i])
			zero_driver.event_delete(waits->ends[i]);
	}
}

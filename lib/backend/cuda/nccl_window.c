/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs of gathers in memory that NCCL knows, so that it may copy straight into them, by copy
 * engines where it can (symmetric windows, NCCL 2.27; zero-CTA policy, 2.28; before that registered
 * buffers). All ranks must gather
 * into the same window. Which one is idle depends on when threads released it: each rank chooses,
 * they compare when they agree on the submission, and where they chose differently all take a new
 * one. Windows are numbered in the order of their registration, which is collective.
 */
#include <stdlib.h>

#include "gpu.h"

struct zero_window {
	void *data;
	size_t bytes;
	void *handle; /* NCCL's; NULL: it does without */
	uint64_t id;  /* by registrations, the same on all ranks; 0: not registered */
	struct zero_windows *windows; /* that it belongs to */
	CUevent freed;                /* of an idle one: when it may be used again */
	struct zero_window *next;
};

/* Of one communicator: ranks have others in different teams. */
struct zero_windows {
	struct zero_nccl_comm *nccl;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	pthread_mutex_t lock;
	struct zero_window *idle;
	uint64_t registered;
	bool symmetric; /* else plain buffers that NCCL knows */
};

zero_status zero_windows_new(struct zero_nccl_comm *nccl, struct zero_memory_pool *memory,
			     bool symmetric, struct zero_windows **made)
{
	struct zero_windows *windows = calloc(1, sizeof(*windows));

	if (!windows)
		return zero_core->fail(ZERO_E_COMM, "no memory for windows");
	windows->nccl = nccl;
	windows->device = nccl->device;
	windows->memory = memory;
	windows->symmetric = symmetric;
	pthread_mutex_init(&windows->lock, NULL);
	*made = windows;
	return ZERO_OK;
}

static void delete_window(struct zero_windows *windows, struct zero_window *window)
{
	if (window->freed)
		zero_event_finish(windows->device, window->freed);
	zero_event_put(windows->device, window->freed);
	if (window->handle)
		zero_nccl_deregister(windows->nccl, window->handle, windows->symmetric);
	zero_nccl.mem_free(window->data);
	free(window);
}

/* One that is not registered is nothing to the other ranks. */
static void put_back(struct zero_windows *windows, struct zero_window *window)
{
	if (!window->id) {
		delete_window(windows, window);
		return;
	}
	pthread_mutex_lock(&windows->lock);
	window->next = windows->idle;
	windows->idle = window;
	pthread_mutex_unlock(&windows->lock);
}

/* What was freed may still be kept for the streams that freed it. */
static void *take_memory(struct zero_windows *windows, size_t bytes)
{
	void *data = NULL;

	if (zero_nccl.mem_alloc(&data, bytes) == ncclSuccess)
		return data;
	zero_memory_trim(windows->memory);
	return zero_nccl.mem_alloc(&data, bytes) == ncclSuccess ? data : NULL;
}

/* The idle one that fits best, however badly. What is registered stays so: NCCL's room for windows
   may not be used twice, and ranks must register the same in the same order. */
static struct zero_window *take_idle(struct zero_windows *windows, size_t bytes)
{
	struct zero_window **best = NULL, *found = NULL;

	pthread_mutex_lock(&windows->lock);
	for (struct zero_window **at = &windows->idle; *at; at = &(*at)->next)
		if ((*at)->bytes >= bytes &&
		    (!best || (*at)->bytes < (*best)->bytes ||
		     ((*at)->bytes == (*best)->bytes && (*at)->id < (*best)->id)))
			best = at;
	if (best) {
		found = *best;
		*best = found->next;
	}
	pthread_mutex_unlock(&windows->lock);
	return found;
}

zero_status zero_window_make(struct zero_windows *windows, size_t bytes, bool fresh,
			     struct zero_window **window)
{
	struct zero_window *made = fresh ? NULL : take_idle(windows, bytes);
	zero_status status;

	*window = NULL;
	status = zero_memory_count(windows->memory, ZERO_MEM_GATHERED, made ? made->bytes : bytes);
	if (status && made)
		put_back(windows, made);
	else
		*window = made;
	if (status || made)
		return status;
	made = calloc(1, sizeof(*made));
	if (made)
		made->data = take_memory(windows, bytes);
	if (!made || !made->data) {
		zero_memory_uncount(windows->memory, ZERO_MEM_GATHERED, bytes);
		free(made);
		return zero_memory_none(ZERO_MEM_GATHERED, bytes);
	}
	made->bytes = bytes;
	made->windows = windows;
	*window = made;
	return ZERO_OK;
}

zero_status zero_window_register(struct zero_window *window)
{
	struct zero_device *device = window->windows->device;
	struct zero_windows *windows = window->windows;

	if (window->freed) {
		zero_event_order(device, device->comm, window->freed);
		zero_event_put(device, window->freed);
		window->freed = NULL;
	}
	if (window->id)
		return ZERO_OK;
	window->id = ++windows->registered;
	return zero_nccl_register(windows->nccl, window->data, window->bytes, windows->symmetric,
				  &window->handle);
}

void zero_window_free(struct zero_window *window, CUstream stream)
{
	struct zero_windows *windows = window->windows;

	zero_memory_uncount(windows->memory, ZERO_MEM_GATHERED, window->bytes);
	if (stream != ZERO_NO_STREAM)
		window->freed = zero_event_record(windows->device, stream);
	put_back(windows, window);
}

uint64_t zero_window_id(const struct zero_window *window)
{
	return window->id;
}

void *zero_window_data(const struct zero_window *window)
{
	return window->data;
}

void zero_windows_delete(struct zero_windows *windows)
{
	if (!windows)
		return;
	while (windows->idle) {
		struct zero_window *window = windows->idle;

		windows->idle = window->next;
		delete_window(windows, window);
	}
	pthread_mutex_destroy(&windows->lock);
	free(windows);
}

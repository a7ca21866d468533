/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Outputs of gathers in memory that is registered with NCCL, which then copies straight into them,
 * with copy engines where it can (symmetric windows since NCCL 2.27, zero-CTA policy since 2.28,
 * registered buffers before). All ranks must gather into the same window. Which one is idle depends
 * on when threads released it, so each rank chooses one, and the ranks compare their choices when
 * they agree on the submission. If the choices differ, all ranks allocate a new window. Windows are
 * numbered in the order of their registration, which is collective.
 */
#include <stdlib.h>

#include "gpu_comm.h"

struct zero_window {
	void *data;
	size_t bytes;
	void *handle; /* NCCL's; NULL: NCCL did not register it */
	uint64_t id;  /* number of its registration, the same on all ranks; 0: not registered */
	struct zero_windows *windows; /* the list that it belongs to */
	CUevent freed;                /* when an idle window may be used again */
	struct zero_window *next;
};

struct zero_windows {
	struct zero_nccl_comm *nccl;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	pthread_mutex_t lock;
	struct zero_window *idle;
	uint64_t registered;
	bool symmetric; /* else registered buffers */
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
		zero_event_synchronize(windows->device, window->freed);
	zero_event_put(windows->device, window->freed);
	if (window->handle)
		zero_nccl_deregister(windows->nccl, window->handle, windows->symmetric);
	zero_nccl.mem_free(window->data);
	free(window);
}

/* A window that is not registered is unknown to the other ranks, and is freed. */
static void make_idle(struct zero_windows *windows, struct zero_window *window)
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

/* If there is no memory, freed memory that the pool still has goes back to the driver first. */
static void *alloc_data(struct zero_windows *windows, size_t bytes)
{
	void *data = NULL;

	if (zero_nccl.mem_alloc(&data, bytes) == ncclSuccess)
		return data;
	zero_memory_trim(windows->memory);
	return zero_nccl.mem_alloc(&data, bytes) == ncclSuccess ? data : NULL;
}

/* Returns the smallest idle window that is large enough, whatever it wastes. Windows are never freed
   before the end: NCCL may not reuse their address space, and all ranks must register the same
   windows in the same order. */
static struct zero_window *reuse_idle(struct zero_windows *windows, size_t bytes)
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

zero_status zero_window_alloc(struct zero_windows *windows, size_t bytes, bool fresh,
			      struct zero_window **window)
{
	struct zero_window *made = fresh ? NULL : reuse_idle(windows, bytes);
	zero_status status;

	*window = NULL;
	status = zero_memory_count(windows->memory, ZERO_MEM_GATHERED, made ? made->bytes : bytes);
	if (status && made)
		make_idle(windows, made);
	else
		*window = made;
	if (status || made)
		return status;
	made = calloc(1, sizeof(*made));
	if (made)
		made->data = alloc_data(windows, bytes);
	if (!made || !made->data) {
		zero_memory_uncount(windows->memory, ZERO_MEM_GATHERED, bytes);
		free(made);
		return zero_memory_error(ZERO_MEM_GATHERED, bytes);
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
		zero_stream_wait(device, device->comm_stream, window->freed);
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
	make_idle(windows, window);
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

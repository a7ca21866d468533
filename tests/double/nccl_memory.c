/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, registered windows, and the check for leaks at exit. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "nccl.h"

struct block {
	char *data;
	size_t bytes;
	const struct ncclComm *comm; /* that it is registered with */
	struct block *next;
};

/* Blocks of ncclMemAlloc, and the windows of all communicators. */
static struct {
	pthread_mutex_t mutex;
	struct block *blocks;
	struct block *registered; /* windows */
	struct block *buffers;    /* of ncclCommRegister */
	_Atomic unsigned windows, registrations;
} memory = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool lies_in(const char *data, size_t bytes, const char *block, size_t block_bytes)
{
	return data >= block && bytes <= block_bytes &&
	       (size_t)(data - block) <= block_bytes - bytes;
}

ncclResult_t ncclMemAlloc(void **data, size_t bytes)
{
	struct block *block;
	ncclResult_t result;

	if (trouble_in("ncclMemAlloc", false, &result) == FAIL)
		return result;
	if (!data || !bytes)
		return refuse(ncclInvalidArgument, "ncclMemAlloc of %zu bytes", bytes);
	driver_find();
	block = calloc(1, sizeof *block);
	block->data = driver_alloc(bytes);
	block->bytes = bytes;
	if (!block->data) {
		free(block);
		return refuse(ncclUnhandledCudaError, "out of memory: %zu bytes", bytes);
	}
	*data = block->data;
	pthread_mutex_lock(&memory.mutex);
	block->next = memory.blocks;
	memory.blocks = block;
	pthread_mutex_unlock(&memory.mutex);
	return ncclSuccess;
}

static bool is_registered(const struct block *block)
{
	for (const struct block *at = memory.registered; at; at = at->next)
		if (lies_in(at->data, at->bytes, block->data, block->bytes))
			return true;
	return false;
}

ncclResult_t ncclMemFree(void *data)
{
	struct block **at, *block;
	ncclResult_t result;

	if (trouble_in("ncclMemFree", false, &result) == FAIL)
		return result;
	if (!data)
		return ncclSuccess;
	pthread_mutex_lock(&memory.mutex);
	for (at = &memory.blocks; *at && (*at)->data != data; at = &(*at)->next)
		;
	block = *at;
	if (!block)
		die("ncclMemFree of %p, which ncclMemAlloc did not give", data);
	if (comms_use(NULL, block->data, block->bytes))
		die("ncclMemFree of %p, which operations that are queued use", data);
	if (is_registered(block))
		die("ncclMemFree of %p, of which there is a window", data);
	*at = block->next;
	pthread_mutex_unlock(&memory.mutex);
	result = driver_free(block->data)
			 ? ncclSuccess
			 : refuse(ncclUnhandledCudaError, "memory cannot be freed");
	free(block);
	return result;
}

/* NCCL would register it once more, and count the memory of it twice. */
static bool is_known(struct block *const *blocks, const struct ncclComm *comm, const char *data,
		     size_t bytes)
{
	bool known = false;

	pthread_mutex_lock(&memory.mutex);
	for (const struct block *at = *blocks; at && !known; at = at->next)
		known = at->comm == comm && data < at->data + at->bytes && at->data < data + bytes;
	pthread_mutex_unlock(&memory.mutex);
	return known;
}

static void forget_registered(const struct ncclComm *comm, const char *data, size_t bytes)
{
	struct block **at, *block;

	pthread_mutex_lock(&memory.mutex);
	for (at = &memory.registered;
	     (*at)->comm != comm || (*at)->data != data || (*at)->bytes != bytes; at = &(*at)->next)
		;
	block = *at;
	*at = block->next;
	pthread_mutex_unlock(&memory.mutex);
	driver_pin(data, false);
	count_registered(-(long long)bytes);
	free(block);
}

#ifndef OLD_NCCL
/* A window needs memory that other processes can map: of ncclMemAlloc or of cuMemCreate. Returns
   why it is not, or NULL. */
static const char *not_window(const char *data, size_t bytes)
{
	bool found = false;

	pthread_mutex_lock(&memory.mutex);
	for (const struct block *at = memory.blocks; at && !found; at = at->next)
		found = lies_in(data, bytes, at->data, at->bytes);
	pthread_mutex_unlock(&memory.mutex);
	return found ? NULL : driver_not_mapped(data, bytes);
}

static void note_registered(const struct ncclComm *comm, char *data, size_t bytes)
{
	struct block *block = calloc(1, sizeof *block);

	*block = (struct block){data, bytes, comm, NULL};
	driver_pin(data, true);
	pthread_mutex_lock(&memory.mutex);
	block->next = memory.registered;
	memory.registered = block;
	count_registered((long long)bytes);
	memory.windows++;
	pthread_mutex_unlock(&memory.mutex);
}

static ncclResult_t run_register(struct job *job)
{
	struct ncclComm *comm = job->comm;
	struct record record = {.kind = WINDOW_REGISTER, .root = -1};
	struct window *window;

	if (job->hang)
		wait_for_abort(comm);
	record.type = (ncclDataType_t)job->flags;
	record.count = job->bytes;
	if (comm->aborted || !agree(comm, LANE_CALLS, &record))
		return ncclInternalError;
	window = calloc(1, sizeof *window);
	window->data = job->data;
	window->bytes = job->bytes;
	window->symmetric = job->flags & NCCL_WIN_COLL_SYMMETRIC;
	note_registered(comm, job->data, job->bytes);
	pthread_mutex_lock(&comm->mutex);
	window->number = ++comm->window_count;
	window->next = comm->windows;
	comm->windows = window;
	pthread_mutex_unlock(&comm->mutex);
	atomic_store_explicit((_Atomic(ncclWindow_t) *)job->window, (ncclWindow_t)window,
			      memory_order_release);
	return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *data, size_t bytes, ncclWindow_t *made,
				    int flags)
{
	const char *name = "ncclCommWindowRegister", *why;
	struct job *job;
	ncclResult_t result;
	enum trouble trouble = trouble_in(name, false, &result);

	if (trouble == FAIL)
		return result;
	result = comm_ready(comm, name);
	if (result)
		return result;
	if (!made || !data || !bytes || (flags & ~NCCL_WIN_COLL_SYMMETRIC))
		return refuse(ncclInvalidArgument, "%s of %zu bytes, flags %d", name, bytes, flags);
	if ((uintptr_t)data % NCCL_WIN_REQUIRED_ALIGNMENT)
		return refuse(ncclInvalidArgument, "%s: %p is not at a multiple of %d", name, data,
			      NCCL_WIN_REQUIRED_ALIGNMENT);
	why = not_window(data, bytes);
	if (why)
		return refuse(ncclUnhandledCudaError, "%s of %zu bytes: %p %s", name, bytes, data,
			      why);
	if (is_known(&memory.registered, comm, data, bytes))
		return refuse(ncclInvalidUsage, "%s of %zu bytes: %p is in a window", name, bytes,
			      data);
	*made = NULL;
	job = calloc(1, sizeof *job);
	*job = (struct job){.comm = comm, .run = run_register, .hang = trouble == HANG};
	job->data = data;
	job->bytes = bytes;
	job->flags = flags;
	job->window = made;
	return submit_job(job);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t made)
{
	struct window **at, *window;
	ncclResult_t result;

	if (trouble_in("ncclCommWindowDeregister", false, &result) == FAIL)
		return result;
	/* the communicator may be finalized or have failed */
	if (!comm_alive(comm, "ncclCommWindowDeregister"))
		return refuse(ncclInvalidArgument, "ncclCommWindowDeregister: NULL");
	if (!made)
		return ncclSuccess;
	pthread_mutex_lock(&comm->mutex);
	for (at = &comm->windows; *at && *at != (struct window *)made; at = &(*at)->next)
		;
	window = *at;
	if (!window)
		die("ncclCommWindowDeregister of what is not a window of the communicator");
	*at = window->next;
	pthread_mutex_unlock(&comm->mutex);
	if (comms_use(comm, window->data, window->bytes))
		die("rank %d deregisters window %u, which operations that are queued use",
		    comm->rank, window->number);
	forget_registered(comm, window->data, window->bytes);
	atomic_fetch_sub(&memory.windows, 1);
	free(window);
	return ncclSuccess;
}
#endif

struct window *window_of(const struct ncclComm *comm, const void *data, size_t bytes)
{
	pthread_mutex_t *mutex = (pthread_mutex_t *)&comm->mutex;
	struct window *at;

	pthread_mutex_lock(mutex);
	for (at = comm->windows; at && !lies_in(data, bytes, at->data, at->bytes); at = at->next)
		;
	pthread_mutex_unlock(mutex);
	return at;
}

void windows_free(struct ncclComm *comm, bool aborted)
{
	while (comm->windows) {
		struct window *next = comm->windows->next;

		forget_registered(comm, comm->windows->data, comm->windows->bytes);
		if (aborted)
			atomic_fetch_sub(&memory.windows, 1);
		free(comm->windows);
		comm->windows = next;
	}
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *data, size_t bytes, void **handle)
{
	struct block *block;
	const char *why;
	ncclResult_t result;

	if (trouble_in("ncclCommRegister", false, &result) == FAIL)
		return result;
	result = comm_ready(comm, "ncclCommRegister");
	if (result)
		return result;
	if (!data || !bytes || !handle)
		return refuse(ncclInvalidArgument, "ncclCommRegister of %zu bytes", bytes);
	why = driver_refuses(data, bytes);
	if (why)
		return refuse(ncclInvalidArgument, "ncclCommRegister of %zu bytes: %p %s", bytes,
			      data, why);
	if (is_known(&memory.buffers, comm, data, bytes))
		return refuse(ncclInvalidUsage, "ncclCommRegister of %zu bytes: %p is registered",
			      bytes, data);
	driver_pin(data, true);
	count_registered((long long)bytes);
	block = calloc(1, sizeof *block);
	*handle = block;
	pthread_mutex_lock(&memory.mutex);
	*block = (struct block){data, bytes, comm, memory.buffers};
	memory.buffers = block;
	memory.registrations++;
	pthread_mutex_unlock(&memory.mutex);
	return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
	struct block **at, *block;
	ncclResult_t result;

	if (trouble_in("ncclCommDeregister", false, &result) == FAIL)
		return result;
	if (!comm_alive(comm, "ncclCommDeregister"))
		return refuse(ncclInvalidArgument, "ncclCommDeregister: NULL");
	if (!handle)
		return ncclSuccess;
	pthread_mutex_lock(&memory.mutex);
	for (at = &memory.buffers; *at && *at != handle; at = &(*at)->next)
		;
	block = *at;
	if (!block)
		die("ncclCommDeregister of what is not registered");
	*at = block->next;
	memory.registrations--;
	pthread_mutex_unlock(&memory.mutex);
	driver_pin(block->data, false);
	count_registered(-(long long)block->bytes);
	free(block);
	return ncclSuccess;
}

/* Runs when the process exits or the library is unloaded. */
__attribute__((destructor)) static void look_for_leaks(void)
{
	unsigned comms = comms_left(), blocks = 0;

	counts_write(setting_rank());
	if (!setting_leaks())
		return;
	for (const struct block *at = memory.blocks; at; at = at->next)
		blocks++;
	if (!comms && !blocks && !memory.windows && !memory.registrations)
		return;
	fprintf(stderr,
		"double NCCL: left are %u communicators, %u windows, %u registrations and %u "
		"blocks of memory\n",
		comms, memory.windows, memory.registrations, blocks);
	fflush(NULL);
	_exit(95);
}

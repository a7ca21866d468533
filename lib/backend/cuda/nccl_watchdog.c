/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that polls the communicators of NCCL for errors. It reports an error of NCCL or of the
 * device to all ranks. When communication has failed it aborts all communicators, so that streams
 * do not wait for ever for a lost peer.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"
#include "gpu_comm.h"

enum {
	POLL_MS = 100,
	MOST_COMMS = 256,
	ABORT_SECONDS = 10, /* an abort that takes longer is assumed never to end */
};

struct entry {
	struct zero_nccl_comm *nccl;
	struct entry *next;
};

struct zero_nccl_watchdog {
	struct zero_control *control;
	int rank;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct entry *entries;
	struct zero_device *device;
	bool ending, aborting, abandoned;
};

/* Called with the lock held, which is released meanwhile because an abort may take long. Each
   communicator is aborted once. */
static void abort_all(struct zero_nccl_watchdog *watchdog)
{
	struct zero_nccl_comm *all[MOST_COMMS];
	size_t count = 0;

	for (struct entry *entry = watchdog->entries; entry && count < MOST_COMMS;
	     entry = entry->next)
		if (!entry->nccl->aborted)
			all[count++] = entry->nccl;
	watchdog->aborting = count;
	pthread_mutex_unlock(&watchdog->lock);
	if (count)
		zero_nccl_abort(all, count);
	pthread_mutex_lock(&watchdog->lock);
	watchdog->aborting = false;
	pthread_cond_broadcast(&watchdog->wake);
}

/* Called with the lock held. */
static void poll_errors(struct zero_nccl_watchdog *watchdog)
{
	char text[1024] = "";
	int rank;

	if (watchdog->abandoned ||
	    zero_control_has_failed(watchdog->control, text, sizeof(text), &rank)) {
		abort_all(watchdog);
		return;
	}
	/* Peers wait for work that a failed device will not do. */
	if (watchdog->device && zero_device_failed(watchdog->device, text, sizeof(text))) {
		zero_control_fail_all(watchdog->control, ZERO_E_COMM, watchdog->rank, text);
		return;
	}
	for (struct entry *entry = watchdog->entries; entry; entry = entry->next)
		if (zero_nccl_failed(entry->nccl, text, sizeof(text))) {
			zero_control_fail_all(watchdog->control, ZERO_E_COMM, watchdog->rank, text);
			return;
		}
}

static void *watchdog_main(void *context)
{
	struct zero_nccl_watchdog *watchdog = context;
	struct timespec until;

	pthread_setname_np(pthread_self(), "zero-nccl-watch");
	/* NCCL uses the device that is current in the calling thread. */
	if (watchdog->device)
		zero_device_enter(watchdog->device);
	pthread_mutex_lock(&watchdog->lock);
	while (!watchdog->ending) {
		until = zero_deadline(1e-3 * POLL_MS);
		pthread_cond_timedwait(&watchdog->wake, &watchdog->lock, &until);
		if (!watchdog->ending)
			poll_errors(watchdog);
	}
	pthread_mutex_unlock(&watchdog->lock);
	if (watchdog->device)
		zero_device_leave(watchdog->device);
	return NULL;
}

zero_status zero_nccl_watchdog_new(struct zero_control *control, struct zero_device *device,
				   int rank, struct zero_nccl_watchdog **made)
{
	struct zero_nccl_watchdog *watchdog = calloc(1, sizeof(*watchdog));
	int error;

	if (!watchdog)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the NCCL watchdog");
	watchdog->control = control;
	watchdog->device = device;
	watchdog->rank = rank;
	pthread_mutex_init(&watchdog->lock, NULL);
	zero_cond_init(&watchdog->wake);
	error = zero_thread_start(&watchdog->thread, watchdog_main, watchdog);
	if (error) {
		free(watchdog);
		return zero_core->fail(ZERO_E_MEMORY, "cannot start the NCCL watchdog thread: %s",
				       strerror(error));
	}
	*made = watchdog;
	return ZERO_OK;
}

/* Called with the lock held. */
static void wait_for_abort(struct zero_nccl_watchdog *watchdog)
{
	struct timespec until = zero_deadline(ABORT_SECONDS);

	while (watchdog->aborting)
		if (pthread_cond_timedwait(&watchdog->wake, &watchdog->lock, &until))
			break;
	if (watchdog->aborting && watchdog->device)
		watchdog->device->hung = true;
}

bool zero_nccl_watchdog_stop(struct zero_nccl_watchdog *watchdog)
{
	bool stopped;

	if (!watchdog)
		return true;
	pthread_mutex_lock(&watchdog->lock);
	watchdog->ending = true;
	pthread_cond_broadcast(&watchdog->wake);
	wait_for_abort(watchdog);
	stopped = !watchdog->aborting;
	pthread_mutex_unlock(&watchdog->lock);
	if (stopped)
		pthread_join(watchdog->thread, NULL);
	else
		pthread_detach(watchdog->thread);
	return stopped;
}

void zero_nccl_watchdog_delete(struct zero_nccl_watchdog *watchdog)
{
	if (!watchdog)
		return;
	while (watchdog->entries) {
		struct entry *entry = watchdog->entries;

		watchdog->entries = entry->next;
		free(entry);
	}
	pthread_cond_destroy(&watchdog->wake);
	pthread_mutex_destroy(&watchdog->lock);
	free(watchdog);
}

void zero_nccl_watchdog_add(struct zero_nccl_watchdog *watchdog, struct zero_nccl_comm *nccl)
{
	struct entry *entry = watchdog ? calloc(1, sizeof(*entry)) : NULL;

	if (!entry)
		return;
	entry->nccl = nccl;
	pthread_mutex_lock(&watchdog->lock);
	entry->next = watchdog->entries;
	watchdog->entries = entry;
	pthread_mutex_unlock(&watchdog->lock);
}

void zero_nccl_watchdog_remove(struct zero_nccl_watchdog *watchdog, struct zero_nccl_comm *nccl)
{
	struct entry *gone = NULL;

	if (!watchdog)
		return;
	pthread_mutex_lock(&watchdog->lock);
	wait_for_abort(watchdog);
	for (struct entry **at = &watchdog->entries; *at; at = &(*at)->next)
		if ((*at)->nccl == nccl) {
			gone = *at;
			*at = gone->next;
			break;
		}
	pthread_mutex_unlock(&watchdog->lock);
	free(gone);
	if (nccl->device && zero_control_has_failed(watchdog->control, NULL, 0, NULL))
		zero_nccl_abort(&nccl, 1);
}

void zero_nccl_watchdog_abort(struct zero_nccl_watchdog *watchdog)
{
	pthread_mutex_lock(&watchdog->lock);
	watchdog->abandoned = true;
	pthread_cond_broadcast(&watchdog->wake);
	pthread_mutex_unlock(&watchdog->lock);
}

/* The control plane's reader calls this and must not wait, so it does not take the lock: if the
   signal is missed the thread polls soon anyway. */
void zero_nccl_watchdog_wake(void *context)
{
	struct zero_nccl_watchdog *watchdog = context;

	pthread_cond_broadcast(&watchdog->wake);
}

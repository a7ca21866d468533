/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread that looks after the communicators of NCCL while nobody waits for them: what NCCL or the
 * device found is told to all ranks, and where the ranks have fallen apart all are aborted, so that
 * streams do not wait for ever for a peer that is gone.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpu.h"
#include "core/thread.h"

enum {
	LOOK_MS = 100,
	MOST = 256,         /* communicators */
	ABORT_SECONDS = 10, /* after which an abort is taken not to end */
};

struct entry {
	struct zero_nccl_comm *nccl;
	struct entry *next;
};

struct zero_watch {
	struct zero_control *control;
	int rank;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct entry *entries;
	struct zero_device *device;
	bool ending, aborting;
};

/* With the lock, which is let go meanwhile: an abort may take long. They are aborted once. */
static void abort_all(struct zero_watch *watch)
{
	struct zero_nccl_comm *all[MOST];
	size_t count = 0;

	for (struct entry *entry = watch->entries; entry && count < MOST; entry = entry->next)
		if (!entry->nccl->aborted)
			all[count++] = entry->nccl;
	watch->aborting = count;
	pthread_mutex_unlock(&watch->lock);
	if (count)
		zero_nccl_abort(all, count);
	pthread_mutex_lock(&watch->lock);
	watch->aborting = false;
	pthread_cond_broadcast(&watch->wake);
}

/* With the lock. */
static void look(struct zero_watch *watch)
{
	char text[1024] = "";
	int rank;

	if (zero_control_has_failed(watch->control, text, sizeof(text), &rank)) {
		abort_all(watch);
		return;
	}
	/* Peers wait for what a device that failed does no more. */
	if (watch->device && zero_device_failed(watch->device, text, sizeof(text))) {
		zero_control_fail_all(watch->control, watch->rank, text);
		return;
	}
	for (struct entry *entry = watch->entries; entry; entry = entry->next)
		if (zero_nccl_failed(entry->nccl, text, sizeof(text))) {
			zero_control_fail_all(watch->control, watch->rank, text);
			return;
		}
}

static void *serve(void *context)
{
	struct zero_watch *watch = context;
	struct timespec until;

	pthread_setname_np(pthread_self(), "zero-watch");
	/* NCCL leaves the device current that it finds. */
	if (watch->device)
		zero_device_enter(watch->device);
	pthread_mutex_lock(&watch->lock);
	while (!watch->ending) {
		until = zero_deadline(1e-3 * LOOK_MS);
		pthread_cond_timedwait(&watch->wake, &watch->lock, &until);
		if (!watch->ending)
			look(watch);
	}
	pthread_mutex_unlock(&watch->lock);
	if (watch->device)
		zero_device_leave(watch->device);
	return NULL;
}

zero_status zero_watch_new(struct zero_control *control, struct zero_device *device, int rank,
			   struct zero_watch **made)
{
	struct zero_watch *watch = calloc(1, sizeof(*watch));
	int error;

	if (!watch)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a watch");
	watch->control = control;
	watch->device = device;
	watch->rank = rank;
	pthread_mutex_init(&watch->lock, NULL);
	zero_cond_init(&watch->wake);
	error = zero_thread_start(&watch->thread, serve, watch);
	if (error) {
		free(watch);
		return zero_core->fail(ZERO_E_MEMORY, "cannot start a watching thread: %s",
				       strerror(error));
	}
	*made = watch;
	return ZERO_OK;
}

/* With the lock. */
static void wait_for_abort(struct zero_watch *watch)
{
	struct timespec until = zero_deadline(ABORT_SECONDS);

	while (watch->aborting)
		if (pthread_cond_timedwait(&watch->wake, &watch->lock, &until))
			break;
	if (watch->aborting && watch->device)
		watch->device->stuck = true;
}

bool zero_watch_stop(struct zero_watch *watch)
{
	bool stopped;

	if (!watch)
		return true;
	pthread_mutex_lock(&watch->lock);
	watch->ending = true;
	pthread_cond_broadcast(&watch->wake);
	wait_for_abort(watch);
	stopped = !watch->aborting;
	pthread_mutex_unlock(&watch->lock);
	if (stopped)
		pthread_join(watch->thread, NULL);
	else
		pthread_detach(watch->thread);
	return stopped;
}

void zero_watch_delete(struct zero_watch *watch)
{
	if (!watch)
		return;
	while (watch->entries) {
		struct entry *entry = watch->entries;

		watch->entries = entry->next;
		free(entry);
	}
	pthread_cond_destroy(&watch->wake);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

void zero_watch_add(struct zero_watch *watch, struct zero_nccl_comm *nccl)
{
	struct entry *entry = watch ? calloc(1, sizeof(*entry)) : NULL;

	if (!entry)
		return;
	entry->nccl = nccl;
	pthread_mutex_lock(&watch->lock);
	entry->next = watch->entries;
	watch->entries = entry;
	pthread_mutex_unlock(&watch->lock);
}

void zero_watch_remove(struct zero_watch *watch, struct zero_nccl_comm *nccl)
{
	struct entry *gone = NULL;

	if (!watch)
		return;
	pthread_mutex_lock(&watch->lock);
	wait_for_abort(watch);
	for (struct entry **at = &watch->entries; *at; at = &(*at)->next)
		if ((*at)->nccl == nccl) {
			gone = *at;
			*at = gone->next;
			break;
		}
	pthread_mutex_unlock(&watch->lock);
	free(gone);
}

/* Of the control connections' thread, which is not to wait: the thread looks soon in any case. */
void zero_watch_wake(void *context)
{
	struct zero_watch *watch = context;

	pthread_cond_broadcast(&watch->wake);
}

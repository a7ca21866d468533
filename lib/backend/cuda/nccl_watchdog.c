/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Polls the communicators of NCCL for errors, in the thread of the network. It reports an error of
 * NCCL or of the device to all ranks. When communication has failed it aborts all communicators, so
 * that streams do not wait for ever for a lost peer.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"
#include "gpu_comm.h"

#define POLL_SECONDS 0.1

enum {
	MAX_COMMS = 1024,
	ABORT_SECONDS = 10, /* an abort that takes longer is assumed never to end */
};

struct entry {
	struct zero_nccl_comm *nccl;
	struct entry *next;
};

struct zero_nccl_watchdog {
	struct zero_net *net;
	struct zero_net_user user;
	int rank;
	pthread_t aborter;
	pthread_mutex_t lock;
	pthread_cond_t aborted;
	struct entry *entries;
	struct zero_device *device;
	bool has_aborter, aborting, abandoned;
};

/* Called with the lock held. Returns those that were not aborted yet. */
static size_t list_alive(const struct zero_nccl_watchdog *watchdog, struct zero_nccl_comm **all)
{
	size_t count = 0;

	for (struct entry *entry = watchdog->entries; entry && count < MAX_COMMS;
	     entry = entry->next)
		if (!entry->nccl->aborted)
			all[count++] = entry->nccl;
	return count;
}

static void *abort_all(void *context)
{
	struct zero_nccl_watchdog *watchdog = context;
	struct zero_nccl_comm *all[MAX_COMMS];
	size_t count;

	pthread_mutex_lock(&watchdog->lock);
	count = list_alive(watchdog, all);
	pthread_mutex_unlock(&watchdog->lock);
	/* NCCL uses the device that is current in the calling thread. */
	if (watchdog->device)
		zero_device_enter(watchdog->device);
	zero_nccl_abort(all, count);
	if (watchdog->device)
		zero_device_leave(watchdog->device);
	pthread_mutex_lock(&watchdog->lock);
	watchdog->aborting = false;
	pthread_cond_broadcast(&watchdog->aborted);
	pthread_mutex_unlock(&watchdog->lock);
	return NULL;
}

/* Called with the lock held. An abort may take long, and so has a thread of its own. */
static void start_abort(struct zero_nccl_watchdog *watchdog)
{
	struct zero_nccl_comm *all[MAX_COMMS];

	if (watchdog->aborting || !list_alive(watchdog, all))
		return;
	if (watchdog->has_aborter)
		pthread_join(watchdog->aborter, NULL);
	/* Without memory for a thread it is tried again in the next poll. */
	watchdog->has_aborter =
		!zero_thread_start(&watchdog->aborter, "zero-nccl-abort", abort_all, watchdog);
	watchdog->aborting = watchdog->has_aborter;
}

/* Called with the lock held. Returns whether there is an error, and copies it. */
static bool find_error(struct zero_nccl_watchdog *watchdog, char *text, size_t size)
{
	bool failed = false;

	if (!watchdog->device)
		return false;
	/* Peers wait for work that a failed device will not do. */
	if (zero_device_failed(watchdog->device, text, size))
		return true;
	/* It reads host memory. No call of the driver is made here, since heartbeats would wait for
	   it. */
	for (struct entry *entry = watchdog->entries; entry && !failed; entry = entry->next)
		failed = zero_nccl_failed(entry->nccl, text, size);
	return failed;
}

static double poll_all(void *context)
{
	struct zero_nccl_watchdog *watchdog = context;
	char text[1024] = "";
	bool failed = false;

	pthread_mutex_lock(&watchdog->lock);
	if (watchdog->abandoned || zero_net->has_failed(watchdog->net, NULL, 0, NULL))
		start_abort(watchdog);
	else
		failed = find_error(watchdog, text, sizeof(text));
	pthread_mutex_unlock(&watchdog->lock);
	if (failed)
		zero_net->fail_all(watchdog->net, ZERO_E_COMM, watchdog->rank, text);
	return POLL_SECONDS;
}

zero_status zero_nccl_watchdog_new(struct zero_net *net, struct zero_device *device, int rank,
				   struct zero_nccl_watchdog **made)
{
	struct zero_nccl_watchdog *watchdog = calloc(1, sizeof(*watchdog));

	if (!watchdog)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the NCCL watchdog");
	watchdog->net = net;
	watchdog->device = device;
	watchdog->rank = rank;
	watchdog->user = (struct zero_net_user){.poll = poll_all, .context = watchdog};
	pthread_mutex_init(&watchdog->lock, NULL);
	zero_cond_init(&watchdog->aborted);
	zero_net->attach(net, &watchdog->user);
	*made = watchdog;
	return ZERO_OK;
}

/* Called with the lock held. */
static void wait_for_abort(struct zero_nccl_watchdog *watchdog)
{
	struct timespec until = zero_deadline(ABORT_SECONDS);

	while (watchdog->aborting)
		if (pthread_cond_timedwait(&watchdog->aborted, &watchdog->lock, &until))
			break;
	if (watchdog->aborting && watchdog->device)
		watchdog->device->hung = true;
}

bool zero_nccl_watchdog_stop(struct zero_nccl_watchdog *watchdog)
{
	bool stopped;

	if (!watchdog)
		return true;
	zero_net->detach(watchdog->net, &watchdog->user);
	pthread_mutex_lock(&watchdog->lock);
	wait_for_abort(watchdog);
	stopped = !watchdog->aborting;
	pthread_mutex_unlock(&watchdog->lock);
	if (watchdog->has_aborter && stopped)
		pthread_join(watchdog->aborter, NULL);
	else if (watchdog->has_aborter)
		pthread_detach(watchdog->aborter);
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
	pthread_cond_destroy(&watchdog->aborted);
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
	if (nccl->device && zero_net->has_failed(watchdog->net, NULL, 0, NULL))
		zero_nccl_abort(&nccl, 1);
}

void zero_nccl_watchdog_abort(struct zero_nccl_watchdog *watchdog)
{
	pthread_mutex_lock(&watchdog->lock);
	watchdog->abandoned = true;
	pthread_mutex_unlock(&watchdog->lock);
	zero_net->wake(watchdog->net);
}

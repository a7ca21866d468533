/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that reads all connections, so that a rank that sends never waits for a receiver. Its
   other users are polled in it. */
#include <poll.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/thread.h"
#include "net_internal.h"

/* Called with the lock held. NULL: no memory. */
static struct pollfd *new_polls(struct zero_net *net, size_t *count)
{
	size_t capacity = 2 + ZERO_NET_PENDING;
	struct pollfd *polls;

	for (const struct zero_link *link = net->links; link; link = link->next)
		capacity++;
	polls = malloc(capacity * sizeof(*polls));
	*count = 0;
	if (!polls)
		return NULL;
	polls[(*count)++] = (struct pollfd){.fd = net->wakeup, .events = POLLIN};
	/* poll ignores a negative descriptor. */
	polls[(*count)++] = (struct pollfd){
		.fd = zero_seconds() < net->accept_at ? -1 : net->listener, .events = POLLIN};
	for (const struct zero_link *link = net->links; link; link = link->next)
		polls[(*count)++] = (struct pollfd){
			.fd = link->fd, .events = link->out_bytes ? POLLIN | POLLOUT : POLLIN};
	for (int i = 0; i < ZERO_NET_PENDING; i++)
		if (net->pending[i].fd >= 0)
			polls[(*count)++] =
				(struct pollfd){.fd = net->pending[i].fd, .events = POLLIN};
	return polls;
}

/* Called with the lock held. */
static bool is_waiting_for_hello(const struct zero_net *net)
{
	for (int i = 0; i < ZERO_NET_PENDING; i++)
		if (net->pending[i].fd >= 0)
			return true;
	return zero_seconds() < net->accept_at;
}

/* Called with the lock held. Links that are added meanwhile are read in the next poll. */
static void serve_links(struct zero_net *net)
{
	for (struct zero_link *link = net->links, *next; link; link = next) {
		next = link->next;
		if (link->fd < 0)
			continue;
		zero_link_flush(link);
		zero_link_read(link);
	}
}

/* Called with the lock held, which is released meanwhile. Returns the seconds until the next. */
static double poll_users(struct zero_net *net)
{
	double soonest = 1e6, wait;

	for (struct zero_net_user *user = net->users; user; user = user->next) {
		net->polling = user;
		pthread_mutex_unlock(&net->lock);
		wait = user->poll(user->context);
		pthread_mutex_lock(&net->lock);
		net->polling = NULL;
		soonest = wait < soonest ? wait : soonest;
	}
	zero_net_notify(net);
	return soonest;
}

int zero_net_poll(struct zero_net *net, int wait_ms)
{
	struct pollfd *polls;
	uint64_t wakes;
	size_t count;
	double wait;
	bool stopping, hellos;

	pthread_mutex_lock(&net->lock);
	polls = new_polls(net, &count);
	pthread_mutex_unlock(&net->lock);
	poll(polls, polls ? (nfds_t)count : 0, polls || wait_ms < 10 ? wait_ms : 10);
	if (polls && polls[0].revents && read(polls[0].fd, &wakes, sizeof(wakes)) < 0)
		wakes = 0;
	free(polls);
	pthread_mutex_lock(&net->lock);
	serve_links(net);
	zero_net_read_pending(net);
	if (net->listener >= 0 && zero_seconds() >= net->accept_at)
		zero_net_accept(net);
	wait = poll_users(net);
	stopping = net->stopping;
	hellos = is_waiting_for_hello(net);
	pthread_mutex_unlock(&net->lock);
	if (stopping)
		return -1;
	if (hellos && wait > 0.1)
		wait = 0.1;
	return wait > 0 ? (int)(1e3 * wait) + 1 : 0;
}

static void *thread_main(void *context)
{
	struct zero_net *net = context;
	int wait_ms = 0;

	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	while (wait_ms >= 0)
		wait_ms = zero_net_poll(net, wait_ms);
	return NULL;
}

int zero_net_start_thread(struct zero_net *net)
{
	int error = zero_thread_start(&net->thread, "zero-net", thread_main, net);

	net->has_thread = !error;
	return error;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Opens and closes the network of a job, and makes it fail on all ranks. */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "net_internal.h"

#define SPIN_SECONDS 50e-6

void zero_net_close_fd(_Atomic int *fd)
{
	int open = atomic_exchange(fd, -1);

	if (open >= 0)
		close(open);
}

/* ---- waking ---------------------------------------------------------------------------------- */

static void wake(struct zero_net *net)
{
	uint64_t one = 1;
	int fd = atomic_load(&net->wakeup);

	/* If the counter is full the write fails, but the thread wakes anyway. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return;
}

void zero_net_notify(struct zero_net *net)
{
	atomic_fetch_add(&net->changes, 1);
	pthread_cond_broadcast(&net->changed);
}

bool zero_net_wait(struct zero_net *net, double deadline)
{
	uint64_t seen = atomic_load(&net->changes);
	struct timespec at = zero_deadline(deadline - zero_seconds());
	double end;
	int error = 0;

	/* Most messages come sooner than a sleeping thread wakes. Yielding leaves the core to
	   others. */
	pthread_mutex_unlock(&net->lock);
	end = zero_seconds() + SPIN_SECONDS;
	while (atomic_load(&net->changes) == seen && zero_seconds() < end)
		sched_yield();
	pthread_mutex_lock(&net->lock);
	while (atomic_load(&net->changes) == seen && !error)
		if (deadline > 0)
			error = pthread_cond_timedwait(&net->changed, &net->lock, &at);
		else
			pthread_cond_wait(&net->changed, &net->lock);
	return !error;
}

/* ---- failure --------------------------------------------------------------------------------- */

void zero_net_send_state(struct zero_link *link)
{
	const struct zero_net *net = link->net;
	struct zero_frame_header header = {.kind = ZERO_FRAME_GOODBYE};
	int32_t about[2] = {net->failed_rank,
			    net->lost ? ZERO_NET_LOST : (int32_t)net->failed_status};
	char data[sizeof(about) + ZERO_NET_TEXT];

	if (atomic_load(&net->failed)) {
		memcpy(data, about, sizeof(about));
		memcpy(data + sizeof(about), net->failure_text, ZERO_NET_TEXT);
		header.kind = ZERO_FRAME_FAILURE;
		header.bytes = sizeof(about) + strlen(net->failure_text);
		zero_link_send(link, &header, data);
	}
	header = (struct zero_frame_header){.kind = ZERO_FRAME_GOODBYE};
	if (net->closing)
		zero_link_send(link, &header, NULL);
}

/* The sentence is written before the flag and never changes. */
void zero_net_fail_locked(struct zero_net *net, zero_status status, int rank,
			  const struct zero_link *from, const char *format, ...)
{
	va_list arguments;

	if (atomic_load(&net->failed))
		return;
	va_start(arguments, format);
	vsnprintf(net->failure_text, sizeof(net->failure_text), format, arguments);
	va_end(arguments);
	net->failed_status = status;
	net->failed_rank = rank;
	atomic_store(&net->failed, true);
	for (struct zero_link *link = net->links; link; link = link->next)
		if (link != from)
			zero_net_send_state(link);
	zero_net_notify(net);
	wake(net);
}

zero_status zero_net_failure(struct zero_net *net)
{
	return zero_fail_on(net->failed_rank, net->failed_status, net->failure_text);
}

static void fail(struct zero_net *net, zero_status status, int rank, const char *text)
{
	pthread_mutex_lock(&net->lock);
	zero_net_fail_locked(net, status, rank, NULL, "%s", text);
	pthread_mutex_unlock(&net->lock);
}

zero_status zero_net_fail_all(struct zero_net *net, int rank, const char *format, ...)
{
	char text[ZERO_NET_TEXT];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fail(net, ZERO_E_COMM, rank, text);
	return zero_net_failure(net);
}

static zero_status has_failed(struct zero_net *net, char *text, size_t size, int *rank)
{
	if (!atomic_load(&net->failed))
		return ZERO_OK;
	if (text && size)
		snprintf(text, size, "%s", net->failure_text);
	if (rank)
		*rank = net->failed_rank;
	return net->failed_status;
}

/* ---- processes that are forked from a rank --------------------------------------------------- */

static struct zero_net *_Atomic current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* While a child holds a connection open, nobody sees that this rank has ended. */
static void in_forked_child(void)
{
	struct zero_net *net = atomic_exchange(&current, NULL);

	if (!net)
		return;
	zero_net_close_fd(&net->listener);
	zero_net_close_fd(&net->wakeup);
	zero_net_close_fd(&net->connecting);
	for (struct zero_link *link = net->links; link; link = link->next)
		zero_net_close_fd(&link->fd);
	zero_net_drop_pending(net);
	if (!atomic_load(&net->failed)) {
		net->failed_status = ZERO_E_COMM;
		net->failed_rank = net->config.rank;
		strcpy(net->failure_text, "a process that was forked from a rank is no rank");
		atomic_store(&net->failed, true);
	}
}

static void install(void)
{
	pthread_atfork(NULL, NULL, in_forked_child);
}

/* ---- opening --------------------------------------------------------------------------------- */

struct zero_net *zero_net_new(void)
{
	struct zero_net *net = calloc(1, sizeof(*net));

	if (!net)
		return NULL;
	pthread_mutex_init(&net->lock, NULL);
	zero_cond_init(&net->changed);
	net->listener = net->connecting = -1;
	for (int i = 0; i < ZERO_NET_PENDING; i++)
		net->pending[i].fd = -1;
	net->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	pthread_once(&once, install);
	atomic_store(&current, net);
	return net;
}

static zero_status listen_for_ranks(struct zero_net *net, struct zero_address *own)
{
	int listener = -1;
	char why[256];
	bool ok;

	gethostname(net->own.node, sizeof(net->own.node) - 1);
	if (net->wakeup < 0 || getrandom(net->own.cookie, sizeof(net->own.cookie), 0) !=
				       (ssize_t)sizeof(net->own.cookie))
		return zero_fail(ZERO_E_COMM, "cannot listen for other ranks: %s", strerror(errno));
	ok = zero_address_listen(&listener, &net->own, getenv("NCCL_SOCKET_IFNAME"), why,
				 sizeof(why));
	net->listener = listener;
	if (!ok)
		return zero_fail(ZERO_E_COMM, "%s", why);
	*own = net->own;
	return ZERO_OK;
}

static zero_status join(struct zero_net *net, const struct zero_net_config *config)
{
	struct zero_address root = net->own;
	zero_status status = ZERO_OK;
	int error;

	if (config->rank)
		status = config->address(config->context, 0, &root);
	if (status)
		return status;
	/* That of rank 0 is the job's. */
	memcpy(net->cookie, root.cookie, sizeof(net->cookie));
	net->config = *config;
	error = zero_net_start_thread(net);
	if (error)
		return zero_fail(ZERO_E_MEMORY, "cannot start the network's thread: %s",
				 strerror(error));
	net->joined = true;
	return ZERO_OK;
}

bool zero_net_lost(struct zero_net *net, char *text, size_t size, int *rank)
{
	bool lost;

	pthread_mutex_lock(&net->lock);
	lost = net->lost && has_failed(net, text, size, rank);
	pthread_mutex_unlock(&net->lock);
	return lost;
}

bool zero_net_joined(const struct zero_net *net)
{
	return net && net->joined;
}

/* ---- users ----------------------------------------------------------------------------------- */

static void attach(struct zero_net *net, struct zero_net_user *user)
{
	pthread_mutex_lock(&net->lock);
	user->next = net->users;
	net->users = user;
	pthread_mutex_unlock(&net->lock);
	wake(net);
}

static void detach(struct zero_net *net, struct zero_net_user *user)
{
	struct zero_net_user **at = &net->users;

	pthread_mutex_lock(&net->lock);
	while (net->polling == user)
		zero_net_wait(net, 0);
	while (*at && *at != user)
		at = &(*at)->next;
	if (*at)
		*at = user->next;
	pthread_mutex_unlock(&net->lock);
}

/* ---- closing --------------------------------------------------------------------------------- */

/* Called with the lock held. Whether the neighbour's kernel has acknowledged all that was sent, or
   the neighbour has closed the connection too. */
static bool is_delivered(const struct zero_link *link)
{
	struct pollfd one = {.fd = link->fd};
	int unacknowledged = 0;

	return link->fd < 0 || (poll(&one, 1, 0) > 0 && one.revents & (POLLERR | POLLHUP)) ||
	       (!link->out_bytes &&
		(ioctl(link->fd, SIOCOUTQ, &unacknowledged) || !unacknowledged));
}

static bool all_delivered(struct zero_net *net)
{
	bool all = true;

	pthread_mutex_lock(&net->lock);
	for (const struct zero_link *link = net->links; link; link = link->next)
		all &= is_delivered(link);
	pthread_mutex_unlock(&net->lock);
	return all;
}

/*
 * Closing a socket may discard a goodbye that has not arrived, and the neighbour would report this
 * rank as lost. Kernels acknowledge at once, whatever their ranks do. The limit is for a node that
 * is down.
 */
void zero_net_say_goodbye(struct zero_net *net)
{
	double until = zero_seconds() + (atomic_load(&net->failed) ? 1 : 5);
	useconds_t pause = 20;

	pthread_mutex_lock(&net->lock);
	net->closing = true;
	for (struct zero_link *link = net->links; link; link = link->next)
		zero_net_send_state(link);
	pthread_mutex_unlock(&net->lock);
	while (!all_delivered(net) && zero_seconds() < until) {
		usleep(pause);
		pause = pause < 1000 ? 2 * pause : 1000;
	}
}

static void stop_thread(struct zero_net *net)
{
	pthread_mutex_lock(&net->lock);
	net->stopping = true;
	pthread_mutex_unlock(&net->lock);
	wake(net);
	pthread_join(net->thread, NULL);
}

void zero_net_close(struct zero_net *net)
{
	struct zero_net *expected = net;

	if (!net)
		return;
	/* A forked child has neither the thread nor the connections. */
	if (net->has_thread && atomic_load(&current) == net) {
		zero_net_say_goodbye(net);
		stop_thread(net);
	}
	atomic_compare_exchange_strong(&current, &expected, NULL);
	zero_net_close_fd(&net->listener);
	zero_net_close_fd(&net->wakeup);
	zero_net_close_fd(&net->connecting);
	zero_net_drop_pending(net);
	while (net->links) {
		struct zero_link *link = net->links;

		net->links = link->next;
		zero_link_free(link);
	}
	while (net->teams) {
		struct zero_net_team *team = net->teams;

		net->teams = team->next;
		zero_net_team_free(team);
	}
	pthread_cond_destroy(&net->changed);
	pthread_mutex_destroy(&net->lock);
	free(net);
}

const struct zero_net_ops zero_net_ops = {
	.listen = listen_for_ranks,
	.join = join,
	.team_new = zero_net_team_new,
	.begin_max = zero_net_begin_max,
	.finish_max = zero_net_finish_max,
	.allgather = zero_net_allgather,
	.broadcast = zero_net_broadcast,
	.has_failed = has_failed,
	.fail_all = fail,
	.attach = attach,
	.detach = detach,
	.wake = wake,
};

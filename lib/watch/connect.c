/* SPDX-License-Identifier: Apache-2.0 */
/* How a ring comes to be: each rank dials the next one, while its thread waits for the one before
   it among all who may connect. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch_private.h"

enum {
	PATIENCE = 5, /* s, for strangers to say who they are */
	REACH = 20,   /* s, for neighbours to be found: all are there by now */
};

static const struct zero_hello hello = {.magic = "zerowch", .version = ZERO_DIAL_VERSION};
static const struct zero_hello_reply answer = {.magic = "zerowak", .version = ZERO_DIAL_VERSION};

/* ---- the listening side ---------------------------------------------------------------------- */

static void drop(struct zero_ring *ring, int i)
{
	if (ring->strangers[i].fd >= 0)
		close(ring->strangers[i].fd);
	ring->strangers[i].fd = -1;
}

void zero_ring_stop_listening(struct zero_ring *ring)
{
	int fd = atomic_exchange(&ring->listener, -1);

	if (fd >= 0)
		close(fd);
	for (int i = 0; i < ZERO_RING_STRANGERS; i++)
		drop(ring, i);
}

static bool is_welcome(const struct zero_ring *ring, const struct zero_hello *heard)
{
	struct zero_hello wanted = hello;

	wanted.wanted = ring->config.rank;
	memcpy(wanted.cookie, ring->all[0].address.cookie, sizeof(wanted.cookie));
	return zero_hello_verify(heard, &wanted) && heard->rank == ring->link[ZERO_PREV].rank;
}

/* One that was given up: the rank has dialled again, or will. */
static bool has_hung_up(int fd)
{
	char byte;
	ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return !got || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Nothing of what an earlier connection has said, or of how it ended, is true of this one. */
static void begin_anew(struct zero_ring_link *link)
{
	link->fate = ZERO_FATE_HERE;
	link->value = 0;
	link->since = link->doing_at = 0;
	link->heard = zero_seconds();
	memset(&link->doing, 0, sizeof(link->doing));
	link->filled = link->out_bytes = 0;
	atomic_store(&link->clogged, false);
}

/* It has said all. */
static void judge(struct zero_ring *ring, int i)
{
	struct zero_ring_link *link = &ring->link[ZERO_PREV];
	struct zero_hello_reply said = answer;
	int fd = ring->strangers[i].fd;

	said.rank = ring->config.rank;
	/* A new connection has room for so little. */
	if (!is_welcome(ring, &ring->strangers[i].hello) || has_hung_up(fd) ||
	    send(fd, &said, sizeof(said), MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof(said)) {
		drop(ring, i);
		return;
	}
	zero_socket_set_options(fd);
	ring->strangers[i].fd = -1;
	begin_anew(link);
	pthread_mutex_lock(&ring->lock);
	/* One that dialled again has given up the other one. */
	fd = atomic_exchange(&link->fd, fd);
	pthread_cond_broadcast(&ring->changed);
	pthread_mutex_unlock(&ring->lock);
	if (fd >= 0)
		close(fd);
}

void zero_ring_hear_strangers(struct zero_ring *ring)
{
	double now = zero_seconds();

	for (int i = 0; i < ZERO_RING_STRANGERS; i++) {
		struct zero_hello *heard = &ring->strangers[i].hello;
		size_t *have = &ring->strangers[i].have;
		ssize_t got;

		if (ring->strangers[i].fd < 0)
			continue;
		got = recv(ring->strangers[i].fd, (char *)heard + *have, sizeof(*heard) - *have,
			   MSG_DONTWAIT);
		if (got > 0)
			*have += (size_t)got;
		if (*have == sizeof(*heard))
			judge(ring, i);
		else if (!got || (got < 0 && errno != EAGAIN && errno != EINTR) ||
			 now > ring->strangers[i].since + PATIENCE)
			drop(ring, i);
	}
}

void zero_ring_accept(struct zero_ring *ring)
{
	int oldest = 0, fd;

	fd = accept4(atomic_load(&ring->listener), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return;
	for (int i = 0; i < ZERO_RING_STRANGERS; i++)
		if (ring->strangers[i].fd < 0 ||
		    (ring->strangers[oldest].fd >= 0 &&
		     ring->strangers[i].since < ring->strangers[oldest].since))
			oldest = i;
	drop(ring, oldest);
	ring->strangers[oldest].fd = fd;
	ring->strangers[oldest].have = 0;
	ring->strangers[oldest].since = zero_seconds();
}

/* ---- the dialling side ----------------------------------------------------------------------- */

static void set_connecting(void *context, int fd)
{
	struct zero_ring *ring = context;

	atomic_store(&ring->connecting, fd);
}

/* For whoever opens a job has a deadline too, and knows less to say. */
static double patience(const struct zero_ring_config *config)
{
	return config->open_seconds / 2 < REACH ? config->open_seconds / 2 : REACH;
}

/* All ranks see the same, so that nobody waits for one that cannot come. */
static bool have_addresses(const struct zero_ring *ring, char *why, size_t size)
{
	for (int rank = 0; rank < ring->config.world; rank++) {
		const struct zero_ring_rank *next = &ring->all[(rank + 1) % ring->config.world];

		if (next->address.count || !memcmp(next->address.node, ring->all[rank].address.node,
						   sizeof(next->address.node)))
			continue;
		snprintf(why, size,
			 "rank %d (node %.64s) has no address on a network that NCCL_SOCKET_IFNAME "
			 "allows, so that it cannot be watched (ZERO_WATCH_SECONDS=0 turns that "
			 "off)",
			 (rank + 1) % ring->config.world, next->address.node);
		return false;
	}
	return true;
}

static bool dial_next(struct zero_ring *ring, double deadline, char *why, size_t size)
{
	int rank = ring->link[ZERO_NEXT].rank;
	struct zero_dial dial = {.address = ring->all[rank].address,
				 .hello = hello,
				 .answer = answer,
				 .connecting = set_connecting,
				 .context = ring};
	char places[ZERO_DIAL_LIST_BYTES];
	int fd;

	dial.hello.rank = ring->config.rank;
	dial.hello.wanted = dial.answer.rank = rank;
	memcpy(dial.hello.cookie, ring->all[0].address.cookie, sizeof(dial.hello.cookie));
	memcpy(dial.hello.node, ring->own.address.node, sizeof(dial.hello.node));
	zero_dial_prepare(&dial);
	fd = zero_dial(&dial, deadline);
	if (fd < 0) {
		zero_dial_list_addresses(&dial, places, sizeof(places));
		snprintf(why, size,
			 "rank %d (node %s) did not answer within %g s at %s: %s; without "
			 "connections of its own a job cannot be watched (ZERO_WATCH_SECONDS=0 "
			 "turns that off)",
			 rank, dial.address.node, patience(&ring->config), places, dial.why);
		return false;
	}
	ring->link[ZERO_NEXT].heard = zero_seconds();
	atomic_store(&ring->link[ZERO_NEXT].fd, fd);
	set_connecting(ring, -1);
	zero_ring_wake(ring);
	return true;
}

static bool wait_for_prev(struct zero_ring *ring, double deadline, char *why, size_t size)
{
	struct timespec at = {.tv_sec = (time_t)deadline};
	const struct zero_ring_link *link = &ring->link[ZERO_PREV];
	int error = 0;
	bool here;

	at.tv_nsec = (long)((deadline - (double)at.tv_sec) * 1e9);
	pthread_mutex_lock(&ring->lock);
	while (atomic_load(&link->fd) < 0 && !error)
		error = pthread_cond_timedwait(&ring->changed, &ring->lock, &at);
	here = atomic_load(&link->fd) >= 0;
	pthread_mutex_unlock(&ring->lock);
	if (!here)
		snprintf(why, size,
			 "rank %d (node %.64s) did not connect within %g s; without connections of "
			 "its own a job cannot be watched (ZERO_WATCH_SECONDS=0 turns that off)",
			 link->rank, ring->all[link->rank].address.node, patience(&ring->config));
	return here;
}

bool zero_ring_join(struct zero_ring *ring, const struct zero_ring_config *config,
		    const struct zero_ring_rank *all, char *why, size_t size)
{
	size_t bytes = (size_t)config->world * sizeof(*all);
	double deadline = zero_seconds() + patience(config);
	int world = config->world, rank = config->rank;

	ring->config = *config;
	ring->all = malloc(bytes);
	ring->inquiry.doing = calloc((size_t)world, sizeof(*ring->inquiry.doing));
	ring->inquiry.there = calloc((size_t)world, sizeof(*ring->inquiry.there));
	ring->inquiry.listed = calloc((size_t)world, sizeof(*ring->inquiry.listed));
	if (!ring->all || !ring->inquiry.doing || !ring->inquiry.there || !ring->inquiry.listed) {
		snprintf(why, size, "no memory for a ring of %d ranks", world);
		return false;
	}
	memcpy(ring->all, all, bytes);
	if (!have_addresses(ring, why, size))
		return false;
	ring->link[ZERO_PREV].rank = (rank + world - 1) % world;
	ring->link[ZERO_NEXT].rank = (rank + 1) % world;
	for (int i = 0; i < 2; i++) {
		const struct zero_ring_rank *peer = &ring->all[ring->link[i].rank];

		if (zero_ring_is_near(ring, peer))
			ring->oom[i] = zero_oom_open((pid_t)peer->process);
	}
	zero_ring_publish(ring);
	if (!zero_ring_start(ring)) {
		snprintf(why, size, "cannot start the watching thread");
		return false;
	}
	return dial_next(ring, deadline, why, size) && wait_for_prev(ring, deadline, why, size);
}

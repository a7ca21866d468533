/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the ring: connects to the next rank, while the thread accepts the previous one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

#define LONGEST_JOIN 20.0 /* seconds: all ranks have come to zero_open before */

static void set_connecting(void *context, int fd)
{
	struct zero_ring *ring = context;

	atomic_store(&ring->connecting, fd);
}

/* The join ends well before zero_open times out, since its error says which rank is missing. */
static double join_timeout(const struct zero_ring_config *config)
{
	double half = config->open_timeout / 2;

	return half < LONGEST_JOIN ? half : LONGEST_JOIN;
}

/* All ranks find the same, so that none waits for a rank that cannot connect. */
static bool have_addresses(const struct zero_ring *ring, char *why, size_t size)
{
	for (int rank = 0; rank < ring->config.world; rank++) {
		const struct zero_ring_peer *next = &ring->all[(rank + 1) % ring->config.world];

		if (next->address.count || !memcmp(next->address.node, ring->all[rank].address.node,
						   sizeof(next->address.node)))
			continue;
		snprintf(why, size,
			 "rank %d (node %.64s) has no address on a network that NCCL_SOCKET_IFNAME "
			 "allows, so that the watchdog cannot connect to it (ZERO_WATCH_SECONDS=0 "
			 "turns the watchdog off)",
			 (rank + 1) % ring->config.world, next->address.node);
		return false;
	}
	return true;
}

static bool connect_next(struct zero_ring *ring, double deadline, char *why, size_t size)
{
	int rank = ring->link[ZERO_NEXT].rank;
	struct zero_dial dial = {.address = ring->all[rank].address,
				 .connecting = set_connecting,
				 .context = ring};
	char addresses[ZERO_DIAL_LIST_BYTES];
	int fd;

	dial.hello.rank = ring->config.rank;
	dial.hello.wanted = rank;
	memcpy(dial.hello.cookie, ring->all[0].address.cookie, sizeof(dial.hello.cookie));
	memcpy(dial.hello.node, ring->own.address.node, sizeof(dial.hello.node));
	zero_dial_prepare(&dial);
	fd = zero_dial(&dial, deadline);
	if (fd < 0) {
		zero_dial_list_addresses(&dial, addresses, sizeof(addresses));
		snprintf(
			why, size,
			"rank %d (node %s) did not accept the watchdog's connection within %g s at "
			"%s: %s (ZERO_WATCH_SECONDS=0 turns the watchdog off)",
			rank, dial.address.node, join_timeout(&ring->config), addresses, dial.why);
		return false;
	}
	ring->link[ZERO_NEXT].received_at = zero_seconds();
	atomic_store(&ring->link[ZERO_NEXT].fd, fd);
	set_connecting(ring, -1);
	zero_ring_wake(ring);
	return true;
}

static bool wait_for_previous(struct zero_ring *ring, double deadline, char *why, size_t size)
{
	struct timespec until = zero_deadline(deadline - zero_seconds());
	const struct zero_ring_link *link = &ring->link[ZERO_PREV];
	int error = 0;
	bool connected;

	pthread_mutex_lock(&ring->lock);
	while (atomic_load(&link->fd) < 0 && !error)
		error = pthread_cond_timedwait(&ring->changed, &ring->lock, &until);
	connected = atomic_load(&link->fd) >= 0;
	pthread_mutex_unlock(&ring->lock);
	if (!connected)
		snprintf(why, size,
			 "rank %d (node %.64s) did not make the watchdog's connection within %g s "
			 "(ZERO_WATCH_SECONDS=0 turns the watchdog off)",
			 link->rank, ring->all[link->rank].address.node,
			 join_timeout(&ring->config));
	return connected;
}

static bool allocate(struct zero_ring *ring, const struct zero_ring_peer *all)
{
	size_t world = (size_t)ring->config.world;

	ring->all = malloc(world * sizeof(*all));
	ring->inquiry.activity = calloc(world, sizeof(*ring->inquiry.activity));
	ring->inquiry.replied = calloc(world, sizeof(*ring->inquiry.replied));
	ring->inquiry.listed = calloc(world, sizeof(*ring->inquiry.listed));
	if (!ring->all || !ring->inquiry.activity || !ring->inquiry.replied ||
	    !ring->inquiry.listed)
		return false;
	memcpy(ring->all, all, world * sizeof(*all));
	return true;
}

bool zero_ring_join(struct zero_ring *ring, const struct zero_ring_config *config,
		    const struct zero_ring_peer *all, char *why, size_t size)
{
	double deadline = zero_seconds() + join_timeout(config);
	int world = config->world, rank = config->rank;

	ring->config = *config;
	if (!allocate(ring, all)) {
		snprintf(why, size, "the watchdog has no memory for %d ranks", world);
		return false;
	}
	if (!have_addresses(ring, why, size))
		return false;
	ring->link[ZERO_PREV].rank = (rank + world - 1) % world;
	ring->link[ZERO_NEXT].rank = (rank + 1) % world;
	for (int i = 0; i < 2; i++) {
		const struct zero_ring_peer *peer = &ring->all[ring->link[i].rank];

		if (zero_ring_is_local(ring, peer))
			ring->oom[i] = zero_oom_open((pid_t)peer->pid);
	}
	zero_ring_set_current(ring);
	if (!zero_ring_start_thread(ring)) {
		snprintf(why, size, "the watchdog cannot start its thread");
		return false;
	}
	return connect_next(ring, deadline, why, size) &&
	       wait_for_previous(ring, deadline, why, size);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accepts the connection of the previous rank in the ring. Any program of the network may connect
 * to the port, so that connections are pending until their hello is verified.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "private.h"

enum { HELLO_SECONDS = 5 }; /* within which a hello has to be complete */

static void drop(struct zero_pending_connection *pending)
{
	if (pending->fd >= 0)
		close(pending->fd);
	pending->fd = -1;
}

void zero_ring_stop_listening(struct zero_ring *ring)
{
	zero_ring_close_fd(&ring->listener);
	for (int i = 0; i < ZERO_RING_PENDING; i++)
		drop(&ring->pending[i]);
}

static bool verify(const struct zero_ring *ring, const struct zero_hello *hello)
{
	return zero_hello_verify(hello, ring->config.rank, ring->all[0].address.cookie) &&
	       hello->rank == ring->link[ZERO_PREV].rank;
}

/* The rank has given this connection up, and has connected again or will. */
static bool has_hung_up(int fd)
{
	char byte;
	ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

	return !got || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

/* Forgets the state that an earlier connection of the same rank has left. */
static void reset_link(struct zero_ring_link *link)
{
	link->state = ZERO_PEER_ALIVE;
	link->value = 0;
	link->state_since = link->activity_at = 0;
	link->received_at = zero_seconds();
	memset(&link->activity, 0, sizeof(link->activity));
	link->in_bytes = link->out_bytes = 0;
	atomic_store(&link->backlogged, false);
}

static void verify_pending(struct zero_ring *ring, struct zero_pending_connection *pending)
{
	struct zero_ring_link *link = &ring->link[ZERO_PREV];
	struct zero_hello_reply reply = zero_hello_reply(ring->config.rank);
	int fd = pending->fd;

	/* The buffer of a new connection takes a reply at once. */
	if (!verify(ring, &pending->hello) || has_hung_up(fd) ||
	    send(fd, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) !=
		    (ssize_t)sizeof(reply)) {
		drop(pending);
		return;
	}
	zero_socket_set_options(fd);
	pending->fd = -1;
	reset_link(link);
	pthread_mutex_lock(&ring->lock);
	/* A rank that connects again has given its earlier connection up. */
	fd = atomic_exchange(&link->fd, fd);
	pthread_cond_broadcast(&ring->changed);
	pthread_mutex_unlock(&ring->lock);
	if (fd >= 0)
		close(fd);
}

void zero_ring_read_pending(struct zero_ring *ring)
{
	double now = zero_seconds();

	for (int i = 0; i < ZERO_RING_PENDING; i++) {
		struct zero_pending_connection *pending = &ring->pending[i];
		ssize_t got;

		if (pending->fd < 0)
			continue;
		got = recv(pending->fd, (char *)&pending->hello + pending->bytes,
			   sizeof(pending->hello) - pending->bytes, MSG_DONTWAIT);
		if (got > 0)
			pending->bytes += (size_t)got;
		if (pending->bytes == sizeof(pending->hello))
			verify_pending(ring, pending);
		else if (!got || (got < 0 && errno != EAGAIN && errno != EINTR) ||
			 now > pending->accepted_at + HELLO_SECONDS)
			drop(pending);
	}
}

/* A new connection takes an unused place, or else that of the oldest one. */
void zero_ring_accept(struct zero_ring *ring)
{
	struct zero_pending_connection *place = &ring->pending[0];
	int fd = accept4(atomic_load(&ring->listener), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

	if (fd < 0)
		return;
	for (int i = 0; i < ZERO_RING_PENDING; i++) {
		struct zero_pending_connection *other = &ring->pending[i];

		if (other->fd < 0 || (place->fd >= 0 && other->accepted_at < place->accepted_at))
			place = other;
	}
	drop(place);
	place->fd = fd;
	place->bytes = 0;
	place->accepted_at = zero_seconds();
}

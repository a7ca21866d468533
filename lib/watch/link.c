/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to one neighbour: sends and receives frames without blocking. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "private.h"

void zero_ring_set_state(struct zero_ring_link *link, enum zero_peer_state state, int value)
{
	bool better = link->state == ZERO_PEER_ALIVE || link->state == ZERO_PEER_SILENT ||
		      (link->state == ZERO_PEER_EXITED && state == ZERO_PEER_CLOSED);

	if (!better)
		return;
	link->state = state;
	link->value = value;
	link->state_since = zero_seconds();
}

static void disconnect(const struct zero_ring *ring, struct zero_ring_link *link)
{
	zero_ring_close_fd(&link->fd);
	link->out_bytes = 0;
	/* While ranks still join, the neighbour may connect again. */
	if (atomic_load(&ring->watching))
		zero_ring_set_state(link, ZERO_PEER_DISCONNECTED, 0);
	/* The time of an exiting rank counts from the end of its connection. */
	if (link->state == ZERO_PEER_EXITED)
		link->state_since = zero_seconds();
}

/* On an error the bytes are dropped. The reading side reports the error, after it has read what the
   neighbour sent before. */
void zero_ring_flush(struct zero_ring_link *link)
{
	ssize_t sent = send(atomic_load(&link->fd), link->out, link->out_bytes,
			    MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (sent < 0)
		sent = (ssize_t)link->out_bytes;
	link->out_bytes -= (size_t)sent;
	memmove(link->out, link->out + sent, link->out_bytes);
	atomic_store(&link->backlogged, link->out_bytes != 0);
}

static void buffer_bytes(struct zero_ring_link *link, const char *data, size_t bytes)
{
	size_t need = link->out_bytes + bytes;
	char *grown;

	if (need > link->out_capacity) {
		grown = realloc(link->out, 2 * need);
		/* Part of a frame may have been sent, so that nothing may follow it. */
		if (!grown) {
			shutdown(atomic_load(&link->fd), SHUT_WR);
			return;
		}
		link->out = grown;
		link->out_capacity = 2 * need;
	}
	memcpy(link->out + link->out_bytes, data, bytes);
	link->out_bytes = need;
	atomic_store(&link->backlogged, true);
}

void zero_ring_send(struct zero_ring_link *link, const struct zero_ring_frame *frame)
{
	int fd = atomic_load(&link->fd);
	ssize_t sent = 0;

	if (fd < 0)
		return;
	if (!link->out_bytes)
		sent = send(fd, frame, sizeof(*frame), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
		return;
	if (sent < 0)
		sent = 0;
	if ((size_t)sent < sizeof(*frame))
		buffer_bytes(link, (const char *)frame + sent, sizeof(*frame) - (size_t)sent);
}

bool zero_ring_receive(const struct zero_ring *ring, struct zero_ring_link *link)
{
	for (;;) {
		int fd = atomic_load(&link->fd);
		ssize_t got;

		if (fd < 0)
			return false;
		got = recv(fd, (char *)&link->in + link->in_bytes,
			   sizeof(link->in) - link->in_bytes, MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return false;
		if (got <= 0) {
			disconnect(ring, link);
			return false;
		}
		link->received_at = zero_seconds();
		link->in_bytes += (size_t)got;
		if (link->in_bytes < sizeof(link->in))
			continue;
		link->in_bytes = 0;
		return true;
	}
}

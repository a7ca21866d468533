/* SPDX-License-Identifier: Apache-2.0 */
/* Accepts connections of other ranks. A connection is pending until its whole hello has come. */
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/text.h"
#include "private.h"

/* How many connections may be pending, and for how long (s). */
enum { MOST_PENDING = 64, HELLO_SECONDS = 5 };

/* Called with the lock held. The connection stays open. */
static void remove_pending(struct zero_control *control, struct zero_pending_connection *pending)
{
	struct zero_pending_connection **at = &control->pending;

	while (*at != pending)
		at = &(*at)->next;
	*at = pending->next;
	control->pending_count--;
	free(pending);
}

/* Called with the lock held. */
static void reject(struct zero_control *control, struct zero_pending_connection *pending)
{
	close(pending->fd);
	remove_pending(control, pending);
}

void zero_control_reject_pending(struct zero_control *control, double now)
{
	while (control->pending && control->pending->deadline <= now)
		reject(control, control->pending);
}

/* Called with the lock held, after the hello has come. Rejects peers that are not of the job. */
static void verify(struct zero_control *control, struct zero_pending_connection *pending)
{
	struct zero_hello_reply reply;
	struct zero_link *link = NULL;

	pending->hello.node[sizeof(pending->hello.node) - 1] = '\0';
	zero_clean(pending->hello.node);
	if (zero_control_hello_is_valid(control, &pending->hello))
		link = zero_link_new(control, pending->fd, pending->hello.rank,
				     pending->hello.node);
	if (!link) {
		reject(control, pending);
		return;
	}
	zero_socket_set_options(link->fd);
	zero_link_add(link);
	remove_pending(control, pending);
	zero_control_fill_reply(control, &reply);
	/* The buffer of a new connection has room for the reply. If the connection has ended, the
	   reader will find out. */
	if (send(link->fd, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		link->write_closed = true;
	zero_link_send_state(link);
}

void zero_control_read_pending(struct zero_control *control,
			       struct zero_pending_connection *pending)
{
	ssize_t got = recv(pending->fd, (char *)&pending->hello + pending->have,
			   sizeof(pending->hello) - pending->have, MSG_DONTWAIT);

	if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (got <= 0) {
		reject(control, pending);
		return;
	}
	pending->have += (size_t)got;
	if (pending->have == sizeof(pending->hello))
		verify(control, pending);
}

/* Called with the lock held. If there are too many, the oldest pending connection is closed. */
static void add_pending(struct zero_control *control, int fd)
{
	struct zero_pending_connection *pending = calloc(1, sizeof(*pending));
	struct zero_pending_connection **end = &control->pending;

	if (!pending) {
		close(fd);
		return;
	}
	if (control->pending_count == MOST_PENDING)
		reject(control, control->pending);
	while (*end)
		end = &(*end)->next;
	*end = pending;
	control->pending_count++;
	pending->fd = fd;
	pending->deadline = zero_seconds() + HELLO_SECONDS;
	/* Most hellos have come by the time their connection is accepted. */
	zero_control_read_pending(control, pending);
}

bool zero_control_accept(struct zero_control *control)
{
	for (int i = 0; i < MOST_PENDING; i++) {
		int fd = accept4(control->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0)
			return errno != EMFILE && errno != ENFILE && errno != ENOBUFS &&
			       errno != ENOMEM;
		pthread_mutex_lock(&control->lock);
		add_pending(control, fd);
		pthread_mutex_unlock(&control->lock);
	}
	return true;
}

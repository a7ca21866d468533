/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between two ranks: the higher one dials the lower one, and each verifies that the
 * other is of the job. The connection is used only after the dialling rank confirms it, because
 * that rank may have given up on this attempt. Any program of the network may connect to the port,
 * so that an accepted connection is pending until its whole hello has come.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/text.h"
#include "net_internal.h"

enum { HELLO_SECONDS = 5 }; /* within which a hello has to be complete */

#define ACCEPT_PAUSE 0.1 /* s; after the process had no descriptor for another connection */

/* ---- to lower ranks -------------------------------------------------------------------------- */

/* Both ranks use the connection from now on. */
static zero_status add_confirmed(struct zero_net *net, const struct zero_dial *dial, int fd,
				 struct zero_link **link)
{
	static const struct zero_frame_header confirm = {.kind = ZERO_FRAME_CONFIRM};
	struct zero_link *made;

	pthread_mutex_lock(&net->lock);
	made = zero_link_new(net, fd, dial->hello.wanted, dial->address.node);
	atomic_store(&net->connecting, -1);
	if (made) {
		made->confirmed = true;
		zero_link_send(made, &confirm, NULL);
		zero_net_send_state(made);
	}
	pthread_mutex_unlock(&net->lock);
	*link = made;
	if (made)
		return ZERO_OK;
	close(fd);
	return zero_net_fail_all(net, net->config.rank,
				 "rank %d has no memory for a connection to rank %d",
				 net->config.rank, dial->hello.wanted);
}

static zero_status dial_rank(struct zero_net *net, int rank, double deadline,
			     struct zero_link **link)
{
	struct zero_dial dial = {.over = &net->failed, .connecting = &net->connecting};
	char places[ZERO_DIAL_LIST_BYTES];
	zero_status status = net->config.address(net->config.context, rank, &dial.address);
	int fd;

	if (status)
		return zero_net_fail_all(net, rank, "%s", zero_last_error());
	dial.hello.rank = net->config.rank;
	dial.hello.wanted = rank;
	memcpy(dial.cookie, net->cookie, sizeof(dial.cookie));
	memcpy(dial.hello.node, net->own.node, sizeof(dial.hello.node));
	zero_dial_prepare(&dial);
	if (!dial.count)
		return zero_net_fail_all(net, rank,
					 "rank %d (node %s) offers no address: it has no network "
					 "that NCCL_SOCKET_IFNAME allows there",
					 rank, dial.address.node);
	fd = zero_dial(&dial, deadline);
	if (fd >= 0)
		return add_confirmed(net, &dial, fd, link);
	zero_dial_list_addresses(&dial, places, sizeof(places));
	return zero_net_fail_all(net, rank,
				 "rank %d (node %s) did not answer within %g s at %s: %s", rank,
				 dial.address.node, net->config.seconds, places, dial.why);
}

/* ---- both ways ------------------------------------------------------------------------------- */

/* Called with the lock held. Returns how many are missing, and lists them. */
static size_t find_links(struct zero_net *net, const int *ranks, size_t count,
			 struct zero_link **links, int *missing)
{
	size_t gaps = 0;

	for (size_t i = 0; i < count; i++) {
		links[i] = zero_link_find(net, ranks[i]);
		if (!links[i])
			missing[gaps++] = ranks[i];
	}
	return gaps;
}

zero_status zero_net_connect(struct zero_net *net, const int *ranks, size_t count,
			     struct zero_link **links)
{
	double deadline = zero_seconds() + net->config.seconds;
	zero_status status = ZERO_OK;
	bool in_time = true, failed;
	char names[256], node[128];
	int missing[1 + ZERO_NET_FANOUT];
	size_t gaps;

	pthread_mutex_lock(&net->lock);
	find_links(net, ranks, count, links, missing);
	pthread_mutex_unlock(&net->lock);
	for (size_t i = 0; !status && i < count; i++)
		if (!links[i] && ranks[i] < net->config.rank)
			status = dial_rank(net, ranks[i], deadline, &links[i]);
	if (status)
		return status;
	pthread_mutex_lock(&net->lock);
	while ((gaps = find_links(net, ranks, count, links, missing)) && in_time &&
	       !atomic_load(&net->failed))
		in_time = zero_net_wait(net, deadline);
	failed = atomic_load(&net->failed);
	pthread_mutex_unlock(&net->lock);
	if (failed)
		return zero_net_failure(net);
	if (!gaps)
		return ZERO_OK;
	zero_name_ranks(names, sizeof(names), missing, gaps);
	net->config.node(net->config.context, missing[0], node, sizeof(node));
	return zero_net_fail_all(net, missing[0],
				 "%s of %d (%snode %s) did not come within %g s to rank %d (node "
				 "%s): see what was written there last",
				 names, net->config.world, gaps > 1 ? "the first on " : "", node,
				 net->config.seconds, net->config.rank, net->own.node);
}

/* ---- from higher ranks ----------------------------------------------------------------------- */

static void drop(struct zero_pending_connection *pending)
{
	if (pending->fd >= 0)
		close(pending->fd);
	pending->fd = -1;
}

void zero_net_drop_pending(struct zero_net *net)
{
	for (int i = 0; i < ZERO_NET_PENDING; i++)
		drop(&net->pending[i]);
}

/* Rejects peers that are not of the job. */
static void verify(struct zero_net *net, struct zero_pending_connection *pending)
{
	struct zero_hello *hello = &pending->hello;
	struct zero_hello_reply reply = zero_hello_reply(hello, net->cookie);
	bool known = zero_hello_verify(hello, net->config.rank, net->cookie);
	struct zero_link *link = NULL;

	hello->node[sizeof(hello->node) - 1] = '\0';
	zero_clean(hello->node);
	if (known && hello->rank > net->config.rank && hello->rank < net->config.world)
		link = zero_link_new(net, pending->fd, hello->rank, hello->node);
	if (!link) {
		drop(pending);
		return;
	}
	zero_socket_set_options(pending->fd);
	/* The buffer of a new connection has room for the reply. If the connection has ended, the
	   next read finds out. */
	if (send(pending->fd, &reply, sizeof(reply), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		shutdown(pending->fd, SHUT_WR);
	pending->fd = -1;
	zero_net_send_state(link);
}

static void read_hello(struct zero_net *net, struct zero_pending_connection *pending, double now)
{
	ssize_t got = recv(pending->fd, (char *)&pending->hello + pending->have,
			   sizeof(pending->hello) - pending->have, MSG_DONTWAIT);

	if (got > 0)
		pending->have += (size_t)got;
	if (pending->have == sizeof(pending->hello))
		verify(net, pending);
	else if (!got || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) ||
		 now > pending->accepted_at + HELLO_SECONDS)
		drop(pending);
}

void zero_net_read_pending(struct zero_net *net)
{
	double now = zero_seconds();

	for (int i = 0; i < ZERO_NET_PENDING; i++)
		if (net->pending[i].fd >= 0)
			read_hello(net, &net->pending[i], now);
}

/* A new connection takes an unused place, or else that of the oldest one. */
static void add_pending(struct zero_net *net, int fd)
{
	struct zero_pending_connection *place = &net->pending[0];
	double now = zero_seconds();

	for (int i = 0; i < ZERO_NET_PENDING; i++) {
		struct zero_pending_connection *other = &net->pending[i];

		if (place->fd >= 0 && (other->fd < 0 || other->accepted_at < place->accepted_at))
			place = other;
	}
	drop(place);
	*place = (struct zero_pending_connection){.fd = fd, .accepted_at = now};
	/* Most hellos have come by the time their connection is accepted. */
	read_hello(net, place, now);
}

void zero_net_accept(struct zero_net *net)
{
	for (int i = 0; i < ZERO_NET_PENDING; i++) {
		int fd = accept4(net->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
			    errno == ENOMEM)
				net->accept_at = zero_seconds() + ACCEPT_PAUSE;
			return;
		}
		add_pending(net, fd);
	}
}

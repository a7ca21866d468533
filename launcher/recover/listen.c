/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/recover/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/text.h"

void listen_begin(struct listener *listener, const char *key)
{
	struct zero_address address = {.port = 0};
	char why[200], where[ZERO_LAUNCHER_BYTES];

	*listener = (struct listener){.fd = -1};
	for (size_t i = 0; i < LISTEN_PENDING; i++)
		listener->pending[i].fd = -1;
	if (!zero_run_parse(key, listener->cookie))
		return;
	gethostname(address.node, sizeof(address.node) - 1);
	if (!zero_address_listen(&listener->fd, &address, NULL, why, sizeof(why))) {
		print_error("%s: a lost node is noticed when srun ends", why);
		if (listener->fd >= 0)
			close(listener->fd);
		listener->fd = -1;
		return;
	}
	zero_launcher_format(&address, where);
	setenv("ZERO_LAUNCHER", where, 1);
}

nfds_t listen_fds(const struct listener *listener, struct pollfd *fds)
{
	nfds_t count = 0;

	if (listener->fd >= 0)
		fds[count++] = (struct pollfd){.fd = listener->fd, .events = POLLIN};
	for (size_t i = 0; i < LISTEN_PENDING; i++)
		if (listener->pending[i].fd >= 0)
			fds[count++] =
				(struct pollfd){.fd = listener->pending[i].fd, .events = POLLIN};
	return count;
}

static void drop(struct listener *listener, size_t i)
{
	if (listener->pending[i].fd >= 0)
		close(listener->pending[i].fd);
	listener->pending[i].fd = -1;
	listener->pending[i].have = 0;
}

void listen_end(struct listener *listener)
{
	for (size_t i = 0; i < LISTEN_PENDING; i++)
		drop(listener, i);
	if (listener->fd >= 0)
		close(listener->fd);
}

static void accept_all(struct listener *listener)
{
	int fd;

	while ((fd = accept(listener->fd, NULL, NULL)) >= 0) {
		unsigned i = listener->next++ % LISTEN_PENDING;

		fcntl(fd, F_SETFD, FD_CLOEXEC);
		drop(listener, i);
		listener->pending[i].fd = fd;
	}
}

/* Returns whether all of a right hello and the notice have come. The hello may have come in the
   attempt before, whose notice is too late. */
static bool read_one(struct listener *listener, size_t i, int attempt)
{
	const size_t hello = sizeof(listener->pending[i].in.hello);
	const size_t all = sizeof(listener->pending[i].in);
	char *bytes = (char *)&listener->pending[i].in;
	const struct zero_hello *sent = &listener->pending[i].in.hello;
	struct zero_hello_reply reply;

	while (listener->pending[i].have < all) {
		size_t have = listener->pending[i].have;
		size_t want = have < hello ? hello - have : all - have;
		ssize_t got = recv(listener->pending[i].fd, bytes + have, want, MSG_DONTWAIT);

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return false;
		listener->pending[i].have += got > 0 ? (size_t)got : 0;
		if (got > 0 && listener->pending[i].have != hello)
			continue;
		if (got > 0 && zero_hello_verify(sent, attempt, listener->cookie)) {
			reply = zero_hello_reply(sent, listener->cookie);
			if (send(listener->pending[i].fd, &reply, sizeof(reply), MSG_NOSIGNAL) >= 0)
				continue;
		}
		drop(listener, i);
		return false;
	}
	if (zero_hello_verify(&listener->pending[i].in.hello, attempt, listener->cookie))
		return true;
	drop(listener, i);
	return false;
}

bool listen_read(struct listener *listener, int attempt, struct zero_loss_notice *notice)
{
	bool found = false;

	if (listener->fd >= 0)
		accept_all(listener);
	for (size_t i = 0; i < LISTEN_PENDING; i++) {
		if (listener->pending[i].fd < 0 || !read_one(listener, i, attempt))
			continue;
		*notice = listener->pending[i].in.notice;
		notice->node[sizeof(notice->node) - 1] = '\0';
		drop(listener, i);
		found = true;
	}
	return found;
}

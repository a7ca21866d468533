/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does for others: it keeps the copies of its partner, and reads files of its node for
 * those that restore. One thread serves one request after the other. Whoever connects shows the
 * job's cookie first.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/thread.h"
#include "protect/protect_internal.h"

enum {
	PEERS = 512,        /* that are connected at a time */
	SECONDS = 10,       /* of silence within a request */
	HELLO_SECONDS = 1,  /* within which who connects shows the cookie */
	PIECE = 256 * 1024, /* bytes that are received at once */
};

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool receive(int fd, void *to, size_t bytes)
{
	char *at = to;

	while (bytes) {
		ssize_t got = recv(fd, at, bytes, 0);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return false;
		at += got;
		bytes -= (size_t)got;
	}
	return true;
}

static bool answer(int fd, int error)
{
	struct zero_protect_answer reply = {(uint64_t)error};

	return send(fd, &reply, sizeof(reply), MSG_NOSIGNAL) == (ssize_t)sizeof(reply);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* Receives a shard to a file. Returns false if the connection has ended; *error is what the file
   system has against it, and the rest is then received all the same. */
static bool receive_shard(int fd, int file, uint64_t bytes, int *error)
{
	char *piece = malloc(PIECE);
	uint64_t at = 0;

	if (!*error && ftruncate(file, (off_t)bytes))
		*error = errno;
	if (!*error && bytes && fallocate(file, 0, 0, (off_t)bytes) && errno != EOPNOTSUPP)
		*error = errno;
	for (size_t now; piece && at < bytes; at += now) {
		now = bytes - at < PIECE ? (size_t)(bytes - at) : PIECE;
		if (!receive(fd, piece, now))
			break;
		if (!*error)
			*error = zero_write_all(file, piece, now, at);
	}
	free(piece);
	return at == bytes;
}

static bool put(const struct zero_protect_server *server, int fd,
		const struct zero_protect_request *request)
{
	struct zero_protect_name name = request->name, record = request->name;
	char *text =
		request->record <= ZERO_PROTECT_RECORD_MAX ? malloc(request->record + 1) : NULL;
	int file = -1, error = 0;
	bool alive = text && receive(fd, text, request->record);

	name.copy = record.copy = record.record = 1;
	name.record = 0;
	if (alive) {
		/* From here on the shard does not fit its record. */
		zero_protect_file_remove(server->folder, &record);
		if (zero_protect_file_open(server->folder, &name, true, &file))
			error = errno ? errno : EIO;
		alive = receive_shard(fd, file, request->bytes, &error);
	}
	if (file >= 0)
		close(file);
	if (alive && !error &&
	    zero_protect_file_put(server->folder, &record, text, request->record))
		error = errno ? errno : EIO;
	if (error)
		zero_protect_file_remove(server->folder, &name);
	free(text);
	return alive && answer(fd, error);
}

static bool get(const struct zero_protect_server *server, int fd,
		const struct zero_protect_request *request)
{
	off_t at = (off_t)request->at;
	uint64_t left = request->bytes;
	int file;

	if (zero_protect_file_open(server->folder, &request->name, false, &file))
		return answer(fd, errno ? errno : EIO);
	if (!answer(fd, 0))
		left = 1;
	else
		while (left) {
			size_t most = left < PIECE ? (size_t)left : PIECE;
			ssize_t sent = sendfile(fd, file, &at, most);

			if (sent < 0 && errno == EINTR)
				continue;
			if (sent <= 0)
				break;
			left -= (uint64_t)sent;
		}
	close(file);
	return !left;
}

/* False: the connection is of no more use. */
static bool serve_one(struct zero_protect_server *server, int fd)
{
	struct zero_protect_request request;

	bool alive;

	atomic_store(&server->current, fd);
	alive = !atomic_load(&server->over) && receive(fd, &request, sizeof(request));
	if (alive && request.kind == ZERO_PROTECT_PUT)
		alive = put(server, fd, &request);
	else if (alive)
		alive = request.kind == ZERO_PROTECT_GET && get(server, fd, &request);
	atomic_store(&server->current, -1);
	return alive;
}

/* ---- connections ----------------------------------------------------------------------------- */

/* Returns a connection that has shown the cookie, or -1. */
static int accept_one(const struct zero_protect_server *server)
{
	struct timeval patience = {.tv_sec = SECONDS}, hello_patience = {.tv_sec = HELLO_SECONDS};
	struct zero_hello_reply reply = zero_hello_reply(server->rank);
	int fd = accept4(server->listening, NULL, NULL, SOCK_CLOEXEC);
	struct zero_hello hello;

	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &hello_patience, sizeof(hello_patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	zero_socket_set_options(fd);
	if (receive(fd, &hello, sizeof(hello)) &&
	    zero_hello_verify(&hello, server->rank, server->cookie) &&
	    send(fd, &reply, sizeof(reply), MSG_NOSIGNAL) == (ssize_t)sizeof(reply)) {
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
		return fd;
	}
	close(fd);
	return -1;
}

/* Where there are too many, the oldest ends: who needs it connects again. Returns the number. */
static nfds_t add_connection(struct pollfd *all, nfds_t count, int fd)
{
	if (fd < 0)
		return count;
	if (count > PEERS) {
		close(all[1].fd);
		memmove(all + 1, all + 2, (--count - 1) * sizeof(*all));
	}
	all[count] = (struct pollfd){.fd = fd, .events = POLLIN};
	return count + 1;
}

static void *serve(void *context)
{
	struct zero_protect_server *server = context;
	struct pollfd *all = calloc(PEERS + 1, sizeof(*all));
	nfds_t count = 1;

	if (all)
		all[0] = (struct pollfd){.fd = server->listening, .events = POLLIN};
	while (all && !atomic_load(&server->over)) {
		/* shutdown() of the listening socket wakes it */
		if (poll(all, count, -1) < 0)
			continue;
		for (nfds_t i = 1; i < count && !atomic_load(&server->over); i++) {
			if (!all[i].revents || serve_one(server, all[i].fd))
				continue;
			close(all[i].fd);
			all[i--] = all[--count];
		}
		if (all[0].revents && !atomic_load(&server->over))
			count = add_connection(all, count, accept_one(server));
	}
	for (nfds_t i = 1; all && i < count; i++)
		close(all[i].fd);
	free(all);
	return NULL;
}

zero_status zero_protect_serve(struct zero_protect_server *server)
{
	int error;

	error = zero_thread_start(&server->thread, "zero-protect", serve, server);
	server->has_thread = !error;
	return error ? zero_fail(ZERO_E_MEMORY, "no thread to keep copies: %s", strerror(error))
		     : ZERO_OK;
}

void zero_protect_serve_end(struct zero_protect_server *server)
{
	atomic_store(&server->over, true);
	if (server->listening >= 0)
		shutdown(server->listening, SHUT_RDWR);
	/* it may wait for a rank that is silent */
	if (atomic_load(&server->current) >= 0)
		shutdown(server->current, SHUT_RDWR);
	if (server->has_thread)
		pthread_join(server->thread, NULL);
	server->has_thread = false;
	if (server->listening >= 0)
		close(server->listening);
	server->listening = -1;
}

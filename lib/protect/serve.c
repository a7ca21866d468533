/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank does for others: it keeps copies of theirs, and reads files of its node for those
 * that restore. Each connection has a thread, which serves one request after the other. Whoever
 * connects shows the job's cookie first.
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
	SECONDS = 60,       /* of silence within a request */
	HELLO_SECONDS = 2,  /* that a hello may take */
	PIECE = 256 * 1024, /* bytes that are received at once */
	STRANGERS = 16,     /* connections that have not shown the cookie yet */
};

struct zero_protect_connection {
	struct zero_protect_server *server;
	pthread_t thread;
	int fd;
	atomic_bool known, done;
	struct zero_protect_connection *next; /* an older one */
};

static bool answer(int fd, int error)
{
	struct zero_protect_answer reply = {(uint64_t)error};

	return zero_socket_send(fd, &reply, sizeof(reply), 0);
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
		if (!zero_socket_receive(fd, piece, now))
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
	bool alive = text && zero_socket_receive(fd, text, request->record);

	name.copy = record.copy = record.record = 1;
	name.record = 0;
	if (alive) {
		/* From here on the shard does not fit its record. */
		zero_protect_file_remove(server->folder, &record);
		errno = 0;
		if (zero_protect_file_open(server->folder, &name, true, &file))
			error = errno ? errno : EIO;
		alive = receive_shard(fd, file, request->bytes, &error);
	}
	if (file >= 0)
		close(file);
	errno = 0;
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
	bool alive = true;
	int file;

	errno = 0;
	if (zero_protect_file_open(server->folder, &request->name, false, &file))
		return answer(fd, errno ? errno : EIO);
	alive = answer(fd, 0);
	while (alive && left) {
		ssize_t sent = sendfile(fd, file, &at, left < PIECE ? (size_t)left : PIECE);

		if (sent < 0 && errno == EINTR)
			continue;
		alive = sent > 0;
		left -= alive ? (uint64_t)sent : 0;
	}
	close(file);
	return alive;
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool is_known(const struct zero_protect_server *server, int fd)
{
	struct timeval patience = {.tv_sec = SECONDS}, hello_patience = {.tv_sec = HELLO_SECONDS};
	struct zero_hello_reply reply;
	struct zero_hello hello;

	/* with MSG_WAITALL the time is that of the whole hello */
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &hello_patience, sizeof(hello_patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	zero_socket_set_options(fd);
	if (recv(fd, &hello, sizeof(hello), MSG_WAITALL) != (ssize_t)sizeof(hello) ||
	    !zero_hello_verify(&hello, server->rank, server->cookie))
		return false;
	reply = zero_hello_reply(&hello, server->cookie);
	if (!zero_socket_send(fd, &reply, sizeof(reply), 0))
		return false;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	return true;
}

/* As long as it takes: an idle connection ends with its other side. */
static void wait_for_request(int fd)
{
	struct pollfd one = {.fd = fd, .events = POLLIN};

	while (poll(&one, 1, -1) < 0)
		continue;
}

static void *serve_connection(void *context)
{
	struct zero_protect_connection *connection = context;
	const struct zero_protect_server *server = connection->server;
	int fd = connection->fd;
	bool alive = is_known(server, fd);

	atomic_store(&connection->known, alive);
	while (alive) {
		struct zero_protect_request request;

		wait_for_request(fd);
		alive = zero_socket_receive(fd, &request, sizeof(request));
		if (alive && request.kind == ZERO_PROTECT_PUT)
			alive = put(server, fd, &request);
		else if (alive)
			alive = request.kind == ZERO_PROTECT_GET && get(server, fd, &request);
	}
	/* the one that accepts closes it, which may have to end it first */
	shutdown(fd, SHUT_RDWR);
	atomic_store(&connection->done, true);
	return NULL;
}

/* Whoever connects may be another user, who would take all descriptors of the process: of those
   that have not shown the cookie a few stay, the latest. */
static bool stays(const struct zero_protect_connection *one, unsigned *strangers)
{
	if (atomic_load(&one->done))
		return false;
	return atomic_load(&one->known) || ++*strangers < STRANGERS;
}

/* Frees those that have ended, or all of them. */
static void free_connections(struct zero_protect_server *server, bool all)
{
	struct zero_protect_connection **at = &server->connections, *one;
	unsigned strangers = 0;

	while ((one = *at)) {
		if (!all && stays(one, &strangers)) {
			at = &one->next;
			continue;
		}
		*at = one->next;
		shutdown(one->fd, SHUT_RDWR);
		pthread_join(one->thread, NULL);
		close(one->fd);
		free(one);
	}
}

static void accept_one(struct zero_protect_server *server)
{
	struct zero_protect_connection *one = calloc(1, sizeof(*one));
	int fd = one ? accept4(server->listening, NULL, NULL, SOCK_CLOEXEC) : -1;

	if (fd >= 0) {
		one->server = server;
		one->fd = fd;
		if (!zero_thread_start(&one->thread, "zero-protect", serve_connection, one)) {
			one->next = server->connections;
			server->connections = one;
			return;
		}
		close(fd);
	}
	free(one);
	/* Nothing is left to accept it with: it is tried again. */
	poll(NULL, 0, 10);
}

static void *serve(void *context)
{
	struct zero_protect_server *server = context;
	struct pollfd listening = {.fd = server->listening, .events = POLLIN};

	/* shutdown() of the listening socket wakes it */
	while (!atomic_load(&server->over)) {
		if (poll(&listening, 1, -1) < 1 || atomic_load(&server->over))
			continue;
		free_connections(server, false);
		accept_one(server);
	}
	free_connections(server, true);
	return NULL;
}

zero_status zero_protect_serve(struct zero_protect_server *server)
{
	int error = zero_thread_start(&server->thread, "zero-protect", serve, server);

	server->has_thread = !error;
	return error ? zero_fail(ZERO_E_MEMORY, "no thread to keep copies: %s", strerror(error))
		     : ZERO_OK;
}

void zero_protect_serve_end(struct zero_protect_server *server)
{
	atomic_store(&server->over, true);
	if (server->listening >= 0)
		shutdown(server->listening, SHUT_RDWR);
	if (server->has_thread)
		pthread_join(server->thread, NULL);
	server->has_thread = false;
	if (server->listening >= 0)
		close(server->listening);
	server->listening = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank asks of others: to keep a copy, and to read a file of their node. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <unistd.h>

#include "core/clock.h"
#include "protect/protect_internal.h"

enum { CONNECT_SECONDS = 30, SILENCE_SECONDS = 60, PIECE = 1 << 20 };

static zero_status lost(struct zero_protect_ask *ask, int rank, const char *what)
{
	int fd = atomic_exchange(&ask->peers[rank], -1);
	zero_status status = zero_fail(ZERO_E_FILE, "rank %d on node %s does not %s: %s", rank,
				       ask->addresses[rank].node, what,
				       errno ? strerror(errno) : "it has closed the connection");

	if (fd >= 0)
		close(fd);
	return status;
}

static zero_status connect_to(struct zero_protect_ask *ask, int rank)
{
	struct timeval patience = {.tv_sec = SILENCE_SECONDS};
	_Atomic int connecting = -1;
	struct zero_dial dial = {.address = ask->addresses[rank],
				 .hello = {.rank = ask->rank, .wanted = rank},
				 .over = &ask->over,
				 .connecting = &connecting};
	int fd;

	if (ask->peers[rank] >= 0)
		return ZERO_OK;
	memcpy(dial.cookie, ask->cookie, sizeof(dial.cookie));
	snprintf(dial.hello.node, sizeof(dial.hello.node), "%s", ask->node);
	zero_dial_prepare(&dial);
	fd = zero_dial(&dial, zero_seconds() + CONNECT_SECONDS);
	if (fd < 0)
		return zero_fail(ZERO_E_FILE, "rank %d on node %s cannot be reached: %s", rank,
				 ask->addresses[rank].node, dial.why);
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
	ask->peers[rank] = fd;
	return ZERO_OK;
}

static zero_status get_once(struct zero_protect_ask *ask, int rank,
			    const struct zero_protect_request *request, void *to)
{
	struct zero_protect_answer answer;
	zero_status status = connect_to(ask, rank);
	int fd = ask->peers[rank];

	if (status)
		return status;
	if (!zero_socket_send(fd, request, sizeof(*request), 0) ||
	    !zero_socket_receive(fd, &answer, sizeof(answer)) ||
	    (!answer.error && !zero_socket_receive(fd, to, request->bytes)))
		return lost(ask, rank, "send what it has protected");
	if (answer.error)
		return zero_fail(ZERO_E_FILE,
				 "rank %d on node %s cannot read what it has protected: %s", rank,
				 ask->addresses[rank].node, strerror((int)answer.error));
	return ZERO_OK;
}

zero_status zero_protect_get(struct zero_protect_ask *ask, int rank,
			     const struct zero_protect_name *name, uint64_t at, void *to,
			     size_t bytes)
{
	const struct zero_protect_request request = {
		.kind = ZERO_PROTECT_GET, .name = *name, .at = at, .bytes = bytes};
	/* A connection may have ended since it was used. */
	bool old = ask->peers[rank] >= 0;
	zero_status status = get_once(ask, rank, &request, to);

	if (status && old && ask->peers[rank] < 0)
		status = get_once(ask, rank, &request, to);
	return status;
}

static bool send_file(const struct zero_protect_ask *ask, int fd, int file, uint64_t bytes)
{
	off_t at = 0;

	errno = 0;
	while ((uint64_t)at < bytes) {
		uint64_t left = bytes - (uint64_t)at;
		ssize_t sent = sendfile(fd, file, &at, left < PIECE ? (size_t)left : PIECE);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent <= 0 || atomic_load(&ask->over))
			return false;
	}
	return true;
}

static zero_status put_once(struct zero_protect_ask *ask, int rank,
			    const struct zero_protect_request *request, const void *record,
			    int shard, uint64_t rate)
{
	struct zero_protect_answer answer;
	zero_status status = connect_to(ask, rank);
	int fd = ask->peers[rank];

	if (status)
		return status;
	/* The kernel paces it, so that the job's own traffic is not behind a burst. */
	setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof(rate));
	if (!zero_socket_send(fd, request, sizeof(*request), MSG_MORE) ||
	    !zero_socket_send(fd, record, request->record, MSG_MORE) ||
	    !send_file(ask, fd, shard, request->bytes) ||
	    !zero_socket_receive(fd, &answer, sizeof(answer)))
		return lost(ask, rank, "keep a copy");
	if (answer.error)
		return zero_fail(ZERO_E_FILE,
				 "rank %d on node %s cannot keep a copy of %llu bytes: %s", rank,
				 ask->addresses[rank].node, (unsigned long long)request->bytes,
				 strerror((int)answer.error));
	return ZERO_OK;
}

zero_status zero_protect_put(struct zero_protect_ask *ask, int rank,
			     const struct zero_protect_name *name, const void *record,
			     size_t record_bytes, int shard, uint64_t bytes, uint64_t rate)
{
	const struct zero_protect_request request = {
		.kind = ZERO_PROTECT_PUT, .name = *name, .bytes = bytes, .record = record_bytes};
	bool old = ask->peers[rank] >= 0;
	zero_status status;

	rate = rate ? rate : ~UINT64_C(0);
	status = put_once(ask, rank, &request, record, shard, rate);
	if (status && old && ask->peers[rank] < 0 && !atomic_load(&ask->over))
		status = put_once(ask, rank, &request, record, shard, rate);
	return status;
}

void zero_protect_hurry(struct zero_protect_ask *ask, int rank)
{
	const uint64_t any = ~UINT64_C(0);
	int fd = ask->peers[rank];

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &any, sizeof(any));
}

void zero_protect_ask_cancel(struct zero_protect_ask *ask)
{
	atomic_store(&ask->over, true);
	for (int rank = 0; ask->peers && rank < ask->world; rank++) {
		int fd = ask->peers[rank];

		if (fd >= 0)
			shutdown(fd, SHUT_RDWR);
	}
}

void zero_protect_ask_end(struct zero_protect_ask *ask)
{
	for (int rank = 0; ask->peers && rank < ask->world; rank++)
		if (ask->peers[rank] >= 0)
			close(ask->peers[rank]);
	free(ask->peers);
	ask->peers = NULL;
}

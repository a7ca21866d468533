/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two ranks find that they are the right ones. The higher rank connects to the lower one, says
 * the job's cookie, who it is and whom it wants; the lower one answers who it is. Only when the
 * higher one then confirms is the connection in use: it may have given up meanwhile.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "control_private.h"

static const char hello_magic[8] = "zeroctl", answer_magic[8] = "zeroack";

enum { VERSION = 1 };

/* A node that loses its power says nothing: its kernel is asked after 3 s without a word, and given
   up after 9. */
void zero_control_tune(int fd)
{
	int yes = 1, idle = 3, interval = 2, count = 3;
	unsigned patience = 9000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &patience, sizeof(patience));
}

/* ---- the listening side ---------------------------------------------------------------------- */

/* In a time that does not tell how much of it was right. */
static bool same_cookie(const uint8_t *a, const uint8_t *b, size_t bytes)
{
	volatile uint8_t differs = 0;

	for (size_t i = 0; i < bytes; i++)
		differs = (uint8_t)(differs | (a[i] ^ b[i]));
	return !differs;
}

bool zero_control_welcome(const struct zero_control *control, const struct zero_hello *hello)
{
	return same_cookie(hello->cookie, control->cookie, sizeof(control->cookie)) &&
	       !memcmp(hello->magic, hello_magic, sizeof(hello_magic)) &&
	       hello->version == VERSION && hello->wanted == control->config.rank &&
	       hello->rank > control->config.rank && hello->rank < control->config.world;
}

void zero_control_answer(const struct zero_control *control, struct zero_answer *answer)
{
	memcpy(answer->magic, answer_magic, sizeof(answer_magic));
	answer->version = VERSION;
	answer->rank = control->config.rank;
}

/* ---- the connecting side --------------------------------------------------------------------- */

/* Where a rank may be, and what came of it. */
struct search {
	struct zero_control *control;
	struct zero_control_address address;
	int rank;
	struct sockaddr_storage at[ZERO_CONTROL_ADDRESSES + 2];
	size_t count;
	char why[128];
};

static void add_place(struct search *search, int family, const void *bytes, uint32_t scope)
{
	struct sockaddr_storage *place = &search->at[search->count];
	struct sockaddr_in6 *six = (void *)place;
	struct sockaddr_in *four = (void *)place;

	memset(place, 0, sizeof(*place));
	if (family == 4) {
		four->sin_family = AF_INET;
		four->sin_port = htons(search->address.port);
		memcpy(&four->sin_addr, bytes, 4);
	} else {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(search->address.port);
		six->sin6_scope_id = scope;
		memcpy(&six->sin6_addr, bytes, 16);
	}
	for (size_t i = 0; i < search->count; i++)
		if (!memcmp(&search->at[i], place, sizeof(*place)))
			return;
	search->count++;
}

static void list_places(struct search *search)
{
	const struct zero_control_address *address = &search->address;
	uint32_t loopback = htonl(INADDR_LOOPBACK);
	size_t count = address->count;

	if (count > ZERO_CONTROL_ADDRESSES)
		count = ZERO_CONTROL_ADDRESSES;
	if (!strncmp(address->node, search->control->own.node, sizeof(address->node))) {
		add_place(search, 4, &loopback, 0);
		add_place(search, 6, &in6addr_loopback, 0);
	}
	for (size_t i = 0; i < count; i++)
		add_place(search, address->at[i].family, address->at[i].bytes,
			  address->at[i].scope);
}

static void name_places(const struct search *search, char *text, size_t size)
{
	size_t at = 0;

	for (size_t i = 0; i < search->count && at < size; i++) {
		const struct sockaddr_in6 *six = (const void *)&search->at[i];
		const struct sockaddr_in *four = (const void *)&search->at[i];
		bool is_six = six->sin6_family == AF_INET6;
		char name[INET6_ADDRSTRLEN] = "?";

		if (is_six)
			inet_ntop(AF_INET6, &six->sin6_addr, name, sizeof(name));
		else
			inet_ntop(AF_INET, &four->sin_addr, name, sizeof(name));
		at += (size_t)snprintf(text + at, size - at, "%s%s%s%s:%u", i ? ", " : "",
				       is_six ? "[" : "", name, is_six ? "]" : "",
				       search->address.port);
	}
}

/* Until it can be read or written; false with `why` after the deadline, or when all is over. */
static bool ready(struct search *search, int fd, short events, double deadline)
{
	struct pollfd one = {.fd = fd, .events = events};

	while (!atomic_load(&search->control->broken)) {
		double left = deadline - zero_control_now();

		if (left <= 0) {
			snprintf(search->why, sizeof(search->why), "%s", strerror(ETIMEDOUT));
			return false;
		}
		/* In short turns: a break is noticed soon. */
		if (poll(&one, 1, left < 0.1 ? (int)(left * 1e3) + 1 : 100) > 0)
			return true;
	}
	return false;
}

static bool exchange_words(struct search *search, int fd, double deadline)
{
	const struct zero_control *control = search->control;
	struct zero_hello hello = {
		.version = VERSION, .rank = control->config.rank, .wanted = search->rank};
	struct zero_answer answer;
	size_t have = 0;

	memcpy(hello.magic, hello_magic, sizeof(hello_magic));
	memcpy(hello.cookie, control->cookie, sizeof(hello.cookie));
	memcpy(hello.node, control->own.node, sizeof(hello.node));
	/* A new connection has room for so little. */
	if (send(fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello)) {
		snprintf(search->why, sizeof(search->why), "%s", strerror(errno));
		return false;
	}
	while (have < sizeof(answer)) {
		ssize_t got;

		if (!ready(search, fd, POLLIN, deadline))
			return false;
		got = recv(fd, (char *)&answer + have, sizeof(answer) - have, 0);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0) {
			snprintf(search->why, sizeof(search->why), "%s",
				 got ? strerror(errno) : "it is not of this job");
			return false;
		}
		have += (size_t)got;
	}
	if (!memcmp(answer.magic, answer_magic, sizeof(answer_magic)) &&
	    answer.version == VERSION && answer.rank == search->rank)
		return true;
	snprintf(search->why, sizeof(search->why), "another program answers");
	return false;
}

/* Remembered, so that a process that is forked meanwhile closes it. */
static void set_connecting(struct zero_control *control, int fd)
{
	pthread_mutex_lock(&control->lock);
	control->connecting = fd;
	pthread_mutex_unlock(&control->lock);
}

static bool connect_place(struct search *search, int fd, size_t i, double deadline)
{
	const struct sockaddr *place = (const struct sockaddr *)&search->at[i];
	socklen_t length = place->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
							: sizeof(struct sockaddr_in);
	int error = connect(fd, place, length) ? errno : 0;

	if (error == EINPROGRESS || error == EINTR) {
		if (!ready(search, fd, POLLOUT, deadline))
			return false;
		length = sizeof(error);
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	}
	if (error) {
		snprintf(search->why, sizeof(search->why), "%s", strerror(error));
		return false;
	}
	return exchange_words(search, fd, deadline);
}

/* A connection to the right rank, or -1. */
static int try_place(struct search *search, size_t i, double deadline)
{
	int fd = socket(search->at[i].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0) {
		snprintf(search->why, sizeof(search->why), "%s", strerror(errno));
		return -1;
	}
	set_connecting(search->control, fd);
	zero_control_tune(fd);
	if (connect_place(search, fd, i, deadline))
		return fd;
	set_connecting(search->control, -1);
	close(fd);
	return -1;
}

/* All places, each for longer and longer: a rank may come late, or a network be slow. */
static int find(struct search *search, double deadline)
{
	double patience = 1, pause = 0.01;

	while (!atomic_load(&search->control->broken)) {
		double now = zero_control_now(), turn;

		for (size_t i = 0; i < search->count && now < deadline; i++) {
			int fd;

			turn = now + patience < deadline ? now + patience : deadline;
			fd = try_place(search, i, turn);
			if (fd >= 0 || atomic_load(&search->control->broken))
				return fd;
			now = zero_control_now();
		}
		if (now >= deadline || !search->count)
			return -1;
		poll(NULL, 0, (int)(pause * 1e3));
		patience = patience < 8 ? 2 * patience : 8;
		pause = pause < 0.2 ? 2 * pause : 0.2;
	}
	return -1;
}

/* The connection is theirs and ours from now on. */
static zero_status adopt(struct search *search, int fd, struct zero_link **link)
{
	static const struct zero_frame_header confirm = {.kind = ZERO_FRAME_CONFIRM};
	struct zero_control *control = search->control;
	struct zero_link *made = zero_link_new(control, fd, search->rank, search->address.node);

	pthread_mutex_lock(&control->lock);
	control->connecting = -1;
	if (made) {
		made->confirmed = true;
		zero_link_add(made);
		zero_link_post(made, &confirm, NULL);
		zero_link_tell(made);
	}
	pthread_mutex_unlock(&control->lock);
	if (!made) {
		close(fd);
		return zero_control_give_up(control, control->config.rank,
					    "rank %d has no memory for a connection to rank %d",
					    control->config.rank, search->rank);
	}
	*link = made;
	return ZERO_OK;
}

zero_status zero_control_connect(struct zero_control *control, int rank, double deadline,
				 struct zero_link **link)
{
	struct search search = {.control = control, .rank = rank, .why = "no time was left"};
	char places[(ZERO_CONTROL_ADDRESSES + 2) * (INET6_ADDRSTRLEN + 10)];
	zero_status status =
		control->config.address(control->config.context, rank, &search.address);
	int fd;

	if (status)
		return zero_control_give_up(control, control->config.rank, "%s",
					    zero_core->last_error());
	search.address.node[sizeof(search.address.node) - 1] = '\0';
	list_places(&search);
	if (!search.count)
		return zero_control_give_up(control, rank,
					    "rank %d (node %s) offers no address: it has no "
					    "network that NCCL_SOCKET_IFNAME allows there",
					    rank, search.address.node);
	fd = find(&search, deadline);
	if (fd >= 0)
		return adopt(&search, fd, link);
	name_places(&search, places, sizeof(places));
	return zero_control_give_up(
		control, rank, "rank %d (node %s) did not answer within %g s at %s: %s", rank,
		search.address.node, control->config.seconds, places, search.why);
}

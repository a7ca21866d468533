/* SPDX-License-Identifier: Apache-2.0 */
/* Connects to another rank, trying one of its addresses after the other. */
#include "dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/clock.h"

#define HELLO "zeronet" /* eight bytes each, with the 0 */
#define REPLY "zeroack"
enum { VERSION = 3 };

void zero_socket_set_options(int fd)
{
	int yes = 1, idle = 3, interval = 2, count = 3;
	unsigned timeout_ms = 9000;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(timeout_ms));
}

/* ---- proofs ---------------------------------------------------------------------------------- */

static uint64_t rotate(uint64_t word, int by)
{
	return word << by | word >> (64 - by);
}

static void sip_rounds(uint64_t v[4], int rounds)
{
	for (; rounds; rounds--) {
		v[0] += v[1];
		v[2] += v[3];
		v[1] = rotate(v[1], 13) ^ v[0];
		v[3] = rotate(v[3], 16) ^ v[2];
		v[0] = rotate(v[0], 32) + v[3];
		v[2] += v[1];
		v[3] = rotate(v[3], 21) ^ v[0];
		v[1] = rotate(v[1], 17) ^ v[2];
		v[2] = rotate(v[2], 32);
	}
}

/* Nothing of a hello or a reply is padding, which would not be sent as it was hashed. */
_Static_assert(sizeof(struct zero_hello) == 8 + 3 * 4 + 16 + 8 + 64, "a hello has padding");
_Static_assert(sizeof(struct zero_hello_reply) == 8 + 2 * 4 + 8, "a reply has padding");

/* All machines of a job have the same byte order. */
uint64_t zero_keyed_hash(const uint8_t key[16], const void *data, size_t bytes)
{
	static const uint64_t start[4] = {
		UINT64_C(0x736f6d6570736575), UINT64_C(0x646f72616e646f6d),
		UINT64_C(0x6c7967656e657261), UINT64_C(0x7465646279746573)};
	const uint8_t *at = data;
	uint64_t v[4], k[2], word;

	memcpy(k, key, sizeof(k));
	for (int i = 0; i < 4; i++)
		v[i] = start[i] ^ k[i % 2];
	for (size_t left = bytes;; left -= 8, at += 8) {
		bool last = left < 8;

		word = last ? (uint64_t)bytes << 56 : 0;
		if (left)
			memcpy(&word, at, last ? left : 8);
		v[3] ^= word;
		sip_rounds(v, 2);
		v[0] ^= word;
		if (last)
			break;
	}
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* The nonce makes that of each connection another one, so that no reply can be one of before. */
void zero_hello_prove(struct zero_hello *hello, const uint8_t *cookie)
{
	struct zero_hello plain = *hello;
	uint64_t hash;

	memset(plain.proof, 0, sizeof(plain.proof));
	hash = zero_keyed_hash(cookie, &plain, sizeof(plain));
	memcpy(hello->proof, &hash, sizeof(hello->proof));
}

/* Takes the same time whichever bytes differ, so that a proof cannot be guessed by timing. */
static bool same_bytes(const uint8_t *a, const uint8_t *b, size_t bytes)
{
	volatile uint8_t differs = 0;

	for (size_t i = 0; i < bytes; i++)
		differs = (uint8_t)(differs | (a[i] ^ b[i]));
	return !differs;
}

bool zero_hello_verify(const struct zero_hello *hello, int rank, const uint8_t *cookie)
{
	struct zero_hello proven = *hello;

	zero_hello_prove(&proven, cookie);
	return same_bytes(hello->proof, proven.proof, sizeof(hello->proof)) &&
	       !memcmp(hello->magic, HELLO, sizeof(hello->magic)) && hello->version == VERSION &&
	       hello->wanted == rank;
}

struct zero_hello_reply zero_hello_reply(const struct zero_hello *hello, const uint8_t *cookie)
{
	struct {
		struct zero_hello hello;
		struct zero_hello_reply reply;
	} both = {*hello, {.magic = REPLY, .version = VERSION, .rank = hello->wanted}};
	uint64_t hash = zero_keyed_hash(cookie, &both, sizeof(both));

	memcpy(both.reply.proof, &hash, sizeof(both.reply.proof));
	return both.reply;
}

/* ---- the connecting side --------------------------------------------------------------------- */

static void add_candidate(struct zero_dial *dial, int family, const void *bytes, uint32_t scope)
{
	struct sockaddr_storage *address = &dial->at[dial->count];
	struct sockaddr_in6 *six = (void *)address;
	struct sockaddr_in *four = (void *)address;

	memset(address, 0, sizeof(*address));
	if (family == 4) {
		four->sin_family = AF_INET;
		four->sin_port = htons(dial->address.port);
		memcpy(&four->sin_addr, bytes, 4);
	} else {
		six->sin6_family = AF_INET6;
		six->sin6_port = htons(dial->address.port);
		six->sin6_scope_id = scope;
		memcpy(&six->sin6_addr, bytes, 16);
	}
	for (size_t i = 0; i < dial->count; i++)
		if (!memcmp(&dial->at[i], address, sizeof(*address)))
			return;
	dial->count++;
}

void zero_dial_prepare(struct zero_dial *dial)
{
	struct zero_address *address = &dial->address;
	uint32_t loopback = htonl(INADDR_LOOPBACK);
	size_t count = address->count;

	memcpy(dial->hello.magic, HELLO, sizeof(dial->hello.magic));
	dial->hello.version = VERSION;
	address->node[sizeof(address->node) - 1] = '\0';
	if (count > ZERO_ADDRESSES)
		count = ZERO_ADDRESSES;
	if (!strncmp(address->node, dial->hello.node, sizeof(address->node))) {
		add_candidate(dial, 4, &loopback, 0);
		add_candidate(dial, 6, &in6addr_loopback, 0);
	}
	for (size_t i = 0; i < count; i++)
		add_candidate(dial, address->at[i].family, address->at[i].bytes,
			      address->at[i].scope);
}

void zero_dial_list_addresses(const struct zero_dial *dial, char *text, size_t size)
{
	size_t at = 0;

	for (size_t i = 0; i < dial->count && at < size; i++) {
		const struct sockaddr_in6 *six = (const void *)&dial->at[i];
		const struct sockaddr_in *four = (const void *)&dial->at[i];
		bool is_six = six->sin6_family == AF_INET6;
		char name[INET6_ADDRSTRLEN] = "?";

		if (is_six)
			inet_ntop(AF_INET6, &six->sin6_addr, name, sizeof(name));
		else
			inet_ntop(AF_INET, &four->sin_addr, name, sizeof(name));
		at += (size_t)snprintf(text + at, size - at, "%s%s%s%s:%u", i ? ", " : "",
				       is_six ? "[" : "", name, is_six ? "]" : "",
				       dial->address.port);
	}
}

bool zero_socket_send(int fd, const void *data, size_t bytes, int flags)
{
	const char *at = data;

	while (bytes) {
		ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL | flags);

		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			return false;
		at += sent;
		bytes -= (size_t)sent;
	}
	return true;
}

bool zero_socket_receive(int fd, void *to, size_t bytes)
{
	char *at = to;

	errno = 0;
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

/* Waits until the socket can be read or written. Returns false after the deadline, or when the
   caller gives up. */
static bool wait_ready(struct zero_dial *dial, int fd, short events, double deadline)
{
	struct pollfd one = {.fd = fd, .events = events};

	while (!atomic_load(dial->over)) {
		double left = deadline - zero_seconds();

		if (left <= 0) {
			snprintf(dial->why, sizeof(dial->why), "%s", strerror(ETIMEDOUT));
			return false;
		}
		/* Short waits notice soon that the caller gives up. */
		if (poll(&one, 1, left < 0.1 ? (int)(left * 1e3) + 1 : 100) > 0)
			return true;
	}
	return false;
}

static bool exchange_hello(struct zero_dial *dial, int fd, double deadline)
{
	struct zero_hello_reply reply, want;
	size_t have = 0;

	if (getrandom(dial->hello.nonce, sizeof(dial->hello.nonce), 0) !=
	    (ssize_t)sizeof(dial->hello.nonce)) {
		snprintf(dial->why, sizeof(dial->why), "no random numbers: %s", strerror(errno));
		return false;
	}
	zero_hello_prove(&dial->hello, dial->cookie);
	want = zero_hello_reply(&dial->hello, dial->cookie);
	/* The buffer of a new connection takes a hello at once. */
	if (send(fd, &dial->hello, sizeof(dial->hello), MSG_NOSIGNAL) !=
	    (ssize_t)sizeof(dial->hello)) {
		snprintf(dial->why, sizeof(dial->why), "%s", strerror(errno));
		return false;
	}
	while (have < sizeof(reply)) {
		ssize_t got;

		if (!wait_ready(dial, fd, POLLIN, deadline))
			return false;
		got = recv(fd, (char *)&reply + have, sizeof(reply) - have, 0);
		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0) {
			snprintf(
				dial->why, sizeof(dial->why), "%s",
				got ? strerror(errno)
				    : "it closed the connection, as a process of another job does");
			return false;
		}
		have += (size_t)got;
	}
	if (same_bytes((const uint8_t *)&reply, (const uint8_t *)&want, sizeof(want)))
		return true;
	snprintf(dial->why, sizeof(dial->why), "another program listens there");
	return false;
}

static bool connect_to(struct zero_dial *dial, int fd, size_t i, double deadline)
{
	const struct sockaddr *address = (const struct sockaddr *)&dial->at[i];
	socklen_t length = address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
							  : sizeof(struct sockaddr_in);
	int error = connect(fd, address, length) ? errno : 0;

	if (error == EINPROGRESS || error == EINTR) {
		if (!wait_ready(dial, fd, POLLOUT, deadline))
			return false;
		length = sizeof(error);
		getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	}
	if (error) {
		snprintf(dial->why, sizeof(dial->why), "%s", strerror(error));
		return false;
	}
	return exchange_hello(dial, fd, deadline);
}

/* Returns a verified connection, or -1. */
static int try_address(struct zero_dial *dial, size_t i, double deadline)
{
	int fd = socket(dial->at[i].ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0) {
		snprintf(dial->why, sizeof(dial->why), "%s", strerror(errno));
		return -1;
	}
	atomic_store(dial->connecting, fd);
	zero_socket_set_options(fd);
	if (connect_to(dial, fd, i, deadline))
		return fd;
	atomic_store(dial->connecting, -1);
	close(fd);
	return -1;
}

/* Tries all addresses again and again, each time with more patience: a rank may start late, or a
   network be slow. */
int zero_dial(struct zero_dial *dial, double deadline)
{
	double patience = dial->patience > 0 ? dial->patience : 1, pause = 0.01;

	snprintf(dial->why, sizeof(dial->why), "no time was left to connect");
	while (!atomic_load(dial->over)) {
		double now = zero_seconds(), until;

		for (size_t i = 0; i < dial->count && now < deadline; i++) {
			int fd;

			until = now + patience < deadline ? now + patience : deadline;
			fd = try_address(dial, i, until);
			if (fd >= 0 || atomic_load(dial->over))
				return fd;
			now = zero_seconds();
		}
		if (now >= deadline || !dial->count)
			return -1;
		poll(NULL, 0, (int)(pause * 1e3));
		patience = patience < 8 ? 2 * patience : 8;
		pause = pause < 0.2 ? 2 * pause : 0.2;
	}
	return -1;
}

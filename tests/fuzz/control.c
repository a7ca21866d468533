/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what other processes send to a rank: pending connections send a hello, neighbours send
 * frames, both in pieces. The first byte of the input chooses the rank. Each operation is a byte
 * and its arguments.
 */
#include <stdlib.h>

#include "net/net_internal.h"
#include "fuzz.h"

/* A frame announced as very long gets no memory: a sanitizer would touch all of it. */
static void *fuzz_calloc(size_t count, size_t bytes)
{
	return bytes > 1 << 20 ? NULL : calloc(count, bytes);
}

/*
 * The sources are included for their static functions: the input reads connections without the
 * thread, and creates a team without its first agreement.
 */
#define calloc fuzz_calloc
#include "../../lib/net/link.c"
#undef calloc
#include "../../lib/net/connect.c"
#include "../../lib/net/net_team.c"

#include <sys/ioctl.h>

/* Rank 0 has ten children; rank 1 has a parent and a child. */
enum { WORLD = 22, PEERS = ZERO_NET_FANOUT + 1, BYTES = 24 };

static struct zero_net *net;
static struct zero_net_team *team;
static struct peer {
	struct zero_link *link; /* lives as long as the control */
	int fd;                 /* the other side of it */
} peers[PEERS];
static int peer_count, pending_fd;
static bool begun;

static int new_pair(int *other)
{
	int pair[2];

	must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), "no pair");
	*other = pair[1];
	return pair[0];
}

static void add_peer(int rank)
{
	struct peer *peer = &peers[peer_count++];

	peer->link = zero_link_new(net, new_pair(&peer->fd), rank, "node");
	must(peer->link, "no memory");
	peer->link->confirmed = true;
}

static void begin_team(int rank)
{
	struct zero_address own = {.port = 0};
	int ranks[WORLD];

	net = zero_net_new();
	must(net && !zero_net_ops.listen(net, &own), "%s", zero_last_error());
	net->config = (struct zero_net_config){.rank = rank, .world = WORLD, .seconds = 0.01};
	memset(net->cookie, 'c', sizeof(net->cookie));
	peer_count = 0;
	pending_fd = -1;
	begun = false;
	for (int i = 0; i < WORLD; i++)
		ranks[i] = i;
	if (rank)
		add_peer(0);
	for (int i = 0; i < ZERO_NET_FANOUT && !rank; i++)
		add_peer(1 + 21 * i / 10);
	if (rank)
		add_peer(2);
	team = new_team(net, ranks, WORLD);
	must(team && !connect_team(team), "%s", zero_last_error());
	team->next = net->teams;
	net->teams = team;
}

/* Reads all that has come on a connection, as the reader thread would. */
static void read_all(struct zero_link *link)
{
	int left;

	for (left = 1; link->fd >= 0 && !ioctl(link->fd, FIONREAD, &left) && left;)
		zero_link_read(link);
}

/* Reading may free the link, so the list is searched again each time. */
static void read_unconfirmed(void)
{
	struct zero_link *link = net->links;

	while (link && (link->confirmed || link->fd < 0))
		link = link->next;
	if (link)
		zero_link_read(link);
}

static void write_some(int fd, const void *bytes, size_t size)
{
	if (fd >= 0 && send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return; /* the socket is full or closed */
}

static void send_frame(struct fuzz *fuzz, int fd)
{
	unsigned kind = fuzz_byte(fuzz), length = fuzz_byte(fuzz) % 64;
	struct zero_frame_header header = {.team = kind & 0x80 ? fuzz_number(fuzz) : team->id,
					   .kind = kind & 0x7,
					   .collective = kind >> 3 & 3,
					   .size = length,
					   .sequence = fuzz_byte(fuzz) & 3,
					   .bytes = length};
	uint8_t payload[64];

	for (unsigned i = 0; i < length; i++)
		payload[i] = (uint8_t)fuzz_byte(fuzz);
	if (kind & 0x40)
		header.bytes = fuzz_number(fuzz);
	write_some(fd, &header, sizeof(header));
	write_some(fd, payload, length);
}

static void send_hello(struct fuzz *fuzz)
{
	struct zero_hello hello = {.magic = "zeronet", .version = 3, .rank = 3};
	size_t at = fuzz_byte(fuzz) % sizeof(hello), length = fuzz_byte(fuzz) % 8;
	int fd;

	hello.wanted = net->config.rank;
	memset(hello.node, 'n', sizeof(hello.node));
	for (size_t i = 0; i < length && at + i < sizeof(hello); i++)
		((uint8_t *)&hello)[at + i] = (uint8_t)fuzz_byte(fuzz);
	/* of one who has the cookie, or not */
	if (length % 2 == 0)
		zero_hello_prove(&hello, net->cookie);
	if (pending_fd >= 0)
		close(pending_fd);
	fd = new_pair(&pending_fd);
	write_some(pending_fd, &hello, sizeof(hello));
	add_pending(net, fd);
}

static void operate(struct fuzz *fuzz)
{
	unsigned what = fuzz_byte(fuzz), length;
	struct peer *peer = &peers[what / 8 % (unsigned)peer_count];
	uint64_t values[ZERO_NET_VALUES];

	switch (what % 8) {
	case 0:
	case 1:
		send_frame(fuzz, peer->fd);
		break;
	case 2:
		length = fuzz_byte(fuzz);
		if (length > fuzz->left)
			length = (unsigned)fuzz->left;
		write_some(peer->fd, fuzz->at, length);
		fuzz->at += length;
		fuzz->left -= length;
		break;
	case 3:
		send_hello(fuzz);
		break;
	case 4:
		send_frame(fuzz, pending_fd);
		break;
	case 5:
		for (size_t i = 0; i < ZERO_NET_VALUES; i++)
			values[i] = fuzz_byte(fuzz);
		begun |= !zero_net_ops.begin_max(team, values, 1 + what / 8 % ZERO_NET_VALUES);
		break;
	case 6:
		close(peer->fd);
		peer->fd = -1;
		break;
	case 7:
		read_unconfirmed();
		break;
	}
	read_all(peer->link);
}

static void check_sentence(void)
{
	char text[2 * ZERO_NET_TEXT];

	snprintf(text, sizeof(text), "%s", zero_last_error());
	fuzz_sentence(text, sizeof(text));
}

/* Once all peers are gone, every wait ends: with data that had come, or with an error. */
static void finish(void)
{
	uint64_t values[ZERO_NET_VALUES];
	uint8_t mine[BYTES] = {1}, *all = malloc(WORLD * BYTES);
	size_t which;

	must(all, "no memory");
	for (int i = 0; i < peer_count; i++) {
		if (peers[i].fd >= 0)
			close(peers[i].fd);
		while (peers[i].link->fd >= 0)
			zero_link_read(peers[i].link);
	}
	for (int round = 0; round < 3; round++) {
		if (begun && zero_net_ops.finish_max(&team, 1, &which, values))
			check_sentence();
		begun = false;
		if (zero_net_ops.allgather(team, mine, all, round * BYTES / 2))
			check_sentence();
		if (zero_net_ops.broadcast(team, all, round * 8, round))
			check_sentence();
	}
	free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	char text[ZERO_NET_TEXT];
	int rank;

	begin_team(fuzz_byte(&fuzz) % 2);
	while (fuzz.left)
		operate(&fuzz);
	finish();
	memset(text, 1, sizeof(text));
	if (zero_net_ops.has_failed(net, text, sizeof(text), &rank))
		fuzz_sentence(text, sizeof(text));
	if (pending_fd >= 0)
		close(pending_fd);
	zero_net_close(net);
	return 0;
}

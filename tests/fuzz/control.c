/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes what other processes send to a rank: pending connections send a hello, neighbours send
 * frames, both in pieces. The first byte of the input chooses the rank. Each operation is a byte
 * and its arguments.
 */
#include <stdarg.h>

#include "backend/cuda/control/private.h"
#include "fuzz.h"

/* A payload announced as very long gets no memory: a sanitizer would touch all of it. */
static struct zero_payload *fuzz_payload(const void *data, size_t bytes)
{
	return bytes > 1 << 20 ? NULL : zero_payload_new(data, bytes);
}

/*
 * The sources are included for their static functions: the input reads connections without the
 * reader thread, and creates a team without its first agreement.
 */
#define zero_payload_new fuzz_payload
#include "../../lib/backend/cuda/control/reader.c"
#undef zero_payload_new
#include "../../lib/backend/cuda/control/accept.c"
#include "../../lib/backend/cuda/control/team.c"

#include <sys/ioctl.h>

/* Rank 0 has ten children; rank 1 has a parent and a child. */
enum { WORLD = 22, PEERS = ZERO_CONTROL_FANOUT + 1, BYTES = 24 };

static char sentence[2 * ZERO_CONTROL_TEXT];

static zero_status fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

static zero_status fail(zero_status status, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(sentence, sizeof(sentence), format, arguments);
	va_end(arguments);
	return status;
}

static zero_status fail_on(int rank, zero_status status, const char *text)
{
	(void)rank;
	return fail(status, "%s", text);
}

static const char *last_error(void)
{
	return sentence;
}

static const struct zero_core core = {.fail = fail, .fail_on = fail_on, .last_error = last_error};
const struct zero_core *zero_core = &core;

static struct zero_control *control;
static struct zero_control_team *team;
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

	peer->link = zero_link_new(control, new_pair(&peer->fd), rank, "node");
	must(peer->link, "no memory");
	peer->link->confirmed = true;
	zero_link_add(peer->link);
}

static void begin_team(int rank)
{
	struct zero_address own = {.port = 0};
	int ranks[WORLD];

	must(!zero_control_listen(&control, &own), "%s", sentence);
	control->config =
		(struct zero_control_config){.rank = rank, .world = WORLD, .seconds = 0.01};
	/* The input can contain this cookie. */
	memset(control->cookie, 'c', sizeof(control->cookie));
	peer_count = 0;
	pending_fd = -1;
	begun = false;
	for (int i = 0; i < WORLD; i++)
		ranks[i] = i;
	if (rank)
		add_peer(0);
	for (int i = 0; i < ZERO_CONTROL_FANOUT && !rank; i++)
		add_peer(1 + 21 * i / 10);
	if (rank)
		add_peer(2);
	team = new_team(control, ranks, WORLD);
	must(team && !connect_team(team), "%s", sentence);
	register_team(team);
}

/* Reads all that has come on a connection, as the reader thread would. */
static void read_all(struct zero_link *link)
{
	int left;

	for (left = 1; link->fd >= 0 && !ioctl(link->fd, FIONREAD, &left) && left;)
		read_link(link);
}

/* Reading may free the link, so the list is searched again each time. */
static void read_unconfirmed(void)
{
	struct zero_link *link = control->links;

	while (link && (link->confirmed || link->fd < 0))
		link = link->next;
	if (link)
		read_link(link);
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
					   .kind = kind & 0xf,
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
	struct zero_hello hello = {.magic = "zeroctl", .version = 1, .rank = 3};
	size_t at = fuzz_byte(fuzz) % sizeof(hello), length = fuzz_byte(fuzz) % 8;
	int fd;

	hello.wanted = control->config.rank;
	memset(hello.cookie, 'c', sizeof(hello.cookie));
	memset(hello.node, 'n', sizeof(hello.node));
	for (size_t i = 0; i < length && at + i < sizeof(hello); i++)
		((uint8_t *)&hello)[at + i] = (uint8_t)fuzz_byte(fuzz);
	if (pending_fd >= 0)
		close(pending_fd);
	fd = new_pair(&pending_fd);
	write_some(pending_fd, &hello, sizeof(hello));
	add_pending(control, fd);
}

static void operate(struct fuzz *fuzz)
{
	unsigned what = fuzz_byte(fuzz), length;
	struct peer *peer = &peers[what / 8 % (unsigned)peer_count];
	uint64_t values[ZERO_CONTROL_VALUES];

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
		for (size_t i = 0; i < ZERO_CONTROL_VALUES; i++)
			values[i] = fuzz_byte(fuzz);
		begun |= !zero_control_begin_max(team, values, 1 + what / 8 % ZERO_CONTROL_VALUES);
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

/* Once all peers are gone, every wait ends: with data that had come, or with an error. */
static void finish(void)
{
	uint64_t values[ZERO_CONTROL_VALUES];
	uint8_t mine[BYTES] = {1}, *all = malloc(WORLD * BYTES);
	size_t which;

	must(all, "no memory");
	for (int i = 0; i < peer_count; i++) {
		if (peers[i].fd >= 0)
			close(peers[i].fd);
		while (peers[i].link->fd >= 0)
			read_link(peers[i].link);
	}
	for (int round = 0; round < 3; round++) {
		strcpy(sentence, "");
		if (begun && zero_control_finish_max(&team, 1, &which, values))
			fuzz_sentence(sentence, sizeof(sentence));
		strcpy(sentence, "");
		begun = false;
		if (zero_control_exchange(team, mine, all, round * BYTES / 2))
			fuzz_sentence(sentence, sizeof(sentence));
		strcpy(sentence, "");
		if (zero_control_broadcast(team, all, round * 8, round))
			fuzz_sentence(sentence, sizeof(sentence));
	}
	free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	char text[ZERO_CONTROL_TEXT];
	int rank;

	begin_team(fuzz_byte(&fuzz) % 2);
	while (fuzz.left)
		operate(&fuzz);
	finish();
	memset(text, 1, sizeof(text));
	if (zero_control_has_failed(control, text, sizeof(text), &rank))
		fuzz_sentence(text, sizeof(text));
	if (pending_fd >= 0)
		close(pending_fd);
	zero_control_team_free(control->teams == team ? NULL : team);
	zero_control_close(control);
	return 0;
}

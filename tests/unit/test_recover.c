/* SPDX-License-Identifier: Apache-2.0 */
/* How zerorun learns that a rank was lost, and which nodes and ranks it goes on with. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launcher/recover/choose.h"
#include "launcher/recover/listen.h"
#include "launcher/recover/nodes.h"
#include "unit.h"

/* ---- nodes and ranks ------------------------------------------------------------------------- */

/* Nodes are letters: u is used, l is used and lost, s is a spare, d is a spare and lost. */
struct row {
	struct layout layout;
	const char *nodes, *used; /* 1: by the next attempt */
	unsigned ranks;
	const char *why;
};

#define LAYOUT(RANKS, NODES, PER_NODE, MIN)                                                    \
	{                                                                                      \
		.ranks = (RANKS), .nodes = (NODES), .per_node = (PER_NODE), .min_ranks = (MIN) \
	}

static const struct row rows[] = {
	/* nothing is lost that is used */
	{LAYOUT(3, 3, 1, 0), "uuu", "111", 3, NULL},
	{LAYOUT(3, 3, 1, 0), "uuud", "1110", 3, NULL},
	/* spares replace lost nodes, and those that are left stay */
	{LAYOUT(3, 3, 1, 0), "ulus", "1011", 3, NULL},
	{LAYOUT(3, 3, 1, 0), "luus", "0111", 3, NULL},
	{LAYOUT(6, 3, 2, 0), "sluuss", "101100", 6, NULL},
	{LAYOUT(6, 2, 3, 0), "llss", "0011", 6, NULL},
	{LAYOUT(2, 2, 1, 0), "ludss", "01010", 2, NULL},
	/* there are too few, and the job has to have all ranks */
	{LAYOUT(3, 3, 1, 0), "ulu", NULL, 0,
	 "2 nodes are left for 2 of its 3 ranks (--min-ranks allows fewer ranks, --spare-nodes "
	 "keeps nodes to replace lost ones)"},
	{LAYOUT(8, 2, 4, 0), "uld", NULL, 0,
	 "1 node is left for 4 of its 8 ranks (--min-ranks allows fewer ranks, --spare-nodes "
	 "keeps nodes to replace lost ones)"},
	/* or fewer: as many as whole nodes are left for */
	{LAYOUT(3, 3, 1, 2), "ulu", "101", 2, NULL},
	{LAYOUT(12, 3, 4, 1), "lul", "010", 4, NULL},
	{LAYOUT(12, 3, 4, 9), "luls", NULL, 0,
	 "2 nodes are left for 8 ranks, fewer than --min-ranks=9"},
	{LAYOUT(12, 3, 4, 8), "luls", "0101", 8, NULL},
	{LAYOUT(3, 3, 1, 2), "llu", NULL, 0, "1 node is left for 1 rank, fewer than --min-ranks=2"},
	/* unequal nodes: 3 and 2 ranks; 3 nodes of 2 have room for 5 */
	{LAYOUT(5, 2, 3, 3), "ul", "10", 3, NULL},
	{LAYOUT(5, 4, 2, 5), "uulu", "1101", 5, NULL},
	/* an attempt with fewer ranks goes on with more, once there are nodes */
	{LAYOUT(4, 4, 1, 2), "uuslss", "111010", 4, NULL},
	/* nobody is left */
	{LAYOUT(3, 3, 1, 1), "llld", NULL, 0, "no node is left"},
	{LAYOUT(1, 1, 1, 0), "l", NULL, 0, "no node is left"},
	{LAYOUT(1, 1, 1, 0), "", NULL, 0, "no node is left"},
	/* numbers that only a user can think of */
	{LAYOUT(4000000000u, 2, 2000000000, 1), "uus", "110", 4000000000u, NULL},
	{LAYOUT(4000000000u, 1, 4000000000u, 1), "us", "10", 4000000000u, NULL},
};

START_TEST(chosen)
{
	const struct row *row = &rows[_i];
	size_t count = strlen(row->nodes);
	bool lost[16], used[16];
	char why[256] = "";

	for (size_t i = 0; i < count; i++) {
		used[i] = strchr("ul", row->nodes[i]) != NULL;
		lost[i] = strchr("ld", row->nodes[i]) != NULL;
	}
	ck_assert_uint_eq(choose_nodes(&row->layout, lost, used, count, why, sizeof(why)),
			  row->ranks);
	ck_assert_str_eq(why, row->why ? row->why : "");
	for (size_t i = 0; row->used && i < count; i++)
		ck_assert_msg(used[i] == (row->used[i] == '1'), "node %zu of %s", i, row->nodes);
}
END_TEST

START_TEST(per_node)
{
	ck_assert_uint_eq(ranks_per_node(6, 3), 2);
	ck_assert_uint_eq(ranks_per_node(7, 3), 3);
	ck_assert_uint_eq(ranks_per_node(1, 1), 1);
	ck_assert_uint_eq(ranks_per_node(4294967295u, 2), 2147483648u);
}
END_TEST

/* What scale_gpus makes of it from 3 nodes to 2; NULL: nothing. */
START_TEST(gpus)
{
	static const char *const table[][2] = {
		{"6", "4"},
		{"3", "2"},
		{"a100:12", "a100:8"},
		{"gpu:a100:3", "gpu:a100:2"},
		{"4", NULL},
		{"0", NULL},
		{"", NULL},
		{"a100", NULL},
		{"a100:", NULL},
		{"a100:6,v100:3", NULL},
		{"6x", NULL},
		{"-6", NULL},
		{"99999999999999999999", NULL},
	};

	for (size_t i = 0; i < COUNT_OF(table); i++) {
		char *scaled = scale_gpus(table[i][0], 3, 2);

		ck_assert_pstr_eq(scaled, table[i][1]);
		free(scaled);
	}
}
END_TEST

/* ---- where zerorun listens, as text ---------------------------------------------------------- */

static const char *const right[] = {
	"n1:1:10.0.0.1",
	"login-7.cluster:65535:10.0.0.1,2001:db8::1,192.168.7.9",
	"n1:4711:",
	"n1:4711:1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8",
};
static const char *const wrong[] = {
	"",
	"n1",
	":1:10.0.0.1",
	"n1:0:10.0.0.1",
	"n1:-1:10.0.0.1",
	"n1:65536:10.0.0.1",
	"n1: 1:10.0.0.1",
	"n1:99999999999999999999:10.0.0.1",
	"n1:1",
	"n1:1:10.0.0",
	"n1:1:10.0.0.1 ",
	"n1:1:,10.0.0.1",
	"n1:1:10.0.0.1,,10.0.0.2",
	"n1:1:2001:db8:::1",
	"n1:1:n2",
	"n1:1:1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb:cccc",
	"n1:1:1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8,1.1.1.9",
	"a-name-that-is-longer-than-any-name-of-a-machine-may-be-on-any-system:1:10.0.0.1",
};

START_TEST(text)
{
	struct zero_address address;
	char again[ZERO_LAUNCHER_BYTES];

	for (size_t i = 0; i < COUNT_OF(right); i++) {
		ck_assert_msg(zero_launcher_parse(right[i], &address), "%s", right[i]);
		zero_launcher_format(&address, again);
		ck_assert_str_eq(again, right[i]);
	}
	for (size_t i = 0; i < COUNT_OF(wrong); i++)
		ck_assert_msg(!zero_launcher_parse(wrong[i], &address), "%s", wrong[i]);
}
END_TEST

START_TEST(addresses_of_one_node)
{
	struct zero_address address = {.node = "n1", .port = 7, .count = 4};
	char text_[ZERO_LAUNCHER_BYTES];

	memcpy(address.at[0].bytes, (uint8_t[]){127, 0, 0, 1}, 4);
	memcpy(address.at[1].bytes, (uint8_t[]){10, 0, 0, 1}, 4);
	memcpy(address.at[2].bytes, (uint8_t[]){0xfe, 0x80, [15] = 1}, 16);
	memcpy(address.at[3].bytes, (uint8_t[]){[15] = 1}, 16);
	for (int i = 0; i < 4; i++)
		address.at[i].family = i < 2 ? 4 : 6;
	zero_launcher_format(&address, text_);
	ck_assert_str_eq(text_, "n1:7:10.0.0.1");
}
END_TEST

START_TEST(longest_text)
{
	struct zero_address address = {.port = 65535, .count = ZERO_ADDRESSES};
	char text_[ZERO_LAUNCHER_BYTES];

	memset(address.node, 'n', 63);
	for (int i = 0; i < ZERO_ADDRESSES; i++) {
		address.at[i].family = 6;
		memset(address.at[i].bytes, 0x11 * (i + 1), 16);
	}
	zero_launcher_format(&address, text_);
	ck_assert_uint_eq(strlen(text_), 63 + 7 + ZERO_ADDRESSES * 39 + ZERO_ADDRESSES - 1);
	ck_assert(zero_launcher_parse(text_, &address));
}
END_TEST

START_TEST(key)
{
	uint8_t cookie[16], again[16];
	char text_[ZERO_RUN_BYTES];

	for (int i = 0; i < 16; i++)
		cookie[i] = (uint8_t)(17 * i + 3);
	zero_run_format(cookie, text_);
	ck_assert_str_eq(text_, "031425364758697a8b9cadbecfe0f102");
	ck_assert(zero_run_parse(text_, again));
	ck_assert_mem_eq(cookie, again, 16);
	ck_assert(!zero_run_parse("", again));
	ck_assert(!zero_run_parse("031425364758697a8b9cadbecfe0f10", again));
	ck_assert(!zero_run_parse("031425364758697a8b9cadbecfe0f1022", again));
	ck_assert(!zero_run_parse("031425364758697a8b9cadbecfe0f10x", again));
}
END_TEST

/* ---- a notice -------------------------------------------------------------------------------- */

static const char run_key[] = "00112233445566778899aabbccddeeff";
static struct listener listener;

static void begin_to_listen(void)
{
	unsetenv("ZERO_LAUNCHER");
	listen_begin(&listener, run_key);
	setenv("ZERO_RUN", run_key, 1);
	setenv("ZERO_RESTART", "4", 1);
}

static void end_listening(void)
{
	listen_end(&listener);
}

static struct sender {
	struct zero_address address;
	struct zero_loss_notice notice;
	int attempt;
	bool answered;
	_Atomic bool done;
} sender;

static void *notify(void *context)
{
	struct zero_loss_notice notice = sender.notice;

	notice.rank = 5;
	strcpy(notice.node, "n3");
	sender.answered = zero_launcher_notify(&sender.address, sender.attempt, &notice, 0.5);
	sender.done = true;
	return context;
}

/* A rank sends a notice while zerorun listens. Returns whether zerorun took it. */
static bool notice_arrives(struct zero_loss_notice *notice)
{
	struct pollfd fds[1 + LISTEN_PENDING];
	bool found = false, done;
	pthread_t thread;

	sender.done = false;
	ck_assert_int_eq(pthread_create(&thread, NULL, notify, NULL), 0);
	do {
		done = sender.done;
		poll(fds, listen_fds(&listener, fds), 10);
		found |= listen_read(&listener, 4, notice);
	} while (!done);
	pthread_join(thread, NULL);
	return found;
}

START_TEST(arrives)
{
	struct zero_loss_notice notice;

	setenv("SLURM_STEP_ID", "17", 1);
	ck_assert(zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
	ck_assert_int_eq(sender.attempt, 4);
	ck_assert(notice_arrives(&notice));
	ck_assert(sender.answered);
	ck_assert_int_eq(notice.rank, 5);
	ck_assert_str_eq(notice.node, "n3");
	ck_assert_uint_eq(notice.step, 17);
}
END_TEST

/* What is no step of srun has no number that another one could have. */
START_TEST(of_no_step)
{
	static const char *const none[] = {"", "-5", "batch", NULL};

	for (size_t i = 0; i < COUNT_OF(none); i++) {
		if (none[i])
			setenv("SLURM_STEP_ID", none[i], 1);
		else
			unsetenv("SLURM_STEP_ID");
		ck_assert(zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
		ck_assert_uint_eq(sender.notice.step, ZERO_NO_STEP);
	}
}
END_TEST

START_TEST(of_another_attempt_or_run)
{
	struct zero_loss_notice notice;

	ck_assert(zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
	sender.attempt = 3;
	ck_assert(!notice_arrives(&notice));
	ck_assert(!sender.answered);
	sender.attempt = 4;
	sender.address.cookie[15] ^= 1;
	ck_assert(!notice_arrives(&notice));
	ck_assert(!sender.answered);
}
END_TEST

/* zerorun has answered it in time, but its notice comes in the next attempt. */
START_TEST(of_the_attempt_before)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	struct zero_loss_notice notice, sent;
	struct zero_hello_reply reply;
	struct zero_dial dial = {0};
	ssize_t got;

	ck_assert(zero_launcher_find(&dial.address, &sender.attempt, &sent));
	dial.hello.wanted = sender.attempt;
	memcpy(dial.cookie, dial.address.cookie, sizeof(dial.cookie));
	zero_dial_prepare(&dial);
	zero_hello_prove(&dial.hello, dial.cookie);
	to.sin_port = htons(dial.address.port);
	ck_assert_int_eq(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	ck_assert_int_eq(send(fd, &dial.hello, sizeof(dial.hello), 0), sizeof(dial.hello));
	while ((got = recv(fd, &reply, sizeof(reply), MSG_DONTWAIT)) < 0)
		ck_assert(!listen_read(&listener, 4, &notice));
	ck_assert_int_eq(got, sizeof(reply));
	ck_assert_int_eq(send(fd, &sent, sizeof(sent), 0), sizeof(sent));
	ck_assert(!listen_read(&listener, 5, &notice));
	/* zerorun has closed it */
	ck_assert_int_le(recv(fd, &reply, sizeof(reply), 0), 0);
	close(fd);
}
END_TEST

/* More of them than zerorun waits for, which send nothing or too little. */
START_TEST(beside_others_that_say_nothing)
{
	int silent[3 * LISTEN_PENDING];
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct zero_loss_notice notice;

	ck_assert(zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
	to.sin_port = htons(sender.address.port);
	for (size_t i = 0; i < COUNT_OF(silent); i++) {
		silent[i] = socket(AF_INET, SOCK_STREAM, 0);
		ck_assert_int_eq(connect(silent[i], (struct sockaddr *)&to, sizeof(to)), 0);
		if (i % 2)
			ck_assert_int_eq(send(silent[i], "zeronet", 8, MSG_NOSIGNAL), 8);
	}
	ck_assert(notice_arrives(&notice));
	for (size_t i = 0; i < COUNT_OF(silent); i++)
		close(silent[i]);
	listen_end(&listener);
	begin_to_listen();
}
END_TEST

START_TEST(nobody_listens)
{
	struct zero_loss_notice notice = {.rank = 1};

	ck_assert(zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
	/* on another port */
	listen_end(&listener);
	begin_to_listen();
	ck_assert(!zero_launcher_notify(&sender.address, 4, &notice, 0.2));
	setenv("ZERO_LAUNCHER", "elsewhere", 1);
	ck_assert(!zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
	unsetenv("ZERO_LAUNCHER");
	ck_assert(!zero_launcher_find(&sender.address, &sender.attempt, &sender.notice));
}
END_TEST

/* ---- which nodes are lost -------------------------------------------------------------------- */

enum { REFUSALS = 2 };
/* What the slurmd of a node does, and whether the node is lost then. */
enum slurmd { ACCEPTS, COMES_UP, IS_GONE };
static struct {
	enum slurmd does;
	int fd, asked;
	struct sockaddr_in address;
} slurmd[4];
static char node_names[COUNT_OF(slurmd)][4] = {"n1", "n2", "n10", "n3"};

int __real_connect(int fd, const struct sockaddr *to, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t length);

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t length)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)to;

	for (size_t i = 0; to->sa_family == AF_INET && i < COUNT_OF(slurmd); i++)
		if (slurmd[i].address.sin_port == in->sin_port && slurmd[i].asked++ == REFUSALS &&
		    slurmd[i].does == COMES_UP)
			ck_assert_int_eq(listen(slurmd[i].fd, 8), 0);
	return __real_connect(fd, to, length);
}

static void probe(struct nodes *nodes, const enum slurmd *does, const char *suspect)
{
	static bool lost[COUNT_OF(slurmd)];
	static const char *why[COUNT_OF(slurmd)];
	static char *name[COUNT_OF(slurmd)];
	static struct sockaddr_storage address[COUNT_OF(slurmd)];
	static socklen_t length[COUNT_OF(slurmd)];

	*nodes = (struct nodes){name, lost, why, address, length, COUNT_OF(slurmd)};
	for (size_t i = 0; i < COUNT_OF(slurmd); i++) {
		struct sockaddr_in *at = &slurmd[i].address;

		*at = (struct sockaddr_in){.sin_family = AF_INET,
					   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
		length[i] = sizeof(*at);
		slurmd[i].does = does[i];
		slurmd[i].asked = 0;
		slurmd[i].fd = socket(AF_INET, SOCK_STREAM, 0);
		ck_assert_int_eq(bind(slurmd[i].fd, (struct sockaddr *)at, length[i]), 0);
		ck_assert_int_eq(getsockname(slurmd[i].fd, (struct sockaddr *)at, &length[i]), 0);
		if (does[i] == ACCEPTS)
			ck_assert_int_eq(listen(slurmd[i].fd, 8), 0);
		memcpy(&address[i], at, sizeof(*at));
		name[i] = node_names[i];
	}
	/* where there is no scontrol */
	setenv("PATH", "/proc/self/fd", 1);
	nodes_probe(nodes, suspect);
	for (size_t i = 0; i < COUNT_OF(slurmd); i++)
		close(slurmd[i].fd);
}

/* One that refuses is asked again, but for that of the node a rank has found lost. */
START_TEST(refusing)
{
	struct nodes nodes;
	enum slurmd does[] = {ACCEPTS, COMES_UP, IS_GONE, IS_GONE};

	probe(&nodes, does, "n3");
	ck_assert(!nodes.lost[0]);
	ck_assert_int_eq(slurmd[0].asked, 1);
	ck_assert(!nodes.lost[1]);
	ck_assert_int_eq(slurmd[1].asked, REFUSALS + 1);
	for (size_t i = 2; i < COUNT_OF(slurmd); i++) {
		ck_assert(nodes.lost[i]);
		ck_assert_str_eq(nodes.why[i], "its slurmd has ended");
	}
	ck_assert_int_gt(slurmd[2].asked, REFUSALS + 1);
	ck_assert_int_eq(slurmd[3].asked, 1);
}
END_TEST

START_TEST(suspect_that_accepts)
{
	struct nodes nodes;
	enum slurmd does[] = {ACCEPTS, ACCEPTS, ACCEPTS, ACCEPTS};

	probe(&nodes, does, "n1");
	for (size_t i = 0; i < COUNT_OF(slurmd); i++)
		ck_assert(!nodes.lost[i]);
}
END_TEST

int main(void)
{
	TCase *choice = tcase_create("choose"), *notices = tcase_create("notice");
	TCase *lost = tcase_create("lost");

	tcase_add_loop_test(choice, chosen, 0, COUNT_OF(rows));
	tcase_add_test(choice, per_node);
	tcase_add_test(choice, gpus);
	tcase_add_test(choice, text);
	tcase_add_test(choice, addresses_of_one_node);
	tcase_add_test(choice, longest_text);
	tcase_add_test(choice, key);
	tcase_add_checked_fixture(notices, begin_to_listen, end_listening);
	tcase_add_test(notices, arrives);
	tcase_add_test(notices, of_no_step);
	tcase_add_test(notices, of_another_attempt_or_run);
	tcase_add_test(notices, beside_others_that_say_nothing);
	tcase_add_test(notices, of_the_attempt_before);
	tcase_add_test(notices, nobody_listens);
	tcase_add_test(lost, refusing);
	tcase_add_test(lost, suspect_that_accepts);
	return run_cases(choice, notices, lost, NULL);
}

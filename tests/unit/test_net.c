/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses that a rank offers, and how another one connects to them. */
#define LEAVES_FILES 1
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>

#include "core/clock.h"
#include "net/dial.h"
#include "unit.h"

/* ---- addresses ------------------------------------------------------------------------------- */

START_TEST(interfaces)
{
	static const struct {
		const char *filter, *name;
		bool may;
	} table[] = {
		{NULL, "eth0", true},          {"", "eth0", true},
		{"eth", "eth0", true},         {"eth", "ib0", false},
		{"eth,ib", "ib0", true},       {"eth1", "eth10", true},
		{"=eth1", "eth10", false},     {"=eth1", "eth1", true},
		{"=eth0,eth1", "eth1", true},  {"=eth0,eth1", "eth11", false},
		{"^docker", "docker0", false}, {"^docker", "eth0", true},
		{"^docker,lo", "lo", false},   {"^docker,lo", "ib0", true},
		{"^=docker", "docker0", true}, {"^=docker0", "docker0", false},
		{"eth0", "eth", false},        {",,eth", "ib0", false},
	};

	for (size_t i = 0; i < COUNT_OF(table); i++)
		ck_assert_msg(zero_interface_allowed(table[i].filter, table[i].name) ==
				      table[i].may,
			      "%s for %s", table[i].filter, table[i].name);
}
END_TEST

/* The interfaces of a node, which getifaddrs() returns to the library. */
static struct {
	char name[16], address[40];
	unsigned flags;
} node[] = {
	{"lo", "127.0.0.1", IFF_UP | IFF_LOOPBACK},
	{"docker0", "172.17.0.1", IFF_UP},
	{"eth0", "fe80::1", IFF_UP},
	{"eth0", "2001:db8::1", IFF_UP},
	{"eth0", "10.0.0.1", IFF_UP},
	{"eth1", "10.0.1.1", 0},
	{"ib0", "10.0.2.1", IFF_UP},
	{"ib1", "10.0.3.1", IFF_UP},
	{"ib2", "10.0.4.1", IFF_UP},
	{"ib3", "10.0.5.1", IFF_UP},
	{"ib4", "10.0.6.1", IFF_UP},
};

enum { ENTRIES = COUNT_OF(node) };

static size_t entries; /* how many of them there are */
static struct ifaddrs list[ENTRIES];

int getifaddrs(struct ifaddrs **first)
{
	static struct sockaddr_in6 addresses[ENTRIES];

	for (size_t i = 0; i < entries; i++) {
		struct sockaddr_in6 *six = &addresses[i];
		struct sockaddr_in *four = (void *)six;

		memset(six, 0, sizeof(*six));
		six->sin6_family = strchr(node[i].address, ':') ? AF_INET6 : AF_INET;
		if (six->sin6_family == AF_INET6)
			six->sin6_scope_id = 3;
		ck_assert_int_eq(inet_pton(six->sin6_family, node[i].address,
					   six->sin6_family == AF_INET6 ? (void *)&six->sin6_addr
									: &four->sin_addr),
				 1);
		list[i] = (struct ifaddrs){.ifa_next = i + 1 < entries ? &list[i + 1] : NULL,
					   .ifa_name = node[i].name,
					   .ifa_flags = node[i].flags,
					   .ifa_addr = (void *)six};
	}
	*first = list;
	return 0;
}

void freeifaddrs(struct ifaddrs *first)
{
	ck_assert_ptr_eq(first, list);
}

/* Ordinary ones come first, IPv4 before IPv6, then those of a link; the rest has no room. Those of
   containers, and then the node's own, are offered where there are no others: on another node they
   would be those of another process, which would be told the cookie. */
START_TEST(offered)
{
	static const struct {
		size_t entries;
		const char *addresses[ZERO_ADDRESSES + 1];
	} want[] = {
		{1, {"127.0.0.1"}},
		{2, {"172.17.0.1"}},
		{3, {"fe80::1", "172.17.0.1"}},
		{7, {"10.0.0.1", "10.0.2.1", "2001:db8::1", "fe80::1"}},
		{ENTRIES,
		 {"10.0.0.1", "10.0.2.1", "10.0.3.1", "10.0.4.1", "10.0.5.1", "10.0.6.1",
		  "2001:db8::1", "fe80::1"}},
	};
	const char *const *wanted = want[_i].addresses;
	struct {
		struct zero_address own;
		unsigned char after[64];
	} offer = {.own = {.port = 0}};
	char text[INET6_ADDRSTRLEN], why[200];
	int fd, count = 0;

	memset(offer.after, 7, sizeof(offer.after));
	entries = want[_i].entries;
	ck_assert_msg(zero_address_listen(&fd, &offer.own, getenv("NCCL_SOCKET_IFNAME"), why,
					  sizeof(why)),
		      "%s", why);
	ck_assert_uint_ne(offer.own.port, 0);
	for (; wanted[count]; count++) {
		bool six = offer.own.at[count].family == 6;

		ck_assert_int_gt(offer.own.count, count);
		inet_ntop(six ? AF_INET6 : AF_INET, offer.own.at[count].bytes, text, sizeof(text));
		ck_assert_str_eq(text, wanted[count]);
		ck_assert_uint_eq(offer.own.at[count].scope, six ? 3 : 0);
	}
	ck_assert_uint_eq(offer.own.count, count);
	for (size_t i = 0; i < sizeof(offer.after); i++)
		ck_assert_uint_eq(offer.after[i], 7);
	close(fd);
}
END_TEST

/* ---- connections ----------------------------------------------------------------------------- */

static const uint8_t cookie[16] = "0123456789abcde", other_cookie[16] = "0123456789abcdE";

/* Answers one connection after the other: with one wrong field each, as one who has the port but
   not the cookie, with the reply of the connection before, with too little, and well, but byte by
   byte. */
static void *answer(void *context)
{
	const int *listener = context;

	struct zero_hello_reply before = {.rank = -1};

	for (int turn = 0; turn < 7; turn++) {
		struct zero_hello_reply reply, last = before;
		int fd = accept(*listener, NULL, NULL);
		struct zero_hello hello;

		recv(fd, &hello, sizeof(hello), MSG_WAITALL);
		ck_assert(zero_hello_verify(&hello, 4, cookie));
		ck_assert(!zero_hello_verify(&hello, 4, other_cookie));
		reply = before = zero_hello_reply(&hello, cookie);
		ck_assert_int_eq(reply.rank, 4);
		reply.magic[0] = turn == 0 ? 'Z' : 'z';
		reply.version += turn == 1;
		reply.rank += turn == 2;
		if (turn == 3)
			reply = zero_hello_reply(&hello, other_cookie);
		else if (turn == 4)
			reply = last;
		for (size_t i = 0; i < sizeof(reply) && (turn != 5 || i < 7); i++) {
			send(fd, (char *)&reply + i, 1, MSG_NOSIGNAL);
			usleep(turn == 6 ? 500 : 0);
		}
		if (turn == 6)
			send(fd, "x", 1, MSG_NOSIGNAL);
		else
			close(fd);
	}
	return NULL;
}

static int count_files(void)
{
	DIR *folder = opendir("/proc/self/fd");
	int count = 0;

	while (readdir(folder))
		count++;
	closedir(folder);
	return count;
}

static _Atomic int connecting;
static atomic_bool over;

/* A connection is the one that is answered as it should be; those before are closed. */
START_TEST(answered)
{
	struct zero_dial dial = {.hello = {.wanted = 4}, .over = &over, .connecting = &connecting};
	char why[200], byte = 0;
	int listener, fd, before;
	unsigned timeout_ms = 0;
	socklen_t size = sizeof(timeout_ms);
	pthread_t thread;

	entries = 1;
	ck_assert(zero_address_listen(&listener, &dial.address, NULL, why, sizeof(why)));
	strcpy(dial.address.node, "node");
	strcpy(dial.hello.node, "node");
	memcpy(dial.cookie, cookie, sizeof(cookie));
	zero_dial_prepare(&dial);
	/* Both loopbacks, once each. */
	ck_assert_uint_eq(dial.count, 2);
	fcntl(listener, F_SETFL, 0);
	before = count_files();
	pthread_create(&thread, NULL, answer, &listener);
	fd = zero_dial(&dial, zero_seconds() + 120);
	ck_assert_msg(fd >= 0, "%s", dial.why);
	ck_assert_int_eq(connecting, fd);
	while (recv(fd, &byte, 1, 0) < 0 && (errno == EAGAIN || errno == EINTR))
		usleep(1000);
	ck_assert_int_eq(byte, 'x');
	/* A node that is down ends it. */
	ck_assert(!getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &size));
	ck_assert_uint_eq(timeout_ms, 9000);
	pthread_join(thread, NULL);
	/* This end and the other. */
	ck_assert_int_eq(count_files(), before + 2);
	close(fd);
	close(listener);
	/* Nobody listens there any more. */
	before = count_files();
	ck_assert_int_eq(zero_dial(&dial, zero_seconds() + 1), -1);
	ck_assert_str_eq(dial.why, strerror(ECONNREFUSED));
	ck_assert_int_eq(count_files(), before);
	ck_assert_int_eq(connecting, -1);
}
END_TEST

/* The paper's: key and data are the bytes from 0. */
START_TEST(keyed_hashes)
{
	uint8_t bytes[16];

	for (uint8_t i = 0; i < 16; i++)
		bytes[i] = i;
	ck_assert_uint_eq(zero_keyed_hash(bytes, bytes, 15), UINT64_C(0xa129ca6149be45e5));
	ck_assert_uint_eq(zero_keyed_hash(bytes, bytes, 0), UINT64_C(0x726fdb47dd0e0e31));
	ck_assert_uint_eq(zero_keyed_hash(bytes, bytes, 8), UINT64_C(0x93f5f5799a932462));
}
END_TEST

/* An address of a link is dialled on its interface, and each address once. */
START_TEST(link_local)
{
	struct zero_dial dial = {
		.address = {.node = "n1",
			    .count = 4,
			    .at = {{.family = 6, .bytes = {0xfe, 0x80, [15] = 1}, .scope = 3},
				   {.family = 6, .bytes = {0xfe, 0x80, [15] = 1}, .scope = 5},
				   {.family = 6, .bytes = {0xfe, 0x80, [15] = 1}, .scope = 3},
				   {.family = 6, .bytes = {0x20, 1, [15] = 1}}}},
		.hello = {.node = "n2"}};
	static const uint32_t scopes[] = {3, 5, 0};

	zero_dial_prepare(&dial);
	ck_assert_uint_eq(dial.count, 3);
	for (size_t i = 0; i < dial.count; i++)
		ck_assert_uint_eq(((struct sockaddr_in6 *)(void *)&dial.at[i])->sin6_scope_id,
				  scopes[i]);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("net");

	tcase_set_timeout(tcase, 240);
	tcase_add_test(tcase, interfaces);
	tcase_add_loop_test(tcase, offered, 0, 5);
	tcase_add_test(tcase, link_local);
	tcase_add_test(tcase, keyed_hashes);
	tcase_add_test(tcase, answered);
	return run_cases(tcase, NULL);
}

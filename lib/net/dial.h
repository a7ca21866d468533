/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects to another rank over TCP. The connecting rank sends a hello with its own rank and the
 * rank that it wants; the accepting rank verifies the hello and replies with its rank. Each proves
 * to the other that it has the job's cookie, which is not sent: another process may have the port.
 */
#ifndef ZERO_NET_DIAL_H
#define ZERO_NET_DIAL_H

#include <stdatomic.h>
#include <sys/socket.h>

#include "address.h"

struct zero_hello {
	char magic[8];
	uint32_t version;
	int32_t rank;   /* of the connecting side */
	int32_t wanted; /* the rank that it wants to reach */
	uint8_t nonce[16];
	uint8_t proof[8]; /* a keyed hash of all else */
	char node[64];
};

/* Confirms a hello. A wrong hello gets no reply; its connection is closed. */
struct zero_hello_reply {
	char magic[8];
	uint32_t version;
	int32_t rank;
	uint8_t proof[8]; /* a keyed hash of the hello and all else */
};

/* A connection to the rank hello.wanted that is to be made. */
struct zero_dial {
	struct zero_address address;
	uint8_t cookie[16];
	struct zero_hello hello; /* with rank, wanted and node; the rest is filled in */
	double patience;         /* seconds for each address at first; 0 stands for 1 */
	const atomic_bool *over; /* whether to give up */
	_Atomic int *connecting; /* the socket that is being connected, for a forked child; or -1 */
	/* Results. */
	struct sockaddr_storage at[ZERO_ADDRESSES + 2];
	size_t count;
	char why[128];
};

/* Sets the rest of the hello, `at` and `count`; count is 0 if the rank has no address that can be
   reached. */
void zero_dial_prepare(struct zero_dial *dial);
/* Returns a connection to the rank. Returns -1 and the reason in dial->why after `deadline` (see
   zero_seconds()), or when `over` becomes true. The caller ends `connecting` once it has stored the
   connection. */
int zero_dial(struct zero_dial *dial, double deadline);
/* Writes the addresses that were tried as text, for messages. */
void zero_dial_list_addresses(const struct zero_dial *dial, char *text, size_t size);
enum { ZERO_DIAL_LIST_BYTES = (ZERO_ADDRESSES + 2) * 56 };

/* SipHash-2-4, which nobody computes without the key. */
uint64_t zero_keyed_hash(const uint8_t key[16], const void *data, size_t bytes);
/* Sets the proof of a hello that has all else. */
void zero_hello_prove(struct zero_hello *hello, const uint8_t *cookie);
/* The accepting side: whether a hello is for `rank`, from one who has the cookie. The caller looks
   at the sender's rank. */
bool zero_hello_verify(const struct zero_hello *hello, int rank, const uint8_t *cookie);
/* What the rank that it is for answers to a hello. */
struct zero_hello_reply zero_hello_reply(const struct zero_hello *hello, const uint8_t *cookie);
/* Sends small frames at once, and lets the kernel end a connection to a node that is down: it
   probes after 3 s of silence and gives up after 9 s. */
void zero_socket_set_options(int fd);
/* Sends or receives all bytes on a blocking socket. False: an error, in errno, or 0 where the other
   side has closed the connection. */
bool zero_socket_send(int fd, const void *data, size_t bytes, int flags);
bool zero_socket_receive(int fd, void *to, size_t bytes);

#endif

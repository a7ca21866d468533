/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How two ranks find that they are the right ones. The one that connects says the job's cookie, who
 * it is and whom it wants; the other one answers who it is.
 */
#ifndef ZERO_WATCH_DIAL_H
#define ZERO_WATCH_DIAL_H

#include <sys/socket.h>

#include "address.h"

enum { ZERO_DIAL_VERSION = 1 };

struct zero_hello {
	char magic[8];
	uint32_t version;
	int32_t rank, wanted;
	uint8_t cookie[16];
	char node[64];
};

struct zero_hello_reply {
	char magic[8];
	uint32_t version;
	int32_t rank;
};

/* A search for the rank hello.wanted, at all places where it may be. */
struct zero_dial {
	struct zero_address address;
	struct zero_hello hello;
	struct zero_hello_reply answer; /* what it must say */
	/* Whether all is over meanwhile; may be NULL. */
	bool (*over)(void *context);
	/* What a process that is forked meanwhile closes: a connection that is being made, -1 for
	   none; may be NULL. */
	void (*connecting)(void *context, int fd);
	void *context;
	/* What is found out: */
	struct sockaddr_storage at[ZERO_ADDRESSES + 2];
	size_t count;
	char why[128];
};

/* Lists the places: none if the rank offers no address. */
void zero_dial_prepare(struct zero_dial *dial);
/* A connection to the right rank, or -1 with `why` after `deadline` (see zero_seconds()), or when
   all is over. It is still `connecting`. */
int zero_dial(struct zero_dial *dial, double deadline);
void zero_dial_list_addresses(const struct zero_dial *dial, char *text, size_t size);
enum { ZERO_DIAL_LIST_BYTES = (ZERO_ADDRESSES + 2) * 56 }; /* bytes of text for them */

/* Whether a hello is what it should be, but for its rank and node. */
bool zero_hello_verify(const struct zero_hello *hello, const struct zero_hello *wanted);
/* A node that loses its power says nothing: its kernel is asked after 3 s without a word, and given
   up after 9. */
void zero_socket_set_options(int fd);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Where zerorun listens for ranks that tell it of a loss; see lib/net/launcher.h. */
#ifndef ZERORUN_LISTEN_H
#define ZERORUN_LISTEN_H

#include <poll.h>

#include "net/launcher.h"

enum { LISTEN_PENDING = 16 };

/* Connections that have not sent all. */
struct listener {
	int fd; /* -1: nobody listens */
	uint8_t cookie[16];
	struct {
		int fd; /* -1: unused */
		size_t have;
		struct {
			struct zero_hello hello;
			struct zero_loss_notice notice;
		} in;
	} pending[LISTEN_PENDING];
	unsigned next; /* is replaced if all are used */
};

/* Begins to listen, for ranks with that key, and sets ZERO_LAUNCHER for them. After an error, which
   it prints, nobody listens. */
void listen_begin(struct listener *listener, const char *key);
void listen_end(struct listener *listener);
/* What to poll. Returns how many there are, at most 1 + LISTEN_PENDING. */
nfds_t listen_fds(const struct listener *listener, struct pollfd *fds);
/* Reads what has come. Returns true for a notice from a rank of that attempt. */
bool listen_read(struct listener *listener, int attempt, struct zero_loss_notice *notice);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a rank listens, for those that are to connect to it. Shared by libzero and by modules:
 * nothing here knows of either.
 */
#ifndef ZERO_WATCH_ADDRESS_H
#define ZERO_WATCH_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZERO_ADDRESSES = 8 };

/* Plain bytes that a rank tells the others. */
struct zero_address {
	char node[64];
	uint8_t cookie[16]; /* rank 0's is the job's: who does not say it is not listened to */
	uint16_t port;
	uint16_t count;
	struct {
		uint8_t family; /* 4 or 6 */
		uint8_t bytes[16];
		uint32_t scope; /* of a link-local one */
	} at[ZERO_ADDRESSES];   /* the most likely first */
};

/* Whether NCCL_SOCKET_IFNAME, which may be NULL, lets an interface be used. */
bool zero_interface_allowed(const char *filter, const char *interface);
/* A listening socket on all addresses, and where it can be reached: `own` but for node and cookie.
   False with `why`; *fd may then be open, else it is -1. */
bool zero_address_listen(int *fd, struct zero_address *own, char *why, size_t size);

#endif

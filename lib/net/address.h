/* SPDX-License-Identifier: Apache-2.0 */
/* Where a rank listens for connections of other ranks. libzero and its modules both use it. */
#ifndef ZERO_NET_ADDRESS_H
#define ZERO_NET_ADDRESS_H

#include <ifaddrs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ZERO_ADDRESSES = 8 };

/* What a rank publishes to the others; plain bytes. */
struct zero_address {
	char node[64];
	uint8_t cookie[16]; /* that of rank 0 is the job's: every hello has to prove it */
	uint16_t port;
	uint16_t count;
	struct {
		uint8_t family; /* 4 or 6 */
		uint8_t bytes[16];
		uint32_t scope; /* of a link-local address */
	} at[ZERO_ADDRESSES];   /* in the order in which they are tried */
};

/* Whether `filter`, the value of NCCL_SOCKET_IFNAME or NULL, allows a network interface. */
bool zero_interface_allowed(const char *filter, const char *interface);
/* Calls `each` for the addresses of this node whose interfaces `filter` allows, in the order in
   which others should try them; if `family` is AF_INET, only those of IPv4. Those of containers, or
   else of the node itself, are among them only if there are no others but those of a link. Returns
   false and sets errno if they cannot be listed. */
bool zero_address_each(void (*each)(void *context, const struct ifaddrs *entry), void *context,
		       int family, const char *filter);
/* Opens a listening socket on all addresses, and sets port and addresses of `own`, those of
   interfaces that `filter` allows. Returns false and the reason in `why` on failure; *fd is then -1
   or still open. */
bool zero_address_listen(int *fd, struct zero_address *own, const char *filter, char *why,
			 size_t size);

#endif

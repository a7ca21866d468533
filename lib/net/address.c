/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a listening socket on all networks, and lists the addresses at which others reach it. */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "address.h"

/* Addresses are listed in this order, each of the last two only if nothing more than those of a
   link was listed before. */
enum { ORDINARY, LINK_LOCAL, VIRTUAL, LOOPBACK, CLASSES };

static bool starts_with(const char *name, const char *prefix)
{
	return !strncmp(name, prefix, strlen(prefix));
}

/* The filter is a comma-separated list of prefixes. A leading "=" makes them whole names, a leading
   "^" allows all interfaces but these. */
bool zero_interface_allowed(const char *filter, const char *interface)
{
	bool negated, exact, listed = false;

	if (!filter || !*filter)
		return true;
	negated = *filter == '^';
	filter += negated;
	exact = *filter == '=';
	filter += exact;
	while (*filter) {
		size_t length = strcspn(filter, ",");

		if (length && !strncmp(interface, filter, length) &&
		    (!exact || strlen(interface) == length))
			listed = true;
		filter += length;
		filter += *filter == ',';
	}
	return listed != negated;
}

static int class_of(const struct ifaddrs *entry)
{
	static const char *const virtual[] = {"docker", "veth", "virbr"};
	const struct sockaddr_in6 *six = (const void *)entry->ifa_addr;

	if (entry->ifa_flags & IFF_LOOPBACK)
		return LOOPBACK;
	for (size_t i = 0; i < sizeof(virtual) / sizeof(virtual[0]); i++)
		if (starts_with(entry->ifa_name, virtual[i]))
			return VIRTUAL;
	if (six->sin6_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
		return LINK_LOCAL;
	return ORDINARY;
}

static void add_address(void *context, const struct ifaddrs *entry)
{
	const struct sockaddr_in6 *six = (const void *)entry->ifa_addr;
	const struct sockaddr_in *four = (const void *)entry->ifa_addr;
	struct zero_address *own = context;

	if (own->count == ZERO_ADDRESSES)
		return;
	if (four->sin_family == AF_INET) {
		own->at[own->count].family = 4;
		memcpy(own->at[own->count].bytes, &four->sin_addr, 4);
	} else {
		own->at[own->count].family = 6;
		memcpy(own->at[own->count].bytes, &six->sin6_addr, 16);
		own->at[own->count].scope = six->sin6_scope_id;
	}
	own->count++;
}

bool zero_address_each(void (*each)(void *context, const struct ifaddrs *entry), void *context,
		       int family, const char *filter)
{
	struct ifaddrs *list;
	bool found = false;

	if (getifaddrs(&list))
		return false;
	for (int iteration = 0; iteration < 2 * CLASSES; iteration++) {
		/* another node has these too: who listens there is not this process */
		if (iteration % 2 == 0 && iteration / 2 >= VIRTUAL && found)
			break;
		for (const struct ifaddrs *entry = list; entry; entry = entry->ifa_next) {
			int want = iteration % 2 ? AF_INET6 : AF_INET;

			if (!entry->ifa_addr || entry->ifa_addr->sa_family != want ||
			    (want == AF_INET6 && family != AF_INET6) ||
			    !(entry->ifa_flags & IFF_UP) || class_of(entry) != iteration / 2 ||
			    !zero_interface_allowed(filter, entry->ifa_name))
				continue;
			each(context, entry);
			found |= iteration / 2 != LINK_LOCAL;
		}
	}
	freeifaddrs(list);
	return true;
}

/* AF_INET6 serves both families; AF_INET is for a kernel without IPv6. */
static int open_socket(int family)
{
	struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
	struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
	const struct sockaddr *address = family == AF_INET6 ? (void *)&six : (void *)&four;
	socklen_t length = family == AF_INET6 ? sizeof(six) : sizeof(four);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;

	if (fd < 0)
		return -1;
	if ((family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off))) ||
	    bind(fd, address, length) || listen(fd, SOMAXCONN)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool zero_address_listen(int *fd, struct zero_address *own, const char *filter, char *why,
			 size_t size)
{
	struct sockaddr_storage bound;
	socklen_t length = sizeof(bound);
	int family = AF_INET6;

	*fd = open_socket(family);
	if (*fd < 0) {
		family = AF_INET;
		*fd = open_socket(family);
	}
	if (*fd < 0 || getsockname(*fd, (struct sockaddr *)&bound, &length)) {
		snprintf(why, size, "cannot listen for ranks: %s", strerror(errno));
		return false;
	}
	/* The port has the same offset in sockaddr_in and sockaddr_in6. */
	own->port = ntohs(((const struct sockaddr_in *)&bound)->sin_port);
	if (zero_address_each(add_address, own, family, filter))
		return true;
	snprintf(why, size, "cannot list the network interfaces of this node: %s", strerror(errno));
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"

/* An address of a network that a node may share with no other is given up soon. */
#define PATIENCE 0.15

/* ---- text ------------------------------------------------------------------------------------ */

static bool only_here(int family, const uint8_t *bytes)
{
	struct in6_addr six;

	if (family == 4)
		return bytes[0] == 127;
	memcpy(&six, bytes, sizeof(six));
	return IN6_IS_ADDR_LINKLOCAL(&six) || IN6_IS_ADDR_LOOPBACK(&six);
}

void zero_launcher_format(const struct zero_address *address, char text[ZERO_LAUNCHER_BYTES])
{
	char name[INET6_ADDRSTRLEN];
	const char *separator = "";
	size_t size = ZERO_LAUNCHER_BYTES;
	size_t at = (size_t)snprintf(text, size, "%.63s:%u:", address->node, address->port);

	for (size_t i = 0; i < address->count && i < ZERO_ADDRESSES; i++) {
		int family = address->at[i].family;

		if (only_here(family, address->at[i].bytes) ||
		    !inet_ntop(family == 4 ? AF_INET : AF_INET6, address->at[i].bytes, name,
			       sizeof(name)))
			continue;
		at += (size_t)snprintf(text + at, size - at, "%s%s", separator, name);
		separator = ",";
	}
}

static bool add_text(struct zero_address *address, const char *text, size_t length)
{
	char name[INET6_ADDRSTRLEN];
	uint8_t *bytes = address->at[address->count].bytes;
	bool six = memchr(text, ':', length) != NULL;

	if (length >= sizeof(name))
		return false;
	memcpy(name, text, length);
	name[length] = '\0';
	if (inet_pton(six ? AF_INET6 : AF_INET, name, bytes) != 1)
		return false;
	address->at[address->count++].family = six ? 6 : 4;
	return true;
}

bool zero_launcher_parse(const char *text, struct zero_address *address)
{
	size_t node = strcspn(text, ":");
	unsigned long port;
	char *end;

	*address = (struct zero_address){.count = 0};
	if (!node || node >= sizeof(address->node) || text[node] != ':')
		return false;
	memcpy(address->node, text, node);
	text += node + 1;
	if (*text < '0' || *text > '9')
		return false;
	port = strtoul(text, &end, 10);
	if (!port || port > UINT16_MAX || *end != ':')
		return false;
	address->port = (uint16_t)port;
	for (text = end + 1; *text; text += *text == ',') {
		size_t length = strcspn(text, ",");

		if (address->count == ZERO_ADDRESSES || !add_text(address, text, length))
			return false;
		text += length;
	}
	return true;
}

void zero_run_format(const uint8_t *cookie, char text[ZERO_RUN_BYTES])
{
	for (size_t i = 0; i < 16; i++)
		snprintf(text + 2 * i, 3, "%02x", cookie[i]);
}

bool zero_run_parse(const char *text, uint8_t *cookie)
{
	if (strlen(text) != 32 || strspn(text, "0123456789abcdef") != 32)
		return false;
	for (size_t i = 0; i < 16; i++) {
		char digits[3] = {text[2 * i], text[2 * i + 1], '\0'};

		cookie[i] = (uint8_t)strtoul(digits, NULL, 16);
	}
	return true;
}

/* ---- a rank's side --------------------------------------------------------------------------- */

bool zero_launcher_find(struct zero_address *address, int *attempt, struct zero_loss_notice *notice)
{
	const char *where = getenv("ZERO_LAUNCHER"), *run = getenv("ZERO_RUN");
	const char *restart = getenv("ZERO_RESTART"), *step = getenv("SLURM_STEP_ID");

	if (!where || !run || !restart || !zero_launcher_parse(where, address) ||
	    !zero_run_parse(run, address->cookie))
		return false;
	*attempt = atoi(restart);
	*notice = (struct zero_loss_notice){.rank = -1, .step = ZERO_NO_STEP};
	/* the numbers of what is no step of srun are not decimal, or negative */
	if (step && *step && !step[strspn(step, "0123456789")])
		notice->step = (uint32_t)strtoul(step, NULL, 10);
	return true;
}

bool zero_launcher_notify(const struct zero_address *address, int attempt,
			  const struct zero_loss_notice *notice, double seconds)
{
	atomic_bool over = false;
	_Atomic int connecting = -1;
	struct zero_dial dial = {.address = *address,
				 .hello = {.wanted = attempt},
				 .patience = PATIENCE,
				 .over = &over,
				 .connecting = &connecting};
	bool sent;
	int fd;

	memcpy(dial.cookie, address->cookie, sizeof(dial.cookie));
	gethostname(dial.hello.node, sizeof(dial.hello.node) - 1);
	zero_dial_prepare(&dial);
	fd = zero_dial(&dial, zero_seconds() + seconds);
	if (fd < 0)
		return false;
	sent = send(fd, notice, sizeof(*notice), MSG_NOSIGNAL) == (ssize_t)sizeof(*notice);
	close(fd);
	return sent;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/recover/nodes.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "launcher/plan/plan.h"

#define PROBE_SECONDS 1.5
#define AGAIN_MS      50
#define ENDED         "its slurmd has ended"

/* ---- what Slurm says ------------------------------------------------------------------------- */

/* The value after " NAME=" in a line of scontrol, malloc'ed; NULL if there is none. */
static char *field(const char *line, const char *name)
{
	char *key = format_text(" %s=", name);
	const char *at = strstr(line, key);

	free(key);
	if (!at)
		return NULL;
	at = strchr(at, '=') + 1;
	return format_text("%.*s", (int)strcspn(at, " \n"), at);
}

/* What scontrol prints; *status is its exit status. */
static char *ask_scontrol(char *const *arguments, bool quiet, int *status)
{
	char *path = find_program("scontrol", status);
	char *argv[] = {path, arguments[0], arguments[1], arguments[2], arguments[3], NULL};
	char *text;

	if (!path) {
		if (!quiet)
			print_error(
				"scontrol was not found in PATH: a lost node cannot be replaced");
		return format_text("%s", "");
	}
	text = run_program(argv, quiet, status);
	free(path);
	return text;
}

/* In Slurm's configuration it may be a range, for several slurmd on one machine, which then have a
   port of their own each. */
static char *default_port(void)
{
	char *arguments[] = {(char *)"show", (char *)"config", NULL, NULL};
	int status;
	char *text = ask_scontrol(arguments, true, &status);
	const char *at = strstr(text, "\nSlurmdPort");
	char *port;

	at = at ? at + strcspn(at + 1, "=\n") + 1 : NULL;
	port = format_text("%d", at && *at == '=' ? atoi(at + 1) : 6818);
	free(text);
	return port;
}

static void resolve(struct nodes *nodes, size_t i, const char *line, const char *port)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	char *host = field(line, "NodeAddr"), *own = field(line, "Port");
	struct addrinfo *found;

	if (host && !getaddrinfo(host, own ? own : port, &hints, &found)) {
		memcpy(&nodes->address[i], found->ai_addr, found->ai_addrlen);
		nodes->length[i] = found->ai_addrlen;
		freeaddrinfo(found);
	}
	free(host);
	free(own);
}

static void allocate(struct nodes *nodes, size_t count)
{
	*nodes = (struct nodes){.name = calloc(count + 1, sizeof(*nodes->name)),
				.lost = calloc(count + 1, sizeof(*nodes->lost)),
				.why = calloc(count + 1, sizeof(*nodes->why)),
				.address = calloc(count + 1, sizeof(*nodes->address)),
				.length = calloc(count + 1, sizeof(*nodes->length))};
	if (!nodes->name || !nodes->lost || !nodes->why || !nodes->address || !nodes->length)
		exit_no_memory();
}

bool nodes_read(struct nodes *nodes, const char *list)
{
	char *arguments[] = {(char *)"-o", (char *)"show", (char *)"node", (char *)list};
	int status;
	char *text = ask_scontrol(arguments, false, &status), *port = default_port();
	size_t lines = 0;

	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	allocate(nodes, lines);
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		if (strncmp(line, "NodeName=", 9) != 0 || nodes->count == lines)
			continue;
		nodes->name[nodes->count] =
			format_text("%.*s", (int)strcspn(line + 9, " "), line + 9);
		resolve(nodes, nodes->count++, line, port);
	}
	free(port);
	free(text);
	return !status && nodes->count;
}

void nodes_clear(struct nodes *nodes)
{
	for (size_t i = 0; i < nodes->count; i++)
		free(nodes->name[i]);
	free(nodes->name);
	free(nodes->lost);
	free(nodes->why);
	free(nodes->address);
	free(nodes->length);
	*nodes = (struct nodes){0};
}

char *nodes_join(const struct nodes *nodes, const bool *chosen)
{
	char *text;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	const char *separator = "";

	if (!out)
		exit_no_memory();
	for (size_t i = 0; i < nodes->count; i++) {
		if (chosen && !chosen[i])
			continue;
		fprintf(out, "%s%s", separator, nodes->name[i]);
		separator = ",";
	}
	if (fclose(out) != 0)
		exit_no_memory();
	return text;
}

static void set_lost(struct nodes *nodes, size_t i, const char *why)
{
	if (!nodes->lost[i])
		nodes->why[i] = why;
	nodes->lost[i] = true;
}

/* Of "IDLE+DRAIN*": a node that is drained still works, and a star is for one that does not
   answer. */
static bool is_down(const char *state)
{
	static const char *const down[] = {"DOWN", "NOT_RESPONDING", "FAIL"};
	size_t length;

	for (; *state; state += length, state += *state == '+') {
		length = strcspn(state, "+*");
		if (state[length] == '*')
			return true;
		for (size_t i = 0; i < sizeof(down) / sizeof(down[0]); i++)
			if (strlen(down[i]) == length && !strncmp(state, down[i], length))
				return true;
	}
	return false;
}

static void read_states(struct nodes *nodes)
{
	char *names = nodes_join(nodes, NULL);
	char *arguments[] = {(char *)"-o", (char *)"show", (char *)"node", names};
	int status;
	char *text = ask_scontrol(arguments, true, &status);

	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		char *state = field(line, "State");

		for (size_t i = 0; state && i < nodes->count; i++) {
			size_t length = strlen(nodes->name[i]);

			if (strncmp(line, "NodeName=", 9) != 0 ||
			    strncmp(line + 9, nodes->name[i], length) != 0 ||
			    line[9 + length] != ' ')
				continue;
			if (is_down(state))
				set_lost(nodes, i, "Slurm has found it down");
		}
		free(state);
	}
	free(text);
	free(names);
}

/* ---- what its slurmd says -------------------------------------------------------------------- */

/* Begins to connect. Returns the socket; -1: there is nothing to wait for. */
static int begin_probe(struct nodes *nodes, size_t i)
{
	int fd;

	if (nodes->lost[i] || !nodes->length[i])
		return -1;
	fd = socket(nodes->address[i].ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	/* Without a descriptor nothing is known of the node. */
	if (fd < 0)
		return -1;
	if (connect(fd, (const struct sockaddr *)&nodes->address[i], nodes->length[i]) == 0 ||
	    errno == EINPROGRESS)
		return fd;
	set_lost(nodes, i, "it cannot be reached");
	close(fd);
	return -1;
}

/* Returns whether the node may still come: its slurmd refuses. */
static bool end_probe(struct nodes *nodes, size_t i, int fd)
{
	int error = 0;
	socklen_t length = sizeof(error);

	getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length);
	close(fd);
	if (error && error != ECONNREFUSED)
		set_lost(nodes, i, "it cannot be reached");
	return error == ECONNREFUSED;
}

/* Acts on the probes that have ended. Returns how many slurmd are to be asked again. */
static size_t end_probes(struct nodes *nodes, struct pollfd *fds, bool *again, const char *suspect)
{
	size_t count = 0;

	for (size_t i = 0; i < nodes->count; i++) {
		if (fds[i].fd >= 0 && fds[i].revents) {
			again[i] = end_probe(nodes, i, fds[i].fd);
			fds[i].fd = -1;
		}
		if (again[i] && !strcmp(nodes->name[i], suspect))
			set_lost(nodes, i, ENDED);
		again[i] = again[i] && !nodes->lost[i];
		count += again[i];
	}
	return count;
}

static size_t waiting(const struct nodes *nodes, const struct pollfd *fds)
{
	size_t count = 0;

	for (size_t i = 0; i < nodes->count; i++)
		count += fds[i].fd >= 0;
	return count;
}

void nodes_probe(struct nodes *nodes, const char *suspect)
{
	struct pollfd *fds = calloc(nodes->count, sizeof(*fds));
	bool *again = calloc(nodes->count, sizeof(*again));
	double begin = zero_seconds(), left;
	size_t refusing;

	if (!fds || !again)
		exit_no_memory();
	for (size_t i = 0; i < nodes->count; i++)
		fds[i] = (struct pollfd){.fd = begin_probe(nodes, i), .events = POLLOUT};
	/* Slurm's answer may take longer; what has connected meanwhile counts all the same. */
	read_states(nodes);
	do {
		left = begin + PROBE_SECONDS - zero_seconds();
		if (poll(fds, nodes->count, left > 0 ? (int)(1e3 * left) + 1 : 0) < 0 &&
		    errno != EINTR)
			break;
		refusing = end_probes(nodes, fds, again, suspect);
		if (refusing && left > 0)
			poll(NULL, 0, AGAIN_MS);
		for (size_t i = 0; refusing && left > 0 && i < nodes->count; i++)
			if (again[i])
				fds[i].fd = begin_probe(nodes, i);
	} while ((refusing || waiting(nodes, fds)) && left > 0);
	for (size_t i = 0; i < nodes->count; i++) {
		if (again[i])
			set_lost(nodes, i, ENDED);
		else if (fds[i].fd >= 0)
			set_lost(nodes, i, "it does not answer");
		if (fds[i].fd >= 0)
			close(fds[i].fd);
	}
	free(again);
	free(fds);
}

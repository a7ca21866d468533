/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of an allocation, and which of them are lost. */
#ifndef ZERORUN_NODES_H
#define ZERORUN_NODES_H

#include <sys/socket.h>

#include "launcher/text.h"

struct nodes {
	char **name;
	bool *lost;
	const char **why; /* it is lost, as the end of a sentence */
	/* Of slurmd. The length is 0 if the address is not known. */
	struct sockaddr_storage *address;
	socklen_t *length;
	size_t count;
};

/* Asks Slurm for the nodes of a list such as "n[1-4]". Returns false after an error. */
bool nodes_read(struct nodes *nodes, const char *list);
void nodes_clear(struct nodes *nodes);
/* The names of the chosen nodes, or of all if `chosen` is NULL, with commas; malloc'ed. */
char *nodes_join(const struct nodes *nodes, const bool *chosen);
/* Finds lost nodes: Slurm says so, or slurmd does not accept a connection within 1.5 s, for which
   one that refuses is asked again and again: it may be coming up. On the node `suspect`, which a
   rank has found lost, refusing once is enough. A lost node stays lost. */
void nodes_probe(struct nodes *nodes, const char *suspect);

#endif

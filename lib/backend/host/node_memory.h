/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a node share memory. Each maps the others' arenas (shared_arena.h), so that a
 * place in any of them has an address that all understand. Before an operation a rank publishes
 * where its buffers are; a barrier after it keeps a rank from changing or freeing a buffer that
 * peers still use.
 */
#ifndef ZERO_NODE_MEMORY_H
#define ZERO_NODE_MEMORY_H

#include <mpi.h>
#include <stdatomic.h>

#include "shared_arena.h"
#include "core/module.h"

/* A place in some rank's arena, which all ranks of the node understand; 0 is none. */
typedef uint64_t zero_address;

/* The ranks of a communicator that share memory with this one, ordered by rank. */
struct zero_node {
	struct zero_peers *peers;     /* mapped arenas: the job's communicator owns them */
	struct node_barrier *barrier; /* in the arena of the first rank */
	struct node_table **tables;   /* [world]: what each rank publishes, in its arena */
	int *indices;                 /* [world]: which of the peers a rank is */
	int table;                    /* which half of the tables is in use */
	int rank, world;
};

/*
 * COLLECTIVE over `ranks`, which are on one node. Makes an arena and maps those of the others. The
 * caller deletes *arena after the node. Where memory cannot be shared (another user, no memfd, too
 * little address space), it succeeds with a node of this rank alone and *arena NULL.
 */
zero_status zero_node_open(MPI_Comm ranks, struct zero_arena **arena, struct zero_node **node);
/* COLLECTIVE over `ranks`, the ranks of `parent` that are in a team. */
zero_status zero_node_split(const struct zero_node *parent, struct zero_arena *arena,
			    MPI_Comm ranks, struct zero_node **node);
/* Frees a node, and with `owner` also the mappings of its peers. NULL is a no-op. */
void zero_node_close(struct zero_node *node, bool owner);

/* The address of data in any arena of the node; 0 if it is in none. */
zero_address zero_node_address(const struct zero_node *node, const void *data);
/* Where this rank has mapped an address. */
void *zero_node_data(const struct zero_node *node, zero_address address);

/* What a rank publishes of each operation of a submission. */
struct zero_published {
	zero_address send, recv;
	const void *source; /* of a scatter or broadcast: the send buffer in the root's process */
};

enum { ZERO_NODE_OPERATIONS = 1 << 20 }; /* in one submission, at most */

/* Begins a submission. What is published for it stays until the next but one begins. */
void zero_node_next_table(struct zero_node *node);
/* This rank's entry for operation `index`, to fill in. */
struct zero_published *zero_node_publish(const struct zero_node *node, size_t index);
/* A peer's entry. Valid after the ranks agreed on the submission. */
const struct zero_published *zero_node_published(const struct zero_node *node, int rank,
						 size_t index);

/* Whether ranks can read each other's memory outside of arenas, by process_vm_readv, which the
   system may forbid. The same on all ranks of the node. */
bool zero_node_can_read(const struct zero_node *node);
/* Copies `bytes` at `from`, an address in the process of rank `rank` of the node. */
zero_status zero_node_read(const struct zero_node *node, int rank, void *to, const void *from,
			   size_t bytes);

/* Returns after all ranks of the node have called it. */
void zero_node_barrier(struct zero_node *node);

#endif

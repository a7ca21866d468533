/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one node that share memory. Each has mapped the others' arenas (shared_arena.h), so that a
 * place in one of them has an address which all understand. Before ranks work on each other's
 * buffers they publish where these are; afterwards they meet, so that none takes its own back too
 * early.
 */
#ifndef ZERO_NODE_MEMORY_H
#define ZERO_NODE_MEMORY_H

#include <mpi.h>
#include <stdatomic.h>

#include "shared_arena.h"
#include "core/module.h"

/* A place in some rank's arena that all ranks of the node understand; 0 is none. */
typedef uint64_t zero_address;

/* Those of one communicator, in the order of their ranks. */
struct zero_node {
	struct zero_peers *peers;     /* of the first communicator, which owns them */
	struct node_meeting *meeting; /* in the arena of the first */
	struct node_table **tables;   /* [world]: what each publishes */
	int *indices;                 /* [world]: in peers */
	int turn;                     /* which half of a table */
	int rank, world;
};

/*
 * COLLECTIVE over `ranks`, which are on one node. Where memory cannot be shared (another user, no
 * such files, too little address space) the node is this rank alone, and *arena NULL. An arena
 * becomes the caller's, to be deleted after the node.
 */
zero_status zero_node_open(MPI_Comm ranks, struct zero_arena **arena, struct zero_node **node);
/* COLLECTIVE over `ranks`: those of `parent` that are in a team. */
zero_status zero_node_split(const struct zero_node *parent, struct zero_arena *arena,
			    MPI_Comm ranks, struct zero_node **node);
void zero_node_close(struct zero_node *node, bool owner); /* NULL is legal */

/* The address of what lies in an arena; 0 if it lies in none. */
zero_address zero_node_address(const struct zero_node *node, const void *data);
void *zero_node_data(const struct zero_node *node, zero_address address);

/* What a rank tells of an operation of the submission at hand. */
struct zero_published {
	zero_address send, recv;
	const void *source; /* of a scatter or broadcast: the root's own address */
};

enum { ZERO_NODE_OPERATIONS = 1 << 20 }; /* in one submission, at most */

/* A submission begins: what is published belongs to it until the next but one. */
void zero_node_begin(struct zero_node *node);
struct zero_published *zero_node_publish(const struct zero_node *node, size_t index);
const struct zero_published *zero_node_published(const struct zero_node *node, int rank,
						 size_t index);

/*
 * Whether ranks can read what others have outside of their arenas, by process_vm_readv: the system
 * may forbid it. The same on all ranks of the node.
 */
bool zero_node_reads(const struct zero_node *node);
/* Copies what rank `rank` of the node has at `from`, an address of its own. */
zero_status zero_node_read(const struct zero_node *node, int rank, void *to, const void *from,
			   size_t bytes);

/* Returns when all ranks of the node have come here. */
void zero_node_meet(struct zero_node *node);

#endif

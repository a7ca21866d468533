/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks say to each other beside the data: that they are about to do the same, small values
 * that they agree on, and that one of them is gone. NCCL cannot carry it: its kernels would wait
 * for the device, and hang where a peer does. So each rank has a few TCP connections, to its
 * neighbours in a tree; a thread of its own reads all of them, so that a connection which ends
 * without a farewell is seen at once, whatever the rank is doing, and told to all.
 *
 * One thread at a time calls these functions, but for those that say otherwise.
 */
#ifndef ZERO_CONTROL_H
#define ZERO_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/module.h"
#include "net/address.h"

struct zero_control;
struct zero_control_team;

enum { ZERO_CONTROL_VALUES = 8 };

struct zero_control_config {
	int rank, world;
	double seconds; /* that joining may take at most */
	/* Where another rank listens. */
	zero_status (*address)(void *context, int rank, struct zero_address *address);
	void *context;
	/* Called once, by the reading thread, when the ranks fall apart. */
	void (*broken)(void *context);
	void *broken_context;
};

/* Begins to listen and fills *own. The networks that NCCL may use (NCCL_SOCKET_IFNAME) are those
   that it offers. */
zero_status zero_control_listen(struct zero_control **control, struct zero_address *own);
/* COLLECTIVE, once all addresses can be asked for. An error names the rank that did not answer. */
zero_status zero_control_join(struct zero_control *control,
			      const struct zero_control_config *config);
/* Says farewell, waits for nobody, and frees all, teams too. NULL is legal. */
void zero_control_close(struct zero_control *control);

/* All ranks. */
struct zero_control_team *zero_control_all(struct zero_control *control);
/* COLLECTIVE over `ranks`, ascending; the caller is one of them. Freed with `control`. */
zero_status zero_control_team_new(struct zero_control *control, const int *ranks, size_t count,
				  struct zero_control_team **team);

/*
 * The largest of each of `count` values, at most ZERO_CONTROL_VALUES, over the ranks of a team.
 * Begun for several teams at a time, of each once; `finish` waits until one of those is done, and
 * says which. Waits as long as it takes: peers may be slow.
 */
zero_status zero_control_begin_max(struct zero_control_team *team, const uint64_t *mine,
				   size_t count);
zero_status zero_control_finish_max(struct zero_control_team *const *teams, size_t team_count,
				    size_t *which, uint64_t *all);
/* COLLECTIVE over the team. recv[ranks][bytes] from every rank's send[bytes]. */
zero_status zero_control_exchange(struct zero_control_team *team, const void *send, void *recv,
				  size_t bytes);
/* COLLECTIVE over the team. `root` is an index into its ranks. */
zero_status zero_control_broadcast(struct zero_control_team *team, void *data, size_t bytes,
				   int root);

/*
 * Whether the ranks have fallen apart, because one vanished or zero_control_break was called
 * anywhere: every function above then fails with this sentence. *rank is the one that it is about.
 * From any thread.
 */
bool zero_control_broken(struct zero_control *control, char *text, size_t size, int *rank);
/* Tells all ranks so. From any thread; the first one counts. */
void zero_control_break(struct zero_control *control, int rank, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control plane: how ranks agree without the device. They compare what they are about to do,
 * exchange small values, and learn at once that a rank is lost. NCCL cannot carry this, because its
 * kernels wait for the device and hang when a peer is gone. Each rank has a few TCP connections, to
 * its neighbours in a tree of ranks. A thread reads all of them, so that a connection which ends
 * without a goodbye is detected whatever the rank is doing, and is reported to all ranks.
 *
 * One thread at a time may call these functions, except where "from any thread" is stated.
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

/* The largest number of values in one agreement. */
enum { ZERO_CONTROL_VALUES = 8 };

struct zero_control_config {
	int rank, world;
	double seconds; /* how long joining may take */
	/* Fills *address with where another rank listens. */
	zero_status (*address)(void *context, int rank, struct zero_address *address);
	void *context;
	/* The reader thread calls this once, when communication has failed. */
	void (*on_failure)(void *context);
	void *on_failure_context;
};

/* Starts to listen and fills *own. *own has an address in each network that NCCL may use
   (NCCL_SOCKET_IFNAME). */
zero_status zero_control_listen(struct zero_control **control, struct zero_address *own);
/* COLLECTIVE. Connects the tree of all ranks; config->address must work from now on. An error names
   the rank that did not answer. */
zero_status zero_control_join(struct zero_control *control,
			      const struct zero_control_config *config);
/* Sends a goodbye to the neighbours, waits for no rank, and frees everything, teams included. NULL
   is a no-op. */
void zero_control_close(struct zero_control *control);

/* Returns the team of all ranks. */
struct zero_control_team *zero_control_world_team(struct zero_control *control);
/* COLLECTIVE over `ranks`, which ascend and include the caller. The team is freed with `control`. */
zero_status zero_control_team_new(struct zero_control *control, const int *ranks, size_t count,
				  struct zero_control_team **team);

/*
 * The maximum of each of `count` values (at most ZERO_CONTROL_VALUES) over the ranks of a team.
 * Several teams may have one maximum each under way. zero_control_finish_max waits until one of
 * them is complete and sets *which to its index. There is no time limit: peers may be slow.
 */
zero_status zero_control_begin_max(struct zero_control_team *team, const uint64_t *mine,
				   size_t count);
zero_status zero_control_finish_max(struct zero_control_team *const *teams, size_t team_count,
				    size_t *which, uint64_t *all);
/* COLLECTIVE over the team. All-gather: recv[ranks][bytes] from every rank's send[bytes]. */
zero_status zero_control_exchange(struct zero_control_team *team, const void *send, void *recv,
				  size_t bytes);
/* COLLECTIVE over the team. `root` is an index into its ranks. */
zero_status zero_control_broadcast(struct zero_control_team *team, void *data, size_t bytes,
				   int root);

/*
 * Whether communication has failed, because a rank was lost or a rank called zero_control_fail_all.
 * Every function above then fails with the same sentence, which is copied to `text`; *rank is the
 * rank that the sentence is about. From any thread.
 */
bool zero_control_has_failed(struct zero_control *control, char *text, size_t size, int *rank);
/* Makes communication fail on all ranks with this status. The first failure counts. From any thread. */
void zero_control_fail_all(struct zero_control *control, zero_status status, int rank,
			   const char *text);

#endif

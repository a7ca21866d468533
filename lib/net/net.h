/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network between the ranks of a job, beside MPI or NCCL: how ranks agree without a device,
 * learn at once that a rank is lost, and watch each other. Each rank has a few TCP connections,
 * which all uses share, and one thread that reads them, so that a connection which ends without a
 * goodbye is seen whatever the rank is doing.
 *
 * One thread at a time may call these functions, except where "from any thread" is stated. An error
 * is the thread's last error.
 */
#ifndef ZERO_NET_NET_H
#define ZERO_NET_NET_H

#include "address.h"
#include "zero.h"

struct zero_net;
struct zero_net_team;

/* The largest number of values in one agreement. */
enum { ZERO_NET_VALUES = 8 };

struct zero_net_config {
	int rank, world;
	double seconds; /* how long a connection may take */
	/* Fills *address with where another rank listens. */
	zero_status (*address)(void *context, int rank, struct zero_address *address);
	/* Names the node of a rank that has not come. */
	void (*node)(void *context, int rank, char *text, size_t size);
	void *context;
};

/* What else the thread does. It calls `poll` after it has read all that has come, and again after
   the number of seconds that this returns, or sooner. */
struct zero_net_user {
	double (*poll)(void *context);
	void *context;
	struct zero_net_user *next;
};

/*
 * Modules reach these functions through this table, since they are not linked with the library.
 */
struct zero_net_ops {
	/* Starts to listen and fills *own, which has an address in each network that NCCL may use
	   (NCCL_SOCKET_IFNAME). */
	zero_status (*listen)(struct zero_net *net, struct zero_address *own);
	/* Starts the thread, once config->address works. */
	zero_status (*join)(struct zero_net *net, const struct zero_net_config *config);
	/* COLLECTIVE over `ranks`, which ascend and include the caller; NULL stands for all ranks.
	   Connects them by a tree. The team is freed with `net`. An error names the rank that did
	   not answer. */
	zero_status (*team_new)(struct zero_net *net, const int *ranks, size_t count,
				struct zero_net_team **team);
	/*
	 * The maximum of each of `count` values (at most ZERO_NET_VALUES) over the ranks of a team.
	 * Several teams may have one under way. finish_max waits until one of them is complete and
	 * sets *which to its index. There is no time limit: peers may be slow.
	 */
	zero_status (*begin_max)(struct zero_net_team *team, const uint64_t *mine, size_t count);
	zero_status (*finish_max)(struct zero_net_team *const *teams, size_t count, size_t *which,
				  uint64_t *all);
	/* COLLECTIVE over the team. All-gather: recv[ranks][bytes] from every rank's
	   send[bytes]. */
	zero_status (*allgather)(struct zero_net_team *team, const void *send, void *recv,
				 size_t bytes);
	/* COLLECTIVE over the team. `root` is an index into its ranks. */
	zero_status (*broadcast)(struct zero_net_team *team, void *data, size_t bytes, int root);
	/*
	 * Returns the error if communication has failed, because a rank was lost or a rank called
	 * fail_all. Every function above then fails with it and the same sentence, which is copied
	 * to `text`; *rank is the rank that the sentence is about. From any thread.
	 */
	zero_status (*has_failed)(struct zero_net *net, char *text, size_t size, int *rank);
	/* Makes communication fail on all ranks. The first failure counts. From any thread. */
	void (*fail_all)(struct zero_net *net, zero_status status, int rank, const char *text);
	/* Adds a user, and removes it once the thread has left its poll. */
	void (*attach)(struct zero_net *net, struct zero_net_user *user);
	void (*detach)(struct zero_net *net, struct zero_net_user *user);
	/* Makes the thread poll. From any thread, and from a signal handler. */
	void (*wake)(struct zero_net *net);
};

extern const struct zero_net_ops zero_net_ops;

/* One is open in a process. NULL: no memory. */
struct zero_net *zero_net_new(void);
/* Sends a goodbye to the neighbours, so that this rank is not lost when its process ends. */
void zero_net_say_goodbye(struct zero_net *net);
/* Sends a goodbye to the neighbours, waits for no rank, and frees everything, teams included. NULL
   is a no-op. */
void zero_net_close(struct zero_net *net);
/* Whether a rank has ended without a goodbye: it will never come to another job of these processes.
   Copies the error as has_failed does. */
bool zero_net_lost(struct zero_net *net, char *text, size_t size, int *rank);
/* Whether join has succeeded. */
bool zero_net_joined(const struct zero_net *net);

#endif

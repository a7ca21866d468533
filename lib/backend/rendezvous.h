/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks meet without MPI, and agree without a device. The launcher's servers carry where each
 * rank listens (PMIx: put and get); all else goes over the network of the library.
 */
#ifndef ZERO_RENDEZVOUS_H
#define ZERO_RENDEZVOUS_H

#include "comm.h"
#include "net/net.h"

struct zero_pmix_place {
	int rank, world;             /* 0 and 1 if no launcher started this process */
	int local_rank, local_world; /* among the ranks of this node */
};

/* Module zero_pmix.so: the launcher's own servers (slurmstepd, prted), for which no address is
   needed. One thread at a time may call these, but for abort. */
struct zero_pmix_ops {
	int abi;          /* ZERO_MODULE_ABI */
	const char *name; /* "pmix" */

	/* Connects to the launcher's server. Once for each job. */
	zero_status (*open)(struct zero_pmix_place *place);
	/* Publishes a copy of data[bytes] in the job that was opened last, once. */
	zero_status (*publish)(const void *data, size_t bytes);
	/* Copies the data[bytes] that another rank publishes in this job, and waits for that rank,
	   but no longer than `seconds`. */
	zero_status (*get)(int rank, void *data, size_t bytes, double seconds);
	/* The name of a rank's node; "" if the launcher does not know it. */
	void (*node)(int rank, char *text, size_t size);
	/* COLLECTIVE. Waits for all ranks. */
	void (*fence)(void);
	/* Ends all processes of the job with that exit status, this one included. From any thread;
	   does not return. */
	void (*abort)(int status, const char *text);
	/* What is done at exit, for a process that ends otherwise. */
	void (*finalise)(void);
};

/* The library's functions for the network. zero_rendezvous_place sets it. */
extern const struct zero_net_ops *zero_net;

struct zero_rendezvous {
	const struct zero_pmix_ops *pmix; /* NULL: no launcher */
	struct zero_net *net;
	double seconds; /* for which ranks wait for each other */
};

/* Connects to the launcher, if there is one, and fills *place; no rank shares memory there. Without
   a launcher there is one rank. */
zero_status zero_rendezvous_place(struct zero_rendezvous *rendezvous,
				  const struct zero_backend_config *config,
				  struct zero_rank_info *place);
/* COLLECTIVE. Listens for other ranks, publishes where, and connects all of them: comm->net_team
   becomes that of all ranks. An error names a rank that has not come. */
zero_status zero_rendezvous_join(struct zero_rendezvous *rendezvous, struct zero_comm *comm);
/* Ends all processes of the job with that status. */
void zero_rendezvous_abort(const struct zero_rendezvous *rendezvous, int status, const char *text);
/* For struct zero_backend_ops. */
void zero_rendezvous_finalise(void);

/* For struct zero_comm_ops, of communicators that have a net_team. */
zero_status zero_net_comm_begin_max(struct zero_comm *comm);
zero_status zero_net_comm_finish_max(struct zero_comm *const *comms, int count, int *index);
zero_status zero_net_comm_allgather(struct zero_comm *comm, const void *send, void *recv,
				    size_t bytes);
zero_status zero_net_comm_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root);

#endif

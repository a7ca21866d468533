/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks meet without MPI, and agree without a device. The launcher's servers carry where each rank
 * listens (PMIx: put, one fence, get); all else goes over the network of the library.
 */
#ifndef ZERO_MEETING_H
#define ZERO_MEETING_H

#include "bootstrap.h"
#include "comm.h"
#include "net/net.h"

/* The library's functions for the network. zero_meeting_place sets it. */
extern const struct zero_net_ops *zero_net;

struct zero_meeting {
	const struct zero_bootstrap_ops *bootstrap; /* NULL: no launcher */
	struct zero_net *net;
	double seconds; /* for which ranks wait for each other */
};

/* Connects to the launcher, if there is one, and fills *place; no rank shares memory there. Without
   a launcher there is one rank. The meeting is to be left also after an error. */
zero_status zero_meeting_place(struct zero_meeting *meeting,
			       const struct zero_backend_config *config, struct zero_place *place);
/* Gets what another rank has put under a key of the bootstrap: so many bytes. */
zero_status zero_meeting_get(const struct zero_meeting *meeting, int rank, const char *key,
			     void *data, size_t bytes);
/* Listens for other ranks and publishes where. */
zero_status zero_meeting_listen(struct zero_meeting *meeting);
/* COLLECTIVE. Waits for all ranks, and connects them: comm->net_team becomes that of all ranks. */
zero_status zero_meeting_join(struct zero_meeting *meeting, struct zero_comm *comm);
/* Ends all processes of the job with that status. */
void zero_meeting_abort(const struct zero_meeting *meeting, int status, const char *text);
void zero_meeting_leave(struct zero_meeting *meeting);
/* For struct zero_backend_ops. */
void zero_meeting_finalise(void);

/* For struct zero_comm_ops, of communicators that have a net_team. */
zero_status zero_meeting_begin_max(struct zero_comm *comm);
zero_status zero_meeting_finish_max(struct zero_comm *const *comms, int count, int *index);
zero_status zero_meeting_exchange(struct zero_comm *comm, const void *send, void *recv,
				  size_t bytes);
zero_status zero_meeting_broadcast(struct zero_comm *comm, void *data, size_t bytes, int root);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watchdog: a dead or stopped rank would let the others wait for ever, since neither MPI nor a
 * launcher's PMIx tells of one. So each rank has a thread and two TCP connections, to its
 * neighbours in a ring. A connection that ends without a farewell is a process that is gone, one
 * without a beat for some seconds is a process that is stopped or a node that is down; whoever
 * finds it asks the others what they are doing, prints one line and ends the job.
 */
#ifndef ZERO_WATCH_H
#define ZERO_WATCH_H

#include "net/address.h"

struct zero_ring;

/* What a rank is doing, as others are told. */
struct zero_doing {
	uint64_t number;    /* of its last operation, counted from 1; 0: there was none */
	uint32_t under_way; /* 0: it is done */
	float seconds;      /* since it began, or was done */
	char label[112];
	char call[40]; /* the function that the rank is in, where that takes long */
};

/* What a rank tells all others before there is a ring; plain bytes. */
struct zero_ring_rank {
	struct zero_address address;
	char name[64]; /* of the node, as the user knows it */
	int64_t process;
	uint64_t began;   /* the process, in the clock of its node; 0: not known */
	uint32_t signals; /* bits of those that it says before it dies of them */
	uint32_t unused;
};

struct zero_ring_config {
	int rank, world;
	double seconds;      /* without a beat */
	double stall;        /* that an operation may wait; 0: for ever */
	double open_seconds; /* for neighbours to be found */
	bool aborts;         /* else the sentence is kept, see zero_ring_fault */
	/* What this rank is doing; never waits. */
	void (*doing)(void *context, struct zero_doing *doing);
	/* Ends the processes of all ranks; in a thread of its own. */
	void (*abort)(void *context, const char *text);
	void *context;
	int out; /* where the line goes: 2 */
};

/* At the begin of zero_open, before others catch signals: those that nobody catches are the ring's
   to announce. */
void zero_ring_record_default_signals(void);

/* Begins to listen. NULL with `why`. */
struct zero_ring *zero_ring_new(char *why, size_t size);
void zero_ring_describe(const struct zero_ring *ring, struct zero_ring_rank *own);
/* COLLECTIVE, among all who gave a `zero_ring_rank`; all[world] is copied. False with `why`. */
bool zero_ring_join(struct zero_ring *ring, const struct zero_ring_config *config,
		    const struct zero_ring_rank *all, char *why, size_t size);
/* Once all have joined: from now on others are watched. */
void zero_ring_begin(struct zero_ring *ring);
/* Says farewell and frees it. NULL is legal; so is one that has not joined. False: a rank was
   lost and the job is being ended; ring and context are still in use. */
bool zero_ring_close(struct zero_ring *ring);
/* Whether a rank was found lost: the sentence, and which. From any thread. */
bool zero_ring_fault(struct zero_ring *ring, char *text, size_t size, int *rank);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What backends share: a queue of submissions, and how ranks agree on each before any data move. A
   backend brings the communicator, which knows what carries the data. */
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include <pthread.h>

#include "backend.h"

/* libzero's functions, kept when the module is opened. */
extern const struct zero_core *zero_core;

/* What a rank is about to do; compared before any data moves. */
struct zero_intent {
	const char *label;
	uint64_t hash; /* of all that must be equal on all ranks */
	zero_status status;
	const char *error;
	int error_rank; /* where it arose if all ranks know of it already, else -1 */
};

/* The device's part of a submission's order; NULL where the host runs it all by itself. */
struct zero_device_order {
	void *before; /* what was begun on the device when it was submitted */
	void *after;  /* its own end */
};

/* An agreement under way. */
enum {
	ZERO_AGREE_HASH,
	ZERO_AGREE_HASH_COMPLEMENT,
	ZERO_AGREE_ERROR,
	ZERO_AGREE_CHOICE,
	ZERO_AGREE_CHOICE_COMPLEMENT,
	ZERO_AGREE_VALUES,
};

struct zero_agreement {
	uint64_t mine[ZERO_AGREE_VALUES], all[ZERO_AGREE_VALUES];
};

/* What a rank showed of its intent where they differ. */
struct zero_intent_summary {
	char label[160];
	uint64_t hash;
};

struct zero_comm {
	const struct zero_comm_ops *ops;
	struct zero_place place;
	bool threaded;         /* may be used from the queue's own thread */
	bool main_thread_only; /* by the thread alone that opened it */
	bool broken;           /* an error has left its ranks apart: nothing more is run on it */
	struct zero_team_comm *team_comms; /* of the first communicator: the teams cut out of it */
	int *members;                    /* of a team: [place.world] ranks of the job; NULL: all */
	struct zero_agreement agreement; /* the one under way */
	/* What a rank chose for the submission by itself, and whether all chose alike: known when
	   they have agreed, and no error if not. */
	uint64_t choice;
	bool choices_equal;
	struct zero_intent_summary *intents; /* [place.world] */
	const struct zero_meter *meter;      /* of the first communicator: NULL: nobody's */
	_Atomic uint64_t bytes_sent, collectives;
};

/* Called by one thread at a time, if nothing else is said. Errors are sentences of that thread. */
struct zero_comm_ops {
	void (*close)(struct zero_comm *comm);
	/* What this rank does by itself for operations to come: makes what ZERO_OP_ALLOC asks for,
	   and tells peers where its buffers are. */
	zero_status (*begin)(struct zero_comm *comm, const struct zero_op *ops, size_t count);
	/* Runs them, if `status`, the same on all ranks, is ZERO_OK; else takes back what begin
	   made and returns it. A device may still be at it: then order->after is its end. */
	zero_status (*run)(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			   zero_status status, struct zero_device_order *order);
	/* Gives back what ZERO_OP_FREE names, once all before it is done. */
	void (*free)(struct zero_comm *comm, void *data, const struct zero_device_order *order);
	/* See shared_free in backend.h. From any thread. */
	void (*shared_free)(struct zero_comm *comm, struct zero_shared *shared);

	/* How the ranks talk of small things, in host memory; NULL where there is one rank.
	   begin_max: the largest of all ranks' values, from comm->agreement.mine to .all.
	   finish_max: waits until one of those begun is done: *index, or -1 if none is left. */
	zero_status (*begin_max)(struct zero_comm *comm);
	zero_status (*finish_max)(struct zero_comm *const *comms, int count, int *index);
	zero_status (*exchange)(struct zero_comm *comm, const void *send, void *recv, size_t bytes);
	zero_status (*broadcast)(struct zero_comm *comm, void *data, size_t bytes, int root);

	/* With a device, else NULL; from any thread. Keeps what is before a submission; makes what
	   the caller begins on the device from now on wait for its end; and forgets both. */
	void (*device_order_begin)(struct zero_comm *comm, struct zero_device_order *order);
	zero_status (*device_order_join)(struct zero_comm *comm,
					 const struct zero_device_order *order);
	void (*device_order_free)(struct zero_comm *comm, struct zero_device_order *order);
};

/* Counted as traffic. */
static inline bool zero_op_is_payload(const struct zero_op *op)
{
	return op->kind == ZERO_OP_ALL_GATHER || op->kind == ZERO_OP_REDUCE_SCATTER ||
	       op->kind == ZERO_OP_SCATTER || op->kind == ZERO_OP_BROADCAST;
}

/* What a team_comm is made of: the ranks of a team; comm is NULL where this rank is not of it. */
struct zero_team_comm {
	struct zero_comm *comm;
	struct zero_place place;
	struct zero_team_comm *next; /* of the list that its first communicator keeps */
};

/* A rank of the communicator as one of the job. */
static inline int zero_comm_job_rank(const struct zero_comm *comm, int rank)
{
	return comm->members ? comm->members[rank] : rank;
}

/* COLLECTIVE. Of the ranks of op->members a team_comm, kept in comm->team_comms: `open` makes its
   communicator on a rank that is one of them; all others take part too. */
zero_status zero_team_comm_new(struct zero_comm *comm, const struct zero_op *op,
			       zero_status (*open)(struct zero_comm *comm, const struct zero_op *op,
						   bool member, struct zero_comm **team));
/* Closes the communicators of all team_comms. */
void zero_team_comms_close(struct zero_comm *comm);

/* ---- agree.c --------------------------------------------------------------------------------- */

/* ZERO_OK if all ranks intend the same and none has an error; else the same on all ranks, with the
   sentence in `text` and the rank that it is about in *rank. */
zero_status zero_agree_on(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			  size_t size, int *rank);
/* The same for the last thing that a rank says, to the ranks of its teams too. */
zero_status zero_agree_leave(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank);
/* COLLECTIVE. Outside of a submission: a rank that cannot go on says so to the others, which wait
   for it. */
zero_status zero_agree_status(struct zero_comm *comm, zero_status status);

/* ---- queue.c: submissions, run in order by a thread of their own ----------------------------- */

struct zero_queue;

zero_status zero_queue_new(struct zero_comm *comm, struct zero_queue **queue);
void zero_queue_delete(struct zero_queue *queue); /* after what was submitted is done */
zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work);
zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work);
/* Those that were begun last, the newest first: how many, at most `count`. From any thread. */
size_t zero_queue_recent(struct zero_queue *queue, struct zero_recent_submission *recent,
			 size_t count);
void zero_work_get(struct zero_work *work);
void zero_work_put(struct zero_work *work);

#endif

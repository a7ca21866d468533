/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all backends share: a queue of submissions (queue.c), the agreement of ranks before data
 * moves (agree.c), and communicators of teams (team_comm.c). A backend supplies struct
 * zero_comm_ops, which knows how data is carried.
 */
#ifndef ZERO_COMM_H
#define ZERO_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend.h"

/* What a rank is about to do. Ranks compare it before any data moves. */
struct zero_intent {
	const char *label;
	uint64_t hash; /* of all that must be equal on all ranks */
	zero_status status;
	const char *error;
	int error_rank; /* the rank of the error if all ranks know it already, else -1 */
	bool leaving;   /* it is a rank's last one */
};

/* Events that order a submission on a device. Both are NULL in a backend without one. */
struct zero_device_order {
	void *before; /* end of what the caller had begun when it submitted */
	void *after;  /* end of the submission */
	/* What zero_comm_ops.device_reached returns once the device has done it; 0: the device does
	   not tell. */
	uint32_t mark;
};

/*
 * An agreement is one all-reduce with the maximum. Ranks have equal hashes if the largest hash is
 * the complement of the largest complement. The error is that of the lowest rank which has one. The
 * sequence is a hash of all that was run without an agreement since the communicator was opened.
 */
enum {
	ZERO_AGREE_HASH,
	ZERO_AGREE_HASH_COMPLEMENT,
	ZERO_AGREE_ERROR,
	ZERO_AGREE_CHOICE,
	ZERO_AGREE_CHOICE_COMPLEMENT,
	ZERO_AGREE_SEQUENCE,
	ZERO_AGREE_SEQUENCE_COMPLEMENT,
	ZERO_AGREE_VALUES,
};

struct zero_agreed_values {
	uint64_t mine[ZERO_AGREE_VALUES]; /* this rank's values */
	uint64_t all[ZERO_AGREE_VALUES];  /* maxima over all ranks */
};

/* What ranks exchange of their intents to explain how they differ. */
struct zero_intent_summary {
	char label[160], before[160];
	uint64_t hash, sequence, count;
};

/* The submissions of a communicator that were run without an agreement. */
struct zero_sequence {
	uint64_t hash, count;
	char last[128]; /* label */
};

/* Ranks wait for each other in submissions of different communicators; see agree.c. */
struct zero_deadlock {
	_Atomic bool found; /* by the watchdog, on another thread; what follows is set before */
	bool ending;        /* this rank ends its agreements */
	int rank;           /* that the sentence is about */
	char text[512];
};

/* A communicator: the ranks of the job, or of a team. */
struct zero_comm {
	const struct zero_comm_ops *ops;
	struct zero_rank_info place;
	zero_status (*agree_status)(struct zero_comm *comm, zero_status status); /* the config's */
	bool threaded;         /* the queue's own thread uses it */
	bool in_order;         /* submissions that need not be agreed on are run without */
	bool main_thread_only; /* only the thread that opened it may */
	bool broken; /* after an error ranks may differ in what they do next: nothing more is run */
	struct zero_team_comm *team_comms; /* of the job's communicator: a list of the teams' */
	/* Of the job's communicator: scratch for this and the teams', made with these, since a rank
	   that leaves for want of memory has none. NULL: there are no teams. */
	struct zero_comm **leaving;
	struct zero_net_team **net_leaving;
	struct zero_comm *job;         /* of a team: the job's; NULL: this is it */
	uint32_t team;                 /* see struct zero_recent_submission */
	uint64_t submissions;          /* so far */
	struct zero_deadlock deadlock; /* of the job's communicator */
	int *members; /* of a team: its ranks in the job [place.world]; NULL: all ranks */
	struct zero_net_team *net_team;      /* its ranks, where they agree over the network */
	struct zero_agreed_values agreement; /* the one under way */
	/* A choice that a rank makes by itself, such as a buffer out of several, and whether all
	   ranks made the same one, which is known after the agreement. A difference is no error. */
	uint64_t choice;
	bool choices_equal;
	struct zero_sequence sequence;
	bool diverged; /* the sequences of ranks differed: work under way may never end */
	struct zero_intent_summary *intents; /* [place.world]: scratch of agree.c */
	const struct zero_meter *meter;      /* of the job's communicator; NULL: none */
	bool metered; /* the job's: how long a device waits is measured, see zero_queue_spent */
	_Atomic uint64_t bytes_sent, collectives, agreements;
};

/* Called by one thread at a time, but where noted. A sentence is that thread's last error. */
struct zero_comm_ops {
	void (*close)(struct zero_comm *comm);
	/* Prepares operations on this rank, before the agreement: makes the buffers of
	   ZERO_OP_ALLOC and publishes the addresses that peers need. */
	zero_status (*begin)(struct zero_comm *comm, const struct zero_op *ops, size_t count);
	/* Runs the operations if the ranks agreed (status ZERO_OK). Else undoes what begin did and
	   returns `status`. If a device still runs them, sets order->after to their end. */
	zero_status (*run)(struct zero_comm *comm, const struct zero_op *ops, size_t count,
			   zero_status status, struct zero_device_order *order);
	/* Tells all ranks of an error of this one, after which no rank can go on. NULL if each
	   submission is agreed on. */
	void (*fail_all)(struct zero_comm *comm, const char *text);
	/* Ends work under way, in which not all ranks take part. NULL if there is none. */
	void (*abandon)(struct zero_comm *comm);
	/* Frees the buffer of a ZERO_OP_FREE once all before it is done. */
	void (*free)(struct zero_comm *comm, void *data, const struct zero_device_order *order);
	/* See shared_free in backend.h. From any thread. */
	void (*shared_free)(struct zero_comm *comm, struct zero_shared *shared);

	/* How gathers go, as far as the backend asks for it: a static string. NULL: as the host's
	   do. */
	const char *(*gathers)(const struct zero_comm *comm);
	/*
	 * Small collectives in host memory. NULL with one rank.
	 *
	 * begin_max starts the all-reduce of comm->agreement. finish_max waits until one of those
	 * that were begun on `comms` is done, and sets *index to it, or to -1 if count is 0 or a
	 * deadlock was found.
	 */
	zero_status (*begin_max)(struct zero_comm *comm);
	zero_status (*finish_max)(struct zero_comm *const *comms, int count, int *index);
	/* recv[world][bytes] = every rank's send[bytes]. */
	zero_status (*allgather)(struct zero_comm *comm, const void *send, void *recv,
				 size_t bytes);
	/* data[bytes] of every rank = the root's. */
	zero_status (*broadcast)(struct zero_comm *comm, void *data, size_t bytes, int root);

	/*
	 * The order of submissions on a device; NULL without one. From any thread.
	 *
	 * begin records order->before when a submission is queued. join makes what the caller
	 * begins on the device from now on wait for order->after. free releases both events.
	 */
	void (*device_order_begin)(struct zero_comm *comm, struct zero_device_order *order);
	zero_status (*device_order_join)(struct zero_comm *comm,
					 const struct zero_device_order *order);
	void (*device_order_free)(struct zero_comm *comm, struct zero_device_order *order);
	/* The mark of the last submission that the device has done; it counts up, also beyond 2^32.
	   Reads memory of the host. */
	uint32_t (*device_reached)(const struct zero_comm *comm);
	/* Where the job's communicator is metered: the caller is about to wait, or has waited, as
	   far as the host is concerned. Threads may wait at the same time. */
	void (*wait)(struct zero_comm *comm, bool begins);
	/* See zero_queue_spent. */
	struct zero_spent (*spent)(struct zero_comm *comm);
};

/* Whether an operation counts as traffic. */
static inline bool zero_op_is_payload(const struct zero_op *op)
{
	return op->kind == ZERO_OP_ALL_GATHER || op->kind == ZERO_OP_REDUCE_SCATTER ||
	       op->kind == ZERO_OP_SCATTER || op->kind == ZERO_OP_BROADCAST ||
	       op->kind == ZERO_OP_ALL_TO_ALL;
}

/* The handle of a team's communicator, which all ranks of the job have. */
struct zero_team_comm {
	struct zero_comm *comm;      /* NULL: this rank is not in the team */
	struct zero_rank_info place; /* rank is -1 then */
	uint32_t teams;              /* that were made with it, one of them this one */
	struct zero_team_comm *next; /* in the list of the job's communicator */
};

static inline struct zero_comm *zero_comm_of_job(struct zero_comm *comm)
{
	return comm->job ? comm->job : comm;
}

/* The rank in the job of a rank of the communicator. */
static inline int zero_comm_job_rank(const struct zero_comm *comm, int rank)
{
	return comm->members ? comm->members[rank] : rank;
}

/* ---- team_comm.c ----------------------------------------------------------------------------- */

/* COLLECTIVE over the job. Runs a ZERO_OP_TEAM_COMM: calls `open` on every rank, which makes the
   team's communicator if `member`, and adds the handle to comm->team_comms. */
zero_status zero_team_comm_new(struct zero_comm *comm, const struct zero_op *op,
			       zero_status (*open)(struct zero_comm *comm, const struct zero_op *op,
						   bool member, struct zero_comm **team));
/* Closes and frees all teams' communicators of comm. */
void zero_team_comms_close(struct zero_comm *comm);

/* ---- agree.c --------------------------------------------------------------------------------- */

/* COLLECTIVE. ZERO_OK if all ranks have the same intent and none has an error. Else the same error
   on all ranks, with its sentence in `text` and the rank that it is about in *rank. */
zero_status zero_agree_on(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			  size_t size, int *rank);
/* The same for a rank's last submission, which is also sent to the ranks of its teams. */
zero_status zero_agree_leave(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank);
/* See struct zero_backend_config. */
zero_status zero_agree_status(struct zero_comm *comm, zero_status status);

/* Ends what the ranks wait in with ZERO_E_ORDER and this sentence, which is about `rank`: all of
   them wait, and no submission has all of its ranks. Each rank calls it, from any thread. */
void zero_agree_end_deadlock(struct zero_comm *comm, int rank, const char *text);

/* ---- progress.c ------------------------------------------------------------------------------ */

/* What the device was given to do. More than that many it can hardly be behind: if it is, what goes
   beyond is not reported, and the rank does not count as one that waits. */
enum { ZERO_LAUNCHED = 1024 };

struct zero_launched {
	uint32_t mark;
	double since; /* when it was seen to be the first one; 0: it was not yet */
	struct zero_begun what;
};

struct zero_progress {
	atomic_bool agreeing;         /* the submission that is run waits for other ranks */
	_Atomic uint64_t device_wait; /* since when a caller waits for the device; 0: none does */
	pthread_mutex_t lock;         /* guards everything below */
	struct zero_begun last;       /* begun by the host */
	struct zero_spent spent;      /* until it began */
	struct zero_launched launched[ZERO_LAUNCHED]; /* a ring: what the device has not done */
	uint64_t first, launches;
	uint32_t unreported; /* mark of the last one that the ring had no room for */
	struct zero_team_sequence sequences[ZERO_TEAMS_REPORTED]; /* begun by the host */
	size_t teams;
};

void zero_progress_init(struct zero_progress *progress);
void zero_progress_destroy(struct zero_progress *progress);
void zero_progress_begin(struct zero_progress *progress, struct zero_comm *comm, const char *label);
/* The submission that was begun last is done, or the device was given it with a mark. `reached` is
   how far the device is. */
void zero_progress_end(struct zero_progress *progress, uint32_t mark, uint32_t reached);
/* See zero_queue_spent. */
struct zero_spent zero_progress_spent(struct zero_progress *progress);
/* See zero_queue_recent. */
bool zero_progress_recent(struct zero_progress *progress, uint32_t reached,
			  struct zero_recent_submission *recent);

/* ---- queue.c: submissions, in the same order on all ranks ------------------------------------ */

struct zero_queue;

zero_status zero_queue_new(struct zero_comm *comm, struct zero_queue **queue);
/* Completes what was submitted first. NULL is a no-op. */
void zero_queue_delete(struct zero_queue *queue);
/*
 * Queues a submission and returns at once; submissions run in the order of these calls. *work has
 * one reference, the caller's. Errors of the operations come with the wait; this fails by itself
 * only without memory, or from a thread that MPI does not allow.
 */
zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work);
/*
 * Waits until a submission was run, and returns its status. On a device the transfers may still be
 * under way: what the caller puts on its stream from now on comes after them. Any thread may wait,
 * and any number of times; references are left as they are.
 */
zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work);
/* Returns whether any submission was begun, and then what the rank is doing. From any thread; never
   blocks, and asks no device. */
bool zero_queue_recent(struct zero_queue *queue, struct zero_recent_submission *recent);
/*
 * How this rank has spent its time since its first submission. On the host submissions are what it
 * waited for, and all before the last one counts. On a device the caller's stream waited, where the
 * job's communicator is metered, and all counts that the device has done. From any thread.
 */
struct zero_spent zero_queue_spent(struct zero_queue *queue);
/* On a device a submission is under way until the caller has waited for it. */
void zero_queue_device_wait(struct zero_queue *queue, bool waits);
/* Adds a reference. */
void zero_work_get(struct zero_work *work);
/* Drops a reference; the work goes with the last one. NULL is a no-op. */
void zero_work_put(struct zero_work *work);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the watchdog share. */
#ifndef ZERO_WATCH_INTERNAL_H
#define ZERO_WATCH_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "core/clock.h"
#include "net/launcher.h"
#include "net/link.h"
#include "watch.h"

enum { ZERO_RING_MESSAGE_BYTES = 472 };

/* What a rank is doing, as it reports it to the others. */
struct zero_activity {
	uint64_t operation;   /* number of its last operation, counted from 1; 0: none yet */
	uint32_t running;     /* whether that operation is still running */
	float seconds;        /* since the operation began or, if it is done, since its end */
	uint32_t waiting;     /* whether it waits for other ranks to begin the operation */
	uint32_t team, ranks; /* see struct zero_begun */
	uint64_t sequence;
	struct zero_team_sequence
		sequences[ZERO_TEAMS_REPORTED]; /* see struct zero_recent_submission */
	uint32_t teams;
	float waits; /* seconds in what the program says that all ranks take part in; 0: in none */
	char label[112];
	char call[40]; /* the library function that the rank is in, if that one may take long */
};

/* What each rank publishes to all others before the ring exists; plain bytes. */
struct zero_ring_peer {
	struct zero_address address;
	char node_name[64]; /* as the user knows the node */
	int64_t pid;
	uint64_t start_time;      /* of the process, by its node's clock; 0: unknown */
	uint32_t default_signals; /* bit N: the rank sends a notice before it dies of signal N */
};

struct zero_ring_config {
	int rank, world;
	double heartbeat_timeout; /* seconds */
	double stall_timeout;     /* seconds that an operation may wait; 0: for ever */
	bool aborts;              /* false: a fault is only recorded, see zero_ring_fault */
	bool watch_only;          /* a rank may exit with status 0 while others work */
	double end_timeout;       /* seconds that such a rank may take to end; 0: no limit */
	/* Returns what this rank is doing; never blocks. */
	void (*get_activity)(void *context, struct zero_activity *activity);
	/* Makes what this rank waits in fail with this sentence, which is about `rank`. */
	void (*end_deadlock)(void *context, int rank, const char *message);
	/* Tells the program that this process is about to be ended, and whether it wants to
	   know. */
	void (*before_end)(void *context);
	bool (*wants_end)(void *context);
	/* Ends the processes of all ranks. Called in a thread of its own. */
	void (*abort_job)(void *context, const char *message);
	void *context;
	int out_fd; /* where the message is printed */
};

enum zero_peer_state {
	ZERO_PEER_ALIVE,
	ZERO_PEER_CLOSED,       /* it called zero_close */
	ZERO_PEER_EXITED,       /* it called exit without zero_close */
	ZERO_PEER_SIGNALED,     /* it sent notice of a fatal signal */
	ZERO_PEER_DISCONNECTED, /* its connection ended without any notice */
	ZERO_PEER_SILENT,       /* no heartbeat within the timeout */
	ZERO_PEER_ENDING,       /* this rank itself, which does not come to its end */
	ZERO_PEER_STALLED,      /* it sends heartbeats, but keeps others waiting */
	ZERO_PEER_DEADLOCKED,   /* all ranks wait for each other, perhaps */
};

enum zero_ring_frame_kind {
	ZERO_RING_HEARTBEAT = 1,
	ZERO_RING_GOODBYE,       /* zero_close */
	ZERO_RING_EXIT_NOTICE,   /* exit without zero_close; `value` is the status */
	ZERO_RING_SIGNAL_NOTICE, /* a fatal signal; `value` is its number */
	ZERO_RING_QUERY,         /* asks for activities; travels away from the lost rank */
	ZERO_RING_REPLY,         /* travels back to the rank that asked */
	ZERO_RING_FAULT,         /* a rank was found lost and the message is printed */
	ZERO_RING_ALL_WAIT,      /* from rank 0, passed on by ranks that wait for others */
	ZERO_RING_DEADLOCK,      /* they wait for each other; the message says in what */
};

/* All frames have one size, so that a signal handler can send one too. All ranks of a job have the
   same byte order. */
struct zero_ring_frame {
	uint32_t kind;
	int32_t finder; /* query, reply, fault: the rank that found the lost one */
	int32_t rank;   /* fault: the lost rank; otherwise the sender */
	/* Query, fault: enum zero_peer_state of the lost rank. Reply: ended_for of the inquiry. */
	int32_t state;
	/* Exit notice: the status. Signal notice: the signal. Reply: ended of the inquiry. */
	int32_t value;
	int32_t last; /* reply: whether the sender did not pass the query on */
	union {
		struct zero_activity activity;
		char message[ZERO_RING_MESSAGE_BYTES];
	};
};
_Static_assert(sizeof(struct zero_activity) <= ZERO_RING_MESSAGE_BYTES, "frames grow for nothing");

/* What is known of one neighbour. */
struct zero_ring_link {
	struct zero_link *_Atomic to; /* NULL: there is no connection */
	int rank;
	enum zero_peer_state state;
	int value;          /* exit status or signal, by state */
	double state_since; /* all moments are zero_seconds() */
	double received_at; /* the last bytes */
	struct zero_activity activity;
	double activity_at;
	struct zero_ring_frame in;
};

/* The question of one rank to all others: what are you doing? */
struct zero_inquiry {
	bool active, complete;
	/* Of the lost rank; if no rank is lost, `rank` is the one that asks. */
	enum zero_peer_state state;
	int rank, value;
	double began_at;
	/* Each has one element for each rank. */
	struct zero_activity *activity;
	bool *replied;
	int *listed; /* scratch space of loss_message.c */
	size_t replies;
	/* A rank that had ended well before, as a neighbour of it knows; -1: none is known. */
	int ended;
	int ended_for; /* whole seconds */
};

enum { ZERO_PREV, ZERO_NEXT };

/* What a process does that is to end. */
enum zero_ring_end { ZERO_RING_GOES_ON, ZERO_RING_FINISHED, ZERO_RING_EXITS };

struct zero_ring {
	struct zero_ring_config config;
	struct zero_ring_peer own, *all;
	pid_t pid; /* a forked child is no rank */
	struct zero_net *net;
	struct zero_net_user user; /* is polled */
	pthread_mutex_t lock;      /* of what other threads read too: stopping, stopped, message */
	pthread_cond_t changed;
	bool joined, stopping, stopped;
	_Atomic bool watching;         /* all ranks have joined */
	struct zero_ring_link link[2]; /* with two ranks ZERO_NEXT has no connection */
	double next_heartbeat_at, due_at, deferred_until;
	double next_look_at; /* of rank 0, for a deadlock */
	double stopping_at;  /* the end of the first poll that saw `stopping`; 0: there was none */
	double suspended;    /* seconds in all that this process or its machine was suspended */
	double resumed_at;   /* the last time */
	struct zero_inquiry inquiry;
	bool reported; /* a rank was found lost, here or elsewhere */
	bool stalled;  /* or only keeps the others waiting */
	double reported_at;
	int lost_rank;
	bool last_words; /* ranks say what they are doing before the job is ended */
	char message[ZERO_RING_MESSAGE_BYTES];
	_Atomic bool terminating; /* a signal handler is about to end this process */
	_Atomic bool may_end;     /* that handler need not wait any longer */
	double terminating_at;
	_Atomic bool ending, exiting; /* the process is to end: by exit, or by zero_finish */
	_Atomic bool exit_told;       /* functions that run at exit may hang */
	_Atomic bool departed;        /* it has said goodbye: the others send it nothing more */
	double ending_at;             /* when a poll saw it first; 0: none did */
	enum zero_ring_end overdue;   /* of what the time counts */
	_Atomic bool has_peers;       /* after the last poll: a neighbour is connected */
	double next_ask_at;           /* whether ranks wait for one that has ended well */
	struct zero_oom *oom[2];
	bool has_launcher;              /* that wants to know of a loss */
	struct zero_address launcher;   /* where it listens */
	int attempt;                    /* which of its attempts this is */
	struct zero_loss_notice notice; /* for it, but for what is lost */
};

static inline struct zero_ring_link *zero_ring_other_link(struct zero_ring *ring,
							  const struct zero_ring_link *link)
{
	return &ring->link[link == &ring->link[ZERO_PREV] ? ZERO_NEXT : ZERO_PREV];
}

/* The link to a rank that is a neighbour. */
static inline int zero_ring_side(const struct zero_ring *ring, int rank)
{
	return ring->link[ZERO_PREV].rank == rank ? ZERO_PREV : ZERO_NEXT;
}

/* Whether /proc of this node shows the peer's process. */
static inline bool zero_ring_is_local(const struct zero_ring *ring,
				      const struct zero_ring_peer *peer)
{
	return peer->start_time &&
	       !memcmp(peer->address.node, ring->own.address.node, sizeof(peer->address.node));
}

/* Where a frame goes that is to come to all ranks. */
static inline struct zero_ring_link *zero_ring_onward(struct zero_ring *ring)
{
	return &ring->link[ring->link[ZERO_NEXT].to ? ZERO_NEXT : ZERO_PREV];
}

/* ---- ring.c ---------------------------------------------------------------------------------- */

/* NULL: no memory. */
struct zero_ring *zero_ring_new(struct zero_net *net);
/* Copies what this rank publishes to the others. */
void zero_ring_describe(const struct zero_ring *ring, struct zero_ring_peer *own);
/* Starts to watch the neighbours, after all ranks have joined. */
void zero_ring_start_watching(struct zero_ring *ring);
/* Sends a goodbye and frees the ring, which may be NULL or not joined. Returns false if a rank was
   lost and the job is being ended; ring and context then stay in use. */
bool zero_ring_close(struct zero_ring *ring);
/* Whether a rank was found lost; copies the message and the rank. May be called by any thread. */
bool zero_ring_fault(struct zero_ring *ring, char *text, size_t size, int *rank);
/* This process is about to end, by exit or else by zero_finish. NULL is a no-op.
   Async-signal-safe. */
void zero_ring_set_ending(struct zero_ring *ring, bool exits);
/* exit then calls what tells the neighbours before all that was there until now. */
void zero_ring_tell_exit_first(void);
/* The same, unless that rank only keeps the others waiting. */
bool zero_ring_lost(struct zero_ring *ring, char *text, size_t size, int *rank);

/* COLLECTIVE, among all ranks that are described in all[world], which is copied. Connects to both
   neighbours over the network, and is polled in its thread. */
zero_status zero_ring_join(struct zero_ring *ring, const struct zero_ring_config *config,
			   const struct zero_ring_peer *all);

/* ---- heartbeat.c ----------------------------------------------------------------------------- */

/* What the ring does in the network's thread. Returns the seconds until the next poll. */
double zero_ring_poll(void *ring);
/* Sends a frame without waiting; none if there is no connection. */
void zero_ring_send(struct zero_ring_link *link, const struct zero_ring_frame *frame);
/* Sets a neighbour's state, unless the present one explains more. */
void zero_ring_set_state(struct zero_ring_link *link, enum zero_peer_state state, int value);

/* ---- activity.c ------------------------------------------------------------------------------ */

/* What this rank is doing; the time that it was suspended does not count. */
void zero_ring_own_activity(const struct zero_ring *ring, struct zero_activity *activity);
/* Detects at `now`, when a poll begins, that this process was suspended. */
void zero_ring_detect_suspension(struct zero_ring *ring, double now);

/* ---- diagnose.c ------------------------------------------------------------------------------ */

/* A neighbour that has ended well, and is gone, for the longest time; NULL: none has. */
const struct zero_ring_link *zero_ring_ended(const struct zero_ring *ring);
/* Decides whether a rank is lost, and acts on it. Returns true if it is to be called again soon. */
bool zero_ring_diagnose(struct zero_ring *ring, double now);

/* ---- inquiry.c ------------------------------------------------------------------------------- */

/* Asks all ranks what they are doing, over the link `away`. */
void zero_ring_start_inquiry(struct zero_ring *ring, enum zero_peer_state state, int rank,
			     int value, struct zero_ring_link *away);
/* Handlers of frames that came on `link`. */
void zero_ring_handle_query(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame);
void zero_ring_handle_reply(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame);

/* ---- deadlock.c ------------------------------------------------------------------------------ */

/* Asks on rank 0, from time to time while it waits, whether all ranks wait. */
void zero_ring_look_for_deadlock(struct zero_ring *ring, double now);
/* Tells all ranks if the replies show a deadlock. */
void zero_ring_judge_deadlock(struct zero_ring *ring);
/* Handlers of frames. */
void zero_ring_handle_all_wait(struct zero_ring *ring, const struct zero_ring_frame *frame);
void zero_ring_handle_deadlock(struct zero_ring *ring, const struct zero_ring_frame *frame);

/* ---- loss_message.c -------------------------------------------------------------------------- */

/* Composes the message about the inquired rank for ring->message, records the fault, and prints the
   message if the job is to end. */
void zero_ring_print_message(struct zero_ring *ring);

/* ---- end_job.c ------------------------------------------------------------------------------- */

/* Prints the message, sends it to all ranks and ends the job. */
void zero_ring_end_job(struct zero_ring *ring);
/* The same message, from the rank that found the lost one. */
void zero_ring_handle_fault(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame);
/* Kills this process when the launcher has not ended it in time. */
void zero_ring_enforce_end(const struct zero_ring *ring, double now);

/* ---- process.c ------------------------------------------------------------------------------- */

struct zero_process {
	char state; /* as in /proc: 'T' is stopped */
	int exit_code;
};

/* When a process of this node started; 0: unknown. */
uint64_t zero_process_start_time(pid_t pid);
/* Returns false if the process is gone, or the pid is another process's by now. */
bool zero_process_read(pid_t pid, uint64_t start_time, struct zero_process *found);

/* ---- oom.c ----------------------------------------------------------------------------------- */

/* The kernel's counter of processes that it killed because memory ran out. NULL is a no-op. */
struct zero_oom;
struct zero_oom *zero_oom_open(pid_t pid);
void zero_oom_close(struct zero_oom *oom);
void zero_oom_read(struct zero_oom *oom);
/* Whether the counter has grown within the last half minute. */
bool zero_oom_grew(struct zero_oom *oom);

/* ---- exit_notice.c --------------------------------------------------------------------------- */

/* The ring that signal handlers, exit and fork act on. */
void zero_ring_set_current(struct zero_ring *ring);
void zero_ring_clear_current(struct zero_ring *ring);
/* That ring; NULL in a forked child. Async-signal-safe. */
struct zero_ring *zero_ring_current(void);
/* Tells the neighbours how this process ends. Async-signal-safe. */
void zero_ring_send_exit_notice(struct zero_ring *ring, enum zero_ring_frame_kind kind, int value);

/* ---- signals.c ------------------------------------------------------------------------------- */

/* Bit N: signal N had the default disposition when it was recorded. */
uint32_t zero_ring_default_signals(void);
void zero_ring_install_signal_handlers(void);
/* Restores the previous handlers. A handler that the program has installed since stays. */
void zero_ring_restore_signal_handlers(void);

#endif

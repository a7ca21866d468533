/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the ring share. */
#ifndef ZERO_WATCH_PRIVATE_H
#define ZERO_WATCH_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#include "core/clock.h"
#include "net/dial.h"
#include "watch.h"

enum { ZERO_RING_TEXT = 472, ZERO_RING_STRANGERS = 16 };

/* What became of a neighbour. */
enum zero_fate {
	ZERO_FATE_HERE,
	ZERO_FATE_CLOSED, /* zero_close */
	ZERO_FATE_EXITED, /* without it; `value` is the status */
	ZERO_FATE_DIED,   /* of signal `value`, as it said itself */
	ZERO_FATE_GONE,   /* without a word */
	ZERO_FATE_SILENT,
	ZERO_FATE_STALLED, /* it beats, but keeps others waiting */
};

enum zero_ring_kind {
	ZERO_RING_BEAT = 1,
	ZERO_RING_CLOSED,
	ZERO_RING_EXITED,
	ZERO_RING_DYING,
	ZERO_RING_QUERY, /* travels away from the break */
	ZERO_RING_REPLY, /* and back */
	ZERO_RING_FAULT, /* the finder's sentence is out */
};

/* All are of one size, so that a signal handler can send one too. Ranks of one job have one byte
   order. */
struct zero_ring_frame {
	uint32_t kind;
	int32_t finder; /* who asks */
	int32_t rank;   /* who says so, or is asked about */
	int32_t fate;   /* query: of that rank. Reply: of the next one, if it ends there */
	int32_t value;
	int32_t at_end; /* reply: nobody further on is asked; the next one's rank, or -1 */
	uint64_t unused;
	union {
		struct zero_doing doing;
		char text[ZERO_RING_TEXT];
	};
};

struct zero_ring_link {
	_Atomic int fd; /* -1: none; only the thread closes it */
	int rank;
	enum zero_fate fate;
	int value;
	double heard, since; /* the last frame; and its fate */
	struct zero_doing doing;
	double doing_at;
	struct zero_ring_frame in;
	size_t filled;
	/* What the connection does not take at once. */
	char *out;
	size_t out_bytes, out_room;
	_Atomic bool clogged; /* nothing can be sent between what is there */
};

/* What the finder was told. */
struct zero_inquiry {
	bool active, complete;
	enum zero_fate fate;
	int rank, value;
	double began;
	struct zero_doing *doing; /* [world] */
	bool *there, *listed;     /* [world]: who has answered; for the line */
	size_t count;
	int end; /* where the ring is broken too; -1: nowhere */
};

enum { ZERO_PREV, ZERO_NEXT };

struct zero_ring {
	struct zero_ring_config config;
	struct zero_ring_rank own, *all;
	pid_t process; /* a forked child is no rank */
	pthread_t thread;
	pthread_mutex_t lock; /* of what other threads look at too: text, and joining */
	pthread_cond_t changed;
	bool running, stopping;
	_Atomic bool begun; /* neighbours are watched */
	_Atomic int listener, wakeup, connecting;
	struct {
		int fd;
		double since;
		size_t have;
		struct zero_hello hello;
	} strangers[ZERO_RING_STRANGERS];
	struct zero_ring_link link[2];
	double beat_at, turn_at, deferred_until;
	double slept,
		woke_at; /* while the process, or its machine, was stopped: in all, and last */
	struct zero_inquiry inquiry;
	/* Of the line that was printed, or kept. */
	bool told;
	double told_at;
	int lost_rank;
	char text[ZERO_RING_TEXT];
	/* By signal handlers: this process is to end; and need not wait any longer. */
	_Atomic bool terminating, settled;
	double terminated_at;
	struct zero_oom *oom[2];
};

static inline struct zero_ring_link *zero_ring_other(struct zero_ring *ring,
						     const struct zero_ring_link *link)
{
	return &ring->link[link == &ring->link[ZERO_PREV] ? ZERO_NEXT : ZERO_PREV];
}

/* Whether a rank is on this node, so that its process can be looked at. */
static inline bool zero_ring_is_near(const struct zero_ring *ring,
				     const struct zero_ring_rank *peer)
{
	return peer->began &&
	       !memcmp(peer->address.node, ring->own.address.node, sizeof(peer->address.node));
}

/* Before signals and forks find it, and after. */
void zero_ring_publish(struct zero_ring *ring);
void zero_ring_withdraw(struct zero_ring *ring);

/* ---- serve.c --------------------------------------------------------------------------------- */

bool zero_ring_start(struct zero_ring *ring);
void zero_ring_send(struct zero_ring_link *link, const struct zero_ring_frame *frame);
/* What was kept, as far as it goes. */
void zero_ring_flush(struct zero_ring_link *link);
void zero_ring_wake(struct zero_ring *ring);
/* Without the time that this process was stopped. */
void zero_ring_own_doing(const struct zero_ring *ring, struct zero_doing *doing);
double zero_ring_beat(const struct zero_ring *ring); /* seconds between two */

/* ---- join.c: strangers, until the right one has come ----------------------------------------- */

void zero_ring_accept(struct zero_ring *ring);
void zero_ring_hear_strangers(struct zero_ring *ring);
void zero_ring_stop_listening(struct zero_ring *ring);

/* ---- find.c: what became of neighbours, and asking the others -------------------------------- */

void zero_ring_hear(struct zero_ring *ring, struct zero_ring_link *link,
		    const struct zero_ring_frame *frame);
void zero_ring_set_fate(struct zero_ring_link *link, enum zero_fate fate, int value);
/* What is to be done by now; whether more is, soon. */
bool zero_ring_look(struct zero_ring *ring, double now);

/* ---- line.c ---------------------------------------------------------------------------------- */

/* The whole of it, with a newline, for `out`; its first line, without, in ring->text. */
void zero_ring_line(struct zero_ring *ring, char *text, size_t size);

/* ---- process.c: a process of this node ------------------------------------------------------- */

struct zero_process {
	char state; /* as in /proc: 'T' is stopped */
	int exit_code;
};

uint64_t zero_process_began(pid_t process);
/* False: it is no more, or another one. */
bool zero_process_look(pid_t process, uint64_t began, struct zero_process *found);

/* What the kernel counts when it kills for want of memory. */
struct zero_oom;
struct zero_oom *zero_oom_open(pid_t process); /* NULL is legal in all of these */
void zero_oom_close(struct zero_oom *oom);
void zero_oom_look(struct zero_oom *oom);
bool zero_oom_grew(struct zero_oom *oom); /* in the last half minute */

/* ---- signals.c ------------------------------------------------------------------------------- */

uint32_t zero_ring_signals(void);
void zero_ring_catch_signals(void);
void zero_ring_give_signals_back(void);

#endif

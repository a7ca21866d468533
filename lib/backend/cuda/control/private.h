/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the control channel share. */
#ifndef ZERO_CONTROL_PRIVATE_H
#define ZERO_CONTROL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "control.h"
#include "core/clock.h"
#include "net/dial.h"

extern const struct zero_core *zero_core;

/*
 * Ten children a rank: teams of up to 11 ranks have one level below the root and those of up to
 * 1111 three. More children would save no level before 12 times as many ranks, and each costs its
 * parent a system call for every word.
 */
enum { ZERO_CONTROL_FANOUT = 10, ZERO_CONTROL_TEXT = 1024 };

/* ---- control_link.c: connections, what waits to be sent on them and to be asked for ---------- */

enum zero_frame_kind {
	ZERO_FRAME_CONFIRM = 1, /* the first one: the connecting rank goes with this connection */
	ZERO_FRAME_MAX,
	ZERO_FRAME_EXCHANGE,
	ZERO_FRAME_BROADCAST,
	ZERO_FRAME_LEFT, /* a rank that the team waits for has said farewell */
	ZERO_FRAME_BROKEN,
	ZERO_FRAME_BYE,
};

/* As it is sent; ranks of one job have one byte order. */
struct zero_frame_header {
	uint64_t team, bytes, sequence;
	uint32_t kind, unused;
};

/* Bytes that several frames may share. */
struct zero_payload {
	_Atomic size_t references;
	size_t bytes;
	uint8_t data[];
};

struct zero_frame {
	struct zero_frame *next;
	struct zero_frame_header header;
	struct zero_payload *payload; /* NULL if it has no bytes */
	size_t done;                  /* bytes that were sent, or of the payload have come */
};

struct zero_frames {
	struct zero_frame *first, **end;
};

/* What a team's frames from a neighbour are asked for by. */
enum zero_lane { ZERO_LANE_MAX, ZERO_LANE_DATA, ZERO_LANE_LEFT };

/* The connection to a neighbour. */
struct zero_link {
	struct zero_control *control;
	struct zero_link *next;
	int rank;
	char node[64];
	int fd;         /* -1 once it has ended; only the reader ends it */
	bool confirmed; /* both sides have chosen it; it is freed with the control alone */
	bool farewell;  /* the neighbour has closed its job */
	bool mute;      /* nothing more can be sent */
	struct zero_frames in, out;
	/* Of the reader alone: */
	struct zero_frame *arriving;
	size_t filled;
	uint8_t buffer[4096];
};

struct zero_control {
	/* Guards all that follows, teams too. Nobody waits for the network with it. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic uint64_t changes;
	struct zero_control_config config;
	struct zero_address own;
	struct zero_link *links;
	struct zero_control_team *teams, *all;
	struct zero_stranger *strangers; /* oldest first */
	size_t stranger_count;
	int listener, wakeup, connecting; /* the last: a connection that is being made */
	pthread_t reader;
	bool reading, joined, closing, stopping;
	atomic_bool broken;
	bool broken_told;
	int broken_rank;
	char broken_text[ZERO_CONTROL_TEXT];
	uint8_t cookie[16];
	/* See guard_forks. */
	bool forked;
	struct zero_control *next;
};

struct zero_payload *zero_payload_new(const void *data, size_t bytes); /* `data` may be NULL */
void zero_payload_put(struct zero_payload *payload);                   /* NULL is legal */
void zero_frame_free(struct zero_frame *frame);

struct zero_link *zero_link_new(struct zero_control *control, int fd, int rank, const char *node);
void zero_link_free(struct zero_link *link);
/* All of these with the lock. */
void zero_link_add(struct zero_link *link);
struct zero_link *zero_link_find(struct zero_control *control, int rank); /* a confirmed one */
void zero_link_keep(struct zero_link *link, struct zero_frame *frame); /* until it is asked for */
/* The first one that is kept, or NULL. */
struct zero_frame *zero_link_take(struct zero_link *link, uint64_t team, enum zero_lane lane);
/* One that is kept though it has the number of what goes on in `lane`, or NULL. */
const struct zero_frame *zero_link_astray(const struct zero_link *link, uint64_t team,
					  enum zero_lane lane, uint64_t sequence);
/* Never waits: what the connection does not take now, the reader sends later. */
void zero_link_post(struct zero_link *link, const struct zero_frame_header *header,
		    struct zero_payload *payload);
void zero_link_tell(struct zero_link *link); /* that it is over, or that this rank closes */
void zero_link_flush(struct zero_link *link);
void zero_link_drop(struct zero_link *link); /* what waits to be sent */

/* With the lock. Wakes all who wait. */
void zero_control_changed(struct zero_control *control);
/* With the lock, which is let go meanwhile. False: nothing has changed until `deadline`, if that is
   not 0. */
bool zero_control_wait(struct zero_control *control, double deadline);
void zero_control_wake(struct zero_control *control); /* the reader */
/* With the lock. Tells all neighbours but `from`, which may be NULL. */
void zero_control_fall_apart(struct zero_control *control, int rank, const char *text,
			     const struct zero_link *from);
/* The sentence of it, as this thread's error. */
zero_status zero_control_fail_broken(struct zero_control *control);
/* What this rank cannot do, and others would wait for, is the end for all. Without the lock. */
zero_status zero_control_give_up(struct zero_control *control, int rank, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- control_reader.c ------------------------------------------------------------------------ */

zero_status zero_control_start_reader(struct zero_control *control);
void zero_control_free_strangers(struct zero_control *control); /* with the lock, or alone */

/* ---- control_connect.c: how two ranks find that they are the right ones ---------------------- */

bool zero_control_welcome(const struct zero_control *control, const struct zero_hello *hello);
void zero_control_answer(const struct zero_control *control, struct zero_answer *answer);
/* Connects to a lower rank, until `deadline`. */
zero_status zero_control_connect(struct zero_control *control, int rank, double deadline,
				 struct zero_link **link);

/* ---- control_team.c: the tree ---------------------------------------------------------------- */

struct zero_control_team {
	struct zero_control *control;
	struct zero_control_team *next;
	uint64_t id;
	int *ranks;
	size_t count, self; /* its own index */
	/*
	 * A subtree is a range of indices, the first of which is its root: what it sends up is one
	 * piece of what all receive.
	 */
	size_t end; /* of the range that begins with `self` */
	size_t parent_index, child_count;
	struct zero_link *parent; /* NULL: this is index 0 */
	struct {
		struct zero_link *link;
		size_t first, end;
		bool heard; /* its values are among those of `max` */
	} child[ZERO_CONTROL_FANOUT];
	uint64_t sequence; /* of the last thing that was begun */
	/* The rank that has left although `waiter` needs it for number left_from. What came before
	   that is not lost: others may be late. */
	int left, waiter;
	uint64_t left_from; /* UINT64_MAX if there is none */
	struct {
		bool begun, passed, done;
		uint64_t sequence;
		size_t count;
		uint64_t values[ZERO_CONTROL_VALUES];
	} max;
};

/* With the lock. */
struct zero_control_team *zero_control_team_find(struct zero_control *control, uint64_t id);
/* What the team is told of a rank that has left. */
struct zero_left {
	int32_t rank, waiter;
	uint64_t from;
};
/* With the lock. Tells the team, but the neighbour that has said it, which may be NULL. */
void zero_control_left(struct zero_control_team *team, const struct zero_left *left,
		       const struct zero_link *said);
/* With the lock. The same, found out by this rank: it waits for the neighbour. */
void zero_control_missed(struct zero_control_team *team, const struct zero_link *link,
			 uint64_t sequence);
zero_status zero_control_fail_left(const struct zero_control_team *team);
void zero_control_free_team(struct zero_control_team *team);

/* ---- control_collective.c -------------------------------------------------------------------- */

/* With the lock. Does what can be done for the team's max with what has come by now. */
void zero_control_advance(struct zero_control_team *team);
#endif

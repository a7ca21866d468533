/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the control plane share. */
#ifndef ZERO_CONTROL_PRIVATE_H
#define ZERO_CONTROL_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <unistd.h>

#include "control.h"
#include "core/clock.h"
#include "net/dial.h"

extern const struct zero_core *zero_core;

/*
 * Each rank has up to ten children in the tree: teams of up to 11 ranks have one level below the
 * root, and teams of up to 1111 ranks have three. A larger fan-out would save no level below 12
 * times as many ranks, and costs the parent a system call for each child and message.
 */
enum { ZERO_CONTROL_FANOUT = 10, ZERO_CONTROL_TEXT = 1024 };

enum zero_frame_kind {
	ZERO_FRAME_CONFIRM = 1, /* the first frame: the dialling rank uses this connection */
	ZERO_FRAME_MAX,
	ZERO_FRAME_EXCHANGE,
	ZERO_FRAME_BROADCAST,
	ZERO_FRAME_DEPARTURE, /* a rank that the team waits for has closed its job */
	ZERO_FRAME_FAILURE,
	ZERO_FRAME_GOODBYE,
};

/* As sent. All ranks of a job have the same byte order. */
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
	size_t done;                  /* bytes sent so far, or payload bytes received so far */
};

struct zero_frames {
	struct zero_frame *first, **end;
};

/* A team's frames from one neighbour are read in order within each lane. */
enum zero_lane { ZERO_LANE_MAX, ZERO_LANE_DATA, ZERO_LANE_DEPARTURE };

/* The connection to a neighbour. */
struct zero_link {
	struct zero_control *control;
	struct zero_link *next;
	int rank;
	char node[64];
	int fd;                /* -1 once the connection has ended; only the reader ends it */
	bool confirmed;        /* both sides use it; such a link is freed with the control only */
	bool goodbye_received; /* the neighbour has closed its job */
	bool write_closed;     /* nothing more can be sent */
	struct zero_frames in, out;
	/* Only the reader uses these: */
	struct zero_frame *arriving;
	size_t filled;
	uint8_t buffer[4096];
};

/* An accepted connection that has not sent a whole hello yet. */
struct zero_pending_connection {
	struct zero_pending_connection *next;
	int fd;
	double deadline;
	size_t have; /* bytes of the hello */
	struct zero_hello hello;
};

struct zero_control {
	/* Guards everything below, teams included. No thread waits for the network with it. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic uint64_t changes;
	struct zero_control_config config;
	struct zero_address own;
	struct zero_link *links;
	struct zero_control_team *teams, *world_team;
	struct zero_pending_connection *pending; /* oldest first */
	size_t pending_count;
	int listener, wakeup;
	int connecting; /* a connection that this rank is making; -1 if none */
	pthread_t reader;
	bool reading, joined, closing, stopping;
	atomic_bool failed;
	bool failure_reported; /* to config.on_failure */
	zero_status failed_status;
	int failed_rank;
	char failure_text[ZERO_CONTROL_TEXT];
	uint8_t cookie[16];
	/* See fork.c. */
	bool forked;
	struct zero_control *next;
};

/* Closes *fd if it is open, and sets it to -1. */
static inline void zero_control_close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* ---- fork.c: processes that are forked from a rank ------------------------------------------- */

void zero_control_register(struct zero_control *control);
void zero_control_unregister(struct zero_control *control);

/* ---- link.c: connections, and failure of all of them ----------------------------------------- */

struct zero_payload *zero_payload_new(const void *data, size_t bytes); /* `data` may be NULL */
void zero_payload_put(struct zero_payload *payload);                   /* NULL is a no-op */
void zero_frame_free(struct zero_frame *frame);

struct zero_link *zero_link_new(struct zero_control *control, int fd, int rank, const char *node);
void zero_link_free(struct zero_link *link);

/* The functions from here to zero_link_close_write are called with the lock held. */

void zero_link_add(struct zero_link *link);
/* Returns the confirmed link to `rank`, or NULL. */
struct zero_link *zero_link_find(struct zero_control *control, int rank);
/* Stores a received frame until zero_link_pop returns it. */
void zero_link_store(struct zero_link *link, struct zero_frame *frame);
/* Removes and returns the first stored frame of the team and lane, or returns NULL. */
struct zero_frame *zero_link_pop(struct zero_link *link, uint64_t team, enum zero_lane lane);
/* Returns a stored frame that has this sequence number but is of another lane, or NULL. */
const struct zero_frame *zero_link_find_mismatched(const struct zero_link *link, uint64_t team,
						   enum zero_lane lane, uint64_t sequence);
/* Sends without waiting: the reader sends later what the connection does not take now. */
void zero_link_send(struct zero_link *link, const struct zero_frame_header *header,
		    struct zero_payload *payload);
/* Sends to a new neighbour that communication has failed, or that this rank closes. */
void zero_link_send_state(struct zero_link *link);
/* Sends what waits to be sent, as far as the connection takes it. */
void zero_link_flush(struct zero_link *link);
/* Drops what waits to be sent; nothing more is sent. */
void zero_link_close_write(struct zero_link *link);

/* Wakes all threads in zero_control_wait. Called with the lock held. */
void zero_control_notify(struct zero_control *control);
/* Releases the lock and waits for a notification. Returns false if `deadline`, unless it is 0,
   passed before one came. Called with the lock held. */
bool zero_control_wait(struct zero_control *control, double deadline);
void zero_control_wake_reader(struct zero_control *control);
/* Reports a failure to all neighbours but `from`, which may be NULL. Called with the lock held. */
void zero_control_fail_all_locked(struct zero_control *control, zero_status status, int rank,
				  const char *text, const struct zero_link *from);
/* Makes the sentence of the failure this thread's error. */
zero_status zero_control_failure(struct zero_control *control);
/* Fails on all ranks because this rank cannot do what the others would wait for. Called without
   the lock. */
zero_status zero_control_fail_all_printf(struct zero_control *control, int rank, const char *format,
					 ...) __attribute__((format(printf, 3, 4)));

/* ---- connect.c: connections that this rank makes --------------------------------------------- */

bool zero_control_hello_is_valid(const struct zero_control *control,
				 const struct zero_hello *hello);
void zero_control_fill_reply(const struct zero_control *control, struct zero_hello_reply *reply);
/* Connects to a lower rank, until `deadline`. */
zero_status zero_control_connect(struct zero_control *control, int rank, double deadline,
				 struct zero_link **link);

/* ---- accept.c: connections that other ranks make --------------------------------------------- */

/* Accepts the connections that wait on the listener. Returns false if the process has no file
   descriptor or memory for another one now. */
bool zero_control_accept(struct zero_control *control);
/* The functions below are called with the lock held. */

/* Reads what has come of a hello; a whole one turns the connection into a link, or rejects it. */
void zero_control_read_pending(struct zero_control *control,
			       struct zero_pending_connection *pending);
/* Rejects the pending connections whose deadline is at or before `now`. */
void zero_control_reject_pending(struct zero_control *control, double now);

/* ---- reader.c: the thread that reads all connections ----------------------------------------- */

zero_status zero_control_start_reader(struct zero_control *control);

/* ---- team.c: a tree of connections over some of the ranks ------------------------------------ */

struct zero_control_team {
	struct zero_control *control;
	struct zero_control_team *next;
	uint64_t id;
	int *ranks;
	size_t count, self; /* self: this rank's index */
	/*
	 * A subtree is a range of indices, and the first index is its root. A rank therefore sends
	 * its subtree's part of an exchange as one piece.
	 */
	size_t end; /* of the range that begins at `self` */
	size_t parent_index, child_count;
	struct zero_link *parent; /* NULL: this is index 0 */
	struct {
		struct zero_link *link;
		size_t first, end;
		bool received; /* the child's values are included in `max` */
	} child[ZERO_CONTROL_FANOUT];
	uint64_t sequence; /* number of the operation that began last */
	/* departed_rank has closed its job although `waiter` needs it for operation departed_from.
	   Earlier operations may still complete: other ranks may be late. */
	int departed_rank, waiter;
	uint64_t departed_from; /* UINT64_MAX if no such rank is known */
	struct {
		bool begun, sent_up, done;
		uint64_t sequence;
		size_t count;
		uint64_t values[ZERO_CONTROL_VALUES];
	} max;
};

/* Called with the lock held. */
struct zero_control_team *zero_control_team_find(struct zero_control *control, uint64_t id);
void zero_control_team_free(struct zero_control_team *team);

/* ---- departure.c: a rank closes its job while its team waits for it -------------------------- */

/* The first two are called with the lock held. */

/* Handles and frees a frame of kind ZERO_FRAME_DEPARTURE. */
void zero_control_receive_departure(struct zero_control_team *team, const struct zero_link *from,
				    struct zero_frame *frame);
/* Reports that this rank waits in operation `sequence` for a neighbour that has closed its job. */
void zero_control_report_departure(struct zero_control_team *team, const struct zero_link *link,
				   uint64_t sequence);
/* Makes the team's departure this thread's error. */
zero_status zero_control_departure_error(const struct zero_control_team *team);

/* ---- collective.c ---------------------------------------------------------------------------- */

/* Advances the team's maximum as far as the received frames allow. Called with the lock held. */
void zero_control_advance_max(struct zero_control_team *team);

#endif

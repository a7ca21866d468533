/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the network share. */
#ifndef ZERO_NET_INTERNAL_H
#define ZERO_NET_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "core/clock.h"
#include "core/error.h"
#include "dial.h"
#include "link.h"
#include "net.h"

/*
 * Each rank has up to ten children in the tree: teams of up to 11 ranks have one level below the
 * root, and teams of up to 1111 ranks have three. A larger fan-out would save no level below 12
 * times as many ranks, and costs the parent a system call for each child and message.
 */
enum { ZERO_NET_FANOUT = 10, ZERO_NET_TEXT = 1024, ZERO_NET_PENDING = 64 };
/* In the place of a failure's status: ZERO_E_COMM, and a rank is lost. */
enum { ZERO_NET_LOST = -1 };

enum zero_frame_kind {
	ZERO_FRAME_CONFIRM = 1, /* the first frame: the dialling rank uses this connection */
	ZERO_FRAME_UP,          /* a child's part of a collective */
	ZERO_FRAME_DOWN,        /* its result, from the parent */
	ZERO_FRAME_WATCH,       /* for the watchdog: see link.h */
	ZERO_FRAME_FAILURE,
	ZERO_FRAME_GOODBYE,
};

enum zero_collective { ZERO_MAX = 1, ZERO_ALLGATHER, ZERO_BROADCAST };

/* As sent. All ranks of a job have the same byte order. */
struct zero_frame_header {
	uint64_t bytes; /* that follow */
	uint32_t kind, collective;
	uint64_t team, sequence, size; /* of the collective, as its caller gave it */
};

struct zero_frame {
	struct zero_frame *next;
	struct zero_frame_header header;
	uint8_t data[];
};

/* The connection to a neighbour. */
struct zero_link {
	struct zero_net *net;
	struct zero_link *next;
	int rank;
	char node[64];
	_Atomic int fd;     /* -1 once the connection has ended; only the thread ends it */
	bool confirmed;     /* both sides use it; such a link is freed with the network only */
	bool goodbye;       /* the neighbour has closed its job */
	double received_at; /* the last bytes; see zero_seconds */
	struct zero_frame *frames; /* that were received and not taken yet, the first one first */
	/* What arrives. */
	struct zero_frame_header header;
	struct zero_frame *arriving;
	size_t have; /* bytes of the header, or of `arriving` */
	/* Bytes that the socket did not accept yet. A notice that a signal handler sends must not
	   come between them. */
	uint8_t *out;
	_Atomic size_t out_bytes;
	size_t out_capacity;
};

/* An accepted connection that has not sent a whole hello yet. */
struct zero_pending_connection {
	int fd; /* -1: unused */
	double accepted_at;
	size_t have; /* bytes of the hello */
	struct zero_hello hello;
};

struct zero_net {
	/* Guards everything below, teams included. No thread waits for the network with it. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic uint64_t changes;
	struct zero_net_config config;
	struct zero_address own;
	struct zero_link *links;
	struct zero_net_team *teams;
	struct zero_pending_connection pending[ZERO_NET_PENDING];
	double accept_at; /* no connection is accepted before: there was no descriptor for it */
	_Atomic int listener, wakeup;
	_Atomic int connecting; /* a connection that this rank is making; -1 if none */
	struct zero_net_user *users;
	const struct zero_net_user *polling; /* the one that is called */
	pthread_t thread;
	bool joined, has_thread, closing, stopping;
	atomic_bool failed;
	zero_status failed_status;
	int failed_rank;
	bool lost; /* a rank has ended without a goodbye; told to the others with the failure */
	char failure_text[ZERO_NET_TEXT];
	uint8_t cookie[16];
};

/* Closes *fd if it is open, and sets it to -1. */
void zero_net_close_fd(_Atomic int *fd);

/* ---- net.c ----------------------------------------------------------------------------------- */

/* Wakes all threads in zero_net_wait. Called with the lock held, as are the next two. */
void zero_net_notify(struct zero_net *net);
/* Releases the lock and waits for a notification. Returns false if `deadline`, unless it is 0,
   passed before one came. */
bool zero_net_wait(struct zero_net *net, double deadline);
/* Reports a failure to all neighbours but `from`, which may be NULL. */
void zero_net_fail_locked(struct zero_net *net, zero_status status, int rank,
			  const struct zero_link *from, const char *format, ...)
	__attribute__((format(printf, 5, 6)));
/* Sends to a new neighbour that communication has failed, or that this rank closes. */
void zero_net_send_state(struct zero_link *link);
/* Makes the sentence of the failure this thread's error. */
zero_status zero_net_failure(struct zero_net *net);
/* Fails on all ranks because this rank cannot do what the others would wait for. Called without
   the lock. */
zero_status zero_net_fail_all(struct zero_net *net, int rank, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* ---- link.c: all are called with the lock held ----------------------------------------------- */

/* Makes a link of a connection and adds it. NULL without memory: the connection stays open. */
struct zero_link *zero_link_new(struct zero_net *net, int fd, int rank, const char *node);
void zero_link_free(struct zero_link *link);
/* Returns the confirmed link to `rank`, or NULL. */
struct zero_link *zero_link_find(struct zero_net *net, int rank);
/* Sends without waiting: the thread sends later what the connection does not take now. */
void zero_link_send(struct zero_link *link, const struct zero_frame_header *header,
		    const void *data);
/* Sends what waits to be sent, as far as the connection takes it. */
void zero_link_flush(struct zero_link *link);
/* Reads what has come, and handles each frame that is whole. The link may be gone then. */
void zero_link_read(struct zero_link *link);
/* The place of the first frame of that kind and team in link->frames; NULL: there is none. */
struct zero_frame **zero_link_frame(struct zero_link *link, uint32_t kind, uint64_t team);

/* ---- connect.c ------------------------------------------------------------------------------- */

/* Accepts what waits at the listener, and reads hellos. Called with the lock held. */
void zero_net_accept(struct zero_net *net);
void zero_net_read_pending(struct zero_net *net);
void zero_net_drop_pending(struct zero_net *net);

/* ---- thread.c -------------------------------------------------------------------------------- */

int zero_net_start_thread(struct zero_net *net);
/* What the thread does: polls, each of which waits for so long at most. A test polls without
   a thread. Returns the milliseconds until the next is due, or -1 if the thread is to end. */
int zero_net_poll(struct zero_net *net, int wait_ms);

/* ---- net_team.c: a tree of connections over some of the ranks -------------------------------- */

struct zero_net_team {
	struct zero_net *net;
	struct zero_net_team *next;
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
		bool received; /* the child's part is in `data` */
	} child[ZERO_NET_FANOUT];
	uint64_t sequence; /* number of the collective that began last */
	struct {
		bool begun, sent_up, done;
		enum zero_collective kind;
		size_t bytes, root;
		uint8_t *data; /* its result, of data_bytes */
		size_t data_bytes;
	} now; /* the collective under way */
};

struct zero_net_team *zero_net_team_find(struct zero_net *net, uint64_t id);
zero_status zero_net_team_new(struct zero_net *net, const int *ranks, size_t count,
			      struct zero_net_team **team);
void zero_net_team_free(struct zero_net_team *team);

/* ---- collective.c ---------------------------------------------------------------------------- */

/* Advances the team's collective as far as the received frames allow. Called with the lock held. */
void zero_net_advance(struct zero_net_team *team);
zero_status zero_net_begin_max(struct zero_net_team *team, const uint64_t *mine, size_t count);
zero_status zero_net_finish_max(struct zero_net_team *const *teams, size_t count, size_t *which,
				uint64_t *all);
zero_status zero_net_allgather(struct zero_net_team *team, const void *send, void *recv,
			       size_t bytes);
zero_status zero_net_broadcast(struct zero_net_team *team, void *data, size_t bytes, int root);

#endif

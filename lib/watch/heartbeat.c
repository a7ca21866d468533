/* SPDX-License-Identifier: Apache-2.0 */
/* What the watchdog does in each poll: it receives frames and sends a heartbeat every second. */
#include <string.h>

#include "watch_internal.h"

#define SOON 0.01 /* seconds */

#define CLOSE_DELAY 5.0 /* seconds by which a diagnosis may delay zero_close */

static double heartbeat_interval(const struct zero_ring *ring)
{
	double timeout = ring->config.heartbeat_timeout;

	return timeout < 4 ? timeout / 4 : 1;
}

static void send_heartbeats(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_HEARTBEAT, .rank = ring->config.rank};

	zero_ring_own_activity(ring, &frame.activity);
	for (int i = 0; i < 2; i++) {
		zero_ring_send(&ring->link[i], &frame);
		zero_oom_read(ring->oom[i]);
	}
}

static void handle_frame(struct zero_ring *ring, struct zero_ring_link *link)
{
	const struct zero_ring_frame *frame = &link->in;

	if (link->state == ZERO_PEER_SILENT)
		link->state = ZERO_PEER_ALIVE;
	switch (frame->kind) {
	case ZERO_RING_HEARTBEAT:
		link->activity = frame->activity;
		link->activity_at = zero_seconds();
		break;
	case ZERO_RING_GOODBYE:
		zero_ring_set_state(link, ZERO_PEER_CLOSED, 0);
		break;
	case ZERO_RING_EXIT_NOTICE:
		zero_ring_set_state(link, ZERO_PEER_EXITED, frame->value);
		break;
	case ZERO_RING_SIGNAL_NOTICE:
		zero_ring_set_state(link, ZERO_PEER_SIGNALED, frame->value);
		break;
	case ZERO_RING_QUERY:
		zero_ring_handle_query(ring, link, frame);
		break;
	case ZERO_RING_REPLY:
		zero_ring_handle_reply(ring, link, frame);
		break;
	case ZERO_RING_FAULT:
		zero_ring_handle_fault(ring, link, frame);
		break;
	case ZERO_RING_ALL_WAIT:
		zero_ring_handle_all_wait(ring, frame);
		break;
	case ZERO_RING_DEADLOCK:
		zero_ring_handle_deadlock(ring, frame);
		break;
	}
}

void zero_ring_set_state(struct zero_ring_link *link, enum zero_peer_state state, int value)
{
	bool better = link->state == ZERO_PEER_ALIVE || link->state == ZERO_PEER_SILENT ||
		      (link->state == ZERO_PEER_EXITED && state == ZERO_PEER_CLOSED);

	if (!better)
		return;
	link->state = state;
	link->value = value;
	link->state_since = zero_seconds();
}

void zero_ring_send(struct zero_ring_link *link, const struct zero_ring_frame *frame)
{
	/* zero_close sends the goodbye while a poll may see the connection end. */
	struct zero_link *to = link->to;

	if (to)
		zero_link_send_watch(to, frame, sizeof(*frame));
}

static bool receive(struct zero_ring_link *link)
{
	double at;
	bool got = zero_link_take_watch(link->to, &link->in, sizeof(link->in), &at);

	/* After a suspension it counts from then. */
	if (at > link->received_at)
		link->received_at = at;
	return got;
}

/* Everything is read before a state is judged: a later frame explains more. */
static void receive_all(struct zero_ring *ring, struct zero_ring_link *link)
{
	bool ended = link->to && zero_link_has_ended(link->to);

	while (link->to && receive(link))
		handle_frame(ring, link);
	if (!ended)
		return;
	link->to = NULL;
	zero_ring_set_state(link, ZERO_PEER_DISCONNECTED, 0);
	/* The time of an exiting rank counts from the end of its connection. */
	if (link->state == ZERO_PEER_EXITED)
		link->state_since = zero_seconds();
}

static bool is_stopping(struct zero_ring *ring)
{
	bool stopping;

	pthread_mutex_lock(&ring->lock);
	stopping = ring->stopping;
	pthread_mutex_unlock(&ring->lock);
	return stopping;
}

/* Ranks with GPUs see a lost rank by connections of their own too, so that zero_close may be called
   before the message is printed. */
static bool is_diagnosing(const struct zero_ring *ring)
{
	bool diagnosing = ring->inquiry.active;

	for (int i = 0; i < 2; i++)
		diagnosing |= ring->link[i].state == ZERO_PEER_DISCONNECTED ||
			      ring->link[i].state == ZERO_PEER_SIGNALED ||
			      ring->link[i].state == ZERO_PEER_SILENT;
	return diagnosing && ring->config.aborts && !ring->reported &&
	       atomic_load(&ring->watching) && !atomic_load(&ring->terminating);
}

static double wait_of(const struct zero_ring *ring, bool soon, double now)
{
	double wait = soon ? SOON : ring->next_heartbeat_at - now;

	return wait > 0 ? wait : 0;
}

static void set_stopped(struct zero_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->stopped = true;
	pthread_cond_broadcast(&ring->changed);
	pthread_mutex_unlock(&ring->lock);
}

double zero_ring_poll(void *context)
{
	struct zero_ring *ring = context;
	bool stopping = is_stopping(ring), soon;
	double now = zero_seconds(), wait;

	zero_ring_detect_suspension(ring, now);
	/* While ranks still join, no connection is missed. */
	for (int i = 0; i < 2 && atomic_load(&ring->watching); i++)
		receive_all(ring, &ring->link[i]);
	if (now >= ring->next_heartbeat_at) {
		send_heartbeats(ring);
		ring->next_heartbeat_at = now + heartbeat_interval(ring);
	}
	soon = zero_ring_diagnose(ring, now) || stopping;
	atomic_store(&ring->has_peers, ring->link[0].to || ring->link[1].to);
	/* One whole poll has read what had arrived when zero_close was called. */
	if (stopping && ring->stopping_at <= 0)
		ring->stopping_at = now;
	if (stopping && (!is_diagnosing(ring) || now > ring->stopping_at + CLOSE_DELAY))
		set_stopped(ring);
	wait = wait_of(ring, soon, now);
	ring->due_at = zero_seconds() + wait;
	return wait;
}

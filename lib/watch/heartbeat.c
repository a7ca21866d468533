/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog's thread: it receives frames and sends a heartbeat every second. */
#include <poll.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "core/thread.h"
#include "private.h"

enum { SOON_MS = 10 };

#define CLOSE_DELAY 5.0 /* seconds by which a diagnosis may delay zero_close */

void zero_ring_wake(struct zero_ring *ring)
{
	uint64_t one = 1;
	int fd = atomic_load(&ring->wakeup);

	/* A write fails only if the counter is full, and then poll returns too. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return;
}

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

static bool is_joining(const struct zero_ring *ring)
{
	return atomic_load(&ring->listener) >= 0;
}

static size_t fill_polls(struct zero_ring *ring, struct pollfd *polls)
{
	size_t count = 0;

	polls[count++] = (struct pollfd){.fd = atomic_load(&ring->wakeup), .events = POLLIN};
	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];

		polls[count++] =
			(struct pollfd){.fd = atomic_load(&link->fd),
					.events = link->out_bytes ? POLLIN | POLLOUT : POLLIN};
	}
	if (!is_joining(ring))
		return count;
	polls[count++] = (struct pollfd){.fd = atomic_load(&ring->listener), .events = POLLIN};
	for (int i = 0; i < ZERO_RING_PENDING; i++)
		if (ring->pending[i].fd >= 0)
			polls[count++] =
				(struct pollfd){.fd = ring->pending[i].fd, .events = POLLIN};
	return count;
}

/* All ranks have joined, so that a neighbour without a connection was there and is gone. */
static void finish_joining(struct zero_ring *ring)
{
	zero_ring_stop_listening(ring);
	ring->next_heartbeat_at = 0;
	for (int i = 0; i < 2; i++)
		if (atomic_load(&ring->link[i].fd) < 0)
			zero_ring_set_state(&ring->link[i], ZERO_PEER_DISCONNECTED, 0);
}

static void poll_once(struct zero_ring *ring, int wait_ms)
{
	struct pollfd polls[4 + ZERO_RING_PENDING];
	size_t count = fill_polls(ring, polls);
	uint64_t wakes;

	if (poll(polls, count, wait_ms) > 0 && polls[0].revents &&
	    read(polls[0].fd, &wakes, sizeof(wakes)) < 0)
		wakes = 0;
	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];

		/* Everything is read before a state is judged: a later frame explains more. */
		while (zero_ring_receive(ring, link))
			handle_frame(ring, link);
		if (link->out_bytes)
			zero_ring_flush(link);
	}
	if (is_joining(ring) && atomic_load(&ring->watching)) {
		finish_joining(ring);
	} else if (is_joining(ring)) {
		zero_ring_read_pending(ring);
		zero_ring_accept(ring);
	}
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

int zero_ring_wait_ms(struct zero_ring *ring)
{
	int wait_ms =
		ring->soon ? SOON_MS : (int)(1e3 * (ring->next_heartbeat_at - zero_seconds())) + 1;

	if (is_stopping(ring))
		return ring->stopping_at > 0 ? SOON_MS : 0;
	return wait_ms < 0 ? 0 : wait_ms;
}

bool zero_ring_turn(struct zero_ring *ring, int wait_ms)
{
	bool stopping = is_stopping(ring);
	double now = zero_seconds();

	zero_ring_detect_suspension(ring, now, 0);
	poll_once(ring, wait_ms);
	now = zero_seconds();
	zero_ring_detect_suspension(ring, now, wait_ms);
	if (now >= ring->next_heartbeat_at) {
		send_heartbeats(ring);
		ring->next_heartbeat_at = now + heartbeat_interval(ring);
	}
	ring->soon = zero_ring_diagnose(ring, now);
	/* One whole turn has read what had arrived when zero_close was called. */
	if (stopping && ring->stopping_at <= 0)
		ring->stopping_at = now;
	return !stopping || (is_diagnosing(ring) && now <= ring->stopping_at + CLOSE_DELAY);
}

static void *watch_neighbours(void *context)
{
	struct zero_ring *ring = context;

	pthread_setname_np(pthread_self(), "zero-watch");
	ring->turn_at = ring->next_heartbeat_at = zero_seconds();
	while (zero_ring_turn(ring, zero_ring_wait_ms(ring)))
		continue;
	return NULL;
}

bool zero_ring_start_thread(struct zero_ring *ring)
{
	ring->has_thread = !zero_thread_start(&ring->thread, watch_neighbours, ring);
	return ring->has_thread;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The ring's thread: what comes on its connections, and a beat every second. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "watch_private.h"
#include "core/thread.h"

enum { SOON_MS = 10 };

/* Seconds. */
#define LATE    2.0
#define FINDING 5.0 /* a rank that closes goes on with what it has begun to find out */

void zero_ring_wake(struct zero_ring *ring)
{
	uint64_t one = 1;
	int fd = atomic_load(&ring->wakeup);

	/* A full counter wakes too. */
	if (fd >= 0 && write(fd, &one, sizeof(one)) < 0)
		return;
}

double zero_ring_beat(const struct zero_ring *ring)
{
	return ring->config.seconds < 4 ? ring->config.seconds / 4 : 1;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* Until all watch each other a rank may dial again. */
static void end_link(const struct zero_ring *ring, struct zero_ring_link *link)
{
	int fd = atomic_exchange(&link->fd, -1);

	if (fd >= 0)
		close(fd);
	link->out_bytes = 0;
	if (atomic_load(&ring->begun))
		zero_ring_set_fate(link, ZERO_FATE_GONE, 0);
	/* Those that leave have their time from here. */
	if (link->fate == ZERO_FATE_EXITED)
		link->since = zero_seconds();
}

/* An error is left to reading, after what the neighbour has said before. */
void zero_ring_flush(struct zero_ring_link *link)
{
	ssize_t sent = send(atomic_load(&link->fd), link->out, link->out_bytes,
			    MSG_NOSIGNAL | MSG_DONTWAIT);

	if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
		return;
	if (sent < 0)
		sent = (ssize_t)link->out_bytes;
	link->out_bytes -= (size_t)sent;
	memmove(link->out, link->out + sent, link->out_bytes);
	atomic_store(&link->clogged, link->out_bytes != 0);
}

static void keep(struct zero_ring_link *link, const char *data, size_t bytes)
{
	size_t need = link->out_bytes + bytes;
	char *room;

	if (need > link->out_room) {
		room = realloc(link->out, 2 * need);
		/* Half a frame may be under way: nothing can follow it. */
		if (!room) {
			shutdown(atomic_load(&link->fd), SHUT_WR);
			return;
		}
		link->out = room;
		link->out_room = 2 * need;
	}
	memcpy(link->out + link->out_bytes, data, bytes);
	link->out_bytes = need;
	atomic_store(&link->clogged, true);
}

void zero_ring_send(struct zero_ring_link *link, const struct zero_ring_frame *frame)
{
	int fd = atomic_load(&link->fd);
	ssize_t sent = 0;

	if (fd < 0)
		return;
	if (!link->out_bytes)
		sent = send(fd, frame, sizeof(*frame), MSG_NOSIGNAL | MSG_DONTWAIT);
	if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
		return;
	if (sent < 0)
		sent = 0;
	if ((size_t)sent < sizeof(*frame))
		keep(link, (const char *)frame + sent, sizeof(*frame) - (size_t)sent);
}

static void send_beats(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_BEAT, .rank = ring->config.rank};

	zero_ring_own_doing(ring, &frame.doing);
	for (int i = 0; i < 2; i++) {
		zero_ring_send(&ring->link[i], &frame);
		zero_oom_look(ring->oom[i]);
	}
}

/* ---- receiving ------------------------------------------------------------------------------- */

/* All that is there: what a neighbour said last counts most. */
static void read_link(struct zero_ring *ring, struct zero_ring_link *link)
{
	for (;;) {
		int fd = atomic_load(&link->fd);
		ssize_t got;

		if (fd < 0)
			return;
		got = recv(fd, (char *)&link->in + link->filled, sizeof(link->in) - link->filled,
			   MSG_DONTWAIT);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (got <= 0) {
			end_link(ring, link);
			return;
		}
		link->heard = zero_seconds();
		link->filled += (size_t)got;
		if (link->filled < sizeof(link->in))
			continue;
		link->filled = 0;
		zero_ring_hear(ring, link, &link->in);
	}
}

static bool joining(const struct zero_ring *ring)
{
	return atomic_load(&ring->listener) >= 0;
}

static size_t fill(struct zero_ring *ring, struct pollfd *polls)
{
	size_t count = 0;

	polls[count++] = (struct pollfd){.fd = atomic_load(&ring->wakeup), .events = POLLIN};
	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];

		polls[count++] =
			(struct pollfd){.fd = atomic_load(&link->fd),
					.events = link->out_bytes ? POLLIN | POLLOUT : POLLIN};
	}
	if (!joining(ring))
		return count;
	polls[count++] = (struct pollfd){.fd = atomic_load(&ring->listener), .events = POLLIN};
	for (int i = 0; i < ZERO_RING_STRANGERS; i++)
		if (ring->strangers[i].fd >= 0)
			polls[count++] =
				(struct pollfd){.fd = ring->strangers[i].fd, .events = POLLIN};
	return count;
}

static void serve_once(struct zero_ring *ring, int wait)
{
	struct pollfd polls[4 + ZERO_RING_STRANGERS];
	size_t count = fill(ring, polls);
	uint64_t wakes;

	if (poll(polls, count, wait) > 0 && polls[0].revents &&
	    read(polls[0].fd, &wakes, sizeof(wakes)) < 0)
		wakes = 0;
	for (int i = 0; i < 2; i++) {
		read_link(ring, &ring->link[i]);
		if (ring->link[i].out_bytes)
			zero_ring_flush(&ring->link[i]);
	}
	if (joining(ring) && atomic_load(&ring->begun)) {
		zero_ring_stop_listening(ring);
		ring->beat_at = 0;
		/* It was there when all had joined. */
		for (int i = 0; i < 2; i++)
			if (atomic_load(&ring->link[i].fd) < 0)
				zero_ring_set_fate(&ring->link[i], ZERO_FATE_GONE, 0);
	} else if (joining(ring)) {
		zero_ring_hear_strangers(ring);
		zero_ring_accept(ring);
	}
}

/* ---- the thread ------------------------------------------------------------------------------ */

/*
 * This process, or its machine, was stopped for a while, maybe all of the job: neighbours get their
 * time anew, and it counts as no time in an operation. `wait` (ms) is what the turn could last.
 */
static void forgive(struct zero_ring *ring, double now, int wait)
{
	double late = ring->config.seconds < 2 * LATE ? ring->config.seconds / 2 : LATE;

	double gap = now - ring->turn_at - 1e-3 * wait;

	if (gap <= late)
		return;
	ring->slept += gap;
	ring->woke_at = now;
	for (int i = 0; i < 2; i++)
		ring->link[i].heard = now;
}

/* A suspension before the last one counts too, though maybe of an earlier operation. */
void zero_ring_own_doing(const struct zero_ring *ring, struct zero_doing *doing)
{
	double before;

	ring->config.doing(ring->config.context, doing);
	/* What of it was before the last awakening. */
	before = (double)doing->seconds - (zero_seconds() - ring->woke_at);
	if (!doing->under_way || before <= 0)
		return;
	doing->seconds -= (float)(before < ring->slept ? before : ring->slept);
}

static bool is_stopping(struct zero_ring *ring)
{
	bool stopping;

	pthread_mutex_lock(&ring->lock);
	stopping = ring->stopping;
	pthread_mutex_unlock(&ring->lock);
	return stopping;
}

/* Ranks with GPUs hear of a lost one by their own connections, and may close before it is named. */
static bool is_finding(const struct zero_ring *ring)
{
	bool finding = ring->inquiry.active;

	for (int i = 0; i < 2; i++)
		finding |= ring->link[i].fate == ZERO_FATE_GONE ||
			   ring->link[i].fate == ZERO_FATE_DIED ||
			   ring->link[i].fate == ZERO_FATE_SILENT;
	return finding && ring->config.aborts && !ring->told && atomic_load(&ring->begun) &&
	       !atomic_load(&ring->terminating);
}

static void *serve(void *context)
{
	struct zero_ring *ring = context;
	double stopping_at = 0;
	bool soon = false;

	pthread_setname_np(pthread_self(), "zero-watch");
	ring->turn_at = ring->beat_at = zero_seconds();
	for (;;) {
		bool stopping = is_stopping(ring);
		double now = zero_seconds();
		int wait = soon ? SOON_MS : (int)(1e3 * (ring->beat_at - now)) + 1;

		if (wait < 0 || stopping)
			wait = stopping && stopping_at > 0 ? SOON_MS : 0;
		forgive(ring, now, 0);
		ring->turn_at = now;
		serve_once(ring, wait);
		now = zero_seconds();
		forgive(ring, now, wait);
		ring->turn_at = now;
		if (now >= ring->beat_at) {
			send_beats(ring);
			ring->beat_at = now + zero_ring_beat(ring);
		}
		soon = zero_ring_look(ring, now);
		/* A whole turn: what was there when it was stopped has been read. */
		if (stopping && stopping_at <= 0)
			stopping_at = now;
		if (stopping && (!is_finding(ring) || now > stopping_at + FINDING))
			return NULL;
	}
}

bool zero_ring_start(struct zero_ring *ring)
{
	ring->running = !zero_thread_start(&ring->thread, serve, ring);
	return ring->running;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who finds a rank lost, and what the others are doing then. The rank after a lost one finds it; if
 * that is silent too, the one before it does a little later. The question travels from rank to rank
 * away from the break, and each answers before it passes it on, so that the answer of the last one
 * comes last.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "watch_private.h"

/* Seconds. */
#define ANSWER 1.0  /* for all answers */
#define ENDING 0.15 /* for them, and for finding out, once a launcher ends this rank */
#define LATER  1.5  /* that the rank before a lost one waits for the one after it */
#define EXIT   1.0  /* those who exit together have */
#define TERM   2.0  /* a launcher that ends all ranks has */
#define END    2.0  /* the launcher has to end this process */
#define STALLS 0.05 /* a rank: the lowest one speaks */

void zero_ring_set_fate(struct zero_ring_link *link, enum zero_fate fate, int value)
{
	bool better = link->fate == ZERO_FATE_HERE || link->fate == ZERO_FATE_SILENT ||
		      (link->fate == ZERO_FATE_EXITED && fate == ZERO_FATE_CLOSED);

	if (!better)
		return;
	link->fate = fate;
	link->value = value;
	link->since = zero_seconds();
}

static bool is_end_signal(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP;
}

/* ---- what comes ------------------------------------------------------------------------------ */

static bool stronger(const struct zero_inquiry *mine, int rank, const struct zero_ring_frame *frame)
{
	bool stalled = mine->fate == ZERO_FATE_STALLED;

	if (stalled != (frame->fate == ZERO_FATE_STALLED))
		return !stalled;
	return rank < frame->finder;
}

static void hear_query(struct zero_ring *ring, struct zero_ring_link *link,
		       const struct zero_ring_frame *frame)
{
	struct zero_ring_link *next = zero_ring_other(ring, link);
	struct zero_ring_frame reply = {.kind = ZERO_RING_REPLY,
					.finder = frame->finder,
					.rank = ring->config.rank,
					.at_end = -1};
	bool goes_on = next->fate == ZERO_FATE_HERE && next->rank != frame->finder;

	if (ring->told || frame->finder == ring->config.rank)
		return;
	if (ring->inquiry.active && stronger(&ring->inquiry, ring->config.rank, frame))
		return;
	ring->inquiry.active = false;
	ring->deferred_until = zero_seconds() + LATER;
	zero_ring_own_doing(ring, &reply.doing);
	if (!goes_on) {
		reply.at_end = next->rank;
		reply.fate = (int32_t)next->fate;
		reply.value = next->value;
	}
	zero_ring_send(link, &reply);
	if (goes_on)
		zero_ring_send(next, frame);
}

static void hear_reply(struct zero_ring *ring, struct zero_ring_link *link,
		       const struct zero_ring_frame *frame)
{
	struct zero_inquiry *inquiry = &ring->inquiry;

	if (frame->finder != ring->config.rank) {
		zero_ring_send(zero_ring_other(ring, link), frame);
		return;
	}
	if (!inquiry->active || frame->rank < 0 || frame->rank >= ring->config.world)
		return;
	if (!inquiry->there[frame->rank])
		inquiry->count++;
	inquiry->there[frame->rank] = true;
	inquiry->doing[frame->rank] = frame->doing;
	if (frame->at_end < 0)
		return;
	inquiry->complete = true;
	if (frame->fate != ZERO_FATE_HERE && frame->fate != ZERO_FATE_CLOSED)
		inquiry->end = frame->at_end;
}

/* A launcher's SIGTERM does not reach a process that is stopped, and its SIGKILL may come late. */
static void kill_silent(const struct zero_ring *ring, enum zero_fate fate, int rank)
{
	const struct zero_ring_rank *peer = &ring->all[rank];
	struct zero_process found;

	if (ring->config.aborts && fate == ZERO_FATE_SILENT && zero_ring_is_near(ring, peer) &&
	    zero_process_look((pid_t)peer->process, peer->began, &found))
		kill((pid_t)peer->process, SIGKILL);
}

/* The sentence is out; this process waits for its end. */
static void hear_fault(struct zero_ring *ring, struct zero_ring_link *link,
		       const struct zero_ring_frame *frame)
{
	if (ring->told || frame->rank < 0 || frame->rank >= ring->config.world)
		return;
	pthread_mutex_lock(&ring->lock);
	snprintf(ring->text, sizeof(ring->text), "%.*s", (int)sizeof(frame->text) - 1, frame->text);
	ring->lost_rank = frame->rank;
	ring->told = true;
	pthread_mutex_unlock(&ring->lock);
	ring->told_at = zero_seconds();
	ring->inquiry.active = false;
	zero_ring_send(zero_ring_other(ring, link), frame);
	kill_silent(ring, frame->fate, frame->rank);
	atomic_store(&ring->settled, true);
}

void zero_ring_hear(struct zero_ring *ring, struct zero_ring_link *link,
		    const struct zero_ring_frame *frame)
{
	if (link->fate == ZERO_FATE_SILENT)
		link->fate = ZERO_FATE_HERE;
	switch (frame->kind) {
	case ZERO_RING_BEAT:
		link->doing = frame->doing;
		link->doing_at = zero_seconds();
		break;
	case ZERO_RING_CLOSED:
		zero_ring_set_fate(link, ZERO_FATE_CLOSED, 0);
		break;
	case ZERO_RING_EXITED:
		zero_ring_set_fate(link, ZERO_FATE_EXITED, frame->value);
		break;
	case ZERO_RING_DYING:
		zero_ring_set_fate(link, ZERO_FATE_DIED, frame->value);
		break;
	case ZERO_RING_QUERY:
		hear_query(ring, link, frame);
		break;
	case ZERO_RING_REPLY:
		hear_reply(ring, link, frame);
		break;
	case ZERO_RING_FAULT:
		hear_fault(ring, link, frame);
		break;
	}
}

/* A process of this node that is not stopped is kept from its beats by others; it is waited for as
   long as a slow one. */
static bool is_alive(const struct zero_ring *ring, const struct zero_ring_link *link, double now)
{
	const struct zero_ring_rank *peer = &ring->all[link->rank];
	struct zero_process found;

	return zero_ring_is_near(ring, peer) && atomic_load(&link->fd) >= 0 &&
	       (ring->config.stall <= 0 || now < link->heard + ring->config.stall) &&
	       zero_process_look((pid_t)peer->process, peer->began, &found) &&
	       !strchr("TtZXx", found.state);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask(struct zero_ring *ring, enum zero_fate fate, int rank, int value,
		struct zero_ring_link *away)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	struct zero_ring_frame frame = {.kind = ZERO_RING_QUERY,
					.finder = ring->config.rank,
					.rank = rank,
					.fate = (int32_t)fate,
					.value = value};
	int self = ring->config.rank;

	inquiry->active = true;
	inquiry->complete = away->fate != ZERO_FATE_HERE || away->rank == rank;
	inquiry->fate = fate;
	inquiry->rank = rank;
	inquiry->value = value;
	inquiry->began = zero_seconds();
	inquiry->end = inquiry->complete && away->rank != rank && away->fate != ZERO_FATE_CLOSED
			       ? away->rank
			       : -1;
	memset(inquiry->there, 0, (size_t)ring->config.world * sizeof(*inquiry->there));
	inquiry->there[self] = true;
	inquiry->count = 1;
	zero_ring_own_doing(ring, &inquiry->doing[self]);
	if (!inquiry->complete)
		zero_ring_send(away, &frame);
}

/* Whether what was asked about is still so, or worse: a rank may have come back meanwhile. */
static bool still_holds(struct zero_ring *ring)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	bool prev = ring->link[ZERO_PREV].rank == inquiry->rank;
	struct zero_ring_link *link = &ring->link[prev ? ZERO_PREV : ZERO_NEXT];
	const struct zero_doing *asked = &inquiry->doing[ring->config.rank];
	struct zero_doing doing;

	if (inquiry->fate == ZERO_FATE_STALLED) {
		zero_ring_own_doing(ring, &doing);
		return doing.under_way && doing.number == asked->number;
	}
	if (link->fate == ZERO_FATE_SILENT && is_alive(ring, link, zero_seconds()))
		link->fate = ZERO_FATE_HERE;
	if (link->fate == inquiry->fate)
		return true;
	/* Of those that exit something is said later, if at all. */
	if (link->fate != ZERO_FATE_GONE && link->fate != ZERO_FATE_DIED)
		return false;
	inquiry->fate = link->fate;
	inquiry->value = link->value;
	return true;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static void *end_job(void *context)
{
	struct zero_ring *ring = context;

	ring->config.abort(ring->config.context, ring->text);
	return NULL;
}

static void conclude(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_FAULT,
					.finder = ring->config.rank,
					.rank = ring->inquiry.rank,
					.fate = (int32_t)ring->inquiry.fate};
	char line[4096];
	pthread_t thread;

	pthread_mutex_lock(&ring->lock);
	zero_ring_line(ring, line, sizeof(line));
	ring->lost_rank = ring->inquiry.rank;
	ring->told = true;
	pthread_mutex_unlock(&ring->lock);
	if (ring->config.aborts && write(ring->config.out, line, strlen(line)) < 0)
		line[0] = '\0';
	ring->inquiry.active = false;
	ring->told_at = zero_seconds();
	snprintf(frame.text, sizeof(frame.text), "%s", ring->text);
	for (int i = 0; i < 2; i++)
		zero_ring_send(&ring->link[i], &frame);
	if (!ring->config.aborts)
		return;
	kill_silent(ring, ring->inquiry.fate, ring->inquiry.rank);
	if (pthread_create(&thread, NULL, end_job, ring))
		end_job(ring);
	else
		pthread_detach(thread);
	atomic_store(&ring->settled, true);
}

/* ---- what is to be done ---------------------------------------------------------------------- */

/* When something is to be said of a neighbour; 0: never. */
static double speak_at(const struct zero_ring *ring, const struct zero_ring_link *link)
{
	bool is_next = link == &ring->link[ZERO_NEXT] && ring->config.world > 2;
	bool ends = atomic_load(&ring->terminating);
	double at = link->since + (is_next ? LATER : 0);

	switch (link->fate) {
	case ZERO_FATE_SILENT:
	case ZERO_FATE_GONE:
		break;
	case ZERO_FATE_EXITED:
		/* What is run at exit may take long, and close the job after all. */
		if (atomic_load(&link->fd) >= 0)
			at += link->heard + ring->config.seconds - link->since;
		else
			at += ends && !is_next ? 0 : EXIT;
		break;
	case ZERO_FATE_DIED:
		at += is_end_signal(link->value) ? TERM : 0;
		break;
	default:
		return 0;
	}
	/* Who goes now is ended by a launcher, as this rank is. */
	if (ends && link->since > ring->terminated_at + ENDING)
		return 0;
	return at;
}

static void look_for_silence(struct zero_ring *ring, double now)
{
	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];

		if (link->fate == ZERO_FATE_HERE && now > link->heard + ring->config.seconds &&
		    !is_alive(ring, link, now))
			zero_ring_set_fate(link, ZERO_FATE_SILENT, 0);
	}
}

/* Those that wait notice at the same time. */
static bool is_stalled(struct zero_ring *ring)
{
	int place = ring->config.rank < 40 ? ring->config.rank : 40;
	struct zero_doing doing;

	if (ring->config.stall <= 0)
		return false;
	zero_ring_own_doing(ring, &doing);
	return doing.under_way && (double)doing.seconds > ring->config.stall + STALLS * place;
}

static bool begin_inquiry(struct zero_ring *ring, double now)
{
	bool soon = false;

	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];
		double at = speak_at(ring, link);

		if (at > 0 && now >= at) {
			ask(ring, link->fate, link->rank, link->value, zero_ring_other(ring, link));
			return true;
		}
		soon |= at > 0;
	}
	if (is_stalled(ring)) {
		struct zero_ring_link *away = &ring->link[ZERO_NEXT];

		if (away->fate != ZERO_FATE_HERE)
			away = &ring->link[ZERO_PREV];
		ask(ring, ZERO_FATE_STALLED, ring->config.rank, 0, away);
		return true;
	}
	return soon;
}

/* The launcher did not end it. */
static void end_self(struct zero_ring *ring, double now)
{
	if (ring->config.aborts && now > ring->told_at + END)
		kill(getpid(), SIGKILL);
}

bool zero_ring_look(struct zero_ring *ring, double now)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	double until;

	if (!atomic_load(&ring->begun))
		return false;
	if (ring->told) {
		end_self(ring, now);
		return false;
	}
	if (atomic_load(&ring->terminating) && !ring->terminated_at)
		ring->terminated_at = now;
	look_for_silence(ring, now);
	if (!inquiry->active && now >= ring->deferred_until && !begin_inquiry(ring, now))
		return atomic_load(&ring->terminating);
	until = inquiry->began + ANSWER;
	if (ring->terminated_at && until > ring->terminated_at + ENDING)
		until = ring->terminated_at + ENDING;
	if (inquiry->active && (inquiry->complete || now >= until)) {
		inquiry->active = still_holds(ring);
		if (inquiry->active)
			conclude(ring);
	}
	return true;
}

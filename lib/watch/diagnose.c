/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether a neighbour is lost. The rank after a lost one finds it; if that one is silent
 * too, the rank before the lost one finds it a little later. The finder asks all ranks what they
 * are doing (inquiry.c), and ends the job if the neighbour is still lost then.
 */
#include <signal.h>

#include "watch_internal.h"

/* All in seconds. */
#define REPLY_TIMEOUT     1.0  /* for all replies */
#define ENDING_TIMEOUT    0.15 /* for diagnosis and replies, once the launcher ends this rank */
#define PREVIOUS_DELAY    1.5  /* by which the rank before a lost one waits for the one after it */
#define EXIT_DELAY        1.0  /* within which ranks that exit together have exited */
#define TERMINATION_DELAY 2.0  /* within which a launcher that terminates all ranks has done so */
#define ASK_INTERVAL      3.0  /* between questions whether ranks wait for one that has ended */
#define LONG_WAIT         3.0  /* for such a rank */
#define STALL_STAGGER     0.05 /* between ranks that see one stall, so that the lowest reports it */

/* A process of this node that runs or waits, but sends no heartbeats, gets the time of a stalled
   operation: other processes may keep it from running. */
static bool is_running(const struct zero_ring *ring, const struct zero_ring_link *link, double now)
{
	const struct zero_ring_peer *peer = &ring->all[link->rank];
	double stall = ring->config.stall_timeout;
	struct zero_process found;

	return zero_ring_is_local(ring, peer) && link->to &&
	       (stall <= 0 || now < link->received_at + stall) &&
	       zero_process_read((pid_t)peer->pid, peer->start_time, &found) &&
	       !strchr("TtZXx", found.state);
}

static void find_silent_peers(struct zero_ring *ring, double now)
{
	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];

		if (link->state == ZERO_PEER_ALIVE &&
		    now > link->received_at + ring->config.heartbeat_timeout &&
		    !is_running(ring, link, now))
			zero_ring_set_state(link, ZERO_PEER_SILENT, 0);
	}
}

static bool is_termination(int number)
{
	return number == SIGTERM || number == SIGINT || number == SIGHUP;
}

/* Returns the moment from which a neighbour counts as lost; 0: never in its present state. */
static double lost_at(const struct zero_ring *ring, const struct zero_ring_link *link)
{
	bool is_next = link == &ring->link[ZERO_NEXT] && ring->config.world > 2;
	bool terminating = atomic_load(&ring->terminating);
	double at = link->state_since + (is_next ? PREVIOUS_DELAY : 0);

	switch (link->state) {
	case ZERO_PEER_SILENT:
	case ZERO_PEER_DISCONNECTED:
		break;
	case ZERO_PEER_EXITED:
		if (ring->config.watch_only && !link->value)
			return 0;
		/* Functions that run at exit may take long, and may still call zero_close. */
		if (link->to && !ring->config.watch_only)
			at += link->received_at + ring->config.heartbeat_timeout -
			      link->state_since;
		else
			at += terminating && !is_next ? 0 : EXIT_DELAY;
		break;
	case ZERO_PEER_SIGNALED:
		at += is_termination(link->value) ? TERMINATION_DELAY : 0;
		break;
	default:
		return 0;
	}
	/* The launcher ends that rank, as it ends this one. */
	if (terminating && link->state_since > ring->terminating_at + ENDING_TIMEOUT)
		return 0;
	return at;
}

/* All ranks that wait see a stall at the same time, so that each gets a moment of its own. */
static bool is_stalled(const struct zero_ring *ring)
{
	int place = ring->config.rank < 40 ? ring->config.rank : 40;
	double limit = ring->config.stall_timeout + STALL_STAGGER * place;
	struct zero_activity activity;

	if (ring->config.stall_timeout <= 0)
		return false;
	zero_ring_own_activity(ring, &activity);
	return activity.running && (double)activity.seconds > limit;
}

/* ---- ranks that end while others work -------------------------------------------------------- */

static bool has_ended(const struct zero_ring *ring, const struct zero_ring_link *link)
{
	return ring->config.watch_only && link->state == ZERO_PEER_EXITED && !link->value &&
	       !link->to;
}

const struct zero_ring_link *zero_ring_ended(const struct zero_ring *ring)
{
	const struct zero_ring_link *first = NULL;

	for (int i = 0; i < 2; i++)
		if (has_ended(ring, &ring->link[i]) &&
		    (!first || ring->link[i].state_since < first->state_since))
			first = &ring->link[i];
	return first;
}

/* The others may well go on without a rank that has ended well. They are asked now and then whether
   they wait for it. */
static bool ask_whether_others_wait(struct zero_ring *ring, double now)
{
	const struct zero_ring_link *ended = zero_ring_ended(ring);

	if (!ended || now < ended->state_since + EXIT_DELAY || now < ring->next_ask_at)
		return false;
	ring->next_ask_at = now + ASK_INTERVAL;
	zero_ring_start_inquiry(ring, ZERO_PEER_EXITED, ended->rank, 0,
				zero_ring_other_link(ring, ended));
	return true;
}

static bool others_wait(const struct zero_ring *ring)
{
	const struct zero_inquiry *inquiry = &ring->inquiry;

	for (int rank = 0; rank < ring->config.world; rank++)
		if (inquiry->replied[rank] && (double)inquiry->activity[rank].waits > LONG_WAIT)
			return true;
	return false;
}

/* This process is to end, and does not: the others may be gone, so that it says so itself. */
static bool is_overdue(struct zero_ring *ring, double now)
{
	enum zero_ring_end end = atomic_load(&ring->exiting) ? ZERO_RING_EXITS : ZERO_RING_FINISHED;
	struct zero_activity activity;

	if (!atomic_load(&ring->ending) || ring->config.end_timeout <= 0 || !ring->config.aborts)
		return false;
	zero_ring_own_activity(ring, &activity);
	/* It may wait for another rank that does not end, in zero_close for one. */
	if (!ring->config.watch_only && (activity.running || *activity.call)) {
		ring->overdue = ZERO_RING_GOES_ON;
		return false;
	}
	if (ring->overdue != end) {
		ring->ending_at = now;
		ring->overdue = end;
	}
	return now > ring->ending_at + ring->config.end_timeout;
}

/* Starts an inquiry if there is a reason. Returns whether there is one or will be one soon. */
static bool find_reason(struct zero_ring *ring, double now)
{
	bool soon = false;

	for (int i = 0; i < 2; i++) {
		struct zero_ring_link *link = &ring->link[i];
		double at = lost_at(ring, link);

		if (at > 0 && now >= at) {
			zero_ring_start_inquiry(ring, link->state, link->rank, link->value,
						zero_ring_other_link(ring, link));
			return true;
		}
		soon |= at > 0;
	}
	if (ask_whether_others_wait(ring, now))
		return true;
	if (is_stalled(ring)) {
		struct zero_ring_link *away = zero_ring_onward(ring);

		if (away->state != ZERO_PEER_ALIVE)
			away = &ring->link[ZERO_PREV];
		zero_ring_start_inquiry(ring, ZERO_PEER_STALLED, ring->config.rank, 0, away);
		return true;
	}
	return soon;
}

/* Whether the reason for the inquiry still holds, since a rank may have resumed meanwhile. Takes
   over a state that explains more. */
static bool still_holds(struct zero_ring *ring)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	struct zero_ring_link *link = &ring->link[zero_ring_side(ring, inquiry->rank)];
	const struct zero_activity *asked = &inquiry->activity[ring->config.rank];
	struct zero_activity activity;

	if (inquiry->state == ZERO_PEER_DEADLOCKED) {
		zero_ring_judge_deadlock(ring);
		return false;
	}
	if (inquiry->state == ZERO_PEER_EXITED && ring->config.watch_only && !inquiry->value)
		return others_wait(ring);
	if (inquiry->state == ZERO_PEER_STALLED) {
		zero_ring_own_activity(ring, &activity);
		return activity.running && activity.operation == asked->operation;
	}
	if (link->state == ZERO_PEER_SILENT && is_running(ring, link, zero_seconds()))
		link->state = ZERO_PEER_ALIVE;
	if (link->state == inquiry->state)
		return true;
	/* For a rank that exits or closes the wait starts anew, see lost_at. */
	if (link->state != ZERO_PEER_DISCONNECTED && link->state != ZERO_PEER_SIGNALED)
		return false;
	inquiry->state = link->state;
	inquiry->value = link->value;
	return true;
}

bool zero_ring_diagnose(struct zero_ring *ring, double now)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	double until;

	if (!atomic_load(&ring->watching))
		return false;
	if (ring->reported) {
		zero_ring_enforce_end(ring, now);
		return false;
	}
	if (atomic_load(&ring->terminating) && !ring->terminating_at)
		ring->terminating_at = now;
	if (is_overdue(ring, now)) {
		ring->inquiry.state = ZERO_PEER_ENDING;
		ring->inquiry.rank = ring->config.rank;
		zero_ring_end_job(ring);
		return false;
	}
	if (atomic_load(&ring->departed))
		return false;
	find_silent_peers(ring, now);
	zero_ring_look_for_deadlock(ring, now);
	if (!inquiry->active && now >= ring->deferred_until && !find_reason(ring, now))
		return atomic_load(&ring->terminating);
	until = inquiry->began_at + REPLY_TIMEOUT;
	if (ring->terminating_at && until > ring->terminating_at + ENDING_TIMEOUT)
		until = ring->terminating_at + ENDING_TIMEOUT;
	if (inquiry->active && (inquiry->complete || now >= until)) {
		inquiry->active = still_holds(ring);
		if (inquiry->active)
			zero_ring_end_job(ring);
	}
	return true;
}

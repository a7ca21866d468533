/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks all ranks what they are doing. The query travels from rank to rank away from the lost one.
 * Each rank replies before it passes the query on, so that the reply of the last one comes last.
 */
#include "watch_internal.h"

#define DEFER 1.5 /* seconds for which a rank that was asked starts no inquiry of its own */

/* What this rank knows of ranks that have ended well. */
static void add_ended(const struct zero_ring *ring, int32_t *rank, int32_t *seconds)
{
	const struct zero_ring_link *ended = zero_ring_ended(ring);

	*rank = ended ? ended->rank : -1;
	*seconds = ended ? (int32_t)(zero_seconds() - ended->state_since) : 0;
}

/* So can a rank that has failed and stays to be asked, see exit_notice.c. */
static bool can_reply(const struct zero_ring *ring, const struct zero_ring_link *link)
{
	return link->state == ZERO_PEER_ALIVE ||
	       (ring->config.watch_only && link->state == ZERO_PEER_EXITED && link->value &&
		link->to);
}

void zero_ring_start_inquiry(struct zero_ring *ring, enum zero_peer_state state, int rank,
			     int value, struct zero_ring_link *away)
{
	struct zero_inquiry *inquiry = &ring->inquiry;
	struct zero_ring_frame frame = {.kind = ZERO_RING_QUERY,
					.finder = ring->config.rank,
					.rank = ring->config.rank,
					.state = (int32_t)state};
	int self = ring->config.rank;

	inquiry->active = true;
	inquiry->complete = !can_reply(ring, away) || away->rank == rank;
	inquiry->state = state;
	inquiry->rank = rank;
	inquiry->value = value;
	inquiry->began_at = zero_seconds();
	memset(inquiry->replied, 0, (size_t)ring->config.world * sizeof(*inquiry->replied));
	inquiry->replied[self] = true;
	inquiry->replies = 1;
	add_ended(ring, &inquiry->ended, &inquiry->ended_for);
	zero_ring_own_activity(ring, &inquiry->activity[self]);
	if (!inquiry->complete)
		zero_ring_send(away, &frame);
}

/* Whether this rank's inquiry goes on when another rank asks too: a lost rank comes before
   ranks that wait, and a low finder before a high one. */
static bool takes_precedence(const struct zero_ring *ring, const struct zero_ring_frame *query)
{
	bool lost = ring->inquiry.state < ZERO_PEER_STALLED;

	if (lost != (query->state < ZERO_PEER_STALLED))
		return lost;
	return ring->config.rank < query->finder;
}

void zero_ring_handle_query(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame)
{
	struct zero_ring_link *next = zero_ring_other_link(ring, link);
	bool last = !can_reply(ring, next) || next->rank == frame->finder;
	struct zero_ring_frame reply = {.kind = ZERO_RING_REPLY,
					.finder = frame->finder,
					.rank = ring->config.rank,
					.last = last};

	if (ring->reported || frame->finder == ring->config.rank)
		return;
	if (ring->inquiry.active && takes_precedence(ring, frame))
		return;
	ring->inquiry.active = false;
	ring->deferred_until = zero_seconds() + DEFER;
	add_ended(ring, &reply.value, &reply.state);
	zero_ring_own_activity(ring, &reply.activity);
	zero_ring_send(link, &reply);
	if (!last)
		zero_ring_send(next, frame);
}

void zero_ring_handle_reply(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame)
{
	struct zero_inquiry *inquiry = &ring->inquiry;

	if (frame->finder != ring->config.rank) {
		zero_ring_send(zero_ring_other_link(ring, link), frame);
		return;
	}
	if (!inquiry->active || frame->rank < 0 || frame->rank >= ring->config.world)
		return;
	if (!inquiry->replied[frame->rank])
		inquiry->replies++;
	inquiry->replied[frame->rank] = true;
	inquiry->activity[frame->rank] = frame->activity;
	if (frame->value >= 0 && frame->value < ring->config.world &&
	    (inquiry->ended < 0 || frame->state > inquiry->ended_for)) {
		inquiry->ended = frame->value;
		inquiry->ended_for = frame->state;
	}
	if (frame->last)
		inquiry->complete = true;
}

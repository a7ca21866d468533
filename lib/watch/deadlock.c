/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlocks between ranks that are all there: one waits in an operation of one team for ranks that
 * wait for it in another's. A rank that computes is not stuck, unless its device is: that does what
 * it was given in order, so an operation which it has not done is where it waits, whatever its host
 * does. Rank 0, while it waits, sends a frame around the ring, which every rank that has waited for
 * as long passes on. If it returns, rank 0 asks all ranks what they wait in.
 */
#include <stdio.h>

#include "watch_internal.h"

#define LONG_WAIT 3.0 /* seconds; more than an agreement takes to reach the last rank */

static bool waits_long(const struct zero_activity *activity)
{
	return activity->running && activity->waiting && (double)activity->seconds > LONG_WAIT;
}

static bool this_rank_waits(const struct zero_ring *ring)
{
	struct zero_activity own;

	zero_ring_own_activity(ring, &own);
	return waits_long(&own);
}

void zero_ring_look_for_deadlock(struct zero_ring *ring, double now)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_ALL_WAIT};

	if (ring->config.rank || now < ring->next_look_at || !this_rank_waits(ring))
		return;
	ring->next_look_at = now + LONG_WAIT;
	zero_ring_send(zero_ring_onward(ring), &frame);
}

void zero_ring_handle_all_wait(struct zero_ring *ring, const struct zero_ring_frame *frame)
{
	if (ring->reported || ring->inquiry.active || !this_rank_waits(ring))
		return;
	if (ring->config.rank)
		zero_ring_send(zero_ring_onward(ring), frame);
	else
		zero_ring_start_inquiry(ring, ZERO_PEER_DEADLOCKED, 0, 0, zero_ring_onward(ring));
}

/* Whether the other one waits where this one does, or has passed it there. Of a rank in very many
   teams that may not be known. */
static bool has_come(const struct zero_activity *other, const struct zero_activity *activity)
{
	if (other->team == activity->team && other->sequence >= activity->sequence)
		return true;
	for (uint32_t i = 0; i < other->teams && i < ZERO_TEAMS_REPORTED; i++)
		if (other->sequences[i].team == activity->team)
			return other->sequences[i].sequence >= activity->sequence;
	return other->teams > ZERO_TEAMS_REPORTED;
}

/* Whether a rank has yet to come where this one waits. */
static bool is_stuck(const struct zero_ring *ring, const struct zero_activity *activity)
{
	uint32_t there = 0;

	for (int rank = 0; rank < ring->config.world; rank++)
		there += has_come(&ring->inquiry.activity[rank], activity);
	return there < activity->ranks;
}

void zero_ring_judge_deadlock(struct zero_ring *ring)
{
	const struct zero_activity *all = ring->inquiry.activity;
	struct zero_ring_frame frame = {.kind = ZERO_RING_DEADLOCK};
	int world = ring->config.world, other = 1;

	for (int rank = 0; rank < world; rank++)
		if (!ring->inquiry.replied[rank] || !waits_long(&all[rank]) ||
		    !is_stuck(ring, &all[rank]))
			return;
	while (other < world && all[other].team == all[0].team)
		other++;
	if (other == world)
		return;
	frame.rank = other;
	snprintf(frame.message, sizeof(frame.message),
		 "all ranks wait for each other: rank 0 began '%s' with %u ranks while rank %d "
		 "began '%s' with %u: ranks must begin the operations of all teams in the same "
		 "order",
		 all[0].label, all[0].ranks, other, all[other].label, all[other].ranks);
	zero_ring_handle_deadlock(ring, &frame);
}

void zero_ring_handle_deadlock(struct zero_ring *ring, const struct zero_ring_frame *frame)
{
	char text[ZERO_RING_MESSAGE_BYTES];
	struct zero_ring_link *onward = zero_ring_onward(ring);

	snprintf(text, sizeof(text), "%.*s", (int)sizeof(frame->message) - 1, frame->message);
	if (onward->rank)
		zero_ring_send(onward, frame);
	ring->config.end_deadlock(ring->config.context, frame->rank, text);
}

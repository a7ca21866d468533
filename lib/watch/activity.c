/* SPDX-License-Identifier: Apache-2.0 */
/* What this rank is doing, and for how long, without the time in which it was suspended. */
#include "watch_internal.h"

#define LATE 2.0 /* seconds by which a poll may be late on a busy machine */

/*
 * A suspension (scontrol suspend, Ctrl-Z, a paused virtual machine) may have stopped all of the
 * job. So the neighbours get their whole timeout anew, and the time does not count as waiting.
 */
void zero_ring_detect_suspension(struct zero_ring *ring, double now)
{
	double timeout = ring->config.heartbeat_timeout;
	double late = timeout < 2 * LATE ? timeout / 2 : LATE;
	double gap = now - ring->due_at;

	if (gap <= late)
		return;
	ring->suspended += gap;
	ring->resumed_at = now;
	if (ring->ending_at > 0)
		ring->ending_at += gap;
	for (int i = 0; i < 2; i++)
		ring->link[i].received_at = now;
}

/* All suspensions are taken off, even those that came before the present operation. */
void zero_ring_own_activity(const struct zero_ring *ring, struct zero_activity *activity)
{
	double before;

	ring->config.get_activity(ring->config.context, activity);
	/* How long the operation ran before the last resume. */
	before = (double)activity->seconds - (zero_seconds() - ring->resumed_at);
	if (!activity->running || before <= 0)
		return;
	activity->seconds -= (float)(before < ring->suspended ? before : ring->suspended);
}

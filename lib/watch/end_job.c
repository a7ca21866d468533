/* SPDX-License-Identifier: Apache-2.0 */
/* Ends the job after a rank was found lost. */
#include <signal.h>
#include <stdio.h>

#include "core/thread.h"
#include "watch_internal.h"

#define LAST_WORDS       500000 /* microseconds in which the others say what they are doing */
#define LAUNCHER_SECONDS 2.0    /* within which the launcher has to end this process */
#define NOTICE_SECONDS   0.5    /* within which zerorun has to answer */

enum { NOTIFIERS = 2 }; /* the first ranks; a launcher of many ranks wants few connections */

/* A signal that the program raises reaches this thread, whatever the others are in, but none of
   those by which a launcher ends it. */
static void tell_program(struct zero_ring *ring)
{
	sigset_t ends, before;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	sigaddset(&ends, SIGHUP);
	if (ring->config.aborts && ring->config.before_end) {
		pthread_sigmask(SIG_SETMASK, &ends, &before);
		ring->config.before_end(ring->config.context);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	atomic_store(&ring->may_end, true);
}

/* zerorun does not learn of a lost node from srun. */
static void *notify_launcher(void *context)
{
	const struct zero_ring *ring = context;
	struct zero_loss_notice notice = ring->notice;

	if (ring->has_launcher) {
		notice.rank = ring->lost_rank;
		snprintf(notice.node, sizeof(notice.node), "%.63s",
			 ring->all[ring->lost_rank].node_name);
		zero_launcher_notify(&ring->launcher, ring->attempt, &notice, NOTICE_SECONDS);
	}
	return NULL;
}

/* Should the finder be ended before it has done so. */
static void notify_launcher_too(struct zero_ring *ring)
{
	pthread_t thread;

	if (ring->config.aborts && ring->has_launcher && ring->config.rank < NOTIFIERS &&
	    !zero_thread_start(&thread, "zero-notice", notify_launcher, ring))
		pthread_detach(thread);
}

static void *abort_job(void *context)
{
	struct zero_ring *ring = context;

	notify_launcher(ring);
	if (ring->last_words)
		usleep(LAST_WORDS);
	ring->config.abort_job(ring->config.context, ring->message);
	return NULL;
}

/* A launcher's SIGTERM does not reach a stopped process, and its SIGKILL may come late. */
static void kill_silent_peer(const struct zero_ring *ring, enum zero_peer_state state, int rank)
{
	const struct zero_ring_peer *peer = &ring->all[rank];
	struct zero_process found;

	if (ring->config.aborts && state == ZERO_PEER_SILENT && zero_ring_is_local(ring, peer) &&
	    zero_process_read((pid_t)peer->pid, peer->start_time, &found))
		kill((pid_t)peer->pid, SIGKILL);
}

void zero_ring_end_job(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_FAULT,
					.finder = ring->config.rank,
					.rank = ring->inquiry.rank,
					.state = (int32_t)ring->inquiry.state};
	pthread_t thread;

	zero_ring_print_message(ring);
	ring->inquiry.active = false;
	ring->reported_at = zero_seconds();
	snprintf(frame.message, sizeof(frame.message), "%s", ring->message);
	for (int i = 0; i < 2; i++)
		zero_ring_send(&ring->link[i], &frame);
	if (!ring->config.aborts)
		return;
	ring->last_words = ring->config.wants_end && ring->config.wants_end(ring->config.context);
	/* The program may write to where nobody reads. */
	if (zero_thread_start(&thread, "zero-abort", abort_job, ring))
		abort_job(ring);
	else
		pthread_detach(thread);
	tell_program(ring);
	kill_silent_peer(ring, ring->inquiry.state, ring->inquiry.rank);
}

void zero_ring_handle_fault(struct zero_ring *ring, struct zero_ring_link *link,
			    const struct zero_ring_frame *frame)
{
	if (ring->reported || frame->rank < 0 || frame->rank >= ring->config.world)
		return;
	pthread_mutex_lock(&ring->lock);
	snprintf(ring->message, sizeof(ring->message), "%.*s", (int)sizeof(frame->message) - 1,
		 frame->message);
	ring->lost_rank = frame->rank;
	ring->stalled = frame->state == ZERO_PEER_STALLED;
	ring->reported = true;
	pthread_mutex_unlock(&ring->lock);
	ring->reported_at = zero_seconds();
	ring->inquiry.active = false;
	zero_ring_send(zero_ring_other_link(ring, link), frame);
	notify_launcher_too(ring);
	/* A rank that failed is still there, to be named. */
	if (frame->rank == ring->config.rank)
		atomic_store(&ring->may_end, true);
	else
		tell_program(ring);
	kill_silent_peer(ring, (enum zero_peer_state)frame->state, frame->rank);
}

void zero_ring_enforce_end(const struct zero_ring *ring, double now)
{
	if (ring->config.aborts && now > ring->reported_at + LAUNCHER_SECONDS)
		kill(getpid(), SIGKILL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exit notice: a process that ends without zero_close tells its neighbours how. exit() and
 * signal handlers send it themselves, since the watchdog's thread may depend on what is broken.
 */
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch_internal.h"

enum { EXIT_MS = 3000, POLL_MS = 10 };

/* At most one job is open at a time. */
static struct zero_ring *_Atomic current;
static pthread_once_t once = PTHREAD_ONCE_INIT;

struct zero_ring *zero_ring_current(void)
{
	struct zero_ring *ring = atomic_load(&current);

	return ring && ring->pid == getpid() ? ring : NULL;
}

/* A neighbour that gets no notice, as its link has a backlog, still sees the connection end. */
void zero_ring_send_exit_notice(struct zero_ring *ring, enum zero_ring_frame_kind kind, int value)
{
	struct zero_ring_frame frame;

	memset(&frame, 0, sizeof(frame));
	frame.kind = kind;
	frame.rank = ring->config.rank;
	frame.value = value;
	for (int i = 0; i < 2; i++) {
		struct zero_link *to = ring->link[i].to;

		if (to)
			zero_link_send_notice(to, &frame, sizeof(frame));
	}
}

/*
 * A program that communicates by itself often fails because another rank is gone, before the
 * watchdog has told of that one; and the launcher ends all ranks as soon as this process has. So it
 * stays until a line has told who was first, unless there is nobody to tell it.
 */
static void let_diagnose(struct zero_ring *ring)
{
	char text[512];
	int rank;

	for (int i = 0; i < EXIT_MS / POLL_MS; i++) {
		poll(NULL, 0, POLL_MS);
		if (zero_ring_fault(ring, text, sizeof(text), &rank) ||
		    !atomic_load(&ring->has_peers))
			return;
	}
}

static void at_exit(int status, void *context)
{
	struct zero_ring *ring = zero_ring_current();

	(void)context;
	if (!ring || atomic_exchange(&ring->exit_told, true))
		return;
	zero_ring_send_exit_notice(ring, ZERO_RING_EXIT_NOTICE, status);
	if (!ring->config.watch_only)
		return;
	zero_ring_set_ending(ring, true);
	if (status) {
		let_diagnose(ring);
		return;
	}
	atomic_store(&ring->departed, true);
	zero_net_say_goodbye(ring->net);
}

/* If this fails, neighbours only see that the connection ends. */
static void install(void)
{
	on_exit(at_exit, NULL);
}

void zero_ring_tell_exit_first(void)
{
	install();
}

void zero_ring_set_current(struct zero_ring *ring)
{
	pthread_once(&once, install);
	atomic_store(&current, ring);
}

void zero_ring_clear_current(struct zero_ring *ring)
{
	struct zero_ring *expected = ring;

	atomic_compare_exchange_strong(&current, &expected, NULL);
}

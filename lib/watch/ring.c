/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a rank's part of the ring, joins it, and closes it with a goodbye. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watch_internal.h"

enum { LAUNCHER_MICROSECONDS = 3000000 }; /* within which it has to end this process */

/* A closed ring is kept for the next job instead of being freed, since a signal handler may still
   read it. */
static struct zero_ring *_Atomic spare;

static struct zero_ring *new_ring(void)
{
	struct zero_ring *ring = atomic_exchange(&spare, NULL);

	if (!ring)
		ring = malloc(sizeof(*ring));
	if (!ring)
		return NULL;
	memset(ring, 0, sizeof(*ring));
	pthread_mutex_init(&ring->lock, NULL);
	zero_cond_init(&ring->changed);
	ring->lost_rank = -1;
	ring->pid = getpid();
	return ring;
}

struct zero_ring *zero_ring_new(struct zero_net *net)
{
	struct zero_ring *ring = new_ring();
	struct zero_address *own;
	const char *slurm;

	if (!ring)
		return NULL;
	ring->net = net;
	ring->user = (struct zero_net_user){.poll = zero_ring_poll, .context = ring};
	own = &ring->own.address;
	gethostname(own->node, sizeof(own->node) - 1);
	slurm = getenv("SLURMD_NODENAME");
	snprintf(ring->own.node_name, sizeof(ring->own.node_name), "%s", slurm ? slurm : own->node);
	ring->own.pid = ring->pid;
	ring->own.start_time = zero_process_start_time(ring->pid);
	ring->own.default_signals = zero_ring_default_signals();
	ring->has_launcher = zero_launcher_find(&ring->launcher, &ring->attempt, &ring->notice);
	return ring;
}

/* ---- joining --------------------------------------------------------------------------------- */

static bool allocate(struct zero_ring *ring, const struct zero_ring_peer *all)
{
	size_t world = (size_t)ring->config.world;

	ring->all = malloc(world * sizeof(*all));
	ring->inquiry.activity = calloc(world, sizeof(*ring->inquiry.activity));
	ring->inquiry.replied = calloc(world, sizeof(*ring->inquiry.replied));
	ring->inquiry.listed = calloc(world, sizeof(*ring->inquiry.listed));
	if (!ring->all || !ring->inquiry.activity || !ring->inquiry.replied ||
	    !ring->inquiry.listed)
		return false;
	memcpy(ring->all, all, world * sizeof(*all));
	return true;
}

zero_status zero_ring_join(struct zero_ring *ring, const struct zero_ring_config *config,
			   const struct zero_ring_peer *all)
{
	int world = config->world, rank = config->rank;
	int ranks[2] = {(rank + world - 1) % world, (rank + 1) % world};
	struct zero_link *links[2] = {NULL, NULL};
	zero_status status;

	ring->config = *config;
	if (!allocate(ring, all))
		return zero_fail(ZERO_E_MEMORY, "the watchdog has no memory for %d ranks", world);
	/* Of two ranks one connection is enough, and the neighbour is not lost twice. */
	status = zero_net_connect(ring->net, ranks, world > 2 ? 2 : 1, links);
	if (status)
		return status;
	for (int i = 0; i < 2; i++) {
		const struct zero_ring_peer *peer = &ring->all[ranks[i]];

		ring->link[i].rank = ranks[i];
		ring->link[i].to = links[i];
		ring->link[i].state = links[i] ? ZERO_PEER_ALIVE : ZERO_PEER_CLOSED;
		ring->link[i].received_at = zero_seconds();
		if (zero_ring_is_local(ring, peer))
			ring->oom[i] = zero_oom_open((pid_t)peer->pid);
	}
	ring->due_at = ring->next_heartbeat_at = zero_seconds();
	zero_ring_set_current(ring);
	zero_net_ops.attach(ring->net, &ring->user);
	ring->joined = true;
	return ZERO_OK;
}

void zero_ring_describe(const struct zero_ring *ring, struct zero_ring_peer *own)
{
	*own = ring->own;
}

void zero_ring_start_watching(struct zero_ring *ring)
{
	if (ring->config.aborts)
		zero_ring_install_signal_handlers();
	atomic_store(&ring->watching, true);
	zero_net_ops.wake(ring->net);
}

bool zero_ring_fault(struct zero_ring *ring, char *text, size_t size, int *rank)
{
	bool reported;

	if (!ring)
		return false;
	pthread_mutex_lock(&ring->lock);
	reported = ring->reported;
	if (reported)
		snprintf(text, size, "%s", ring->message);
	*rank = ring->lost_rank;
	pthread_mutex_unlock(&ring->lock);
	return reported;
}

bool zero_ring_lost(struct zero_ring *ring, char *text, size_t size, int *rank)
{
	return zero_ring_fault(ring, text, size, rank) && !ring->stalled;
}

void zero_ring_set_ending(struct zero_ring *ring, bool exits)
{
	if (!ring)
		return;
	if (exits)
		atomic_store(&ring->exiting, true);
	atomic_store(&ring->ending, true);
	zero_net_ops.wake(ring->net);
}

/* ---- close ----------------------------------------------------------------------------------- */

static void stop_polls(struct zero_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	zero_net_ops.wake(ring->net);
	while (!ring->stopped)
		pthread_cond_wait(&ring->changed, &ring->lock);
	pthread_mutex_unlock(&ring->lock);
}

/* The network delivers it. */
static void send_goodbye(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_GOODBYE, .rank = ring->config.rank};

	for (int i = 0; i < 2; i++)
		zero_ring_send(&ring->link[i], &frame);
}

bool zero_ring_close(struct zero_ring *ring)
{
	if (!ring)
		return true;
	if (ring->joined)
		stop_polls(ring);
	/* The thread that ends the job still uses the ring and the job, so that nothing is
	   freed. */
	if (ring->reported && ring->config.aborts) {
		usleep(LAUNCHER_MICROSECONDS);
		return false;
	}
	zero_ring_restore_signal_handlers();
	send_goodbye(ring);
	zero_ring_clear_current(ring);
	zero_net_ops.detach(ring->net, &ring->user);
	for (int i = 0; i < 2; i++) {
		ring->link[i].to = NULL;
		zero_oom_close(ring->oom[i]);
	}
	free(ring->inquiry.activity);
	free(ring->inquiry.replied);
	free(ring->inquiry.listed);
	free(ring->all);
	pthread_cond_destroy(&ring->changed);
	pthread_mutex_destroy(&ring->lock);
	if (!atomic_load(&ring->terminating))
		free(atomic_exchange(&spare, ring));
	return true;
}

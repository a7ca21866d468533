/* SPDX-License-Identifier: Apache-2.0 */
/* Creates a rank's part of the ring, and closes it with a goodbye. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <linux/sockios.h>

#include "private.h"

#define LAUNCHER_SECONDS 3.0 /* within which the launcher has to end this process */
#define GOODBYE_SECONDS  1.0 /* within which a neighbour's kernel has to receive the goodbye */

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
	ring->listener = ring->wakeup = ring->connecting = -1;
	ring->link[0].fd = ring->link[1].fd = -1;
	ring->lost_rank = -1;
	for (int i = 0; i < ZERO_RING_PENDING; i++)
		ring->pending[i].fd = -1;
	ring->pid = getpid();
	return ring;
}

struct zero_ring *zero_ring_new(char *why, size_t size)
{
	struct zero_ring *ring = new_ring();
	struct zero_address *own;
	const char *slurm;
	int listener = -1;
	bool ok;

	if (!ring) {
		snprintf(why, size, "the watchdog has no memory");
		return NULL;
	}
	own = &ring->own.address;
	gethostname(own->node, sizeof(own->node) - 1);
	slurm = getenv("SLURMD_NODENAME");
	snprintf(ring->own.node_name, sizeof(ring->own.node_name), "%s", slurm ? slurm : own->node);
	ring->own.pid = ring->pid;
	ring->own.start_time = zero_process_start_time(ring->pid);
	ring->own.default_signals = zero_ring_default_signals();
	ring->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (ring->wakeup < 0 ||
	    getrandom(own->cookie, sizeof(own->cookie), 0) != (ssize_t)sizeof(own->cookie)) {
		snprintf(why, size,
			 "the watchdog cannot create an event descriptor or a cookie: %s",
			 strerror(errno));
		zero_ring_close(ring);
		return NULL;
	}
	ok = zero_address_listen(&listener, own, why, size);
	ring->listener = listener;
	if (ok)
		return ring;
	zero_ring_close(ring);
	return NULL;
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
	zero_ring_wake(ring);
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

/* ---- close ----------------------------------------------------------------------------------- */

/* Whether the neighbour has closed the connection too: it then waits for no goodbye, and its kernel
   confirms none. */
static bool is_hung_up(int fd)
{
	struct pollfd one = {.fd = fd};

	return poll(&one, 1, 0) > 0 && one.revents & (POLLERR | POLLHUP);
}

static void flush_until(struct zero_ring_link *link, double until)
{
	for (; link->out_bytes && zero_seconds() < until; usleep(1000))
		zero_ring_flush(link);
}

/*
 * Waits until the neighbour's kernel has the goodbye: closing a socket before that may discard it.
 * Kernels confirm at once, whatever their ranks do; a node that is down uses up the time.
 */
static void deliver_goodbye(struct zero_ring_link *link)
{
	double until = zero_seconds() + GOODBYE_SECONDS;
	useconds_t pause = 20;
	int left = 0, fd = atomic_load(&link->fd);

	if (fd < 0)
		return;
	flush_until(link, until);
	shutdown(fd, SHUT_WR);
	while (!is_hung_up(fd) && !ioctl(fd, SIOCOUTQ, &left) && left && zero_seconds() < until) {
		usleep(pause);
		pause = pause < 1000 ? 2 * pause : 1000;
	}
}

static void send_goodbye(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_GOODBYE, .rank = ring->config.rank};

	for (int i = 0; i < 2; i++)
		zero_ring_send(&ring->link[i], &frame);
	for (int i = 0; i < 2; i++)
		deliver_goodbye(&ring->link[i]);
}

static void stop_thread(struct zero_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	pthread_mutex_unlock(&ring->lock);
	zero_ring_wake(ring);
	pthread_join(ring->thread, NULL);
}

/* The thread that ends the job still uses the ring and the job, so that nothing is freed. */
static void wait_for_launcher(struct zero_ring *ring)
{
	double until = zero_seconds() + LAUNCHER_SECONDS;

	for (int i = 0; i < 2; i++)
		flush_until(&ring->link[i], until);
	while (zero_seconds() < until)
		usleep(10000);
}

bool zero_ring_close(struct zero_ring *ring)
{
	if (!ring)
		return true;
	if (ring->has_thread)
		stop_thread(ring);
	if (ring->reported && ring->config.aborts) {
		wait_for_launcher(ring);
		return false;
	}
	zero_ring_restore_signal_handlers();
	send_goodbye(ring);
	zero_ring_clear_current(ring);
	zero_ring_stop_listening(ring);
	zero_ring_close_fd(&ring->connecting);
	for (int i = 0; i < 2; i++) {
		zero_ring_close_fd(&ring->link[i].fd);
		free(ring->link[i].out);
		zero_oom_close(ring->oom[i]);
	}
	zero_ring_close_fd(&ring->wakeup);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* A ring's life: from a listening socket to a farewell. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

#include <linux/sockios.h>

#include "watch_private.h"

#define END 3.0 /* s that the launcher has to end this process */

/* One that is closed, for the next job: a signal's handler may still look at it, so that it is
   never freed. */
static struct zero_ring *_Atomic spare;

static struct zero_ring *new_ring(void)
{
	struct zero_ring *ring = atomic_exchange(&spare, NULL);
	pthread_condattr_t monotonic;

	if (!ring)
		ring = malloc(sizeof(*ring));
	if (!ring)
		return NULL;
	memset(ring, 0, sizeof(*ring));
	pthread_mutex_init(&ring->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&ring->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	ring->listener = ring->wakeup = ring->connecting = -1;
	ring->link[0].fd = ring->link[1].fd = -1;
	ring->lost_rank = -1;
	for (int i = 0; i < ZERO_RING_STRANGERS; i++)
		ring->strangers[i].fd = -1;
	ring->process = getpid();
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
		snprintf(why, size, "no memory for a ring");
		return NULL;
	}
	own = &ring->own.address;
	gethostname(own->node, sizeof(own->node) - 1);
	slurm = getenv("SLURMD_NODENAME");
	snprintf(ring->own.name, sizeof(ring->own.name), "%s", slurm ? slurm : own->node);
	ring->own.process = ring->process;
	ring->own.began = zero_process_began(ring->process);
	ring->own.signals = zero_ring_signals();
	ring->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (ring->wakeup < 0 ||
	    getrandom(own->cookie, sizeof(own->cookie), 0) != (ssize_t)sizeof(own->cookie)) {
		snprintf(why, size, "cannot begin to listen: %s", strerror(errno));
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

void zero_ring_describe(const struct zero_ring *ring, struct zero_ring_rank *own)
{
	*own = ring->own;
}

void zero_ring_begin(struct zero_ring *ring)
{
	if (ring->config.aborts)
		zero_ring_catch_signals();
	atomic_store(&ring->begun, true);
	zero_ring_wake(ring);
}

bool zero_ring_fault(struct zero_ring *ring, char *text, size_t size, int *rank)
{
	bool told;

	if (!ring)
		return false;
	pthread_mutex_lock(&ring->lock);
	told = ring->told;
	if (told)
		snprintf(text, size, "%s", ring->text);
	*rank = ring->lost_rank;
	pthread_mutex_unlock(&ring->lock);
	return told;
}

/* ---- the end --------------------------------------------------------------------------------- */

/* The neighbour has closed it, too: then it waits for no word, and the kernel for no answer. */
static bool is_over(int fd)
{
	struct pollfd one = {.fd = fd};

	return poll(&one, 1, 0) > 0 && one.revents & (POLLERR | POLLHUP);
}

/*
 * A socket that is closed before its farewell has arrived may take that back. Kernels take it at
 * once, whatever their ranks do; a node that is no more has a second.
 */
static void deliver(struct zero_ring_link *link)
{
	double until = zero_seconds() + 1;
	useconds_t pause = 20;
	int left = 0, fd = atomic_load(&link->fd);

	if (fd < 0)
		return;
	for (; link->out_bytes && zero_seconds() < until; usleep(1000))
		zero_ring_flush(link);
	shutdown(fd, SHUT_WR);
	while (!is_over(fd) && !ioctl(fd, SIOCOUTQ, &left) && left && zero_seconds() < until) {
		usleep(pause);
		pause = pause < 1000 ? 2 * pause : 1000;
	}
}

static void say_farewell(struct zero_ring *ring)
{
	struct zero_ring_frame frame = {.kind = ZERO_RING_CLOSED, .rank = ring->config.rank};

	for (int i = 0; i < 2; i++)
		zero_ring_send(&ring->link[i], &frame);
	for (int i = 0; i < 2; i++)
		deliver(&ring->link[i]);
}

static void stop_thread(struct zero_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	pthread_mutex_unlock(&ring->lock);
	zero_ring_wake(ring);
	pthread_join(ring->thread, NULL);
}

static void shut(_Atomic int *fd)
{
	int open = atomic_exchange(fd, -1);

	if (open >= 0)
		close(open);
}

/* Whoever ends the job still looks at it, and at the ring. */
static void wait_for_end(struct zero_ring *ring)
{
	double until = zero_seconds() + END;

	for (int i = 0; i < 2; i++)
		while (ring->link[i].out_bytes && zero_seconds() < until) {
			zero_ring_flush(&ring->link[i]);
			usleep(1000);
		}
	while (zero_seconds() < until)
		usleep(10000);
}

bool zero_ring_close(struct zero_ring *ring)
{
	if (!ring)
		return true;
	if (ring->running)
		stop_thread(ring);
	if (ring->told && ring->config.aborts) {
		wait_for_end(ring);
		return false;
	}
	zero_ring_give_signals_back();
	say_farewell(ring);
	zero_ring_withdraw(ring);
	zero_ring_stop_listening(ring);
	shut(&ring->connecting);
	for (int i = 0; i < 2; i++) {
		shut(&ring->link[i].fd);
		free(ring->link[i].out);
		zero_oom_close(ring->oom[i]);
	}
	shut(&ring->wakeup);
	free(ring->inquiry.doing);
	free(ring->inquiry.there);
	free(ring->inquiry.listed);
	free(ring->all);
	pthread_cond_destroy(&ring->changed);
	pthread_mutex_destroy(&ring->lock);
	if (!atomic_load(&ring->terminating))
		free(atomic_exchange(&spare, ring));
	return true;
}

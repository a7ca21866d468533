/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The last words of a process: signals that it dies of, and exit without zero_close. They go out
 * from the handler itself, as what the thread would need may be what is broken. And what a fork
 * must not keep.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch_private.h"

enum { GRACE_MS = 300, TURN_MS = 10 };

/* One job is open at a time. */
static struct zero_ring *_Atomic current;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool at_exit;

/* The first ones are how a launcher ends a rank. */
static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

enum { SIGNALS = sizeof(numbers) / sizeof(numbers[0]), TO_END = 3 };

static struct {
	bool free; /* nobody caught it when the job began to open */
	bool caught;
	struct sigaction before;
} signals[SIGNALS];

/* ---- last words ------------------------------------------------------------------------------ */

static struct zero_ring *mine(void)
{
	struct zero_ring *ring = atomic_load(&current);

	return ring && ring->process == getpid() ? ring : NULL;
}

/* May be called from a signal handler. A neighbour that is behind sees the connection end. */
static void say(struct zero_ring *ring, enum zero_ring_kind kind, int value)
{
	struct zero_ring_frame frame;

	memset(&frame, 0, sizeof(frame));
	frame.kind = kind;
	frame.rank = ring->config.rank;
	frame.value = value;
	for (int i = 0; i < 2; i++) {
		int fd = atomic_load(&ring->link[i].fd);

		if (fd >= 0 && !atomic_load(&ring->link[i].clogged) &&
		    send(fd, &frame, sizeof(frame), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
			continue;
	}
}

static void die(int number)
{
	for (int i = 0; i < SIGNALS; i++)
		if (numbers[i] == number)
			sigaction(number, &signals[i].before, NULL);
	raise(number);
}

/*
 * A launcher that has seen a rank die ends the others at once; among them may be the one that is
 * about to say which rank it was, or one that it asks.
 */
static void on_end(int number)
{
	struct zero_ring *ring = mine();
	int error = errno;

	if (ring && !atomic_exchange(&ring->terminating, true)) {
		zero_ring_wake(ring);
		for (int i = 0; i < GRACE_MS / TURN_MS && !atomic_load(&ring->settled); i++)
			poll(NULL, 0, TURN_MS);
		say(ring, ZERO_RING_DYING, number);
	}
	errno = error;
	die(number);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	struct zero_ring *ring = mine();

	(void)context;
	if (ring)
		say(ring, ZERO_RING_DYING, number);
	/* What the processor found it finds again on return, and a core shows the place. */
	for (int i = 0; info->si_code > 0 && i < SIGNALS; i++)
		if (numbers[i] == number) {
			sigaction(number, &signals[i].before, NULL);
			return;
		}
	die(number);
}

static void on_leave(int status, void *context)
{
	struct zero_ring *ring = mine();

	(void)context;
	if (ring)
		say(ring, ZERO_RING_EXITED, status);
}

/* ---- who catches what ------------------------------------------------------------------------ */

void zero_ring_record_default_signals(void)
{
	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction now;

		signals[i].free = !sigaction(numbers[i], NULL, &now) &&
				  !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
	}
}

uint32_t zero_ring_signals(void)
{
	uint32_t bits = 0;

	for (int i = 0; i < SIGNALS; i++)
		if (signals[i].free)
			bits |= UINT32_C(1) << numbers[i];
	return bits;
}

/* Those that MPI has begun to catch meanwhile go on to it. */
void zero_ring_catch_signals(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	sigemptyset(&action.sa_mask);
	for (int i = 0; i < SIGNALS; i++) {
		if (!signals[i].free)
			continue;
		if (i < TO_END) {
			action.sa_handler = on_end;
			action.sa_flags = SA_ONSTACK | SA_RESTART;
		} else {
			action.sa_sigaction = on_fault;
			action.sa_flags = SA_ONSTACK | SA_SIGINFO;
		}
		signals[i].caught = !sigaction(numbers[i], &action, &signals[i].before);
	}
}

static bool is_ours(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO ? action->sa_sigaction == on_fault
					     : action->sa_handler == on_end;
}

/* What the program has put in its place since stays. */
void zero_ring_give_signals_back(void)
{
	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction now;

		if (signals[i].caught && !sigaction(numbers[i], NULL, &now) && is_ours(&now))
			sigaction(numbers[i], &signals[i].before, NULL);
		signals[i].caught = false;
	}
}

/* ---- forks ----------------------------------------------------------------------------------- */

static void shut(_Atomic int *fd)
{
	int open = atomic_exchange(fd, -1);

	if (open >= 0)
		close(open);
}

/* It would hold the connections open, and nobody would see this rank end. */
static void in_forked(void)
{
	struct zero_ring *ring = atomic_exchange(&current, NULL);

	if (!ring)
		return;
	shut(&ring->listener);
	shut(&ring->wakeup);
	shut(&ring->connecting);
	shut(&ring->link[0].fd);
	shut(&ring->link[1].fd);
}

static void guard(void)
{
	pthread_atfork(NULL, NULL, in_forked);
	at_exit = !on_exit(on_leave, NULL);
}

void zero_ring_publish(struct zero_ring *ring)
{
	pthread_once(&once, guard);
	atomic_store(&current, ring);
}

void zero_ring_withdraw(struct zero_ring *ring)
{
	struct zero_ring *expected = ring;

	atomic_compare_exchange_strong(&current, &expected, NULL);
}

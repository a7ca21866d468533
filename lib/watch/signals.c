/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers of fatal signals: they send the exit notice, and then let the signal do what it did
   before. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "watch_internal.h"

enum { GRACE_MS = 300, POLL_MS = 10 };

/* Launchers end ranks by the first three, TERMINATING of them. */
static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

enum { SIGNALS = sizeof(numbers) / sizeof(numbers[0]), TERMINATING = 3 };

static struct {
	bool is_default; /* when zero_open began */
	bool installed;
	struct sigaction before;
} signals[SIGNALS];

/* ---- handlers -------------------------------------------------------------------------------- */

static void restore_one(int number)
{
	for (int i = 0; i < SIGNALS; i++)
		if (numbers[i] == number)
			sigaction(number, &signals[i].before, NULL);
}

/*
 * A launcher that sees a rank die terminates the others at once. One of these may be about to print
 * which rank was lost, or be asked by the one that is: so it stays for a moment.
 */
static void on_termination(int number)
{
	struct zero_ring *ring = zero_ring_current();
	int error = errno;

	if (ring && !atomic_exchange(&ring->terminating, true)) {
		zero_net_ops.wake(ring->net);
		for (int i = 0; i < GRACE_MS / POLL_MS && !atomic_load(&ring->may_end); i++)
			poll(NULL, 0, POLL_MS);
		zero_ring_send_exit_notice(ring, ZERO_RING_SIGNAL_NOTICE, number);
	}
	errno = error;
	restore_one(number);
	raise(number);
}

static void on_crash(int number, siginfo_t *info, void *context)
{
	struct zero_ring *ring = zero_ring_current();

	(void)context;
	if (ring)
		zero_ring_send_exit_notice(ring, ZERO_RING_SIGNAL_NOTICE, number);
	restore_one(number);
	/* A fault of the processor occurs again on return, so that a core file shows its place. */
	if (info->si_code <= 0)
		raise(number);
}

/* ---- dispositions ---------------------------------------------------------------------------- */

void zero_ring_record_default_signals(void)
{
	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction now;

		signals[i].is_default = !sigaction(numbers[i], NULL, &now) &&
					!(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
	}
}

uint32_t zero_ring_default_signals(void)
{
	uint32_t bits = 0;

	for (int i = 0; i < SIGNALS; i++)
		if (signals[i].is_default)
			bits |= UINT32_C(1) << numbers[i];
	return bits;
}

/* A handler that MPI has installed since the signals were recorded becomes the previous one. */
void zero_ring_install_signal_handlers(void)
{
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	sigemptyset(&action.sa_mask);
	for (int i = 0; i < SIGNALS; i++) {
		if (!signals[i].is_default)
			continue;
		if (i < TERMINATING) {
			action.sa_handler = on_termination;
			action.sa_flags = SA_ONSTACK | SA_RESTART;
		} else {
			action.sa_sigaction = on_crash;
			action.sa_flags = SA_ONSTACK | SA_SIGINFO;
		}
		signals[i].installed = !sigaction(numbers[i], &action, &signals[i].before);
	}
}

static bool is_ours(const struct sigaction *action)
{
	return action->sa_flags & SA_SIGINFO ? action->sa_sigaction == on_crash
					     : action->sa_handler == on_termination;
}

void zero_ring_restore_signal_handlers(void)
{
	for (int i = 0; i < SIGNALS; i++) {
		struct sigaction now;

		if (signals[i].installed && !sigaction(numbers[i], NULL, &now) && is_ours(&now))
			sigaction(numbers[i], &signals[i].before, NULL);
		signals[i].installed = false;
	}
}

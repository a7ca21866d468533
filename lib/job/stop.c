/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that ask for an end. The handler only sets a flag, which the rank reports to the others
 * in its next step. Handlers belong to the process, which has one job at a time.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "job.h"

static atomic_bool requested;
static bool installed[NSIG]; /* guarded by the job's lock */
static struct sigaction before[NSIG];

static void request_stop(int number)
{
	(void)number;
	atomic_store_explicit(&requested, true, memory_order_relaxed);
}

/* After one of these the same instruction would fail again. */
static bool is_fault(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
}

zero_status zero_stop_on(zero_job *job, int number)
{
	struct sigaction action = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
	zero_status status = ZERO_OK;

	if (number < 1 || number >= NSIG)
		return zero_fail(ZERO_E_INVALID,
				 "zero_stop_on: %d is not a signal: they are 1 to %d", number,
				 NSIG - 1);
	if (is_fault(number))
		return zero_fail(ZERO_E_INVALID,
				 "zero_stop_on: signal %d (%s) reports a fault, after which a "
				 "program cannot continue: use SIGUSR1, SIGTERM or another",
				 number, strsignal(number));
	pthread_mutex_lock(&job->lock);
	if (!installed[number]) {
		installed[number] = !sigaction(number, &action, &before[number]);
		if (!installed[number])
			status = zero_fail(ZERO_E_INVALID,
					   "zero_stop_on: signal %d (%s) cannot be caught (%s): "
					   "use SIGUSR1, SIGTERM or another",
					   number, strsignal(number), strerror(errno));
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

bool zero_stop_requested(void)
{
	return atomic_load_explicit(&requested, memory_order_relaxed);
}

void zero_stop_close(zero_job *job)
{
	struct sigaction now;

	pthread_mutex_lock(&job->lock);
	for (int number = 1; number < NSIG; number++) {
		/* A handler that the program has set since then stays. */
		if (installed[number] && !sigaction(number, NULL, &now) &&
		    now.sa_handler == request_stop)
			sigaction(number, &before[number], NULL);
		installed[number] = false;
	}
	pthread_mutex_unlock(&job->lock);
	atomic_store(&requested, false);
}

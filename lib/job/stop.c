/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signals that ask for an end. A handler may do no more than leave a mark, which the rank tells the
 * others in its next step. Handlers belong to the process, which has one job at a time.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "job.h"

static atomic_bool asked;
static bool ours[NSIG]; /* guarded by the job's lock */
static struct sigaction before[NSIG];

static void note(int number)
{
	(void)number;
	atomic_store_explicit(&asked, true, memory_order_relaxed);
}

/* A handler that returned from one of these would be called again by the same instruction. */
static bool is_fault(int number)
{
	return number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
}

zero_status zero_stop_on(zero_job *job, int number)
{
	struct sigaction action = {.sa_handler = note, .sa_flags = SA_RESTART};
	zero_status status = ZERO_OK;

	if (number < 1 || number >= NSIG)
		return zero_fail(ZERO_E_INVALID,
				 "zero_stop_on: %d is not a signal: they are 1 to %d", number,
				 NSIG - 1);
	if (is_fault(number))
		return zero_fail(ZERO_E_INVALID,
				 "zero_stop_on: signal %d (%s) tells of a fault, after which a "
				 "program cannot go on: take SIGUSR1, SIGTERM or another",
				 number, strsignal(number));
	pthread_mutex_lock(&job->lock);
	if (!ours[number]) {
		ours[number] = !sigaction(number, &action, &before[number]);
		if (!ours[number])
			status = zero_fail(ZERO_E_INVALID,
					   "zero_stop_on: signal %d (%s) cannot be caught (%s): "
					   "take SIGUSR1, SIGTERM or another",
					   number, strsignal(number), strerror(errno));
	}
	pthread_mutex_unlock(&job->lock);
	return status;
}

bool zero_stop_requested(void)
{
	return atomic_load_explicit(&asked, memory_order_relaxed);
}

void zero_stop_close(zero_job *job)
{
	struct sigaction now;

	pthread_mutex_lock(&job->lock);
	for (int number = 1; number < NSIG; number++) {
		/* What somebody else has set since then is theirs. */
		if (ours[number] && !sigaction(number, NULL, &now) && now.sa_handler == note)
			sigaction(number, &before[number], NULL);
		ours[number] = false;
	}
	pthread_mutex_unlock(&job->lock);
	atomic_store(&asked, false);
}

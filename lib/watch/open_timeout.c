/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timeout of zero_open. While a job opens there is no watchdog yet, and MPI_Init may wait for
 * ever for a rank that does not come. Nothing interrupts it, so that a thread ends the process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/thread.h"
#include "watch.h"

/* Seconds between the timeouts of two ranks: the first rank that is not missing prints the line. */
#define STAGGER 0.25
enum { MAX_STAGGERS = 30 };

#define POLL 0.5 /* seconds between two looks at the clock */
#define LATE 2.0 /* seconds by which a look may be late before it counts as a suspension */

struct zero_open_timeout {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool over;
	int rank;
	unsigned seconds;
	const char *variable; /* the environment variable that sets them */
	double waited;
};

/* Returns the rank that the launcher has set, or -1 if there is no launcher. */
static int launched_rank(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
					    "SLURM_PROCID"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *text = getenv(names[i]);

		if (text && *text)
			return atoi(text);
	}
	return -1;
}

static void print_and_exit(const struct zero_open_timeout *timeout)
{
	const char *slurm = getenv("SLURMD_NODENAME");
	char line[512], node[64] = "";

	gethostname(node, sizeof(node) - 1);
	snprintf(line, sizeof(line),
		 "zero: rank %d on node %s (pid %d) has waited for %u s (%s) in "
		 "zero_open: another rank did not start, is stopped, or cannot be reached; ending "
		 "the job\n",
		 timeout->rank, slurm ? slurm : node, (int)getpid(), timeout->seconds,
		 timeout->variable);
	/* The process ends even if nobody reads the line. */
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

/* Returns the seconds that passed. The time in which the job was suspended does not count. */
static double wait_once(struct zero_open_timeout *timeout, double left)
{
	double begun = zero_seconds(), wait = left < POLL ? left : POLL, took;
	struct timespec until = zero_deadline(wait);

	pthread_cond_timedwait(&timeout->changed, &timeout->lock, &until);
	took = zero_seconds() - begun;
	return took > wait + LATE ? wait : took;
}

static void *wait_for_open(void *context)
{
	struct zero_open_timeout *timeout = context;
	int place = timeout->rank < MAX_STAGGERS ? timeout->rank : MAX_STAGGERS;
	double limit = timeout->seconds + STAGGER * place;

	pthread_mutex_lock(&timeout->lock);
	while (!timeout->over && timeout->waited < limit)
		timeout->waited += wait_once(timeout, limit - timeout->waited);
	if (!timeout->over)
		print_and_exit(timeout);
	pthread_mutex_unlock(&timeout->lock);
	return NULL;
}

/* A rank may come late because it loads data that only it needs. So unless the user has set a
   timeout for zero_open, the one of all other operations holds. */
static void set_limit(struct zero_open_timeout *timeout, const zero_job *job)
{
	const char *origin = job->settings.origin[ZERO_OPT_OPEN_SECONDS];
	bool given = origin && strcmp(origin, "default") != 0;
	enum zero_option_id id = given ? ZERO_OPT_OPEN_SECONDS : ZERO_OPT_STALL_SECONDS;

	timeout->seconds = (unsigned)job->settings.value[id].number;
	timeout->variable = zero_option_table[id].env;
}

void zero_open_timeout_start(zero_job *job)
{
	const struct zero_value *value = job->settings.value;
	int rank = launched_rank();
	struct zero_open_timeout *timeout;

	if (rank < 0 || value[ZERO_OPT_ON_FAULT].number != ZERO_ON_FAULT_ABORT)
		return;
	timeout = calloc(1, sizeof(*timeout));
	if (!timeout)
		return;
	timeout->rank = rank;
	set_limit(timeout, job);
	if (!timeout->seconds) {
		free(timeout);
		return;
	}
	pthread_mutex_init(&timeout->lock, NULL);
	zero_cond_init(&timeout->changed);
	if (!zero_thread_start(&timeout->thread, "zero-open", wait_for_open, timeout))
		job->open_timeout = timeout;
	else
		free(timeout);
}

void zero_open_timeout_restart(struct zero_open_timeout *timeout)
{
	if (!timeout)
		return;
	pthread_mutex_lock(&timeout->lock);
	timeout->waited = 0;
	pthread_mutex_unlock(&timeout->lock);
}

void zero_open_timeout_stop(struct zero_open_timeout *timeout)
{
	if (!timeout)
		return;
	pthread_mutex_lock(&timeout->lock);
	timeout->over = true;
	pthread_cond_signal(&timeout->changed);
	pthread_mutex_unlock(&timeout->lock);
	pthread_join(timeout->thread, NULL);
	pthread_cond_destroy(&timeout->changed);
	pthread_mutex_destroy(&timeout->lock);
	free(timeout);
}

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
#include "job/internal.h"

/* Seconds between the timeouts of two ranks: the first rank that is not missing prints the line. */
#define STAGGER 0.25
enum { MOST_STAGGERS = 30 };

#define TURN 0.5 /* seconds between two looks at the clock */
#define LATE 2.0 /* seconds by which a turn may be late before it counts as a suspension */

struct zero_opening {
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

static void print_and_exit(const struct zero_opening *opening)
{
	const char *slurm = getenv("SLURMD_NODENAME");
	char line[512], node[64] = "";

	gethostname(node, sizeof(node) - 1);
	snprintf(line, sizeof(line),
		 "zero: rank %d on node %s (pid %d) has waited for %u s (%s) in "
		 "zero_open: another rank did not start, is stopped, or cannot be reached; ending "
		 "the job\n",
		 opening->rank, slurm ? slurm : node, (int)getpid(), opening->seconds,
		 opening->variable);
	/* The process ends even if nobody reads the line. */
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

/* Returns the seconds that passed. The time in which the job was suspended does not count. */
static double wait_a_turn(struct zero_opening *opening, double left)
{
	double begun = zero_seconds(), turn = left < TURN ? left : TURN, took;
	struct timespec until = zero_deadline(turn);

	pthread_cond_timedwait(&opening->changed, &opening->lock, &until);
	took = zero_seconds() - begun;
	return took > turn + LATE ? turn : took;
}

static void *wait_for_open(void *context)
{
	struct zero_opening *opening = context;
	int place = opening->rank < MOST_STAGGERS ? opening->rank : MOST_STAGGERS;
	double limit = opening->seconds + STAGGER * place;

	pthread_setname_np(pthread_self(), "zero-open");
	pthread_mutex_lock(&opening->lock);
	while (!opening->over && opening->waited < limit)
		opening->waited += wait_a_turn(opening, limit - opening->waited);
	if (!opening->over)
		print_and_exit(opening);
	pthread_mutex_unlock(&opening->lock);
	return NULL;
}

/* A rank may come late because it loads data that only it needs. So unless the user has set a
   timeout for zero_open, the one of all other operations holds. */
static void set_limit(struct zero_opening *opening, const zero_job *job)
{
	const char *origin = job->settings.origin[ZERO_OPT_OPEN_SECONDS];
	bool given = origin && strcmp(origin, "default") != 0;
	enum zero_option_id id = given ? ZERO_OPT_OPEN_SECONDS : ZERO_OPT_STALL_SECONDS;

	opening->seconds = (unsigned)job->settings.value[id].number;
	opening->variable = zero_option_table[id].env;
}

void zero_opening_begin(zero_job *job)
{
	const struct zero_value *value = job->settings.value;
	int rank = launched_rank();
	struct zero_opening *opening;

	if (rank < 0 || value[ZERO_OPT_ON_FAULT].number != ZERO_ON_FAULT_ABORT)
		return;
	opening = calloc(1, sizeof(*opening));
	if (!opening)
		return;
	opening->rank = rank;
	set_limit(opening, job);
	if (!opening->seconds) {
		free(opening);
		return;
	}
	pthread_mutex_init(&opening->lock, NULL);
	zero_cond_init(&opening->changed);
	if (!zero_thread_start(&opening->thread, wait_for_open, opening))
		job->opening = opening;
	else
		free(opening);
}

void zero_opening_again(struct zero_opening *opening)
{
	if (!opening)
		return;
	pthread_mutex_lock(&opening->lock);
	opening->waited = 0;
	pthread_mutex_unlock(&opening->lock);
}

void zero_opening_end(struct zero_opening *opening)
{
	if (!opening)
		return;
	pthread_mutex_lock(&opening->lock);
	opening->over = true;
	pthread_cond_signal(&opening->changed);
	pthread_mutex_unlock(&opening->lock);
	pthread_join(opening->thread, NULL);
	pthread_cond_destroy(&opening->changed);
	pthread_mutex_destroy(&opening->lock);
	free(opening);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * While a job opens there is no ring yet, and MPI_Init can wait for ever for a rank that is not
 * coming. Nothing interrupts it, so that a thread ends the process.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/internal.h"
#include "net/dial.h"
#include "core/clock.h"
#include "core/thread.h"

/* Rank 0 speaks; should it be the one that is missing, the next one does so a little later. */
#define STAGGER 0.25 /* s */
enum { STAGGERS = 30 };

/* Seconds: the clock is read so often, and what is later than that was stopped. */
#define TURN 0.5
#define LATE 2.0

struct zero_opening {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool over;
	int rank;
	unsigned seconds;
	const char *name; /* of what sets them */
	double waited;
};

/* As the launcher says it; -1: there is none. */
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

static void give_up(const struct zero_opening *opening)
{
	const char *slurm = getenv("SLURMD_NODENAME");
	char line[512], node[64] = "";

	gethostname(node, sizeof(node) - 1);
	snprintf(line, sizeof(line),
		 "zero: rank %d on node %s (pid %d) has waited for %u s (%s) in "
		 "zero_open: another rank did not come, is stopped, or cannot be reached; ending "
		 "the job\n",
		 opening->rank, slurm ? slurm : node, (int)getpid(), opening->seconds,
		 opening->name);
	/* Where nobody reads it the process ends as well. */
	if (write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

/* The seconds it took; while a job is suspended the clock runs on, and nobody waits. */
static double wait_a_turn(struct zero_opening *opening, double left)
{
	double begun = zero_seconds(), turn = left < TURN ? left : TURN, took;
	struct timespec until = zero_deadline(turn);

	pthread_cond_timedwait(&opening->changed, &opening->lock, &until);
	took = zero_seconds() - begun;
	return took > turn + LATE ? turn : took;
}

static void *serve(void *context)
{
	struct zero_opening *opening = context;
	int place = opening->rank < STAGGERS ? opening->rank : STAGGERS;
	double limit = opening->seconds + STAGGER * place;

	pthread_setname_np(pthread_self(), "zero-open");
	pthread_mutex_lock(&opening->lock);
	while (!opening->over && opening->waited < limit)
		opening->waited += wait_a_turn(opening, limit - opening->waited);
	if (!opening->over)
		give_up(opening);
	pthread_mutex_unlock(&opening->lock);
	return NULL;
}

/* Ranks may come late, by loading what only they need: without a word of the user they have the
   time of any other operation. */
static void set_limit(struct zero_opening *opening, const zero_job *job)
{
	const char *origin = job->settings.origin[ZERO_OPT_OPEN_SECONDS];
	bool given = origin && strcmp(origin, "default") != 0;
	enum zero_option_id id = given ? ZERO_OPT_OPEN_SECONDS : ZERO_OPT_STALL_SECONDS;

	opening->seconds = (unsigned)job->settings.value[id].number;
	opening->name = zero_option_table[id].env;
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
	if (!zero_thread_start(&opening->thread, serve, opening))
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job that loses a rank: lost RANK ACTION MILLISECONDS [ONLY]. That many milliseconds after the
 * job is open the rank performs the action, in the middle of a load, gather, reduce, step or save;
 * so many after its start, which may be within zero_open, if the number is negative.
 * With ONLY the job repeats that one of load, gather, reduce, step and save for ever. The moment of
 * the action is written to ZERO_TEST_FILES/at. With the action "none" the job ends after a few
 * rounds; with "slow" the rank only sleeps, while the others wait for it. With ONLY "reopen" the
 * others close the job once they know of the lost rank, and try to open another.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

#include "ranks.h"

static const char *action, *only;
static char moment_path[4096]; /* made in advance: only the main thread may call file_path() */
static int milliseconds;
static atomic_bool opened;

static void sleep_for(double seconds)
{
	struct timespec time = {.tv_sec = (time_t)seconds};

	time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
	nanosleep(&time, NULL);
}

/* ---- actions --------------------------------------------------------------------------------- */

static void write_moment(void)
{
	struct timespec now;
	char text[64];
	FILE *file = fopen(moment_path, "w");

	clock_gettime(CLOCK_REALTIME, &now);
	snprintf(text, sizeof(text), "%lld.%06ld %s %d\n", (long long)now.tv_sec,
		 now.tv_nsec / 1000, opened ? "open" : "opening", (int)getpid());
	check(file && fputs(text, file) >= 0 && !fclose(file), "cannot write");
}

/* Aborts as a program does that gets no memory. */
static void run_out_of_memory(void)
{
	struct rlimit limit = {.rlim_cur = 1 << 20, .rlim_max = 1 << 20};

	setrlimit(RLIMIT_AS, &limit);
	if (!malloc((size_t)64 << 20))
		abort();
}

static void perform(void)
{
	if (!strcmp(action, "kill"))
		kill(getpid(), SIGKILL);
	else if (!strcmp(action, "stop"))
		kill(getpid(), SIGSTOP);
	else if (!strcmp(action, "term"))
		kill(getpid(), SIGTERM);
	else if (!strcmp(action, "segv"))
		*(volatile int *)(uintptr_t)(2 * strlen(action)) = 1;
	else if (!strcmp(action, "exit0"))
		exit(0);
	else if (!strcmp(action, "exit3"))
		exit(3);
	else if (!strcmp(action, "_exit3"))
		_exit(3);
	else if (!strcmp(action, "memory"))
		run_out_of_memory();
	else
		check(!strcmp(action, "none"), "unknown action %s", action);
}

static void *wait_and_perform(void *unused)
{
	while (milliseconds >= 0 && !opened)
		sleep_for(0.001);
	sleep_for(1e-3 * abs(milliseconds));
	write_moment();
	perform();
	return unused;
}

static int launched_rank(void)
{
	const char *text = getenv("OMPI_COMM_WORLD_RANK");

	if (!text)
		text = getenv("SLURM_PROCID");
	return text ? atoi(text) : 0;
}

static void start_action_thread(int rank)
{
	pthread_t thread;

	if (launched_rank() != rank || !strcmp(action, "none") || !strcmp(action, "slow"))
		return;
	snprintf(moment_path, sizeof(moment_path), "%s", file_path("at"));
	check(!pthread_create(&thread, NULL, wait_and_perform, NULL), "no thread");
	pthread_detach(thread);
}

/* ---- a job ----------------------------------------------------------------------------------- */

enum { GROUPS = 4, COUNT = 200000 };

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS];
};

static bool wanted(const char *what)
{
	return !only || !strcmp(only, what);
}

static void open_model(struct model *m)
{
	m->job = open_job("stage=3");
	opened = true;
	for (int g = 0; g < GROUPS; g++) {
		char name[16];

		snprintf(name, sizeof(name), "h.%d", g);
		m->groups[g] = new_group(m->job, name);
		m->params[g] = new_param(m->groups[g], name, ZERO_F32, COUNT, true);
	}
	ok(zero_layout(m->job));
}

static void load(const struct model *m)
{
	for (int g = 0; g < GROUPS; g++) {
		zero_source source = zero_from_normal(0, 1, 7);

		ok(zero_load(m->params[g], &source));
	}
}

static void train(const struct model *m, bool with_save)
{
	zero_adamw adamw = {.lr = 1e-3F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F};

	for (int g = 0; g < GROUPS && wanted("gather"); g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		ok(zero_release(m->groups[g]));
	}
	for (int g = 0; g < GROUPS && wanted("reduce"); g++) {
		float *gradient = zero_gradient(m->params[g]);

		for (size_t i = 0; i < COUNT; i += 1000)
			gradient[i] += 1;
		ok(zero_reduce(m->groups[g]));
	}
	if (wanted("step"))
		ok(zero_step(m->job, &adamw, NULL));
	if (with_save && wanted("save"))
		ok(zero_save(m->job, file_path("checkpoints"),
			     &(zero_save_options){.keep_last = 2}));
}

static void run_slow(const struct model *m, int rank)
{
	if (zero_rank(m->job) == rank)
		sleep_for(1e-3 * milliseconds);
	load(m);
	ok(zero_close(m->job));
}

/* Each rank is a team, so that none waits for another. */
static void run_until_lost(zero_job *job, int lost)
{
	zero_source source = zero_from_constant(1);
	zero_param *param = NULL;
	zero_status status = ZERO_OK;

	for (int rank = 0; rank < zero_world(job); rank++) {
		zero_group *group;
		zero_team *team;
		char name[16];

		snprintf(name, sizeof(name), "of %d", rank);
		ok(zero_team_new(job, &rank, 1, &team));
		ok(zero_group_new(job, name, team, &group));
		if (rank == zero_rank(job))
			param = new_param(group, name, ZERO_F32, 100, false);
		else
			new_param(group, name, ZERO_F32, 100, false);
	}
	ok(zero_layout(job));
	opened = true;
	while (!status) {
		status = zero_load(param, &source);
		sleep_for(0.001);
	}
	check(status == ZERO_E_COMM && zero_last_error_rank() == lost, "%s", zero_last_error());
}

/* No new job can have all ranks: it is refused at once. */
static void reopen(int lost)
{
	zero_job *job = open_job("stage=3");

	run_until_lost(job, lost);
	ok(zero_close(job));
	for (int turn = 0; turn < 2; turn++) {
		fails(zero_open(NULL, &job), ZERO_E_COMM, "start the processes of all ranks again");
		check(!job && zero_last_error_rank() == lost, "%d", zero_last_error_rank());
	}
	printf("refused\n");
}

int main(int count, char **arguments)
{
	struct model m;
	bool ends;

	check(count >= 4, "usage: lost RANK ACTION MILLISECONDS [ONLY]");
	action = arguments[2];
	milliseconds = atoi(arguments[3]);
	only = count > 4 ? arguments[4] : NULL;
	ends = !strcmp(action, "none");
	/* Otherwise a sanitizer's handler would come before the library's. */
	signal(SIGSEGV, SIG_DFL);
	start_action_thread(atoi(arguments[1]));
	if (only && !strcmp(only, "reopen")) {
		reopen(atoi(arguments[1]));
		return 0;
	}
	open_model(&m);
	if (!strcmp(action, "slow")) {
		run_slow(&m, atoi(arguments[1]));
		return 0;
	}
	load(&m);
	for (int round = 0; round < 3 || !ends; round++) {
		if (wanted("load"))
			load(&m);
		train(&m, round % 4 == 3 || only);
	}
	ok(zero_close(m.job));
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job without tensors that loses a rank: none_lost RANK DEED. Each rank writes a line when it is
 * told that it is about to be ended, and waits outside of the library for what does not come. After
 * "work" the others wait until the rank has ended, and then end well.
 */
#include <signal.h>
#include <time.h>

#include "ranks.h"

static const char *deed;
static int lost, *pids, world, rank;
static zero_job *job;

static bool is(const char *name)
{
	return !strcmp(deed, name);
}

static void wait_for_ever(void)
{
	while (true)
		pause();
}

static void write_last_words(int number)
{
	char line[64];
	int length = snprintf(line, sizeof(line), "last words of rank %d\n", rank);

	(void)number;

	check(write(STDERR_FILENO, line, (size_t)length) == length, "cannot write");
}

static void raise_signal(void *number)
{
	raise(*(int *)number);
}

static void hang_at_exit(void)
{
	if (rank == lost && is("hang"))
		wait_for_ever();
}

static const char *ready_path(int of)
{
	char name[32];

	snprintf(name, sizeof(name), "ready.%d", of);
	return file_path(name);
}

/* What is lost is not lost within the library. */
static void wait_for_others(void)
{
	for (int of = 0; of < world; of++)
		while (of != lost && access(ready_path(of), F_OK))
			usleep(1000);
}

static void say_ready(void)
{
	FILE *file = fopen(ready_path(rank), "w");

	check(file && !fclose(file), "no file");
}

static void write_moment(void)
{
	struct timespec now;
	FILE *file = fopen(file_path("at"), "w");

	clock_gettime(CLOCK_REALTIME, &now);
	check(file, "no file");
	fprintf(file, "%lld.%06ld\n", (long long)now.tv_sec, now.tv_nsec / 1000);
	fclose(file);
}

static void perform(void)
{
	wait_for_others();
	write_moment();
	if (is("kill") || is("follow"))
		kill(getpid(), SIGKILL);
	else if (is("stop"))
		kill(getpid(), SIGSTOP);
	else if (is("segv"))
		raise(SIGSEGV);
	else if (is("exit3"))
		exit(3);
	else if (is("finish"))
		ok(zero_finish(job));
	else
		exit(0); /* work, wait, fail, hang */
	wait_for_ever();
}

/* What the others do, in code of the program's own. */
static void go_on(void)
{
	int first = lost ? 0 : 1;

	say_ready();
	if (is("wait"))
		zero_set_wait_label(job, "a barrier of the program");
	if (is("work") || is("follow") || (is("fail") && rank == first))
		wait_for_end(pids[lost]);
	/* As it does where it communicates with the rank that is gone. */
	if (is("follow"))
		exit(1);
	if (is("fail") && rank == first)
		exit(5);
	/* Longer than it takes to find out whether they wait. */
	if (is("work"))
		sleep(3);
	if (!is("work") && !is("finish") && !is("hang"))
		wait_for_ever();
	ok(zero_close(job));
	exit(0);
}

int main(int count, char **arguments)
{
	struct timespec begun, end;
	int mine = getpid(), number = SIGUSR1;

	check(count == 3, "usage: none_lost RANK DEED");
	lost = atoi(arguments[1]);
	deed = arguments[2];
	signal(SIGSEGV, SIG_DFL);
	atexit(hang_at_exit);
	clock_gettime(CLOCK_MONOTONIC, &begun);
	job = open_job("backend=none");
	clock_gettime(CLOCK_MONOTONIC, &end);
	rank = zero_rank(job);
	world = zero_world(job);
	if (!rank)
		printf("zero_open took %.0f ms\n",
		       1e3 * (double)(end.tv_sec - begun.tv_sec) +
			       1e-6 * (double)(end.tv_nsec - begun.tv_nsec));
	fflush(stdout);
	pids = calloc((size_t)world, sizeof(*pids));
	check(pids, "no memory");
	ok(zero_allgather_bytes(job, &mine, sizeof(mine), pids));
	signal(SIGUSR1, write_last_words);
	zero_on_loss(job, raise_signal, &number);
	if (rank == lost)
		perform();
	go_on();
}

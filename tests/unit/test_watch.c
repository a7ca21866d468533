/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog. Ranks are processes on this machine; some of them die, stop, exit or are slow. One
   rank prints one line about it. */
#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "watch/private.h"

enum { RANKS = 256, HANG = 60 /* s */ };

static struct shared {
	_Atomic int here[3], aborts, faults, wrong;
	double began_at; /* of the operation of all ranks; 0: `activity` has its seconds */
	struct zero_ring_peer all[RANKS];
	struct zero_activity activity[RANKS];
} * shared;

struct trial {
	const char *name;
	int world, victim, also; /* -1: no second victim */
	int (*action)(struct zero_ring *ring, int rank);
	double timeout, stall;
	double late;  /* seconds that the victim waits before it joins */
	bool returns; /* faults are recorded, and do not end the job */
};

static int out_fd; /* the end of a pipe to which ranks write their lines */

static void sleep_for(double seconds)
{
	poll(NULL, 0, (int)(1e3 * seconds));
}

/* A barrier. The alarm of a rank that hangs fails the test. */
static void meet(int i, int world)
{
	atomic_fetch_add(&shared->here[i], 1);
	while (atomic_load(&shared->here[i]) < world)
		sleep_for(0.001);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int self;

static double starved; /* seconds by which the next heartbeat is delayed */

static void get_activity(void *context, struct zero_activity *activity)
{
	double wait = starved;

	(void)context;
	starved = 0;
	sleep_for(wait);
	*activity = shared->activity[self];
	if (shared->began_at > 0)
		activity->seconds = (float)(zero_seconds() - shared->began_at);
}

static void abort_job(void *context, const char *text)
{
	(void)context;
	if (!strstr(text, "rank"))
		atomic_fetch_add(&shared->wrong, 1);
	atomic_fetch_add(&shared->aborts, 1);
}

static void stay(void)
{
	for (;;)
		pause();
}

static void wait_for_fault(struct zero_ring *ring, int victim)
{
	char text[600] = "", start[32];
	int rank = -1;

	while (!zero_ring_fault(ring, text, sizeof(text), &rank))
		sleep_for(0.005);
	snprintf(start, sizeof(start), "rank %d on node ", victim);
	if (rank != victim || strncmp(text, start, strlen(start)) != 0)
		atomic_fetch_add(&shared->wrong, 1);
	atomic_fetch_add(&shared->faults, 1);
	stay();
}

static struct zero_ring *open_at_exit;

/* A program may close its job at exit, after other functions that take long. */
static void close_late(void)
{
	if (!open_at_exit)
		return;
	sleep_for(2.5);
	zero_ring_close(open_at_exit);
}

static void be_rank(const struct trial *trial, int rank)
{
	struct zero_ring_config config = {
		.rank = rank,
		.world = trial->world,
		.heartbeat_timeout = trial->timeout ? trial->timeout : 5,
		.stall_timeout = trial->stall,
		.open_timeout = HANG,
		.aborts = !trial->returns,
		.get_activity = get_activity,
		.abort_job = abort_job,
		.out_fd = out_fd,
	};
	struct zero_ring *ring;
	char why[1024];

	alarm(HANG);
	/* Handlers of Check and of sanitizers do not count as the program's. */
	signal(SIGTERM, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	self = rank;
	atexit(close_late);
	zero_ring_record_default_signals();
	ring = zero_ring_new(why, sizeof(why));
	if (ring)
		zero_ring_describe(ring, &shared->all[rank]);
	meet(0, trial->world);
	if (rank == trial->victim)
		sleep_for(trial->late);
	if (!ring || !zero_ring_join(ring, &config, shared->all, why, sizeof(why))) {
		dprintf(out_fd, "rank %d did not join: %s\n", rank, why);
		_exit(1);
	}
	meet(1, trial->world);
	zero_ring_start_watching(ring);
	meet(2, trial->world);
	if (rank == trial->victim || rank == trial->also)
		_exit(trial->action(ring, rank));
	if (trial->returns)
		wait_for_fault(ring, trial->victim);
	stay();
}

/* ---- what a victim does ---------------------------------------------------------------------- */

static int is_killed(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	sleep_for(0.1);
	kill(getpid(), SIGKILL);
	return 0;
}

static int is_stopped(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	kill(getpid(), SIGSTOP);
	return 0;
}

static int crashes(struct zero_ring *ring, int rank)
{
	(void)ring;
	*(volatile int *)(uintptr_t)(8 * rank + 8) = 1;
	return 0;
}

static int exits(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	exit(3);
}

static int is_terminated(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	kill(getpid(), SIGTERM);
	return 0;
}

/* The child outlives the rank. */
static int forks(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	if (!fork()) {
		alarm(8);
		stay();
	}
	sleep_for(0.2);
	kill(getpid(), SIGKILL);
	return 0;
}

static int exits_late(struct zero_ring *ring, int rank)
{
	(void)rank;
	open_at_exit = ring;
	exit(0);
}

/* The other rank closes at the same moment. */
static int is_killed_during_close(struct zero_ring *ring, int rank)
{
	struct pollfd one = {.fd = atomic_load(&ring->link[ZERO_PREV].fd), .events = POLLRDHUP};

	if (rank) {
		sleep_for(0.1);
		kill(getpid(), SIGKILL);
	}
	poll(&one, 1, -1);
	if (zero_ring_close(ring))
		atomic_fetch_add(&shared->wrong, 1);
	return 0;
}

static int is_starved(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	starved = 2.5;
	stay();
	return 0;
}

static int is_slow(struct zero_ring *ring, int rank)
{
	(void)ring;
	(void)rank;
	stay();
	return 0;
}

static int closes(struct zero_ring *ring, int rank)
{
	(void)rank;
	zero_ring_close(ring);
	return 0;
}

/* ---- the test's side ------------------------------------------------------------------------- */

static pid_t ranks[RANKS];
static int from_ranks;

static void start(const struct trial *trial)
{
	int ends[2];

	memset(shared, 0, sizeof(*shared));
	for (int rank = 0; rank < trial->world; rank++) {
		struct zero_activity *activity = &shared->activity[rank];

		activity->operation = 7;
		activity->running = 1;
		activity->seconds = 100;
		snprintf(activity->label, sizeof(activity->label), "gather of group 'g'");
	}
	if (trial->action == is_slow)
		shared->activity[trial->victim].running = 0;
	ck_assert(!pipe(ends));
	from_ranks = ends[0];
	out_fd = ends[1];
	for (int rank = 0; rank < trial->world; rank++) {
		ranks[rank] = fork();
		ck_assert_int_ge(ranks[rank], 0);
		if (!ranks[rank]) {
			close(from_ranks);
			be_rank(trial, rank);
		}
	}
	close(out_fd);
}

static void end(const struct trial *trial)
{
	for (int rank = 0; rank < trial->world; rank++)
		kill(ranks[rank], SIGKILL);
	for (int rank = 0; rank < trial->world; rank++)
		waitpid(ranks[rank], NULL, 0);
	close(from_ranks);
	ck_assert_int_eq(shared->wrong, 0);
}

/* Reads what ranks print within some seconds and, after the first line, a moment longer. */
static void read_lines(char *text, size_t size, double seconds)
{
	double until = zero_seconds() + seconds;
	size_t at = 0;

	text[0] = '\0';
	while (at < size - 1) {
		struct pollfd one = {.fd = from_ranks, .events = POLLIN};
		double left = until - zero_seconds();
		ssize_t got;

		if (left <= 0 || poll(&one, 1, (int)(1e3 * left) + 1) <= 0)
			break;
		got = read(from_ranks, text + at, size - 1 - at);
		if (got <= 0)
			break;
		if (!at)
			until = zero_seconds() + 0.6;
		at += (size_t)got;
		text[at] = '\0';
	}
}

/* Expects exactly one line, which names the victim and contains `words`. */
static void expect(const struct trial *trial, double seconds, const char *words)
{
	char text[8192], who[64];
	const char *second;

	start(trial);
	read_lines(text, sizeof(text), seconds);
	end(trial);
	snprintf(who, sizeof(who), "zero: rank %d on node ", trial->victim);
	ck_assert_msg(!strncmp(text, who, strlen(who)), "%s: no '%s' in: %s", trial->name, who,
		      text);
	ck_assert_msg(strstr(text, words) != NULL, "%s: no '%s' in: %s", trial->name, words, text);
	second = strstr(text + 1, "zero: rank");
	ck_assert_msg(!second, "%s: two lines: %s", trial->name, text);
	ck_assert_int_eq(shared->aborts, 1);
}

START_TEST(one_line_names_a_lost_rank)
{
	static const int worlds[] = {2, 3, 4, 9};
	struct trial trial = {.world = worlds[_i], .also = -1};

	trial.victim = _i % 2 ? 0 : trial.world - 1;
	trial.name = "killed";
	trial.action = is_killed;
	expect(&trial, 5, "SIGKILL");
	trial.name = "crashed";
	trial.action = crashes;
	expect(&trial, 5, "died of signal 11 (Segmentation fault)");
	trial.name = "exited";
	trial.action = exits;
	expect(&trial, 5, "called exit(3) without zero_close");
	trial.name = "forked";
	trial.action = forks;
	expect(&trial, 5, "SIGKILL");
}
END_TEST

START_TEST(some_losses_take_a_while)
{
	struct trial trial = {.name = "stopped",
			      .world = 4,
			      .victim = 2,
			      .also = -1,
			      .timeout = 1,
			      .action = is_stopped};

	expect(&trial, 8, "is stopped (SIGSTOP) and has sent no heartbeat for 1 s");
	trial.name = "terminated";
	trial.action = is_terminated;
	expect(&trial, 8, "died of signal 15 (Terminated)");
	/* The rank after the victim is stopped too, and cannot find it. */
	trial.name = "stopped together";
	trial.action = is_stopped;
	trial.also = 1;
	expect(&trial, 8, "; no reply from rank 1; ending the job");
	trial.also = 0;
	trial.victim = 1;
	trial.world = 2;
	trial.name = "killed while the other one closes";
	trial.action = is_killed_during_close;
	expect(&trial, 8, "SIGKILL");
	trial.also = -1;
	trial.victim = 2;
	trial.world = 4;
	trial.name = "slow";
	trial.action = is_slow;
	trial.timeout = 0;
	trial.stall = 50;
	expect(&trial, 8, "keeps the others waiting for more than 50 s (ZERO_STALL_SECONDS)");
}
END_TEST

/* A rank that has closed is not lost. Its neighbours are still watched. */
START_TEST(a_rank_may_close)
{
	struct trial trial = {
		.name = "closed", .world = 4, .victim = 2, .also = -1, .action = closes};
	char text[8192];

	start(&trial);
	read_lines(text, sizeof(text), 3);
	ck_assert_str_eq(text, "");
	kill(ranks[1], SIGKILL);
	read_lines(text, sizeof(text), 5);
	end(&trial);
	/* The rank after it has closed, so that the rank before it finds it. */
	ck_assert_msg(!strncmp(text, "zero: rank 1 on node ", 21), "%s", text);
}
END_TEST

/* All ranks that are left return the fault, and print nothing. */
START_TEST(faults_are_returned)
{
	struct trial trial = {.name = "returned",
			      .world = 5,
			      .victim = 3,
			      .also = -1,
			      .action = is_killed,
			      .returns = true};
	char text[8192];
	double until = zero_seconds() + HANG;

	start(&trial);
	while (atomic_load(&shared->faults) < 4 && zero_seconds() < until)
		sleep_for(0.01);
	read_lines(text, sizeof(text), 0.1);
	end(&trial);
	ck_assert_str_eq(text, "");
	ck_assert_int_eq(shared->faults, 4);
	ck_assert_int_eq(shared->aborts, 0);
}
END_TEST

/* Ranks that look lost for a while are not reported. */
START_TEST(nothing_is_reported)
{
	static const struct trial trials[] = {
		/* The rank before it gives a connection up and connects again. */
		{.name = "late",
		 .world = 4,
		 .victim = 2,
		 .also = -1,
		 .action = is_slow,
		 .late = 1.7},
		{.name = "late",
		 .world = 2,
		 .victim = 1,
		 .also = -1,
		 .action = is_slow,
		 .late = 4.1},
		{.name = "starved",
		 .world = 4,
		 .victim = 0,
		 .also = -1,
		 .action = is_starved,
		 .timeout = 1},
		{.name = "exited late", .world = 3, .victim = 1, .also = -1, .action = exits_late},
	};
	const struct trial *trial = &trials[_i];
	char text[8192];

	start(trial);
	while (atomic_load(&shared->here[2]) < trial->world)
		sleep_for(0.01);
	read_lines(text, sizeof(text), 5);
	end(trial);
	ck_assert_msg(!*text, "%s: %s", trial->name, text);
}
END_TEST

/* All ranks are stopped for longer than both timeouts, and resume. */
START_TEST(all_are_suspended)
{
	struct trial trial = {.name = "suspended",
			      .world = 6,
			      .victim = -1,
			      .also = -1,
			      .timeout = 1,
			      .stall = 6};
	char text[8192];

	start(&trial);
	shared->began_at = zero_seconds();
	while (atomic_load(&shared->here[2]) < trial.world)
		sleep_for(0.01);
	sleep_for(0.3);
	for (int rank = 0; rank < trial.world; rank++)
		kill(ranks[rank], SIGSTOP);
	sleep_for(7);
	for (int rank = 0; rank < trial.world; rank++)
		kill(ranks[rank], SIGCONT);
	read_lines(text, sizeof(text), 2.5);
	end(&trial);
	ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(many_ranks_one_line)
{
	struct trial trial = {
		.name = "many", .world = RANKS, .victim = 100, .also = -1, .action = is_killed};

	expect(&trial, 20, "; the others are in gather of group 'g' (operation 7); ending the job");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("watch");
	TCase *tcase = tcase_create("ring");
	SRunner *runner;
	int failed;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		return EXIT_FAILURE;
	tcase_set_timeout(tcase, 2 * HANG);
	tcase_add_loop_test(tcase, one_line_names_a_lost_rank, 0, 4);
	tcase_add_test(tcase, some_losses_take_a_while);
	tcase_add_test(tcase, a_rank_may_close);
	tcase_add_test(tcase, faults_are_returned);
	tcase_add_loop_test(tcase, nothing_is_reported, 0, 4);
	tcase_add_test(tcase, all_are_suspended);
	tcase_add_test(tcase, many_ranks_one_line);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

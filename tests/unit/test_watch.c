/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of the watch: ranks are processes on this machine, some of which die, stop, leave or are
   slow. One line says so, whoever finds it. */
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

#include "watch/watch_private.h"

enum { RANKS = 256, HANG = 60 /* s */ };

static struct shared {
	_Atomic int here[3], aborts, faults, wrong;
	double began; /* of what grows meanwhile; 0: what doing says */
	struct zero_ring_rank all[RANKS];
	struct zero_doing doing[RANKS];
} * shared;

struct trial {
	const char *name;
	int world, victim, also; /* -1: no other */
	int (*deed)(struct zero_ring *ring, int rank);
	double seconds, stall;
	double late; /* before the victim joins */
	bool returns;
};

static int lines; /* a pipe's end, where ranks write theirs */

static void sleep_for(double seconds)
{
	poll(NULL, 0, (int)(1e3 * seconds));
}

/* All ranks come here; a process that is stuck fails the test by its alarm. */
static void meet(int i, int world)
{
	atomic_fetch_add(&shared->here[i], 1);
	while (atomic_load(&shared->here[i]) < world)
		sleep_for(0.001);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static int self;

static double starved; /* s that the next beat waits */

static void doing(void *context, struct zero_doing *doing)
{
	double wait = starved;

	(void)context;
	starved = 0;
	sleep_for(wait);
	*doing = shared->doing[self];
	if (shared->began > 0)
		doing->seconds = (float)(zero_seconds() - shared->began);
}

static void end_all(void *context, const char *text)
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

/* They are told, and nothing is printed. */
static void wait_for_fault(struct zero_ring *ring, int victim)
{
	char text[600] = "", words[32];
	int rank = -1;

	while (!zero_ring_fault(ring, text, sizeof(text), &rank))
		sleep_for(0.005);
	snprintf(words, sizeof(words), "rank %d on node ", victim);
	if (rank != victim || strncmp(text, words, strlen(words)) != 0)
		atomic_fetch_add(&shared->wrong, 1);
	atomic_fetch_add(&shared->faults, 1);
	stay();
}

static struct zero_ring *open_at_exit;

/* Of a program that closes its job there, after what takes long. */
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
		.seconds = trial->seconds ? trial->seconds : 5,
		.stall = trial->stall,
		.open_seconds = HANG,
		.aborts = !trial->returns,
		.doing = doing,
		.abort = end_all,
		.out = lines,
	};
	struct zero_ring *ring;
	char why[1024];

	alarm(HANG);
	/* Handlers of Check and of sanitizers are not to be inherited. */
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
		dprintf(lines, "rank %d did not join: %s\n", rank, why);
		_exit(1);
	}
	meet(1, trial->world);
	zero_ring_begin(ring);
	meet(2, trial->world);
	if (rank == trial->victim || rank == trial->also)
		_exit(trial->deed(ring, rank));
	if (trial->returns)
		wait_for_fault(ring, trial->victim);
	stay();
}

/* ---- deeds ----------------------------------------------------------------------------------- */

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

static int leaves(struct zero_ring *ring, int rank)
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

/* A child goes on when the rank is gone. */
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

static int leaves_late(struct zero_ring *ring, int rank)
{
	(void)rank;
	open_at_exit = ring;
	exit(0);
}

/* The other one closes at the same moment. */
static int is_killed_at_the_end(struct zero_ring *ring, int rank)
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

/* ---- all of them ----------------------------------------------------------------------------- */

static pid_t ranks[RANKS];
static int from_ranks;

static void start(const struct trial *trial)
{
	int ends[2];

	memset(shared, 0, sizeof(*shared));
	for (int rank = 0; rank < trial->world; rank++) {
		struct zero_doing *doing = &shared->doing[rank];

		doing->number = 7;
		doing->under_way = 1;
		doing->seconds = 100;
		snprintf(doing->label, sizeof(doing->label), "gather of group 'g'");
	}
	if (trial->deed == is_slow)
		shared->doing[trial->victim].under_way = 0;
	ck_assert(!pipe(ends));
	from_ranks = ends[0];
	lines = ends[1];
	for (int rank = 0; rank < trial->world; rank++) {
		ranks[rank] = fork();
		ck_assert_int_ge(ranks[rank], 0);
		if (!ranks[rank]) {
			close(from_ranks);
			be_rank(trial, rank);
		}
	}
	close(lines);
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

/* What they say within so many seconds, and a moment after that. */
static void listen_to(char *text, size_t size, double seconds)
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

/* One line of that rank with those words, once. */
static void expect(const struct trial *trial, double seconds, const char *words)
{
	char text[8192], who[64];
	const char *second;

	start(trial);
	listen_to(text, sizeof(text), seconds);
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
	trial.deed = is_killed;
	expect(&trial, 5, "SIGKILL");
	trial.name = "crashed";
	trial.deed = crashes;
	expect(&trial, 5, "died of signal 11 (Segmentation fault)");
	trial.name = "left";
	trial.deed = leaves;
	expect(&trial, 5, "called exit(3) without zero_close");
	trial.name = "forked";
	trial.deed = forks;
	expect(&trial, 5, "SIGKILL");
}
END_TEST

START_TEST(what_takes_a_while)
{
	struct trial trial = {.name = "stopped",
			      .world = 4,
			      .victim = 2,
			      .also = -1,
			      .seconds = 1,
			      .deed = is_stopped};

	expect(&trial, 8, "is stopped (SIGSTOP) and has given no sign for 1 s");
	trial.name = "terminated";
	trial.deed = is_terminated;
	expect(&trial, 8, "died of signal 15 (Terminated)");
	/* The one behind it cannot find it. */
	trial.name = "stopped together";
	trial.deed = is_stopped;
	trial.also = 1;
	expect(&trial, 8, "; no answer from rank 1; ending the job");
	trial.also = 0;
	trial.victim = 1;
	trial.world = 2;
	trial.name = "killed while the other one closes";
	trial.deed = is_killed_at_the_end;
	expect(&trial, 8, "SIGKILL");
	trial.also = -1;
	trial.victim = 2;
	trial.world = 4;
	trial.name = "slow";
	trial.deed = is_slow;
	trial.seconds = 0;
	trial.stall = 50;
	expect(&trial, 8, "keeps the others waiting for more than 50 s (ZERO_STALL_SECONDS)");
}
END_TEST

/* Whoever closes is no more part of it, and those on both sides of it still are. */
START_TEST(a_rank_may_close)
{
	struct trial trial = {
		.name = "closed", .world = 4, .victim = 2, .also = -1, .deed = closes};
	char text[8192];

	start(&trial);
	listen_to(text, sizeof(text), 3);
	ck_assert_str_eq(text, "");
	kill(ranks[1], SIGKILL);
	listen_to(text, sizeof(text), 5);
	end(&trial);
	/* Its successor has closed: the rank before it says so. */
	ck_assert_msg(!strncmp(text, "zero: rank 1 on node ", 21), "%s", text);
}
END_TEST

/* Their sentence is kept, on all that are left. */
START_TEST(faults_are_returned)
{
	struct trial trial = {.name = "returned",
			      .world = 5,
			      .victim = 3,
			      .also = -1,
			      .deed = is_killed,
			      .returns = true};
	char text[8192];
	double until = zero_seconds() + HANG;

	start(&trial);
	while (atomic_load(&shared->faults) < 4 && zero_seconds() < until)
		sleep_for(0.01);
	listen_to(text, sizeof(text), 0.1);
	end(&trial);
	ck_assert_str_eq(text, "");
	ck_assert_int_eq(shared->faults, 4);
	ck_assert_int_eq(shared->aborts, 0);
}
END_TEST

/* What looks like a lost rank for a while. */
START_TEST(nothing_is_said)
{
	static const struct trial trials[] = {
		/* A connection to it is given up before it looks, and made again. */
		{.name = "late", .world = 4, .victim = 2, .also = -1, .deed = is_slow, .late = 1.7},
		{.name = "late", .world = 2, .victim = 1, .also = -1, .deed = is_slow, .late = 4.1},
		{.name = "starved",
		 .world = 4,
		 .victim = 0,
		 .also = -1,
		 .deed = is_starved,
		 .seconds = 1},
		{.name = "left late", .world = 3, .victim = 1, .also = -1, .deed = leaves_late},
	};
	const struct trial *trial = &trials[_i];
	char text[8192];

	start(trial);
	while (atomic_load(&shared->here[2]) < trial->world)
		sleep_for(0.01);
	listen_to(text, sizeof(text), 5);
	end(trial);
	ck_assert_msg(!*text, "%s: %s", trial->name, text);
}
END_TEST

/* All are stopped for longer than a rank may be, and an operation last, and go on. */
START_TEST(all_are_suspended)
{
	struct trial trial = {.name = "suspended",
			      .world = 6,
			      .victim = -1,
			      .also = -1,
			      .seconds = 1,
			      .stall = 6};
	char text[8192];

	start(&trial);
	shared->began = zero_seconds();
	while (atomic_load(&shared->here[2]) < trial.world)
		sleep_for(0.01);
	sleep_for(0.3);
	for (int rank = 0; rank < trial.world; rank++)
		kill(ranks[rank], SIGSTOP);
	sleep_for(7);
	for (int rank = 0; rank < trial.world; rank++)
		kill(ranks[rank], SIGCONT);
	listen_to(text, sizeof(text), 2.5);
	end(&trial);
	ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(many_ranks_one_line)
{
	struct trial trial = {
		.name = "many", .world = RANKS, .victim = 100, .also = -1, .deed = is_killed};

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
	tcase_add_test(tcase, what_takes_a_while);
	tcase_add_test(tcase, a_rank_may_close);
	tcase_add_test(tcase, faults_are_returned);
	tcase_add_loop_test(tcase, nothing_is_said, 0, 4);
	tcase_add_test(tcase, all_are_suspended);
	tcase_add_test(tcase, many_ranks_one_line);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

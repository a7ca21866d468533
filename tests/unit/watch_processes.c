/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What only processes can show of the watchdog: that they join and close, how one that is lost
 * looks to the others, and what becomes of signals, of exit() and of fork().
 */
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "watch_test.h"

enum { RANKS = 9, HANG = 60 /* s */ };

static struct shared {
	_Atomic int here[2], aborts, faults, wrong, go;
	struct zero_ring_peer all[RANKS];
} * shared;

struct trial {
	int world, victim;
	int closer; /* a rank that closes before; 0: none */
	int (*action)(struct zero_ring *ring);
	bool returns; /* see struct zero_ring_config */
};

static int out_fd; /* the end of a pipe to which ranks write their lines */

static void wait_until(const _Atomic int *counter, int least)
{
	while (atomic_load(counter) < least)
		poll(NULL, 0, 1);
}

/* Counts what must not be. */
static void expect_that(bool condition)
{
	if (!condition)
		atomic_fetch_add(&shared->wrong, 1);
}

/* ---- a rank ---------------------------------------------------------------------------------- */

static void get_activity(void *context, struct zero_activity *activity)
{
	(void)context;
	*activity = (struct zero_activity){.operation = 7, .running = 1};
	strcpy(activity->label, "gather of group 'g'");
}

static void abort_job(void *context, const char *text)
{
	(void)context;
	expect_that(strstr(text, "rank"));
	atomic_fetch_add(&shared->aborts, 1);
}

/* All ranks that are left know of the fault before the test ends them. */
static void wait_for_fault(struct zero_ring *ring, int victim)
{
	char text[600] = "", start[32];
	int rank = -1;

	while (!zero_ring_fault(ring, text, sizeof(text), &rank))
		poll(NULL, 0, 1);
	snprintf(start, sizeof(start), "rank %d on node ", victim);
	expect_that(rank == victim && !strncmp(text, start, strlen(start)));
	atomic_fetch_add(&shared->faults, 1);
	for (;;)
		pause();
}

static void *handler_of(int number)
{
	struct sigaction now;

	sigaction(number, NULL, &now);
	return (void *)now.sa_handler;
}

static void other_handler(int number)
{
	(void)number;
}

/* Its handlers are gone then, but those that the program has installed since. */
__attribute__((noreturn)) static void close_ring(struct zero_ring *ring)
{
	struct zero_net *net = ring->net;

	expect_that(handler_of(SIGINT) != (void *)SIG_DFL);
	signal(SIGTERM, other_handler);
	expect_that(zero_ring_close(ring));
	zero_net_close(net);
	expect_that(handler_of(SIGTERM) == (void *)other_handler);
	expect_that(handler_of(SIGINT) == (void *)SIG_DFL);
	expect_that(!zero_ring_current());
	atomic_store(&shared->go, 1);
	for (;;)
		pause();
}

static zero_status get_address(void *context, int rank, struct zero_address *address)
{
	(void)context;
	*address = shared->all[rank].address;
	return ZERO_OK;
}

static void be_rank(const struct trial *trial, int rank)
{
	struct zero_ring_config config = {
		.rank = rank,
		.world = trial->world,
		.heartbeat_timeout = 5,
		.aborts = !trial->returns,
		.get_activity = get_activity,
		.abort_job = abort_job,
		.out_fd = out_fd,
	};
	struct zero_net_config net_config = {
		.rank = rank, .world = trial->world, .seconds = HANG, .address = get_address};
	struct zero_net *net = zero_net_new();
	struct zero_ring *ring;

	alarm(HANG);
	/* Handlers of Check and of sanitizers do not count as the program's. */
	signal(SIGTERM, SIG_DFL);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	signal(SIGHUP, SIG_DFL);
	zero_ring_record_default_signals();
	ring = zero_ring_new(net);
	zero_ring_describe(ring, &shared->all[rank]);
	expect_that(!zero_net_ops.listen(net, &shared->all[rank].address));
	atomic_fetch_add(&shared->here[0], 1);
	wait_until(&shared->here[0], trial->world);
	if (zero_net_ops.join(net, &net_config) || zero_ring_join(ring, &config, shared->all)) {
		dprintf(out_fd, "rank %d did not join: %s\n", rank, zero_last_error());
		_exit(1);
	}
	zero_ring_start_watching(ring);
	atomic_fetch_add(&shared->here[1], 1);
	wait_until(&shared->here[1], trial->world);
	if (trial->closer && rank == trial->closer)
		close_ring(ring);
	if (trial->closer && rank == trial->victim)
		wait_until(&shared->go, 1);
	if (rank == trial->victim)
		_exit(trial->action(ring));
	wait_for_fault(ring, trial->victim);
}

/* ---- what a victim does ---------------------------------------------------------------------- */

static int is_killed(struct zero_ring *ring)
{
	(void)ring;
	kill(getpid(), SIGKILL);
	return 0;
}

static int crashes(struct zero_ring *ring)
{
	volatile uintptr_t nowhere = 8;

	(void)ring;
	*(volatile int *)nowhere = 1;
	return 0;
}

static int exits(struct zero_ring *ring)
{
	(void)ring;
	exit(3);
}

static int is_terminated(struct zero_ring *ring)
{
	(void)ring;
	raise(SIGTERM);
	return 0;
}

/* The child outlives the rank, and is none. */
static int forks(struct zero_ring *ring)
{
	pid_t child = fork();

	if (!child) {
		alarm(HANG);
		expect_that(!zero_ring_current());
		atomic_store(&shared->go, 1);
		wait_until(&shared->go, 2);
		_exit(0);
	}
	wait_until(&shared->go, 1);
	return is_killed(ring);
}

/* ---- the test's side ------------------------------------------------------------------------- */

static pid_t ranks[RANKS];
static int from_ranks;

static void start(const struct trial *trial)
{
	int ends[2];

	memset(shared, 0, sizeof(*shared));
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

/* Returns what ranks have printed, once all that are left know of the fault. Until one does, time
   passes: no faster than on a wall, and slower where there is no time for tests. */
static const char *finish(const struct trial *trial)
{
	int left = trial->world - 1 - (trial->closer > 0);
	static char text[8192];
	size_t at = 0;
	ssize_t got;

	wait_until(&shared->here[1], trial->world);
	for (; !atomic_load(&shared->faults); poll(NULL, 0, 1))
		advance_clock(0.001);
	wait_until(&shared->faults, left);
	wait_until(&shared->aborts, !trial->returns);
	for (int rank = 0; rank < trial->world; rank++)
		kill(ranks[rank], SIGKILL);
	for (int rank = 0; rank < trial->world; rank++)
		waitpid(ranks[rank], NULL, 0);
	atomic_store(&shared->go, 2);
	while ((got = read(from_ranks, text + at, sizeof(text) - 1 - at)) > 0)
		at += (size_t)got;
	text[at] = '\0';
	close(from_ranks);
	ck_assert_int_eq(shared->wrong, 0);
	return text;
}

/* The first line names the victim and contains `words`. */
static void expect(const struct trial *trial, const char *words)
{
	const char *text = finish(trial);
	char who[64];

	snprintf(who, sizeof(who), "zero: rank %d on node ", trial->victim);
	ck_assert_msg(!strncmp(text, who, strlen(who)), "no '%s' in: %s", who, text);
	ck_assert_msg(strstr(text, words) != NULL, "no '%s' in: %s", words, text);
}

START_TEST(processes_are_lost)
{
	static const struct {
		int (*action)(struct zero_ring *);
		const char *words;
	} table[] = {
		{is_killed, "was killed by SIGKILL"},
		{crashes, "died of signal 11 (Segmentation fault)"},
		{forks, "was killed by SIGKILL"},
		{exits, "called exit(3) without zero_close"},
		{is_terminated, "died of signal 15 (Terminated)"},
	};
	struct trial trial = {.world = _i < 5 ? 2 : RANKS, .action = table[_i % 5].action};

	trial.victim = _i % trial.world;
	start(&trial);
	expect(&trial, table[_i % 5].words);
}
END_TEST

/* A rank that closes is not lost. */
START_TEST(a_process_closes)
{
	struct trial trial = {.world = 3, .closer = 2, .action = is_killed};

	start(&trial);
	expect(&trial, "no reply from rank 2; ending the job");
}
END_TEST

/* All ranks that are left return the fault, and print nothing. */
START_TEST(processes_return)
{
	struct trial trial = {.world = 5, .victim = 3, .action = is_killed, .returns = true};

	start(&trial);
	ck_assert_str_eq(finish(&trial), "");
	ck_assert_int_eq(shared->aborts, 0);
}
END_TEST

void add_process_tests(TCase *tcase)
{
	shared = shared_memory(sizeof(*shared));
	tcase_add_loop_test(tcase, processes_are_lost, 0, 10);
	tcase_add_test(tcase, a_process_closes);
	tcase_add_test(tcase, processes_return);
}

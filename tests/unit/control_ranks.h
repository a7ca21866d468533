/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a control plane as processes: a test forks them and checks how they end. */
#ifndef ZERO_CONTROL_RANKS_H
#define ZERO_CONTROL_RANKS_H

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/cuda/control/private.h"

enum { RANKS = 33, HANG = 120 /* s */ };

/* ---- errors, as libzero saves them ----------------------------------------------------------- */

static _Thread_local char last_error[1024];
static _Thread_local int last_rank;

static zero_status save_error(zero_status status, const char *format, ...)
{
	va_list arguments;
	char text[sizeof(last_error)];

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	memcpy(last_error, text, sizeof(text));
	last_rank = -1;
	return status;
}

static zero_status save_error_on(int rank, zero_status status, const char *text)
{
	save_error(status, "%s", text);
	last_rank = rank;
	return status;
}

static const char *get_last_error(void)
{
	return last_error;
}

static const struct zero_core core = {
	.fail = save_error, .fail_on = save_error_on, .last_error = get_last_error};
const struct zero_core *zero_core = &core;

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t seed;

/* SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). */
static uint64_t draw(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

static size_t below(uint64_t *state, size_t bound)
{
	return (size_t)(draw(state) % bound);
}

/* ---- ranks that are processes ---------------------------------------------------------------- */

static struct shared {
	atomic_int listening, joined, done, calls[RANKS];
	struct zero_address at[RANKS];
	_Atomic double killed;       /* time of the kill */
	char error[RANKS + 1][1024]; /* error[RANKS] is the parent's */
} * shared;

struct trial {
	void (*program)(struct zero_control *control, const struct trial *trial);
	void (*beside)(const struct trial *trial); /* run by the parent meanwhile */
	int world, rank;
	int odd; /* the rank that differs */
	int variant;
	bool elsewhere; /* each rank announces a node of its own */
	bool fails;     /* joining must fail */
	double seconds; /* limit for joining */
};

/* Used by a rank: the parent reports what is wrong. */
#define check(what, ...)                                            \
	do {                                                        \
		if (!(what))                                        \
			report_wrong(__LINE__, #what, __VA_ARGS__); \
	} while (0)

static int own_rank;

static void report_wrong(int line, const char *what, const char *format, ...)
{
	va_list arguments;
	size_t at;

	at = (size_t)snprintf(shared->error[own_rank], 1024, "rank %d, line %d: %s: ", own_rank,
			      line, what);
	va_start(arguments, format);
	vsnprintf(shared->error[own_rank] + at, 1024 - at, format, arguments);
	va_end(arguments);
	_exit(1);
}

static void sleep_for(double seconds)
{
	poll(NULL, 0, (int)(seconds * 1e3));
}

static zero_status get_address(void *context, int rank, struct zero_address *address)
{
	const struct trial *trial = context;

	while (atomic_load(&shared->listening) < trial->world)
		sleep_for(0.001);
	*address = shared->at[rank];
	return ZERO_OK;
}

static void count_failure_call(void *context)
{
	atomic_fetch_add((atomic_int *)context, 1);
}

int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

/* Reduces the offered addresses to the IPv6 loopback, if it is among them. */
static void offer_ipv6(struct zero_address *own)
{
	static const uint8_t loopback[16] = {[15] = 1};

	for (int i = 0; i < own->count; i++)
		if (own->at[i].family == 6 && !memcmp(own->at[i].bytes, loopback, 16)) {
			own->at[0] = own->at[i];
			own->count = 1;
		}
}

static struct zero_control *join_rank(const struct trial *trial)
{
	struct zero_control_config config = {.rank = trial->rank,
					     .world = trial->world,
					     .seconds = trial->seconds,
					     .address = get_address,
					     .on_failure = count_failure_call,
					     .on_failure_context = &shared->calls[trial->rank],
					     .context = (void *)trial};
	struct zero_control *control = NULL;
	struct zero_address *own = &shared->at[trial->rank];
	zero_status status;

	check(!zero_control_listen(&control, own), "%s", last_error);
	if (trial->elsewhere) {
		snprintf(own->node, sizeof(own->node), "node%d", trial->rank);
		control->own = *own;
		if (trial->rank % 2)
			offer_ipv6(own);
	}
	atomic_fetch_add(&shared->listening, 1);
	if (trial->fails && trial->rank == trial->odd)
		return control;
	get_address(config.context, 0, &(struct zero_address){0});
	status = zero_control_join(control, &config);
	check(trial->fails == (status != ZERO_OK), "joining: %s", last_error);
	/* A rank that fails at once could make others fail to join. */
	atomic_fetch_add(&shared->joined, 1);
	while (!trial->fails && atomic_load(&shared->joined) < trial->world)
		sleep_for(0.001);
	return control;
}

static void rank_main(struct trial trial, int rank)
{
	struct zero_control *control;

	own_rank = trial.rank = rank;
	control = join_rank(&trial);
	trial.program(control, &trial);
	zero_control_close(control);
	if (__lsan_do_recoverable_leak_check)
		check(!__lsan_do_recoverable_leak_check(), "a leak");
	_exit(0);
}

/* `killed` is a rank that may end with an error, or -1. */
static void run(const struct trial *trial, int killed)
{
	double until = zero_seconds() + HANG;
	pid_t pids[RANKS];
	int left = trial->world, status;

	memset(shared, 0, sizeof(*shared));
	fflush(NULL);
	for (int rank = 0; rank < trial->world; rank++) {
		pids[rank] = fork();
		ck_assert_int_ge(pids[rank], 0);
		if (!pids[rank])
			rank_main(*trial, rank);
	}
	if (trial->beside)
		trial->beside(trial);
	for (bool late = false; left; sleep_for(0.002)) {
		late = late || zero_seconds() > until;
		for (int rank = 0; rank < trial->world; rank++) {
			if (pids[rank] && late)
				kill(pids[rank], SIGKILL);
			if (!pids[rank] || waitpid(pids[rank], &status, WNOHANG) <= 0)
				continue;
			pids[rank] = 0;
			left--;
			if (rank != killed && status && !*shared->error[RANKS])
				snprintf(shared->error[RANKS], sizeof(shared->error[RANKS]),
					 "rank %d ends with status %x%s", rank, (unsigned)status,
					 late ? ", after too long" : "");
		}
	}
	/* Any rank may be the one that failed first. */
	for (int rank = 0; rank <= RANKS; rank++)
		if (*shared->error[rank])
			printf("%s\n", shared->error[rank]);
	fflush(stdout);
	for (int rank = 0; rank <= RANKS; rank++)
		ck_assert_msg(!*shared->error[rank], "seed %llu, %d ranks: %s",
			      (unsigned long long)seed, trial->world, shared->error[rank]);
}

static int run_all(TCase *tcase)
{
	const char *text = getenv("ZERO_TEST_SEED");
	Suite *suite = suite_create("control");
	SRunner *runner;
	int failed;

	seed = (uint64_t)getpid();
	if (text)
		seed = strtoull(text, NULL, 0);
	printf("ZERO_TEST_SEED=%llu\n", (unsigned long long)seed);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		return EXIT_FAILURE;
	tcase_set_timeout(tcase, 2 * HANG);
	suite_add_tcase(suite, tcase);
	runner = srunner_create(suite);
	srunner_run_all(runner, CK_ENV);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	munmap(shared, sizeof(*shared));
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif

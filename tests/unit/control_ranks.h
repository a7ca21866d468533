/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of a control plane as processes: a test forks them and checks how they end. */
#ifndef ZERO_CONTROL_RANKS_H
#define ZERO_CONTROL_RANKS_H

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "net/net_internal.h"
#include "unit.h"

enum { RANKS = 33, HANG = 60 /* s */ };

/* ---- random numbers -------------------------------------------------------------------------- */

static uint64_t seed;

static struct shared {
	atomic_int listening, joined, done, links[RANKS];
	_Atomic uint64_t
		ahead; /* nanoseconds by which the library's clock is before the machine's */
	struct zero_address at[RANKS];
	char error[RANKS + 1][1024]; /* error[RANKS] is the parent's */
} * shared;

/* ---- time ------------------------------------------------------------------------------------ */

static bool is_rank; /* the clock of the test's own process is the machine's */

/* These are called by the library instead of those of the C library. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
	int error = (int)syscall(SYS_clock_gettime, clock, now);
	uint64_t time = (uint64_t)now->tv_sec * 1000000000u + (uint64_t)now->tv_nsec;

	if (is_rank && clock == CLOCK_MONOTONIC)
		time += atomic_load(&shared->ahead);
	*now = (struct timespec){.tv_sec = (time_t)(time / 1000000000u),
				 .tv_nsec = (long)(time % 1000000000u)};
	return error;
}

/* Wakes now and then, and looks at that clock. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *lock,
			   const struct timespec *until)
{
	static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
	double left = (double)until->tv_sec + 1e-9 * (double)until->tv_nsec - zero_seconds();
	struct timespec soon;

	if (left <= 0)
		return ETIMEDOUT;
	if (!wait)
		*(void **)&wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &soon);
	soon.tv_nsec += 10000000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	wait(condition, lock, &soon);
	return 0;
}

static void advance_clock(double seconds)
{
	atomic_fetch_add(&shared->ahead, (uint64_t)(1e9 * seconds));
}

/* ---- ranks that are processes ---------------------------------------------------------------- */

struct trial {
	void (*program)(struct zero_net *net, const struct trial *trial);
	void (*beside)(const struct trial *trial); /* run by the parent meanwhile */
	int world, rank;
	int odd; /* the rank that differs */
	int variant;
	bool elsewhere; /* each rank announces a node of its own */
	bool fails;     /* joining must fail: the limit passes when all others have connected */
	int neighbours; /* of the rank that differs */
	bool late;      /* it joins when rank 0 has failed already */
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

static struct zero_net_team *world_team; /* NULL: there is none */
static atomic_bool has_joined;
static bool is_late; /* the trial's `late` */
static int others;   /* ranks but 0 and the late one */

/* Counts the connections that are used while the rank joins. */
static void *count_links(void *context)
{
	struct zero_net *net = context;

	while (!atomic_load(&has_joined)) {
		int count = 0;

		pthread_mutex_lock(&net->lock);
		for (const struct zero_link *link = net->links; link; link = link->next)
			count += link->confirmed;
		pthread_mutex_unlock(&net->lock);
		atomic_store(&shared->links[own_rank], count);
		if (is_late && !own_rank && count == others && !atomic_load(&shared->done)) {
			zero_net_ops.fail_all(net, ZERO_E_COMM, 1,
					      "the device of rank 1 is on fire");
			atomic_store(&shared->done, 1);
		}
		sleep_for(0.001);
	}
	return NULL;
}

/* Run by the parent: lets time run out when each connection is there that the late rank has no part
   in. */
static void wait_for_links(const struct trial *trial)
{
	int count = -1;

	while (count < 2 * (trial->world - 1 - trial->neighbours)) {
		sleep_for(0.001);
		count = 0;
		for (int rank = 0; rank < trial->world; rank++)
			count += atomic_load(&shared->links[rank]);
	}
	/* Some may not have begun to wait. */
	while (atomic_load(&shared->done) < trial->world - 1) {
		advance_clock(trial->seconds);
		sleep_for(0.01);
	}
}

static void get_node(void *context, int rank, char *text, size_t size)
{
	(void)context;
	snprintf(text, size, "node%d", rank);
}

static struct zero_net *join_rank(const struct trial *trial)
{
	struct zero_net_config config = {.rank = trial->rank,
					 .world = trial->world,
					 .seconds = trial->seconds,
					 .address = get_address,
					 .node = get_node,
					 .context = (void *)trial};
	struct zero_net *net = zero_net_new();
	struct zero_address *own = &shared->at[trial->rank];
	pthread_t counter;
	zero_status status;

	check(!zero_net_ops.listen(net, own), "%s", zero_last_error());
	if (trial->elsewhere) {
		snprintf(own->node, sizeof(own->node), "node%d", trial->rank);
		net->own = *own;
		if (trial->rank % 2)
			offer_ipv6(own);
	}
	atomic_fetch_add(&shared->listening, 1);
	if (trial->fails && !trial->late && trial->rank == trial->odd)
		return net;
	is_late = trial->late;
	others = trial->world - 2;
	while (trial->late && trial->rank == trial->odd && !atomic_load(&shared->done))
		sleep_for(0.001);
	get_address(config.context, 0, &(struct zero_address){0});
	if (trial->fails)
		pthread_create(&counter, NULL, count_links, net);
	status = zero_net_ops.join(net, &config);
	if (!status)
		status = zero_net_ops.team_new(net, NULL, 0, &world_team);
	atomic_store(&has_joined, true);
	if (trial->fails)
		pthread_join(counter, NULL);
	check(trial->fails == (status != ZERO_OK), "joining: %s", zero_last_error());
	/* A rank that fails at once could make others fail to join. */
	atomic_fetch_add(&shared->joined, 1);
	while (!trial->fails && atomic_load(&shared->joined) < trial->world)
		sleep_for(0.001);
	return net;
}

static void rank_main(struct trial trial, int rank)
{
	struct zero_net *net;

	alarm(HANG);
	is_rank = true;
	own_rank = trial.rank = rank;
	net = join_rank(&trial);
	trial.program(net, &trial);
	zero_net_close(net);
	if (__lsan_do_recoverable_leak_check)
		check(!__lsan_do_recoverable_leak_check(), "a leak");
	_exit(0);
}

/* `killed` is a rank that may end with an error, or -1. */
static void run(const struct trial *trial, int killed)
{
	uint64_t ahead = atomic_load(&shared->ahead);
	pid_t pids[RANKS], ended;
	int status;

	memset(shared, 0, sizeof(*shared));
	atomic_store(&shared->ahead, ahead);
	fflush(NULL);
	for (int rank = 0; rank < trial->world; rank++) {
		pids[rank] = fork();
		ck_assert_int_ge(pids[rank], 0);
		if (!pids[rank])
			rank_main(*trial, rank);
	}
	if (trial->fails && !trial->late)
		wait_for_links(trial);
	if (trial->beside)
		trial->beside(trial);
	for (int left = trial->world; left; left--) {
		int rank = 0;

		ended = wait(&status);
		while (pids[rank] != ended)
			rank++;
		if (rank != killed && status && !*shared->error[RANKS])
			snprintf(shared->error[RANKS], sizeof(shared->error[RANKS]),
				 "rank %d ends with status %x", rank, (unsigned)status);
		pids[rank] = 0;
		/* The others would wait for it. */
		for (int other = 0; rank != killed && status && other < trial->world; other++)
			if (pids[other])
				kill(pids[other], SIGKILL);
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
	seed = seed_of_test();
	shared = shared_memory(sizeof(*shared));
	return run_cases(tcase, NULL);
}

#endif

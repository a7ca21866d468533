/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_stop_on: after a signal to one rank, every zero_step sets `stop` on all ranks, also a step
 * that is skipped, and so does the end of each step of the program's own. zero_close restores the
 * previous handler.
 */
#include <math.h>
#include <signal.h>

#include "ranks.h"

static volatile sig_atomic_t mine;

static void count(int number)
{
	(void)number;
	mine++;
}

static void other(int number)
{
	(void)number;
}

static bool stops(zero_job *job, zero_group *group, zero_param *param, float sum)
{
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_step_result result = {.stop = false};
	float *sums;

	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	sums = zero_gradient(param);
	check(sums, "%s", zero_last_error());
	sums[0] = sum;
	ok(zero_release(group));
	ok(zero_step(job, &adamw, &result));
	check(result.skipped == !isfinite(sum), "skipped: %d", result.skipped);
	return result.stop;
}

static bool stops_itself(zero_job *job, zero_group *group)
{
	bool stop = false;
	static int turn;

	if (turn++ % 2)
		ok(zero_backward_end(job, NULL, 0));
	ok(zero_step_begin(job, &group, 1));
	ok(zero_step_end(job, &stop));
	return stop;
}

static void invalid(zero_job *job)
{
	fails(zero_stop_on(job, 0), ZERO_E_INVALID, "0 is not a signal");
	fails(zero_stop_on(job, -3), ZERO_E_INVALID, "-3 is not a signal");
	fails(zero_stop_on(job, 1000000), ZERO_E_INVALID, "1000000 is not a signal");
	fails(zero_stop_on(job, SIGKILL), ZERO_E_INVALID, "signal 9 (Killed) cannot be caught");
	fails(zero_stop_on(job, SIGSTOP), ZERO_E_INVALID, "cannot be caught");
	fails(zero_stop_on(job, SIGSEGV), ZERO_E_INVALID, "reports a fault");
}

static void *handler_of(int number)
{
	struct sigaction now;

	check(!sigaction(number, NULL, &now), "no signal %d", number);
	return (void *)now.sa_handler;
}

/* Rank `from` receives the signal before step `when`. */
static void once(int stage, int from, int number, int when)
{
	zero_job *job = open_job("stage=%d", stage);
	void *before = handler_of(SIGTERM);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 700, true);

	ok(zero_layout(job));
	invalid(job);
	ok(zero_stop_on(job, SIGUSR1));
	ok(zero_stop_on(job, SIGUSR1));
	ok(zero_stop_on(job, SIGTERM));
	ok(zero_stop_on(job, SIGUSR2));
	check(handler_of(SIGTERM) != before, "SIGTERM is not caught");
	for (int i = 0; i < 5; i++) {
		bool stop;

		if (i == when && zero_rank(job) == from)
			raise(number);
		/* The norm is not finite, so the step is skipped. */
		stop = stops(job, group, param, i == when ? INFINITY : 1);
		check(stop == (i >= when), "step %d says %d, after a signal before step %d", i,
		      stop, when);
		stop = stops_itself(job, group);
		check(stop == (i >= when), "own step %d says %d, after a signal before step %d", i,
		      stop, when);
	}
	/* A handler that the program has set since then is not replaced. */
	signal(SIGUSR2, other);
	ok(zero_close(job));
	check(handler_of(SIGUSR1) == (void *)count, "SIGUSR1 is not given back");
	check(handler_of(SIGTERM) == (void *)SIG_DFL, "SIGTERM is not given back");
	check(handler_of(SIGUSR2) == (void *)other, "SIGUSR2 is taken away");
	check(!mine, "the program's handler was called");
}

int main(void)
{
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=3");
	int world = zero_world(job);

	ok(zero_close(job));
	signal(SIGUSR1, count);
	for (int stage = 0; stage <= 3; stage++)
		once(stage, (int)below(&seed, (size_t)world), stage % 2 ? SIGTERM : SIGUSR1,
		     (int)below(&seed, 6));
	/* The next job does not inherit the request. */
	once(3, 0, SIGUSR1, 5);
	raise(SIGUSR1);
	check(mine == 1, "the program's handler was called %d times", (int)mine);
	return 0;
}

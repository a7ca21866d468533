/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When zerorun starts a job again, and after which pause. The launcher is a function of this file,
 * and so is the clock: a run lasts as long as its row says, and a pause takes no time.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "launcher/launch/launch.h"
#include "unit.h"

enum { MOST_RUNS = 16 };

static const int64_t SECOND = 1000000000;

/* How a run ends, and after how long. The last row of a job is repeated. */
struct run {
	int status;       /* a signal if it is negative */
	unsigned seconds; /* 0 ends a list */
};

static const struct run *script;
static int64_t clock_now; /* 0: Check reads the clock, to time a test */
static int signals[4];    /* that come in the first pause, 0.4 s after each other */
static unsigned signals_taken;
static char said[2048];

/* What the processes that are runs write, and when they have ended. */
static struct {
	unsigned runs;
	int64_t begin[MOST_RUNS], end[MOST_RUNS];
	char restart[MOST_RUNS][16];
} * seen;

static const struct run *run_of(unsigned number)
{
	const struct run *run = script;

	while (number-- && run[1].seconds)
		run++;
	return run;
}

int launch(struct plan *plan)
{
	const struct run *run = run_of(seen->runs);

	(void)plan;
	seen->begin[seen->runs] = clock_now;
	strcpy(seen->restart[seen->runs++], getenv("ZERO_RESTART"));
	if (run->status < 0)
		kill(getpid(), -run->status);
	_exit(run->status);
}

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	if (!clock_now)
		return __real_clock_gettime(clock, now);
	ck_assert_int_eq(clock, CLOCK_MONOTONIC);
	*now = (struct timespec){clock_now / SECOND, clock_now % SECOND};
	return 0;
}

pid_t __real_waitpid(pid_t process, int *status, int options);
pid_t __wrap_waitpid(pid_t process, int *status, int options);
pid_t __wrap_waitpid(pid_t process, int *status, int options)
{
	pid_t ended = __real_waitpid(process, status, options);

	if (clock_now && ended > 0) {
		clock_now += run_of(seen->runs - 1)->seconds * SECOND;
		seen->end[seen->runs - 1] = clock_now;
	}
	return ended;
}

int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *left);
int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info, const struct timespec *left)
{
	int number = signals[signals_taken];

	if (number) {
		signals_taken++;
		ck_assert(sigismember(set, number));
		info->si_signo = number;
		clock_now += 4 * SECOND / 10;
		return number;
	}
	/* a clock may be read a moment before the time has come */
	clock_now += left->tv_sec * SECOND + left->tv_nsec - left->tv_nsec % 2 + 1;
	errno = EAGAIN;
	return -1;
}

void __wrap_print_error(const char *format, ...);
void __wrap_print_error(const char *format, ...)
{
	size_t length = strlen(said);
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(said + length, sizeof(said) - length, format, arguments);
	va_end(arguments);
	strcat(said, "\n");
}

static void map_memory(void)
{
	seen = shared_memory(sizeof(*seen));
	unsetenv("SLURM_JOB_ID");
}

/* Runs a job, whose runs are numbered from 0 in ZERO_RESTART. */
static int status_of(unsigned limit, const struct run *runs)
{
	struct plan plan = {.is_srun = false};
	int status;

	memset(seen, 0, sizeof(*seen));
	script = runs;
	said[0] = '\0';
	signals_taken = 0;
	/* a clock that begins anywhere, at no whole second */
	clock_now = 123456 * SECOND + 987654321;
	status = launch_restarting(&plan, limit, NULL);
	clock_now = 0;
	for (unsigned i = 0; i < seen->runs; i++)
		ck_assert_int_eq(atoi(seen->restart[i]), (int)i);
	return status;
}

static void pauses_are(const unsigned *seconds, unsigned count)
{
	ck_assert_uint_eq(seen->runs, count + 1);
	for (unsigned i = 0; i < count; i++) {
		int64_t pause = seen->begin[i + 1] - seen->end[i];

		ck_assert_msg(llabs(pause - seconds[i] * SECOND) < 100, "pause %u is %g s", i,
			      1e-9 * (double)pause);
	}
}

START_TEST(what_is_final)
{
	static const int final[] = {0, 2, 126, 127};

	for (size_t i = 0; i < COUNT_OF(final); i++) {
		ck_assert_int_eq(status_of(3, (struct run[]){{final[i], 1}, {0}}), final[i]);
		ck_assert_uint_eq(seen->runs, 1);
		ck_assert_str_eq(said, "");
	}
	/* what asks to be run again is requeued within an allocation, by its script */
	setenv("SLURM_JOB_ID", "7", 1);
	ck_assert_int_eq(status_of(3, (struct run[]){{75, 1}, {0}}), 75);
	ck_assert_uint_eq(seen->runs, 1);
	ck_assert_int_eq(status_of(3, (struct run[]){{1, 1}, {0, 1}, {0}}), 0);
	ck_assert_uint_eq(seen->runs, 2);
	setenv("SLURM_JOB_ID", "", 1);
	ck_assert_int_eq(status_of(3, (struct run[]){{75, 1}, {0, 1}, {0}}), 0);
	ck_assert_uint_eq(seen->runs, 2);
}
END_TEST

START_TEST(each_end_is_named)
{
	ck_assert_int_eq(status_of(4, (struct run[]){{137, 1}, {-9, 1}, {75, 1}, {255, 1}, {0}}),
			 255);
	ck_assert_str_eq(
		said, "the job was ended by signal 9, Killed (status 137): restart 1 of 4 in 1 s\n"
		      "the job was ended by signal 9, Killed (status 137): restart 2 of 4 in 2 s\n"
		      "the job has stopped and asks to be run again (status 75): restart 3 of 4 in "
		      "4 s\n"
		      "the job ended with status 255: restart 4 of 4 in 8 s\n"
		      "the job ended with status 255: --max-restarts=4 allows no more restarts\n");
	ck_assert_uint_eq(seen->runs, 5);
}
END_TEST

START_TEST(pauses_grow_to_a_bound)
{
	static const unsigned pauses[] = {1, 2, 4, 8, 16, 32, 32, 32};

	ck_assert_int_eq(status_of(8, (struct run[]){{1, 59}, {0}}), 1);
	pauses_are(pauses, 8);
}
END_TEST

/* A run of a minute has made progress. */
START_TEST(a_long_run_resets_the_pause)
{
	static const unsigned pauses[] = {1, 2, 1, 2, 4, 1, 1};

	ck_assert_int_eq(
		status_of(7, (struct run[]){{1, 1}, {1, 1}, {1, 60}, {1, 1}, {1, 1}, {1, 90}, {0}}),
		1);
	pauses_are(pauses, 7);
}
END_TEST

START_TEST(a_signal_ends_a_pause)
{
	static const unsigned pause = 1;

	/* those that end no job are dropped, and the pause is as long as before */
	memcpy(signals, (int[]){SIGUSR1, SIGUSR2, 0, 0}, sizeof(signals));
	ck_assert_int_eq(status_of(3, (struct run[]){{1, 1}, {0, 1}, {0}}), 0);
	ck_assert_uint_eq(signals_taken, 2);
	pauses_are(&pause, 1);
	memcpy(signals, (int[]){SIGUSR1, SIGTERM, 0, 0}, sizeof(signals));
	ck_assert_int_eq(status_of(3, (struct run[]){{1, 1}, {0, 1}, {0}}), 128 + SIGTERM);
	ck_assert_uint_eq(seen->runs, 1);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("restart");

	tcase_add_checked_fixture(test, map_memory, NULL);
	tcase_add_test(test, what_is_final);
	tcase_add_test(test, each_end_is_named);
	tcase_add_test(test, pauses_grow_to_a_bound);
	tcase_add_test(test, a_long_run_resets_the_pause);
	tcase_add_test(test, a_signal_ends_a_pause);
	return run_cases(test, NULL);
}

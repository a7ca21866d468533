/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard of zerorun, which kills an mpirun that hangs without a rank. A copy of this program by
 * that name is the mpirun. The guard takes a turn when a test lets it.
 */
#define LEAVES_FILES 1
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "launcher/launch/launch.h"
#include "unit.h"

enum { TURN_MS = 500, TURNS = 8 };

static struct {
	atomic_int allowed, taken;
} * turns;
static char folder[64];
static int commands, answers;
static pid_t mpirun;

int __real_poll(struct pollfd *files, nfds_t count, int milliseconds);
int __wrap_poll(struct pollfd *files, nfds_t count, int milliseconds);
int __wrap_poll(struct pollfd *files, nfds_t count, int milliseconds)
{
	int ready = 0;

	if (milliseconds != TURN_MS) /* Check's own */
		return __real_poll(files, count, milliseconds);
	atomic_fetch_add(&turns->taken, 1);
	while (!ready && atomic_load(&turns->taken) > atomic_load(&turns->allowed))
		ready = __real_poll(files, count, 1);
	return ready;
}

/* ---- the stand-in ---------------------------------------------------------------------------- */

/* "+" starts a rank and "-" ends it. It stays a zombie, as one whose mpirun hangs. */
static void *obey(void *nothing)
{
	pid_t rank = 0;
	siginfo_t info;
	char command;

	while (read(STDIN_FILENO, &command, 1) == 1) {
		if (command == '+')
			rank = fork();
		if (command == '+' && rank == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				pause();
		}
		if (command == '-') {
			kill(rank, SIGKILL);
			waitid(P_PID, (id_t)rank, &info, WEXITED | WNOWAIT);
		}
		if (write(STDOUT_FILENO, &command, 1) != 1)
			break;
	}
	return nothing;
}

/* The main thread waits for another, or reads its input. */
static int be_mpirun(const char *main_thread)
{
	pthread_t thread;

	if (strcmp(main_thread, "reads") == 0)
		obey(NULL);
	else if (pthread_create(&thread, NULL, obey, NULL) == 0)
		pthread_join(thread, NULL);
	return EXIT_SUCCESS;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void start(const char *name, const char *main_thread)
{
	char command[256], program[96], error[96];
	int in[2], out[2];

	strcpy(folder, "/tmp/test_guard.XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(folder));
	snprintf(program, sizeof(program), "%s/%s", folder, name);
	snprintf(error, sizeof(error), "%s/error", folder);
	snprintf(command, sizeof(command), "cp /proc/%d/exe %s", (int)getpid(), program);
	ck_assert_int_eq(system(command), 0);
	turns = shared_memory(sizeof(*turns));
	ck_assert(!pipe(in) && !pipe(out));
	mpirun = fork();
	if (mpirun == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		dup2(open(error, O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
		close(in[1]);
		guard_start();
		execl(program, name, main_thread, (char *)NULL);
		_exit(EXIT_FAILURE);
	}
	close(in[0]);
	close(out[1]);
	commands = in[1];
	answers = out[0];
}

static void tell(char command)
{
	ck_assert_int_eq(write(commands, &command, 1), 1);
	ck_assert_int_eq(read(answers, &command, 1), 1);
}

/* Returns false if mpirun ends; a turn is over when the guard waits for the next. */
static bool take_turns(int count)
{
	int allowed = atomic_fetch_add(&turns->allowed, count) + count;

	while (atomic_load(&turns->taken) <= allowed) {
		siginfo_t info = {.si_pid = 0};

		waitid(P_PID, (id_t)mpirun, &info, WEXITED | WNOWAIT | WNOHANG);
		if (info.si_pid)
			return false;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	return true;
}

/* Ends mpirun's input, and returns how it ended; `said` is what the guard has printed. */
static int end(char said[256])
{
	char command[96], error[96];
	FILE *file;
	int status;

	close(commands);
	ck_assert_int_eq(waitpid(mpirun, &status, 0), mpirun);
	snprintf(error, sizeof(error), "%s/error", folder);
	file = fopen(error, "r");
	ck_assert_ptr_nonnull(file);
	said[fread(said, 1, 255, file)] = '\0';
	fclose(file);
	snprintf(command, sizeof(command), "rm -r %s", folder);
	ck_assert_int_eq(system(command), 0);
	return status;
}

/* Returns whether a process that is not the parent of mpirun may read what it waits for. */
static bool is_shown(void)
{
	char path[64];
	pid_t reader = fork();
	int status;

	if (reader == 0) {
		snprintf(path, sizeof(path), "/proc/%d/syscall", (int)mpirun);
		status = open(path, O_RDONLY);
		_exit(status < 0 || read(status, path, 1) != 1);
	}
	ck_assert_int_eq(waitpid(reader, &status, 0), reader);
	return status == 0;
}

/* The mpirun that was started is not killed, whatever it does once its rank is gone. */
static void is_left_alone(void)
{
	char said[256];

	tell('+');
	ck_assert(take_turns(1));
	tell('-');
	ck_assert(take_turns(2 * TURNS));
	ck_assert_int_eq(end(said), 0);
	ck_assert_str_eq(said, "");
}

START_TEST(an_mpirun_that_hangs_is_killed)
{
	char said[256];
	int status;

	start("mpirun", "joins");
	/* a guard that cannot see what mpirun waits for does nothing */
	if (!is_shown()) {
		is_left_alone();
		return;
	}
	/* it has no rank yet */
	ck_assert(take_turns(2 * TURNS));
	tell('+');
	ck_assert(take_turns(2 * TURNS));
	tell('-');
	/* turns without a rank count if they follow each other */
	ck_assert(take_turns(TURNS - 1));
	tell('+');
	ck_assert(take_turns(1));
	tell('-');
	ck_assert(take_turns(TURNS - 1));
	ck_assert(!take_turns(1));
	status = end(said);
	ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	ck_assert_str_eq(said,
			 "zerorun: all ranks have ended, but mpirun hangs: zerorun kills it\n");
}
END_TEST

START_TEST(what_does_not_hang_is_left_alone)
{
	/* it may wait for whoever reads its output, and a script for anything */
	start("mpirun", "reads");
	is_left_alone();
	start("script", "joins");
	is_left_alone();
}
END_TEST

static int run_tests(void)
{
	TCase *test = tcase_create("guard");

	tcase_add_test(test, an_mpirun_that_hangs_is_killed);
	tcase_add_test(test, what_does_not_hang_is_left_alone);
	return run_cases(test, NULL);
}

int main(int argc, char **argv)
{
	return argc > 1 ? be_mpirun(argv[1]) : run_tests();
}

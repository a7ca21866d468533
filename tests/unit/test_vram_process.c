/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that queries NVML: what it has, and what is left of it if the driver hangs. The
 * driver is waited for until it does; the clock then jumps to the deadline.
 */
#define LEAVES_FILES 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "nvml_double.h"

/* ---- the clock ------------------------------------------------------------------------------- */

/* The deadline of a query that is expected to be late. */
enum { DEADLINE = 1 };

static struct timespec stopped; /* what the clock shows; 0: it goes */
/* What the process that queries has given to setitimer, in shared memory; 0: nothing. */
static long *alarm_after;
static pid_t test_process;
static int fifo = -1;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
	if (!stopped.tv_sec)
		return __real_clock_gettime(clock, time);
	*time = stopped;
	return 0;
}

/* The process ends itself at a signal that a test sends. */
int __real_setitimer(__itimer_which_t which, const struct itimerval *timer,
		     struct itimerval *before);
int __wrap_setitimer(__itimer_which_t which, const struct itimerval *timer,
		     struct itimerval *before);
int __wrap_setitimer(__itimer_which_t which, const struct itimerval *timer,
		     struct itimerval *before)
{
	if (!stopped.tv_sec || getpid() == test_process)
		return __real_setitimer(which, timer, before);
	*alarm_after = timer->it_value.tv_sec * 1000000 + timer->it_value.tv_usec;
	return 0;
}

/* Returns whether the double hangs, or the loader, which reads a pipe without a writer. */
static bool hangs(void)
{
	struct stat status;

	if (stat(in_folder("stuck"), &status))
		return false;
	if (S_ISFIFO(status.st_mode))
		fifo = open(in_folder("stuck"), O_WRONLY | O_NONBLOCK);
	return S_ISREG(status.st_mode) || fifo >= 0;
}

/* Between two looks at the answer. */
int __real_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left);
int __wrap_nanosleep(const struct timespec *time, struct timespec *left)
{
	if (stopped.tv_sec && hangs())
		stopped.tv_sec += DEADLINE;
	return __real_nanosleep(time, left);
}

/* Queries a library that hangs. */
static void query_hanging(const char *path, struct zero_vram *vram)
{
	test_process = getpid();
	*alarm_after = 0;
	ck_assert_int_eq(__real_clock_gettime(CLOCK_MONOTONIC, &stopped), 0);
	read_vram(path, DEADLINE, vram);
	stopped.tv_sec = 0;
	/* the process would have ended itself by now */
	ck_assert_int_gt(*alarm_after, 0);
	ck_assert_int_le(*alarm_after, 1000000 * DEADLINE + 1);
}

static void query_hanging_double(const char *lines, struct zero_vram *vram)
{
	unlink(in_folder("stuck"));
	write_gpus(lines);
	query_hanging(library("nvml"), vram);
}

static unsigned entries(const char *path)
{
	DIR *entry = opendir(path);
	unsigned count = 0;

	ck_assert_ptr_nonnull(entry);
	while (readdir(entry))
		count++;
	closedir(entry);
	return count;
}

static unsigned threads_and_descriptors(void)
{
	return entries("/proc/self/task") + entries("/proc/self/fd");
}

/* The query must leave no child, thread or descriptor in this process. */
static void nothing_left(unsigned before)
{
	ck_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
	ck_assert_uint_eq(threads_and_descriptors(), before);
}

static void map_memory(void)
{
	alarm_after = shared_memory(sizeof(*alarm_after));
}

/* Returns the process that hangs in the double. */
static pid_t stuck(void)
{
	FILE *file = fopen(in_folder("stuck"), "r");
	pid_t process = 0;

	ck_assert_ptr_nonnull(file);
	ck_assert_int_eq(fscanf(file, "%d", &process), 1);
	fclose(file);
	return process;
}

/* Waits until the process has ended; a zombie has. */
static void wait_for_end(pid_t process)
{
	const struct timespec moment = {0, 1000000};
	char path[64], state = 'R';

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
	while (state != 'Z') {
		FILE *file = fopen(path, "r");

		if (!file || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
			state = 'Z';
		if (file)
			fclose(file);
		nanosleep(&moment, NULL);
	}
}

/* As the alarm does. */
static void end_stuck(void)
{
	pid_t process = stuck();

	ck_assert_int_eq(kill(process, SIGALRM), 0);
	wait_for_end(process);
}

START_TEST(a_hanging_driver_does_not_block)
{
	static const char *const calls[] = {"nvmlInit_v2", "nvmlDeviceGetCount_v2",
					    "nvmlDeviceGetHandleByIndex_v2",
					    "nvmlDeviceGetMemoryInfo", "nvmlShutdown"};
	unsigned before = threads_and_descriptors();

	for (size_t i = 0; i < COUNT_OF(calls); i++) {
		struct zero_vram vram;
		char lines[256];

		snprintf(lines, sizeof(lines),
			 "gpu GPU-a 70G 80G NVIDIA H100\ngpu GPU-b 60G 80G NVIDIA H100\n"
			 "wedge %s%s\n",
			 calls[i], strstr(calls[i], "DeviceGet") && i > 1 ? " GPU-b" : "");
		query_hanging_double(lines, &vram);
		ck_assert_uint_eq(vram.count, i < 2 ? 0 : i < 4 ? 1 : 2);
		if (vram.count)
			ck_assert_uint_eq(vram.gpu[0].free, 70 * GB);
		ck_assert_ptr_nonnull(strstr(vram.why, "NVML did not answer within 1 s"));
		ck_assert_ptr_nonnull(strstr(vram.why, calls[i]));
		if (i == 2 || i == 3)
			ck_assert_ptr_nonnull(strstr(vram.why, " of GPU 1; "));
		zero_vram_clear(&vram);
		nothing_left(before);
		end_stuck();
	}
}
END_TEST

/* slurmstepd must still be able to change its ids, which waits for its threads, and to end. */
START_TEST(a_driver_that_ignores_signals_does_not_block)
{
	unsigned before = threads_and_descriptors();
	struct zero_vram vram;
	pid_t process;

	query_hanging_double("gpu GPU-a 70G 80G NVIDIA H100\ngpu GPU-b 60G 80G NVIDIA H100\n"
			     "stuck nvmlDeviceGetMemoryInfo GPU-b\n",
			     &vram);
	process = stuck();
	ck_assert(setegid(getegid()) == 0 && seteuid(geteuid()) == 0);
	/* the process still exists, but is no child of ours */
	ck_assert_int_eq(kill(process, SIGALRM), 0);
	ck_assert_int_eq(kill(process, 0), 0);
	nothing_left(before);
	kill(process, SIGKILL);
	ck_assert_uint_eq(vram.count, 1);
	ck_assert_str_eq(vram.why, "NVML did not answer within 1 s: nvmlDeviceGetMemoryInfo of "
				   "GPU 1; later GPUs are left out");
	ck_assert(!loaded("nvml"));
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(a_library_that_hangs_while_it_is_loaded_is_abandoned)
{
	struct zero_vram vram;

	/* the loader blocks, since the pipe has no writer that writes */
	ck_assert_int_eq(mkfifo(in_folder("stuck"), 0644), 0);
	query_hanging(in_folder("stuck"), &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_str_eq(vram.why, "NVML did not answer within 1 s: dlopen");
	close(fifo);
}
END_TEST

START_TEST(a_library_that_dies_is_reported)
{
	unsigned before = threads_and_descriptors();
	struct zero_vram vram;

	query("gpu GPU-a 70G 80G NVIDIA H100\ngpu GPU-b 60G 80G NVIDIA H100\n"
	      "die nvmlDeviceGetName GPU-b\n",
	      &vram);
	ck_assert_uint_eq(vram.count, 1);
	ck_assert_str_eq(vram.why,
			 "the process that queried NVML died: nvmlDeviceGetName of GPU 1; "
			 "later GPUs are left out");
	zero_vram_clear(&vram);
	query("gpu GPU-a 70G 80G NVIDIA H100\ndie nvmlInit_v2\n", &vram);
	ck_assert_str_eq(vram.why, "the process that queried NVML died: nvmlInit_v2");
	nothing_left(before);
}
END_TEST

static void ignore(int number)
{
	(void)number;
}

/* Other users may have no access to the build folder. */
static void copy_library(void)
{
	char command[3 * PATH_MAX];

	snprintf(command, sizeof(command), "install -m 0755 '%s' '%s'", library("nvml"),
		 in_folder("nvml.so"));
	ck_assert_int_eq(system(command), 0);
}

/* The caller is as slurmstepd: it has the user's effective ids, and blocks and handles signals. */
START_TEST(the_process_has_only_what_it_needs)
{
	const uid_t user = geteuid() ? geteuid() : 65533;
	const gid_t group = geteuid() ? getegid() : 65532;
	struct zero_vram vram;
	char facts[96];
	sigset_t blocked;

	snprintf(facts, sizeof(facts), "%u %u %u %u %u %u / leads closed 0 0 0,1,2,3", user, user,
		 user, group, group, group);
	write_gpus("facts GPU-a\n");
	copy_library();
	ck_assert(open("/dev/zero", O_RDONLY) >= 0 && open("/dev/zero", O_RDONLY | O_CLOEXEC) >= 0);
	ck_assert_int_ge(dup2(STDERR_FILENO, 200), 0);
	sigfillset(&blocked);
	sigprocmask(SIG_SETMASK, &blocked, NULL);
	signal(SIGTERM, ignore);
	signal(SIGALRM, SIG_IGN);
	ck_assert(setegid(group) == 0 && seteuid(user) == 0);
	read_vram(in_folder("nvml.so"), 300, &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 1);
	ck_assert_str_eq(vram.gpu[0].model, facts);
	zero_vram_clear(&vram);
	ck_assert_int_eq(seteuid(getuid()), 0);
	/* the caller ignores SIGALRM, but it must still end the process */
	query_hanging_double("wedge nvmlInit_v2\n", &vram);
	ck_assert_str_eq(vram.why, "NVML did not answer within 1 s: nvmlInit_v2");
	end_stuck();
}
END_TEST

START_TEST(a_late_answer_is_ignored)
{
	struct zero_vram vram, copy;
	pid_t process;

	query_hanging_double("gpu GPU-a 70G 80G NVIDIA H100\ngpu GPU-b 60G 80G NVIDIA H100\n"
			     "wait nvmlDeviceGetMemoryInfo GPU-b\n",
			     &vram);
	ck_assert_uint_eq(vram.count, 1);
	copy = vram;
	process = stuck();
	ck_assert_int_eq(unlink(in_folder("stuck")), 0);
	wait_for_end(process);
	ck_assert_mem_eq(&vram, &copy, sizeof(vram));
	ck_assert_uint_eq(vram.gpu[0].free, 70 * GB);
	ck_assert(!loaded("nvml"));
	zero_vram_clear(&vram);

	query("gpu GPU-c 5G 8G T4\n", &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 1);
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(the_caller_keeps_its_signals)
{
	sigset_t before, after;
	struct zero_vram vram;

	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	sigprocmask(SIG_SETMASK, &before, NULL);
	query_hanging_double("gpu GPU-a 1G 1G T4\nwedge nvmlInit_v2\n", &vram);
	end_stuck();
	sigprocmask(SIG_SETMASK, NULL, &after);
	for (int i = 1; i < SIGRTMIN; i++)
		ck_assert_int_eq(sigismember(&after, i), sigismember(&before, i));
	zero_vram_clear(&vram);
	/* the same in a process that ignores SIGCHLD */
	signal(SIGCHLD, SIG_IGN);
	query("gpu GPU-a 1G 1G T4\n", &vram);
	ck_assert_str_eq(vram.why, "");
	zero_vram_clear(&vram);
}
END_TEST

static char stuck_path[PATH_MAX];
static volatile sig_atomic_t interruptions;

/* Lets the double go on after some signals. */
static void interrupt(int number)
{
	(void)number;
	if (++interruptions > 5)
		unlink(stuck_path);
}

/* Signals that are handled during the wait do not end it. */
START_TEST(an_interrupted_wait_continues)
{
	struct itimerval often = {{0, 5000}, {0, 5000}};
	struct sigaction action = {.sa_handler = interrupt};
	struct zero_vram vram;

	strcpy(stuck_path, in_folder("stuck"));
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	query("gpu GPU-a 1G 1G T4\nwait nvmlInit_v2\n", &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 1);
	ck_assert_int_gt(interruptions, 5);
	zero_vram_clear(&vram);
	setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, NULL);
	ck_assert(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}
END_TEST

/* The query must not reap another child of the caller. */
START_TEST(other_children_are_not_waited_for)
{
	struct zero_vram vram;
	pid_t child = fork();
	int status;

	if (child == 0)
		_exit(7);
	query("gpu GPU-a 1G 1G T4\n", &vram);
	zero_vram_clear(&vram);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(WEXITSTATUS(status), 7);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("vram_process");

	tcase_add_checked_fixture(test, map_memory, NULL);
	tcase_add_checked_fixture(test, make_folder, remove_folder);
	tcase_add_test(test, a_hanging_driver_does_not_block);
	tcase_add_test(test, a_driver_that_ignores_signals_does_not_block);
	tcase_add_test(test, a_library_that_hangs_while_it_is_loaded_is_abandoned);
	tcase_add_test(test, a_library_that_dies_is_reported);
	tcase_add_test(test, the_process_has_only_what_it_needs);
	tcase_add_test(test, a_late_answer_is_ignored);
	tcase_add_test(test, the_caller_keeps_its_signals);
	tcase_add_test(test, an_interrupted_wait_continues);
	tcase_add_test(test, other_children_are_not_waited_for);
	return run_cases(test, NULL);
}

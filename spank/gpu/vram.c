/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queries NVML in a process of its own, since a call into a broken driver may never return, and no
 * signal ends it then. The process is a fork that executes no program, such as nvidia-smi. A thread
 * would not do: the next seteuid of slurmstepd waits until every thread has handled a signal, which
 * a thread that hangs in the kernel does not do, and at its end slurmstepd unloads the code that
 * the thread executes.
 *
 * The process is a grandchild whose parent ends at once, so that the step does not wait for it
 * while the driver blocks it. It writes its results to shared memory, and each task reads them
 * there when it needs them. Descriptors and process numbers would not do: with contain_spank
 * user_init runs in a process that shares only memory with slurmstepd
 * (src/slurmd/slurmstepd/mgr.c). The process ends itself at the deadline by SIGALRM, whose default
 * action is as good as SIGKILL. Nobody has to kill it by its number, which may belong to another
 * process by then.
 *
 * slurmstepd calls this with the effective ids of the user, but has root as real and saved ids. The
 * process gives those up before it loads anything. As it still has a copy of slurmstepd's memory,
 * no other process of the user may read its memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/text.h"
#include "nvml_query.h"
#include "vram.h"

/* Returns the time until the deadline in seconds; 0 if it has passed. */
static double time_left(double deadline)
{
	double left = deadline - zero_seconds();

	return left > 0 ? left : 0;
}

/* Resets signals as in a new program, and lets SIGALRM end the process after the deadline. */
static void reset_signals(double deadline)
{
	long microseconds = (long)(1e6 * time_left(deadline)) + 1;
	struct itimerval timer = {.it_value = {microseconds / 1000000, microseconds % 1000000}};
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int signal = 1; signal < NSIG; signal++)
		sigaction(signal, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Drops all ids but the effective ones, and forbids ptrace and core files. */
static bool drop_privileges(void)
{
	gid_t group = getegid();
	uid_t user = geteuid();

	return !setresgid(group, group, group) && !setresuid(user, user, user) &&
	       !prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

static void close_from(unsigned first)
{
	const rlim_t most = 1 << 16;
	struct rlimit limit;

#ifdef SYS_close_range
	if (syscall(SYS_close_range, first, ~0U, 0) == 0)
		return;
#endif
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur > most)
		limit.rlim_cur = most;
	for (rlim_t i = first; i < limit.rlim_cur; i++)
		close((int)i);
}

static bool close_all(void)
{
	int nothing = open("/dev/null", O_RDWR);

	for (int i = 0; nothing >= 0 && i <= STDERR_FILENO; i++) {
		if (dup2(nothing, i) != i)
			return false;
	}
	close_from(STDERR_FILENO + 1);
	return nothing >= 0;
}

/*
 * Lets the kernel mark the shared memory when this process ends, whatever ends it: a robust futex
 * of its own. A robust mutex would have pointers there, which the process of a user could change.
 */
static void mark_end(struct nvml_results *results)
{
	static struct robust_list entry;
	static struct robust_list_head head;

	entry.next = &head.list;
	head.list.next = &entry;
	head.futex_offset = (long)((uintptr_t)&results->owner - (uintptr_t)&entry);
	atomic_store(&results->owner, (uint32_t)syscall(SYS_gettid));
	syscall(SYS_set_robust_list, &head, sizeof(head));
}

/* The process. Exits without running any exit handler of slurmstepd. */
__attribute__((noreturn)) static void nvml_child(struct nvml_results *results, const char *library,
						 double deadline)
{
	mark_end(results);
	prctl(PR_SET_NAME, "spank_zero nvml", 0, 0, 0);
	setsid();
	reset_signals(deadline);
	if (!drop_privileges())
		nvml_append_clause(results->why, sizeof(results->why),
				   "the process that queries NVML cannot drop root: %s",
				   strerror(errno));
	else if (chdir("/") || !close_all())
		nvml_append_clause(results->why, sizeof(results->why),
				   "the process that queries NVML cannot be set up: %s",
				   strerror(errno));
	else
		nvml_query(results, library);
	results->left = deadline - zero_seconds();
	/* a task need not wait until the driver has released everything */
	nvml_set_call(results, NVML_DONE, NVML_GPUS);
	_exit(EXIT_SUCCESS);
}

/* Forks the process. Returns its parent, which ends at once, or -1. */
static pid_t start_child(struct nvml_results *results, const char *library, double deadline)
{
	sigset_t all, before;
	pid_t parent;

	/* signal handlers of the caller must not run in the copies */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	parent = fork();
	if (parent == 0) {
		pid_t child = fork();

		if (child == 0)
			nvml_child(results, library, deadline);
		if (child < 0) {
			nvml_append_clause(results->why, sizeof(results->why),
					   "the process that queries NVML cannot be started: %s",
					   strerror(errno));
			nvml_set_call(results, NVML_DONE, NVML_GPUS);
		}
		_exit(EXIT_SUCCESS);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return parent;
}

/* Waits until the process is done or has ended. Returns false if the deadline passed before. */
static bool wait_child(struct nvml_results *results, double deadline)
{
	const struct timespec millisecond = {.tv_nsec = 1000000};

	for (;;) {
		struct nvml_progress progress =
			atomic_load_explicit(&results->progress, memory_order_acquire);
		bool ended = atomic_load(&results->owner) & FUTEX_OWNER_DIED;

		/* after the deadline, the end of the process means that SIGALRM ended it */
		if (progress.call >= NVML_DONE || ended || time_left(deadline) <= 0)
			return time_left(deadline) > 0;
		nanosleep(&millisecond, NULL);
	}
}

/* Makes a bool and texts valid, since a process of the user may have written any bytes. */
static void sanitize(struct zero_gpu *gpu)
{
	unsigned char partitioned;

	memcpy(&partitioned, &gpu->partitioned, 1);
	gpu->partitioned = partitioned != 0;
	gpu->uuid[sizeof(gpu->uuid) - 1] = gpu->model[sizeof(gpu->model) - 1] = '\0';
	gpu->bus[sizeof(gpu->bus) - 1] = '\0';
	zero_clean(gpu->uuid);
	zero_clean(gpu->model);
}

/* Copies the results so far. The user may control the process, so that nothing is trusted. */
static void read_results(struct nvml_results *results, bool in_time, double seconds,
			 struct zero_vram *vram)
{
	struct nvml_progress progress =
		atomic_load_explicit(&results->progress, memory_order_acquire);
	size_t count = progress.count < NVML_ENTRIES ? progress.count : NVML_ENTRIES;
	size_t length = progress.why < sizeof(vram->why) ? progress.why : sizeof(vram->why) - 1;
	char problem[64] = "the process that queried NVML died";
	const char *call;

	memcpy(vram->why, results->why, length);
	zero_clean(vram->why);
	vram->gpu = count ? malloc(count * sizeof(vram->gpu[0])) : NULL;
	if (vram->gpu) {
		memcpy(vram->gpu, results->gpu, count * sizeof(vram->gpu[0]));
		vram->count = count;
	} else if (count) {
		nvml_append_clause(vram->why, sizeof(vram->why), "out of memory for %zu GPUs",
				   count);
	}
	for (size_t i = 0; i < vram->count; i++)
		sanitize(&vram->gpu[i]);
	if (progress.call >= NVML_DONE)
		return;
	if (!in_time)
		snprintf(problem, sizeof(problem), "NVML did not answer within %g s", seconds);
	call = nvml_call_name(progress.call);
	if (progress.gpu >= NVML_GPUS)
		nvml_append_clause(vram->why, sizeof(vram->why), "%s: %s", problem, call);
	else
		nvml_append_clause(vram->why, sizeof(vram->why),
				   "%s: %s of GPU %u; later GPUs are left out", problem, call,
				   progress.gpu);
}

void zero_vram_ask(const char *library, double seconds, struct zero_vram_query *query)
{
	void *shared;
	pid_t parent;

	*query = (struct zero_vram_query){.seconds = seconds, .deadline = zero_seconds() + seconds};
	if (library && library[0] != '/' && (!library[0] || strchr(library, '/'))) {
		snprintf(query->why, sizeof(query->why),
			 "NVML cannot be loaded: '%s' is not an absolute path", library);
		return;
	}
	shared = mmap(NULL, sizeof(*query->results), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED) {
		snprintf(query->why, sizeof(query->why),
			 "there is no memory for results of NVML: %s", strerror(errno));
		return;
	}
	query->results = shared;
	nvml_set_call(query->results, NVML_START, NVML_GPUS);
	parent = start_child(query->results, library, query->deadline);
	if (parent > 0) {
		/* it has usually ended long ago; no other child of slurmstepd may be waited for */
		while (waitpid(parent, NULL, 0) < 0 && errno == EINTR)
			;
		return;
	}
	snprintf(query->why, sizeof(query->why),
		 "the process that queries NVML cannot be started: %s", strerror(errno));
	zero_vram_forget(query);
}

void zero_vram_answer(const struct zero_vram_query *query, struct zero_vram *vram)
{
	memset(vram, 0, sizeof(*vram));
	memcpy(vram->why, query->why, sizeof(vram->why));
	if (query->results)
		read_results(query->results, wait_child(query->results, query->deadline),
			     query->seconds, vram);
}

double zero_vram_seconds(const struct zero_vram_query *query)
{
	const struct nvml_results *results = query->results;
	struct nvml_progress progress;
	double seconds;

	if (!results)
		return 0;
	progress = atomic_load_explicit(&results->progress, memory_order_acquire);
	if (progress.call < NVML_DONE)
		return 0;
	/* the process, which is the user's, may have written any number */
	seconds = query->seconds - results->left;
	return seconds > 0 && seconds <= query->seconds ? seconds : 0;
}

void zero_vram_forget(struct zero_vram_query *query)
{
	if (query->results)
		munmap(query->results, sizeof(*query->results));
	query->results = NULL;
}

void zero_vram_clear(struct zero_vram *vram)
{
	free(vram->gpu);
	memset(vram, 0, sizeof(*vram));
}

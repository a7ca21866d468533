/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asks NVML in a process of its own, since a call into a wedged driver may never return, and no
 * signal ends it then. The process is a fork that executes nothing, unlike nvidia-smi. A thread
 * would not do: slurmstepd's next seteuid waits for every thread to answer a signal, which one that
 * hangs in the kernel does not, and at its end slurmstepd unloads the code that the thread runs.
 *
 * The process is a grandchild, and its parent ends at once: so a step has nothing to wait for while
 * the driver still holds the process. What it reads arrives in shared memory. It ends itself at the
 * deadline: by default SIGALRM is as deadly as SIGKILL, and nobody has to send it to a number that
 * may be another process's by then, which slurmstepd, whose real user is root, would end as well.
 *
 * slurmstepd asks with the user's effective ids, but has root's real and saved ones. The process
 * gives those up before it loads anything. As it still has a copy of slurmstepd's memory, no other
 * process of the user's may look into it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
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

#include "nvml.h"
#include "core/text.h"
#include "core/clock.h"
#include "vram.h"

static void say(char *why, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Adds a clause if there is room for a good part of it. */
static void say(char *why, size_t size, const char *format, ...)
{
	size_t used = strlen(why);
	va_list arguments;

	if (used) {
		if (used + 32 > size)
			return;
		memcpy(why + used, "; ", 3);
		used += 2;
	}
	va_start(arguments, format);
	vsnprintf(why + used, size - used, format, arguments);
	va_end(arguments);
}

/* 0 once it has passed */
static struct timespec left_until(const struct timespec *deadline)
{
	struct timespec now, left;

	clock_gettime(CLOCK_MONOTONIC, &now);
	left.tv_sec = deadline->tv_sec - now.tv_sec;
	left.tv_nsec = deadline->tv_nsec - now.tv_nsec;
	if (left.tv_nsec < 0) {
		left.tv_sec--;
		left.tv_nsec += 1000000000;
	}
	return left.tv_sec < 0 ? (struct timespec){0} : left;
}

/* Signals act as in a new program, and one ends us at the deadline, not before. */
static void reset_signals(const struct timespec *deadline)
{
	struct timespec left = left_until(deadline);
	long microseconds = left.tv_nsec / 1000 + 1;
	struct itimerval timer = {
		.it_value = {left.tv_sec + microseconds / 1000000, microseconds % 1000000}};
	struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int signal = 1; signal < NSIG; signal++)
		sigaction(signal, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

/* For good; and nobody with those ids may read our memory or have it in a core file. */
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

/* Keeps the pipe alone, as the first descriptor after the three that all have. */
static bool keep_only(int *pipe)
{
	enum { KEPT = STDERR_FILENO + 1 };
	int nothing;

	if (*pipe != KEPT && dup3(*pipe, KEPT, O_CLOEXEC) != KEPT)
		return false;
	*pipe = KEPT;
	nothing = open("/dev/null", O_RDWR);
	for (int i = 0; nothing >= 0 && i < KEPT; i++) {
		if (dup2(nothing, i) != i)
			return false;
	}
	close_from(KEPT + 1);
	return nothing >= 0;
}

/* Never returns into the program that it is a copy of, whose end is none of its business. */
__attribute__((noreturn)) static void answer(struct nvml_answers *answers, const char *library,
					     int pipe, const struct timespec *deadline)
{
	prctl(PR_SET_NAME, "spank_zero nvml", 0, 0, 0);
	setsid();
	reset_signals(deadline);
	if (!drop_privileges())
		nvml_tell(answers, "cannot give up privileges to ask NVML: %s", strerror(errno));
	else if (chdir("/") || !keep_only(&pipe))
		nvml_tell(answers, "cannot prepare to ask NVML: %s", strerror(errno));
	else
		nvml_ask(answers, library);
	nvml_calling(answers, NVML_DONE, NVML_GPUS);
	/* the driver may take its time with what an end releases */
	if (write(pipe, "", 1) != 1)
		_exit(EXIT_FAILURE);
	_exit(EXIT_SUCCESS);
}

/* Returns the process's parent, which does no more than that, or -1. */
static pid_t start(struct nvml_answers *answers, const char *library, int pipe,
		   const struct timespec *deadline)
{
	sigset_t all, before;
	pid_t parent;

	/* Handlers are the caller's; its copies shall not run them. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	parent = fork();
	if (parent == 0) {
		pid_t child = fork();

		if (child == 0)
			answer(answers, library, pipe, deadline);
		if (child < 0) {
			nvml_tell(answers, "no process to ask NVML: %s", strerror(errno));
			nvml_calling(answers, NVML_DONE, NVML_GPUS);
		}
		_exit(EXIT_SUCCESS);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return parent;
}

/*
 * It ended long ago, unless this machine is very busy. Waits for no other child, and not for ever;
 * as long as it is not waited for, its number is its own.
 */
static void reap(pid_t parent)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	for (unsigned i = 0; i < 1000 && waitpid(parent, NULL, WNOHANG) == 0; i++) {
		if (i == 500)
			kill(parent, SIGKILL);
		nanosleep(&moment, NULL);
	}
}

/* Waits for the process, at most until the deadline; false if that has passed. */
static bool await(int pipe, const struct timespec *deadline)
{
	struct pollfd poll = {.fd = pipe, .events = POLLIN};
	struct timespec left;
	int ready;

	do {
		left = left_until(deadline);
		ready = ppoll(&poll, 1, &left, NULL);
	} while (ready < 0 && errno == EINTR);
	/* That it ended tells nothing if it was its time. */
	left = left_until(deadline);
	return ready > 0 && (left.tv_sec || left.tv_nsec);
}

/* A process of the user's may have written any bytes: those that are no bool, and any text. */
static void clean(struct zero_gpu *gpu)
{
	unsigned char partitioned;

	memcpy(&partitioned, &gpu->partitioned, 1);
	gpu->partitioned = partitioned != 0;
	gpu->uuid[sizeof(gpu->uuid) - 1] = gpu->model[sizeof(gpu->model) - 1] = '\0';
	zero_clean(gpu->uuid);
	zero_clean(gpu->model);
}

/* Takes what there is. It comes from a process of the user's: nothing in it is relied on. */
static void take(struct nvml_answers *answers, bool in_time, double seconds, struct zero_vram *vram)
{
	struct nvml_progress progress =
		atomic_load_explicit(&answers->progress, memory_order_acquire);
	size_t count = progress.count < NVML_ENTRIES ? progress.count : NVML_ENTRIES;
	size_t length = progress.why < sizeof(vram->why) ? progress.why : sizeof(vram->why) - 1;
	char ended[64] = "the process that asked NVML died";
	const char *call;

	memcpy(vram->why, answers->why, length);
	zero_clean(vram->why);
	vram->gpu = count ? malloc(count * sizeof(vram->gpu[0])) : NULL;
	if (vram->gpu) {
		memcpy(vram->gpu, answers->gpu, count * sizeof(vram->gpu[0]));
		vram->count = count;
	} else if (count) {
		say(vram->why, sizeof(vram->why), "no memory for %zu GPUs", count);
	}
	for (size_t i = 0; i < vram->count; i++)
		clean(&vram->gpu[i]);
	if (progress.call >= NVML_DONE)
		return;
	if (!in_time)
		snprintf(ended, sizeof(ended), "NVML gave no answer within %g s", seconds);
	call = nvml_call_name(progress.call);
	if (progress.of >= NVML_GPUS)
		say(vram->why, sizeof(vram->why), "%s: %s", ended, call);
	else
		say(vram->why, sizeof(vram->why), "%s: %s of GPU %u; those after it are left out",
		    ended, call, progress.of);
}

void zero_vram_ask(const char *library, double seconds, struct zero_vram *vram)
{
	struct timespec deadline = zero_deadline(seconds);
	struct nvml_answers *answers;
	int pipe[2] = {-1, -1};
	pid_t parent;

	memset(vram, 0, sizeof(*vram));
	if (library && library[0] != '/' && (!library[0] || strchr(library, '/'))) {
		say(vram->why, sizeof(vram->why), "cannot load NVML: '%s' is not an absolute path",
		    library);
		return;
	}
	answers = mmap(NULL, sizeof(*answers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		       -1, 0);
	if (answers == MAP_FAILED || pipe2(pipe, O_CLOEXEC)) {
		say(vram->why, sizeof(vram->why), "no memory to ask NVML: %s", strerror(errno));
		goto out;
	}
	nvml_calling(answers, NVML_START, NVML_GPUS);
	parent = start(answers, library, pipe[1], &deadline);
	if (parent < 0) {
		say(vram->why, sizeof(vram->why), "no process to ask NVML: %s", strerror(errno));
		goto out;
	}
	/* now it ends with the process */
	close(pipe[1]);
	pipe[1] = -1;
	take(answers, await(pipe[0], &deadline), seconds, vram);
	reap(parent);
out:
	for (size_t i = 0; i < 2; i++) {
		if (pipe[i] >= 0)
			close(pipe[i]);
	}
	if (answers != MAP_FAILED)
		munmap(answers, sizeof(*answers));
}

void zero_vram_clear(struct zero_vram *vram)
{
	free(vram->gpu);
	memset(vram, 0, sizeof(*vram));
}

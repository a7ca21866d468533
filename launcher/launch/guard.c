/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The mpirun of Open MPI 4 may hang for ever when a rank dies while it connects to mpirun's PMIx
 * server: the server's thread waits for that rank, and the main thread for the server's. No rank is
 * left that could end mpirun. So a process of its own watches whether mpirun still has ranks. Open
 * MPI 5 has another server.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/launch/launch.h"

enum { TURN_MS = 500, TURNS = 8 }; /* it is killed after 4 s without a rank */

/* Whether the process has become mpirun yet. A script in its place is left alone. */
static bool is_mpirun(pid_t launcher)
{
	static const char *const names[] = {"mpirun", "orterun"};
	char *path = format_text("/proc/%d/exe", (int)launcher), program[4096];
	ssize_t length = readlink(path, program, sizeof program - 1);
	const char *name;

	free(path);
	program[length > 0 ? length : 0] = 0;
	name = strrchr(program, '/');
	for (size_t i = 0; name && i < sizeof names / sizeof names[0]; i++)
		if (strcmp(name + 1, names[i]) == 0)
			return true;
	return false;
}

/* Whether a process exists and has not ended. In "PID (name) state", a name may have any byte. */
static bool is_alive(int process)
{
	char *path = format_text("/proc/%d/stat", process), line[512];
	FILE *file = fopen(path, "re");
	const char *state = NULL;

	free(path);
	if (file && fgets(line, sizeof line, file))
		state = strrchr(line, ')');
	if (file)
		fclose(file);
	return state && state[1] && state[2] != 'Z' && state[2] != 'X';
}

/* The number of processes that a thread of mpirun started and that still run; -1: not known. */
static int children_of(pid_t launcher, const char *thread)
{
	char *path = format_text("/proc/%d/task/%s/children", (int)launcher, thread);
	FILE *file = fopen(path, "re");
	int process, count = 0;

	free(path);
	if (!file)
		return -1;
	while (fscanf(file, "%d", &process) == 1)
		count += is_alive(process);
	fclose(file);
	return count;
}

static int count_children(pid_t launcher)
{
	char *path = format_text("/proc/%d/task", (int)launcher);
	DIR *threads = opendir(path);
	struct dirent *entry;
	int all = -1;

	free(path);
	while (threads && (entry = readdir(threads))) {
		int some = entry->d_name[0] == '.' ? -1 : children_of(launcher, entry->d_name);

		if (some >= 0)
			all = (all < 0 ? 0 : all) + some;
	}
	if (threads)
		closedir(threads);
	return all;
}

/* Whether mpirun's main thread waits for another thread. It does not where it waits for a reader of
   its output, or is stopped. False if the kernel hides it. */
static bool waits_inside(pid_t launcher)
{
	char *path = format_text("/proc/%d/syscall", (int)launcher);
	FILE *file = fopen(path, "re");
	long call = -1;
	bool known = file && fscanf(file, "%ld", &call) == 1;

	free(path);
	if (file)
		fclose(file);
	return known && call == SYS_futex;
}

static void watch(pid_t launcher, int handle)
{
	struct pollfd end = {.fd = handle, .events = POLLIN};
	int without = 0;
	bool had = false;

	/* The handle is readable once mpirun has ended. */
	while (poll(&end, 1, TURN_MS) == 0) {
		int children = is_mpirun(launcher) ? count_children(launcher) : -1;

		had = had || children > 0;
		without = had && children == 0 && waits_inside(launcher) ? without + 1 : 0;
		if (without < TURNS)
			continue;
		print_error("all ranks have ended, but mpirun hangs: zerorun kills it");
		syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0);
		return;
	}
}

/* The guard is the child of no process that waits for it, and holds no file but stderr: a pipe that
   it kept open would keep its reader waiting. */
static void become_guard(pid_t launcher, int handle)
{
	int nowhere = open("/dev/null", O_RDWR);

	if (setsid() < 0 || nowhere < 0 || fork() != 0)
		_exit(0);
	dup2(nowhere, STDIN_FILENO);
	dup2(nowhere, STDOUT_FILENO);
	if (handle != 3 && dup2(handle, 3) < 0)
		_exit(0);
	syscall(SYS_close_range, 4U, ~0U, 0U);
	if (chdir("/") == 0)
		watch(launcher, 3);
	_exit(0);
}

void guard_start(void)
{
	pid_t launcher = getpid(), child;
	int handle = (int)syscall(SYS_pidfd_open, launcher, 0);

	/* Linux before 5.3 has no such handle: there is no guard. */
	if (handle < 0)
		return;
	child = fork();
	if (child == 0)
		become_guard(launcher, handle);
	if (child > 0)
		waitpid(child, NULL, 0);
	close(handle);
}

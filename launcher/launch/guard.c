/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open MPI's mpirun may hang for ever at its own end, in the server that it runs for its ranks, if
 * one of them dies while it is saying hello to that. No rank is left then that could end it. So a
 * process looks whether mpirun goes on without any.
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

enum { TURN_MS = 500, TURNS = 8 }; /* 4 s without a rank are too long */

/* Once it has become mpirun; a script of the user's is left alone. */
static bool is_mpirun(pid_t launcher)
{
	static const char *const names[] = {"mpirun", "orterun", "prterun"};
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

/* Its process exists and has not ended; of "PID (name) state ..." the name may hold anything. */
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

/* Processes that one of its threads began; -1: the kernel does not tell. */
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

/* Its main thread waits for another one. Where it waits for a reader of what it prints, or is
   stopped, it is somewhere else; and where the kernel does not tell, it is left alone. */
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

	/* Readable once it has ended. */
	while (poll(&end, 1, TURN_MS) == 0) {
		int children = is_mpirun(launcher) ? count_children(launcher) : -1;

		had = had || children > 0;
		without = had && children == 0 && waits_inside(launcher) ? without + 1 : 0;
		if (without < TURNS)
			continue;
		print_error("all ranks have ended, but mpirun hangs: it is killed");
		syscall(SYS_pidfd_send_signal, handle, SIGKILL, NULL, 0);
		return;
	}
}

/* It is nobody's child and holds nothing but stderr, so that it keeps nobody waiting. */
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

	/* An older kernel: nobody looks. */
	if (handle < 0)
		return;
	child = fork();
	if (child == 0)
		become_guard(launcher, handle);
	if (child > 0)
		waitpid(child, NULL, 0);
	close(handle);
}

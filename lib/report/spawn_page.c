/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts `zerorun --report-page`. posix_spawn shares the memory of this process until the child
 * executes zerorun: no page of it is copied, not even one that is registered with a network, and no
 * handler of fork runs. So it is safe in a process that has MPI and CUDA open.
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/text.h"
#include "load/load.h"
#include "report/spawn_page.h"

/* Seconds that zerorun has, and those in which a process that was killed ends. */
enum { MAX_SECONDS = 10, MAX_KILLED_SECONDS = 1 };

extern char **environ;

/* ---- zerorun --------------------------------------------------------------------------------- */

/* The zerorun that was installed or built with this library, else one in PATH. */
static void find_zerorun(char *path, size_t size)
{
	/* relative to lib, to lib/x86_64-linux-gnu, and to lib/.libs of a build tree */
	static const char *const places[] = {"/../bin/", "/../../bin/",
					     "/../.libs/../../launcher/"};
	const char *slash = NULL;
	Dl_info self;

	if (dladdr((const void *)places, &self) && self.dli_fname)
		slash = strrchr(self.dli_fname, '/');
	for (size_t i = 0; slash && i < sizeof(places) / sizeof(*places); i++) {
		snprintf(path, size, "%.*s%szerorun", (int)(slash - self.dli_fname), self.dli_fname,
			 places[i]);
		if (!access(path, X_OK))
			return;
	}
	snprintf(path, size, "zerorun");
}

/* This environment without what is for the job's ranks; NULL: no memory. */
static char **child_environment(void)
{
	size_t count = 0, kept = 0;
	char **variables;

	while (environ && environ[count])
		count++;
	variables = calloc(count + 1, sizeof(*variables));
	for (size_t i = 0; variables && i < count; i++)
		if (!zero_begins_with(environ[i], "LD_PRELOAD=") &&
		    !zero_begins_with(environ[i], "ZERO_"))
			variables[kept++] = environ[i];
	return variables;
}

/* Starts zerorun without the job's standard input and output, and with no signal ignored or blocked.
   0, or an errno value. */
static int start(const char *json, pid_t *child)
{
	char zerorun[PATH_MAX + 64], flag[] = "--report-page";
	char *argv[] = {zerorun, flag, (char *)json, NULL};
	char **variables = child_environment();
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all, none;
	int error;

	if (!variables)
		return ENOMEM;
	find_zerorun(zerorun, sizeof(zerorun));
	sigfillset(&all);
	sigemptyset(&none);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
#ifdef HAVE_POSIX_SPAWN_FILE_ACTIONS_ADDCLOSEFROM_NP
	/* Else it would keep sockets of MPI and pipes of the program open. */
	posix_spawn_file_actions_addclosefrom_np(&actions, 3);
#endif
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	error = posix_spawnp(child, zerorun, &actions, &attributes, argv, variables);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	free(variables);
	return error;
}

/* False if the child has not ended in time. The status is lost, and read as 0, in a program that
   ignores SIGCHLD or whose handler of it waits for any child. */
static bool wait_for(pid_t child, double seconds, int *status)
{
	const struct timespec pause = {.tv_nsec = 5000000};
	double end = zero_seconds() + seconds;
	pid_t ended;

	*status = 0;
	do {
		ended = waitpid(child, status, WNOHANG);
		if (ended == child || (ended < 0 && errno == ECHILD))
			return true;
		nanosleep(&pause, NULL);
	} while (zero_seconds() < end);
	return false;
}

/* ---- the page -------------------------------------------------------------------------------- */

/* The absolute path of folder/name, even if the folder was moved; malloc'ed. NULL: not known. */
static char *file_path(int folder, const char *name)
{
	char link[64], where[PATH_MAX], *path;
	ssize_t length;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
	length = readlink(link, where, sizeof(where) - 1);
	if (length < 0 || asprintf(&path, "%.*s/%s", (int)length, where, name) < 0)
		return NULL;
	return path;
}

zero_status zero_report_page(int folder, const char *path, const char *id)
{
	const char *problem = "zerorun failed";
	char name[PATH_MAX], *json;
	int error, status;
	pid_t child;

	snprintf(name, sizeof(name), "zero-%s.json", id);
	json = file_path(folder, name);
	error = json ? start(json, &child) : ENOMEM;
	free(json);
	if (error) {
		problem = strerror(error);
	} else if (!wait_for(child, MAX_SECONDS, &status)) {
		kill(child, SIGKILL);
		wait_for(child, MAX_KILLED_SECONDS, &status);
		problem = "zerorun took too long";
	} else if (!status) {
		snprintf(name, sizeof(name), "zero-%s.html", id);
		if (!faccessat(folder, name, F_OK, 0))
			return ZERO_OK;
	}
	return zero_fail(ZERO_E_FILE,
			 "the report's page was not made: %s; 'zerorun --report-page "
			 "%s/zero-%s.json' makes it",
			 problem, path, id);
}

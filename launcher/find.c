/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plan.h"

extern char **environ;

static bool is_file(const char *path)
{
	struct stat info;

	return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* 0 if it can be run, else what a shell would exit with. */
static int check_program(const char *path)
{
	struct stat info;

	if (stat(path, &info) != 0)
		return errno == EACCES ? EXIT_NOT_EXECUTABLE : EXIT_NOT_FOUND;
	return S_ISREG(info.st_mode) && access(path, X_OK) == 0 ? 0 : EXIT_NOT_EXECUTABLE;
}

char *find_program(const char *name, int *status)
{
	const char *path = getenv("PATH");
	int worst = EXIT_NOT_FOUND;

	if (strchr(name, '/')) {
		*status = check_program(name);
		return *status ? NULL : text_of("%s", name);
	}
	/* an empty name is in no folder; without a PATH, execvp looks here */
	for (path = path ? path : "/bin:/usr/bin"; path && *name;) {
		size_t length = strcspn(path, ":");
		/* an empty part of PATH is the working directory */
		char *file = text_of("%.*s%s%s", (int)length, path, length ? "/" : "./", name);
		int found = check_program(file);

		if (!found) {
			*status = 0;
			return file;
		}
		if (found == EXIT_NOT_EXECUTABLE && is_file(file))
			worst = found;
		free(file);
		path = path[length] ? path + length + 1 : NULL;
	}
	*status = worst;
	return NULL;
}

/* The first line of what a file descriptor gives until its end, cut to `size`. */
static void read_line(int from, char *line, size_t size)
{
	size_t length = 0;

	for (;;) {
		char piece[256];
		ssize_t got = read(from, piece, sizeof piece);

		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			break;
		/* what does not fit is read all the same: a closed pipe would kill who writes */
		for (ssize_t i = 0; i < got && length + 1 < size; i++)
			line[length++] = piece[i];
	}
	line[length] = '\0';
	line[strcspn(line, "\n")] = '\0';
}

/* The first line that `path --version` prints; 0 or an errno value. */
static int read_version(const char *path, char *line, size_t size)
{
	char *argv[] = {(char *)path, (char *)"--version", NULL};
	posix_spawn_file_actions_t actions;
	int ends[2], error, status;
	pid_t child;

	if (pipe(ends) != 0)
		return errno;
	fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	error = posix_spawn_file_actions_init(&actions);
	if (!error) {
		error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		if (!error)
			error = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		if (!error)
			error = posix_spawn(&child, path, &actions, NULL, argv, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	if (!error) {
		read_line(ends[0], line, size);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	return error;
}

unsigned find_mpirun_version(const char *path)
{
	char line[256];
	int error = read_version(path, line, sizeof line);
	unsigned major = 0;
	const char *at;

	if (error) {
		complain("%s cannot be run: %s", path, strerror(error));
		return 0;
	}
	at = strstr(line, "(Open MPI) ");
	if (at)
		at += strlen("(Open MPI) ");
	for (; at && *at >= '0' && *at <= '9' && major < 1000; at++)
		major = major * 10 + (unsigned)(*at - '0');
	if (!major)
		complain("%s is not Open MPI's mpirun: its --version says \"%s\"; put Open MPI "
			 "first in "
			 "PATH, or name its mpirun in ZERO_MPIRUN",
			 path, line);
	return major;
}

char *find_library(void)
{
	/* from a build tree's launcher/zerorun or launcher/.libs/zerorun, or an installed tree that was
	   moved; then where it was installed */
	static const char *const places[] = {
		"/../lib/.libs/libzero.so",
		"/../../lib/.libs/libzero.so",
		"/../lib/libzero.so",
		"/../lib64/libzero.so",
	};
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash;

	self[length > 0 ? length : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash) {
		*slash = '\0';
		for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
			char *path = text_of("%s%s", self, places[i]);
			char *real = is_file(path) ? realpath(path, NULL) : NULL;

			free(path);
			if (real)
				return real;
		}
	}
	return is_file(ZERO_LIBDIR "/libzero.so") ? text_of("%s", ZERO_LIBDIR "/libzero.so") : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/find.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/text.h"

extern char **environ;

static bool is_file(const char *path)
{
	struct stat info;

	return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* 0 if the program can be run, else the exit status of a shell. */
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
		return *status ? NULL : format_text("%s", name);
	}
	/* an empty name is in no folder; without a PATH, execvp searches these folders */
	for (path = path ? path : "/bin:/usr/bin"; path && *name;) {
		size_t length = strcspn(path, ":");
		/* an empty part of PATH is the working directory */
		char *file = format_text("%.*s%s%s", (int)length, path, length ? "/" : "./", name);
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

/* Reads to the end; ends zerorun if there is no memory. */
static char *read_all(int from)
{
	char piece[4096], *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	ssize_t got;

	while (out && ((got = read(from, piece, sizeof piece)) > 0 || (got < 0 && errno == EINTR)))
		fwrite(piece, 1, got > 0 ? (size_t)got : 0, out);
	if (!out || fclose(out) != 0)
		exit_no_memory();
	return text;
}

int run_program(char *const *argv, bool quiet, char **text, int *status)
{
	posix_spawn_file_actions_t actions;
	int ends[2], error, ended = 0;
	pid_t child;

	*text = NULL;
	if (pipe(ends) != 0)
		return errno;
	fcntl(ends[0], F_SETFD, FD_CLOEXEC);
	fcntl(ends[1], F_SETFD, FD_CLOEXEC);
	error = posix_spawn_file_actions_init(&actions);
	if (!error) {
		error = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
		if (!error)
			error = posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
		if (!error && quiet)
			error = posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY,
								 0);
		if (!error)
			error = posix_spawn(&child, argv[0], &actions, NULL, argv, environ);
		posix_spawn_file_actions_destroy(&actions);
	}
	close(ends[1]);
	if (!error) {
		*text = read_all(ends[0]);
		while (waitpid(child, &ended, 0) < 0 && errno == EINTR)
			;
		*status = WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
	}
	close(ends[0]);
	return error;
}

unsigned find_mpirun_version(const char *path)
{
	char *argv[] = {(char *)path, (char *)"--version", NULL}, *line;
	unsigned major = 0;
	const char *at;
	int status, error = run_program(argv, false, &line, &status);

	if (error) {
		print_error("%s cannot be run: %s", path, strerror(error));
		return 0;
	}
	line[strcspn(line, "\n")] = '\0';
	at = strstr(line, "(Open MPI) ");
	if (at)
		at += strlen("(Open MPI) ");
	for (; at && *at >= '0' && *at <= '9' && major < 1000; at++)
		major = major * 10 + (unsigned)(*at - '0');
	if (!major)
		print_error(
			"%s is not Open MPI's mpirun: its --version says \"%.200s\"; put Open MPI "
			"first in "
			"PATH, or name its mpirun in ZERO_MPIRUN",
			path, line);
	free(line);
	return major;
}

bool find_plugin(const char *srun)
{
	char *argv[] = {(char *)srun, (char *)"--help", NULL}, *help;
	int status;
	bool found;

	/* an error is left to the srun that starts the job, which prints it */
	if (run_program(argv, true, &help, &status) != 0)
		return false;
	found = strstr(help, zero_option_table[ZERO_OPT_STAGE].flag);
	free(help);
	return found;
}

char *find_library(void)
{
	/* relative to zerorun in a build tree, or in an installed tree that was moved */
	static const char *const places[] = {
		"/../lib/.libs/libzero.so",
		"/../../lib/.libs/libzero.so",
		"/../lib/libzero.so.2",
		"/../lib64/libzero.so.2",
	};
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	char *slash;

	self[length > 0 ? length : 0] = '\0';
	slash = strrchr(self, '/');
	if (slash) {
		*slash = '\0';
		for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
			char *path = format_text("%s%s", self, places[i]);
			char *real = is_file(path) ? realpath(path, NULL) : NULL;

			free(path);
			if (real)
				return real;
		}
	}
	return is_file(ZERO_LIBDIR "/libzero.so.2") ? format_text("%s", ZERO_LIBDIR "/libzero.so.2")
						    : NULL;
}

char *find_python(void)
{
	char *library = find_library(), *folder, *package;
	char *build = library ? strstr(library, "/lib/.libs/") : NULL;
	bool found;

	if (!library)
		return NULL;
	*(build ? build : strrchr(library, '/')) = '\0';
	folder = format_text("%s%s", library, build ? "/python" : "/slurm-zero/python");
	package = format_text("%s/slurm_zero/__init__.py", folder);
	found = is_file(package) && !strchr(folder, ':');
	free(package);
	free(library);
	if (found)
		return folder;
	free(folder);
	return NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/plan.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

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

char *run_program(char *const *argv, bool quiet, int *status)
{
	char *command, *text = NULL;
	size_t size, capacity = 0;
	FILE *out = open_memstream(&command, &size), *from;
	int ended;

	if (!out)
		exit_no_memory();
	fputs("exec", out);
	for (; *argv; argv++) {
		fputc(' ', out);
		print_quoted(out, *argv);
	}
	fputs(quiet ? " </dev/null 2>/dev/null" : " </dev/null", out);
	from = fclose(out) == 0 ? popen(command, "re") : NULL;
	if (!from) {
		print_error("the shell cannot be run: %s", strerror(errno));
		exit(EXIT_FAILURE);
	}
	free(command);
	if (getdelim(&text, &capacity, '\0', from) < 0) {
		free(text);
		text = format_text("%s", "");
	}
	ended = pclose(from);
	*status = WIFSIGNALED(ended) ? 128 + WTERMSIG(ended) : WEXITSTATUS(ended);
	return text;
}

unsigned find_mpirun_version(const char *path)
{
	char *argv[] = {(char *)path, (char *)"--version", NULL}, *line;
	unsigned major = 0;
	const char *at;
	int status;

	line = run_program(argv, false, &status);
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
	char *argv[] = {(char *)srun, (char *)"--help", NULL};
	int status;
	/* an error is left to the srun that starts the job, which prints it */
	char *help = run_program(argv, true, &status);
	bool found = strstr(help, zero_option_table[ZERO_OPT_STAGE].flag);

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

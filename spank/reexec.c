/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "reexec.h"

/* Also marks the second srun: unlike a variable, it is not inherited by tasks. */
#define SELF "/proc/self/exe"

static char **saved; /* NULL-terminated; never freed, since the process is short */

char **command_line(void)
{
	static char **arguments;
	FILE *file = arguments ? NULL : fopen("/proc/self/cmdline", "re");
	char *argument = NULL;
	size_t count = 0, size = 0;

	while (file && getdelim(&argument, &size, '\0', file) > 0) {
		char **more = realloc(arguments, (count + 2) * sizeof *more);

		if (!more)
			break;
		arguments = more;
		arguments[count++] = argument;
		arguments[count] = argument = NULL;
	}
	free(argument);
	if (file)
		fclose(file);
	return arguments;
}

bool argument_is(const char *argument, const char *flag)
{
	size_t length = strcspn(argument, "=");

	return strncmp(argument, flag, length) == 0 && (length > 2 || !flag[length]);
}

bool command_line_has(const char *flag)
{
	char **arguments = command_line();

	for (size_t i = 1; arguments && arguments[0] && arguments[i]; i++) {
		if (argument_is(arguments[i], flag))
			return true;
	}
	return false;
}

bool reexec_save_environment(void)
{
	size_t count = 0;

	if (saved)
		return true;
	while (environ[count])
		count++;
	saved = calloc(count + 1, sizeof *saved);
	for (size_t i = 0; saved && i < count; i++) {
		saved[i] = strdup(environ[i]);
		if (!saved[i])
			saved = NULL;
	}
	return saved != NULL;
}

bool reexec_is_second(void)
{
	const char *path = (const char *)getauxval(AT_EXECFN);

	return path && strcmp(path, SELF) == 0;
}

void reexec_srun(const struct reexec_variable *variables, size_t count)
{
	char **arguments = command_line();

	if (!saved || !arguments) {
		errno = ENOMEM;
		return;
	}
	environ = saved;
	for (size_t i = 0; i < count; i++) {
		if (!variables[i].value)
			unsetenv(variables[i].name);
		else if (setenv(variables[i].name, variables[i].value, 1))
			return;
	}
	execve(SELF, arguments, environ);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "command_line.h"
#include "reexec.h"

/* Also marks the second srun: unlike a variable, it is not inherited by tasks. */
#define SELF "/proc/self/exe"

static char **saved; /* NULL-terminated; never freed, since the process is short */

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

static bool is_variable(const char *entry, const char *name)
{
	size_t length = strlen(name);

	return strncmp(entry, name, length) == 0 && entry[length] == '=';
}

static char *entry_of(const struct reexec_variable *variable)
{
	char *entry;

	return asprintf(&entry, "%s=%s", variable->name, variable->value) < 0 ? NULL : entry;
}

void reexec_srun(const struct reexec_variable *variables, size_t count)
{
	char **arguments = command_line(), **entries;
	size_t room = count + 1, used = 0;

	for (size_t i = 0; saved && saved[i]; i++)
		room++;
	entries = saved && arguments ? calloc(room, sizeof *entries) : NULL;
	if (!entries) {
		errno = ENOMEM;
		return;
	}
	for (size_t i = 0; saved[i]; i++) {
		bool unchanged = true;

		for (size_t k = 0; k < count; k++)
			unchanged = unchanged && !is_variable(saved[i], variables[k].name);
		if (unchanged)
			entries[used++] = saved[i];
	}
	for (size_t k = 0; k < count; k++) {
		if (variables[k].value && !(entries[used++] = entry_of(&variables[k])))
			return;
	}
	execve(SELF, arguments, entries);
}

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

/* Returns the content of a file, with a NUL added; NULL without memory or if it cannot be read. */
static char *read_file(const char *path, size_t *length)
{
	FILE *file = fopen(path, "re");
	char *text = NULL;
	size_t room = 0, got;

	*length = 0;
	if (!file)
		return NULL;
	do {
		char *more = realloc(text, room += 65536);

		if (!more) {
			free(text);
			fclose(file);
			return NULL;
		}
		text = more;
		got = fread(text + *length, 1, room - *length - 1, file);
		*length += got;
	} while (got);
	text[*length] = '\0';
	fclose(file);
	return text;
}

char **reexec_arguments(void)
{
	static char **arguments;
	size_t length, count = 0;
	char *text;

	if (arguments)
		return arguments;
	text = read_file("/proc/self/cmdline", &length);
	for (size_t i = 0; text && i < length; i++)
		count += text[i] == '\0';
	arguments = count ? calloc(count + 1, sizeof *arguments) : NULL;
	if (!arguments) {
		free(text);
		return NULL;
	}
	for (size_t i = 0; i < count; i++) {
		arguments[i] = text;
		text += strlen(text) + 1;
	}
	return arguments;
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
	char **arguments = reexec_arguments(), **entries;
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

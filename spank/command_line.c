/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "command_line.h"
#include "core/options.h"

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

char **command_line(void)
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

/* Returns whether a flag takes no argument, or only one after an equals sign. Slurm accepts unique
   prefixes. The list is that of src/common/slurm_opt.c in the releases 22.05 to 26.05. */
static bool is_alone(const char *flag)
{
	static const char *const alone[] = {
		"async",
		"bcast",
		"bell",
		"compress",
		"consolidate-segments",
		"contiguous",
		"debugger-test",
		"disable-status",
		"exact",
		"exclusive",
		"external",
		"external-launcher",
		"get-user-env",
		"help",
		"hold",
		"ignore-pbs",
		"immediate",
		"interactive",
		"kill-command",
		"kill-on-bad-exit",
		"label",
		"multi-prog",
		"nice",
		"no-allocate",
		"no-bell",
		"no-kill",
		"no-requeue",
		"no-shell",
		"no-zero",
		"oom-kill-step",
		"overcommit",
		"overlap",
		"oversubscribe",
		"parsable",
		"preserve-env",
		"propagate",
		"pty",
		"quiet",
		"quit-on-interrupt",
		"reboot",
		"requeue",
		"resv-ports",
		"send-libs",
		"share",
		"spread-job",
		"spread-segments",
		"stepmgr",
		"test-only",
		"unbuffered",
		"usage",
		"use-min-nodes",
		"verbose",
		"version",
		"wait-for-children",
		"whole",
		"x11",
		"zero",
	};
	size_t length = strcspn(flag, "=");

	if (flag[length])
		return true;
	for (size_t i = 0; i < sizeof(alone) / sizeof(alone[0]); i++) {
		if (strncmp(alone[i], flag, length) == 0)
			return true;
	}
	return false;
}

/* Returns whether the value of an argument such as --nodes, -N or -lN is the next argument. */
static bool is_followed(const char *argument)
{
	static const char with_value[] = "ABCDFGJLMNSTWabcdeimnopqrtwx";
	const char *letter;

	if (zero_begins_with(argument, "--"))
		return !is_alone(argument + 2);
	letter = argument[0] == '-' ? strpbrk(argument + 1, with_value) : NULL;
	return letter && !letter[1];
}

static bool may_be(const char *argument, const char *flag)
{
	size_t length = strcspn(argument, "=");

	return strncmp(argument, flag, length) == 0 && (length > 2 || !flag[length]);
}

bool command_line_has(const char *flag)
{
	char **argument = command_line();
	bool is_program = false;

	for (argument += argument && *argument; argument && *argument; argument++) {
		/* the next component of a heterogeneous step begins at a colon */
		if (strcmp(*argument, ":") == 0)
			is_program = false;
		else if ((*argument)[0] != '-' || strcmp(*argument, "--") == 0)
			is_program = true;
		if (is_program)
			continue;
		if (may_be(*argument, flag))
			return true;
		/* no value begins so: then it is a flag of another plugin, which has none */
		if (is_followed(*argument) && argument[1] && !zero_begins_with(argument[1], "--"))
			argument++;
	}
	return false;
}

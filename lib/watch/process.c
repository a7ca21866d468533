/* SPDX-License-Identifier: Apache-2.0 */
/* Reads /proc/PID/stat of a process of this node, which may just have ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "watch_internal.h"

/* Reads fields 3, 22 and 52, see proc(5). They follow the name, which may contain blanks. */
static bool read_stat(pid_t pid, char *state, uint64_t *start_time, int *exit_code)
{
	char path[64], line[1024], *at, *rest = NULL;
	FILE *file;
	int field = 3;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	at = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	fclose(file);
	if (!at)
		return false;
	*exit_code = 0;
	*start_time = 0;
	*state = '?';
	for (at = strtok_r(at + 1, " \n", &rest); at; at = strtok_r(NULL, " \n", &rest), field++) {
		if (field == 3)
			*state = *at;
		else if (field == 22)
			*start_time = strtoull(at, NULL, 10);
		else if (field == 52)
			*exit_code = atoi(at);
	}
	return true;
}

uint64_t zero_process_start_time(pid_t pid)
{
	uint64_t start_time = 0;
	int exit_code;
	char state;

	return read_stat(pid, &state, &start_time, &exit_code) ? start_time : 0;
}

bool zero_process_read(pid_t pid, uint64_t start_time, struct zero_process *found)
{
	uint64_t at = 0;

	return start_time && read_stat(pid, &found->state, &at, &found->exit_code) &&
	       at == start_time;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "available_memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Reads the number that follows `key` in a file; key is "" if the file holds one number. */
static bool read_number(const char *path, const char *key, unsigned long long *number)
{
	FILE *file = fopen(path, "re");
	char line[256];
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)))
			found = sscanf(line + strlen(key), "%llu", number) == 1;
	fclose(file);
	return found;
}

/* The process's path in control groups version 2, such as "/job_7/step_0". */
static bool own_group(char *path, size_t size)
{
	FILE *file = fopen("/proc/self/cgroup", "re");
	char line[PATH_MAX];
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		found = !strncmp(line, "0::/", 4);
		line[strcspn(line, "\n")] = '\0';
	}
	fclose(file);
	return found && (size_t)snprintf(path, size, "%s", line + 3) < size;
}

/* The least that the limits of the process's control groups leave; "max" is not a number, so it
   is skipped. */
static unsigned long long group_available(void)
{
	unsigned long long available = ULLONG_MAX, limit, used;
	char path[PATH_MAX], max[PATH_MAX + 64], current[PATH_MAX + 64];

	if (!own_group(path, sizeof(path)))
		return available;
	for (;;) {
		char *slash = strrchr(path, '/');

		snprintf(max, sizeof(max), "/sys/fs/cgroup%s/memory.max", path);
		snprintf(current, sizeof(current), "/sys/fs/cgroup%s/memory.current", path);
		if (read_number(max, "", &limit) && read_number(current, "", &used)) {
			limit = limit > used ? limit - used : 0;
			available = limit < available ? limit : available;
		}
		if (!slash)
			return available;
		*slash = '\0';
	}
}

size_t zero_memory_available(void)
{
	unsigned long long available = 0, group = group_available();

	read_number("/proc/meminfo", "MemAvailable:", &available);
	available *= 1024;
	return (size_t)(group < available ? group : available);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What /proc says of a process of this node, also of one that has just ended; and whether the
   kernel has killed for want of memory. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch_private.h"

enum { RECENT = 30 /* s */ };

/* Fields 3, 22 and 52 of /proc/PID/stat, see proc(5): the name before them may have blanks. */
static bool read_stat(pid_t process, char *state, uint64_t *began, int *exit_code)
{
	char path[64], line[1024], *at, *rest = NULL;
	FILE *file;
	int field = 3;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)process);
	file = fopen(path, "re");
	if (!file)
		return false;
	at = fgets(line, sizeof(line), file) ? strrchr(line, ')') : NULL;
	fclose(file);
	if (!at)
		return false;
	*exit_code = 0;
	*began = 0;
	*state = '?';
	for (at = strtok_r(at + 1, " \n", &rest); at; at = strtok_r(NULL, " \n", &rest), field++) {
		if (field == 3)
			*state = *at;
		else if (field == 22)
			*began = strtoull(at, NULL, 10);
		else if (field == 52)
			*exit_code = atoi(at);
	}
	return true;
}

uint64_t zero_process_began(pid_t process)
{
	uint64_t began = 0;
	int exit_code;
	char state;

	return read_stat(process, &state, &began, &exit_code) ? began : 0;
}

bool zero_process_look(pid_t process, uint64_t began, struct zero_process *found)
{
	uint64_t at = 0;

	return began && read_stat(process, &found->state, &at, &found->exit_code) && at == began;
}

/* ---- out of memory --------------------------------------------------------------------------- */

struct zero_oom {
	int fd; /* stays open: it is looked at with each beat */
	uint64_t count;
	double grew_at;
};

/* The value behind the word oom_kill, at the begin of a line. */
static bool read_count(int fd, uint64_t *count)
{
	char text[16384] = "\n", *at;
	size_t have = 1;
	ssize_t got;

	/* The kernel gives it piece by piece. */
	while (have < sizeof(text) - 1 &&
	       (got = pread(fd, text + have, sizeof(text) - 1 - have, (off_t)have - 1)) > 0)
		have += (size_t)got;
	text[have] = '\0';
	at = strstr(text, "\noom_kill ");
	if (at)
		*count = strtoull(at + strlen("\noom_kill "), NULL, 10);
	return at != NULL;
}

static bool use_counter(struct zero_oom *oom, const char *path)
{
	oom->fd = open(path, O_RDONLY | O_CLOEXEC);
	if (oom->fd >= 0 && read_count(oom->fd, &oom->count))
		return true;
	if (oom->fd >= 0)
		close(oom->fd);
	oom->fd = -1;
	return false;
}

/* Of the control group that the process is in, else of the whole node. */
static void find_counter(pid_t process, struct zero_oom *oom)
{
	char path[64], line[400], counter[512];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)process);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		char *group = strrchr(line, ':');

		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "0::", 3))
			snprintf(counter, sizeof(counter), "/sys/fs/cgroup%s/memory.events",
				 group + 1);
		else if (strstr(line, ":memory:"))
			snprintf(counter, sizeof(counter),
				 "/sys/fs/cgroup/memory%s/memory.oom_control", group + 1);
		else
			continue;
		if (use_counter(oom, counter)) {
			fclose(file);
			return;
		}
	}
	if (file)
		fclose(file);
	use_counter(oom, "/proc/vmstat");
}

struct zero_oom *zero_oom_open(pid_t process)
{
	struct zero_oom *oom = calloc(1, sizeof(*oom));

	if (!oom)
		return NULL;
	oom->fd = -1;
	oom->grew_at = -RECENT;
	find_counter(process, oom);
	return oom;
}

void zero_oom_close(struct zero_oom *oom)
{
	if (oom && oom->fd >= 0)
		close(oom->fd);
	free(oom);
}

void zero_oom_look(struct zero_oom *oom)
{
	uint64_t count;

	if (!oom || oom->fd < 0 || !read_count(oom->fd, &count))
		return;
	if (count > oom->count)
		oom->grew_at = zero_seconds();
	oom->count = count;
}

bool zero_oom_grew(struct zero_oom *oom)
{
	zero_oom_look(oom);
	return oom && zero_seconds() - oom->grew_at < RECENT;
}

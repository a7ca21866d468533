/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's counter of processes that it killed because memory ran out. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "watch_internal.h"

enum { RECENT_SECONDS = 30 };

struct zero_oom {
	int fd; /* stays open, since it is read with each heartbeat */
	uint64_t count;
	double grew_at;
};

/* Reads the value of the line "oom_kill VALUE". */
static bool read_count(int fd, uint64_t *count)
{
	char text[16384] = "\n", *at;
	size_t have = 1;
	ssize_t got;

	/* The kernel returns the file in pieces. */
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

/* Uses the counter of the process's control group or, without one, that of the node. */
static void find_counter(pid_t pid, struct zero_oom *oom)
{
	char path[64], line[400], counter[512];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
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

struct zero_oom *zero_oom_open(pid_t pid)
{
	struct zero_oom *oom = calloc(1, sizeof(*oom));

	if (!oom)
		return NULL;
	oom->fd = -1;
	oom->grew_at = -RECENT_SECONDS;
	find_counter(pid, oom);
	return oom;
}

void zero_oom_close(struct zero_oom *oom)
{
	if (oom && oom->fd >= 0)
		close(oom->fd);
	free(oom);
}

void zero_oom_read(struct zero_oom *oom)
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
	zero_oom_read(oom);
	return oom && zero_seconds() - oom->grew_at < RECENT_SECONDS;
}

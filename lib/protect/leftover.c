/* SPDX-License-Identifier: Apache-2.0 */
#include "protect/leftover.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct zero_protect_level zero_protect_user_level(void)
{
	struct zero_protect_level level;

	snprintf(level.name, sizeof(level.name), "zero-%u", (unsigned)geteuid());
	return level;
}

struct zero_protect_level zero_protect_job_level(void)
{
	const char *job = getenv("SLURM_JOB_ID");
	struct zero_protect_level level = {"local"};

	if (job && *job && strlen(job) < sizeof(level.name) && !job[strspn(job, "0123456789")])
		snprintf(level.name, sizeof(level.name), "%s", job);
	return level;
}

/* Opens a folder of the user's own; -1: there is none. */
static int open_own(int parent, const char *name)
{
	int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat info;

	if (fd < 0 || (!fstat(fd, &info) && info.st_uid == geteuid()))
		return fd;
	close(fd);
	return -1;
}

/* What is in a folder. Takes over the descriptor. */
static void remove_files(int fd)
{
	DIR *list = fdopendir(fd);
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		unlinkat(fd, entry->d_name, 0);
	if (list)
		closedir(list);
	else
		close(fd);
}

/* The folders of runs. Takes over the descriptor. */
static void remove_runs(int job, const char *run)
{
	DIR *list = fdopendir(job);
	size_t length = strlen(run);
	struct dirent *entry;

	while (list && (entry = readdir(list))) {
		const char *name = entry->d_name;
		int fd;

		if (!strcmp(name, ".") || !strcmp(name, "..") || strncmp(name, run, length))
			continue;
		fd = open_own(job, name);
		if (fd >= 0)
			remove_files(fd);
		unlinkat(job, name, fd >= 0 ? AT_REMOVEDIR : 0);
	}
	if (list)
		closedir(list);
	else
		close(job);
}

void zero_protect_remove(const char *dir, const char *job, const char *run)
{
	struct zero_protect_level level = zero_protect_user_level();
	int above = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int user = above < 0 ? -1 : open_own(above, level.name);
	int fd = user < 0 ? -1 : open_own(user, job);

	if (fd >= 0) {
		remove_runs(fd, run);
		unlinkat(user, job, AT_REMOVEDIR);
	}
	/* it is removed if it is empty */
	if (user >= 0) {
		unlinkat(above, level.name, AT_REMOVEDIR);
		close(user);
	}
	if (above >= 0)
		close(above);
}

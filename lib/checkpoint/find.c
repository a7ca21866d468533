/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the checkpoint that a path names. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checkpoint.h"
#include "load/load.h"
#include "train/train.h"

static zero_status no_memory(const char *path)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to look for a checkpoint in %s", path);
}

/* The checkpoint that `latest` links to; NULL if there is none. */
static zero_status follow_latest(const char *path, char **folder)
{
	char *latest = zero_checkpoint_path(path, "latest"), target[512];
	ssize_t length = latest ? readlink(latest, target, sizeof(target) - 1) : -1;
	uint64_t step;

	*folder = NULL;
	if (!latest)
		return no_memory(path);
	if (!zero_checkpoint_exists(latest)) {
		free(latest);
		return ZERO_OK;
	}
	/* Messages name the checkpoint itself, because the link may change. */
	if (length > 0) {
		target[length] = '\0';
		if (zero_checkpoint_name(target, &step)) {
			*folder = zero_checkpoint_path(path, target);
			free(latest);
			return *folder ? ZERO_OK : no_memory(path);
		}
	}
	*folder = latest;
	return ZERO_OK;
}

/* The checkpoint with the most steps, or what a save that was killed has begun to replace; NULL if
   there is none. */
static zero_status find_highest(const char *path, char **folder)
{
	uint64_t step, highest = 0;
	struct dirent *entry;
	DIR *dir = opendir(path);

	*folder = NULL;
	if (!dir)
		return zero_fail(ZERO_E_FILE, "%s: the folder cannot be read: %s", path,
				 strerror(errno));
	while ((entry = readdir(dir))) {
		const char *rest = zero_checkpoint_step(entry->d_name, &step);
		bool replaced = rest && !strcmp(rest, ZERO_REPLACED);
		char *one;

		if (!rest || (*rest && !replaced) ||
		    (*folder && (step < highest || (step == highest && replaced))))
			continue;
		one = zero_checkpoint_path(path, entry->d_name);
		if (!one) {
			free(*folder);
			*folder = NULL;
			closedir(dir);
			return no_memory(path);
		}
		if (zero_checkpoint_exists(one)) {
			free(*folder);
			*folder = one;
			highest = step;
		} else {
			free(one);
		}
	}
	closedir(dir);
	return ZERO_OK;
}

zero_status zero_checkpoint_find(const char *path, char **folder)
{
	zero_status status;
	struct stat info;

	*folder = NULL;
	if (!path || !*path)
		return zero_fail(ZERO_E_INVALID, "the path of a checkpoint is empty; give that of "
						 "a checkpoint, or of a folder of checkpoints");
	if (stat(path, &info) != 0)
		return errno == ENOENT ? ZERO_OK
				       : zero_fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
						   strerror(errno));
	if (!S_ISDIR(info.st_mode))
		return zero_fail(ZERO_E_FILE,
				 "%s: is not a folder; give the path of a checkpoint, which is a "
				 "folder, or of a folder of checkpoints",
				 path);
	if (zero_checkpoint_exists(path)) {
		*folder = strdup(path);
		return *folder ? ZERO_OK : no_memory(path);
	}
	status = follow_latest(path, folder);
	if (!status && !*folder)
		status = find_highest(path, folder);
	return status;
}

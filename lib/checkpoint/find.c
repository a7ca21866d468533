/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints by their names: the one that a path stands for, and the program's bytes in it. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/restore.h"
#include "core/text.h"

static zero_status no_memory(const char *path)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to look for a checkpoint in %s", path);
}

char *zero_checkpoint_path(const char *folder, const char *name)
{
	size_t length = strlen(folder);
	char *path;

	if (asprintf(&path, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/",
		     name) < 0)
		return NULL;
	return path;
}

const char *zero_checkpoint_step(const char *name, uint64_t *step)
{
	static const char prefix[] = "step-";
	enum { LEAST_DIGITS = 9 };
	const char *digits = name + strlen(prefix);
	size_t count;
	char *end;

	if (strncmp(name, prefix, strlen(prefix)) != 0)
		return NULL;
	count = strspn(digits, "0123456789");
	/* A step has one name. */
	if (count < LEAST_DIGITS || (count > LEAST_DIGITS && *digits == '0'))
		return NULL;
	errno = 0;
	*step = strtoull(digits, &end, 10);
	return errno ? NULL : end;
}

bool zero_checkpoint_name(const char *name, uint64_t *step)
{
	const char *end = zero_checkpoint_step(name, step);

	return end && !*end;
}

bool zero_checkpoint_there(const char *folder)
{
	char *path = zero_checkpoint_path(folder, "manifest.json");
	struct stat info;
	/* Whatever it is: who opens it says what is wrong with it. */
	bool there = path && lstat(path, &info) == 0;

	free(path);
	return there;
}

/* The checkpoint that the link says; NULL if it says none that is there. */
static zero_status follow_latest(const char *path, char **folder)
{
	char *latest = zero_checkpoint_path(path, "latest"), target[512];
	ssize_t length = latest ? readlink(latest, target, sizeof(target) - 1) : -1;
	uint64_t step;

	*folder = NULL;
	if (!latest)
		return no_memory(path);
	if (!zero_checkpoint_there(latest)) {
		free(latest);
		return ZERO_OK;
	}
	/* The checkpoint's own name is the better one for sentences; the link may move. */
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

/* Among the folders with a manifest; NULL if there are none. */
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
		char *one;

		if (!zero_checkpoint_name(entry->d_name, &step) || (*folder && step <= highest))
			continue;
		one = zero_checkpoint_path(path, entry->d_name);
		if (!one) {
			free(*folder);
			*folder = NULL;
			closedir(dir);
			return no_memory(path);
		}
		if (zero_checkpoint_there(one)) {
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
						 "one, or a folder of them");
	if (stat(path, &info) != 0)
		return errno == ENOENT ? ZERO_OK
				       : zero_fail(ZERO_E_FILE, "%s: cannot be opened: %s", path,
						   strerror(errno));
	if (!S_ISDIR(info.st_mode))
		return zero_fail(ZERO_E_FILE,
				 "%s: is no folder; a checkpoint is one, as is what holds several",
				 path);
	if (zero_checkpoint_there(path)) {
		*folder = strdup(path);
		return *folder ? ZERO_OK : no_memory(path);
	}
	status = follow_latest(path, folder);
	if (!status && !*folder)
		status = find_highest(path, folder);
	return status;
}

zero_status zero_checkpoint_user(const struct zero_files_ops *files,
				 const struct zero_manifest *manifest, const char *folder,
				 void **user)
{
	char *path = zero_checkpoint_path(folder, "user");
	uint64_t sum;
	zero_status status;
	int fd = -1;

	*user = NULL;
	if (!path)
		return no_memory(folder);
	status = zero_checkpoint_open(path, manifest->user_bytes, &fd);
	if (status)
		goto out;
	*user = malloc(manifest->user_bytes ? manifest->user_bytes : 1);
	if (!*user)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the %llu bytes of %s",
				   (unsigned long long)manifest->user_bytes, path);
	if (!status)
		status = zero_checkpoint_read(fd, path, 0, *user, manifest->user_bytes);
	close(fd);
	if (status)
		goto out;
	sum = files->checksum(*user, manifest->user_bytes);
	if (sum != manifest->user_checksum)
		status = zero_fail(ZERO_E_FORMAT,
				   "%s: the program's own bytes are damaged: their checksum is "
				   "%016llx, the manifest has %016llx",
				   path, (unsigned long long)sum,
				   (unsigned long long)manifest->user_checksum);
out:
	if (status) {
		free(*user);
		*user = NULL;
	}
	free(path);
	return status;
}

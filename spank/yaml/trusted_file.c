/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a file of options as a whole, after checks of its kind, its owner and its mode. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/text.h"
#include "site_config_private.h"

enum { FILE_BYTES = 1 << 20 };

/* Reads one byte more than the limit, so that a file that grows meanwhile is refused too. */
static char *read_bytes(int file, const char *name, size_t *length, char *why, size_t size)
{
	char *text = malloc(FILE_BYTES + 1);

	if (!text) {
		zero_refuse(why, size, "%s: out of memory", name);
		return NULL;
	}
	*length = 0;
	while (*length <= FILE_BYTES) {
		ssize_t got = read(file, text + *length, FILE_BYTES + 1 - *length);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			zero_refuse(why, size, "%s: cannot be read: %s", name, strerror(errno));
			free(text);
			return NULL;
		}
		if (got == 0)
			return text;
		*length += (size_t)got;
	}
	zero_refuse(why, size, "%s: is too large: at most 1M is allowed", name);
	free(text);
	return NULL;
}

/*
 * A task is a copy of slurmstepd until its program starts, so its /proc/self shows slurmstepd's
 * memory map and open files.
 */
static bool is_in_proc(int file)
{
	struct statfs where;

	return fstatfs(file, &where) == 0 && where.f_type == PROC_SUPER_MAGIC;
}

char *zero_config_file_text(const char *path, const char *name, bool trusted, size_t *length,
			    char *why, size_t size)
{
	/* O_NONBLOCK: a pipe without a writer would block the open */
	int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	char *text = NULL;
	struct stat status;

	if (file < 0 || fstat(file, &status) != 0)
		zero_refuse(why, size, "%s: cannot be opened: %s", name, strerror(errno));
	else if (!S_ISREG(status.st_mode))
		zero_refuse(why, size, "%s: is not a regular file", name);
	else if (is_in_proc(file))
		zero_refuse(why, size, "%s: is a file of /proc, which is not allowed", name);
	else if (trusted && status.st_uid != 0 && status.st_uid != geteuid())
		zero_refuse(why, size, "%s: is owned by user %u: run chown root", name,
			    (unsigned)status.st_uid);
	else if (trusted && status.st_mode & (S_IWGRP | S_IWOTH))
		zero_refuse(why, size,
			    "%s: is writable by others than its owner (mode %04o): run chmod go-w",
			    name, (unsigned)status.st_mode & 07777);
	else if (trusted && !(status.st_mode & S_IROTH))
		zero_refuse(why, size,
			    "%s: is not readable by all users (mode %04o): run chmod a+r", name,
			    (unsigned)status.st_mode & 07777);
	else
		text = read_bytes(file, name, length, why, size);
	if (file >= 0)
		close(file);
	return text;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct disk disk;

static int log_file = -1;
static char watched[1024];

void disk_watch(const char *log, const char *below)
{
	snprintf(watched, sizeof(watched), "%s/", below);
	if (log_file >= 0)
		close(log_file);
	log_file = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Whether this is the call that a number counted down to. */
static bool is_due(atomic_int *number)
{
	return *number && !--*number;
}

/* ---- the log --------------------------------------------------------------------------------- */

struct path {
	char text[1300];
};

/* The path of an open file or folder, and of `name` in it unless that is NULL or a path itself. */
static struct path path_of(int fd, const char *name)
{
	struct path path = {""};
	char link[64];
	ssize_t length = 0;

	if (fd != AT_FDCWD && (!name || *name != '/')) {
		snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
		length = readlink(link, path.text, sizeof(path.text) - 1);
		length = length < 0 ? 0 : length;
	}
	snprintf(path.text + length, sizeof(path.text) - (size_t)length, "%s%s",
		 length && name ? "/" : "", name ? name : "");
	return path;
}

static void note(const char *call, struct path path, struct path other)
{
	size_t length = strlen(watched) - 1;
	char line[2700];
	int bytes;

	if (log_file < 0 || strncmp(path.text, watched, length) != 0 ||
	    (path.text[length] && path.text[length] != '/'))
		return;
	if (is_due(&disk.killed_at))
		raise(SIGKILL);
	bytes = snprintf(line, sizeof(line), "%d %s %s %s\n", (int)getpid(), call, path.text,
			 *other.text ? other.text : "-");
	(void)!write(log_file, line, (size_t)bytes);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

ssize_t pread64(int fd, void *data, size_t bytes, off64_t at);
ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at);

static size_t at_most(size_t bytes)
{
	size_t most = (size_t)disk.most_bytes;

	return most && most < bytes ? most : bytes;
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
	return (ssize_t)syscall(SYS_pread64, fd, data, at_most(bytes), at);
}

ssize_t pread64(int fd, void *data, size_t bytes, off64_t at)
{
	return pread(fd, data, bytes, at);
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
	note("write", path_of(fd, NULL), (struct path){""});
	disk.writes++;
	if (disk.slow_us)
		usleep((useconds_t)disk.slow_us);
	if (is_due(&disk.long_at))
		usleep(50000);
	if (is_due(&disk.full_at)) {
		errno = ENOSPC;
		return -1;
	}
	return (ssize_t)syscall(SYS_pwrite64, fd, data, at_most(bytes), at);
}

ssize_t pwrite64(int fd, const void *data, size_t bytes, off64_t at)
{
	return pwrite(fd, data, bytes, at);
}

int fsync(int fd)
{
	note("sync", path_of(fd, NULL), (struct path){""});
	if (is_due(&disk.sync_fails_at)) {
		errno = EIO;
		return -1;
	}
	return 0;
}

int fdatasync(int fd)
{
	return fsync(fd);
}

/* ---- names ----------------------------------------------------------------------------------- */

int renameat2(int from, const char *name, int to, const char *new_name, unsigned int flags)
{
	if (flags && disk.no_exchange) {
		errno = EINVAL;
		return -1;
	}
	note(flags ? "exchange" : "rename", path_of(from, name), path_of(to, new_name));
	if (is_due(&disk.rename_fails_at)) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
}

int renameat(int from, const char *name, int to, const char *new_name)
{
	return renameat2(from, name, to, new_name, 0);
}

int rename(const char *name, const char *new_name)
{
	return renameat(AT_FDCWD, name, AT_FDCWD, new_name);
}

int symlink(const char *target, const char *name)
{
	note("link", path_of(AT_FDCWD, name), path_of(AT_FDCWD, target));
	return (int)syscall(SYS_symlinkat, target, AT_FDCWD, name);
}

int unlinkat(int folder, const char *name, int flags)
{
	note("remove", path_of(folder, name), (struct path){""});
	return (int)syscall(SYS_unlinkat, folder, name, flags);
}

int unlink(const char *name)
{
	return unlinkat(AT_FDCWD, name, 0);
}

int mkdir(const char *name, mode_t mode)
{
	note("folder", path_of(AT_FDCWD, name), (struct path){""});
	return (int)syscall(SYS_mkdirat, AT_FDCWD, name, mode);
}

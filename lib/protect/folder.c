/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The folder in a node's memory, which ranks of the node share. Others may write to the one that it
 * is made in, as to /dev/shm, so that every level is opened from the one above, is no link, belongs
 * to the user and is closed to others.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protect/leftover.h"
#include "protect/protect_internal.h"

enum { LEVELS = 3 };

/* ---- the levels ------------------------------------------------------------------------------ */

/* Opens a folder of another, and makes it. Returns -1 after an error; `path` is for messages. */
static int open_level(int parent, const char *name, const char *path)
{
	struct stat info;
	int fd;

	if (mkdirat(parent, name, 0700) && errno != EEXIST) {
		zero_file_error("make the folder", path);
		return -1;
	}
	fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &info)) {
		zero_file_error("open the folder", path);
	} else if (info.st_uid != geteuid() || (info.st_mode & 077)) {
		zero_fail(ZERO_E_FILE,
			  "the folder %s belongs to user %u and has the mode %03o; it must be this "
			  "user's own (%u), closed to others (700)",
			  path, (unsigned)info.st_uid, (unsigned)info.st_mode & 0777,
			  (unsigned)geteuid());
	} else {
		return fd;
	}
	if (fd >= 0)
		close(fd);
	return -1;
}

/* What the levels of attempts that find each other have in common. */
static const char *run_name(void)
{
	static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "0123456789_-";
	const char *run = getenv("ZERO_RUN");

	return run && *run && strlen(run) <= 64 && !run[strspn(run, allowed)] ? run : "job";
}

/* The folder of the last name, each in the one before; -1 after an error. */
static int open_levels(const char *dir, char names[LEVELS][96], char path[PATH_MAX])
{
	int parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	size_t at = (size_t)snprintf(path, PATH_MAX, "%s", dir);

	if (parent < 0)
		zero_file_error("open the folder", dir);
	for (int i = 0; parent >= 0 && i < LEVELS; i++) {
		int fd = -1;

		at += (size_t)snprintf(path + at, PATH_MAX - at, "/%s", names[i]);
		if (at >= PATH_MAX)
			zero_fail(ZERO_E_INVALID, "protect_dir is too long: %s", dir);
		else
			fd = open_level(parent, names[i], path);
		close(parent);
		parent = fd;
	}
	return parent;
}

zero_status zero_protect_folder_open(struct zero_protect_folder *folder, const char *dir,
				     uint64_t model)
{
	char names[LEVELS][96], path[PATH_MAX] = "";

	*folder = (struct zero_protect_folder){.fd = -1};
	snprintf(names[0], sizeof(names[0]), "%s", zero_protect_user_level().name);
	snprintf(names[1], sizeof(names[1]), "%s", zero_protect_job_level().name);
	snprintf(names[2], sizeof(names[2]), "%s-%016llx", run_name(), (unsigned long long)model);
	/* the end of another job of the user removes levels that are empty */
	for (int tries = 0; folder->fd < 0 && tries < 3; tries++)
		folder->fd = open_levels(dir, names, path);
	if (folder->fd < 0)
		return ZERO_E_FILE;
	folder->path = strdup(path);
	return folder->path ? ZERO_OK : zero_fail(ZERO_E_MEMORY, "no memory for %s", path);
}

void zero_protect_folder_close(struct zero_protect_folder *folder)
{
	if (folder->fd >= 0)
		close(folder->fd);
	free(folder->path);
	*folder = (struct zero_protect_folder){.fd = -1};
}

/* ---- its files ------------------------------------------------------------------------------- */

static zero_status file_error(const struct zero_protect_folder *folder, const char *what,
			      const char *name)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s/%s: %s", what, folder->path, name,
			 strerror(errno));
}

zero_status zero_protect_file_open(const struct zero_protect_folder *folder,
				   const struct zero_protect_name *name, bool write, int *fd)
{
	int flags = write ? O_RDWR | O_CREAT : O_RDONLY;
	char text[ZERO_PROTECT_NAME_BYTES];
	zero_status status;
	struct stat info;

	zero_protect_format(name, text);
	*fd = openat(folder->fd, text, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (*fd < 0)
		return file_error(folder, "open", text);
	if (!fstat(*fd, &info) && S_ISREG(info.st_mode) && info.st_uid == geteuid())
		return ZERO_OK;
	status = zero_fail(ZERO_E_FILE, "%s/%s is not a file of this user's own", folder->path,
			   text);
	close(*fd);
	*fd = -1;
	return status;
}

static zero_status read_whole(const struct zero_protect_folder *folder, const char *name, int fd,
			      uint64_t at, char *to, size_t bytes)
{
	while (bytes) {
		ssize_t got = pread(fd, to, bytes, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return file_error(folder, "read", name);
		if (!got)
			return zero_fail(ZERO_E_FORMAT, "%s/%s ends at byte %llu", folder->path,
					 name, (unsigned long long)at);
		to += got;
		at += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return ZERO_OK;
}

zero_status zero_protect_file_read(const struct zero_protect_folder *folder,
				   const struct zero_protect_name *name, uint64_t at, void *to,
				   size_t bytes)
{
	char text[ZERO_PROTECT_NAME_BYTES];
	zero_status status;
	int fd;

	zero_protect_format(name, text);
	status = zero_protect_file_open(folder, name, false, &fd);
	if (status)
		return status;
	status = read_whole(folder, text, fd, at, to, bytes);
	close(fd);
	return status;
}

zero_status zero_protect_file_put(const struct zero_protect_folder *folder,
				  const struct zero_protect_name *name, const void *data,
				  size_t bytes)
{
	char text[ZERO_PROTECT_NAME_BYTES], partial[ZERO_PROTECT_NAME_BYTES + 8];
	zero_status status = ZERO_OK;
	int fd, error;

	zero_protect_format(name, text);
	snprintf(partial, sizeof(partial), "%s.new", text);
	unlinkat(folder->fd, partial, 0);
	fd = openat(folder->fd, partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return file_error(folder, "create", partial);
	error = zero_write_all(fd, data, bytes, 0);
	close(fd);
	errno = error;
	if (error || renameat(folder->fd, partial, folder->fd, text))
		status = file_error(folder, "write", text);
	return status;
}

void zero_protect_file_remove(const struct zero_protect_folder *folder,
			      const struct zero_protect_name *name)
{
	char text[ZERO_PROTECT_NAME_BYTES];

	zero_protect_format(name, text);
	unlinkat(folder->fd, text, 0);
}

/* ---- all of them ----------------------------------------------------------------------------- */

static DIR *open_list(const struct zero_protect_folder *folder)
{
	int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);

	if (!list && fd >= 0)
		close(fd);
	return list;
}

void zero_protect_folder_clean(const struct zero_protect_folder *folder,
			       bool (*stays)(const void *context,
					     const struct zero_protect_name *name),
			       const void *context)
{
	DIR *list = open_list(folder);
	struct zero_protect_name name;
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		if (entry->d_name[0] != '.' &&
		    (!zero_protect_parse(entry->d_name, &name) || !stays(context, &name)))
			unlinkat(folder->fd, entry->d_name, 0);
	if (list)
		closedir(list);
}

void zero_protect_folder_list(const struct zero_protect_folder *folder,
			      void (*each)(void *context, const struct zero_protect_name *name),
			      void *context)
{
	DIR *list = open_list(folder);
	struct zero_protect_name name;
	struct dirent *entry;

	while (list && (entry = readdir(list)))
		if (zero_protect_parse(entry->d_name, &name) && name.record)
			each(context, &name);
	if (list)
		closedir(list);
}

uint64_t zero_protect_folder_bytes(const struct zero_protect_folder *folder)
{
	DIR *list = open_list(folder);
	struct dirent *entry;
	struct stat info;
	uint64_t bytes = 0;

	while (list && (entry = readdir(list)))
		if (!fstatat(folder->fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) &&
		    S_ISREG(info.st_mode))
			bytes += (uint64_t)info.st_blocks * 512;
	if (list)
		closedir(list);
	return bytes;
}

/* What the process removes when it ends; run is NULL: nothing. */
static struct {
	pid_t process;
	char *dir, *run;
} at_exit;

static void remove_at_exit(int status, void *unused)
{
	(void)unused;
	if (status == 0 && at_exit.run && at_exit.process == getpid())
		zero_protect_remove(at_exit.dir, zero_protect_job_level().name, at_exit.run);
}

void zero_protect_folder_remove(const struct zero_protect_folder *folder, const char *dir)
{
	static bool registered;

	free(at_exit.dir);
	free(at_exit.run);
	at_exit.process = getpid();
	at_exit.dir = strdup(dir);
	at_exit.run = at_exit.dir ? strdup(strrchr(folder->path, '/') + 1) : NULL;
	if (!registered)
		registered = !on_exit(remove_at_exit, NULL);
}

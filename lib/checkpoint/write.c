/* SPDX-License-Identifier: Apache-2.0 */
/* Writing files of checkpoints and exports. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/write.h"

/* ---- one file -------------------------------------------------------------------------------- */

/* "cannot <what> <path> (<bytes> bytes in all): <why>" */
static zero_status file_error(const struct zero_writer *writer, const char *what, int error)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s (%llu bytes in all): %s", what, writer->path,
			 (unsigned long long)writer->bytes, strerror(error));
}

static int reserve_space(int fd, uint64_t bytes)
{
	int failed;

	if (!bytes)
		return 0;
	do
		failed = fallocate(fd, 0, 0, (off_t)bytes);
	while (failed && errno == EINTR);
	if (failed && (errno == EOPNOTSUPP || errno == ENOSYS))
		failed = ftruncate(fd, (off_t)bytes);
	return failed ? errno : 0;
}

zero_status zero_writer_create_empty(struct zero_writer *writer)
{
	writer->fd = open(writer->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return writer->fd < 0 ? file_error(writer, "create", errno) : ZERO_OK;
}

zero_status zero_writer_reserve(const struct zero_writer *writer)
{
	int error = reserve_space(writer->fd, writer->bytes);

	return error ? file_error(writer, "reserve space for", error) : ZERO_OK;
}

zero_status zero_writer_create(struct zero_writer *writer)
{
	zero_status status = zero_writer_create_empty(writer);

	return status ? status : zero_writer_reserve(writer);
}

zero_status zero_writer_open(struct zero_writer *writer)
{
	struct stat info;

	writer->fd = open(writer->path, O_WRONLY | O_CLOEXEC);
	if (writer->fd < 0 && errno == ENOENT)
		return zero_fail(
			ZERO_E_FILE,
			"%s, which rank 0 has created, is not visible on this node; it must "
			"be on a file system that all nodes share",
			writer->path);
	if (writer->fd < 0)
		return file_error(writer, "open", errno);
	if (fstat(writer->fd, &info) || (uint64_t)info.st_size != writer->bytes)
		return zero_fail(ZERO_E_FILE,
				 "%s does not have the %llu bytes that rank 0 has reserved",
				 writer->path, (unsigned long long)writer->bytes);
	return ZERO_OK;
}

int zero_write_all(int fd, const void *data, size_t bytes, uint64_t at)
{
	const char *from = data;

	while (bytes) {
		ssize_t put = pwrite(fd, from, bytes, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return put ? errno : ENOSPC;
		from += put;
		at += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return 0;
}

zero_status zero_writer_write(const struct zero_writer *writer, const void *data, size_t bytes,
			      uint64_t at)
{
	int error = zero_write_all(writer->fd, data, bytes, at);

	return error ? file_error(writer, "write", error) : ZERO_OK;
}

zero_status zero_writer_close(struct zero_writer *writer, bool sync)
{
	zero_status status = ZERO_OK;

	if (writer->fd < 0)
		return ZERO_OK;
	if (sync && fsync(writer->fd))
		status = file_error(writer, "write", errno);
	if (close(writer->fd) && sync && !status && errno != EINTR)
		status = file_error(writer, "close", errno);
	writer->fd = -1;
	return status;
}

zero_status zero_write_file(const char *path, const void *data, size_t bytes)
{
	struct zero_writer writer = {.path = path, .bytes = bytes, .fd = -1};
	zero_status status = zero_writer_create(&writer), closed;

	if (!status)
		status = zero_writer_write(&writer, data, bytes, 0);
	closed = zero_writer_close(&writer, !status);
	return status ? status : closed;
}

/* ---- folders --------------------------------------------------------------------------------- */

zero_status zero_file_error(const char *what, const char *path)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s: %s", what, path, strerror(errno));
}

zero_status zero_sync_folder(const char *path)
{
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;

	if (folder < 0)
		error = errno;
	/* Some file systems cannot sync a folder. */
	else if (fsync(folder) && errno != EINVAL && errno != EROFS)
		error = errno;
	if (folder >= 0)
		close(folder);
	return error ? zero_fail(ZERO_E_FILE, "cannot write folder %s to disk: %s", path,
				 strerror(error))
		     : ZERO_OK;
}

char *zero_folder_of(const char *path)
{
	size_t bytes = strlen(path);

	while (bytes > 1 && path[bytes - 1] == '/')
		bytes--;
	while (bytes && path[bytes - 1] != '/')
		bytes--;
	while (bytes > 1 && path[bytes - 1] == '/')
		bytes--;
	return bytes ? strndup(path, bytes) : strdup(".");
}

zero_status zero_replace(const char *from, const char *to)
{
	char *folder = zero_folder_of(to);
	zero_status status;

	if (!folder)
		return zero_fail(ZERO_E_MEMORY, "no memory to rename %s", from);
	status = rename(from, to) ? zero_fail(ZERO_E_FILE, "cannot rename %s to %s: %s", from, to,
					      strerror(errno))
				  : zero_sync_folder(folder);
	free(folder);
	return status;
}

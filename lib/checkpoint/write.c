/* SPDX-License-Identifier: Apache-2.0 */
/* Files that ranks write, for exports and checkpoints. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/write.h"

/* ---- one file -------------------------------------------------------------------------------- */

zero_status zero_out_error(const struct zero_out *out, const char *what, int error)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s (%llu bytes in all): %s", what, out->path,
			 (unsigned long long)out->bytes, strerror(error));
}

static int make_room(int fd, uint64_t bytes)
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

zero_status zero_out_new(struct zero_out *out)
{
	out->fd = open(out->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	return out->fd < 0 ? zero_out_error(out, "create", errno) : ZERO_OK;
}

zero_status zero_out_room(const struct zero_out *out)
{
	int error = make_room(out->fd, out->bytes);

	return error ? zero_out_error(out, "make room for", error) : ZERO_OK;
}

zero_status zero_out_create(struct zero_out *out)
{
	zero_status status = zero_out_new(out);

	return status ? status : zero_out_room(out);
}

zero_status zero_out_join(struct zero_out *out)
{
	struct stat info;

	out->fd = open(out->path, O_WRONLY | O_CLOEXEC);
	if (out->fd < 0 && errno == ENOENT)
		return zero_fail(ZERO_E_FILE,
				 "%s, which rank 0 made, is not seen here: it must be on a file "
				 "system that all nodes share",
				 out->path);
	if (out->fd < 0)
		return zero_out_error(out, "open", errno);
	if (fstat(out->fd, &info) || (uint64_t)info.st_size != out->bytes)
		return zero_out_error(out, "find rank 0's bytes in", EIO);
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

zero_status zero_out_write(const struct zero_out *out, const void *data, size_t bytes, uint64_t at)
{
	int error = zero_write_all(out->fd, data, bytes, at);

	return error ? zero_out_error(out, "write", error) : ZERO_OK;
}

zero_status zero_out_close(struct zero_out *out, bool sync)
{
	zero_status status = ZERO_OK;

	if (out->fd < 0)
		return ZERO_OK;
	if (sync && fsync(out->fd))
		status = zero_out_error(out, "write", errno);
	if (close(out->fd) && sync && !status && errno != EINTR)
		status = zero_out_error(out, "close", errno);
	out->fd = -1;
	return status;
}

zero_status zero_write_file(const char *path, const void *data, size_t bytes)
{
	struct zero_out out = {.path = path, .bytes = bytes, .fd = -1};
	zero_status status = zero_out_create(&out), closed;

	if (!status)
		status = zero_out_write(&out, data, bytes, 0);
	closed = zero_out_close(&out, !status);
	return status ? status : closed;
}

/* ---- folders --------------------------------------------------------------------------------- */

zero_status zero_sync_folder(const char *path)
{
	int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error = 0;

	if (folder < 0)
		error = errno;
	/* Not every file system has this for folders. */
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

/* ---- names ----------------------------------------------------------------------------------- */

zero_status zero_token(zero_job *job, zero_status status, const char *label, uint64_t *token)
{
	uint64_t mine = 0, *all = calloc((size_t)job->place.world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_EXCHANGE, .send = &mine, .recv = all, .count = sizeof(mine)};

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for %s", label);
	if (getrandom(&mine, sizeof(mine), 0) != (ssize_t)sizeof(mine))
		mine = (uint64_t)getpid();
	status = zero_submit_wait(&job->all, status, &op, 1, "%s", label);
	*token = status ? 0 : all[0];
	free(all);
	return status;
}

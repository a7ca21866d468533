/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Export: one safetensors file, written in place by all ranks, each its own slices. Nothing is
 * gathered. The file is made beside its final name and renamed when all of it is on disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

struct output {
	zero_job *job;
	const char *path;
	char *partial; /* where it is written first */
	zero_param **params;
	zero_tensor *tensors; /* in the order of params */
	char *header;
	size_t count, header_bytes;
	uint64_t bytes; /* of the whole file */
	int fd;
};

static zero_status file_error(const struct output *out, const char *what, int error)
{
	return zero_fail(ZERO_E_FILE, "cannot %s %s (%llu bytes in all): %s", what, out->partial,
			 (unsigned long long)out->bytes, strerror(error));
}

static zero_status list_tensors(struct output *out)
{
	const zero_job *job = out->job;
	size_t room = 0;

	for (size_t g = 0; g < job->group_count; g++)
		room += job->groups[g]->param_count;
	out->params = calloc(room + 1, sizeof(zero_param *));
	out->tensors = calloc(room + 1, sizeof(zero_tensor));
	if (!out->params || !out->tensors)
		return zero_fail(ZERO_E_MEMORY, "no memory to export %zu tensors", room);
	for (size_t g = 0; g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++) {
			zero_param *param = job->groups[g]->params[p];
			zero_tensor *tensor = &out->tensors[out->count];

			if (param->alias_of)
				continue;
			tensor->name = param->name;
			tensor->dtype = param->dtype;
			tensor->ndim = param->ndim;
			memcpy(tensor->shape, param->shape, sizeof(tensor->shape));
			tensor->path = out->path;
			out->params[out->count++] = param;
		}
	return ZERO_OK;
}

static zero_status make_header(struct output *out)
{
	const struct zero_files_ops *files;
	zero_status status = list_tensors(out);

	if (!status)
		status = zero_files_open(&files);
	if (!status)
		status = files->header(out->tensors, out->count, &out->header, &out->header_bytes);
	if (status)
		return status;
	out->bytes = out->header_bytes;
	for (size_t i = 0; i < out->count; i++)
		out->bytes += out->params[i]->count * zero_dtype_size(out->params[i]->dtype);
	return ZERO_OK;
}

/* COLLECTIVE. One name for all ranks, which no other job uses; NULL if there is no memory for
   it. */
static zero_status name_partial(struct output *out, zero_status status)
{
	size_t world = (size_t)out->job->place.world;
	uint64_t token = 0, *tokens = calloc(world, sizeof(token));
	struct zero_op op = {
		.kind = ZERO_OP_EXCHANGE, .send = &token, .recv = tokens, .count = sizeof(token)};

	if (!tokens && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to export %s", out->path);
	if (getrandom(&token, sizeof(token), 0) != (ssize_t)sizeof(token))
		token = (uint64_t)getpid();
	status = zero_run(out->job, status, &op, 1, "export to %s", out->path);
	if (!status && asprintf(&out->partial, "%s.%016llx.partial", out->path,
				(unsigned long long)tokens[0]) < 0)
		out->partial = NULL;
	free(tokens);
	return status;
}

static zero_status write_at(const struct output *out, const char *data, size_t bytes, uint64_t at)
{
	while (bytes) {
		ssize_t put = pwrite(out->fd, data, bytes, (off_t)at);

		if (put < 0 && errno == EINTR)
			continue;
		if (put <= 0)
			return file_error(out, "write", put ? errno : ENOSPC);
		data += put;
		at += (uint64_t)put;
		bytes -= (size_t)put;
	}
	return ZERO_OK;
}

/* Rank 0: all the room at once, so that a full disk is known before anything is written. */
static zero_status create(struct output *out)
{
	struct stat info;

	if (!stat(out->path, &info) && !S_ISREG(info.st_mode))
		return zero_fail(ZERO_E_FILE,
				 "cannot export to %s: that is a directory or a device", out->path);
	out->fd = open(out->partial, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (out->fd < 0)
		return file_error(out, "create", errno);
	if (fallocate(out->fd, 0, 0, (off_t)out->bytes)) {
		if (errno != EOPNOTSUPP)
			return file_error(out, "make room for", errno);
		if (ftruncate(out->fd, (off_t)out->bytes))
			return file_error(out, "make room for", errno);
	}
	return write_at(out, out->header, out->header_bytes, 0);
}

static zero_status join(struct output *out)
{
	struct stat info;

	out->fd = open(out->partial, O_WRONLY | O_CLOEXEC);
	if (out->fd < 0 && errno == ENOENT)
		return zero_fail(ZERO_E_FILE,
				 "%s, which rank 0 made, is not seen here: export to a file "
				 "system that all nodes share",
				 out->partial);
	if (out->fd < 0)
		return file_error(out, "open", errno);
	if (fstat(out->fd, &info) || (uint64_t)info.st_size != out->bytes)
		return file_error(out, "find rank 0's bytes in", EIO);
	return ZERO_OK;
}

struct writing {
	const struct output *out;
	uint64_t at; /* in the file */
};

static zero_status write_piece(void *context, const void *data, size_t at, size_t bytes)
{
	const struct writing *writing = context;

	return write_at(writing->out, data, bytes, writing->at + at);
}

/* The slice of the parameter that lies in this rank's shard, also where whole runs are stored. */
static zero_status write_param(const struct output *out, size_t i)
{
	const zero_param *param = out->params[i];
	const struct zero_run *run = &param->flat->runs[param->run];
	size_t size = zero_dtype_size(param->dtype), first, count;
	struct writing writing = {.out = out};
	const char *values;

	if (!zero_is_member(param->group))
		return ZERO_OK;
	zero_param_part(param, run->shard * (size_t)param->group->team->place.rank, run->shard,
			&first, &count);
	if (!count)
		return ZERO_OK;
	values = zero_stored_at(param->flat, run, param->first + first);
	writing.at = out->tensors[i].offset + first * size;
	if (out->job->ops->host_memory)
		return write_at(out, values, count * size, writing.at);
	return zero_stage_out(out->job, values, count * size, write_piece, &writing);
}

static zero_status write_own(struct output *out)
{
	zero_status status = out->job->place.rank ? join(out) : ZERO_OK;

	for (size_t i = 0; !status && i < out->count; i++)
		status = write_param(out, i);
	if (!status && fsync(out->fd))
		status = file_error(out, "write", errno);
	return status;
}

/* Rank 0: the rename itself must be on disk too. */
static zero_status publish(struct output *out)
{
	char *copy = strdup(out->path);
	int folder;

	if (!copy)
		return zero_fail(ZERO_E_MEMORY, "no memory to export %s", out->path);
	if (rename(out->partial, out->path)) {
		free(copy);
		return file_error(out, "rename", errno);
	}
	folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder >= 0) {
		fsync(folder);
		close(folder);
	}
	free(copy);
	return ZERO_OK;
}

static zero_status check_export(zero_job *job)
{
	zero_status status = ZERO_OK;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_export comes after zero_layout");
	for (size_t g = 0; !status && g < job->group_count; g++)
		status = zero_finish_update(job->groups[g]);
	return status;
}

zero_status zero_export(zero_job *job, const char *path)
{
	struct output out = {.job = job, .path = path, .fd = -1};
	bool maker = job->place.rank == 0;
	zero_status status = check_export(job);

	if (!status)
		status = make_header(&out);
	status = name_partial(&out, status);
	if (status)
		goto out;
	if (!out.partial)
		status = zero_fail(ZERO_E_MEMORY, "no memory to export %s", path);
	else if (maker)
		status = create(&out);
	status = zero_run(job, status, NULL, 0, "room for %s", path);
	if (status)
		goto out;
	status = write_own(&out);
	if (!status) {
		/* Some file systems tell of a full disk only now. */
		if (close(out.fd))
			status = file_error(&out, "close", errno);
		out.fd = -1;
	}
	status = zero_run(job, status, NULL, 0, "bytes of %s", path);
	if (status)
		goto out;
	if (maker)
		status = publish(&out);
	status = zero_run(job, status, NULL, 0, "end of %s", path);
out:
	if (out.fd >= 0)
		close(out.fd);
	if (status && maker && out.partial)
		unlink(out.partial);
	free(out.partial);
	free(out.header);
	free(out.params);
	free(out.tensors);
	return status;
}

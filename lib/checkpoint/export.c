/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_export: each rank writes its own slices of the safetensors files in place. Nothing is
 * gathered. The files have partial names until all are on disk; then export_names.c renames them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/export.h"
#include "checkpoint/write.h"

/* The default of Hugging Face's libraries. */
#define FILE_BYTES_MAX 5000000000u

static zero_status no_memory(const struct zero_export_plan *out)
{
	return zero_fail(ZERO_E_MEMORY, "no memory to export %zu tensors to %s", out->count,
			 out->path);
}

/* ---- the files and their tensors ------------------------------------------------------------- */

static zero_status list_tensors(struct zero_export_plan *out)
{
	const zero_job *job = out->job;
	size_t capacity = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		capacity += job->model->groups[g]->param_count;
	out->params = calloc(capacity + 1, sizeof(zero_param *));
	out->tensors = calloc(capacity + 1, sizeof(zero_tensor));
	if (!out->params || !out->tensors)
		return no_memory(out);
	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			zero_param *param = job->model->groups[g]->params[p];
			zero_tensor *tensor = &out->tensors[out->count];

			if (param->alias_of)
				continue;
			tensor->name = param->name;
			tensor->dtype = param->dtype;
			tensor->ndim = param->ndim;
			memcpy(tensor->shape, param->shape, sizeof(tensor->shape));
			out->params[out->count++] = param;
		}
	return ZERO_OK;
}

static uint64_t tensor_bytes(const struct zero_export_plan *out, size_t i)
{
	return out->params[i]->count * zero_dtype_size(out->params[i]->dtype);
}

/* Fills each file with as many tensors as fit, in order. A tensor above the limit gets its own
   file. */
static zero_status cut_files(struct zero_export_plan *out)
{
	uint64_t limit = out->folder ? out->limit : UINT64_MAX, used = 0;

	out->files = calloc(out->count + 1, sizeof(*out->files));
	if (!out->files)
		return no_memory(out);
	out->file_count = 1; /* a model without tensors is one empty file */
	for (size_t i = 0; i < out->count; i++) {
		struct zero_export_file *file = &out->files[out->file_count - 1];
		uint64_t bytes = tensor_bytes(out, i);

		if (file->count && (used > limit || bytes > limit - used)) {
			file = &out->files[out->file_count++];
			file->first = i;
			used = 0;
		}
		used += bytes;
		file->count++;
	}
	return ZERO_OK;
}

static zero_status name_file(const struct zero_export_plan *out, size_t number)
{
	struct zero_export_file *file = &out->files[number];
	int length;

	if (!out->folder)
		length = asprintf(&file->path, "%s", out->path);
	else if (out->file_count == 1)
		length = asprintf(&file->path, "%s/model.safetensors", out->path);
	else
		length = asprintf(&file->path, "%s/model-%05zu-of-%05zu.safetensors", out->path,
				  number + 1, out->file_count);
	if (length < 0)
		file->path = NULL;
	if (length < 0 || asprintf(&file->partial, "%s.%016llx.partial", file->path,
				   (unsigned long long)out->token) < 0) {
		file->partial = NULL;
		return no_memory(out);
	}
	return ZERO_OK;
}

static zero_status plan_file(const struct zero_export_plan *out, size_t number)
{
	struct zero_export_file *file = &out->files[number];
	const struct zero_files_ops *files;
	zero_status status = name_file(out, number);

	if (!status)
		status = zero_files_open(&files);
	if (!status)
		status = files->header(out->tensors + file->first, file->count, &file->header,
				       &file->header_bytes);
	if (status)
		return status;
	file->bytes = file->header_bytes;
	for (size_t i = file->first; i < file->first + file->count; i++) {
		out->tensors[i].path = file->path;
		file->bytes += tensor_bytes(out, i);
	}
	return ZERO_OK;
}

static zero_status plan_files(struct zero_export_plan *out)
{
	zero_status status = cut_files(out);

	for (size_t i = 0; !status && i < out->file_count; i++)
		status = plan_file(out, i);
	return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct writing {
	const struct zero_writer *out;
	uint64_t at; /* in the file */
};

static zero_status create_file(const struct zero_export_file *file)
{
	struct zero_writer out = {.path = file->partial, .bytes = file->bytes, .fd = -1};
	zero_status status = zero_writer_create(&out), one;

	if (!status)
		status = zero_writer_write(&out, file->header, file->header_bytes, 0);
	one = zero_writer_close(&out, false);
	return status ? status : one;
}

/* Called on rank 0. */
static zero_status create_files(struct zero_export_plan *out)
{
	zero_status status = zero_export_prepare(out);

	for (size_t i = 0; !status && i < out->file_count; i++)
		status = create_file(&out->files[i]);
	return status;
}

static zero_status write_piece(void *context, const void *data, size_t at, size_t bytes)
{
	const struct writing *writing = context;

	return zero_writer_write(writing->out, data, bytes, writing->at + at);
}

/* Writes the part of the parameter that is in this rank's shard, also where the segment is
   replicated. */
static zero_status write_param(const struct zero_export_plan *out, size_t i,
			       const struct zero_writer *to)
{
	const zero_param *param = out->params[i];
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t size = zero_dtype_size(param->dtype), first, count;
	struct writing writing = {.out = to};
	const char *values;

	if (!zero_is_member(param->group))
		return ZERO_OK;
	zero_param_shard_part(param, &first, &count);
	if (!count)
		return ZERO_OK;
	values = zero_stored_at(param->flat, segment, param->first + first);
	writing.at = out->tensors[i].offset + first * size;
	if (out->job->ops->host_memory)
		return zero_writer_write(to, values, count * size, writing.at);
	return zero_staging_out(out->job, values, count * size, write_piece, &writing);
}

static zero_status write_file(const struct zero_export_plan *out,
			      const struct zero_export_file *file)
{
	struct zero_writer to = {.path = file->partial, .bytes = file->bytes, .fd = -1};
	zero_status status = zero_writer_open(&to), one;

	for (size_t i = file->first; !status && i < file->first + file->count; i++)
		status = write_param(out, i, &to);
	one = zero_writer_close(&to, !status);
	return status ? status : one;
}

static zero_status write_own(const struct zero_export_plan *out)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < out->file_count; i++)
		status = write_file(out, &out->files[i]);
	return status;
}

/* ---- the call -------------------------------------------------------------------------------- */

static bool names_file(const char *path)
{
	static const char end[] = ".safetensors";
	size_t length = strlen(path), end_length = strlen(end);

	return length >= end_length && !strcmp(path + length - end_length, end);
}

static zero_status check_export(zero_job *job)
{
	zero_status status = ZERO_OK;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_export must be called after zero_layout");
	for (size_t g = 0; !status && g < job->model->group_count; g++)
		status = zero_wait_post_step_gather(job->model->groups[g]);
	return status ? status : zero_require_state(job, ZERO_IDLE, "zero_export");
}

static void clear_output(struct zero_export_plan *out)
{
	for (size_t i = 0; i < out->file_count; i++) {
		free(out->files[i].path);
		free(out->files[i].partial);
		free(out->files[i].header);
	}
	free(out->files);
	free(out->params);
	free(out->tensors);
}

zero_status zero_export(zero_job *job, const char *path)
{
	return zero_export_files(job, path, FILE_BYTES_MAX);
}

zero_status zero_export_files(zero_job *job, const char *path, uint64_t limit)
{
	struct zero_export_plan out = {
		.job = job, .path = path, .folder = !names_file(path), .limit = limit};
	bool root = job->place.rank == 0;
	const char *before = zero_set_current_call(job, "zero_export");
	zero_status status = check_export(job);

	if (!status)
		status = list_tensors(&out);
	status = zero_agree_token(job, status, "export", &out.token);
	if (status)
		goto out;
	status = plan_files(&out);
	if (!status && root)
		status = create_files(&out);
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				  "export: space for %s", path);
	if (!status) {
		status = write_own(&out);
		status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
					  "export: bytes of %s", path);
	}
	if (!status) {
		if (root)
			status = zero_export_publish(&out);
		status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
					  "export: end of %s", path);
	}
	if (status && root)
		zero_export_discard(&out);
out:
	clear_output(&out);
	zero_set_current_call(job, before);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where values come from: any slice of any source, written where it is to lie. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

zero_source zero_from_file(const zero_tensor *tensor)
{
	return (zero_source){.kind = ZERO_FROM_FILE, .tensor = tensor};
}

zero_source zero_from_rank(int rank, const void *data)
{
	return (zero_source){.kind = ZERO_FROM_RANK, .rank = rank, .data = data};
}

zero_source zero_from_all(const void *data)
{
	return (zero_source){.kind = ZERO_FROM_ALL, .data = data};
}

zero_source zero_from_constant(double value)
{
	return (zero_source){.kind = ZERO_FROM_CONSTANT, .a = value};
}

zero_source zero_from_uniform(double low, double high, uint64_t seed)
{
	return (zero_source){.kind = ZERO_FROM_UNIFORM, .a = low, .b = high, .seed = seed};
}

zero_source zero_from_normal(double mean, double stddev, uint64_t seed)
{
	return (zero_source){.kind = ZERO_FROM_NORMAL, .a = mean, .b = stddev, .seed = seed};
}

zero_source zero_from_callback(zero_fill fill, void *context)
{
	return (zero_source){.kind = ZERO_FROM_CALLBACK, .fill = fill, .context = context};
}

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
}

/* "[2, 3]" */
static const char *shape_text(char *text, size_t size, int ndim, const size_t *shape)
{
	size_t at = (size_t)snprintf(text, size, "[");

	for (int i = 0; i < ndim && at < size; i++)
		at += (size_t)snprintf(text + at, size - at, "%s%zu", i ? ", " : "", shape[i]);
	if (at < size)
		snprintf(text + at, size - at, "]");
	return text;
}

static zero_status check_tensor(const zero_param *param, const zero_tensor *tensor)
{
	char want[256], have[256];

	if (!tensor || !tensor->path)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is to come from a file, but no "
				 "tensor of a file was given (missing from it?)",
				 param->name);
	if (tensor->dtype != param->dtype)
		return zero_fail(ZERO_E_FORMAT, "%s: tensor '%s' is %s, parameter '%s' is %s",
				 tensor->path, tensor->name ? tensor->name : param->name,
				 zero_dtype_name(tensor->dtype), param->name,
				 zero_dtype_name(param->dtype));
	if (tensor->ndim != param->ndim ||
	    memcmp(tensor->shape, param->shape, (size_t)param->ndim * sizeof(param->shape[0])))
		return zero_fail(
			ZERO_E_FORMAT, "%s: tensor '%s' has shape %s, parameter '%s' has %s",
			tensor->path, tensor->name ? tensor->name : param->name,
			shape_text(have, sizeof(have), tensor->ndim, tensor->shape), param->name,
			shape_text(want, sizeof(want), param->ndim, param->shape));
	return ZERO_OK;
}

zero_status zero_source_check(const zero_param *param, const zero_source *source)
{
	const zero_job *job = param->group->job;

	switch (source->kind) {
	case ZERO_FROM_FILE:
		return check_tensor(param, source->tensor);
	case ZERO_FROM_RANK:
		if (source->rank < 0 || source->rank >= job->place.world)
			return zero_fail(ZERO_E_INVALID,
					 "parameter '%s' is to come from rank %d, but ranks are 0 "
					 "to %d",
					 param->name, source->rank, job->place.world - 1);
		if (source->rank != job->place.rank || source->data || !param->count)
			return ZERO_OK;
		break;
	case ZERO_FROM_ALL:
		if (source->data || !param->count)
			return ZERO_OK;
		break;
	case ZERO_FROM_CONSTANT:
		return ZERO_OK;
	case ZERO_FROM_UNIFORM:
	case ZERO_FROM_NORMAL:
		if (is_float(param->dtype))
			return ZERO_OK;
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is %s; random values are f32, f16, bf16 or f64",
				 param->name, zero_dtype_name(param->dtype));
	case ZERO_FROM_CALLBACK:
		if (source->fill)
			return ZERO_OK;
		break;
	default:
		return zero_fail(ZERO_E_INVALID, "parameter '%s': no source has kind %d",
				 param->name, (int)source->kind);
	}
	return zero_fail(ZERO_E_INVALID, "parameter '%s': the source is NULL", param->name);
}

void zero_source_label(const zero_param *param, const zero_source *source, char *text, size_t size)
{
	switch (source->kind) {
	case ZERO_FROM_RANK:
		snprintf(text, size, "load of '%s' from rank %d", param->name, source->rank);
		break;
	case ZERO_FROM_CONSTANT:
		snprintf(text, size, "load of '%s' with %.17g", param->name, source->a);
		break;
	case ZERO_FROM_UNIFORM:
	case ZERO_FROM_NORMAL:
		snprintf(text, size, "load of '%s' with %s(%.17g, %.17g), seed %llu", param->name,
			 source->kind == ZERO_FROM_NORMAL ? "normal" : "uniform", source->a,
			 source->b, (unsigned long long)source->seed);
		break;
	default:
		/* Files and addresses may differ; what kind of source it is may not. */
		snprintf(text, size, "load of '%s' from source kind %d", param->name,
			 (int)source->kind);
	}
}

void zero_source_forget(zero_job *job)
{
	if (job->slice_path)
		close(job->slice_fd);
	free(job->slice_path);
	job->slice_path = NULL;
}

/* The file stays open: a checkpoint is hundreds of tensors in one file. */
static zero_status slice_open(zero_job *job, const char *path)
{
	struct stat info, now;

	/* Unless another file has taken its name meanwhile. */
	if (job->slice_path && !strcmp(job->slice_path, path) && !fstat(job->slice_fd, &info) &&
	    !stat(path, &now) && now.st_ino == info.st_ino && now.st_dev == info.st_dev)
		return ZERO_OK;
	zero_source_forget(job);
	/* Not to be held up by a pipe that nobody writes to. */
	job->slice_fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (job->slice_fd < 0)
		return zero_fail(ZERO_E_FILE, "cannot open %s: %s", path, strerror(errno));
	job->slice_path = strdup(path);
	if (!job->slice_path) {
		close(job->slice_fd);
		return zero_fail(ZERO_E_MEMORY, "no memory for the name of %s", path);
	}
	if (fstat(job->slice_fd, &info) || !S_ISREG(info.st_mode)) {
		zero_source_forget(job);
		return zero_fail(ZERO_E_FILE, "cannot read %s: not a regular file", path);
	}
	return ZERO_OK;
}

static zero_status read_slice(zero_param *param, const zero_tensor *tensor, char *out, size_t first,
			      size_t count)
{
	const char *name = tensor->name ? tensor->name : param->name;
	size_t size = zero_dtype_size(param->dtype);
	size_t bytes = count * size;
	zero_job *job = param->group->job;
	zero_status status;
	uint64_t at;

	status = slice_open(job, tensor->path);
	if (status)
		return status;
	if (__builtin_add_overflow(tensor->offset, (uint64_t)first * size, &at) ||
	    at > INT64_MAX - bytes)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' begins at byte %llu, beyond any "
				 "file",
				 tensor->path, name, (unsigned long long)tensor->offset);
	while (bytes) {
		/* Linux reads at most 2 GiB less a page at once. */
		ssize_t got = pread(job->slice_fd, out, bytes, (off_t)at);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return zero_fail(ZERO_E_FILE, "cannot read %s at byte %llu: %s",
					 tensor->path, (unsigned long long)at, strerror(errno));
		if (got == 0)
			return zero_fail(ZERO_E_FORMAT,
					 "%s ends at byte %llu, %zu bytes before the end of what "
					 "tensor '%s' needs",
					 tensor->path, (unsigned long long)at, bytes, name);
		out += got;
		at += (uint64_t)got;
		bytes -= (size_t)got;
	}
	return ZERO_OK;
}

zero_status zero_source_read(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count)
{
	uint64_t stream = zero_hash(param->name, strlen(param->name), 0);
	size_t size = zero_dtype_size(param->dtype);
	zero_job *job = param->group->job;
	zero_status status;

	switch (source->kind) {
	case ZERO_FROM_FILE:
		return read_slice(param, source->tensor, out, first, count);
	case ZERO_FROM_RANK: /* is sent, not read */
		break;
	case ZERO_FROM_ALL:
		job->ops->copy(job->backend, out, (const char *)source->data + first * size,
			       count * size);
		return ZERO_OK;
	case ZERO_FROM_CONSTANT:
		job->ops->fill_constant(job->backend, param->dtype, out, count, source->a);
		return ZERO_OK;
	case ZERO_FROM_UNIFORM:
		job->ops->fill_uniform(job->backend, param->dtype, out, first, count, source->a,
				       source->b, source->seed, stream);
		return ZERO_OK;
	case ZERO_FROM_NORMAL:
		job->ops->fill_normal(job->backend, param->dtype, out, first, count, source->a,
				      source->b, source->seed, stream);
		return ZERO_OK;
	case ZERO_FROM_CALLBACK:
		/* Whatever it returns: its numbers are its own. */
		status = source->fill(source->context, out, first, count);
		if (status)
			return zero_fail(ZERO_E_APPLICATION,
					 "the callback for parameter '%s' returned %d for elements "
					 "%zu to %zu",
					 param->name, (int)status, first, first + count);
		return ZERO_OK;
	}
	return ZERO_E_INVALID;
}

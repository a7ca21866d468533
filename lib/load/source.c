/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of values: checks one, and writes any slice of it to where the slice is stored. */
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "load.h"

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

zero_source zero_from_callback(zero_fill_callback fill, void *context)
{
	return (zero_source){.kind = ZERO_FROM_CALLBACK, .fill = fill, .context = context};
}

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
}

static zero_status check_dtype(const zero_param *param, const zero_source *source)
{
	const zero_tensor *tensor = source->tensor;
	const zero_job *job = param->group->job;

	if (tensor->dtype == param->dtype ||
	    (source->convert && job->cpu.kernels->convertible(param->dtype, tensor->dtype)))
		return ZERO_OK;
	return zero_fail(ZERO_E_FORMAT, "%s: tensor '%s' is %s, parameter '%s' is %s%s",
			 tensor->path, tensor->name ? tensor->name : param->name,
			 zero_dtype_name(tensor->dtype), param->name, zero_dtype_name(param->dtype),
			 source->convert ? "; floating types become floating ones only, integers "
					   "and bool each other"
					 : "");
}

static size_t scale_blocks(size_t elements)
{
	return elements / ZERO_SCALE_BLOCK + (elements % ZERO_SCALE_BLOCK != 0);
}

static zero_status check_scale(const zero_param *param, const zero_source *source)
{
	const zero_tensor *tensor = source->tensor, *scale = source->scale;
	const zero_job *job = param->group->job;
	char have[256];

	if (!scale)
		return ZERO_OK;
	if (!zero_is_f8(tensor->dtype) || tensor->ndim != 2 || tensor->dtype == param->dtype)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s', which is %s, has a source with scales: these are "
				 "for a matrix of f8 that becomes another type",
				 param->name, zero_dtype_name(param->dtype));
	if (!job->cpu.kernels->convertible(ZERO_F32, scale->dtype))
		return zero_fail(ZERO_E_FORMAT, "%s: tensor '%s', of scales, is %s, no float",
				 scale->path, scale->name ? scale->name : param->name,
				 zero_dtype_name(scale->dtype));
	if (scale->ndim == 2 && scale->shape[0] == scale_blocks(tensor->shape[0]) &&
	    scale->shape[1] == scale_blocks(tensor->shape[1]))
		return ZERO_OK;
	return zero_fail(
		ZERO_E_FORMAT,
		"%s: tensor '%s', of scales, has shape %s; for blocks of %d x %d elements of "
		"'%s' it is [%zu, %zu]",
		scale->path, scale->name ? scale->name : param->name,
		zero_shape_text(have, sizeof(have), scale->ndim, scale->shape), ZERO_SCALE_BLOCK,
		ZERO_SCALE_BLOCK, tensor->name ? tensor->name : param->name,
		scale_blocks(tensor->shape[0]), scale_blocks(tensor->shape[1]));
}

static bool same_shape(const zero_param *param, const zero_source *source)
{
	const zero_tensor *tensor = source->tensor;

	if (tensor->ndim != param->ndim)
		return false;
	for (int i = 0; i < param->ndim; i++)
		if (tensor->shape[source->transpose ? 1 - i : i] != param->shape[i])
			return false;
	return true;
}

static zero_status check_shape(const zero_param *param, const zero_source *source)
{
	const zero_tensor *tensor = source->tensor;
	char want[256], have[256];

	if (source->transpose && param->ndim != 2)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' has %d dimensions; a tensor can be transposed "
				 "for one of 2",
				 param->name, param->ndim);
	if (same_shape(param, source))
		return ZERO_OK;
	return zero_fail(ZERO_E_FORMAT, "%s: tensor '%s' has shape %s%s, parameter '%s' has %s",
			 tensor->path, tensor->name ? tensor->name : param->name,
			 zero_shape_text(have, sizeof(have), tensor->ndim, tensor->shape),
			 source->transpose ? " before it is transposed" : "", param->name,
			 zero_shape_text(want, sizeof(want), param->ndim, param->shape));
}

static zero_status check_tensor(const zero_param *param, const zero_source *source)
{
	zero_status status;

	if (!source->tensor || !source->tensor->path)
		return zero_fail(
			ZERO_E_INVALID,
			"parameter '%s': the source has no tensor of a file; is it missing "
			"from the file?",
			param->name);
	status = check_dtype(param, source);
	if (!status)
		status = check_shape(param, source);
	return status ? status : check_scale(param, source);
}

zero_status zero_source_check(const zero_param *param, const zero_source *source)
{
	const zero_job *job = param->group->job;

	if (source->kind != ZERO_FROM_FILE &&
	    (source->transpose || source->convert || source->scale))
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s': only a tensor of a file is transposed, converted "
				 "or scaled",
				 param->name);
	switch (source->kind) {
	case ZERO_FROM_FILE:
		return check_tensor(param, source);
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
	case ZERO_FROM_FILE: /* the path may differ between ranks */
		snprintf(text, size, "load of '%s' from a file%s%s", param->name,
			 source->transpose ? ", transposed" : "", source->scale ? ", scaled" : "");
		break;
	default:
		/* Addresses may differ between ranks; the kind of source may not. */
		snprintf(text, size, "load of '%s' from source kind %d", param->name,
			 (int)source->kind);
	}
}

/* Writes values that only the host can read or compute to host memory. */
static zero_status read_host(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count)
{
	zero_status status;

	if (source->kind == ZERO_FROM_FILE)
		return zero_slice_read(param, source, out, first, count);
	/* The program's own status codes need not be the library's. */
	status = source->fill(source->context, out, first, count);
	if (status)
		return zero_fail(ZERO_E_APPLICATION,
				 "the callback for parameter '%s' returned %d for elements "
				 "%zu to %zu",
				 param->name, (int)status, first, first + count);
	return ZERO_OK;
}

struct reading {
	zero_param *param;
	const zero_source *source;
	size_t first;
};

static zero_status read_piece(void *context, void *data, size_t at, size_t bytes)
{
	const struct reading *reading = context;
	size_t size = zero_dtype_size(reading->param->dtype);

	return read_host(reading->param, reading->source, data, reading->first + at / size,
			 bytes / size);
}

zero_status zero_source_read(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count)
{
	struct zero_device_random random = {
		.out = out,
		.first = first,
		.count = count,
		.seed = source->seed,
		.stream = zero_hash(param->name, strlen(param->name), 0),
		.a = source->a,
		.b = source->b,
		.dtype = param->dtype,
	};
	size_t size = zero_dtype_size(param->dtype);
	struct reading reading = {.param = param, .source = source, .first = first};
	zero_job *job = param->group->job;

	switch (source->kind) {
	case ZERO_FROM_FILE:
	case ZERO_FROM_CALLBACK:
		if (job->ops->host_memory)
			return read_host(param, source, out, first, count);
		return zero_staging_in(job, out, count * size, read_piece, &reading);
	case ZERO_FROM_RANK: /* is sent, not read */
		break;
	case ZERO_FROM_ALL:
		job->ops->copy(job->backend, out, (const char *)source->data + first * size,
			       count * size);
		return ZERO_OK;
	case ZERO_FROM_CONSTANT:
		zero_fill(job, param->dtype, out, count, source->a);
		return ZERO_OK;
	case ZERO_FROM_UNIFORM:
		random.cut =
			job->cpu.kernels->uniform_ends(param->dtype, source->a, source->b,
						       &random.first_value, &random.last_value);
		zero_compute(job, ZERO_K_UNIFORM, &random);
		return ZERO_OK;
	case ZERO_FROM_NORMAL:
		zero_compute(job, ZERO_K_NORMAL, &random);
		return ZERO_OK;
	}
	return ZERO_E_INVALID;
}

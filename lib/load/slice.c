/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads slices of tensors from files straight to where they are stored. Values that are transposed
 * or converted come by tiles: at most two tiles are allocated, and only the rank that stores a
 * value reads its bytes. Scales of blocks are read whole: they are one of 16384 elements.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "load.h"

/* Bytes of a tile: small enough that it is still in the cache when it is converted. stream_chunk
   limits a tile too, but not below a page. */
enum { MAX_TILE = 1 << 20, MIN_TILE = 4096 };

struct slice {
	zero_job *job;
	const zero_param *param;
	const zero_tensor *tensor;
	size_t from_size, to_size; /* bytes of an element in the file, and of the parameter */
	char *tile;                /* values as in the file; NULL: they are read in place */
	char *converted;           /* NULL: values are converted in place, or not at all */
	float *scales;             /* [blocks of rows][blocks of columns]; NULL: none */
	size_t capacity;           /* elements of a tile */
	bool convert;
};

static const char *tensor_name(const struct slice *slice)
{
	return slice->tensor->name ? slice->tensor->name : slice->param->name;
}

static bool convert(const zero_job *job, zero_dtype to, void *out, zero_dtype from, const void *in,
		    size_t count, size_t *bad)
{
	return job->cpu.kernels->convert(job->cpu.kernels, to, out, from, in, count, bad);
}

/* ---- a file's bytes -------------------------------------------------------------------------- */

void zero_slice_close(zero_job *job)
{
	if (job->loader->file_path)
		close(job->loader->fd);
	free(job->loader->file_path);
	job->loader->file_path = NULL;
}

/* Keeps the file open for the next tensor: a checkpoint has hundreds of tensors in one file. */
static zero_status open_file(zero_job *job, const char *path)
{
	struct stat info, now;

	/* Another file may have been renamed to this path meanwhile. */
	if (job->loader->file_path && !strcmp(job->loader->file_path, path) &&
	    !fstat(job->loader->fd, &info) && !stat(path, &now) && now.st_ino == info.st_ino &&
	    now.st_dev == info.st_dev)
		return ZERO_OK;
	zero_slice_close(job);
	/* O_NONBLOCK: opening a pipe without a writer would block. */
	job->loader->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (job->loader->fd < 0)
		return zero_fail(ZERO_E_FILE, "cannot open %s: %s", path, strerror(errno));
	job->loader->file_path = strdup(path);
	if (!job->loader->file_path) {
		close(job->loader->fd);
		return zero_fail(ZERO_E_MEMORY, "no memory for the name of %s", path);
	}
	if (fstat(job->loader->fd, &info) || !S_ISREG(info.st_mode)) {
		zero_slice_close(job);
		return zero_fail(ZERO_E_FILE, "cannot read %s: not a regular file", path);
	}
	return ZERO_OK;
}

/* Reads bytes of a tensor, whose file is open, unchanged. */
static zero_status read_bytes(zero_job *job, const zero_tensor *tensor, const char *name, char *out,
			      uint64_t first, size_t bytes)
{
	uint64_t at;

	if (__builtin_add_overflow(tensor->offset, first, &at) || at > INT64_MAX - bytes)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: tensor '%s' begins at byte %llu, beyond any "
				 "file",
				 tensor->path, name, (unsigned long long)tensor->offset);
	while (bytes) {
		/* Linux reads at most 2 GiB less one page per call. */
		ssize_t got = pread(job->loader->fd, out, bytes, (off_t)at);

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
		job->bytes_read += (uint64_t)got;
	}
	return ZERO_OK;
}

static zero_status read_elements(const struct slice *slice, char *out, size_t first, size_t count)
{
	return read_bytes(slice->job, slice->tensor, tensor_name(slice), out,
			  (uint64_t)first * slice->from_size, count * slice->from_size);
}

/* Reads all scales, as f32. */
static zero_status read_scales(struct slice *slice, const zero_tensor *scale)
{
	size_t count = scale->shape[0] * scale->shape[1], bytes, bad;
	zero_job *job = slice->job;
	zero_status status;
	char *stored;

	bytes = count * zero_dtype_size(scale->dtype);
	stored = malloc(bytes + 1);
	slice->scales = malloc(count * sizeof(float) + 1);
	if (!stored || !slice->scales)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the scales of '%s'",
				   tensor_name(slice));
	else
		status = open_file(job, scale->path);
	if (!status)
		status = read_bytes(job, scale, scale->name ? scale->name : slice->param->name,
				    stored, 0, bytes);
	if (!status)
		convert(job, ZERO_F32, slice->scales, scale->dtype, stored, count, &bad);
	free(stored);
	return status;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Converts elements of the tile that lie in one row of the tensor's, and multiplies them by the
   scales of their blocks. */
static void scale_row(const struct slice *slice, char *out, const char *in, size_t count,
		      size_t row, size_t column)
{
	const size_t width = slice->tensor->shape[1];
	const float *scales =
		slice->scales + row / ZERO_SCALE_BLOCK * ((width - 1) / ZERO_SCALE_BLOCK + 1);
	float values[ZERO_SCALE_BLOCK];
	size_t bad;

	for (size_t at = 0, n; at < count; at += n, column += n) {
		size_t rest = ZERO_SCALE_BLOCK - column % ZERO_SCALE_BLOCK;

		n = count - at < rest ? count - at : rest;
		convert(slice->job, ZERO_F32, values, slice->tensor->dtype, in + at, n, &bad);
		for (size_t i = 0; i < n; i++)
			values[i] *= scales[column / ZERO_SCALE_BLOCK];
		convert(slice->job, slice->param->dtype, out + at * slice->to_size, ZERO_F32,
			values, n, &bad);
	}
}

/* `at` is the tensor's element 0 of the tile, whose rows have `columns` elements; with one row
   these may be of several of the tensor's. */
static void convert_scaled(const struct slice *slice, char *out, size_t count, size_t at,
			   size_t columns)
{
	const size_t width = slice->tensor->shape[1];

	for (size_t done = 0, n; done < count; done += n) {
		size_t element = columns == count ? at + done : at + done / columns * width;
		size_t rest = columns == count ? width - element % width : columns;

		n = count - done < rest ? count - done : rest;
		scale_row(slice, out + done * slice->to_size, slice->tile + done, n,
			  element / width, element % width);
	}
}

/* Converts the tile, likewise. */
static zero_status convert_tile(const struct slice *slice, void *out, size_t count, size_t at,
				size_t columns)
{
	const zero_tensor *tensor = slice->tensor;
	const zero_job *job = slice->job;
	size_t bad = 0, width = tensor->ndim ? tensor->shape[tensor->ndim - 1] : 1;

	if (slice->scales) {
		convert_scaled(slice, out, count, at, columns);
		return ZERO_OK;
	}
	if (convert(job, slice->param->dtype, out, tensor->dtype, slice->tile, count, &bad))
		return ZERO_OK;
	at += columns == count ? bad : bad / columns * width + bad % columns;
	return zero_fail(ZERO_E_FORMAT,
			 "%s: element %zu of tensor '%s' (%s) does not fit into parameter '%s', "
			 "which is %s",
			 tensor->path, at, tensor_name(slice), zero_dtype_name(tensor->dtype),
			 slice->param->name, zero_dtype_name(slice->param->dtype));
}

static zero_status read_converted(const struct slice *slice, char *out, size_t first, size_t count)
{
	zero_status status = ZERO_OK;

	for (size_t at = 0, n; !status && at < count; at += n) {
		n = count - at < slice->capacity ? count - at : slice->capacity;
		status = read_elements(slice, slice->tile, first + at, n);
		if (!status)
			status = convert_tile(slice, out + at * slice->to_size, n, first + at, n);
	}
	return status;
}

/* A rectangle of the tensor in the file. */
struct block {
	size_t row, rows, column, columns;
};

/* Reads a block of at most one tile and transposes it. `out` is element `first` of the parameter.
   */
static zero_status transpose_tile(const struct slice *slice, char *out, size_t first,
				  const struct block *block)
{
	const size_t height = slice->tensor->shape[0], width = slice->tensor->shape[1];
	const size_t count = block->rows * block->columns;
	const size_t at = block->row * width + block->column;
	const char *tile = slice->tile;
	zero_status status = ZERO_OK;

	if (block->columns == width)
		status = read_elements(slice, slice->tile, at, count);
	else
		for (size_t r = 0; !status && r < block->rows; r++)
			status = read_elements(slice,
					       slice->tile + r * block->columns * slice->from_size,
					       at + r * width, block->columns);
	if (!status && slice->converted) {
		status = convert_tile(slice, slice->converted, count, at, block->columns);
		tile = slice->converted;
	}
	if (!status)
		slice->job->cpu.kernels->transpose(
			out + (block->column * height + block->row - first) * slice->to_size,
			height, tile, block->columns, block->rows, block->columns, slice->to_size);
	return status;
}

static zero_status read_block(const struct slice *slice, char *out, size_t first,
			      const struct block *block)
{
	/* Tiles are as wide as possible, since each row of a tile is a read of its own. */
	const size_t wide = block->columns < slice->capacity ? block->columns : slice->capacity;
	const size_t high = slice->capacity / wide;
	const size_t row_end = block->row + block->rows, end = block->column + block->columns;
	zero_status status = ZERO_OK;
	struct block tile;

	for (size_t row = block->row; !status && row < row_end; row += high)
		for (size_t column = block->column; !status && column < end; column += wide) {
			tile = (struct block){
				.row = row,
				.rows = row_end - row < high ? row_end - row : high,
				.column = column,
				.columns = end - column < wide ? end - column : wide,
			};
			status = transpose_tile(slice, out, first, &tile);
		}
	return status;
}

/*
 * Elements [first, first + count) of the transposed tensor are whole columns of the tensor in the
 * file, and parts of the columns at both ends. Each row in the file contributes one contiguous
 * stretch. The stretch's ends change at two rows only, so there are at most three blocks.
 */
static zero_status read_transposed(const struct slice *slice, char *out, size_t first, size_t count)
{
	const size_t height = slice->tensor->shape[0];
	const size_t begin = first / height, begin_row = first % height;
	const size_t end = (first + count) / height, end_row = (first + count) % height;
	const size_t low = begin_row < end_row ? begin_row : end_row;
	const size_t rows[] = {0, low, begin_row + end_row - low, height};
	zero_status status = ZERO_OK;

	for (int i = 0; !status && i < 3; i++) {
		/* The first column lacks the rows above begin_row, the last one the rows from
		   end_row on. */
		size_t left = begin + (rows[i] < begin_row), right = end + (rows[i] < end_row);
		struct block block = {.row = rows[i],
				      .rows = rows[i + 1] - rows[i],
				      .column = left,
				      .columns = right - left};

		if (block.rows && left < right)
			status = read_block(slice, out, first, &block);
	}
	return status;
}

/* ---- */

static zero_status make_tiles(struct slice *slice, bool transpose, size_t count)
{
	const zero_job *job = slice->job;
	size_t bytes = job->stream_chunk < MAX_TILE ? job->stream_chunk : MAX_TILE;
	bool two = transpose && slice->convert;
	zero_status status;
	void *data;

	bytes = bytes > MIN_TILE ? bytes : MIN_TILE;
	slice->capacity = bytes / (two && slice->to_size > slice->from_size ? slice->to_size
									    : slice->from_size);
	slice->capacity = slice->capacity < count ? slice->capacity : count;
	status = job->ops->alloc(job->backend, ZERO_MEM_PINNED, slice->capacity * slice->from_size,
				 false, &data);
	slice->tile = status ? NULL : data;
	if (status || !two)
		return status;
	status = job->ops->alloc(job->backend, ZERO_MEM_PINNED, slice->capacity * slice->to_size,
				 false, &data);
	slice->converted = status ? NULL : data;
	return status;
}

zero_status zero_slice_read(const zero_param *param, const zero_source *source, void *out,
			    size_t first, size_t count)
{
	const zero_tensor *tensor = source->tensor;
	bool transpose = source->transpose;
	zero_job *job = param->group->job;
	struct slice slice = {
		.job = job,
		.param = param,
		.tensor = tensor,
		.from_size = zero_dtype_size(tensor->dtype),
		.to_size = zero_dtype_size(param->dtype),
		.convert = tensor->dtype != param->dtype,
	};
	zero_status status = ZERO_OK;

	if (!count)
		return ZERO_OK;
	if (source->scale)
		status = read_scales(&slice, source->scale);
	if (!status)
		status = open_file(job, tensor->path);
	if (!status && (transpose || slice.convert))
		status = make_tiles(&slice, transpose, count);
	if (!status)
		status = transpose       ? read_transposed(&slice, out, first, count)
			 : slice.convert ? read_converted(&slice, out, first, count)
					 : read_elements(&slice, out, first, count);
	free(slice.scales);
	job->ops->free(job->backend, slice.converted);
	job->ops->free(job->backend, slice.tile);
	return status;
}

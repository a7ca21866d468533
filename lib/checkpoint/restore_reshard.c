/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reshards: from each slice of a checkpoint's files a rank reads the part of the values that it
 * stores, or of the states that it steps, whatever ranks have saved them. Files are read from
 * start to end.
 */
#include <stdlib.h>

#include "checkpoint/restore.h"

/* ---- what this rank reads -------------------------------------------------------------------- */

/* The elements of a parameter whose values or states this rank stores. */
static void own_part(const zero_param *param, enum zero_saved_kind kind, size_t *first,
		     size_t *count)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t segment_first, segment_count;

	if (kind == ZERO_SAVED_PARAM)
		zero_stored_part(param->group, segment, &segment_first, &segment_count);
	else
		zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, first, count);
}

/* The address of the value or state of an element, which this rank stores. */
static char *address_of(const zero_param *param, enum zero_saved_kind kind, size_t element)
{
	if (kind == ZERO_SAVED_PARAM)
		return zero_stored_at(param->flat, &param->flat->segments[param->segment],
				      param->first + element);
	return (char *)zero_param_state_at(param, kind, element);
}

/* The values of a named state that this rank keeps; none if it is not registered, and so not
   read. */
static struct zero_state_part own_values(const zero_param *param,
					 const struct zero_named_state *state)
{
	return state ? zero_param_state_kept(param, state) : (struct zero_state_part){0, 0};
}

/* The part of a slice that this rank stores: bytes [*from, *from + *bytes) of the slice, at *to. */
static void own_part_of_slice(const struct zero_restore *restore,
			      const struct zero_shard_slice *slice, uint64_t *from, uint64_t *bytes,
			      char **to)
{
	const zero_param *param = restore->params[slice->tensor];
	const struct zero_named_state *state = NULL;
	size_t size = zero_dtype_size(slice->dtype), first, count;
	uint64_t begin, end;

	if (slice->kind == ZERO_SAVED_NAMED) {
		struct zero_state_part own;

		state = zero_param_find_state(param, zero_slice_state(restore->manifest, slice));
		own = own_values(param, state);
		first = own.first;
		count = own.count;
	} else {
		own_part(param, slice->kind, &first, &count);
	}
	begin = slice->first > first ? slice->first : first;
	end = slice->first + slice->count;
	end = end < first + count ? end : first + count;
	*bytes = end > begin ? (end - begin) * size : 0;
	*from = *bytes ? (begin - slice->first) * size : 0;
	*to = !*bytes ? NULL
	      : state ? (char *)state->data + (begin - first) * size
		      : address_of(param, slice->kind, (size_t)begin);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool in_host_memory(const struct zero_restore *restore, const struct zero_shard_slice *slice)
{
	const zero_job *job = restore->job;
	const zero_param *param = restore->params[slice->tensor];

	if (job->ops->host_memory)
		return true;
	if (slice->kind == ZERO_SAVED_NAMED)
		return !zero_state_on_device(
			param,
			zero_param_find_state(param, zero_slice_state(restore->manifest, slice)));
	return slice->kind != ZERO_SAVED_PARAM &&
	       job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER;
}

struct reading {
	struct zero_shard_reader *reader;
	const struct zero_shard_slice *slice;
	uint64_t from;
};

static zero_status read_piece(void *context, void *data, size_t at, size_t bytes)
{
	const struct reading *reading = context;

	return zero_shard_read(reading->reader, reading->slice, reading->from + at, data, bytes);
}

/* The file is opened with the first slice that this rank needs. */
static zero_status read_slice(const struct zero_restore *restore, struct zero_shard_reader *reader,
			      const struct zero_shard_slice *slice)
{
	struct reading reading = {.reader = reader, .slice = slice};
	zero_status status = ZERO_OK;
	uint64_t bytes;
	char *to;

	/* Masters without moments are those of a program that took its own steps, with an earlier
	   release. The first step makes them from the values. */
	if (slice->kind == ZERO_SAVED_MASTER &&
	    !restore->steps[restore->params[slice->tensor]->group->index])
		return ZERO_OK;
	own_part_of_slice(restore, slice, &reading.from, &bytes, &to);
	if (!bytes)
		return ZERO_OK;
	if (!reader->block)
		status = zero_shard_open(reader);
	if (status)
		return status;
	return in_host_memory(restore, slice)
		       ? zero_shard_read(reader, slice, reading.from, to, bytes)
		       : zero_staging_in(restore->job, to, bytes, read_piece, &reading);
}

zero_status zero_restore_reshard(const struct zero_restore *restore)
{
	zero_status status = ZERO_OK, synced;

	for (int rank = 0; !status && rank < restore->manifest->world; rank++) {
		struct zero_shard_reader reader;

		status = zero_shard_plan(&reader, restore->files, restore->manifest,
					 restore->folder, rank);
		reader.source = restore->source;
		for (size_t i = 0; !status && i < reader.layout.count; i++)
			status = read_slice(restore, &reader, &reader.layout.slices[i]);
		restore->job->bytes_read += reader.read;
		zero_shard_close(&reader);
	}
	synced = zero_device_sync(restore->job);
	return status ? status : synced;
}

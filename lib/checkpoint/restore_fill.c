/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills parameters and optimizer states from a checkpoint's files. From each slice of a file a rank
 * reads the part of the values that it stores, or of the states that it steps. Files are read from
 * start to end. The ranks agree after each round of chunks, so that an error on one rank soon ends
 * the restore on all.
 */
#include <stdlib.h>

#include "checkpoint/restore.h"

/* A round has this number of chunks, and at most this number of bytes. */
enum { ROUND_CHUNKS = 32, ROUND_MAX = 1 << 30 };

struct filling {
	const struct zero_restore *restore;
	zero_job *job;
	uint64_t total, done; /* bytes that this rank reads */
	uint64_t quota;       /* bytes that it reads in one round */
	size_t rounds;
	/* The position: the file, its slice, and the byte of the part of that slice to read. */
	struct zero_shard_reader reader;
	int file;
	bool planned, open;
	size_t slice;
	uint64_t at;
};

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

/* The values of a named state that this rank keeps; none if it is not registered, and so not read. */
static struct zero_state_part own_values(const zero_param *param,
					 const struct zero_named_state *state)
{
	return state ? zero_param_state_kept(param, state) : (struct zero_state_part){0, 0};
}

/* Bytes of values and states that this rank stores of the parameter of tensor `i`. */
static uint64_t own_bytes(const struct zero_restore *restore, size_t i)
{
	const struct zero_manifest_tensor *tensor = &restore->manifest->tensors[i];
	const zero_param *param = restore->params[i];
	size_t first, count;
	uint64_t bytes = 0;

	for (int k = 0; k < ZERO_SAVED_NAMED; k++) {
		enum zero_saved_kind kind = (enum zero_saved_kind)k;

		if (!zero_tensor_has(restore->manifest, tensor, kind))
			continue;
		own_part(param, kind, &first, &count);
		bytes += (uint64_t)count * zero_dtype_size(zero_saved_dtype(kind, param->dtype));
	}
	for (size_t s = 0; s < tensor->state_count; s++)
		bytes += own_values(param, zero_param_find_state(param, tensor->states[s].name))
				 .count *
			 zero_dtype_size(tensor->states[s].dtype);
	return bytes;
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

static bool in_host_memory(const struct filling *fill, const struct zero_shard_slice *slice)
{
	const struct zero_restore *restore = fill->restore;
	const zero_param *param = restore->params[slice->tensor];

	if (fill->job->ops->host_memory)
		return true;
	if (slice->kind == ZERO_SAVED_NAMED)
		return !zero_state_on_device(
			param,
			zero_param_find_state(param, zero_slice_state(restore->manifest, slice)));
	return slice->kind != ZERO_SAVED_PARAM &&
	       fill->job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER;
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

/* A piece ends where a block ends, so that no block is read twice. */
static uint64_t piece_bytes(const struct filling *fill, uint64_t from, uint64_t rest)
{
	uint64_t most = fill->job->stream_chunk < ZERO_CHECKSUM_BLOCK ? ZERO_CHECKSUM_BLOCK
								      : fill->job->stream_chunk;
	uint64_t end = from + most;

	if (rest <= most)
		return rest;
	end -= end % ZERO_CHECKSUM_BLOCK;
	return end > from ? end - from : most;
}

static zero_status read_piece_into(struct filling *fill, const struct zero_shard_slice *slice,
				   uint64_t from, uint64_t rest, char *to)
{
	uint64_t bytes = piece_bytes(fill, from, rest);
	struct reading reading = {.reader = &fill->reader, .slice = slice, .from = from};
	zero_status status = ZERO_OK;

	if (!fill->open)
		status = zero_shard_open(&fill->reader);
	fill->open = true;
	if (!status && in_host_memory(fill, slice))
		status = zero_shard_read(&fill->reader, slice, from, to, bytes);
	else if (!status)
		status = zero_staging_in(fill->job, to, bytes, read_piece, &reading);
	fill->at += bytes;
	fill->done += bytes;
	return status;
}

static void close_file(struct filling *fill)
{
	fill->job->bytes_read += fill->reader.read;
	zero_shard_close(&fill->reader);
	fill->planned = fill->open = false;
	fill->slice = 0;
	fill->at = 0;
}

/* Moves to the next file or slice, or reads one piece. */
static zero_status fill_next(struct filling *fill)
{
	const struct zero_restore *restore = fill->restore;
	const struct zero_shard_slice *slice;
	uint64_t from, bytes;
	char *to;

	if (fill->file >= restore->manifest->world)
		return zero_fail(ZERO_E_FORMAT,
				 "%s: the files have only %llu of the %llu bytes that this rank "
				 "needs",
				 restore->folder, (unsigned long long)fill->done,
				 (unsigned long long)fill->total);
	if (!fill->planned) {
		fill->planned = true;
		return zero_shard_plan(&fill->reader, restore->files, restore->manifest,
				       restore->folder, fill->file);
	}
	if (fill->slice == fill->reader.layout.count) {
		close_file(fill);
		fill->file++;
		return ZERO_OK;
	}
	slice = &fill->reader.layout.slices[fill->slice];
	own_part_of_slice(restore, slice, &from, &bytes, &to);
	if (fill->at < bytes)
		return read_piece_into(fill, slice, from + fill->at, bytes - fill->at,
				       to + fill->at);
	fill->slice++;
	fill->at = 0;
	return ZERO_OK;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static uint64_t round_bytes(const zero_job *job)
{
	return job->stream_chunk < ROUND_MAX / ROUND_CHUNKS ? job->stream_chunk * ROUND_CHUNKS
							    : ROUND_MAX;
}

/* COLLECTIVE. The rank with the most bytes determines the number of rounds. */
static zero_status agree_rounds(struct filling *fill, zero_status status)
{
	const struct zero_restore *restore = fill->restore;
	size_t world = (size_t)fill->job->place.world;
	uint64_t *all = calloc(world, sizeof(*all)), most = 1;
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE,
			     .send = &fill->total,
			     .recv = all,
			     .count = sizeof(fill->total)};

	for (size_t i = 0; !status && i < restore->manifest->tensor_count; i++)
		fill->total += own_bytes(restore, i);
	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", restore->folder);
	status = zero_submit_wait(&fill->job->all, status, &op, 1, "restore: plan for %s",
				  restore->path);
	for (size_t rank = 0; !status && rank < world; rank++)
		most = all[rank] > most ? all[rank] : most;
	free(all);
	fill->rounds = (size_t)((most - 1) / round_bytes(fill->job) + 1);
	fill->quota = fill->total / fill->rounds + 1;
	return status;
}

zero_status zero_restore_fill(const struct zero_restore *restore, zero_status status)
{
	struct filling fill = {.restore = restore, .job = restore->job, .reader = {.fd = -1}};
	uint64_t goal = 0;

	status = agree_rounds(&fill, status);
	if (status)
		return status;
	for (size_t round = 1; !status && round <= fill.rounds; round++) {
		goal = round < fill.rounds ? goal + fill.quota : fill.total;
		while (!status && fill.done < goal && fill.done < fill.total)
			status = fill_next(&fill);
		if (!status && round == fill.rounds)
			status = zero_device_sync(fill.job);
		status = zero_submit_wait(&fill.job->all, status, NULL, 0,
					  "restore: round %zu of %zu from %s", round, fill.rounds,
					  restore->path);
	}
	close_file(&fill);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This rank's file of a checkpoint: lists its slices, and writes them straight from where they are
 * stored. A piece is still in the cache when it is written after its checksums were computed, so
 * memory is read once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint/save.h"

/* ---- its slices ------------------------------------------------------------------------------ */

static bool is_saved(const zero_param *param, enum zero_saved_kind kind)
{
	return zero_is_saved(kind, param->group->steps > 0, zero_param_moments(param),
			     param->trainable, param->dtype);
}

/* Finds the values of a named state that this rank saves. False: there are none. */
static bool find_state_slice(const zero_param *param, const struct zero_named_state *state,
			     struct zero_save_slice *slice)
{
	struct zero_state_part kept = zero_param_state_kept(param, state);
	struct zero_state_part saved = zero_param_state_saved(param, state);
	size_t size = zero_dtype_size(state->dtype);

	if (!saved.count)
		return false;
	*slice = (struct zero_save_slice){.param = param,
					  .kind = ZERO_SAVED_NAMED,
					  .state = state,
					  .device = zero_state_on_device(param, state),
					  .data = (const char *)state->data +
						  (saved.first - kept.first) * size,
					  .bytes = saved.count * size};
	return true;
}

/* Finds the part of a parameter that is in this rank's shard, also where the segment is replicated.
   False: the part is empty. */
static bool find_slice(const zero_param *param, enum zero_saved_kind kind,
		       struct zero_save_slice *slice)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	const zero_job *job = param->group->job;
	size_t first, count;

	zero_param_shard_part(param, &first, &count);
	*slice = (struct zero_save_slice){
		.param = param, .kind = kind, .device = !job->ops->host_memory};
	if (!count)
		return false;
	if (kind == ZERO_SAVED_PARAM) {
		slice->data = zero_stored_at(param->flat, segment, param->first + first);
		slice->bytes = count * zero_dtype_size(param->dtype);
		return true;
	}
	slice->data = (const char *)zero_param_state_at(param, kind, first);
	slice->bytes = count * sizeof(float);
	if (job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER)
		slice->device = false;
	return true;
}

/* The slice that was found is in place. */
static void add_slice(struct zero_save *save)
{
	struct zero_save_slice *slice = &save->slices[save->slice_count++];

	slice->first_checksum = save->checksum_count;
	save->checksum_count += (slice->bytes + ZERO_CHECKSUM_BLOCK - 1) / ZERO_CHECKSUM_BLOCK;
}

static void list_group(struct zero_save *save, const zero_group *group, enum zero_saved_kind kind)
{
	for (size_t p = 0; zero_is_member(group) && p < group->param_count; p++) {
		const zero_param *param = group->params[p];

		if (kind != ZERO_SAVED_NAMED && !param->alias_of && is_saved(param, kind) &&
		    find_slice(param, kind, &save->slices[save->slice_count]))
			add_slice(save);
		for (size_t s = 0; kind == ZERO_SAVED_NAMED && s < param->state_count; s++)
			if (find_state_slice(param, &param->states[s],
					     &save->slices[save->slice_count]))
				add_slice(save);
	}
}

static zero_status list_slices(struct zero_save *save)
{
	const zero_job *job = save->job;
	size_t params = 0, at = 0, states;

	zero_named_states_hash(job, &states);
	for (size_t g = 0; g < save->group_count; g++)
		params += job->model->groups[g]->param_count;
	save->slices = calloc(ZERO_SAVED_NAMED * params + states + 1, sizeof(*save->slices));
	save->first_slice =
		calloc(ZERO_SAVED_KINDS * save->group_count + 1, sizeof(*save->first_slice));
	if (!save->slices || !save->first_slice)
		return zero_fail(ZERO_E_MEMORY, "no memory to save %zu parameters", params);
	for (int kind = 0; kind < ZERO_SAVED_KINDS; kind++)
		for (size_t g = 0; g < save->group_count; g++) {
			save->first_slice[at++] = save->slice_count;
			list_group(save, job->model->groups[g], (enum zero_saved_kind)kind);
		}
	save->first_slice[at] = save->slice_count;
	save->checksums = calloc(save->checksum_count + 1, sizeof(*save->checksums));
	if (!save->checksums)
		return zero_fail(ZERO_E_MEMORY, "no memory for the checksums of %s", save->file);
	return ZERO_OK;
}

/* Formats the slice's name in the file. Returns its bytes with the zero, also if `text` is NULL. */
static size_t name_slice(const struct zero_save_slice *slice, char *text, size_t capacity)
{
	return zero_saved_name(text, capacity, slice->kind,
			       slice->state ? slice->state->name : NULL, slice->param->name) +
	       1;
}

static void describe(struct zero_save *save, zero_tensor *tensors, char *names, size_t capacity)
{
	for (size_t i = 0; i < save->slice_count; i++) {
		const struct zero_save_slice *slice = &save->slices[i];
		size_t used = name_slice(slice, names, capacity);

		tensors[i] = (zero_tensor){
			.name = names,
			.path = save->file,
			.dtype = slice->state ? slice->state->dtype
					      : zero_saved_dtype(slice->kind, slice->param->dtype),
			.ndim = 1};
		tensors[i].shape[0] = slice->bytes / zero_dtype_size(tensors[i].dtype);
		names += used;
		capacity -= used;
	}
	tensors[save->slice_count] = (zero_tensor){.name = "checksums",
						   .path = save->file,
						   .dtype = ZERO_I64,
						   .ndim = 1,
						   .shape = {save->checksum_count}};
}

zero_status zero_save_plan(struct zero_save *save)
{
	zero_status status = list_slices(save);
	zero_tensor *tensors = NULL;
	char *names = NULL;
	size_t capacity = 0;

	if (status)
		return status;
	for (size_t i = 0; i < save->slice_count; i++)
		capacity += name_slice(&save->slices[i], NULL, 0);
	names = malloc(capacity + 1);
	tensors = calloc(save->slice_count + 1, sizeof(*tensors));
	if (!names || !tensors) {
		status = zero_fail(ZERO_E_MEMORY, "no memory for the header of %s", save->file);
		goto out;
	}
	describe(save, tensors, names, capacity);
	status = save->files->header(tensors, save->slice_count + 1, &save->header,
				     &save->header_bytes);
	if (status)
		goto out;
	for (size_t i = 0; i < save->slice_count; i++)
		save->slices[i].at = tensors[i].offset;
	save->checksums_at = tensors[save->slice_count].offset;
	save->out.bytes = save->checksums_at + save->checksum_count * sizeof(*save->checksums);
out:
	free(names);
	free(tensors);
	return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

zero_status zero_save_write_piece(const struct zero_save *save, const struct zero_save_slice *slice,
				  const void *data, size_t at, size_t bytes)
{
	save->files->checksum_blocks(
		data, bytes, save->checksums + slice->first_checksum + at / ZERO_CHECKSUM_BLOCK);
	return zero_writer_write(&save->out, data, bytes, slice->at + at);
}

struct writing {
	const struct zero_save *save;
	const struct zero_save_slice *slice;
};

/* `at` is a multiple of ZERO_SAVE_PIECE or of ZERO_STAGING_MIN, so that a block begins there. */
static zero_status write_pieces(void *context, const void *data, size_t at, size_t bytes)
{
	const struct writing *writing = context;
	zero_status status = ZERO_OK;

	for (size_t done = 0, now; !status && done < bytes; done += now) {
		now = bytes - done < ZERO_SAVE_PIECE ? bytes - done : ZERO_SAVE_PIECE;
		status = zero_save_write_piece(writing->save, writing->slice,
					       (const char *)data + done, at + done, now);
	}
	return status;
}

_Static_assert(ZERO_STAGING_MIN % ZERO_CHECKSUM_BLOCK == 0,
	       "staged pieces must be complete blocks");

zero_status zero_save_write_slice(struct zero_save *save, struct zero_save_slice *slice)
{
	struct writing writing = {.save = save, .slice = slice};
	zero_status status;

	status = slice->device ? zero_staging_out(save->job, slice->data, slice->bytes,
						  write_pieces, &writing)
			       : write_pieces(&writing, slice->data, 0, slice->bytes);
	slice->written = status ? 0 : slice->bytes;
	return status;
}

zero_status zero_save_create(struct zero_save *save)
{
	if (access(save->partial, F_OK))
		return zero_fail(
			ZERO_E_FILE,
			"%s, which rank 0 has created, is not visible on this node; save to "
			"a file system that all nodes share",
			save->partial);
	return zero_writer_create_empty(&save->out);
}

zero_status zero_save_reserve(struct zero_save *save)
{
	zero_status status = zero_writer_reserve(&save->out);

	return status ? status : zero_writer_write(&save->out, save->header, save->header_bytes, 0);
}

zero_status zero_save_close(struct zero_save *save, zero_status status)
{
	zero_status closed;

	if (!status)
		status = zero_writer_write(&save->out, save->checksums,
					   save->checksum_count * sizeof(*save->checksums),
					   save->checksums_at);
	/* The first error is the one that is returned. */
	closed = zero_writer_close(&save->out, !status);
	return status ? status : closed;
}

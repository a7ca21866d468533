/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states: the moments, and f32 masters of 16-bit values. They are allocated at the first
 * step or restore. With --zero-offload=optimizer they are in host memory, and a device's values come
 * to them through four buffers of half a chunk.
 */
#include "model.h"

static bool is_offloaded(const zero_job *job)
{
	return job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER;
}

bool zero_states_staged(const zero_job *job)
{
	return is_offloaded(job) &&
	       (!job->ops->host_memory || job->settings.value[ZERO_OPT_STAGED].number);
}

/* Elements of the longest segment that this rank steps. */
static size_t longest_segment(const zero_job *job)
{
	size_t longest = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t f = 0; f < job->model->groups[g]->flat_count; f++)
			for (size_t r = 0; r < job->model->groups[g]->flats[f].segment_count; r++) {
				const struct zero_segment *segment =
					&job->model->groups[g]->flats[f].segments[r];
				size_t first, count;

				zero_stepped_part(job->model->groups[g], segment, &first, &count);
				if (segment->trainable && count > longest)
					longest = count;
			}
	return longest;
}

/* Allocates the four offload_buffers, for as long as the job is open. */
static zero_status alloc_offload_buffers(zero_job *job)
{
	size_t longest = longest_segment(job), elements = job->stream_chunk / 2 / sizeof(float);
	zero_status status = ZERO_OK;

	if (!zero_states_staged(job) || !longest || job->model->offload_count)
		return ZERO_OK;
	elements = elements ? elements : 1;
	elements = elements < longest ? elements : longest;
	for (int i = 0; !status && i < 4; i++)
		if (!job->model->offload_buffers[i / 2][i % 2])
			status = job->ops->alloc(job->backend, ZERO_MEM_PINNED,
						 elements * sizeof(float), false,
						 &job->model->offload_buffers[i / 2][i % 2]);
	if (!status)
		job->model->offload_count = elements;
	return status;
}

void zero_states_set_masters(struct zero_flat *flat, const struct zero_segment *segment,
			     size_t first, size_t count)
{
	zero_job *job = flat->group->job;
	size_t stepped_first, stepped,
		piece = zero_states_staged(job) ? job->model->offload_count : count;
	size_t size = zero_dtype_size(segment->dtype);
	float *master;

	if (!flat->master || !segment->trainable || segment->dtype == ZERO_F32)
		return;
	zero_stepped_part(flat->group, segment, &stepped_first, &stepped);
	master = flat->master + segment->state_at + (first - stepped_first);
	for (size_t at = 0; at < count; at += piece) {
		size_t now = count - at < piece ? count - at : piece;
		const void *values = zero_stored_at(flat, segment, first + at);

		if (zero_states_staged(job)) {
			job->ops->copy(job->backend, job->model->offload_buffers[0][0], values,
				       now * size);
			values = job->model->offload_buffers[0][0];
			/* The next submission reports an error of the device. */
			zero_device_sync(job);
		}
		job->ops->cast(job->backend, ZERO_F32, master + at, segment->dtype, values, now);
	}
}

static zero_status alloc_array(struct zero_flat *flat, float **states)
{
	zero_job *job = flat->group->job;
	enum zero_memory_kind kind = is_offloaded(job) ? ZERO_MEM_OFFLOAD : ZERO_MEM_OPTIMIZER;

	if (!flat->state_count || *states)
		return ZERO_OK;
	return job->ops->alloc(job->backend, kind, flat->state_count * sizeof(float), true,
			       (void **)states);
}

static zero_status alloc_masters(struct zero_flat *flat)
{
	zero_status status = ZERO_OK;
	bool needed = false;

	for (size_t r = 0; r < flat->segment_count; r++)
		needed = needed ||
			 (flat->segments[r].trainable && flat->segments[r].dtype != ZERO_F32);
	if (!needed || flat->master)
		return ZERO_OK;
	status = alloc_array(flat, &flat->master);
	for (size_t r = 0; !status && flat->master && r < flat->segment_count; r++) {
		size_t first, count;

		zero_stepped_part(flat->group, &flat->segments[r], &first, &count);
		zero_states_set_masters(flat, &flat->segments[r], first, count);
	}
	return status;
}

zero_status zero_masters_alloc(zero_job *job)
{
	zero_status status = alloc_offload_buffers(job);

	for (size_t g = 0; !status && g < job->model->group_count; g++)
		for (size_t f = 0; !status && f < job->model->groups[g]->flat_count; f++)
			status = alloc_masters(&job->model->groups[g]->flats[f]);
	return status;
}

zero_status zero_states_alloc(zero_group *group)
{
	zero_status status = alloc_offload_buffers(group->job);

	for (size_t f = 0; !status && f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		status = alloc_array(flat, &flat->m);
		if (!status)
			status = alloc_array(flat, &flat->v);
		if (!status)
			status = alloc_masters(flat);
	}
	return status;
}

void zero_states_free(zero_group *group, bool masters)
{
	zero_job *job = group->job;

	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		job->ops->free(job->backend, flat->m);
		job->ops->free(job->backend, flat->v);
		flat->m = flat->v = NULL;
		if (!masters)
			continue;
		job->ops->free(job->backend, flat->master);
		flat->master = NULL;
	}
}

void zero_param_update_masters(zero_param *param)
{
	struct zero_flat *flat = param->flat;
	struct zero_segment *segment = &flat->segments[param->segment];
	size_t segment_first, segment_count, first, count;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (count)
		zero_states_set_masters(flat, segment, param->first + first, count);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizer states: the moments, and f32 masters of 16-bit values. They are allocated at the first
 * step or restore. With --zero-offload=optimizer they are in host memory, and a device's values
 * come to them through four buffers of half a chunk.
 */
#include "model.h"

static bool is_offloaded(const zero_job *job)
{
	return job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER;
}

bool zero_states_staged(const zero_job *job)
{
	return is_offloaded(job) && !job->ops->host_memory;
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

/* ---- where moments are ----------------------------------------------------------------------- */

/* Parameters with fewer elements keep f32, as in bitsandbytes: norms and biases. */
#define MIN_8BIT 4096

enum zero_moments_kind zero_param_moments(const zero_param *param)
{
	if (param->muon)
		return ZERO_MOMENTS_MUON;
	return param->group->job->model->states == ZERO_STATES_8BIT && param->trainable &&
			       param->count >= MIN_8BIT
		       ? ZERO_MOMENTS_8BIT
		       : ZERO_MOMENTS_F32;
}

/* The elements of a parameter that this rank steps. *state_at: the first of them in arrays of all
   that it steps of the flat buffer. */
static size_t stepped_count(const zero_param *param, size_t *state_at)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t segment_first, segment_count, first, count;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	*state_at = segment->state_at + (count ? param->first + first - segment_first : 0);
	return count;
}

struct zero_moments zero_moments_from(struct zero_moments moments, size_t at)
{
	if (moments.m) {
		moments.m += at;
		moments.v += moments.v ? at : 0;
	} else {
		moments.m_codes += at;
		moments.v_codes += at;
		moments.m_absmax += at / ZERO_BLOCK;
		moments.v_absmax += at / ZERO_BLOCK;
	}
	return moments;
}

size_t zero_param_stepped(const zero_param *param, struct zero_moments *moments)
{
	size_t at, count = stepped_count(param, &at);

	*moments = param->flat->moments;
	if (zero_param_moments(param) == ZERO_MOMENTS_8BIT)
		moments->m = moments->v = NULL;
	if (zero_param_moments(param) == ZERO_MOMENTS_MUON)
		moments->v = NULL;
	*moments = zero_moments_from(*moments, param->moments_at);
	return count;
}

float *zero_param_state_at(const zero_param *param, enum zero_saved_kind kind, size_t element)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t segment_first, segment_count, first, count, at = 0;
	struct zero_moments moments;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	zero_param_stepped(param, &moments);
	stepped_count(param, &at);
	return (kind == ZERO_SAVED_EXP_AVG      ? moments.m
		: kind == ZERO_SAVED_EXP_AVG_SQ ? moments.v
						: param->flat->master + at) +
	       (element - first);
}

/* ---- allocation ------------------------------------------------------------------------------ */

/* Allocates the four offload_buffers, for as long as the job is open. */
static zero_status alloc_offload_buffers(zero_job *job)
{
	/* Pieces begin where blocks of moments do. */
	size_t block = ZERO_BLOCK * sizeof(float), blocks = job->stream_chunk / 2 / block;
	size_t longest = longest_segment(job), elements = (blocks ? blocks : 1) * ZERO_BLOCK;
	zero_status status = ZERO_OK;

	if (!zero_states_staged(job) || !longest || job->model->offload_count)
		return ZERO_OK;
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

static void cast_to_master(zero_job *job, float *master, zero_dtype dtype, const void *values,
			   size_t count)
{
	if (zero_states_staged(job))
		job->cpu.kernels->cast(ZERO_F32, master, dtype, values, count);
	else
		zero_cast(job, ZERO_F32, master, dtype, values, count);
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
		cast_to_master(job, master + at, segment->dtype, values, now);
	}
}

/* An array of `count` that is not there yet, zeroed. */
static zero_status alloc_array(struct zero_flat *flat, void *array, size_t count, size_t size)
{
	zero_job *job = flat->group->job;
	enum zero_memory_kind kind = is_offloaded(job) ? ZERO_MEM_OFFLOAD : ZERO_MEM_OPTIMIZER;

	if (!count || *(void **)array)
		return ZERO_OK;
	return job->ops->alloc(job->backend, kind, count * size, true, array);
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
	status = alloc_array(flat, &flat->master, flat->state_count, sizeof(float));
	for (size_t r = 0; !status && flat->master && r < flat->segment_count; r++) {
		size_t first, count;

		zero_stepped_part(flat->group, &flat->segments[r], &first, &count);
		zero_states_set_masters(flat, &flat->segments[r], first, count);
	}
	return status;
}

_Static_assert(ZERO_ALIGN % ZERO_BLOCK == 0, "a rank's part begins where a block does");

const struct zero_moment_part zero_moment_parts[ZERO_MOMENT_PARTS] = {
	{ZERO_MOMENTS_8BIT, ZERO_STATE_M, ZERO_U8, 1},
	{ZERO_MOMENTS_8BIT, ZERO_STATE_M "_absmax", ZERO_F32, ZERO_BLOCK},
	{ZERO_MOMENTS_8BIT, ZERO_STATE_V, ZERO_U8, 1},
	{ZERO_MOMENTS_8BIT, ZERO_STATE_V "_absmax", ZERO_F32, ZERO_BLOCK},
	{ZERO_MOMENTS_MUON, ZERO_STATE_MOMENTUM, ZERO_F32, 1},
};

/* Registers moments that are not f32, so that checkpoints carry them. */
static zero_status register_moments(zero_param *param)
{
	struct zero_moments at;
	zero_status status = ZERO_OK;

	zero_param_stepped(param, &at);
	void *const data[ZERO_MOMENT_PARTS] = {at.m_codes, at.m_absmax, at.v_codes, at.v_absmax,
					       at.m};

	for (int i = 0; !status && i < ZERO_MOMENT_PARTS; i++)
		if (zero_moment_parts[i].kind == zero_param_moments(param))
			status = zero_state_add_moment(param, &zero_moment_parts[i], data[i]);
	return status;
}

static bool has_moments(const zero_param *param, const struct zero_flat *flat)
{
	return param->flat == flat && !param->alias_of && param->trainable;
}

/* Places the moments of a kind one behind the other. Returns where they end. */
static size_t place_moments(struct zero_flat *flat, enum zero_moments_kind kind, size_t end)
{
	zero_group *group = flat->group;
	size_t at;

	for (size_t p = 0; p < group->param_count; p++) {
		zero_param *param = group->params[p];

		if (!has_moments(param, flat) || zero_param_moments(param) != kind)
			continue;
		param->moments_at = end;
		end += (stepped_count(param, &at) + ZERO_BLOCK - 1) / ZERO_BLOCK * ZERO_BLOCK;
	}
	return end;
}

static zero_status alloc_moments(struct zero_flat *flat)
{
	zero_group *group = flat->group;
	struct zero_moments *moments = &flat->moments;
	size_t f32 = place_moments(flat, ZERO_MOMENTS_F32, 0);
	size_t m = place_moments(flat, ZERO_MOMENTS_MUON, f32);
	size_t codes = place_moments(flat, ZERO_MOMENTS_8BIT, 0), blocks = codes / ZERO_BLOCK;
	zero_status status;

	/* Padding has moments too where all are f32, so that a plan knows their bytes. */
	if (m == f32 && !codes)
		f32 = m = flat->state_count;
	/* One array for both moments, in which those of Muon lie between them. */
	status = alloc_array(flat, &moments->m, m + f32, sizeof(float));
	if (!status)
		status = alloc_array(flat, &moments->m_codes, 2 * codes, 1);
	if (!status)
		status = alloc_array(flat, &moments->m_absmax, 2 * blocks, sizeof(float));
	if (status)
		return status;
	moments->v = moments->m ? moments->m + m : NULL;
	moments->v_codes = moments->m_codes ? moments->m_codes + codes : NULL;
	moments->v_absmax = moments->m_absmax ? moments->m_absmax + blocks : NULL;
	for (size_t p = 0; !status && p < group->param_count; p++)
		if (has_moments(group->params[p], flat))
			status = register_moments(group->params[p]);
	return status;
}

zero_status zero_states_alloc(zero_group *group)
{
	zero_status status = alloc_offload_buffers(group->job);

	for (size_t f = 0; !status && f < group->flat_count; f++) {
		status = alloc_moments(&group->flats[f]);
		if (!status)
			status = alloc_masters(&group->flats[f]);
	}
	return status;
}

void zero_moments_free(zero_job *job, struct zero_moments *moments)
{
	job->ops->free(job->backend, moments->m);
	job->ops->free(job->backend, moments->m_codes);
	job->ops->free(job->backend, moments->m_absmax);
	*moments = (struct zero_moments){0};
}

void zero_states_take(zero_group *group, struct zero_moments *flats)
{
	for (size_t p = 0; p < group->param_count; p++)
		zero_state_drop_moments(group->params[p]);
	for (size_t f = 0; f < group->flat_count; f++) {
		flats[f] = group->flats[f].moments;
		group->flats[f].moments = (struct zero_moments){0};
	}
}

void zero_states_free(zero_group *group, bool masters)
{
	zero_job *job = group->job;

	for (size_t p = 0; p < group->param_count; p++)
		zero_state_drop_moments(group->params[p]);
	for (size_t f = 0; f < group->flat_count; f++) {
		struct zero_flat *flat = &group->flats[f];

		zero_moments_free(job, &flat->moments);
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

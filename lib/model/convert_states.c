/* SPDX-License-Identifier: Apache-2.0 */
/* Moments of another type than before: from f32 to 8 bits, and back. */
#include <stdlib.h>
#include <string.h>

#include "model.h"

enum { PIECE = 1 << 16 }; /* elements */

/* Moments in host memory, as f32 and as 8 bits. */
struct piece {
	float m[PIECE], v[PIECE];
	float m_absmax[PIECE / ZERO_BLOCK], v_absmax[PIECE / ZERO_BLOCK];
	uint8_t m_codes[PIECE], v_codes[PIECE];
};

static void copy_f32(zero_job *job, struct piece *piece, const struct zero_moments *at,
		     size_t count, bool out)
{
	size_t bytes = count * sizeof(float);

	job->ops->copy(job->backend, out ? at->m : piece->m, out ? piece->m : at->m, bytes);
	if (at->v)
		job->ops->copy(job->backend, out ? at->v : piece->v, out ? piece->v : at->v, bytes);
}

static void copy_8bit(zero_job *job, struct piece *piece, const struct zero_moments *at,
		      size_t count, bool out)
{
	const struct {
		void *here, *there;
		size_t bytes;
	} arrays[] = {
		{piece->m_codes, at->m_codes, count},
		{piece->v_codes, at->v_codes, count},
		{piece->m_absmax, at->m_absmax,
		 (count + ZERO_BLOCK - 1) / ZERO_BLOCK * sizeof(float)},
		{piece->v_absmax, at->v_absmax,
		 (count + ZERO_BLOCK - 1) / ZERO_BLOCK * sizeof(float)},
	};

	for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
		job->ops->copy(job->backend, out ? arrays[i].there : arrays[i].here,
			       out ? arrays[i].here : arrays[i].there, arrays[i].bytes);
}

/* Between arrays of the backend, by way of host memory. */
static zero_status convert(zero_job *job, struct piece *piece, const struct zero_moments *from,
			   const struct zero_moments *to, size_t count)
{
	const struct zero_kernels *kernels = job->cpu.kernels;
	const struct zero_dynamic_map *of_m = kernels->dynamic_map(true),
				      *of_v = kernels->dynamic_map(false);
	zero_status status;

	if (from->m)
		copy_f32(job, piece, from, count, false);
	else
		copy_8bit(job, piece, from, count, false);
	status = zero_device_sync(job);
	if (status)
		return status;
	if (from->m && to->m) {
		copy_f32(job, piece, to, count, true);
	} else if (to->m) {
		kernels->dequantize(of_m, piece->m, piece->m_codes, piece->m_absmax, count);
		kernels->dequantize(of_v, piece->v, piece->v_codes, piece->v_absmax, count);
		copy_f32(job, piece, to, count, true);
	} else {
		kernels->quantize(of_m, piece->m_codes, piece->m_absmax, piece->m, count);
		kernels->quantize(of_v, piece->v_codes, piece->v_absmax, piece->v, count);
		copy_8bit(job, piece, to, count, true);
	}
	return zero_device_sync(job);
}

/* Where a parameter's moments were. */
struct before {
	struct zero_moments moments;
	size_t count;
};

static zero_status convert_group(zero_group *group, struct piece *piece, zero_states states)
{
	zero_job *job = group->job;
	struct before *before = calloc(group->param_count + 1, sizeof(*before));
	struct zero_moments *flats = calloc(group->flat_count + 1, sizeof(*flats));
	zero_status status = ZERO_OK;

	if (!before || !flats)
		status = zero_fail(ZERO_E_MEMORY, "no memory to convert the states of group '%s'",
				   group->name);
	for (size_t p = 0; !status && p < group->param_count; p++) {
		const zero_param *param = group->params[p];

		if (!param->alias_of && param->trainable && zero_is_member(group))
			before[p].count = zero_param_stepped(param, &before[p].moments);
	}
	if (!status) {
		zero_states_take(group, flats);
		job->model->states = states;
		status = zero_states_alloc(group);
	}
	for (size_t p = 0; !status && p < group->param_count; p++)
		for (size_t at = 0, now; !status && at < before[p].count; at += now) {
			struct zero_moments from = zero_moments_from(before[p].moments, at), to;

			zero_param_stepped(group->params[p], &to);
			to = zero_moments_from(to, at);
			now = before[p].count - at < PIECE ? before[p].count - at : (size_t)PIECE;
			status = convert(job, piece, &from, &to, now);
		}
	for (size_t f = 0; flats && f < group->flat_count; f++)
		zero_moments_free(job, &flats[f]);
	free(before);
	free(flats);
	return status;
}

static bool has_moments(const zero_group *group)
{
	for (size_t f = 0; f < group->flat_count; f++)
		if (group->flats[f].moments.m || group->flats[f].moments.m_codes)
			return true;
	return false;
}

static zero_status check(const zero_job *job, zero_states states)
{
	if (states != ZERO_STATES_F32 && states != ZERO_STATES_8BIT)
		return zero_fail(ZERO_E_INVALID, "zero_set_states has states %d; they are 0 or 1",
				 (int)states);
	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_set_states must be called after zero_layout");
	return zero_require_state(job, ZERO_IDLE, "zero_set_states");
}

zero_status zero_set_states(zero_job *job, zero_states states)
{
	zero_states was = job->model->states;
	struct piece *piece = malloc(sizeof(*piece));
	zero_status status = check(job, states);

	if (!status && !piece)
		status = zero_fail(ZERO_E_MEMORY, "no memory for zero_set_states");
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM,
				  "zero_set_states to %d", (int)states);
	if (status) {
		free(piece);
		return status;
	}
	for (size_t g = 0; !status && states != was && g < job->model->group_count; g++) {
		job->model->states = was;
		if (!has_moments(job->model->groups[g]))
			continue;
		zero_hooks_before_change(job, job->model->groups[g], true);
		status = convert_group(job->model->groups[g], piece, states);
	}
	job->model->states = states;
	free(piece);
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM,
				  "zero_set_states: the end");
	if (!status)
		return ZERO_OK;
	/* Some have the old type. A restore makes new ones. */
	zero_hooks_before_change(job, NULL, false);
	for (size_t g = 0; g < job->model->group_count; g++)
		zero_states_free(job->model->groups[g], false);
	return zero_mark_inconsistent(job, status);
}

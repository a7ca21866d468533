/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW (Loshchilov and Hutter, arXiv 1711.05101) over what this rank owns. Offloaded states are
 * stepped in host memory: gradients come to them and new values go back by pieces, through
 * offload_buffers, and one piece is copied while the one before is stepped.
 */
#include "train.h"

/* Elements to step: where they are stored, their gradient and their states. */
struct part {
	char *stored;
	zero_dtype dtype;
	float *master; /* NULL for f32 */
	struct zero_moments moments;
	const float *g;
	size_t count;
};

/* The group's state is where the part is: on the device, or in host memory. */
static void step_in_place(const zero_group *group, const struct zero_adamw_args *args,
			  const struct part *part)
{
	zero_job *job = group->job;
	float *p = part->master ? part->master : (float *)(void *)part->stored;

	struct zero_device_adamw adamw = {.args = *args,
					  .state = group->step_state,
					  .p = p,
					  .moments = part->moments,
					  .g = part->g,
					  .low = part->master ? part->stored : NULL,
					  .low_dtype = part->dtype,
					  .count = part->count};
	enum zero_kernel kernel = part->moments.m ? ZERO_K_ADAMW : ZERO_K_ADAMW_8BIT;

	for (int i = 0; kernel == ZERO_K_ADAMW_8BIT && i < 2; i++)
		adamw.maps[i] = *job->cpu.kernels->dynamic_map(i);
	if (zero_states_staged(job))
		zero_cpu_run(&job->cpu, kernel, &adamw);
	else
		zero_compute(job, kernel, &adamw);
}

/* Begins to copy one piece to the host: the gradients, and the f32 values; 16-bit values have
   masters there. Returns the event of its end. */
static uint64_t fetch_piece(zero_job *job, const struct part *part, size_t at,
			    void *const buffers[2])
{
	size_t size = zero_dtype_size(part->dtype);
	size_t now = part->count - at < job->model->offload_count ? part->count - at
								  : job->model->offload_count;

	job->ops->copy(job->backend, buffers[0], part->g + at, now * sizeof(float));
	if (!part->master)
		job->ops->copy(job->backend, buffers[1], part->stored + at * size, now * size);
	return zero_event_record(job);
}

/* Errors of the device come with the next submission. */
static void step_staged(const zero_group *group, const struct zero_adamw_args *args,
			const struct part *part)
{
	zero_job *job = group->job;
	size_t size = zero_dtype_size(part->dtype), now;
	uint64_t mark = fetch_piece(job, part, 0, job->model->offload_buffers[0]), next = 0;
	int which = 0;

	for (size_t at = 0; at < part->count; at += now, which = !which, mark = next) {
		struct part piece = {.stored = job->model->offload_buffers[which][1],
				     .dtype = part->dtype,
				     .master = part->master ? part->master + at : NULL,
				     .moments = zero_moments_from(part->moments, at),
				     .g = job->model->offload_buffers[which][0]};

		now = part->count - at < job->model->offload_count ? part->count - at
								   : job->model->offload_count;
		piece.count = now;
		if (at + now < part->count)
			next = fetch_piece(job, part, at + now,
					   job->model->offload_buffers[!which]);
		zero_event_wait(job, mark);
		step_in_place(group, args, &piece);
		job->ops->copy(job->backend, part->stored + at * size, piece.stored, now * size);
	}
}

static void step_param(const zero_param *param, const zero_adamw *adamw)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = &flat->segments[param->segment];
	struct zero_adamw_args args = {.beta1 = adamw->beta1,
				       .beta2 = adamw->beta2,
				       .eps = adamw->eps,
				       .lr = adamw->lr * param->lr_scale};
	zero_job *job = param->group->job;
	size_t segment_first, segment_count, first, count, at;
	struct part part;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (!count)
		return;
	args.decay = args.lr * (adamw->weight_decay * param->weight_decay);
	at = segment->state_at + (param->first + first - segment_first);
	part = (struct part){
		.stored = zero_stored_at(flat, segment, param->first + first),
		.dtype = segment->dtype,
		.master = segment->dtype != ZERO_F32 ? flat->master + at : NULL,
		.g = flat->reduced + at,
		.count = count,
	};
	zero_param_stepped(param, &part.moments);
	if (zero_states_staged(job))
		step_staged(param->group, &args, &part);
	else
		step_in_place(param->group, &args, &part);
}

void zero_adamw_group(zero_group *group, const zero_adamw *adamw)
{
	for (size_t p = 0; p < group->param_count; p++)
		if (group->params[p]->trainable && !group->params[p]->frozen &&
		    !group->params[p]->alias_of && !group->params[p]->muon)
			step_param(group->params[p], adamw);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW over what this rank owns, and its states. Offloaded states are in host memory and are
 * stepped there: where the device's memory is another one, gradients come to them by pieces, and
 * new values go back, through buffers of two chunks together; one piece comes while the last one is
 * stepped.
 */
#include "job/internal.h"

/* ---- offloaded states ------------------------------------------------------------------------ */

static bool is_offloaded(const zero_job *job)
{
	return job->settings.value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER;
}

/* Whether values are not where their states are. */
static bool is_staged(const zero_job *job)
{
	return is_offloaded(job) &&
	       (!job->ops->host_memory || job->settings.value[ZERO_OPT_STAGED].number);
}

/* Elements of the longest segment that this rank steps. */
static size_t longest_run(const zero_job *job)
{
	size_t longest = 0;

	for (size_t g = 0; g < job->group_count; g++)
		for (size_t f = 0; f < job->groups[g]->flat_count; f++)
			for (size_t r = 0; r < job->groups[g]->flats[f].segment_count; r++) {
				const struct zero_segment *segment =
					&job->groups[g]->flats[f].segments[r];
				size_t first, count;

				zero_stepped_part(job->groups[g], segment, &first, &count);
				if (segment->trainable && count > longest)
					longest = count;
			}
	return longest;
}

/* Four buffers of `staged` f32 elements, kept until the job is closed. */
static zero_status alloc_staging(zero_job *job)
{
	size_t longest = longest_run(job), elements = job->chunk / 2 / sizeof(float);
	zero_status status = ZERO_OK;

	if (!is_staged(job) || !longest || job->staged)
		return ZERO_OK;
	elements = elements ? elements : 1;
	elements = elements < longest ? elements : longest;
	for (int i = 0; !status && i < 4; i++)
		if (!job->staging[i / 2][i % 2])
			status = job->ops->alloc(job->backend, ZERO_MEM_PINNED,
						 elements * sizeof(float), false,
						 &job->staging[i / 2][i % 2]);
	if (!status)
		job->staged = elements;
	return status;
}

/* ---- states ---------------------------------------------------------------------------------- */

void zero_master_set(struct zero_flat *flat, const struct zero_segment *segment, size_t first,
		     size_t count)
{
	zero_job *job = flat->group->job;
	size_t stepped_first, stepped, piece = is_staged(job) ? job->staged : count;
	size_t size = zero_dtype_size(segment->dtype);
	float *master;

	if (!flat->master || !segment->trainable || segment->dtype == ZERO_F32)
		return;
	zero_stepped_part(flat->group, segment, &stepped_first, &stepped);
	master = flat->master + segment->state_at + (first - stepped_first);
	for (size_t at = 0; at < count; at += piece) {
		size_t now = count - at < piece ? count - at : piece;
		const void *values = zero_stored_at(flat, segment, first + at);

		if (is_staged(job)) {
			job->ops->copy(job->backend, job->staging[0][0], values, now * size);
			values = job->staging[0][0];
			/* Its error comes with the next submission. */
			zero_device_sync(job);
		}
		job->ops->cast(job->backend, ZERO_F32, master + at, segment->dtype, values, now);
	}
}

static zero_status alloc_state(zero_job *job, struct zero_flat *flat)
{
	enum zero_memory_kind kind = is_offloaded(job) ? ZERO_MEM_OFFLOAD : ZERO_MEM_OPTIMIZER;
	size_t bytes = flat->state_count * sizeof(float);
	zero_status status = ZERO_OK;
	bool needs_master = false;

	for (size_t r = 0; r < flat->segment_count; r++)
		needs_master = needs_master ||
			       (flat->segments[r].trainable && flat->segments[r].dtype != ZERO_F32);
	if (!bytes)
		return ZERO_OK;
	if (!flat->m)
		status = job->ops->alloc(job->backend, kind, bytes, true, (void **)&flat->m);
	if (!status && !flat->v)
		status = job->ops->alloc(job->backend, kind, bytes, true, (void **)&flat->v);
	if (status || !needs_master || flat->master)
		return status;
	status = job->ops->alloc(job->backend, kind, bytes, true, (void **)&flat->master);
	for (size_t r = 0; !status && r < flat->segment_count; r++) {
		size_t first, count;

		zero_stepped_part(flat->group, &flat->segments[r], &first, &count);
		zero_master_set(flat, &flat->segments[r], first, count);
	}
	return status;
}

zero_status zero_adamw_states(zero_job *job)
{
	zero_status status = alloc_staging(job);

	for (size_t g = 0; !status && g < job->group_count; g++)
		for (size_t f = 0; !status && f < job->groups[g]->flat_count; f++)
			status = alloc_state(job, &job->groups[g]->flats[f]);
	return status;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* beta^steps in f64, by squaring: libm's pow differs in the last bit between machines. */
static double power(double beta, uint64_t steps)
{
	double result = 1;

	for (; steps; steps >>= 1, beta *= beta)
		if (steps & 1)
			result *= beta;
	return result;
}

struct zero_adamw_args zero_adamw_args_at(const zero_adamw *adamw, uint64_t steps, float scale)
{
	return (struct zero_adamw_args){
		.beta1 = adamw->beta1,
		.beta2 = adamw->beta2,
		.eps = adamw->eps,
		.correction1 = (float)(1 / (1 - power((double)adamw->beta1, steps))),
		.correction2 = (float)(1 / (1 - power((double)adamw->beta2, steps))),
		.scale = scale,
	};
}

/* Elements that are stepped: where they are stored, and their gradient and states. */
struct part {
	char *stored;
	zero_dtype dtype;
	float *master, *m, *v; /* master: NULL for f32 */
	const float *g;
	size_t count;
};

static void step_in_place(zero_job *job, const struct zero_adamw_args *args,
			  const struct part *part)
{
	float *p = part->master ? part->master : (float *)(void *)part->stored;

	job->ops->adamw(job->backend, args, p, part->m, part->v, part->g,
			part->master ? part->stored : NULL, part->dtype, part->count);
}

/* A piece of a part on its way to its states: gradients, and f32 values, which come and go; of
   16-bit ones there are masters. */
static uint64_t fetch(zero_job *job, const struct part *part, size_t at, void *const buffers[2])
{
	size_t size = zero_dtype_size(part->dtype);
	size_t now = part->count - at < job->staged ? part->count - at : job->staged;

	job->ops->copy(job->backend, buffers[0], part->g + at, now * sizeof(float));
	if (!part->master)
		job->ops->copy(job->backend, buffers[1], part->stored + at * size, now * size);
	return job->ops->event_record(job->backend);
}

/* The errors of a device come with the next submission. */
static void step_staged(zero_job *job, const struct zero_adamw_args *args, const struct part *part)
{
	size_t size = zero_dtype_size(part->dtype), now;
	uint64_t mark = fetch(job, part, 0, job->staging[0]), next = 0;
	int which = 0;

	for (size_t at = 0; at < part->count; at += now, which = !which, mark = next) {
		struct part piece = {.stored = job->staging[which][1],
				     .dtype = part->dtype,
				     .master = part->master ? part->master + at : NULL,
				     .m = part->m + at,
				     .v = part->v + at,
				     .g = job->staging[which][0]};

		now = part->count - at < job->staged ? part->count - at : job->staged;
		piece.count = now;
		if (at + now < part->count)
			next = fetch(job, part, at + now, job->staging[!which]);
		job->ops->event_wait(job->backend, mark);
		step_in_place(job, args, &piece);
		job->ops->copy(job->backend, part->stored + at * size, piece.stored, now * size);
	}
}

static void step_param(const zero_param *param, const zero_adamw *adamw,
		       struct zero_adamw_args args)
{
	const struct zero_flat *flat = param->flat;
	const struct zero_segment *segment = &flat->segments[param->segment];
	zero_job *job = param->group->job;
	size_t segment_first, segment_count, first, count, at;
	struct part part;

	zero_stepped_part(param->group, segment, &segment_first, &segment_count);
	zero_param_part(param, segment_first, segment_count, &first, &count);
	if (!count)
		return;
	args.lr = adamw->lr * param->lr_scale;
	args.decay = args.lr * (adamw->weight_decay * param->weight_decay);
	at = segment->state_at + (param->first + first - segment_first);
	part = (struct part){
		.stored = zero_stored_at(flat, segment, param->first + first),
		.dtype = segment->dtype,
		.master = segment->dtype != ZERO_F32 ? flat->master + at : NULL,
		.m = flat->m + at,
		.v = flat->v + at,
		.g = flat->reduced + at,
		.count = count,
	};
	if (is_staged(job))
		step_staged(job, &args, &part);
	else
		step_in_place(job, &args, &part);
}

void zero_adamw_group(zero_group *group, const zero_adamw *adamw,
		      const struct zero_adamw_args *args)
{
	for (size_t p = 0; p < group->param_count; p++)
		if (group->params[p]->trainable && !group->params[p]->alias_of)
			step_param(group->params[p], adamw, *args);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients, the step, and the same on the reference. */
#include <math.h>

#include "property.h"

float gradient(uint64_t pass, int from, size_t i)
{
	uint64_t bits = mixed(pass + mixed(i * 64 + (uint64_t)from));

	return signed_unit(bits) * (bits & 1 ? 1.0F : 300.0F);
}

/* The buffer of this rank's gradient, in the group's type. */
static void *gradient_buffer(struct tensor *tensor)
{
	zero_dtype dtype = tensor->group->gradients;
	void *buffer = dtype == ZERO_F32 ? zero_gradient(tensor->param)
					 : zero_gradient_as(tensor->param, dtype);

	check(buffer || !tensor->count, "'%s': %s", tensor->name, zero_last_error());
	return buffer;
}

static void check_buffer(struct tensor *tensor, const void *buffer, const float *pending)
{
	zero_dtype dtype = tensor->group->gradients;
	void *want = malloc(tensor->count * sizeof(float) + 1);

	check(want, "no memory");
	ref_cast(dtype, want, ZERO_F32, pending, tensor->count);
	check(ref_difference(dtype, buffer, want, tensor->count) == tensor->count,
	      "gradient of '%s', as %s, before more is added", tensor->name,
	      zero_dtype_name(dtype));
	free(want);
}

/* What was written of the slices since their last reduce. */
static void check_pending(struct tensor *tensor, const float *pending)
{
	void *values = malloc(tensor->count * sizeof(float) + 1);

	check(values, "no memory");
	if (tensor->written) {
		read_slice_gradients(tensor, values);
		check_buffer(tensor, values, pending);
	}
	free(values);
}

static void write_slices(struct tensor *tensor, const float *pending)
{
	void *values = malloc(tensor->count * sizeof(float) + 1);

	check(values, "no memory");
	ref_cast(tensor->group->gradients, values, ZERO_F32, pending, tensor->count);
	write_slice_gradients(tensor, values);
	free(values);
}

/* Each addition is rounded to the type of the gradients. */
static void add(float *pending, size_t count, zero_dtype dtype, uint64_t pass, int from)
{
	for (size_t i = 0; i < count; i++) {
		float sum = pending[i] + gradient(pass, from, i);
		uint32_t element;

		if (dtype != ZERO_F32) {
			ref_narrow(dtype, (double)sum, &element);
			sum = ref_widen(dtype, &element);
		}
		pending[i] = sum;
	}
}

/* Into the reference of every rank, and the library's buffer of this one. */
static void add_gradient(struct model *model, struct tensor *tensor, uint64_t pass)
{
	struct ref_param *ref = ref_of(tensor);
	zero_dtype dtype = tensor->group->gradients;
	bool sliced = tensor->group->slices;

	for (int i = 0; i < tensor->group->world; i++) {
		int from = tensor->group->ranks[i];
		void *buffer = NULL;

		/* Ranks differ in what they use. */
		if (mixed(pass ^ (uint64_t)(from + 1)) % 4 == 0)
			continue;
		if (from == model->rank) {
			buffer = sliced ? NULL : gradient_buffer(tensor);
			if (sliced)
				check_pending(tensor, ref->pending[i]);
			else
				check_buffer(tensor, buffer, ref->pending[i]);
		}
		add(ref->pending[i], tensor->count, dtype, pass, from);
		if (buffer)
			ref_cast(dtype, buffer, ZERO_F32, ref->pending[i], tensor->count);
		else if (sliced && from == model->rank)
			write_slices(tensor, ref->pending[i]);
	}
	tensor->group->pending = true;
}

/* Some micro-batches of one group; some parameters are not used. */
void backward(struct model *model)
{
	struct group *group = any_group(model);
	size_t micro_batches = 1 + below(&model->random, 3);

	for (size_t micro = 0; micro < micro_batches; micro++)
		for (size_t i = 0; i < group->count; i++) {
			uint64_t pass = draw(&model->random);

			if (group->tensors[i].spec.trainable && pass % 5)
				add_gradient(model, &group->tensors[i], pass);
		}
}

/* One rank has an element that is not finite: nobody steps. */
void overflow(struct model *model)
{
	struct tensor *tensor = any_tensor(model);
	uint64_t bits = draw(&model->random);
	const float worst = bits >> 63 ? INFINITY : NAN;
	size_t from, at;

	if (!tensor || !tensor->spec.trainable || !tensor->count)
		return;
	from = bits % (size_t)tensor->group->world;
	at = (bits >> 8) % tensor->count;
	ref_of(tensor)->pending[from][at] = worst;
	tensor->group->pending = true;
	if (tensor->group->ranks[from] != model->rank)
		return;
	if (tensor->group->slices)
		write_slices(tensor, ref_of(tensor)->pending[from]);
	else
		ref_narrow(tensor->group->gradients, (double)worst,
			   (char *)gradient_buffer(tensor) +
				   at * zero_dtype_size(tensor->group->gradients));
}

/* NCCL's sums of 16-bit gradients are rounded once. */
static void ref_reduce_group(struct group *group)
{
	const char *how = getenv("ZERO_REDUCE");
	bool by_nccl = on_gpu() && (!how || strcmp(how, "ordered") != 0);

	for (size_t i = 0; i < group->count; i++)
		if (!group->tensors[i].tied)
			ref_reduce(&group->tensors[i].ref, group->reduced,
				   by_nccl ? group->gradients : ZERO_F32);
	group->reduced = true;
	group->pending = false;
}

static void reduce(struct model *model, struct group *group)
{
	uint64_t seed = draw(&model->random);

	for (size_t i = 0; i < zero_group_slice_count(group->handle) && group->member; i++)
		ok(zero_reduce(slice_by_turn(group, seed, i)));
	for (size_t i = 0; i < group->count; i++)
		group->tensors[i].written = false;
	ref_reduce_group(group);
}

void reduce_any(struct model *model)
{
	struct group *group = any_group(model);

	if (group->trainable)
		reduce(model, group);
}

zero_adamw random_adamw(uint64_t *random)
{
	static const float betas[] = {0, 0.5F, 0.9F, 0.95F, 0.999F};
	static const float epsilons[] = {1e-8F, 1e-6F, 1}, decays[] = {0, 0.01F, 0.1F, 1};
	zero_adamw adamw = {0};

	adamw.lr = fabsf(signed_unit(draw(random))) * (below(random, 12) ? 0.1F : 0);
	adamw.beta1 = betas[below(random, 5)];
	adamw.beta2 = betas[below(random, 5)];
	adamw.eps = epsilons[below(random, 3)];
	adamw.weight_decay = decays[below(random, 4)];
	adamw.clip = fabsf(signed_unit(draw(random))) * (below(random, 2) ? 100 : 0);
	adamw.micro_batches = (int)below(random, 4);
	return adamw;
}

void random_loss_scale(struct model *model)
{
	uint64_t *random = &model->random;

	zero_loss_scale_init(&model->scale);
	if (below(random, 2))
		return;
	model->scale.scale = 0.5F + fabsf(signed_unit(draw(random))) * 3000;
	model->scale.min = model->scale.scale / (float)(1 + below(random, 3));
	model->scale.max = model->scale.scale * (float)(1 + below(random, 3));
	model->scale.growth = 1 + (float)below(random, 3);
	model->scale.backoff = 1 / (float)(1 + below(random, 3));
	model->scale.interval = (uint32_t)below(random, 4);
}

/* What a step does to a loss scale. */
static void ref_scale(zero_loss_scale *scale, bool finite)
{
	scale->good_steps = finite ? scale->good_steps + 1 : 0;
	if (!finite)
		scale->scale *= scale->backoff;
	if (scale->interval && scale->good_steps >= scale->interval) {
		scale->scale *= scale->growth;
		scale->good_steps = 0;
	}
	scale->scale = scale->scale < scale->min ? scale->min : scale->scale;
	scale->scale = scale->scale > scale->max ? scale->max : scale->scale;
}

/* Uneven batches, at times: what this rank says is one of them. Returns all samples, 0: even. */
static double random_samples(struct model *model, zero_adamw *adamw)
{
	uint64_t seed = draw(&model->random);
	double all = 0;

	for (int rank = 0; rank < model->world && seed % 3 == 0; rank++) {
		double its = (double)(mixed(seed + (uint64_t)rank) % 9) / 2;

		all += its;
		if (rank == model->rank)
			adamw->samples = its;
	}
	if (all > 0)
		adamw->micro_batches = adamw->micro_batches % 2;
	return all;
}

/* By which the sums are multiplied. */
static double mean_factor(const struct model *model, const zero_adamw *adamw, double samples)
{
	int micro_batches = adamw->micro_batches ? adamw->micro_batches : 1;
	double mean = samples > 0 ? 1 / samples : 1 / ((double)model->world * micro_batches);

	return adamw->loss_scale ? mean / (double)adamw->loss_scale->scale : mean;
}

static void ref_step_all(struct model *model, const zero_adamw *adamw, float scale)
{
	model->steps++;
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++)
			if (!model->groups[g].tensors[i].tied)
				ref_step(&model->groups[g].tensors[i].ref, adamw, scale,
					 model->steps);
}

/* What the step reduces; returns the norm of the sums. */
static double ref_reduce_all(struct model *model)
{
	double norm2 = 0;

	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		if (!group->reduced)
			ref_reduce_group(group);
		group->reduced = false;
		for (size_t i = 0; i < group->count; i++)
			norm2 += group->tensors[i].tied ? 0 : ref_norm2(&group->tensors[i].ref);
	}
	return sqrt(norm2);
}

static void check_result(struct model *model, const zero_step_result *result, double norm,
			 bool scaled)
{
	uint64_t bits;

	check(result->skipped == !isfinite(norm), "norm %g, skipped: %d", norm, result->skipped);
	check(result->skipped || fabs(result->grad_norm - norm) <= 1e-12 * norm,
	      "norm %.17g, not %.17g", result->grad_norm, norm);
	check(result->loss_scale == (scaled ? model->scale.scale : 1), "loss scale %g",
	      (double)result->loss_scale);
	/* From here on its own last bits count: they are the same at all stages. */
	memcpy(&bits, &result->grad_norm, sizeof(bits));
	model->digest = mixed(model->digest + (result->skipped ? 0 : bits));
}

/* A step reduces what was not reduced, but for slices: their program does. */
void reduce_slices(struct model *model)
{
	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		if (group->slices && group->pending)
			reduce(model, group);
	}
}

void step(struct model *model)
{
	zero_adamw adamw = random_adamw(&model->random);
	double samples = random_samples(model, &adamw), norm, scale;
	zero_loss_scale loss_scale = model->scale;
	zero_step_result result;
	bool scaled = below(&model->random, 3) == 0;
	bool told = below(&model->random, 8) || adamw.clip > 0;

	memset(&result, 0xa5, sizeof(result));
	adamw.loss_scale = scaled ? &loss_scale : NULL;
	scale = mean_factor(model, &adamw, samples);
	release_all(model);
	reduce_slices(model);
	norm = ref_reduce_all(model) * scale;
	if (scaled)
		ref_scale(&model->scale, isfinite(norm));
	ok(zero_step(model->job, &adamw, told ? &result : NULL));
	model->stepped++;
	check(loss_scale.scale == model->scale.scale &&
		      loss_scale.good_steps == model->scale.good_steps,
	      "loss scale %g after %u steps, not %g after %u", (double)loss_scale.scale,
	      loss_scale.good_steps, (double)model->scale.scale, model->scale.good_steps);
	if (told)
		check_result(model, &result, norm, scaled);
	if (!isfinite(norm))
		return;
	if (adamw.clip > 0 && result.grad_norm > (double)adamw.clip)
		scale = (double)adamw.clip / result.grad_norm * scale;
	ref_step_all(model, &adamw, (float)scale);
}

void ref_drop_gradients(struct model *model)
{
	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		group->reduced = group->pending = false;
		for (size_t i = 0; i < group->count; i++) {
			group->tensors[i].written = false;
			if (!group->tensors[i].tied)
				ref_drop_pending(&group->tensors[i].ref);
		}
	}
}

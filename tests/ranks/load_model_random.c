/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models: shapes, types, groups and files, tied parameters, missing and unexpected tensors.
 */
#include <math.h>

#include "checkpoint.h"
#include "load_model.h"

static void random_shape(uint64_t *random, struct tensor *tensor)
{
	static const size_t edges[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 200};

	tensor->ndim = below(random, 3) ? 2 : (int)below(random, 4);
	tensor->count = 1;
	for (int i = 0; i < tensor->ndim; i++) {
		tensor->shape[i] = below(random, 4)
					   ? 1 + below(random, tensor->ndim == 3 ? 30 : 200)
					   : edges[below(random, 10)];
		if (tensor->ndim == 3 && i == 2)
			tensor->shape[i] %= 40;
		tensor->count *= tensor->shape[i];
	}
	tensor->transpose = tensor->ndim == 2 && below(random, 2);
}

static zero_dtype random_dtype(uint64_t *random, bool floating)
{
	static const zero_dtype types[2][4] = {{ZERO_I64, ZERO_I32, ZERO_U8, ZERO_BOOL},
					       {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64}};

	return types[floating][below(random, 4)];
}

/* Often halfway between values of 16 or 32 bits, or next to it; of all sizes. */
static double awkward_value(uint64_t *random)
{
	const uint64_t whole = draw(random) >> (below(random, 2) ? 52 : 39);
	const double beside = ldexp((double)below(random, 3) - 1, -27);
	const int exponents[] = {-12, -25, -38, 0, 5, -140, -160, 110};

	return ldexp(((double)whole + beside) * (below(random, 2) ? 1 : -1),
		     exponents[below(random, 8)] + (int)below(random, 5));
}

static uint64_t random_value(uint64_t *random, const struct tensor *tensor)
{
	const bool same = tensor->dtype == tensor->file_dtype;
	uint64_t bits = draw(random);
	double value = awkward_value(random);
	float single = (float)value;

	if (tensor->file_dtype == ZERO_BOOL || (!same && tensor->dtype == ZERO_BOOL))
		return bits & 1;
	if (tensor->file_dtype == ZERO_U8 || (!same && tensor->dtype == ZERO_U8))
		return bits & 255;
	if (!is_float(tensor->file_dtype))
		return same ? bits : (uint64_t)((int64_t)bits >> 33);
	if (tensor->file_dtype == ZERO_F64 && bits % 8)
		memcpy(&bits, &value, sizeof(value));
	if (tensor->file_dtype == ZERO_F32 && bits % 8)
		memcpy(&bits, &single, sizeof(single));
	return bits;
}

/* Integers fit into what they become. */
static void make_values(uint64_t *random, struct tensor *tensor)
{
	size_t size = zero_dtype_size(tensor->file_dtype);

	tensor->values = malloc(tensor->count * size + 1);
	check(tensor->values, "no memory");
	for (size_t i = 0; i < tensor->count; i++) {
		uint64_t bits = random_value(random, tensor);

		memcpy(tensor->values + i * size, &bits, size);
	}
}

static void random_tensor(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i];
	bool floating = below(random, 4);

	snprintf(tensor->name, sizeof(tensor->name), "layer.%zu.weight", i);
	snprintf(tensor->file_name, sizeof(tensor->file_name), "%s%s",
		 model->renamed ? "model." : "", tensor->name);
	tensor->file_dtype = random_dtype(random, floating);
	tensor->dtype = below(random, 2) ? tensor->file_dtype : random_dtype(random, floating);
	random_shape(random, tensor);
	tensor->transpose = tensor->transpose && model->renamed;
	tensor->trainable = tensor->dtype <= ZERO_BF16 && below(random, 2);
	tensor->listed = true;
	tensor->shard = below(random, model->shards);
	make_values(random, tensor);
}

/* Of a tied parameter the file has its own, its alias's or both; an alias's may have another shape,
   and other values if nobody is to read them. */
static void tie(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i], *target = tensor - 1;
	size_t which = below(random, 3);

	free(tensor->values);
	tensor->dtype = target->dtype;
	tensor->file_dtype = target->file_dtype;
	tensor->trainable = target->trainable;
	tensor->count = target->count;
	if (target->ndim == 2 && below(random, 2)) {
		tensor->ndim = 2;
		memcpy(tensor->shape, target->shape, sizeof(tensor->shape));
		tensor->transpose = model->renamed && below(random, 2);
	} else {
		tensor->ndim = 1;
		tensor->shape[0] = target->count;
		tensor->transpose = false;
	}
	tensor->tied = target;
	make_values(random, tensor);
	tensor->listed = which != 0;
	target->listed = which != 1;
	if (target->listed)
		return;
	free(target->values);
	target->values = tensor->values;
	target->transpose = tensor->transpose;
	tensor->values = NULL;
}

/* Known to be missing, or not; then initialised. */
static void lose(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i];

	if (tensor->tied || tensor[1].tied)
		return;
	/* What is known not to be there is not asked for; if it is there it is unexpected. */
	tensor->listed = false;
	tensor->known = model->renamed && below(random, 2);
	tensor->origin = below(random, 2) ? BY_CALLBACK : BY_DEFAULT;
}

size_t group_of(size_t i)
{
	return i * GROUPS / TENSORS;
}

void make_model(struct model *model, uint64_t seed, int stage)
{
	static const char *const modes[] = {"auto", "single", "grouped"};
	static const size_t chunks[] = {64, 1000, 4096, 10000, 100000, 40 << 20};
	uint64_t *random = &seed;

	memset(model, 0, sizeof(*model));
	model->stage = stage;
	model->chunk = chunks[below(random, 6)];
	model->shards = 1 + below(random, SHARDS);
	model->renamed = below(random, 4);
	model->left_out = world > 1 ? (int)below(random, (size_t)world + 1) - 1 : -1;
	model->count = 2 + below(random, TENSORS - 1);
	for (size_t i = 0; i < TENSORS + EXTRA; i++) {
		random_tensor(model, random, i);
		if (i >= model->count)
			model->tensors[i].listed = i >= TENSORS && below(random, 3) == 0;
	}
	for (size_t i = 1; i < model->count; i++)
		if (below(random, 6) == 0 && group_of(i) == group_of(i - 1) &&
		    !model->tensors[i - 1].tied)
			tie(model, random, i);
	for (size_t i = 0; i < model->count; i++)
		if (below(random, 6) == 0)
			lose(model, random, i);
	/* A file has at least one tensor. */
	model->tensors[TENSORS].listed = true;
	model->job = open_job("stage=%d allgather=%s bucket=%zu stream_chunk=%zu share=%zu", stage,
			      modes[below(random, 3)], (64 << 10) + below(random, 1 << 20),
			      model->chunk, below(random, 3));
}

/* COLLECTIVE. The ranks but one; NULL: all of them. */
static zero_team *make_team(const struct model *model)
{
	int ranks[WORLD_MAX];
	size_t count = 0;
	zero_team *team;

	if (model->left_out < 0)
		return NULL;
	for (int r = 0; r < world; r++)
		if (r != model->left_out)
			ranks[count++] = r;
	ok(zero_team_new(model->job, ranks, count, &team));
	return team;
}

bool is_member(const struct model *model, size_t g)
{
	return g < GROUPS - 1 || model->left_out != zero_rank(model->job);
}

void add_params(struct model *model)
{
	zero_team *team = make_team(model);

	for (size_t g = 0; g < GROUPS; g++) {
		char name[16];

		snprintf(name, sizeof(name), "%zu", g);
		ok(zero_group_new(model->job, name, g == GROUPS - 1 ? team : NULL,
				  &model->groups[g]));
	}
	for (size_t i = 0; i < model->count; i++) {
		struct tensor *tensor = &model->tensors[i];
		zero_param_spec spec = {.name = tensor->name,
					.dtype = tensor->dtype,
					.ndim = tensor->ndim,
					.shape = tensor->shape,
					.trainable = tensor->trainable};

		if (tensor->tied)
			spec.alias_of = tensor->tied->param;
		/* Aliases follow their targets into the group. */
		ok(zero_param_new(model->groups[group_of(i)], &spec, &tensor->param));
	}
	ok(zero_layout(model->job));
}

size_t file_bytes(const struct tensor *tensor)
{
	return tensor->count * zero_dtype_size(tensor->file_dtype);
}

/* In the order of the job's parameters or the other way round. */
void write_model(struct model *model)
{
	struct file_tensor tensors[TENSORS + EXTRA];
	static int models;
	size_t count = 0;

	snprintf(model->folder, sizeof(model->folder), "%s-%d", file_path("model"), models++);
	for (size_t i = 0; i < TENSORS + EXTRA; i++) {
		const struct tensor *tensor =
			&model->tensors[models % 2 ? i : TENSORS + EXTRA - 1 - i];
		const size_t *shape = tensor->shape;

		if (!tensor->listed)
			continue;
		tensors[count] = (struct file_tensor){
			.name = tensor->file_name,
			.dtype = tensor->file_dtype,
			.ndim = tensor->ndim,
			.shape = {shape[0], shape[1], shape[2]},
			.bytes = file_bytes(tensor),
			.values = tensor->values ? tensor->values : tensor->tied->values,
			.shard = tensor->shard,
		};
		if (tensor->transpose) {
			tensors[count].shape[0] = shape[1];
			tensors[count].shape[1] = shape[0];
		}
		count++;
	}
	if (zero_rank(model->job) == 0)
		write_checkpoint(model->folder, tensors, count, model->shards);
	ok(zero_agree(model->job, NULL));
}

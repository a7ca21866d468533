/* SPDX-License-Identifier: Apache-2.0 */
#include "restore.h"

/* ---- tensors --------------------------------------------------------------------------------- */

static zero_dtype choose_dtype(uint64_t *random)
{
	static const zero_dtype dtypes[] = {ZERO_F32, ZERO_F32, ZERO_F32,  ZERO_BF16, ZERO_BF16,
					    ZERO_F16, ZERO_I64, ZERO_BOOL, ZERO_U8,   ZERO_F64};

	return dtypes[below(random, sizeof(dtypes) / sizeof(*dtypes))];
}

void make_tensors(struct model *model, uint64_t seed, size_t size)
{
	uint64_t random = seed;

	model->seed = seed;
	for (int t = 0; t < TENSORS; t++) {
		struct tensor *tensor = &model->tensors[t];
		size_t few = below(&random, 4) ? size : 7;

		snprintf(tensor->name, sizeof(tensor->name), "%s.%d.\"w\xc3\xa9\"",
			 t % 3 ? "h" : "x", t);
		tensor->dtype = t < 2 ? ZERO_F32 : choose_dtype(&random);
		tensor->ndim = 1 + (int)below(&random, 2);
		tensor->shape[0] = t == 5 ? 0 : 1 + below(&random, few);
		tensor->shape[1] = 1 + below(&random, 9);
		if (tensor->ndim == 2 && tensor->shape[0])
			tensor->shape[0] = 1 + tensor->shape[0] / tensor->shape[1];
		tensor->count = tensor->shape[0] * (tensor->ndim == 2 ? tensor->shape[1] : 1);
		tensor->trainable = (tensor->dtype == ZERO_F32 || tensor->dtype == ZERO_BF16 ||
				     tensor->dtype == ZERO_F16) &&
				    (t == 0 || below(&random, 5));
		tensor->tied = -1;
	}
	/* One tensor is tied: it has a second name. */
	model->tensors[TENSORS - 1] = model->tensors[below(&random, 5)];
	snprintf(model->tensors[TENSORS - 1].name, sizeof(model->tensors[0].name), "tied");
	for (int t = 0; t < 5; t++)
		if (model->tensors[t].count == model->tensors[TENSORS - 1].count &&
		    model->tensors[t].dtype == model->tensors[TENSORS - 1].dtype &&
		    model->tensors[t].trainable == model->tensors[TENSORS - 1].trainable)
			model->tensors[TENSORS - 1].tied = t;
}

double state_bytes(const struct model *model)
{
	double bytes = 0;

	for (int t = 0; t < TENSORS; t++) {
		const struct tensor *tensor = &model->tensors[t];
		size_t each = zero_dtype_size(tensor->dtype);

		if (tensor->tied >= 0)
			continue;
		if (tensor->trainable)
			each += tensor->dtype == ZERO_F32 ? 8 : 12;
		bytes += (double)(tensor->count * each);
	}
	return bytes + named_bytes(model);
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* Each group but the first may have a team. */
static void make_groups(struct model *model, uint64_t *random)
{
	int world = zero_world(model->job), rank = zero_rank(model->job);

	for (int g = 0; g < GROUPS; g++) {
		int ranks[64], count = 0, begin = (int)below(random, (size_t)world);
		int stride = 1 + (int)below(random, 2);
		bool team = g && world > 1 && below(random, 2);
		char name[16];

		model->teams[g] = NULL;
		model->first[g] = 0;
		model->member[g] = true;
		model->trainable[g] = false;
		if (team) {
			model->member[g] = false;
			for (int r = begin; r < world && count < 64; r += stride) {
				model->member[g] = model->member[g] || r == rank;
				ranks[count++] = r;
			}
			model->first[g] = begin;
			ok(zero_team_new(model->job, ranks, (size_t)count, &model->teams[g]));
		}
		snprintf(name, sizeof(name), "g%d", g);
		ok(zero_group_new(model->job, name, model->teams[g], &model->groups[g]));
	}
}

static void make_param(struct model *model, int t)
{
	struct tensor *tensor = &model->tensors[t];
	int target = tensor->tied;
	zero_param_spec spec = {.name = tensor->name,
				.dtype = tensor->dtype,
				.ndim = tensor->ndim,
				.shape = tensor->shape,
				.trainable = tensor->trainable,
				.alias_of = target < 0 ? NULL : model->params[target]};

	ok(zero_param_new(model->groups[model->group_of[t]], &spec, &model->params[t]));
}

void open_model(struct model *model, uint64_t grouping, const char *settings)
{
	uint64_t random = grouping;

	model->steps = 0;
	model->job = open_job("%s", settings);
	make_groups(model, &random);
	for (int t = 0; t < TENSORS; t++)
		model->group_of[t] = (int)below(&random, GROUPS);
	for (int t = 0; t < TENSORS; t++) {
		if (model->tensors[t].tied >= 0)
			model->group_of[t] = model->group_of[model->tensors[t].tied];
		make_param(model, t);
		model->trainable[model->group_of[t]] |= model->tensors[t].trainable;
	}
	ok(zero_layout(model->job));
	register_states(model);
}

void close_model(struct model *model)
{
	ok(zero_close(model->job));
	free_states(model);
}

void choose_settings(uint64_t *random, char *text, size_t size)
{
	static const char *const modes[] = {"auto", "single", "grouped"};

	snprintf(text, size, "stage=%zu offload=%s allgather=%s stream_chunk=%zuK",
		 below(random, 4), below(random, 3) ? "none" : "optimizer", modes[below(random, 3)],
		 (size_t)64 << below(random, 3));
}

/* ---- values ---------------------------------------------------------------------------------- */

struct filling {
	const struct tensor *tensor;
	uint64_t seed;
};

static zero_status fill(void *context, void *out, size_t first, size_t count)
{
	const struct filling *filling = context;
	size_t size = zero_dtype_size(filling->tensor->dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = mixed(filling->seed ^ mixed(first + i + 1));
		float f = signed_unit(bits);
		double d = (double)f;
		uint16_t half = (uint16_t)(0x3800 | (bits & 0x83ff)), high;
		uint8_t flag = bits & 1;
		char value[8];

		memcpy(&high, (char *)&f + 2, 2);
		memcpy(value, &bits, 8);
		switch (filling->tensor->dtype) {
		case ZERO_F32:
			memcpy(value, &f, 4);
			break;
		case ZERO_F64:
			memcpy(value, &d, 8);
			break;
		case ZERO_BF16:
			memcpy(value, &high, 2);
			break;
		case ZERO_F16:
			memcpy(value, &half, 2);
			break;
		case ZERO_BOOL:
			memcpy(value, &flag, 1);
			break;
		default:
			break;
		}
		memcpy((char *)out + i * size, value, size);
	}
	return ZERO_OK;
}

void load_values(struct model *model)
{
	for (int t = 0; t < TENSORS; t++) {
		struct filling filling = {&model->tensors[t], mixed(model->seed + (uint64_t)t)};
		zero_source source = zero_from_callback(fill, &filling);

		if (model->tensors[t].tied < 0 && model->member[model->group_of[t]])
			ok(zero_load(model->params[t], &source));
	}
}

/* ---- training -------------------------------------------------------------------------------- */

/* One rank of each team has a gradient, which depends only on the step. */
static void add_gradients(struct model *model)
{
	for (int t = 0; t < TENSORS; t++) {
		const struct tensor *tensor = &model->tensors[t];
		uint64_t pass = mixed(model->seed ^ mixed(model->steps * 64 + (uint64_t)t));
		float *gradient;

		if (!tensor->trainable || tensor->tied >= 0 || !tensor->count ||
		    model->first[model->group_of[t]] != zero_rank(model->job))
			continue;
		gradient = zero_gradient(model->params[t]);
		check(gradient, "'%s': %s", tensor->name, zero_last_error());
		for (size_t i = 0; i < tensor->count; i++)
			gradient[i] += signed_unit(mixed(pass + i));
	}
}

void train(struct model *model, int steps)
{
	zero_adamw adamw = {.lr = 0.01F,
			    .beta1 = 0.9F,
			    .beta2 = 0.95F,
			    .eps = 1e-8F,
			    .weight_decay = 0.1F,
			    .samples = zero_rank(model->job) ? 0 : 1};

	for (; steps; steps--) {
		add_gradients(model);
		for (int g = GROUPS; g--;)
			if (model->member[g] && model->trainable[g])
				ok(zero_reduce(model->groups[g]));
		ok(zero_step(model->job, &adamw, NULL));
		model->steps++;
	}
}

/* ---- results --------------------------------------------------------------------------------- */

static double digest_of(const void *data, size_t bytes)
{
	const unsigned char *byte = data;
	uint64_t hash = bytes;

	for (size_t i = 0; i < bytes; i++)
		hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
	return (double)(mixed(hash) >> 32);
}

struct digests digest(struct model *model)
{
	struct digests all = {{0}};

	for (int g = 0; g < GROUPS; g++) {
		if (!model->member[g])
			continue;
		ok(zero_gather(model->groups[g], ZERO_DTYPE_PARAM));
		for (int t = 0; t < TENSORS; t++) {
			const struct tensor *tensor = &model->tensors[t];

			if (model->group_of[t] == g && model->first[g] == zero_rank(model->job))
				all.of[t] =
					digest_of(zero_data(model->params[t]),
						  tensor->count * zero_dtype_size(tensor->dtype)) *
					zero_world(model->job);
		}
		ok(zero_release(model->groups[g]));
	}
	ok(zero_mean(model->job, all.of, TENSORS, 1));
	return all;
}

void expect_same(const struct model *model, const struct digests *got, const struct digests *want,
		 const char *what)
{
	for (int t = 0; t < TENSORS; t++)
		check(got->of[t] == want->of[t], "%s: tensor %d, '%s', %s of %zu, differs", what, t,
		      model->tensors[t].name, zero_dtype_name(model->tensors[t].dtype),
		      model->tensors[t].count);
}

void meet(zero_job *job)
{
	double nothing = 0;

	ok(zero_mean(job, &nothing, 1, 1));
}

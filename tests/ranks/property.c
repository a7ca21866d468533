/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random models, to which random operations are done, hold the values of a plain reference of one
 * process. A case is a function of one number, which a failure prints: ZERO_TEST_CASE=number runs
 * that case alone. Each is done at a random stage, and some at another one too, which must end in
 * the same bits. ZERO_TEST_SEEDS=n does n times as many, ZERO_TEST_CASES=n does n.
 */
#include "property.h"

enum { CASES = 60, GPU_CASES = 30 };

char case_text[512] = "no case yet";

/* ---- random models --------------------------------------------------------------------------- */

static size_t random_count(uint64_t *random)
{
	static const size_t edges[] = {0,   1,   2,   15,  16,  17,  63,  64, 65,
				       127, 128, 129, 191, 192, 256, 320, 449};
	size_t kind = below(random, 100), any = below(random, COUNT_MAX);

	if (kind < 40)
		return edges[any % (sizeof(edges) / sizeof(edges[0]))];
	if (kind < 60)
		return any % 100;
	if (kind < 96)
		return any % 2500;
	return kind < 99 ? any % 25000 : any;
}

static void random_shape(struct tensor *tensor, uint64_t *random)
{
	size_t count = random_count(random);

	tensor->spec.ndim = (int)below(random, CASE_DIMS + 1);
	tensor->spec.shape = tensor->shape;
	tensor->count = 1;
	for (int i = 0; i < tensor->spec.ndim; i++) {
		bool last = i == tensor->spec.ndim - 1;

		tensor->shape[i] = last ? count : 1 + below(random, 5);
		count /= last ? 1 : tensor->shape[i];
		tensor->count *= tensor->shape[i];
	}
}

static void tie(struct tensor *tensor, struct tensor *target)
{
	tensor->tied = target;
	tensor->spec.dtype = target->spec.dtype;
	tensor->spec.trainable = target->spec.trainable;
	tensor->count = target->count;
	/* The same elements may have another shape. */
	tensor->spec.ndim = 1;
	tensor->shape[0] = target->count;
}

/* 0 stands for 1, as in lr_scale. */
static float ref_decay_scale(const zero_param_spec *spec)
{
	const float scale = spec->weight_decay_scale;

	return spec->no_weight_decay ? 0 : scale != 0 ? scale : 1;
}

static void random_tensor(struct model *model, struct group *group, size_t index)
{
	static const float factors[] = {0, 1, 0.5F, 2};
	struct tensor *tensor = &group->tensors[index], *target;
	uint64_t *random = &model->random;
	zero_dtype dtype = (zero_dtype)(ZERO_F32 + below(random, below(random, 2) ? 8 : 3));

	tensor->group = group;
	snprintf(tensor->name, sizeof(tensor->name), "%s.%zu", group->name, index);
	tensor->spec.name = tensor->name;
	tensor->spec.dtype = dtype;
	tensor->spec.trainable = is_real(dtype) && below(random, 4);
	tensor->spec.weight_decay_scale = factors[below(random, 4)];
	tensor->spec.no_weight_decay = tensor->spec.weight_decay_scale == 0 && below(random, 2);
	tensor->spec.lr_scale = factors[below(random, 4)];
	if (group->slices)
		slice_shape(model, tensor);
	else
		random_shape(tensor, random);
	target = index ? &group->tensors[below(random, index)] : NULL;
	if (below(random, 6) == 0 && target && !target->tied)
		tie(tensor, target);
	group->trainable = group->trainable || tensor->spec.trainable;
	if (tensor->tied)
		return;
	tensor->ref = (struct ref_param){.dtype = dtype,
					 .trainable = tensor->spec.trainable,
					 .weight_decay = ref_decay_scale(&tensor->spec),
					 .lr_scale = tensor->spec.lr_scale,
					 .count = tensor->count,
					 .world = group->world,
					 .team = group->world == model->world ? model->team
									      : group->world};
	check(ref_new(&tensor->ref), "no memory");
}

/* Mostly all ranks. */
static void random_team(struct model *model, struct group *group)
{
	size_t all = ((size_t)1 << model->world) - 1, drawn = 1 + below(&model->random, all);

	group->members = below(&model->random, 3) ? all : drawn;
	for (int rank = 0; rank < model->world; rank++)
		if (group->members >> rank & 1)
			group->ranks[group->world++] = rank;
	group->member = group->members >> model->rank & 1;
}

/* Mostly one copy. */
static void random_grid(struct model *model)
{
	int drawn = 1 + (int)below(&model->random, (size_t)model->world);

	model->team = below(&model->random, 2) || model->world % drawn ? model->world : drawn;
}

static void random_model(struct model *model)
{
	static const zero_dtype dtypes[] = {ZERO_F32, ZERO_F32, ZERO_F32, ZERO_F16, ZERO_BF16};

	random_grid(model);
	model->group_count = 1 + below(&model->random, GROUPS_MAX);
	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		snprintf(group->name, sizeof(group->name), "g%zu", g);
		random_team(model, group);
		group->gradients = dtypes[below(&model->random, 5)];
		group->count = below(&model->random, TENSORS_MAX + 1);
		group->slices = below(&model->random, 3) ? 0 : 1 + below(&model->random, 10000);
		if (group->slices)
			group->count = 1;
		model->sliced = model->sliced || group->slices;
		for (size_t i = 0; i < group->count; i++)
			random_tensor(model, group, i);
	}
}

static void free_model(struct model *model)
{
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++)
			ref_free(&model->groups[g].tensors[i].ref);
	free(model);
}

/* ---- settings -------------------------------------------------------------------------------- */

struct choice {
	const char *name;
	const char *values[8];
};

/* They may change the last bits of a norm, or which calls are allowed. */
static const struct choice model_choices[] = {
	{"allgather", {"auto", "single", "grouped"}},
	{"bucket", {"64K", "100000", "150K", "1G"}},
	{"gather_dtype", {"param", "f32", "bf16", "f16"}},
	{NULL, {NULL}},
};

/* No bit depends on these. */
static const struct choice free_choices[] = {
	{"stage", {"0", "1", "2", "3", "3", "3"}},
	{"stream_chunk", {"1", "7", "64", "1000", "4096", "100000", "40M"}},
	{"stream_threshold", {"0", "1000", "4000", "20000", "auto"}},
	{"isa", {"auto", "auto", "auto", "scalar"}},
	{"share", {"0", "1", "2", "3"}},
	{"check", {"0", "0", "1"}},
	{"offload", {"none", "none", "optimizer"}},
	{NULL, {NULL}},
};

/* What is passed over depends on the stage, and on what else a rank has gathered. */
static const struct choice limit_choices[] = {
	{"gather_limit", {"0", "1000", "10000", "100000"}},
	{NULL, {NULL}},
};

static void choose(char *settings, size_t size, const struct choice *choice, uint64_t *random)
{
	for (; choice->name; choice++) {
		size_t at = strlen(settings), values = 0;

		while (choice->values[values])
			values++;
		snprintf(settings + at, size - at, "%s%s=%s", at ? " " : "", choice->name,
			 choice->values[below(random, values)]);
	}
}

static zero_dtype named_dtype(const char *name)
{
	static const zero_dtype dtypes[] = {ZERO_F32, ZERO_F16, ZERO_BF16};

	for (size_t i = 0; i < 3; i++)
		if (!strcmp(name, zero_dtype_name(dtypes[i])))
			return dtypes[i];
	return ZERO_DTYPE_PARAM;
}

/* The ranks of a machine that may share memory: by the case, and by run.sh. */
static int chosen_share(const char *settings)
{
	const char *text = strstr(settings, "share=");

	return text ? atoi(text + strlen("share=")) : 0;
}

/* ---- a case ---------------------------------------------------------------------------------- */

/* Settings that must not change a bit are drawn from `other`. */
static void open_model(struct model *model, uint64_t seed, uint64_t other, bool alone)
{
	char settings[256] = "";
	size_t length;

	model->limited = alone && below(&other, 2);
	for (size_t g = 0; g < model->group_count; g++)
		model->limited = model->limited && model->groups[g].world == model->world;
	choose(settings, sizeof(settings), model_choices, &model->random);
	choose(settings, sizeof(settings), free_choices, &other);
	if (model->limited)
		choose(settings, sizeof(settings), limit_choices, &other);
	/* Only there it changes anything: the order of sums in a grid, and where slices are padded
	   that of the sums of norms. */
	if (model->team < model->world || (model->sliced && (!alone || below(&other, 3))))
		*(strstr(settings, "stage=") + strlen("stage=")) = '3';
	/* Where memory is shared by all, slices are not gathered. */
	if (model->sliced && below(&other, 3))
		*(strstr(settings, "share=") + strlen("share=")) = '1';
	length = strlen(settings);
	snprintf(settings + length, sizeof(settings) - length, " shard=%d", model->team);
	snprintf(case_text, sizeof(case_text), "ZERO_TEST_CASE=%llu at world size %d (%s)",
		 (unsigned long long)seed, model->world, settings);
	model->job = open_job("%s", settings);
	model->stage = atoi(zero_setting(model->job, "stage"));
	model->set = named_dtype(zero_setting(model->job, "gather_dtype"));
	model->most = chosen_share(settings);
	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		if (group->world < model->world)
			ok(zero_team_new(model->job, group->ranks, (size_t)group->world,
					 &group->team));
		ok(zero_group_new(model->job, group->name, group->team, &group->handle));
		if (group->gradients != ZERO_F32)
			ok(zero_group_gradient_dtype(group->handle, group->gradients));
		if (group->slices)
			ok(zero_group_set_slices(group->handle, group->slices));
		for (size_t i = 0; i < group->count; i++) {
			struct tensor *tensor = &group->tensors[i];

			if (tensor->tied)
				tensor->spec.alias_of = tensor->tied->param;
			ok(zero_param_new(group->handle, &tensor->spec, &tensor->param));
			check(zero_param_numel(tensor->param) == tensor->count, "'%s': %zu",
			      tensor->name, zero_param_numel(tensor->param));
		}
	}
	ok(zero_layout(model->job));
	check_sent(model, 0, 0, "layout");
	lay_out(model);
}

static uint64_t hash(uint64_t h, const unsigned char *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		h = (h ^ bytes[i]) * UINT64_C(0x100000001b3);
	return mixed(h);
}

/* All values once more, and that nothing is left behind. */
static void finish(struct model *model)
{
	zero_memory memory;

	release_all(model);
	for (size_t g = 0; g < model->group_count; g++) {
		struct group *group = &model->groups[g];

		gather(model, group, ZERO_DTYPE_PARAM);
		release(model, group);
		for (size_t i = 0; i < group->count; i++) {
			struct tensor *tensor = &group->tensors[i];

			if (!tensor->tied)
				model->digest =
					hash(model->digest, tensor->ref.values,
					     tensor->count * zero_dtype_size(tensor->ref.dtype));
		}
	}
	ok(zero_memory_now(model->job, &memory));
	check(memory.gathered.now == 0, "%zu bytes are gathered", memory.gathered.now);
	check_shards_memory(model, &memory);
	ok(zero_close(model->job));
}

/* Returns a digest of all that must not depend on `other`. */
static uint64_t run_at(uint64_t seed, uint64_t other, bool alone, int world, int rank)
{
	struct model *model = calloc(1, sizeof(*model));
	uint64_t digest;
	size_t count;

	check(model, "no memory");
	model->random = seed;
	model->world = world;
	model->rank = rank;
	model->told = rank == 0 && getenv("ZERO_TEST_CASE");
	random_model(model);
	random_loss_scale(model);
	open_model(model, seed, other, alone);
	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++) {
			struct tensor *tensor = &model->groups[g].tensors[i];

			/* What is never loaded is zero. */
			if (below(&model->random, 10) && !tensor->tied)
				load(model, tensor);
		}
	count = 10 + below(&model->random, 50);
	for (size_t i = 0; i < count; i++)
		run_random(model, operations);
	while (model->stepped < 2) {
		run_random(model, operations);
		step(model);
	}
	finish(model);
	digest = model->digest;
	free_model(model);
	return digest;
}

static uint64_t run_case(uint64_t seed, int world, int rank)
{
	uint64_t other = mixed(seed + 1);
	bool alone = mixed(seed + 2) % 3;
	uint64_t first = run_at(seed, other, alone, world, rank);

	/* The settings differ in what must not matter, the stage among it. */
	check(alone || run_at(seed, mixed(other), alone, world, rank) == first,
	      "values or norms are other bits than with other settings");
	return first;
}

int main(void)
{
	const char *one = getenv("ZERO_TEST_CASE"), *seeds = getenv("ZERO_TEST_SEEDS");
	uint64_t seed = test_seed(), digest = 0;
	const char *number = getenv("ZERO_TEST_CASES");
	uint64_t cases = (on_gpu() ? GPU_CASES : CASES) * (seeds ? strtoull(seeds, NULL, 0) : 1);
	zero_job *job = open_job("stage=3");
	int world = zero_world(job), rank = zero_rank(job);

	if (number)
		cases = strtoull(number, NULL, 0);
	make_noise(job);
	ok(zero_close(job));
	check(world <= WORLD_MAX, "%d ranks", world);
	if (one) {
		run_case(strtoull(one, NULL, 0), world, rank);
		return 0;
	}
	for (uint64_t i = 0; i < cases; i++)
		digest = mixed(digest + run_case(mixed(seed ^ mixed(i + 1)), world, rank));
	/* run.sh compares it between worlds of as many ranks that share memory in other ways. */
	if (rank == 0)
		printf("world %d of %s: %016llx\n", world, on_gpu() ? "GPUs" : "CPUs",
		       (unsigned long long)digest);
	return 0;
}

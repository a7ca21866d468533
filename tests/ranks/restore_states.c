/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Named states of the random model: each tensor has some, of each way to divide them. Their values
 * follow from the tensor, the place and the number of steps alone.
 */
#include "restore.h"

enum { GUARD = 64 };

static const struct {
	const char *name;
	zero_dtype dtype;
	size_t block;
} specs[STATES] = {{"exp_avg", ZERO_F32, 0},
		   {"codes", ZERO_U8, 1},
		   {"scale \xc3\xa4", ZERO_BF16, 256},
		   {"n", ZERO_I64, ZERO_STATE_WHOLE}};

static bool has_state(const struct model *model, int t, int s)
{
	return model->tensors[t].tied < 0 && mixed(model->seed + (uint64_t)(t * STATES + s)) % 3;
}

/* The values that this rank keeps, from the cuts. */
static size_t kept(const struct model *model, int t, int s, size_t *first)
{
	zero_team *team = model->teams[model->group_of[t]];
	int place = team ? zero_team_rank(team) : zero_rank(model->job);
	size_t cuts[65], block = specs[s].block ? specs[s].block : 1;

	*first = 0;
	if (place < 0)
		return 0;
	if (block == ZERO_STATE_WHOLE)
		return 1;
	ok(zero_param_cuts(model->params[t], cuts));
	if (cuts[place] == cuts[place + 1])
		return 0;
	*first = cuts[place] / block;
	return (cuts[place + 1] - 1) / block + 1 - *first;
}

/* Writes the values for a number of steps, with guards before and after them. */
static void fill(const struct model *model, int t, int s, uint64_t steps)
{
	size_t first, size = zero_dtype_size(specs[s].dtype);
	size_t bytes = kept(model, t, s, &first) * size;
	uint64_t seed = mixed(model->seed ^ mixed(steps * 1024 + (uint64_t)(t * STATES + s)));
	unsigned char *data = model->states[t][s];

	memset(data - GUARD, 0xa5, GUARD);
	for (size_t i = 0; i < bytes; i++)
		data[i] = (unsigned char)mixed(seed + first * size + i);
	memset(data + bytes, 0xa5, GUARD);
}

void fill_states(const struct model *model, uint64_t steps)
{
	for (int t = 0; t < TENSORS; t++)
		for (int s = 0; s < STATES; s++)
			if (has_state(model, t, s))
				fill(model, t, s, steps);
}

void check_states(const struct model *model, uint64_t steps)
{
	for (int t = 0; t < TENSORS; t++)
		for (int s = 0; s < STATES; s++) {
			size_t first, bytes;
			unsigned char *got;

			if (!has_state(model, t, s))
				continue;
			bytes = kept(model, t, s, &first) * zero_dtype_size(specs[s].dtype) +
				2 * (size_t)GUARD;
			got = malloc(bytes);
			check(got, "no memory");
			memcpy(got, model->states[t][s] - GUARD, bytes);
			fill(model, t, s, steps);
			for (size_t i = 0; i < bytes; i++)
				check(got[i] == model->states[t][s][(ptrdiff_t)i - GUARD],
				      "byte %td of %zu of state '%s' of tensor %d",
				      (ptrdiff_t)i - GUARD, bytes, specs[s].name, t);
			free(got);
		}
}

double named_bytes(const struct model *model)
{
	double bytes = 0;

	for (int t = 0; t < TENSORS; t++)
		for (int s = 0; s < STATES; s++)
			if (has_state(model, t, s) && specs[s].block != ZERO_STATE_WHOLE)
				bytes += (double)(model->tensors[t].count *
						  zero_dtype_size(specs[s].dtype));
	return bytes;
}

static void register_one(struct model *model, int t, int s)
{
	size_t first, bytes = kept(model, t, s, &first) * zero_dtype_size(specs[s].dtype);
	/* A tied tensor's states may be registered by its second name. */
	bool tied = s == STATES - 1 && model->tensors[TENSORS - 1].tied == t;
	void *data;

	if (on_gpu() && !s)
		ok(zero_device_alloc(model->job, bytes + 2 * (size_t)GUARD, &data));
	else
		data = malloc(bytes + 2 * (size_t)GUARD);
	check(data, "no memory");
	model->states[t][s] = (unsigned char *)data + GUARD;
	ok(zero_state_register(model->params[tied ? TENSORS - 1 : t],
			       &(zero_state_spec){.name = specs[s].name,
						  .dtype = specs[s].dtype,
						  .block = specs[s].block,
						  .data = bytes ? model->states[t][s] : NULL}));
}

void register_states(struct model *model)
{
	int odd = zero_rank(model->job) & 1;

	/* The order may differ between ranks. */
	for (int i = 0; i < TENSORS * STATES; i++) {
		int at = odd ? TENSORS * STATES - 1 - i : i;

		if (has_state(model, at / STATES, at % STATES))
			register_one(model, at / STATES, at % STATES);
	}
}

void free_states(struct model *model)
{
	for (int t = 0; t < TENSORS; t++)
		for (int s = 0; s < STATES; s++) {
			/* Memory of the device is the job's. */
			if (model->states[t][s] && (!on_gpu() || s))
				free(model->states[t][s] - GUARD);
			model->states[t][s] = NULL;
		}
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* The first tensor that has state `s`. */
static int find(const struct model *model, int s)
{
	for (int t = 0; t < TENSORS; t++)
		if (has_state(model, t, s) && model->tensors[t].count)
			return t;
	check(false, "no tensor has state %d", s);
	return 0;
}

static void again(struct model *model, int t, int s, zero_dtype dtype, size_t block)
{
	ok(zero_state_unregister(model->params[t], specs[s].name));
	ok(zero_state_register(model->params[t], &(zero_state_spec){.name = specs[s].name,
								    .dtype = dtype,
								    .block = block,
								    .data = model->states[t][s]}));
}

/* States that differ from those of the checkpoint. */
static void other_states(struct model *model, const char *dir)
{
	int t = find(model, 2), whole = find(model, 3);
	zero_state_spec extra = {
		.name = "extra", .dtype = ZERO_U8, .block = ZERO_STATE_WHOLE, .data = &extra};

	again(model, t, 2, ZERO_F16, 256);
	fails(zero_restore(model->job, dir, NULL), ZERO_E_FORMAT, "is bf16; the one");
	again(model, t, 2, ZERO_BF16, 512);
	fails(zero_restore(model->job, dir, NULL), ZERO_E_FORMAT,
	      "for each 256 elements, the one that is registered for each 512");
	again(model, t, 2, ZERO_BF16, 256);
	again(model, whole, 3, ZERO_I64, 1 << 30);
	fails(zero_restore(model->job, dir, NULL), ZERO_E_FORMAT, "for each 0 elements");
	again(model, whole, 3, ZERO_I64, ZERO_STATE_WHOLE);
	ok(zero_state_register(model->params[t], &extra));
	fails(zero_restore(model->job, dir, NULL), ZERO_E_FORMAT, "has no state 'extra'");
	ok(zero_state_unregister(model->params[t], "extra"));
	ok(zero_state_unregister(model->params[t], specs[2].name));
	fails(zero_restore(model->job, dir, NULL), ZERO_E_FORMAT, "which is not registered");
	/* Ranks that do not agree on a name. */
	extra.name = zero_rank(model->job) ? "extra" : "other";
	ok(zero_state_register(model->params[t], &extra));
	if (zero_world(model->job) > 1) {
		fails(zero_restore(model->job, dir, NULL), ZERO_E_ORDER, "named states");
		fails(zero_save(model->job, dir, NULL), ZERO_E_ORDER, "named states");
	}
}

static void other_specs(struct model *model)
{
	int t = find(model, 0);
	char name[ZERO_STATE_NAME_MAX + 2] = "";
	const struct {
		zero_state_spec spec;
		const char *words;
	} bad[] = {{{"", ZERO_F32, 0, name}, "1 to 64 bytes"},
		   {{"a/b", ZERO_F32, 0, name}, "no slash"},
		   {{NULL, ZERO_F32, 0, name}, "has the name ''"},
		   {{name, ZERO_F32, 0, name}, "1 to 64 bytes"},
		   {{"x", ZERO_DTYPE_PARAM, 0, name}, "is no type"},
		   {{"x", ZERO_F32, 255, name}, "a block of 255"},
		   {{"x", ZERO_F32, ZERO_STATE_WHOLE, NULL}, "but no data"},
		   {{specs[0].name, ZERO_F32, 0, name}, "registered already"}};

	memset(name, 'x', sizeof(name) - 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		if (bad[i].spec.data || model->member[model->group_of[t]])
			fails(zero_state_register(model->params[t], &bad[i].spec), ZERO_E_INVALID,
			      bad[i].words);
	fails(zero_state_unregister(model->params[t], "x"), ZERO_E_INVALID, "has no state 'x'");
	fails(zero_state_unregister(model->params[t], NULL), ZERO_E_INVALID, "has no state ''");
}

void states(struct model *model, const char *dir)
{
	zero_group *group;
	zero_param *param;
	size_t cut;

	open_model(model, 2, "stage=2");
	other_specs(model);
	other_states(model, dir);
	close_model(model);
	/* A program that registers none reads the rest. */
	open_model(model, 3, "stage=1");
	fill_states(model, 7);
	for (int t = 0; t < TENSORS; t++)
		for (int s = 0; s < STATES; s++)
			if (has_state(model, t, s))
				ok(zero_state_unregister(model->params[t], specs[s].name));
	ok(zero_restore(model->job, dir, NULL));
	check_states(model, 7);
	close_model(model);
	model->job = open_job("stage=3");
	group = new_group(model->job, "g");
	param = new_param(group, "p", ZERO_F32, 1, false);
	fails(zero_state_register(param, &(zero_state_spec){"x", ZERO_F32, 0, &group}),
	      ZERO_E_STATE, "after zero_layout");
	fails(zero_param_cuts(param, &cut), ZERO_E_STATE, "no cuts before zero_layout");
	close_model(model);
}

/* ---- a program that takes its own steps ------------------------------------------------------ */

/* A step that changes every element that this rank owns. */
static void own_step(struct model *model, uint64_t steps)
{
	ok(zero_step_begin(model->job, model->groups, GROUPS));
	for (int t = 0; t < TENSORS; t++) {
		size_t first, count, owned_first, owned;
		float *sums;
		void *data;

		if (!model->tensors[t].trainable || model->tensors[t].tied >= 0)
			continue;
		ok(zero_shard(model->params[t], &data, &first, &count));
		ok(zero_gradient_shard(model->params[t], &sums, &owned_first, &owned));
		if (!owned)
			continue;
		memset((char *)data +
			       (owned_first - first) * zero_dtype_size(model->tensors[t].dtype),
		       (int)(steps % 64), owned * zero_dtype_size(model->tensors[t].dtype));
	}
	ok(zero_step_end(model->job, NULL));
}

static void save_own(struct model *model, const char *dir, uint64_t steps)
{
	ok(zero_save(model->job, dir, &(zero_save_options){.step = steps}));
}

static void restore_own(struct model *model, const char *dir, const char *name, uint64_t steps)
{
	zero_checkpoint_info info;
	char path[1200];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	ok(zero_restore(model->job, path, &info));
	check(info.step == steps, "step %d, not %d", (int)info.step, (int)steps);
	zero_checkpoint_info_free(&info);
}

void own_steps(const char *dir)
{
	struct model model = {0};
	struct digests plain, got, stepped;

	make_tensors(&model, test_seed() ^ 13, 5000);
	model.tensors[2].dtype = ZERO_BF16;
	model.tensors[2].trainable = true;
	model.tensors[TENSORS - 1].tied = -1;
	open_model(&model, 4, "stage=1");
	load_values(&model);
	plain = digest(&model);
	save_own(&model, dir, 0);
	own_step(&model, 41);
	stepped = digest(&model);
	save_own(&model, dir, 41);
	own_step(&model, 42);
	restore_own(&model, dir, "latest", 41);
	got = digest(&model);
	expect_same(&model, &got, &stepped, "of the latest step");
	restore_own(&model, dir, "step-000000000", 0);
	got = digest(&model);
	expect_same(&model, &got, &plain, "of no step");
	close_model(&model);
	/* Another job may then leave the steps to zero_step, whose masters follow the program's. */
	open_model(&model, 5, "stage=3");
	restore_own(&model, dir, "latest", 41);
	got = digest(&model);
	expect_same(&model, &got, &stepped, "in another job");
	train(&model, 1);
	own_step(&model, 43);
	stepped = digest(&model);
	/* The program may count them with its own. */
	ok(zero_save(model.job, dir, &(zero_save_options){.step = 42}));
	restore_own(&model, dir, "latest", 42);
	got = digest(&model);
	expect_same(&model, &got, &stepped, "of both kinds of steps");
	ok(zero_save(model.job, dir, NULL));
	restore_own(&model, dir, "latest", 42);
	close_model(&model);
}

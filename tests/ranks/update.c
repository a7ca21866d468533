/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_param_changed: what it refuses, and with check=1 an undeclared change is an error on all
 * ranks, and a declared one is not. What values must be is for the property test.
 */
#include <math.h>

#include "ranks.h"
#include "reference.h"

enum { FIRST, LARGE, TIED, FIXED, TABLE, ONE, EMPTY, PARAMS, COUNT_MAX = 3001 };

static const char *const names[] = {"first", "large", "tied", "fixed", "table", "one", "empty"};
static const size_t counts[] = {777, COUNT_MAX, COUNT_MAX, 130, 999, 1, 0};

struct model {
	zero_job *job;
	zero_team *team; /* NULL: all ranks */
	zero_group *group, *twin;
	zero_param *params[PARAMS], *twins[PARAMS];
	unsigned char *values[PARAMS]; /* as they are stored */
	zero_dtype dtype, as;
	uint64_t random;
	int world, rank; /* of the team */
	bool member;
};

static bool is_real(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static zero_dtype dtype_of(const struct model *model, int p)
{
	return p == TABLE ? ZERO_I64 : model->dtype;
}

static zero_dtype gathered_as(const struct model *model, int p)
{
	zero_dtype dtype = dtype_of(model, p);

	return model->as != ZERO_DTYPE_PARAM && is_real(dtype) ? model->as : dtype;
}

/* An alias has the values of its target. */
static int target(int p)
{
	return p == TIED ? LARGE : p;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Magnitudes are very different, so that casts round, overflow and underflow. */
static void random_values(uint64_t *random, zero_dtype dtype, void *out, size_t count)
{
	size_t size = zero_dtype_size(dtype);

	for (size_t i = 0; i < count; i++) {
		uint64_t bits = draw(random);
		double value = ldexp((double)signed_unit(bits), (int)(bits % 24) - 12);

		if (is_real(dtype))
			ref_narrow(dtype, bits % 97 ? value : ldexp(value, 20),
				   (char *)out + i * size);
		else
			memcpy((char *)out + i * size, &bits, size);
	}
}

static void check_values(const struct model *model, const char *what, int p, const void *got,
			 zero_dtype as, size_t first, size_t count)
{
	static unsigned char want[COUNT_MAX * 8];
	zero_dtype dtype = dtype_of(model, p);
	size_t at;

	ref_cast(as, want, dtype, model->values[target(p)] + first * zero_dtype_size(dtype), count);
	at = ref_difference(as, got, want, count);
	check(at == count, "%s of '%s', %s as %s: element %zu, of %zu from %zu on, differs", what,
	      names[p], zero_dtype_name(dtype), zero_dtype_name(as), at, count, first);
}

static void check_gathered(const struct model *model)
{
	for (int p = 0; p < PARAMS; p++)
		check_values(model, "what is gathered", p, zero_data(model->params[p]),
			     gathered_as(model, p), 0, counts[p]);
}

/* ---- models ---------------------------------------------------------------------------------- */

static zero_group *make_group(struct model *model, const char *name, zero_param **params)
{
	zero_group *group;

	ok(zero_group_new(model->job, name, model->team, &group));
	for (int p = 0; p < PARAMS; p++) {
		char text[32];
		zero_param_spec spec = {.name = text, .ndim = 1, .shape = &counts[p]};

		snprintf(text, sizeof(text), "%s.%s", name, names[p]);
		spec.dtype = dtype_of(model, p);
		spec.trainable = is_real(spec.dtype) && p != FIXED;
		spec.alias_of = p == TIED ? params[LARGE] : NULL;
		ok(zero_param_new(group, &spec, &params[p]));
	}
	return group;
}

/* With more than two ranks, the team is all ranks but the first. */
static struct model open_model(const char *settings, zero_dtype dtype, bool in_team, uint64_t seed)
{
	struct model model = {.job = open_job("%s", settings), .dtype = dtype, .random = seed};
	int world = zero_world(model.job), ranks[16];

	model.world = world;
	model.rank = zero_rank(model.job);
	model.member = true;
	if (in_team && world > 2) {
		for (int i = 1; i < world; i++)
			ranks[i - 1] = i;
		ok(zero_team_new(model.job, ranks, (size_t)world - 1, &model.team));
		model.world = world - 1;
		model.rank--;
		model.member = model.rank >= 0;
	}
	model.group = make_group(&model, "u", model.params);
	model.twin = make_group(&model, "l", model.twins);
	ok(zero_layout(model.job));
	for (int p = 0; p < PARAMS; p++) {
		zero_source source;

		if (p == TIED)
			continue;
		model.values[p] = malloc(counts[p] * 8 + 1);
		check(model.values[p], "no memory");
		random_values(&model.random, dtype_of(&model, p), model.values[p], counts[p]);
		source = zero_from_all(model.values[p]);
		ok(zero_load(model.params[p], &source));
		ok(zero_load(model.twins[p], &source));
	}
	return model;
}

static void close_model(struct model *model)
{
	for (int p = 0; p < PARAMS; p++)
		free(model->values[p]);
	ok(zero_close(model->job));
}

/* Converts a rank of the team to a rank of the job. */
static int job_rank(const struct model *model, int rank)
{
	return model->team ? rank + 1 : rank;
}

/* ---- updates --------------------------------------------------------------------------------- */

/* Rank `by` writes new values. All ranks compute what they become. */
static void change(struct model *model, int p, int rank)
{
	static unsigned char given[COUNT_MAX * 8];
	zero_dtype as = gathered_as(model, p);

	random_values(&model->random, as, given, counts[p]);
	if (model->rank == rank && counts[p])
		memcpy(zero_data(model->params[p]), given, counts[p] * zero_dtype_size(as));
	ref_cast(dtype_of(model, p), model->values[target(p)], as, given, counts[p]);
}

static void add_gradient(zero_param *param, int p, uint64_t seed)
{
	float *gradient = counts[p] ? zero_gradient(param) : NULL;

	check(gradient || !counts[p], "%s", zero_last_error());
	for (size_t i = 0; i < counts[p]; i++)
		gradient[i] += signed_unit(mixed(seed + (uint64_t)p * COUNT_MAX + i));
}

/* ---- refusals -------------------------------------------------------------------------------- */

static void refusals(void)
{
	struct model model = open_model("stage=3", ZERO_F32, false, 1);
	zero_param *param = model.params[LARGE];
	int last = model.world - 1;

	fails(zero_param_changed(param, 0), ZERO_E_STATE, "'u' is not gathered");
	ok(zero_prefetch(&model.group, 1, ZERO_BF16));
	fails(zero_param_changed(param, 0), ZERO_E_STATE, "'u' is not gathered");
	ok(zero_gather(model.group, ZERO_BF16));
	fails(zero_param_changed(param, model.world), ZERO_E_INVALID, "not in the team");
	fails(zero_param_changed(param, -1), ZERO_E_INVALID, "not in the team");
	/* One rank has released the group. */
	if (model.rank == last)
		ok(zero_release(model.group));
	fails(zero_param_changed(param, 0), ZERO_E_STATE, "'u.large'");
	check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	if (model.rank != last) {
		model.as = ZERO_BF16;
		check_gathered(&model);
		ok(zero_release(model.group));
	}
	ok(zero_gather(model.group, ZERO_DTYPE_PARAM));
	if (model.world > 1)
		fails(zero_param_changed(param, model.rank == last), ZERO_E_ORDER, "'u.large'");
	close_model(&model);
}

static void refusals_of_teams(void)
{
	struct model model = open_model("stage=3", ZERO_F32, true, 1);

	if (!model.member) {
		fails(zero_param_changed(model.params[ONE], 1), ZERO_E_INVALID, "not in its team");
	} else if (model.team) {
		ok(zero_gather(model.group, ZERO_DTYPE_PARAM));
		fails(zero_param_changed(model.params[ONE], 0), ZERO_E_INVALID, "rank 0 is not in");
		ok(zero_release(model.group));
	}
	close_model(&model);
}

static void before_the_layout(void)
{
	struct model model = {.job = open_job("stage=3"), .dtype = ZERO_F32};

	model.group = make_group(&model, "u", model.params);
	fails(zero_param_changed(model.params[ONE], 0), ZERO_E_STATE,
	      "zero_layout has not been called");
	close_model(&model);
}

/* ---- changes that are not declared ----------------------------------------------------------- */

/* Flips a random bit of the parameter. */
static void change_secretly(struct model *model, int p, int by)
{
	size_t bits = 8 * counts[p] * zero_dtype_size(gathered_as(model, p));
	size_t bit = below(&model->random, bits);

	if (model->rank == by)
		((unsigned char *)zero_data(model->params[p]))[bit / 8] ^=
			(unsigned char)(1 << bit % 8);
}

/* The release fails on the rank that changed the parameter, and on those that share its memory. */
static void release_changed(struct model *model, int by, const char *name)
{
	zero_status status = zero_release(model->group);

	check(status == (model->rank == by ? ZERO_E_STATE : status), "not found");
	check(!status || (status == ZERO_E_STATE && strstr(zero_last_error(), name)), "%s",
	      zero_last_error());
	check(!zero_data(model->params[ONE]), "not released");
}

/* The next operation fails on all ranks, and the one after it succeeds. */
static void expect_told(struct model *model, int next, const char *name)
{
	double value = 1;
	zero_adamw adamw = {.lr = 0.1F, .eps = 1e-8F};

	if (next == 0)
		fails(zero_agree(model->job, NULL), ZERO_E_STATE, name);
	else if (next == 1)
		fails(zero_mean(model->job, &value, 1, 1), ZERO_E_STATE, name);
	else if (next == 2)
		fails(zero_gather(model->twin, ZERO_DTYPE_PARAM), ZERO_E_STATE, name);
	else if (next == 3)
		fails(zero_step(model->job, &adamw, NULL), ZERO_E_STATE, name);
	else if (next == 4)
		fails(zero_load(model->twins[ONE], &(zero_source){.kind = ZERO_FROM_CONSTANT}),
		      ZERO_E_STATE, name);
	check(strstr(zero_last_error(), "zero_param_changed"), "%s", zero_last_error());
	check(model->world == 1 || !strncmp(zero_last_error(), "rank ", 5), "%s",
	      zero_last_error());
	check(!zero_data(model->twins[LARGE]), "gathered after an error");
	ok(zero_agree(model->job, NULL));
	ok(zero_gather(model->twin, ZERO_DTYPE_PARAM));
	ok(zero_release(model->twin));
}

static void undeclared(int stage, zero_dtype as, uint64_t seed)
{
	char settings[64];
	struct model model;

	snprintf(settings, sizeof(settings), "stage=%d check=1", stage);
	model = open_model(settings, ZERO_F32, false, seed);
	model.as = as;
	for (int round = 0; round < 15; round++) {
		int by = round % model.world, p = round % EMPTY, uses = 1 + round % 2;
		char name[32];

		snprintf(name, sizeof(name), "'u.%s'", names[target(p)]);
		if (round % 4 == 3)
			ok(zero_prefetch(&model.group, 1, as));
		for (int use = 0; use < uses; use++)
			ok(zero_gather(model.group, as));
		/* A declared change comes first. */
		if (round % 3) {
			change(&model, p, by);
			ok(zero_param_changed(model.params[p], job_rank(&model, by)));
		}
		change_secretly(&model, p, by);
		if (uses == 2)
			ok(zero_release(model.group));
		release_changed(&model, by, name);
		expect_told(&model, round % 5, name);
	}
	/* The job can be closed without a release. */
	ok(zero_gather(model.group, as));
	change_secretly(&model, ONE, model.world - 1);
	release_changed(&model, model.world - 1, "'u.one'");
	close_model(&model);
}

/* A training with all kinds of operations has no undeclared change. */
static void no_alarm(int stage, zero_dtype dtype, zero_dtype as)
{
	const zero_adamw adamw = {.lr = 0.01F, .eps = 1e-8F, .weight_decay = 0.1F};
	char settings[64];
	struct model model;

	snprintf(settings, sizeof(settings), "stage=%d check=1", stage);
	model = open_model(settings, dtype, false, 1);
	model.as = as;
	for (int step = 0; step < 10; step++) {
		zero_group *both[] = {model.group, model.twin};

		ok(zero_prefetch(both, 2, as));
		ok(zero_gather(model.group, as));
		ok(zero_gather(model.group, as));
		ok(zero_release(model.group));
		if (step % 3 == 1) {
			change(&model, LARGE, step % model.world);
			change(&model, ONE, step % model.world);
			ok(zero_param_changed(model.params[TIED], step % model.world));
			ok(zero_param_changed(model.params[ONE], step % model.world));
		}
		ok(zero_release(model.group));
		if (step % 2)
			ok(zero_gather(model.twin, as));
		add_gradient(model.params[LARGE], LARGE, (uint64_t)step);
		ok(zero_reduce(model.group));
		ok(zero_release(model.twin));
		ok(zero_step(model.job, &adamw, NULL));
	}
	close_model(&model);
}

/* ---------------------------------------------------------------------------------------------- */

int main(void)
{
	uint64_t seed = test_seed();

	for (int stage = 0; stage <= 3; stage++) {
		undeclared(stage, stage % 2 ? ZERO_BF16 : ZERO_DTYPE_PARAM, draw(&seed));
		no_alarm(stage, ZERO_F32, ZERO_DTYPE_PARAM);
		no_alarm(stage, ZERO_BF16, ZERO_F32);
	}
	before_the_layout();
	refusals();
	refusals_of_teams();
	return 0;
}

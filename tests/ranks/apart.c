/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that differ: one closes the job early, or makes the same call with other values; a file
 * that is replaced under its name; a forked child. No rank hangs, and no values are mixed silently.
 */
#include <sys/wait.h>

#include "ranks.h"

struct model {
	zero_job *job;
	zero_group *group;
	zero_param *param;
};

static struct model open_model(void)
{
	struct model model = {.job = open_job("stage=3")};

	model.group = new_group(model.job, "layer");
	model.param = new_param(model.group, "w", ZERO_F32, 1000, true);
	ok(zero_layout(model.job));
	return model;
}

/* The last rank closes the job while the others begin a gather. */
static void one_leaves(void)
{
	struct model model = open_model();

	if (zero_rank(model.job) < zero_world(model.job) - 1) {
		fails(zero_gather(model.group, ZERO_DTYPE_PARAM), ZERO_E_ORDER, "'zero_close'");
		check(strstr(zero_last_error(), "gather of group 'layer'"), "%s",
		      zero_last_error());
	}
	ok(zero_close(model.job));
}

/* zero_close does not replace a rank's last error. */
static void error_outlives_close(void)
{
	struct model model = open_model();
	bool leaves = zero_rank(model.job) == 0;
	zero_param *twice;
	zero_param_spec spec = {.name = "late", .dtype = ZERO_F32};

	if (leaves)
		fails(zero_param_new(model.group, &spec, &twice), ZERO_E_STATE,
		      "before zero_layout");
	else
		fails(zero_gather(model.group, ZERO_DTYPE_PARAM), ZERO_E_ORDER, "'zero_close'");
	ok(zero_close(model.job));
	check(!leaves || strstr(zero_last_error(), "before zero_layout"), "%s", zero_last_error());
}

static void other_values(void)
{
	struct model model = open_model();
	zero_source source = zero_from_normal(0, 1, (uint64_t)zero_rank(model.job));

	fails(zero_load(model.param, &source), ZERO_E_ORDER, "seed 0");
	ok(zero_close(model.job));
}

static void other_step(void)
{
	struct model model = open_model();
	zero_adamw adamw = {.lr = zero_rank(model.job) ? 0.5F : 0.25F, .eps = 1e-8F};

	fails(zero_step(model.job, &adamw, NULL), ZERO_E_ORDER, "lr 0.25");
	ok(zero_close(model.job));
}

static void refusals(void)
{
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "twin");
	zero_adamw adamw = {.lr = 1};

	fails(zero_group_new(job, "twin", NULL, &group), ZERO_E_INVALID, "'twin' exists already");
	ok(zero_layout(job));
	fails(zero_step(job, &adamw, NULL), ZERO_E_INVALID, "eps > 0");
	check(zero_file_count(NULL) == 0 && !zero_file_tensor(NULL, 0) &&
		      !zero_file_find(NULL, "w"),
	      "no file");
	ok(zero_close(job));
}

/* COLLECTIVE. Checks every element of the parameter. */
static void check_value(const struct model *model, float value)
{
	ok(zero_gather(model->group, ZERO_DTYPE_PARAM));
	for (size_t i = 0; i < 1000; i++)
		check(((float *)zero_data(model->param))[i] == value, "element %zu", i);
	ok(zero_release(model->group));
}

/* A file that is replaced under its name is opened again. */
static void file_replaced(void)
{
	struct model model = open_model();
	char path[1100];

	snprintf(path, sizeof(path), "%s", file_path("replaced.safetensors"));
	for (int value = 1; value < 4; value++) {
		zero_source source = zero_from_constant(value);
		zero_file *file;

		ok(zero_load(model.param, &source));
		ok(zero_export(model.job, path));
		source = zero_from_constant(-1);
		ok(zero_load(model.param, &source));
		ok(zero_file_open(model.job, path, &file));
		source = zero_from_file(zero_file_find(file, "w"));
		ok(zero_load(model.param, &source));
		zero_file_close(file);
		check_value(&model, (float)value);
	}
	ok(zero_close(model.job));
}

/* A forked child may exit with or without zero_close. */
static void child_exits(void)
{
	struct model model = open_model();
	int status;
	pid_t child;

	ok(zero_agree(model.job, NULL));
	child = fork();
	if (!child) {
		zero_close(model.job);
		exit(0);
	}
	check(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status),
	      "child ended with %#x", status);
	ok(zero_gather(model.group, ZERO_DTYPE_PARAM));
	ok(zero_close(model.job));
}

int main(void)
{
	zero_job *job = open_job("stage=3");
	int world = zero_world(job);

	ok(zero_close(job));
	refusals();
	file_replaced();
	child_exits();
	if (world == 1)
		return 0;
	one_leaves();
	error_outlives_close();
	other_values();
	other_step();
	return 0;
}

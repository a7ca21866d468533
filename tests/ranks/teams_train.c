/* SPDX-License-Identifier: Apache-2.0 */
/* Training over teams: the same bits at every stage and however many ranks share memory, as a
   reference in f64 has them; and what is exported at the end. */
#include <fcntl.h>
#include <math.h>

#include "teams.h"

enum { STEPS = 3 };

struct reference {
	double p[PARAMS_MAX][COUNT_MAX], m[PARAMS_MAX][COUNT_MAX], v[PARAMS_MAX][COUNT_MAX];
};

static struct reference reference;

const zero_adamw adamw = {.lr = 0.01F,
			  .beta1 = 0.9F,
			  .beta2 = 0.95F,
			  .eps = 1e-8F,
			  .weight_decay = 0.1F,
			  .clip = 0.5F};

/* Sums of a few are exact where they are small: a multiple of 2^-23 below 2. */
static float gradient(size_t p, int step, int from, size_t i)
{
	uint64_t at = ((uint64_t)p * 64 + (uint64_t)step) * 64 + (uint64_t)from;

	/* Group 2 has none in the second step. */
	if (group_of(p) == 2 && step == 1)
		return 0;
	return signed_unit(mixed(seed + mixed(at * COUNT_MAX + i)));
}

/* Summed over the team, divided by all ranks. */
static double mean_gradient(size_t p, int step, size_t i)
{
	const struct shape *shape = &shapes[group_of(p)];
	double sum = 0;

	for (size_t m = 0; m < shape->count; m++)
		sum += (double)gradient(p, step, shape->members[m], i);
	return sum / world;
}

static double reference_norm(int step)
{
	double norm2 = 0;

	for (size_t p = 0; p < groups * PER_GROUP; p++)
		for (size_t i = 0; is_trained(p) && i < count_of(p); i++)
			norm2 += pow(mean_gradient(p, step, i), 2);
	return sqrt(norm2);
}

static void reference_step(int step, double norm)
{
	double scale = norm > (double)adamw.clip ? (double)adamw.clip / norm : 1;

	for (size_t p = 0; p < groups * PER_GROUP; p++)
		for (size_t i = 0; is_trained(p) && i < count_of(p); i++) {
			double g = scale * mean_gradient(p, step, i), *x = &reference.p[p][i];
			double *m = &reference.m[p][i], *v = &reference.v[p][i];

			*m = adamw.beta1 * *m + (1 - (double)adamw.beta1) * g;
			*v = adamw.beta2 * *v + (1 - (double)adamw.beta2) * g * g;
			*x -= (double)adamw.lr * (double)adamw.weight_decay * *x;
			*x -= (double)adamw.lr * (*m / (1 - pow(adamw.beta1, step + 1))) /
			      (sqrt(*v / (1 - pow(adamw.beta2, step + 1))) + (double)adamw.eps);
		}
}

static void begin_reference(void)
{
	memset(&reference, 0, sizeof(reference));
	for (size_t p = 0; p < groups * PER_GROUP; p++)
		for (size_t i = 0; i < count_of(p); i++) {
			float value = initial(p, i);
			uint16_t half;

			if (dtype_of(p) == ZERO_BF16) {
				element(p, i, &half);
				value = from_bf16(half);
			}
			reference.p[p][i] = (double)value;
		}
}

static void backward(struct model *model, int step)
{
	for (size_t g = groups; g-- > 0;) {
		if (!is_member(g, rank) || (g == 2 && step == 1))
			continue;
		for (size_t p = g * PER_GROUP; p < (g + 1) * PER_GROUP; p++) {
			float *sums = is_trained(p) ? zero_gradient(model->params[p]) : NULL;

			check(sums || !is_trained(p), "%s", zero_last_error());
			for (size_t i = 0; sums && i < count_of(p); i++)
				sums[i] += gradient(p, step, rank, i);
		}
		/* The others are reduced by the step. */
		if (g % 3)
			ok(zero_reduce(model->groups[g]));
	}
}

static void check_trained(const struct model *model, size_t p)
{
	double slack = dtype_of(p) == ZERO_BF16 ? 0x1p-8 : 0;

	for (size_t i = 0; is_trained(p) && i < count_of(p); i++) {
		const void *data = zero_data(model->params[p]);
		double want = reference.p[p][i];
		double got = dtype_of(p) == ZERO_BF16
				     ? (double)from_bf16(((const uint16_t *)data)[i])
				     : (double)((const float *)data)[i];

		check(fabs(got - want) <= 1e-5 + slack * fabs(want),
		      "parameter %zu, element %zu: %.9g, not %.9g", p, i, got, want);
	}
}

/* What this rank can gather, in `bytes`; if `against`, it is what the reference says. */
static void take_values(struct model *model, char *bytes, bool against)
{
	for (size_t g = 0; g < groups; g++) {
		if (!is_member(g, rank))
			continue;
		ok(zero_gather(model->groups[g], ZERO_DTYPE_PARAM));
		for (size_t p = g * PER_GROUP; p < (g + 1) * PER_GROUP; p++) {
			memcpy(bytes + image_at[p], zero_data(model->params[p]), bytes_of(p));
			if (against)
				check_trained(model, p);
		}
		ok(zero_release(model->groups[g]));
	}
}

/* The file has every tensor, whoever held it; this rank's own are those that it has. */
static void check_export(struct model *model, const char *bytes)
{
	char path[1024];
	zero_file *file;

	snprintf(path, sizeof(path), "%s", file_path("teams.safetensors"));
	ok(zero_export(model->job, path));
	ok(zero_file_open(model->job, path, &file));
	check(zero_file_count(file) == groups * PER_GROUP, "%zu tensors", zero_file_count(file));
	for (size_t p = 0; p < groups * PER_GROUP; p++) {
		const zero_tensor *tensor = zero_file_find(file, zero_param_name(model->params[p]));
		static char got[COUNT_MAX * 4];
		int fd;

		check(tensor, "no '%s'", zero_param_name(model->params[p]));
		check(tensor->dtype == dtype_of(p) && tensor->shape[0] == count_of(p), "'%s'",
		      tensor->name);
		fd = open(tensor->path, O_RDONLY);
		check(fd >= 0 && pread(fd, got, bytes_of(p), (off_t)tensor->offset) ==
					 (ssize_t)bytes_of(p),
		      "'%s'", tensor->name);
		close(fd);
		for (size_t i = 0; is_trained(p) && dtype_of(p) == ZERO_F32 && i < count_of(p); i++)
			check(fabs((double)((float *)(void *)got)[i] - reference.p[p][i]) <= 1e-5,
			      "'%s', element %zu", tensor->name, i);
		check(!is_member(group_of(p), rank) ||
			      !memcmp(got, bytes + image_at[p], bytes_of(p)),
		      "'%s' is another in the file", tensor->name);
	}
	zero_file_close(file);
}

static void train(const char *settings, char *bytes, double norms[STEPS], bool against)
{
	struct model model;
	uint64_t random = seed;

	begin(&model, settings);
	write_image(model.job);
	load_each(&model, below(&random, 4), &random);
	begin_reference();
	for (int step = 0; step < STEPS; step++) {
		zero_step_result result;

		backward(&model, step);
		ok(zero_step(model.job, &adamw, &result));
		norms[step] = result.grad_norm;
		if (against) {
			double norm = reference_norm(step);

			check(fabs(result.grad_norm - norm) <= 1e-6 * norm,
			      "%s, step %d: norm %.9g, not %.9g", settings, step, result.grad_norm,
			      norm);
			reference_step(step, norm);
		}
		take_values(&model, bytes, against);
	}
	if (against)
		check_export(&model, bytes);
	ok(zero_close(model.job));
}

void training(void)
{
	static const char *const others[] = {
		"stage=1",         "stage=2",         "stage=3",         "stage=0 share=1",
		"stage=1 share=2", "stage=2 share=1", "stage=3 share=1", "stage=3 share=2"};
	size_t bytes = image_at[groups * PER_GROUP];
	char *want = calloc(1, bytes), *got = calloc(1, bytes);
	double norms[STEPS], now[STEPS];

	check(want && got, "no memory");
	train("stage=0", want, norms, true);
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		memset(got, 0, bytes);
		train(others[i], got, now, i == 2);
		check(!memcmp(norms, now, sizeof(norms)), "%s: other norms", others[i]);
		for (size_t p = 0; p < groups * PER_GROUP; p++)
			check(!memcmp(got + image_at[p], want + image_at[p], bytes_of(p)),
			      "%s: parameter %zu has other bits", others[i], p);
	}
	free(want);
	free(got);
}

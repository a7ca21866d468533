/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints that release 0.1.0 wrote are restored, at any number of ranks. Each value, master and
 * moment follows from its place and the number of steps, and so does the step that is then taken.
 *
 * `earlier.ranks STEPS DIR SETTINGS`, compiled in a tree of 0.1.0 with
 * -Dzero_checkpoint_info=zero_checkpoint -Dzero_checkpoint_info_free=zero_checkpoint_free, wrote
 * them: 1 by one rank at stage 0 before its first step, 2 by two at stage 1 with offload=optimizer,
 * 3 by three at stage 3, of which two are a team.
 */
#include <fcntl.h>
#include <math.h>

#include "ranks.h"

enum { PARAMS = 11, FIRST_OF_TEAM = 9, LARGE = 20011, STEPS = 2 };

/* Several blocks of checksums, odd sizes, one element, none, and one less than ranks have parts. */
static const struct param {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t shape[3];
	bool trainable;
} params[PARAMS] = {
	{"large", ZERO_BF16, 1, {LARGE}, true},
	{"matrix", ZERO_F32, 2, {37, 13}, true},
	{"\"half\\\xc3\xa4", ZERO_F16, 3, {3, 5, 7}, true},
	{"one", ZERO_F32, 0, {0}, true},
	{"none", ZERO_F32, 2, {0, 3}, true},
	{"frozen", ZERO_BF16, 2, {29, 11}, false},
	{"integers", ZERO_I64, 1, {301}, false},
	{"mask", ZERO_BOOL, 1, {5}, false},
	{"f64", ZERO_F64, 1, {65}, false},
	{"expert", ZERO_BF16, 2, {31, 17}, true},
	{"expert.bias", ZERO_F32, 1, {17}, true},
};

struct model {
	zero_job *job;
	zero_group *groups[3];
	zero_param *params[PARAMS];
	int world, rank, first; /* `first` rank of the expert's team */
};

static size_t count_of(size_t p)
{
	size_t count = 1;

	for (int d = 0; d < params[p].ndim; d++)
		count *= params[p].shape[d];
	return count;
}

/* ---- values ---------------------------------------------------------------------------------- */

static float gradient(size_t p, size_t i)
{
	return (float)((i * 5 + p) % 9) - 4;
}

/*
 * In f32: from 2 to 32, and exact in 8 bits. As the gradient is the same at each step, AdamW
 * without decay subtracts lr times its sign: rounding errors of that are too small for the sum.
 */
static float value_after(size_t p, size_t i, int steps)
{
	float g = params[p].trainable ? gradient(p, i) : 0;

	return 2 + (float)((i * 7 + p * 11) % 240) / 8 -
	       (float)steps * 0x1p-8F * (float)((g > 0) - (g < 0));
}

/* Rounds to nearest even in so many bits. */
static float rounded(float value, int bits)
{
	int exponent;
	double part = frexp((double)value, &exponent);

	return (float)ldexp(nearbyint(ldexp(part, bits)), exponent - bits);
}

static uint16_t bf16_bits(float value)
{
	uint32_t bits;

	value = rounded(value, 8);
	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

/* Of a positive normal number. */
static uint16_t f16_bits(float value)
{
	uint32_t bits;

	value = rounded(value, 11);
	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(((bits >> 23) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

/* What tensor kind/name has in its place i, at `out`. Returns the bytes. */
static size_t element(const char *kind, size_t p, size_t i, int steps, void *out)
{
	float value = value_after(p, i, steps), g = gradient(p, i);
	int64_t integer = (int64_t)i * -1234567890123;
	unsigned char flag = i % 3 == 1;
	double wide = (double)value / 3;
	uint16_t half = params[p].dtype == ZERO_F16 ? f16_bits(value) : bf16_bits(value);

	if (!strcmp(kind, "exp_avg"))
		value = g * (1 - powf(0.5F, (float)steps));
	else if (!strcmp(kind, "exp_avg_sq"))
		value = g * g * (1 - powf(0.75F, (float)steps));
	else if (!strcmp(kind, "param") && params[p].dtype == ZERO_I64)
		return memcpy(out, &integer, 8), 8;
	else if (!strcmp(kind, "param") && params[p].dtype == ZERO_F64)
		return memcpy(out, &wide, 8), 8;
	else if (!strcmp(kind, "param") && params[p].dtype == ZERO_BOOL)
		return memcpy(out, &flag, 1), 1;
	else if (!strcmp(kind, "param") && params[p].dtype != ZERO_F32)
		return memcpy(out, &half, 2), 2;
	return memcpy(out, &value, 4), 4;
}

static size_t elements(const char *kind, size_t p, int steps, unsigned char *out)
{
	size_t bytes = 0;

	for (size_t i = 0; i < count_of(p); i++)
		bytes += element(kind, p, i, steps, out + bytes);
	return bytes;
}

/* ---- a job ----------------------------------------------------------------------------------- */

static struct model open_model(const char *settings)
{
	static const char *const names[] = {"first", "second", "experts"};
	struct model model = {.job = open_job("%s", settings)};
	zero_team *team = NULL;
	zero_param *tied;
	int ranks[64];

	model.world = zero_world(model.job);
	model.rank = zero_rank(model.job);
	model.first = model.world > 2;
	for (int i = model.first; i < model.world; i++)
		ranks[i - model.first] = i;
	if (model.first)
		ok(zero_team_new(model.job, ranks, (size_t)model.world - 1, &team));
	for (size_t p = 0, g = 0; p < PARAMS; p++) {
		zero_param_spec spec = {.name = params[p].name,
					.dtype = params[p].dtype,
					.ndim = params[p].ndim,
					.shape = params[p].shape,
					.trainable = params[p].trainable};

		if (p == 0 || p == 2 || p == FIRST_OF_TEAM) {
			ok(zero_group_new(model.job, names[g], g == 2 ? team : NULL,
					  &model.groups[g]));
			g++;
		}
		ok(zero_param_new(model.groups[g - 1], &spec, &model.params[p]));
		spec.name = "tied";
		spec.alias_of = model.params[p];
		if (p == 1)
			ok(zero_param_new(model.groups[0], &spec, &tied));
	}
	ok(zero_layout(model.job));
	return model;
}

static void load_model(struct model *model)
{
	static unsigned char values[LARGE * 8];

	for (size_t p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_all(values);

		elements("param", p, 0, values);
		ok(zero_load(model->params[p], &source));
	}
}

/* One rank of each team has the gradients, so that their sums are the same at any world size. */
static void step_model(struct model *model)
{
	zero_adamw adamw = {.lr = 0x1p-8F,
			    .beta1 = 0.5F,
			    .beta2 = 0.75F,
			    .eps = 1e-8F,
			    .samples = model->rank == 0 ? 1 : 0};

	for (size_t p = 0; p < PARAMS; p++) {
		int from = p < FIRST_OF_TEAM ? 0 : model->first;
		float *sums;

		if (model->rank != from || !params[p].trainable || !count_of(p))
			continue;
		sums = zero_gradient(model->params[p]);
		check(sums, "%s", zero_last_error());
		for (size_t i = 0; i < count_of(p); i++)
			sums[i] = gradient(p, i);
	}
	ok(zero_step(model->job, &adamw, NULL));
}

/* ---- what a checkpoint has ------------------------------------------------------------------- */

/* Appends this file's part of a tensor to `out`. Returns its bytes. */
static size_t read_part(zero_file *file, const char *name, unsigned char *out)
{
	const zero_tensor *tensor = zero_file_find(file, name);
	size_t bytes;
	int fd;

	if (!tensor)
		return 0;
	bytes = tensor->shape[0] * zero_dtype_size(tensor->dtype);
	fd = open(tensor->path, O_RDONLY);
	check(fd >= 0 && pread(fd, out, bytes, (off_t)tensor->offset) == (ssize_t)bytes, "%s",
	      tensor->path);
	close(fd);
	return bytes;
}

static void check_tensor(zero_file **files, int world, const char *kind, size_t p, int steps)
{
	static unsigned char got[LARGE * 8], want[LARGE * 8];
	size_t bytes = 0, wanted = elements(kind, p, steps, want);
	char name[64];

	snprintf(name, sizeof(name), "%s/%s", kind, params[p].name);
	for (int from = 0; from < world; from++)
		bytes += read_part(files[from], name, got + bytes);
	check(bytes == wanted, "%s has %zu bytes, not %zu", name, bytes, wanted);
	for (size_t i = 0; i < bytes; i++)
		check(got[i] == want[i], "byte %zu of %zu of %s after %d steps", i, bytes, name,
		      steps);
}

/* All that the files of this job have. COLLECTIVE. */
static void check_saved(struct model *model, int steps)
{
	const char *dir = file_path("saved");
	zero_file *files[64];

	ok(zero_save(model->job, dir, NULL));
	for (int from = 0; from < model->world; from++) {
		char path[1200];

		snprintf(path, sizeof(path), "%s/step-%09d/rank-%05d-of-%05d.safetensors",
			 file_path("saved"), steps, from, model->world);
		ok(zero_file_open(model->job, path, &files[from]));
	}
	for (size_t p = 0; p < PARAMS; p++) {
		check_tensor(files, model->world, "param", p, steps);
		if (!params[p].trainable || !steps)
			continue;
		check_tensor(files, model->world, "exp_avg", p, steps);
		check_tensor(files, model->world, "exp_avg_sq", p, steps);
		if (params[p].dtype != ZERO_F32)
			check_tensor(files, model->world, "master", p, steps);
	}
	for (int from = 0; from < model->world; from++)
		zero_file_close(files[from]);
}

/* ---- restored -------------------------------------------------------------------------------- */

static void restored(const char *settings, const char *dir, int world, int stage, int steps)
{
	struct model model = open_model(settings);
	zero_checkpoint_info info = {0};

	ok(zero_restore(model.job, file_path(dir), &info));
	check(info.step == (uint64_t)steps && info.world == world && info.stage == stage,
	      "%s: step %d of %d ranks at stage %d", dir, (int)info.step, info.world, info.stage);
	check(info.user_bytes == 5 && !memcmp(info.user, "place", 5), "%s: user", dir);
	zero_checkpoint_info_free(&info);
	for (int i = 0; i < 2; i++) {
		check_saved(&model, steps + i);
		step_model(&model);
	}
	ok(zero_close(model.job));
}

/* What rank 0 alone does. */
static const char *unpack(void)
{
	char command[4096];

	snprintf(command, sizeof(command),
		 "gzip -dc '%s/tests/ranks/earlier-0.1.0.tar.gz' | "
		 "tar -C '%s' -xf -",
		 getenv("top_srcdir"), getenv("ZERO_TEST_FILES"));
	return system(command) ? "the checkpoints cannot be unpacked" : NULL;
}

int main(int argc, char **argv)
{
	struct model model;

	if (argc > 3) {
		model = open_model(argv[3]);
		load_model(&model);
		for (int i = atoi(argv[1]); i; i--)
			step_model(&model);
		ok(zero_save(model.job, argv[2],
			     &(zero_save_options){.user = "place", .user_bytes = 5}));
		ok(zero_close(model.job));
		return 0;
	}
	model.job = open_job("stage=3");
	ok(zero_agree(model.job, zero_rank(model.job) ? NULL : unpack()));
	ok(zero_close(model.job));
	restored("stage=3", "1", 1, 0, 0);
	restored("stage=0", "2", 2, 1, STEPS);
	restored("stage=3 offload=optimizer", "2", 2, 1, STEPS);
	restored("stage=1", "3", 3, 3, STEPS);
	restored("stage=3", "3", 3, 3, STEPS);
	return 0;
}

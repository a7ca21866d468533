/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_export: exported files load again with the same bits at each stage and in each mode. If they
 * cannot be written, all ranks return the error, no partial file remains, and a file that existed
 * is unchanged.
 */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "checkpoint/export.h"
#include "ranks.h"

enum { PARAMS = 24, GROUPS = 4, COUNT_MAX = 20000 };

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[PARAMS];
	size_t shapes[PARAMS][2];
};

static int world, rank, last;
static size_t file_bytes = 5000000000; /* of tensors, at most, in exports that must fail */
static unsigned char values[PARAMS][COUNT_MAX * 8]; /* bits of each parameter */

static zero_dtype dtype_of(size_t p)
{
	return (zero_dtype)(ZERO_F32 + p % 8);
}

static struct model open_model(const char *settings, uint64_t seed)
{
	struct model model = {.job = open_job("%s", settings)};
	zero_param *tied;

	for (size_t g = 0; g < GROUPS; g++) {
		char name[32];

		snprintf(name, sizeof(name), "group %zu", g);
		model.groups[g] = new_group(model.job, name);
	}
	for (size_t p = 0; p < PARAMS; p++) {
		size_t *shape = model.shapes[p];
		char name[64];
		zero_param_spec spec = {
			.name = name, .dtype = dtype_of(p), .ndim = (int)(p % 3), .shape = shape};

		/* Names that need escapes in JSON. */
		snprintf(name, sizeof(name), "layer.%zu \"\\\n\xc3\xa4", p);
		shape[0] = p % 7 == 0 ? 0 : 1 + below(&seed, 100);
		shape[1] = 1 + below(&seed, COUNT_MAX / 100);
		ok(zero_param_new(model.groups[p % GROUPS], &spec, &model.params[p]));
	}
	ok(zero_param_new(model.groups[1],
			  &(zero_param_spec){.name = "tied",
					     .dtype = dtype_of(1),
					     .ndim = 1,
					     .shape = model.shapes[1],
					     .alias_of = model.params[1]},
			  &tied));
	ok(zero_layout(model.job));
	return model;
}

static void load_values(struct model *model)
{
	for (size_t p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_all(values[p]);

		ok(zero_load(model->params[p], &source));
	}
}

static void load_file(struct model *model, const char *path)
{
	zero_file *file;

	ok(zero_file_open(model->job, path, &file));
	check(zero_file_count(file) == PARAMS, "%zu tensors", zero_file_count(file));
	for (size_t p = 0; p < PARAMS; p++) {
		const zero_tensor *tensor = zero_file_find(file, zero_param_name(model->params[p]));
		zero_source source = zero_from_file(tensor);

		ok(zero_load(model->params[p], &source));
	}
	check(!zero_file_find(file, "tied"), "an alias was exported");
	zero_file_close(file);
}

static void check_values(struct model *model)
{
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(model->groups[g], ZERO_DTYPE_PARAM));
		for (size_t p = g; p < PARAMS; p += GROUPS) {
			size_t bytes =
				zero_param_numel(model->params[p]) * zero_dtype_size(dtype_of(p));

			check(!bytes || !memcmp(zero_data(model->params[p]), values[p], bytes),
			      "parameter %zu (%s)", p, zero_dtype_name(dtype_of(p)));
		}
		ok(zero_release(model->groups[g]));
	}
}

static void make_values(uint64_t seed)
{
	for (size_t p = 0; p < PARAMS; p++)
		for (size_t i = 0; i < sizeof(values[p]); i++)
			values[p][i] = (unsigned char)(dtype_of(p) == ZERO_BOOL ? draw(&seed) & 1
										: draw(&seed));
}

static void there_and_back(uint64_t seed)
{
	static const char *const settings[] = {
		"stage=3 allgather=grouped", "stage=0 allgather=single", "stage=1 allgather=auto",
		"stage=3 allgather=single", "stage=2 allgather=grouped"};
	char path[1100];

	for (size_t i = 0; i < 5; i++) {
		struct model model = open_model(settings[i], seed);

		make_values(seed + i);
		load_values(&model);
		snprintf(path, sizeof(path), "%s", file_path("model.safetensors"));
		ok(zero_export(model.job, path));
		/* A second export replaces the file, with the same bytes. */
		ok(zero_export(model.job, path));
		check_values(&model);
		ok(zero_close(model.job));
		model = open_model(settings[(i + 1) % 5], seed);
		load_file(&model, path);
		check_values(&model);
		ok(zero_close(model.job));
	}
}

/* ---- folders --------------------------------------------------------------------------------- */

/* Computes the name of each tensor's file if a file has at most `limit` bytes of tensors, and the
   number of files. */
static void expect_names(const struct model *model, size_t limit, char (*names)[64], size_t *files)
{
	size_t file_of[PARAMS], taken = 0, in_file = 0, file = 1;

	for (size_t g = 0; g < GROUPS; g++)
		for (size_t p = g; p < PARAMS; p += GROUPS) {
			size_t bytes =
				zero_param_numel(model->params[p]) * zero_dtype_size(dtype_of(p));

			if (in_file && taken + bytes > limit) {
				file++;
				taken = in_file = 0;
			}
			taken += bytes;
			in_file++;
			file_of[p] = file;
		}
	for (size_t p = 0; p < PARAMS; p++)
		if (file == 1)
			snprintf(names[p], 64, "model.safetensors");
		else
			snprintf(names[p], 64, "model-%05zu-of-%05zu.safetensors", file_of[p],
				 file);
	*files = file;
}

/* Reads the next name in a folder; "" after the last. */
static bool next_name(DIR *folder, char *name, size_t size)
{
	struct dirent *entry;

	while ((entry = readdir(folder)) && entry->d_name[0] == '.')
		;
	snprintf(name, size, "%s", entry ? entry->d_name : "");
	return *name;
}

/* The folder has the files of this export and the user's own file, and no others. */
static void check_folder(const char *path, char (*names)[64], size_t files)
{
	size_t found = 0, own = 0;
	char name[300];
	DIR *folder = opendir(path);

	check(folder, "no folder %s", path);
	while (next_name(folder, name, sizeof(name))) {
		bool expected = !strcmp(name, "model.safetensors.index.json") && files > 1;

		own += !strcmp(name, "config.json");
		for (size_t p = 0; p < PARAMS; p++)
			expected = expected || !strcmp(names[p], name);
		check(expected || !strcmp(name, "config.json"), "%s remains in %s", name, path);
		found++;
	}
	closedir(folder);
	check(own == 1 && found == files + (files > 1) + 1, "%zu files in %s, of %zu", found, path,
	      files);
}

static void check_tensors(struct model *model, const char *path, char (*names)[64])
{
	zero_file *file;

	ok(zero_file_open(model->job, path, &file));
	check(zero_file_count(file) == PARAMS, "%zu tensors", zero_file_count(file));
	for (size_t p = 0; p < PARAMS; p++) {
		const zero_tensor *tensor = zero_file_find(file, zero_param_name(model->params[p]));
		const char *slash = strrchr(tensor->path, '/');

		check(!strcmp(slash + 1, names[p]), "tensor %zu is in %s, not %s", p, tensor->path,
		      names[p]);
	}
	zero_file_close(file);
}

static void put_file(const char *folder, const char *name)
{
	char path[1400];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "w");
	check(file && !fclose(file), "no %s", path);
}

/* Exports to one folder replace each other, with different numbers of files. */
static void folders(uint64_t seed)
{
	static const size_t limits[] = {100000, 100000, 30000, 1 << 30, 1 << 30, 5000, 1};
	char path[1100], names[PARAMS][64];

	snprintf(path, sizeof(path), "%s", file_path("exported"));
	for (size_t i = 0; i < 7; i++) {
		struct model model = open_model(i % 2 ? "stage=3" : "stage=2", seed);
		size_t files;

		make_values(seed + 100 + i);
		load_values(&model);
		expect_names(&model, limits[i], names, &files);
		/* A small model may fit the larger limits. */
		check(limits[i] > 5000 ? limits[i] < 1 << 30 || files == 1 : files > 1, "%zu files",
		      files);
		/* A name that ends in a slash. */
		if (i == 2)
			strcat(path, "/");
		ok(zero_export_files(model.job, path, limits[i]));
		if (rank == 0 && i == 0)
			put_file(path, "config.json");
		ok(zero_agree(model.job, NULL));
		check_folder(path, names, files);
		check_tensors(&model, path, names);
		ok(zero_close(model.job));
		model = open_model("stage=3", seed);
		ok(zero_load_model(model.job, path, NULL, NULL));
		check_values(&model);
		/* A killed job left a partial file. */
		if (rank == 0)
			put_file(path, "model-00001-of-00002.safetensors.0123456789abcdef.partial");
		ok(zero_close(model.job));
	}
}

/* At stages 1 and 2 the gather of new values may still run when the export starts. */
static void after_a_step(int stage)
{
	zero_adamw adamw = {.lr = 0.5F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_job *job = open_job("stage=%d", stage);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_BF16, 5000, true);
	zero_source source = zero_from_normal(0, 1, 3);
	static uint16_t stepped[5000];
	zero_file *file;
	float *sums;

	ok(zero_layout(job));
	ok(zero_load(param, &source));
	sums = zero_gradient(param);
	check(sums, "%s", zero_last_error());
	for (int i = 0; i < 5000; i++)
		sums[i] = (float)(i % 3 - 1);
	ok(zero_step(job, &adamw, NULL));
	ok(zero_export(job, file_path("stepped.safetensors")));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	memcpy(stepped, zero_data(param), sizeof(stepped));
	ok(zero_release(group));
	ok(zero_file_open(job, file_path("stepped.safetensors"), &file));
	source = zero_from_file(zero_file_find(file, "p"));
	ok(zero_load(param, &source));
	zero_file_close(file);
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	check(!memcmp(stepped, zero_data(param), sizeof(stepped)), "stage %d", stage);
	ok(zero_close(job));
}

/* ---- errors ---------------------------------------------------------------------------------- */

/* Files in the folder that all ranks share. */
static size_t count_files(void)
{
	char path[1024];
	struct dirent *entry;
	size_t count = 0;
	DIR *folder;

	snprintf(path, sizeof(path), "%s", file_path(""));
	folder = opendir(path);
	check(folder, "no folder %s", path);
	while ((entry = readdir(folder)))
		count += entry->d_name[0] != '.';
	closedir(folder);
	return count;
}

static void cannot(struct model *model, const char *where, int from, const char *words)
{
	size_t files, now;
	double all[16];
	char path[1100];

	snprintf(path, sizeof(path), "%s", where);
	ok(zero_agree(model->job, NULL));
	files = count_files();
	ok(zero_agree(model->job, NULL));
	fails(zero_export_files(model->job, path, file_bytes), ZERO_E_FILE, words);
	check(zero_last_error_rank() == from, "%d: %s", zero_last_error_rank(), zero_last_error());
	/* Rank 0 deletes its files before the error reaches the other ranks. */
	all_values(model->job, 0, all);
	now = count_files();
	check(now == files, "%zu files became %zu", files, now);
	ok(zero_agree(model->job, NULL));
}

static void limit_files(bool on)
{
	struct rlimit limit;

	getrlimit(RLIMIT_FSIZE, &limit);
	limit.rlim_cur = on ? 5000 : limit.rlim_max;
	check(!setrlimit(RLIMIT_FSIZE, &limit), "no limit");
}

static void full_disk(struct model *model, const char *name, int from)
{
	if (rank == from)
		limit_files(true);
	cannot(model, file_path(name), from, "File too large");
	limit_files(false);
}

static void failures(uint64_t seed)
{
	struct model model = open_model("stage=3", seed);
	char folder[1100];

	signal(SIGXFSZ, SIG_IGN);
	snprintf(folder, sizeof(folder), "%s", file_path("folder.safetensors"));
	if (rank == 0)
		check(!mkdir(folder, 0700), "no folder");
	if (rank == 0)
		put_file(file_path(""), "file");
	load_values(&model);
	cannot(&model, file_path("nowhere/model"), 0, "No such file or directory");
	check(strstr(zero_last_error(), "nowhere/model"), "%s", zero_last_error());
	cannot(&model, file_path("nowhere/model.safetensors"), 0, "No such file or directory");
	cannot(&model, folder, 0, "directory");
	cannot(&model, file_path("file"), 0, "is not a folder");
	cannot(&model, "/proc/model", 0, "/proc/model");
	cannot(&model, "/proc/model.safetensors", 0, "/proc/model");
	full_disk(&model, "model.safetensors", 0);
	full_disk(&model, "model.safetensors", last);
	/* A folder that exists, and one that does not. */
	file_bytes = 100000;
	full_disk(&model, "exported", 0);
	full_disk(&model, "exported", last);
	full_disk(&model, "fresh", 0);
	ok(zero_close(model.job));
	/* The files of folders() are unchanged, with the values of its last export. */
	model = open_model("stage=3", seed);
	load_file(&model, file_path("exported"));
	check_values(&model);
	ok(zero_export(model.job, file_path("model.safetensors")));
	ok(zero_close(model.job));
}

static void too_early(void)
{
	zero_job *job = open_job("stage=3");

	fails(zero_export(job, file_path("early")), ZERO_E_STATE, "after zero_layout");
	ok(zero_layout(job));
	/* A model without parameters is a file without tensors. */
	ok(zero_export(job, file_path("none.safetensors")));
	ok(zero_export(job, file_path("none")));
	ok(zero_close(job));
}

int main(void)
{
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	too_early();
	there_and_back(seed);
	folders(seed);
	failures(seed);
	for (int stage = 0; stage <= 3; stage++)
		after_a_step(stage);
	return 0;
}

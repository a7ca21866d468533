/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients are small integers and the betas are 1/2, so that moments are exact in any order of
 * operations. A 16-bit parameter has a twin in f32 with the same initial values and gradients,
 * whose values its master must have.
 */
#include <fcntl.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "save_model.h"

int world, rank, last;
bool large = true;

enum { F32, BF16, F16, SCALAR, EMPTY, FROZEN, INTEGER, ONE };

static const zero_dtype dtypes[KINDS] = {ZERO_F32, ZERO_BF16, ZERO_F16, ZERO_F32,
					 ZERO_F32, ZERO_BF16, ZERO_I64, ZERO_F32};

static bool is_trained(size_t p)
{
	return p % KINDS != FROZEN && p % KINDS != INTEGER;
}

static size_t count_of(const struct model *model, size_t p)
{
	return zero_param_numel(model->params[p]);
}

size_t value_bytes(const struct model *model, size_t p)
{
	return count_of(model, p) * zero_dtype_size(dtypes[p % KINDS]);
}

/* ---- named states ---------------------------------------------------------------------------- */

/* One of each kind of parameter. A state of a frozen one changes too. */
static const struct {
	const char *name;
	zero_dtype dtype;
	size_t block;
} named[KINDS] = {[F32] = {"m", ZERO_BF16, 0},     [BF16] = {"scale", ZERO_F32, 256},
		  [F16] = {"codes", ZERO_U8, 1},   [EMPTY] = {"n", ZERO_F64, ZERO_STATE_WHOLE},
		  [FROZEN] = {"mask", ZERO_U8, 0}, [ONE] = {"n", ZERO_I64, ZERO_STATE_WHOLE}};

/* All values of a state, one byte after the other. */
static size_t named_values(const struct model *model, size_t p, uint64_t steps, unsigned char *out)
{
	size_t block = named[p % KINDS].block, count = count_of(model, p), bytes;

	count = block == ZERO_STATE_WHOLE ? 1 : block ? (count + block - 1) / block : count;
	bytes = count * zero_dtype_size(named[p % KINDS].dtype);
	for (size_t i = 0; i < bytes; i++)
		out[i] = (unsigned char)mixed(steps * 64 + p + i * 65536);
	return bytes;
}

/* Copies those of them to `out` that this rank keeps. Returns their bytes. */
static size_t kept_values(const struct model *model, size_t p, uint64_t steps, unsigned char *out)
{
	static unsigned char all[COUNT_MAX * 8];
	zero_team *team = p / KINDS == GROUPS - 1 ? model->team : NULL;
	int place = team ? zero_team_rank(team) : rank;
	size_t cuts[65], block = named[p % KINDS].block ? named[p % KINDS].block : 1, first;
	size_t size = zero_dtype_size(named[p % KINDS].dtype);
	size_t bytes = named_values(model, p, steps, all);

	if (place < 0)
		return 0;
	ok(zero_param_cuts(model->params[p], cuts));
	if (block != ZERO_STATE_WHOLE && cuts[place] == cuts[place + 1])
		return 0;
	first = block == ZERO_STATE_WHOLE ? 0 : cuts[place] / block;
	if (block != ZERO_STATE_WHOLE)
		bytes = ((cuts[place + 1] - 1) / block + 1 - first) * size;
	memcpy(out, all + first * size, bytes);
	return bytes;
}

static unsigned char state_values[COUNT_MAX * 8];

void fill_states(const struct model *model, uint64_t steps)
{
	for (size_t p = 0; p < PARAMS; p++)
		if (model->states[p])
			memcpy(model->states[p], state_values,
			       kept_values(model, p, steps, state_values));
}

void check_states(const struct model *model, uint64_t steps)
{
	for (size_t p = 0; p < PARAMS; p++)
		check(!model->states[p] || !memcmp(model->states[p], state_values,
						   kept_values(model, p, steps, state_values)),
		      "another value of the state of parameter %zu", p);
}

static void register_states(struct model *model)
{
	for (size_t p = 0; p < PARAMS; p++) {
		zero_state_spec spec = {.name = named[p % KINDS].name,
					.dtype = named[p % KINDS].dtype,
					.block = named[p % KINDS].block};

		if (!spec.name)
			continue;
		model->states[p] = malloc(kept_values(model, p, 0, state_values) + 1);
		check(model->states[p], "no memory");
		spec.data = model->states[p];
		ok(zero_state_register(model->params[p], &spec));
	}
	fill_states(model, 0);
}

void drop_states(struct model *model)
{
	for (size_t p = 0; p < PARAMS; p++) {
		if (!model->states[p])
			continue;
		ok(zero_state_unregister(model->params[p], named[p % KINDS].name));
		memset(model->states[p], 0xa5, kept_values(model, p, 0, state_values));
		free(model->states[p]);
		model->states[p] = NULL;
	}
}

void close_model(struct model *model)
{
	ok(zero_close(model->job));
	for (size_t p = 0; p < PARAMS; p++)
		free(model->states[p]);
}

/* ---- a job ----------------------------------------------------------------------------------- */

struct model open_model(const char *settings, uint64_t seed)
{
	struct model model = {.job = open_job("%s", settings)};
	size_t size = 0, shape[2];
	zero_param *tied;
	int ranks[64];

	model.team_ranks = world;
	if (world > 1) {
		model.team_ranks = world - 1;
		for (int i = 0; i < world - 1; i++)
			ranks[i] = i + 1;
		ok(zero_team_new(model.job, ranks, (size_t)world - 1, &model.team));
	}
	for (size_t p = 0; p < PARAMS; p++) {
		size_t g = p / KINDS;
		char name[64];
		zero_param_spec spec = {.name = name,
					.dtype = dtypes[p % KINDS],
					.ndim = 2,
					.shape = shape,
					.trainable = is_trained(p)};

		snprintf(name, sizeof(name), "g.%zu", g);
		if (p % KINDS == 0) {
			ok(zero_group_new(model.job, name, g == GROUPS - 1 ? model.team : NULL,
					  &model.groups[g]));
			/* Large tensors of the first group have several pieces. */
			size = 1 + below(&seed, 500);
			if (!g && large)
				size = COUNT_MAX / 7 - size;
		}
		snprintf(name, sizeof(name), "g.%zu.\"p\\%zu\xc3\xa4", g, p % KINDS);
		/* Twins have the same shape. */
		shape[0] = p % KINDS == EMPTY ? 0 : size;
		shape[1] = 7;
		if (p % KINDS == SCALAR)
			spec.ndim = 0;
		if (p % KINDS == ONE)
			shape[0] = shape[1] = 1;
		ok(zero_param_new(model.groups[g], &spec, &model.params[p]));
	}
	shape[0] = size;
	shape[1] = 7;
	ok(zero_param_new(model.groups[GROUPS - 1],
			  &(zero_param_spec){.name = "tied",
					     .dtype = ZERO_F32,
					     .ndim = 2,
					     .shape = shape,
					     .trainable = true,
					     .alias_of = model.params[PARAMS - KINDS]},
			  &tied));
	ok(zero_layout(model.job));
	register_states(&model);
	return model;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* A multiple of 1/8 in [-2, 2), which is exact in each type. */
static float start(uint64_t seed, size_t p, size_t i)
{
	return (float)(mixed(seed + p / KINDS * 77777 + i) % 32) / 8 - 2;
}

static uint16_t half_bits(float value)
{
	uint32_t bits;
	uint16_t sign;

	memcpy(&bits, &value, sizeof(bits));
	sign = (uint16_t)(bits >> 16 & 0x8000);
	if (value == 0)
		return sign;
	return (uint16_t)(sign | ((bits >> 23 & 0xff) - 127 + 15) << 10 | (bits >> 13 & 0x3ff));
}

static uint16_t bf16_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static unsigned char scratch[COUNT_MAX * 8];

void load_model(struct model *model, uint64_t seed)
{
	for (size_t p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_all(scratch);
		uint64_t random = seed + p;

		for (size_t i = 0; i < count_of(model, p); i++)
			if (!is_trained(p))
				((uint64_t *)(void *)scratch)[i] = draw(&random);
			else if (dtypes[p % KINDS] == ZERO_F32)
				((float *)(void *)scratch)[i] = start(seed, p, i);
			else
				((uint16_t *)(void *)scratch)[i] =
					dtypes[p % KINDS] == ZERO_F16
						? half_bits(start(seed, p, i))
						: bf16_bits(start(seed, p, i));
		ok(zero_load(model->params[p], &source));
	}
}

static float gradient(size_t i, uint64_t step, int from)
{
	return (float)((i * 7 + step * 3 + (size_t)from) % 9) - 4;
}

static bool is_mine(const struct model *model, size_t p)
{
	return p / KINDS < GROUPS - 1 || !model->team || zero_team_rank(model->team) >= 0;
}

void step_model(struct model *model, zero_step_result *result)
{
	zero_adamw adamw = {.lr = 0.01F,
			    .beta1 = 0.5F,
			    .beta2 = 0.5F,
			    .eps = 1e-8F,
			    .weight_decay = 0.1F,
			    .samples = rank == 0 ? 1 : 0};

	for (size_t p = 0; p < PARAMS; p++) {
		float *sums;

		if (!is_trained(p) || !is_mine(model, p) || !count_of(model, p))
			continue;
		sums = zero_gradient(model->params[p]);
		check(sums, "%s", zero_last_error());
		for (size_t i = 0; i < count_of(model, p); i++)
			sums[i] = gradient(i, model->steps, rank);
	}
	ok(zero_step(model->job, &adamw, result));
	model->steps++;
	fill_states(model, model->steps);
}

void remember(struct model *model, struct moment *moment)
{
	moment->steps = model->steps;
	for (size_t p = 0; p < PARAMS; p++) {
		if (!is_mine(model, p))
			continue;
		if (p % KINDS == 0)
			ok(zero_gather(model->groups[p / KINDS], ZERO_DTYPE_PARAM));
		if (count_of(model, p))
			memcpy(moment->values[p], zero_data(model->params[p]),
			       value_bytes(model, p));
		if (p % KINDS == KINDS - 1)
			ok(zero_release(model->groups[p / KINDS]));
	}
}

/* ---- expected contents of a checkpoint ------------------------------------------------------- */

/* A moment of element i after `steps` steps. */
static float moment_of(const struct model *model, size_t p, size_t i, uint64_t steps, bool squared)
{
	int first = p / KINDS == GROUPS - 1 ? world - model->team_ranks : 0;
	double value = 0;

	for (uint64_t step = 0; step < steps; step++) {
		double sum = 0;

		for (int from = first; from < world; from++)
			sum += (double)gradient(i, step, from);
		value = value / 2 + (squared ? sum * sum : sum) / 2;
	}
	return (float)value;
}

/* The expected bytes of tensor `kind`/name; SIZE_MAX: the file must not have it. */
static size_t expected(const struct model *model, const struct moment *moment, const char *kind,
		       size_t p, unsigned char *out)
{
	size_t count = count_of(model, p), at = p;
	float *floats = (float *)(void *)out;

	if (!strcmp(kind, "param")) {
		memcpy(out, moment->values[p], value_bytes(model, p));
		return value_bytes(model, p);
	}
	if (!strncmp(kind, "state/", 6))
		return named_values(model, p, moment->steps, out);
	if (!is_trained(p) || !moment->steps)
		return SIZE_MAX;
	if (!strcmp(kind, "master")) {
		if (dtypes[p % KINDS] == ZERO_F32)
			return SIZE_MAX;
		at = p / KINDS * KINDS + F32;
		memcpy(out, moment->values[at], count * sizeof(float));
		return count * sizeof(float);
	}
	for (size_t i = 0; i < count; i++)
		floats[i] = moment_of(model, p, i, moment->steps, !strcmp(kind, "exp_avg_sq"));
	return count * sizeof(float);
}

static unsigned char wanted[COUNT_MAX * 8], found[COUNT_MAX * 8];

static void read_bytes(const char *path, uint64_t at, void *out, size_t bytes)
{
	int fd = open(path, O_RDONLY);

	check(fd >= 0, "no %s", path);
	check(pread(fd, out, bytes, (off_t)at) == (ssize_t)bytes, "%s ends early", path);
	close(fd);
}

/* Reads a file; malloc'ed, with a zero at its end. */
static char *read_all(const char *path, size_t *bytes)
{
	struct stat info;
	char *text;

	check(!stat(path, &info), "no %s", path);
	*bytes = (size_t)info.st_size;
	text = calloc(1, *bytes + 1);
	read_bytes(path, 0, text, *bytes);
	return text;
}

static void name_file(char *path, size_t size, const char *dir, uint64_t steps, int of)
{
	snprintf(path, size, "%s/step-%09llu/rank-%05d-of-%05d.safetensors", dir,
		 (unsigned long long)steps, of, world);
}

size_t own_bytes(const char *dir, uint64_t steps)
{
	char path[2048];
	struct stat info;

	name_file(path, sizeof(path), dir, steps, rank);
	check(!stat(path, &info), "no %s", path);
	return (size_t)info.st_size;
}

/* The slices of all files, in the order of the ranks, are the tensor. */
static void check_tensor(const struct model *model, zero_file **files, const struct moment *moment,
			 const char *kind, size_t p)
{
	size_t bytes = expected(model, moment, kind, p, wanted), at = 0;
	const char *param = zero_param_name(model->params[p]);
	char name[256];

	snprintf(name, sizeof(name), "%s/%s", kind, param);
	for (int from = 0; from < world; from++) {
		const zero_tensor *tensor = zero_file_find(files[from], name);
		size_t size;

		check(!tensor || bytes != SIZE_MAX, "%s is there", name);
		if (!tensor)
			continue;
		check(tensor->ndim == 1 && tensor->shape[0], "%s", name);
		check(tensor->dtype == (!strcmp(kind, "param")        ? dtypes[p % KINDS]
					: !strncmp(kind, "state/", 6) ? named[p % KINDS].dtype
								      : ZERO_F32),
		      "%s", name);
		size = tensor->shape[0] * zero_dtype_size(tensor->dtype);
		check(at + size <= bytes, "%s has more than %zu bytes", name, bytes);
		read_bytes(tensor->path, tensor->offset, found + at, size);
		at += size;
	}
	if (bytes == SIZE_MAX)
		return;
	check(at == bytes, "%s has %zu of %zu bytes", name, at, bytes);
	/* A rank that is not in the team does not know the values. */
	if (!is_mine(model, p) && strncmp(kind, "exp", 3) != 0 && strncmp(kind, "state", 5) != 0)
		return;
	for (size_t i = 0; i < bytes; i++)
		check(found[i] == wanted[i], "byte %zu of %zu of %s at step %llu", i, bytes, name,
		      (unsigned long long)moment->steps);
}

/* The checksums are in the order of the file, one for each 64 KiB of each tensor. */
static void check_sums(zero_file *file, const char *manifest)
{
	size_t count = zero_file_count(file), blocks = 0, bytes, at;
	const zero_tensor *sums = zero_file_find(file, "checksums");
	char *all, hex[64];
	uint64_t sum;

	check(sums && sums == zero_file_tensor(file, count - 1), "no checksums at the end");
	all = read_all(sums->path, &bytes);
	at = (size_t)sums->offset;
	for (size_t i = 0; i + 1 < count; i++) {
		const zero_tensor *tensor = zero_file_tensor(file, i);
		size_t size = tensor->shape[0] * zero_dtype_size(tensor->dtype);

		for (size_t b = 0; b < size; b += 65536, blocks++) {
			memcpy(&sum, all + at + 8 * blocks, sizeof(sum));
			check(sum == XXH3_64bits(all + tensor->offset + b,
						 size - b < 65536 ? size - b : 65536),
			      "block %zu of %s in %s", b / 65536, tensor->name, tensor->path);
		}
	}
	check(sums->shape[0] == blocks && bytes == at + 8 * blocks, "%zu blocks", blocks);
	snprintf(hex, sizeof(hex), "\"%016llx\"",
		 (unsigned long long)XXH3_64bits(all + at, 8 * blocks));
	check(strstr(manifest, hex), "no checksums %s in %s", hex, manifest);
	memcpy(&sum, all, sizeof(sum));
	snprintf(hex, sizeof(hex), "\"%016llx\"",
		 (unsigned long long)XXH3_64bits(all, 8 + (size_t)sum));
	check(strstr(manifest, hex), "no header %s in %s", hex, manifest);
	free(all);
}

static void check_text(const char *path, const struct moment *moment, const char *user,
		       char **manifest)
{
	static const char end[] = ",\n\"seal\": \"";
	char name[2100], words[64];
	size_t bytes;
	char *seal;

	snprintf(name, sizeof(name), "%s/manifest.json", path);
	*manifest = read_all(name, &bytes);
	seal = strstr(*manifest, end);
	check(seal, "no seal in %s", *manifest);
	snprintf(words, sizeof(words), "%s%016llx\"\n}\n", end,
		 (unsigned long long)XXH3_64bits(*manifest, (size_t)(seal - *manifest)));
	check(!strcmp(seal, words), "seal %s", seal);
	snprintf(name, sizeof(name), "%s/user", path);
	check(!access(name, F_OK) == !!user, "%s", name);
	if (user) {
		char *text = read_all(name, &bytes);

		check(!strcmp(text, user), "'%s'", text);
		free(text);
	}
	check(!!strstr(*manifest, "\"states\": true") == (moment->steps > 0), "%s", *manifest);
	/* Those of the moment of the save, whatever the program has unregistered since. */
	check(strstr(*manifest, "\"named_states\": [{\"name\": \"m\", \"dtype\": \"BF16\""),
	      "no named states in %s", *manifest);
}

void check_checkpoint(struct model *model, const char *dir, const struct moment *moment,
		      const char *user)
{
	static const char *const kinds[] = {"param", "exp_avg", "exp_avg_sq", "master"};
	zero_file *files[64];
	char path[2048], *manifest;

	snprintf(path, sizeof(path), "%s/step-%09llu", dir, (unsigned long long)moment->steps);
	check_text(path, moment, user, &manifest);
	for (int from = 0; from < world; from++) {
		name_file(path, sizeof(path), dir, moment->steps, from);
		ok(zero_file_open(model->job, path, &files[from]));
	}
	check_sums(files[rank], manifest);
	/* The ranks share the work, but the first rank is not in the team of the last group. */
	for (size_t p = 0; p < PARAMS; p++)
		for (size_t k = 0; k < 5; k++) {
			const char *name = named[p % KINDS].name;
			char state[80];

			snprintf(state, sizeof(state), "state/%s", name ? name : "");
			if ((k < 4 || name) &&
			    ((int)(p + k) % world == rank || p >= PARAMS - KINDS))
				check_tensor(model, files, moment, k < 4 ? kinds[k] : state, p);
		}
	for (int from = 0; from < world; from++)
		zero_file_close(files[from]);
	free(manifest);
	ok(zero_agree(model->job, NULL));
}

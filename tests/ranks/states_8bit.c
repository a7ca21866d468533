/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW with 8-bit moments: against a reference in f64 that quantises by a search, the same bits at
 * every stage and number of ranks, through checkpoints too, and converted from f32 and back.
 *
 *	states_8bit [save|load DIR]    restore_worlds.sh saves and loads at different numbers of
 *	ranks
 */
#include <math.h>

#include "ranks.h"

enum { PARAMS = 6, MOST = 20011, BLOCK = 256, LEAST = 4096, STEPS = 4 };

static const struct {
	const char *name;
	zero_dtype dtype;
	size_t count;
} params[PARAMS] = {
	{"w", ZERO_F32, MOST},     {"bias", ZERO_F32, 300},        {"half", ZERO_BF16, 9001},
	{"edge", ZERO_F32, LEAST}, {"below", ZERO_F32, LEAST - 1}, {"none", ZERO_F32, 0},
};
static const zero_adamw adamw = {.lr = 0x1p-8F,
				 .beta1 = 0.9F,
				 .beta2 = 0.95F,
				 .eps = 1e-8F,
				 .weight_decay = 0.0625F,
				 .gradients_are_means = true};

static uint64_t seed;

struct model {
	zero_job *job;
	zero_group *group;
	zero_param *params[PARAMS];
	int steps;
};

static float first_value(int p, size_t i)
{
	return ldexpf(signed_unit(mixed(seed + mixed((uint64_t)p << 40 ^ i))), -(p == 2));
}

/* Of sizes that are far apart within a block, and 0. */
static float gradient_of(int step, int p, size_t i)
{
	uint64_t bits = mixed(seed ^ mixed((uint64_t)step << 50 ^ (uint64_t)p << 40 ^ i));

	return bits % 50 ? ldexpf(signed_unit(bits), -(int)(bits % 13)) : 0;
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	int p = *(int *)context;

	for (size_t i = 0; i < count; i++) {
		union {
			float f;
			uint32_t bits;
		} u = {.f = first_value(p, first + i)};

		if (params[p].dtype == ZERO_F32)
			((float *)elements)[i] = u.f;
		else
			((uint16_t *)elements)[i] = (uint16_t)(u.bits >> 16);
	}
	return ZERO_OK;
}

__attribute__((format(printf, 1, 2))) static struct model begin(const char *format, ...)
{
	char settings[256];
	struct model m = {0};
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(settings, sizeof(settings), format, arguments);
	va_end(arguments);
	m.job = open_job("%s", settings);
	m.group = new_group(m.job, "g");
	for (int p = 0; p < PARAMS; p++)
		m.params[p] =
			new_param(m.group, params[p].name, params[p].dtype, params[p].count, true);
	ok(zero_layout(m.job));
	for (int p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_callback(fill, &p);

		ok(zero_load(m.params[p], &source));
	}
	return m;
}

static void step(struct model *m)
{
	for (int p = 0; p < PARAMS; p++) {
		float *gradient = zero_gradient(m->params[p]);

		check(gradient || !params[p].count, "%s", zero_last_error());
		for (size_t i = 0; i < params[p].count; i++)
			gradient[i] = zero_rank(m->job) ? 0 : gradient_of(m->steps, p, i);
	}
	ok(zero_reduce(m->group));
	ok(zero_step(m->job, &adamw, NULL));
	m->steps++;
}

static void steps(struct model *m, int count)
{
	for (int i = 0; i < count; i++)
		step(m);
}

static uint64_t hash_of(struct model *m)
{
	uint64_t hash = 1;

	ok(zero_gather(m->group, ZERO_DTYPE_PARAM));
	for (int p = 0; p < PARAMS; p++) {
		const unsigned char *data = zero_data(m->params[p]);
		size_t bytes = params[p].count * zero_dtype_size(params[p].dtype);

		for (size_t i = 0; i < bytes; i++)
			hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
	}
	ok(zero_release(m->group));
	return hash;
}

static uint64_t end(struct model *m)
{
	uint64_t hash = hash_of(m);

	ok(zero_close(m->job));
	return hash;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* The map of the paper: 0, the middles of the parts of seven decades, 1, and all with a minus but
   1. */
static int make_map(double *map, bool is_signed)
{
	int count = 0;

	map[count++] = 0;
	for (int decade = 0; decade < 7; decade++)
		for (int n = 1 << (decade + !is_signed), i = 0; i < n; i++)
			map[count++] = pow(10, decade - 6) * (0.1 + 0.9 * (2 * i + 1) / (2 * n));
	map[count++] = 1;
	for (int i = 1, positive = count - 1; is_signed && i < positive; i++)
		map[count++] = -map[i];
	check(count == 256, "%d", count);
	return count;
}

static void round_block(double *x, size_t count, bool is_signed)
{
	double map[256], most = 0;
	int codes = make_map(map, is_signed);

	for (size_t i = 0; i < count; i++)
		most = fmax(most, fabs(x[i]));
	most = (double)(float)most;
	for (size_t i = 0; most > 0 && i < count; i++) {
		double q = x[i] / most, best = 0;

		for (int c = 0; c < codes; c++)
			best = fabs(q - map[c]) < fabs(q - best) ? map[c] : best;
		x[i] = best * most;
	}
}

struct reference {
	double p[MOST], m[MOST], v[MOST];
};

static void reference_steps(struct reference *r, int p, int count)
{
	size_t n = params[p].count;

	for (size_t i = 0; i < n; i++)
		r->p[i] = params[p].dtype == ZERO_F32 ? (double)first_value(p, i) : 0;
	memset(r->m, 0, sizeof(r->m));
	memset(r->v, 0, sizeof(r->v));
	for (int t = 0; t < count; t++) {
		double beta1 = (double)adamw.beta1, beta2 = (double)adamw.beta2;

		for (size_t i = 0; i < n; i++) {
			double g = (double)gradient_of(t, p, i), move;

			r->m[i] = beta1 * r->m[i] + (1 - beta1) * g;
			r->v[i] = beta2 * r->v[i] + (1 - beta2) * g * g;
			move = r->m[i] / (1 - pow(beta1, t + 1)) /
			       (sqrt(r->v[i] / (1 - pow(beta2, t + 1))) + (double)adamw.eps);
			r->p[i] -= (double)adamw.lr * ((double)adamw.weight_decay * r->p[i] + move);
		}
		for (size_t i = 0; n >= LEAST && i < n; i += BLOCK) {
			round_block(r->m + i, n - i < BLOCK ? n - i : (size_t)BLOCK, true);
			round_block(r->v + i, n - i < BLOCK ? n - i : (size_t)BLOCK, false);
		}
	}
}

/* A moment near the bound of two codes may get the other one: few do. */
static void follows_reference(struct model *m)
{
	struct reference *r = malloc(sizeof(*r));

	check(r, "no memory");
	ok(zero_gather(m->group, ZERO_DTYPE_PARAM));
	for (int p = 0; p < PARAMS; p++) {
		const float *got = zero_data(m->params[p]);
		size_t others = 0;

		if (params[p].dtype != ZERO_F32)
			continue;
		reference_steps(r, p, m->steps);
		for (size_t i = 0; i < params[p].count; i++)
			others += fabs((double)got[i] - r->p[i]) > 4e-7 * (1 + fabs(r->p[i]));
		check(others <= params[p].count / 1000, "%s: %zu of %zu elements differ",
		      params[p].name, others, params[p].count);
	}
	ok(zero_release(m->group));
	free(r);
}

/* ---- memory, conversion, checkpoints --------------------------------------------------------- */

/* Of the shards of both types, two bytes and two absmax for each 256 elements; 8 of small
   parameters. */
static void takes_two_bytes(struct model *m)
{
	size_t shards = 0, most;
	zero_memory memory;

	ok(zero_memory_now(m->job, &memory));
	for (int p = 0; p < PARAMS; p++)
		shards += params[p].count + BLOCK;
	if (strcmp(zero_setting(m->job, "stage"), "0") != 0)
		shards = shards / (size_t)zero_world(m->job) + 2 * BLOCK;
	/* masters of all elements, too; and whole pages of each array */
	most = shards * 4 + shards * 2 + shards / 32 + (LEAST + 300 + 2 * BLOCK) * 8 + 8 * 4096;
	check(memory.optimizer.now <= most, "%zu bytes, not %zu", memory.optimizer.now, most);
}

/* The first step's moments are rounded after they were used: f32 ones that are converted are the
   same. */
static void converts(uint64_t want)
{
	struct model m = begin("stage=3");

	step(&m);
	ok(zero_set_states(m.job, ZERO_STATES_8BIT));
	takes_two_bytes(&m);
	steps(&m, STEPS - 1);
	check(hash_of(&m) == want, "converted states are others");
	/* A step computes with f32, whatever it keeps. */
	ok(zero_set_states(m.job, ZERO_STATES_F32));
	step(&m);
	want = end(&m);
	m = begin("stage=1 states=8bit");
	steps(&m, STEPS + 1);
	check(end(&m) == want, "states that became f32 are others");
}

static void save(struct model *m, const char *dir)
{
	ok(zero_save(m->job, dir, NULL));
}

static void restores(void)
{
	char path[1100];
	struct model m = begin("stage=2 states=8bit");
	zero_state_spec own = {.name = "zero.exp_avg", .dtype = ZERO_U8, .data = path};
	uint64_t want;

	snprintf(path, sizeof(path), "%s", file_path("saved"));
	fails(zero_state_register(m.params[0], &own), ZERO_E_INVALID, "are the library's");
	steps(&m, 2);
	save(&m, path);
	steps(&m, 2);
	want = end(&m);
	for (int stage = 0; stage < 4; stage++) {
		m = begin("stage=%d states=8bit", stage);
		step(&m);
		ok(zero_restore(m.job, path, NULL));
		m.steps = 2;
		steps(&m, 2);
		check(end(&m) == want, "stage %d: other values after a restore", stage);
	}
	m = begin("stage=3");
	fails(zero_restore(m.job, path, NULL), ZERO_E_FORMAT,
	      "are 8bit, and those of this job states=f32: restore with states=8bit, and then");
	ok(zero_set_states(m.job, ZERO_STATES_8BIT));
	ok(zero_restore(m.job, path, NULL));
	ok(zero_set_states(m.job, ZERO_STATES_F32));
	m.steps = 2;
	step(&m);
	save(&m, path);
	ok(zero_close(m.job));
	m = begin("stage=3 states=8bit");
	fails(zero_restore(m.job, path, NULL), ZERO_E_FORMAT, "are f32, and those of this job");
	fails(zero_set_states(m.job, (zero_states)7), ZERO_E_INVALID, "they are 0 or 1");
	ok(zero_close(m.job));
}

/* ---- other numbers of ranks ------------------------------------------------------------------ */

static void save_for_others(const char *dir)
{
	struct model m = begin("stage=3 states=8bit");
	char name[1100];
	FILE *file;

	steps(&m, 2);
	save(&m, dir);
	steps(&m, 2);
	snprintf(name, sizeof(name), "%s.hash", dir);
	file = zero_rank(m.job) ? NULL : fopen(name, "we");
	if (file)
		fprintf(file, "%llu %llu\n", (unsigned long long)hash_of(&m),
			(unsigned long long)seed);
	else
		hash_of(&m);
	check(!file || !fclose(file), "%s", name);
	ok(zero_close(m.job));
}

static void load_of_others(const char *dir)
{
	unsigned long long want, of;
	struct model m;
	char name[1100];
	FILE *file;

	snprintf(name, sizeof(name), "%s.hash", dir);
	file = fopen(name, "re");
	check(file && fscanf(file, "%llu %llu", &want, &of) == 2, "%s", name);
	fclose(file);
	seed = of;
	m = begin("stage=3 states=8bit");
	ok(zero_restore(m.job, dir, NULL));
	m.steps = 2;
	steps(&m, 2);
	check(end(&m) == want, "other values than with other ranks");
}

int main(int argc, char **argv)
{
	uint64_t first = 0;

	seed = test_seed();
	if (argc == 3) {
		(*argv[1] == 's' ? save_for_others : load_of_others)(argv[2]);
		return 0;
	}
	for (int stage = 0; stage < 4; stage++) {
		/* With a GPU, offloaded states are stepped in pieces. */
		struct model m = begin("stage=%d states=8bit%s", stage,
				       stage % 2 ? " offload=optimizer stream_chunk=6000" : "");

		steps(&m, STEPS);
		if (!stage)
			follows_reference(&m);
		if (stage == 2)
			takes_two_bytes(&m);
		first = first ? first : hash_of(&m);
		check(end(&m) == first, "stage %d has other values than stage 0", stage);
	}
	converts(first);
	restores();
	if (!zero_rank(NULL))
		printf("same values %llx\n", (unsigned long long)first);
	return 0;
}

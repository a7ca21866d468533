/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muon: against a reference in f64, the same bits at every stage and number of ranks, the bytes
 * that ranks send, the momentum's memory and its way through a checkpoint, and what is refused.
 */
#include <math.h>

#include "ranks.h"
#include "double/disk.h"

enum { PARAMS = 7, MOST = 12000, STEPS = 3, LARGEST_SIDE = 80 };

static const struct {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t shape[3];
	bool muon;
} params[PARAMS] = {
	{"wide", ZERO_F32, 2, {60, 200}, true},  {"bias", ZERO_F32, 1, {200}, false},
	{"tall", ZERO_F32, 2, {301, 33}, true},  {"experts", ZERO_F32, 3, {5, 31, 29}, true},
	{"row", ZERO_F32, 2, {1, 70}, true},     {"half", ZERO_BF16, 2, {64, LARGEST_SIDE}, true},
	{"adamw", ZERO_F32, 2, {20, 50}, false},
};
static const zero_muon muon = {
	.lr = 0x1p-6F, .weight_decay = 0.125F, .momentum = 0.95F, .steps = 5};
static const zero_adamw adamw = {.lr = 0x1p-8F,
				 .beta1 = 0.9F,
				 .beta2 = 0.95F,
				 .eps = 1e-8F,
				 .clip = 30,
				 .gradients_are_means = true,
				 .muon = &muon};

static uint64_t seed;

struct model {
	zero_job *job;
	zero_group *groups[2];
	zero_param *params[PARAMS];
	zero_adamw adamw;
	int steps;
};

static size_t count_of(int p)
{
	size_t count = 1;

	for (int i = 0; i < params[p].ndim; i++)
		count *= params[p].shape[i];
	return count;
}

static float first_value(int p, size_t i)
{
	return signed_unit(mixed(seed + mixed((uint64_t)p << 40 ^ i)));
}

static float gradient_of(int step, int p, size_t i)
{
	return signed_unit(mixed(seed ^ mixed((uint64_t)step << 50 ^ (uint64_t)p << 40 ^ i)));
}

static uint16_t upper_half(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)(bits >> 16);
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	int p = *(int *)context;

	for (size_t i = 0; i < count; i++)
		if (params[p].dtype == ZERO_F32)
			((float *)elements)[i] = first_value(p, first + i);
		else
			((uint16_t *)elements)[i] = upper_half(first_value(p, first + i));
	return ZERO_OK;
}

/* The last three are in a group of their own. */
__attribute__((format(printf, 2, 3))) static struct model begin(bool by_muon, const char *format,
								...)
{
	char settings[256];
	struct model m = {.adamw = adamw};
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(settings, sizeof(settings), format, arguments);
	va_end(arguments);
	m.job = open_job("%s", settings);
	m.groups[0] = new_group(m.job, "g");
	m.groups[1] = new_group(m.job, "h");
	for (int p = 0; p < PARAMS; p++) {
		zero_param_spec spec = {.name = params[p].name,
					.dtype = params[p].dtype,
					.ndim = params[p].ndim,
					.shape = params[p].shape,
					.trainable = true};

		ok(zero_param_new(m.groups[p >= PARAMS - 3], &spec, &m.params[p]));
		if (params[p].muon)
			ok(zero_param_set_muon(m.params[p], by_muon));
	}
	ok(zero_param_set_lr_scale(m.params[2], 0.5F));
	ok(zero_param_set_weight_decay_scale(m.params[2], 3));
	ok(zero_layout(m.job));
	for (int p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_callback(fill, &p);

		ok(zero_load(m.params[p], &source));
	}
	return m;
}

static void give_gradients(struct model *m, float scale)
{
	for (int p = 0; p < PARAMS; p++) {
		float *gradient = zero_gradient(m->params[p]);

		check(gradient, "%s", zero_last_error());
		for (size_t i = 0; i < count_of(p); i++)
			gradient[i] = zero_rank(m->job) ? 0 : gradient_of(m->steps, p, i) * scale;
	}
}

static void step(struct model *m)
{
	zero_traffic before, after;
	double most = 0, *sent = malloc((size_t)zero_world(m->job) * sizeof(*sent)), all = 0;

	give_gradients(m, 1);
	ok(zero_reduce(m->groups[0]));
	ok(zero_reduce(m->groups[1]));
	/* Waits for the reduces. */
	ok(zero_reduce_replicas(m->job, m->groups, 2));
	ok(zero_agree(m->job, NULL));
	ok(zero_traffic_now(m->job, &before));
	ok(zero_step(m->job, &m->adamw, NULL));
	ok(zero_traffic_now(m->job, &after));
	m->steps++;
	/* To the owners and back, and no more. */
	check(sent, "no memory");
	all = 0;
	all_values(m->job, (double)(after.bytes_sent - before.bytes_sent), sent);
	for (int rank = 0; rank < zero_world(m->job); rank++)
		all += sent[rank];
	for (int p = 0; p < PARAMS; p++)
		most += params[p].muon ? (double)count_of(p) * 4 * 2.05 : 0;
	if (!strcmp(zero_setting(m->job, "stage"), "3") &&
	    atoi(zero_setting(m->job, "shard")) == zero_world(m->job))
		check(all <= most, "%g bytes were sent, not %g", all, most);
	free(sent);
}

static void steps(struct model *m, int count)
{
	for (int i = 0; i < count; i++)
		step(m);
}

static uint64_t hash_of(struct model *m)
{
	uint64_t hash = 1;

	for (int p = 0; p < PARAMS; p++) {
		zero_group *group = m->groups[p >= PARAMS - 3];
		const unsigned char *data;

		ok(zero_gather(group, ZERO_DTYPE_PARAM));
		data = zero_data(m->params[p]);
		for (size_t i = 0; i < count_of(p) * zero_dtype_size(params[p].dtype); i++)
			hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
		ok(zero_release(group));
	}
	return hash;
}

static uint64_t end(struct model *m)
{
	uint64_t hash = hash_of(m);

	ok(zero_close(m->job));
	return hash;
}

/* ---- the reference --------------------------------------------------------------------------- */

/* In f64, with the small side first; what the iterations make of x[s][l]. */
static void orthogonalise(double *x, size_t s, size_t l)
{
	static double gram[LARGEST_SIDE][LARGEST_SIDE], sum[LARGEST_SIDE][LARGEST_SIDE], next[MOST];
	double norm = 0;

	for (size_t i = 0; i < s * l; i++)
		norm += x[i] * x[i];
	for (size_t i = 0; i < s * l; i++)
		x[i] /= fmax(sqrt(norm), 1e-7);
	for (int step = 0; step < 5; step++) {
		for (size_t i = 0; i < s; i++)
			for (size_t j = 0; j < s; j++) {
				gram[i][j] = 0;
				for (size_t k = 0; k < l; k++)
					gram[i][j] += x[i * l + k] * x[j * l + k];
			}
		for (size_t i = 0; i < s; i++)
			for (size_t j = 0; j < s; j++) {
				sum[i][j] = -4.7750 * gram[i][j];
				for (size_t k = 0; k < s; k++)
					sum[i][j] += 2.0315 * gram[i][k] * gram[k][j];
			}
		for (size_t i = 0; i < s; i++)
			for (size_t j = 0; j < l; j++) {
				next[i * l + j] = 3.4445 * x[i * l + j];
				for (size_t k = 0; k < s; k++)
					next[i * l + j] += sum[i][k] * x[k * l + j];
			}
		memcpy(x, next, s * l * sizeof(*x));
	}
}

/* u[rows][columns] becomes its step. */
static void orthogonalise_any(double *u, size_t rows, size_t columns)
{
	static double turned[MOST];

	if (rows <= columns) {
		orthogonalise(u, rows, columns);
		return;
	}
	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < columns; c++)
			turned[c * rows + r] = u[r * columns + c];
	orthogonalise(turned, columns, rows);
	for (size_t r = 0; r < rows; r++)
		for (size_t c = 0; c < columns; c++)
			u[r * columns + c] = turned[c * rows + r];
}

/* The mean gradient is clipped to a norm of 30. */
static double clip_of(int step)
{
	double sum = 0;

	for (int p = 0; p < PARAMS; p++)
		for (size_t i = 0; i < count_of(p); i++)
			sum += pow((double)gradient_of(step, p, i), 2);
	return fmin(1, 30 / sqrt(sum));
}

static void reference(const struct model *m, int p, double *values)
{
	static double buf[MOST], u[MOST];
	const zero_muon *by = m->adamw.muon;
	size_t rows = params[p].shape[params[p].ndim - 2], n = count_of(p);
	size_t columns = params[p].shape[params[p].ndim - 1];
	double mu = (double)by->momentum, lr = (double)by->lr * (p == 2 ? 0.5 : 1), ratio;
	double decay = (double)by->weight_decay * (p == 2 ? 3 : 1);

	ratio = by->rate == ZERO_MUON_ORIGINAL ? sqrt(fmax(1, (double)rows / (double)columns))
					       : 0.2 * sqrt(fmax((double)rows, (double)columns));
	memset(buf, 0, sizeof(buf));
	for (size_t i = 0; i < n; i++)
		values[i] = (double)first_value(p, i);
	for (int t = 0; t < m->steps; t++) {
		double scale = clip_of(t);

		for (size_t i = 0; i < n; i++) {
			double g = (double)gradient_of(t, p, i) * scale;

			buf[i] = mu * buf[i] + (1 - mu) * g;
			u[i] = by->plain_momentum ? buf[i] : mu * buf[i] + (1 - mu) * g;
		}
		for (size_t at = 0; at < n; at += rows * columns)
			orthogonalise_any(u + at, rows, columns);
		for (size_t i = 0; i < n; i++)
			values[i] -= lr * (decay * values[i] + ratio * u[i]);
	}
}

static void follows_reference(struct model *m)
{
	static double values[MOST];

	for (int p = 0; p < PARAMS; p++) {
		zero_group *group = m->groups[p >= PARAMS - 3];
		const float *got;

		if (!params[p].muon || params[p].dtype != ZERO_F32)
			continue;
		reference(m, p, values);
		ok(zero_gather(group, ZERO_DTYPE_PARAM));
		got = zero_data(m->params[p]);
		for (size_t i = 0; i < count_of(p); i++)
			check(fabs((double)got[i] - values[i]) < 4e-7 * (1 + fabs(values[i])),
			      "%s[%zu] is %.9g, not %.9g", params[p].name, i, (double)got[i],
			      values[i]);
		ok(zero_release(group));
	}
}

/* ---- memory, checkpoints, refusals ----------------------------------------------------------- */

static void takes_four_bytes(struct model *m)
{
	size_t muon_count = 0, others = 0, masters = count_of(5), most;
	zero_memory memory;

	ok(zero_memory_now(m->job, &memory));
	for (int p = 0; p < PARAMS; p++)
		*(params[p].muon ? &muon_count : &others) += count_of(p);
	most = (muon_count * 4 + others * 8 + masters * 4) / (size_t)zero_world(m->job) +
	       PARAMS * 256 * 12 + 6 * 4096;
	check(memory.optimizer.now <= most, "%zu bytes, not %zu", memory.optimizer.now, most);
}

static void restores(void)
{
	char path[1100];
	struct model m = begin(true, "stage=2");
	uint64_t want;

	snprintf(path, sizeof(path), "%s", file_path("saved"));
	steps(&m, 2);
	/* The next step changes what is not written yet. */
	disk.long_at = 2;
	ok(zero_save(m.job, path, &(zero_save_options){.background = true}));
	steps(&m, 1);
	ok(zero_save_wait(m.job));
	want = end(&m);
	for (int stage = 0; stage < 4; stage++) {
		m = begin(true, "stage=%d", stage);
		step(&m);
		ok(zero_restore(m.job, path, NULL));
		m.steps = 2;
		step(&m);
		check(end(&m) == want, "stage %d: other values after a restore", stage);
	}
	m = begin(true, "stage=3 shard=1");
	ok(zero_restore(m.job, path, NULL));
	m.steps = 2;
	step(&m);
	check(end(&m) == want, "a copy on each rank: other values after a restore");
	m = begin(false, "stage=3");
	fails(zero_restore(m.job, path, NULL), ZERO_E_FORMAT,
	      "was stepped by Muon, and has no `muon` in this job");
	step(&m);
	fails(zero_param_set_muon(m.params[0], true), ZERO_E_STATE, "before the first step");
	ok(zero_save(m.job, path, NULL));
	ok(zero_close(m.job));
	m = begin(true, "stage=1");
	fails(zero_restore(m.job, path, NULL), ZERO_E_FORMAT,
	      "was stepped by AdamW, and has `muon` in this job");
	ok(zero_close(m.job));
}

static void refuses(void)
{
	struct model m = begin(true, "stage=3");
	zero_muon bad = muon;
	uint64_t before;

	fails(zero_param_set_muon(m.params[1], true), ZERO_E_INVALID, "has 1 dimensions");
	before = hash_of(&m);
	m.adamw.muon = NULL;
	give_gradients(&m, 1);
	fails(zero_step(m.job, &m.adamw, NULL), ZERO_E_INVALID, "zero_adamw.muon is NULL");
	bad.momentum = 1;
	m.adamw.muon = &bad;
	fails(zero_step(m.job, &m.adamw, NULL), ZERO_E_INVALID, "momentum is in [0, 1)");
	m.adamw.muon = &muon;
	give_gradients(&m, INFINITY);
	ok(zero_step(m.job, &m.adamw, NULL));
	check(hash_of(&m) == before, "a step without an effect changed values");
	ok(zero_param_set_trainable(m.params[0], false));
	step(&m);
	ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
	for (size_t i = 0; i < count_of(0); i++)
		check(((const float *)zero_data(m.params[0]))[i] == first_value(0, i),
		      "a frozen matrix was stepped");
	ok(zero_release(m.groups[0]));
	bad.momentum = zero_rank(m.job) ? 0.5F : 0.25F;
	m.adamw.muon = &bad;
	give_gradients(&m, 1);
	if (zero_world(m.job) > 1)
		fails(zero_step(m.job, &m.adamw, NULL), ZERO_E_ORDER, "Muon lr");
	zero_close(m.job);
}

int main(void)
{
	uint64_t first = 0;
	zero_muon other = {.lr = 0x1p-7F,
			   .momentum = 0.5F,
			   .plain_momentum = true,
			   .rate = ZERO_MUON_MATCH_RMS_ADAMW};
	struct model m;
	int world = 1;

	seed = test_seed();
	for (int stage = 0; stage < 4; stage++) {
		m = begin(true, "stage=%d states=%s", stage, stage % 2 ? "8bit" : "f32");
		steps(&m, STEPS);
		if (!stage)
			follows_reference(&m);
		if (stage == 3)
			takes_four_bytes(&m);
		first = first ? first : hash_of(&m);
		world = zero_world(m.job);
		check(end(&m) == first, "stage %d has other values than stage 0", stage);
	}
	for (int ranks = 1; ranks < world; ranks++) {
		if (world % ranks)
			continue;
		m = begin(true, "stage=3 shard=%d", ranks);
		steps(&m, STEPS);
		check(end(&m) == first, "other values with teams of %d ranks", ranks);
	}
	m = begin(true, "stage=3");
	m.adamw.muon = &other;
	steps(&m, 2);
	follows_reference(&m);
	ok(zero_close(m.job));
	restores();
	refuses();
	if (!zero_rank(NULL))
		printf("same values %llx\n", (unsigned long long)first);
	return 0;
}

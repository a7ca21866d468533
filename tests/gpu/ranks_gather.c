/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers in every type; and the order of what the library and its caller do on the device. */
#include <math.h>

#include "ranks.h"

/* ---- types ----------------------------------------------------------------------------------- */

static const struct tensor {
	const char *name;
	size_t group, count;
	zero_dtype dtype;
} tensors[] = {
	{"a", 0, 70001, ZERO_F32}, {"b", 0, 1, ZERO_F32},   {"c", 1, 3333, ZERO_F32},
	{"d", 1, 4097, ZERO_F16},  {"e", 2, 0, ZERO_F32},   {"f", 2, 131, ZERO_I64},
	{"g", 2, 9999, ZERO_F32},  {"h", 2, 65, ZERO_BOOL}, {"i", 2, 5001, ZERO_BF16},
};

enum { GROUPS = 3, TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[TENSORS];
	void *values[TENSORS];
};

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static void begin(struct model *m, const char *settings)
{
	m->job = open_tested("%s", settings);
	for (size_t g = 0; g < GROUPS; g++)
		m->groups[g] = new_group(m->job, g == 0 ? "g0" : g == 1 ? "g1" : "g2");
	for (size_t t = 0; t < TENSORS; t++) {
		size_t bytes = tensors[t].count * zero_dtype_size(tensors[t].dtype);

		m->params[t] = new_param(m->groups[tensors[t].group], tensors[t].name,
					 tensors[t].dtype, tensors[t].count, false);
		m->values[t] = host_memory(bytes);
		random_elements(tensors[t].dtype, m->values[t], tensors[t].count, t);
	}
	ok(zero_layout(m->job));
	for (size_t t = 0; t < TENSORS; t++) {
		zero_source source = zero_from_all(m->values[t]);

		ok(zero_load(m->params[t], &source));
	}
}

static void end(struct model *m)
{
	ok(zero_close(m->job));
	for (size_t t = 0; t < TENSORS; t++)
		free(m->values[t]);
}

static void compare_group(struct model *m, size_t g, zero_dtype as, const char *settings)
{
	for (size_t t = 0; t < TENSORS; t++) {
		const struct tensor *tensor = &tensors[t];
		bool cast = as != ZERO_DTYPE_PARAM && is_float(tensor->dtype);
		zero_dtype dtype = cast ? as : tensor->dtype;
		void *want;

		if (tensor->group != g)
			continue;
		want = host_memory(tensor->count * zero_dtype_size(dtype));
		ref_cast(dtype, want, tensor->dtype, m->values[t], tensor->count);
		expect_gathered(m->params[t], dtype, want, settings);
		free(want);
	}
}

/* A 16-bit type is not converted to the other one. */
static zero_dtype allowed(size_t g, zero_dtype as)
{
	zero_dtype refused = g == 1 ? ZERO_BF16 : g == 2 ? ZERO_F16 : ZERO_DTYPE_DEFAULT;

	return as == refused ? ZERO_F32 : as;
}

void check_gathers(const char *settings)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_BF16, ZERO_F16,
					   ZERO_DTYPE_PARAM};
	zero_dtype as[GROUPS];
	struct model m;

	begin(&m, settings);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		for (size_t g = 0; g < GROUPS; g++) {
			ok(zero_gather(m.groups[g], allowed(g, types[i])));
			compare_group(&m, g, allowed(g, types[i]), settings);
			ok(zero_release(m.groups[g]));
		}
		for (size_t g = 0; g < GROUPS; g++)
			as[g] = allowed(g, types[i]);
		if (as[1] == as[2])
			ok(zero_prefetch(m.groups, GROUPS, as[0]));
		else
			ok(zero_prefetch(m.groups, 1, as[0]));
		for (size_t g = GROUPS; g-- > 0;) {
			ok(zero_gather(m.groups[g], as[g]));
			ok(zero_gather(m.groups[g], as[g]));
			compare_group(&m, g, as[g], settings);
			ok(zero_release(m.groups[g]));
			compare_group(&m, g, as[g], settings);
			ok(zero_release(m.groups[g]));
			check(!zero_data(m.params[0]) || g > 0, "released, but there");
		}
	}
	end(&m);
}

/* ---- order ----------------------------------------------------------------------------------- */

enum { LAYERS = 6, ELEMENTS = 30011, ROUNDS = 3 };

/*
 * Layers of one size, so that memory of one serves the next. Nothing here waits: what is gathered
 * is copied out by the default stream and released at once, gradients are copied in by it and
 * reduced at once. Only if the library orders its work with that stream are the copies right.
 */
struct layers {
	zero_job *job;
	zero_group *groups[LAYERS];
	zero_param *params[LAYERS];
	float *values[LAYERS];    /* expected */
	float *copies[LAYERS];    /* pinned: what was gathered */
	float *gradients[LAYERS]; /* pinned: this rank's */
};

static void begin_layers(struct layers *l, const char *settings)
{
	l->job = open_tested("%s", settings);
	for (size_t i = 0; i < LAYERS; i++) {
		char name[] = {(char)('a' + i), 0};
		zero_param_spec spec = {.name = name,
					.dtype = ZERO_F32,
					.ndim = 1,
					.shape = (size_t[]){ELEMENTS},
					.trainable = true};

		l->groups[i] = new_group(l->job, name);
		ok(zero_param_new(l->groups[i], &spec, &l->params[i]));
		l->values[i] = host_memory(ELEMENTS * sizeof(float));
		random_elements(ZERO_F32, l->values[i], ELEMENTS, 100 + i);
		l->copies[i] = pinned_alloc(ELEMENTS * sizeof(float));
		l->gradients[i] = pinned_alloc(ELEMENTS * sizeof(float));
	}
	ok(zero_layout(l->job));
	for (size_t i = 0; i < LAYERS; i++) {
		zero_source source = zero_from_all(l->values[i]);

		ok(zero_load(l->params[i], &source));
		/* A load has read its source when it returns. */
		memset(l->copies[i], 0xa5, ELEMENTS * sizeof(float));
	}
}

static void end_layers(struct layers *l)
{
	ok(zero_close(l->job));
	for (size_t i = 0; i < LAYERS; i++) {
		free(l->values[i]);
		pinned_free(l->copies[i]);
		pinned_free(l->gradients[i]);
	}
}

static void forward(struct layers *l)
{
	for (size_t i = 0; i < LAYERS; i++) {
		ok(zero_gather(l->groups[i], ZERO_DTYPE_PARAM));
		if (i + 1 < LAYERS)
			ok(zero_prefetch(&l->groups[i + 1], 1, ZERO_DTYPE_PARAM));
		download(l->copies[i], zero_data(l->params[i]), ELEMENTS * sizeof(float));
		ok(zero_release(l->groups[i]));
	}
}

static float gradient_of(int from, size_t layer, int round, size_t i)
{
	uint64_t bits =
		mixed(seed + mixed((uint64_t)from << 40 ^ layer << 32 ^ (uint64_t)round << 28 ^ i));

	/* The sum over ranks is exact in any order, and never 0. */
	return (float)(bits % 255) + 1;
}

static void backward(struct layers *l, int round)
{
	for (size_t layer = LAYERS; layer-- > 0;) {
		float *own = zero_gradient(l->params[layer]);

		check(own, "%s", zero_last_error());
		for (size_t i = 0; i < ELEMENTS; i++)
			l->gradients[layer][i] = gradient_of(rank, layer, round, i);
		upload(own, l->gradients[layer], ELEMENTS * sizeof(float));
		ok(zero_reduce(l->groups[layer]));
	}
}

/* With betas of 0 a step is -lr, whatever the gradient is: 1 / (|g| + eps) * g, nearly. */
static void stepped(struct layers *l, int round)
{
	for (size_t layer = 0; layer < LAYERS; layer++)
		for (size_t i = 0; i < ELEMENTS; i++) {
			float sum = 0;

			for (int from = 0; from < world; from++)
				sum += gradient_of(from, layer, round, i);
			sum *= (float)(1 / (double)world);
			l->values[layer][i] -= 0.5F * sum / (sqrtf(sum * sum) + 1);
		}
}

void check_order(const char *settings)
{
	zero_adamw adamw = {.lr = 0.5F, .eps = 1};
	struct layers l;

	begin_layers(&l, settings);
	for (int round = 0; round < ROUNDS; round++) {
		forward(&l);
		synchronise();
		for (size_t layer = 0; layer < LAYERS; layer++)
			for (size_t i = 0; i < ELEMENTS; i++) {
				float want = l.values[layer][i], got = l.copies[layer][i];

				/* Two formulas of one step differ by rounding. */
				check(fabsf(got - want) <= 1e-5F,
				      "%s, round %d: layer %zu has %g at %zu, not %g; seed %llu",
				      settings, round, layer, (double)got, i, (double)want,
				      (unsigned long long)seed);
				l.values[layer][i] = got;
			}
		backward(&l, round);
		ok(zero_step(l.job, &adamw, NULL));
		stepped(&l, round);
	}
	end_layers(&l);
}

/* ---- what one rank changes ------------------------------------------------------------------- */

void check_updates(const char *settings)
{
	struct model m;

	begin(&m, settings);
	for (int pass = 0; pass < 3; pass++) {
		size_t t = (size_t)pass * 3, g = tensors[t].group;
		int from = pass % world;
		size_t bytes = tensors[t].count * zero_dtype_size(tensors[t].dtype);

		/* "a", "d" and "g": gathered as they are stored */
		ok(zero_gather(m.groups[g], ZERO_DTYPE_PARAM));
		random_elements(tensors[t].dtype, m.values[t], tensors[t].count, 1000 + t);
		if (rank == from)
			upload(zero_data(m.params[t]), m.values[t], bytes);
		ok(zero_param_changed(m.params[t], from));
		compare_group(&m, g, ZERO_DTYPE_PARAM, settings);
		ok(zero_release(m.groups[g]));
		expect_stored(m.params[t], tensors[t].dtype, m.values[t], settings);
		ok(zero_gather(m.groups[g], allowed(g, ZERO_BF16)));
		compare_group(&m, g, allowed(g, ZERO_BF16), settings);
		ok(zero_release(m.groups[g]));
	}
	end(&m);
}

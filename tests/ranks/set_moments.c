/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_set_moments, zero_get_moments and zero_set_steps: a step after them is AdamW's with these
 * moments and so many steps, against a reference in f64, at every stage; a rank sees the moments
 * that it steps; what they refuse; and that a checkpoint has them.
 */
#include <math.h>

#include "ranks.h"

enum { PARAMS = 4, MOST = 5003, STEPS = 6 };

static const struct {
	const char *name;
	zero_dtype dtype;
	size_t count;
	bool trainable;
} params[PARAMS] = {
	{"w", ZERO_F32, MOST, true},
	{"half", ZERO_BF16, 777, true},
	{"none", ZERO_F32, 0, true},
	{"one", ZERO_F32, 1, true},
};
static const zero_adamw adamw = {.lr = 0x1p-6F,
				 .beta1 = 0.9F,
				 .beta2 = 0.95F,
				 .eps = 1e-6F,
				 .weight_decay = 0.0625F,
				 .gradients_are_means = true};

struct model {
	zero_job *job;
	zero_group *group, *frozen;
	zero_param *params[PARAMS], *still;
};

/* All are multiples of 2^-7 below 1, which bf16 has. */
static float value_of(int p, size_t i)
{
	return (float)((i * 7 + (size_t)p) % 64) / 128 - 0.25F;
}

static float m_of(int p, size_t i)
{
	return (float)((i * 5 + (size_t)p) % 32) / 64 - 0.25F;
}

static float v_of(int p, size_t i)
{
	return (float)((i * 3 + (size_t)p) % 16 + 1) / 32;
}

static float gradient_of(int p, size_t i)
{
	return (float)((i + (size_t)p) % 8) / 16 - 0.125F;
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	int p = *(int *)context;

	for (size_t i = 0; i < count; i++) {
		union {
			float f;
			uint32_t bits;
		} u = {.f = value_of(p, first + i)};

		if (params[p].dtype == ZERO_F32)
			((float *)elements)[i] = u.f;
		else
			((uint16_t *)elements)[i] = (uint16_t)(u.bits >> 16);
	}
	return ZERO_OK;
}

static struct model begin(const char *settings)
{
	struct model m = {.job = open_job("%s", settings)};

	m.group = new_group(m.job, "g");
	m.frozen = new_group(m.job, "frozen");
	for (int p = 0; p < PARAMS; p++)
		m.params[p] =
			new_param(m.group, params[p].name, params[p].dtype, params[p].count, true);
	m.still = new_param(m.frozen, "still", ZERO_F32, 3, false);
	ok(zero_layout(m.job));
	for (int p = 0; p < PARAMS; p++) {
		zero_source source = zero_from_callback(fill, &p);

		ok(zero_load(m.params[p], &source));
	}
	return m;
}

/* Piece by piece, of all elements: a rank takes what it steps. */
static void set_moments(struct model *m)
{
	static float first[MOST], second[MOST];

	for (int p = 0; p < PARAMS; p++)
		for (size_t at = 0, count; at < params[p].count; at += count) {
			count = params[p].count - at < 999 ? params[p].count - at : 999;
			for (size_t i = 0; i < count; i++) {
				first[i] = m_of(p, at + i);
				second[i] = v_of(p, at + i);
			}
			ok(zero_set_moments(m->params[p], at, count, first, second));
		}
	ok(zero_set_steps(m->job, &m->group, 1, STEPS));
}

static bool same(float one, float other)
{
	return !memcmp(&one, &other, sizeof(one));
}

/* What this rank steps has these moments, and the rest is left as it was. Returns how many. */
static size_t get_moments(struct model *m, bool set)
{
	static float first[MOST], second[MOST];
	size_t own = 0;

	for (int p = 0; p < PARAMS; p++)
		for (size_t at = 0, count; at < params[p].count; at += count) {
			count = params[p].count - at < 1001 ? params[p].count - at : 1001;
			for (size_t i = 0; i < count; i++)
				first[i] = second[i] = -7;
			ok(zero_get_moments(m->params[p], at, count, first, second));
			for (size_t i = 0; i < count; i++) {
				if (same(first[i], -7) && same(second[i], -7))
					continue;
				own++;
				check(same(first[i], set ? m_of(p, at + i) : 0) &&
					      same(second[i], set ? v_of(p, at + i) : 0),
				      "%s[%zu] has the moments %g and %g", params[p].name, at + i,
				      (double)first[i], (double)second[i]);
			}
		}
	return own;
}

static void step(struct model *m)
{
	for (int p = 0; p < PARAMS; p++) {
		float *gradient = zero_gradient(m->params[p]);

		check(gradient || !params[p].count, "%s", zero_last_error());
		for (size_t i = 0; i < params[p].count; i++)
			gradient[i] = zero_rank(m->job) ? 0 : gradient_of(p, i);
	}
	ok(zero_reduce(m->group));
	ok(zero_step(m->job, &adamw, NULL));
}

static double stepped(int p, size_t i)
{
	double beta1 = (double)adamw.beta1, beta2 = (double)adamw.beta2;
	double g = (double)gradient_of(p, i), value = (double)value_of(p, i);
	double m = beta1 * (double)m_of(p, i) + (1 - beta1) * g;
	double v = beta2 * (double)v_of(p, i) + (1 - beta2) * g * g;
	double move = m / (1 - pow(beta1, STEPS + 1)) /
		      (sqrt(v / (1 - pow(beta2, STEPS + 1))) + (double)adamw.eps);

	return value - (double)adamw.lr * ((double)adamw.weight_decay * value + move);
}

static void follows_reference(struct model *m)
{
	ok(zero_gather(m->group, ZERO_F32));
	for (int p = 0; p < PARAMS; p++) {
		const float *got = zero_data(m->params[p]);
		double most = params[p].dtype == ZERO_BF16 ? 0x1p-9 : 4e-7;

		for (size_t i = 0; i < params[p].count; i++)
			check(fabs((double)got[i] - stepped(p, i)) <= most, "%s[%zu] is %g, not %g",
			      params[p].name, i, (double)got[i], stepped(p, i));
	}
	ok(zero_release(m->group));
}

static void gets(const char *settings)
{
	struct model m = begin(settings);
	size_t all = 0, own = get_moments(&m, false), ranks = (size_t)zero_world(m.job);
	unsigned long long mine = own, *every = calloc(ranks, sizeof(mine));

	for (int p = 0; p < PARAMS; p++)
		all += params[p].count;
	ok(zero_allgather_bytes(m.job, &mine, sizeof(mine), every));
	for (size_t rank = 0; rank < ranks; rank++)
		own += rank == (size_t)zero_rank(m.job) ? 0 : (size_t)every[rank];
	check(own == (strstr(settings, "stage=0") ? all * ranks : all), "%zu of %zu", own, all);
	free(every);
	set_moments(&m);
	check(get_moments(&m, true) == mine, "not %llu elements have moments", mine);
	ok(zero_close(m.job));
}

static void refuses(void)
{
	struct model m = begin("stage=3");
	float moment[2] = {0};

	fails(zero_set_moments(m.params[3], 0, 2, moment, moment), ZERO_E_INVALID,
	      "has the elements [0, 2); there are 1");
	fails(zero_set_moments(m.params[0], MOST + 1, 0, moment, moment), ZERO_E_INVALID,
	      "there are 5003");
	fails(zero_get_moments(m.params[3], 1, 1, moment, moment), ZERO_E_INVALID,
	      "zero_get_moments of parameter 'one' has the elements [1, 2); there are 1");
	fails(zero_set_moments(m.still, 0, 1, moment, moment), ZERO_E_STATE, "being frozen");
	fails(zero_set_steps(m.job, &m.frozen, 1, 1), ZERO_E_INVALID, "'frozen', which is frozen");
	ok(zero_close(m.job));
	m = begin("stage=3 states=8bit");
	fails(zero_set_moments(m.params[0], 0, 1, moment, moment), ZERO_E_STATE, "states=8bit");
	ok(zero_close(m.job));
}

static void saves(void)
{
	struct model m = begin("stage=2");
	const char *path = file_path("saved");

	set_moments(&m);
	ok(zero_save(m.job, path, NULL));
	ok(zero_close(m.job));
	m = begin("stage=3");
	ok(zero_restore(m.job, path, NULL));
	step(&m);
	follows_reference(&m);
	ok(zero_close(m.job));
}

int main(void)
{
	static const char *const settings[] = {
		"stage=0",
		"stage=1 offload=optimizer stream_chunk=6000",
		"stage=2",
		"stage=3 stream_chunk=6000",
	};

	for (size_t i = 0; i < sizeof(settings) / sizeof(*settings); i++) {
		struct model m = begin(settings[i]);

		if (i % 2) /* moments that there are get these values */
			step(&m);
		for (int p = 0; p < PARAMS && i % 2; p++) {
			zero_source source = zero_from_callback(fill, &p);

			ok(zero_load(m.params[p], &source));
		}
		set_moments(&m);
		step(&m);
		follows_reference(&m);
		ok(zero_close(m.job));
		gets(settings[i]);
	}
	refuses();
	saves();
	return 0;
}

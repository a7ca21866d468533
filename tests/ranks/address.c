/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where parameters are: at one address for each type, over gathers in every order; and in memory
 * that the groups have in turn, not each its own.
 */
#include "address.h"

enum { GROUPS = 8, PER_GROUP = 3, TYPES = 4, LIVE = 3, ROUNDS = 150, COUNT = 400009, MARKS = 5 };

static const zero_dtype types[TYPES] = {ZERO_DTYPE_PARAM, ZERO_F32, ZERO_BF16, ZERO_F16};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS][PER_GROUP];
	void *at[GROUPS][TYPES][PER_GROUP]; /* NULL: not known yet */
	int as[GROUPS];                     /* index of `types` while gathered, else -1 */
};

/* Even groups can be gathered as anything, odd ones have values of 16 bits too, and others. */
static zero_dtype stored(int g, int p)
{
	static const zero_dtype odd[PER_GROUP] = {ZERO_F32, ZERO_BF16, ZERO_I32};

	return g % 2 ? odd[p] : ZERO_F32;
}

static size_t count_of(int g, int p)
{
	return p ? (size_t)(777 * p) : COUNT / (size_t)(1 + g % 3);
}

/* Small whole numbers, which all types hold. */
static double value_of(int g, int p, size_t i)
{
	return (double)((i + (size_t)(31 * g + 7 * p)) % 120);
}

static double read_value(const void *data, zero_dtype dtype, size_t i)
{
	uint32_t bits;
	float value;

	switch (dtype) {
	case ZERO_F32:
		return ((const float *)data)[i];
	case ZERO_I32:
		return ((const int32_t *)data)[i];
	case ZERO_BF16:
		bits = (uint32_t)((const uint16_t *)data)[i] << 16;
		memcpy(&value, &bits, 4);
		return value;
	default:
		return (double)((const _Float16 *)data)[i];
	}
}

struct filled {
	int group, param;
};

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	const struct filled *filled = context;
	int g = filled->group, p = filled->param;

	for (size_t i = 0; i < count; i++) {
		double value = value_of(g, p, first + i);
		float single = (float)value;
		uint32_t bits;

		memcpy(&bits, &single, 4);
		if (stored(g, p) == ZERO_F32)
			((float *)elements)[i] = single;
		else if (stored(g, p) == ZERO_I32)
			((int32_t *)elements)[i] = (int32_t)value;
		else
			((uint16_t *)elements)[i] = (uint16_t)(bits >> 16);
	}
	return ZERO_OK;
}

static bool is_valid(int g, int t)
{
	return !(g % 2 && types[t] == ZERO_F16);
}

static struct model open_model(int stage)
{
	struct model m = {.job = open_job("stage=%d", stage)};
	char name[16];

	for (int g = 0; g < GROUPS; g++) {
		snprintf(name, sizeof(name), "f.%d", g);
		m.groups[g] = new_group(m.job, name);
		m.as[g] = -1;
		for (int p = 0; p < PER_GROUP; p++) {
			snprintf(name, sizeof(name), "f.%d.%d", g, p);
			m.params[g][p] = new_param(m.groups[g], name, stored(g, p), count_of(g, p),
						   stored(g, p) == ZERO_F32);
			check(!zero_gathered_address(m.params[g][p], ZERO_BF16), "before layout");
		}
	}
	ok(zero_layout(m.job));
	for (int g = 0; g < GROUPS; g++)
		for (int p = 0; p < PER_GROUP; p++) {
			struct filled filled = {g, p};
			zero_source source = zero_from_callback(fill, &filled);

			ok(zero_load(m.params[g][p], &source));
		}
	return m;
}

/* The first answer counts for ever. */
static void check_address(struct model *m, int g, int t, int p, void *at)
{
	if (!m->at[g][t][p])
		m->at[g][t][p] = at;
	check(at && at == m->at[g][t][p], "parameter %d of group %d as %s is at %p, and was at %p",
	      p, g, zero_dtype_name(types[t]), at, m->at[g][t][p]);
}

static void check_values(struct model *m, int g)
{
	int t = m->as[g];

	for (int p = 0; p < PER_GROUP; p++) {
		zero_dtype dtype = zero_gathered_dtype(m->params[g][p]);
		size_t count = count_of(g, p);

		check_address(m, g, t, p, zero_data(m->params[g][p]));
		check_address(m, g, t, p, zero_gathered_address(m->params[g][p], types[t]));
		for (size_t i = 0; i < count; i += 1 + count / 500) {
			double value = read_value(m->at[g][t][p], dtype, i);

			check(value == value_of(g, p, i), "group %d, element %zu: %g", g, i, value);
		}
	}
}

static int live_count(const struct model *m)
{
	int live = 0;

	for (int g = 0; g < GROUPS; g++)
		live += m->as[g] >= 0;
	return live;
}

/* All ranks draw the same. */
static void random_turns(struct model *m, uint64_t *state)
{
	for (int round = 0; round < ROUNDS; round++) {
		int g = (int)below(state, GROUPS), t = (int)below(state, TYPES);

		if (m->as[g] >= 0) {
			check_values(m, g);
			ok(zero_release(m->groups[g]));
			m->as[g] = -1;
		} else if (is_valid(g, t) && live_count(m) < LIVE) {
			if (below(state, 2))
				ok(zero_prefetch(&m->groups[g], 1, types[t]));
			ok(zero_gather(m->groups[g], types[t]));
			m->as[g] = t;
			check_values(m, g);
		}
	}
	for (int g = 0; g < GROUPS; g++)
		if (m->as[g] >= 0)
			ok(zero_release(m->groups[g]));
}

/* What the process holds, counting memory that it shares by its part of it. */
static size_t held_bytes(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	size_t kilobytes = 0;
	char line[256];

	check(file, "no /proc/self/smaps_rollup");
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, "Pss:", 4))
			kilobytes = strtoull(line + 4, NULL, 10);
	fclose(file);
	return kilobytes << 10;
}

/* One group after the other, of the same size, in the same memory. */
static void take_turns(int stage)
{
	enum { TURNS = 12 };
	const size_t count = (size_t)4 << 20, output = 2 * count, huge_page = (size_t)2 << 20;
	zero_job *job = open_job("stage=%d", stage);
	zero_group *groups[TURNS];
	zero_param *params[TURNS];
	size_t before, after;
	char name[16];

	for (int g = 0; g < TURNS; g++) {
		snprintf(name, sizeof(name), "t.%d", g);
		groups[g] = new_group(job, name);
		params[g] = new_param(groups[g], name, ZERO_F32, count, true);
	}
	ok(zero_layout(job));
	for (int g = 0; g < TURNS; g++) {
		zero_source source = zero_from_constant(g);

		ok(zero_load(params[g], &source));
	}
	ok(zero_agree(job, NULL));
	before = held_bytes();
	for (int g = 0; g < TURNS; g++) {
		const uint16_t *data;
		uint16_t sum = 0;

		ok(zero_gather(groups[g], ZERO_BF16));
		data = zero_data(params[g]);
		for (size_t i = 0; i < count; i++)
			sum |= data[i];
		check(!sum == !g, "group %d: %x", g, sum);
		/* Nobody takes the memory of one that still reads. */
		ok(zero_agree(job, NULL));
		ok(zero_release(groups[g]));
		ok(zero_agree(job, NULL));
	}
	after = held_bytes();
	/* Reading a buffer's padding may take a huge page. */
	check(after <= before + 4 * output + TURNS * huge_page,
	      "stage %d: %d outputs of %zu MB took %zu MB", stage, TURNS, output >> 20,
	      (after - before) >> 20);
	ok(zero_close(job));
}

int main(void)
{
	uint64_t state = test_seed();

	for (int stage = 0; stage <= 3; stage++) {
		struct model m = open_model(stage);

		random_turns(&m, &state);
		ok(zero_close(m.job));
		take_turns(stage);
	}
	faults_before_layout();
	struct model m = open_model(3);

	faults(m.job, m.groups[0], m.params[0][0]);
	ok(zero_close(m.job));
	faults_after_close();
	return 0;
}

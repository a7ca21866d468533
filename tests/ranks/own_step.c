/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the program's own: what each rank owns, the gradient sums that it is given, the values
 * that it writes, and what is left of all that after zero_reset.
 */
#include <math.h>

#include "ranks.h"

/* Group 0 has gaps behind its parameters, and group 1 has none: its gradients were where those of
   group 0 come to be, in memory that is used again. Group 2 has 16 bits. */
enum { GROUPS = 3, PARAMS = 6, LONGEST = 2048, POISON = 1 };

static const struct {
	int group;
	size_t count;
	zero_dtype dtype;
	bool trainable;
} params[PARAMS] = {
	{0, 1, ZERO_F32, true},       {0, 1001, ZERO_F32, true}, {0, 0, ZERO_F32, true},
	{1, LONGEST, ZERO_F32, true}, {2, 777, ZERO_BF16, true}, {2, 65, ZERO_F32, false},
};

static int world, rank, last;

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[PARAMS];
	size_t cuts[PARAMS][8];
	zero_memory before;
};

static zero_memory memory_of(const struct model *m)
{
	zero_memory memory;

	ok(zero_memory_now(m->job, &memory));
	return memory;
}

static struct model begin(int stage)
{
	struct model m = {.job = open_job("stage=%d", stage)};
	char name[] = "a";

	for (int g = 0; g < GROUPS; g++, name[0]++)
		m.groups[g] = new_group(m.job, name);
	for (int p = 0; p < PARAMS; p++, name[0]++)
		m.params[p] = new_param(m.groups[params[p].group], name, params[p].dtype,
					params[p].count, params[p].trainable);
	fails(zero_param_cuts(m.params[0], m.cuts[0]), ZERO_E_STATE, "no cuts before zero_layout");
	ok(zero_layout(m.job));
	for (int p = 0; p < PARAMS; p++)
		ok(zero_param_cuts(m.params[p], m.cuts[p]));
	m.before = memory_of(&m);
	return m;
}

/* ---- what each rank owns --------------------------------------------------------------------- */

static void check_cuts(const struct model *m, int stage)
{
	for (int p = 0; p < PARAMS; p++) {
		const size_t *cuts = m->cuts[p];
		size_t first, count;
		void *data;

		check(cuts[0] == 0 && cuts[world] == params[p].count, "%zu to %zu", cuts[0],
		      cuts[world]);
		for (int r = 0; r < world; r++)
			check(cuts[r] <= cuts[r + 1], "parameter %d, rank %d", p, r);
		ok(zero_shard(m->params[p], &data, &first, &count));
		check(stage < 3 || count == cuts[rank + 1] - cuts[rank], "parameter %d: %zu", p,
		      count);
		check(stage < 3 || !count || first == cuts[rank], "parameter %d: %zu", p, first);
		check(!count || (first <= cuts[rank] && cuts[rank + 1] <= first + count),
		      "parameter %d: this rank does not store what it owns", p);
	}
}

/* ---- gradients ------------------------------------------------------------------------------- */

static float gradient(int r, int p, size_t i, int turn)
{
	return signed_unit(mixed(((uint64_t)turn * PARAMS + (uint64_t)p) * 8 + (uint64_t)r) + i);
}

static float summed(int p, size_t i, int turn)
{
	float sum = gradient(0, p, i, turn);

	for (int r = 1; r < world; r++)
		sum += gradient(r, p, i, turn);
	return sum;
}

static void write_gradients(const struct model *m, int group, int turn)
{
	for (int p = 0; p < PARAMS; p++) {
		float *data;

		if (params[p].group != group || !params[p].trainable)
			continue;
		data = zero_gradient_undefined(m->params[p], ZERO_F32);
		check(data, "%s", zero_last_error());
		for (size_t i = 0; i < params[p].count; i++)
			data[i] = gradient(rank, p, i, turn);
	}
}

/* `factor`: what the program has made of the sums. */
static void check_shards(const struct model *m, int group, int turn, float factor)
{
	for (int p = 0; p < PARAMS; p++) {
		size_t first, count, begin = m->cuts[p][rank];
		float *data;

		if (params[p].group != group || !params[p].trainable)
			continue;
		ok(zero_gradient_shard(m->params[p], &data, &first, &count));
		ok(zero_agree(m->job, NULL));
		check(count == m->cuts[p][rank + 1] - begin && (!count || first == begin),
		      "parameter %d: %zu from %zu", p, count, first);
		check(!count == !data, "parameter %d: %zu at %p", p, count, (void *)data);
		for (size_t i = 0; i < count; i++)
			check(data[i] == factor * summed(p, first + i, turn),
			      "parameter %d, element %zu: %a, not %a", p, first + i,
			      (double)data[i], (double)(factor * summed(p, first + i, turn)));
	}
}

static void halve(const struct model *m, int group)
{
	for (int p = 0; p < PARAMS; p++) {
		size_t first, count;
		float *data;

		if (params[p].group != group || !params[p].trainable)
			continue;
		ok(zero_gradient_shard(m->params[p], &data, &first, &count));
		ok(zero_agree(m->job, NULL));
		for (size_t i = 0; i < count; i++)
			data[i] *= 0.5F;
	}
	ok(zero_agree(m->job, NULL));
}

static double norm_of(const struct model *m, unsigned groups)
{
	zero_group *some[GROUPS];
	size_t count = 0;
	double norm;

	for (int g = 0; g < GROUPS; g++)
		if (groups & 1U << g)
			some[count++] = m->groups[g];
	ok(zero_grad_norm(m->job, some, count, &norm));
	return norm;
}

static double reference_norm(unsigned groups, int turn)
{
	double sum = 0;

	for (int p = 0; p < PARAMS; p++)
		for (size_t i = 0; i < params[p].count; i++)
			if (groups & 1U << params[p].group && params[p].trainable)
				sum += (double)summed(p, i, turn) * (double)summed(p, i, turn);
	return sqrt(sum);
}

/* The bits are the same at each stage. */
static void check_norm(const struct model *m, int turn)
{
	static double first[8];
	const double norm = norm_of(m, 5), want = reference_norm(5, turn);

	check(fabs(norm - want) <= 1e-12 * want, "norm %.17g, not %.17g", norm, want);
	check(!first[turn] || norm == first[turn], "norm %a, before it was %a", norm, first[turn]);
	first[turn] = norm;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Exact in each type. */
static float value(int p, size_t i, int turn)
{
	return (float)((i * 7 + (size_t)turn * 13 + (size_t)p) % 128) - 64;
}

static uint16_t to_bf16(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t h)
{
	uint32_t bits = (uint32_t)h << 16;
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

/* Writes what this rank owns of a group. */
static void write_values(const struct model *m, int group, int turn)
{
	for (int p = 0; p < PARAMS; p++) {
		size_t first, count, end = m->cuts[p][rank + 1];
		void *data;

		if (params[p].group != group || !params[p].trainable)
			continue;
		ok(zero_shard(m->params[p], &data, &first, &count));
		for (size_t i = m->cuts[p][rank]; i < end; i++)
			if (params[p].dtype == ZERO_F32)
				((float *)data)[i - first] = value(p, i, turn);
			else
				((uint16_t *)data)[i - first] = to_bf16(value(p, i, turn));
	}
}

/* All ranks have values of that turn, plus `more` in f32; turn -1: 0. */
static void check_values(const struct model *m, int group, int turn, float more)
{
	ok(zero_gather(m->groups[group], ZERO_DTYPE_PARAM));
	ok(zero_agree(m->job, NULL));
	for (int p = 0; p < PARAMS; p++) {
		const void *data = zero_data(m->params[p]);

		for (size_t i = 0; params[p].group == group && i < params[p].count; i++) {
			float want =
				turn < 0 || !params[p].trainable ? 0 : value(p, i, turn) + more;
			float got = params[p].dtype == ZERO_F32
					    ? ((const float *)data)[i]
					    : from_bf16(((const uint16_t *)data)[i]);

			want = params[p].dtype == ZERO_F32 ? want : from_bf16(to_bf16(want));
			check(got == want, "parameter %d, element %zu: %g, not %g", p, i,
			      (double)got, (double)want);
		}
	}
	ok(zero_agree(m->job, NULL));
	ok(zero_release(m->groups[group]));
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* Leaves large numbers in the memory that gradients come from next. */
static void poison(const struct model *m)
{
	float *data = zero_gradient(m->params[3]);
	zero_group *group = m->groups[POISON];

	check(data, "%s", zero_last_error());
	for (size_t i = 0; i < LONGEST; i++)
		data[i] = 1e18F;
	ok(zero_reduce(group));
	ok(zero_step_begin(m->job, &group, 1));
	ok(zero_step_end(m->job));
}

/* Steps groups 0 and 2; group 1 is not touched. */
static void own_step(const struct model *m, int turn)
{
	zero_group *groups[] = {m->groups[0], m->groups[2]};
	size_t first, count;
	float *data;

	poison(m);
	ok(zero_gradient_shard(m->params[1], &data, &first, &count));
	check(!data, "there are sums before the reduce");
	write_gradients(m, 0, turn);
	write_gradients(m, 2, turn);
	ok(zero_reduce(groups[0]));
	ok(zero_reduce(groups[1]));
	check_shards(m, 0, turn, 1);
	check_shards(m, 2, turn, 1);
	check_norm(m, turn);
	halve(m, 0);
	check_shards(m, 0, turn, 0.5F);
	check(fabs(norm_of(m, 1) - reference_norm(1, turn) / 2) <= 1e-12 * norm_of(m, 1), "norm %g",
	      norm_of(m, 1));
	check(norm_of(m, 2) == 0, "norm %g of what was not reduced", norm_of(m, 2));
	ok(zero_step_begin(m->job, groups, 2));
	write_values(m, 0, turn);
	write_values(m, 2, turn);
	ok(zero_step_end(m->job));
	check_values(m, 0, turn, 0);
	check_values(m, 2, turn, 0);
	check_values(m, 1, -1, 0);
	check(memory_of(m).gradients.now == m->before.gradients.now, "%zu bytes of gradients",
	      memory_of(m).gradients.now);
	check(memory_of(m).optimizer.now == m->before.optimizer.now, "%zu bytes of states",
	      memory_of(m).optimizer.now);
}

static void steps(int stage)
{
	struct model m = begin(stage);

	check_cuts(&m, stage);
	for (int turn = 0; turn < 3; turn++)
		own_step(&m, turn);
	ok(zero_close(m.job));
}

/* 16-bit values follow their masters, which all ranks step at stage 0. */
static void masters(int stage)
{
	const zero_adamw still = {.beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
	struct model m = begin(stage);
	zero_group *group = m.groups[2];
	size_t first, count;
	float *data;

	own_step(&m, 0);
	ok(zero_master(m.params[4], &data, &first, &count));
	check(!data, "there is a master");
	ok(zero_keep_masters(m.job));
	ok(zero_step_begin(m.job, &group, 1));
	ok(zero_master(m.params[4], &data, &first, &count));
	check(count == m.cuts[4][rank + 1] - m.cuts[4][rank] && !count == !data, "%zu at %p", count,
	      (void *)data);
	ok(zero_agree(m.job, NULL));
	for (size_t i = 0; i < count; i++) {
		check(data[i] == value(4, first + i, 0), "master %zu is %g", first + i,
		      (double)data[i]);
		data[i] = value(4, first + i, 1) + 0.3F;
	}
	ok(zero_step_end(m.job));
	check_values(&m, 2, 1, 0.3F);
	ok(zero_step(m.job, &still, NULL));
	check_values(&m, 2, 1, 0.3F);
	ok(zero_master(m.params[1], &data, &first, &count));
	check(!data, "an f32 parameter has a master");
	ok(zero_close(m.job));
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(int stage)
{
	const zero_adamw plain = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.95F, .eps = 1e-8F};
	struct model m = begin(stage);
	size_t first, count;
	float *data;

	fails(zero_step_end(m.job), ZERO_E_STATE, "without zero_step_begin");
	fails(zero_gradient_shard(m.params[5], &data, &first, &count), ZERO_E_INVALID,
	      "not trainable");
	if (rank == last)
		ok(zero_prefetch(NULL, 0, ZERO_DTYPE_PARAM));
	ok(zero_gather(m.groups[1], ZERO_DTYPE_PARAM));
	if (rank != last)
		ok(zero_release(m.groups[1]));
	fails(zero_step_begin(m.job, m.groups, GROUPS), ZERO_E_STATE, "'b' is gathered: release");
	check(zero_last_error_rank() == last, "%d", zero_last_error_rank());
	if (rank == last)
		ok(zero_release(m.groups[1]));
	ok(zero_step_begin(m.job, m.groups, 1));
	fails(zero_step_begin(m.job, m.groups, 1), ZERO_E_STATE, "call zero_step_end first");
	fails(zero_gather(m.groups[0], ZERO_DTYPE_PARAM), ZERO_E_STATE,
	      "while the program steps it");
	fails(zero_reduce(m.groups[0]), ZERO_E_STATE, "while the program steps it");
	check(zero_gathered_address(m.params[1], ZERO_DTYPE_PARAM), "%s", zero_last_error());
	fails(zero_step(m.job, &plain, NULL), ZERO_E_STATE, "call zero_step_end first");
	/* Other groups go on. */
	check_values(&m, 1, -1, 0);
	ok(zero_step_end(m.job));
	own_step(&m, 0);
	if (world > 1)
		fails(zero_step_begin(m.job, m.groups + (rank == last), 1), ZERO_E_ORDER,
		      "zero_step_begin of 1 groups");
	ok(zero_close(m.job));
}

/* ---- after an exception ---------------------------------------------------------------------- */

/* Ranks are at one place in the order of operations, and have released as they like. */
static void reset(int stage)
{
	struct model m = begin(stage);

	for (int turn = 0; turn < 2; turn++) {
		ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
		ok(zero_gather(m.groups[0], ZERO_DTYPE_PARAM));
		ok(zero_prefetch(m.groups + 1, 1, ZERO_DTYPE_PARAM));
		if (rank == last)
			ok(zero_release(m.groups[0]));
		check(zero_gradient(m.params[3]), "%s", zero_last_error());
		write_gradients(&m, 2, turn);
		ok(zero_reduce(m.groups[2]));
		ok(zero_step_begin(m.job, m.groups + 2, 1));
		write_values(&m, 2, turn);
		ok(zero_reset(m.job));
		for (int p = 0; p < PARAMS; p++)
			check(!zero_data(m.params[p]), "parameter %d is gathered", p);
		check(memory_of(&m).gradients.now == m.before.gradients.now,
		      "%zu bytes of gradients", memory_of(&m).gradients.now);
		check(memory_of(&m).gathered.now == m.before.gathered.now, "%zu bytes of outputs",
		      memory_of(&m).gathered.now);
		fails(zero_step_end(m.job), ZERO_E_STATE, "without zero_step_begin");
		check_values(&m, 2, turn, 0);
		own_step(&m, turn);
	}
	ok(zero_close(m.job));
}

/* A rank is one gather ahead: the job cannot go on, and says so. */
static void parted(int stage)
{
	struct model m = begin(stage);

	for (int turn = 0; turn < 2; turn++)
		for (int g = 0; g < GROUPS; g++) {
			ok(zero_gather(m.groups[g], ZERO_F32));
			ok(zero_release(m.groups[g]));
		}
	if (rank == last)
		ok(zero_prefetch(m.groups, 1, ZERO_F32));
	fails(zero_reset(m.job), ZERO_E_ORDER, "zero_reset");
	ok(zero_close(m.job));
}

int main(void)
{
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	ok(zero_close(job));
	for (int stage = 0; stage < 4; stage++) {
		steps(stage);
		masters(stage);
		refused(stage);
		reset(stage);
		if (world > 1)
			parted(stage);
	}
	return 0;
}

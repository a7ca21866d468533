/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the program's own: gradient descent on what each rank owns, against a reference of the
 * whole model in f64; what may be called meanwhile; and the way back after an exception.
 */
#include <math.h>

#include "ranks.h"

enum { GROUPS = 3, PARAMS = 3, MOST = 5000, STEPS = 3, REDUCES = 2 };

static const size_t counts[GROUPS][PARAMS] = {{1, 0, 777}, {64, 129, 4099}, {3, 2000, 65}};
static const zero_dtype kinds[PARAMS] = {ZERO_F32, ZERO_F32, ZERO_BF16};
static const double rate = 0.125; /* exact, as are the sums of small multiples of 2^-8 */

static int world, rank;

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS][PARAMS];
	double values[GROUPS][PARAMS][MOST]; /* the reference */
};

static float rounded(double value, zero_dtype dtype)
{
	union {
		float f;
		uint32_t bits;
	} u = {.f = (float)value};

	if (dtype == ZERO_BF16)
		u.bits = (u.bits + 0x7fff + (u.bits >> 16 & 1)) & 0xffff0000;
	return u.f;
}

static float element(const void *data, zero_dtype dtype, size_t i)
{
	union {
		float f;
		uint32_t bits;
	} u;

	if (dtype == ZERO_F32)
		return ((const float *)data)[i];
	u.bits = (uint32_t)((const uint16_t *)data)[i] << 16;
	return u.f;
}

static void set_element(void *data, zero_dtype dtype, size_t i, double value)
{
	union {
		float f;
		uint32_t bits;
	} u = {.f = rounded(value, dtype)};

	if (dtype == ZERO_F32)
		((float *)data)[i] = u.f;
	else
		((uint16_t *)data)[i] = (uint16_t)(u.bits >> 16);
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	zero_dtype dtype = *(zero_dtype *)context;

	for (size_t i = 0; i < count; i++)
		set_element(elements, dtype, i, (double)((first + i) % 13) - 6);
	return ZERO_OK;
}

/* the last group's first parameter is not */
static bool trainable(int g, int p)
{
	return g < GROUPS - 1 || p;
}

static struct model *begin(const char *settings)
{
	struct model *m = calloc(1, sizeof(*m));

	check(m, "no memory");
	m->job = open_job("%s", settings);
	for (int g = 0; g < GROUPS; g++) {
		m->groups[g] = new_group(m->job, (const char *[]){"a", "b", "c"}[g]);
		for (int p = 0; p < PARAMS; p++) {
			char name[8];

			snprintf(name, sizeof(name), "%d.%d", g, p);
			m->params[g][p] = new_param(m->groups[g], name, kinds[p], counts[g][p],
						    trainable(g, p));
		}
	}
	ok(zero_layout(m->job));
	for (int g = 0; g < GROUPS; g++)
		for (int p = 0; p < PARAMS; p++) {
			zero_dtype dtype = kinds[p];
			zero_source source = zero_from_callback(fill, &dtype);

			ok(zero_load(m->params[g][p], &source));
			for (size_t i = 0; i < counts[g][p]; i++)
				m->values[g][p][i] = (double)(i % 13) - 6;
		}
	return m;
}

static void end(struct model *m)
{
	ok(zero_close(m->job));
	free(m);
}

/* The gradient of an element on a rank, a small multiple of 2^-8. */
static double gradient(int of_rank, int step, int reduce, int g, int p, size_t i)
{
	uint64_t key = (((((uint64_t)of_rank * 8 + (uint64_t)step) * 8 + (uint64_t)reduce) * 8 +
			 (uint64_t)g) *
				8 +
			(uint64_t)p) *
			       8192 +
		       i;

	return ((double)(mixed(key + test_seed()) % 257) - 128) / 256;
}

static double sum_of(int step, int g, int p, size_t i)
{
	double sum = 0;

	for (int r = 0; r < world; r++)
		for (int reduce = 0; reduce < REDUCES; reduce++)
			sum += gradient(r, step, reduce, g, p, i);
	return sum;
}

static void reduce_all(struct model *m, int step)
{
	for (int reduce = 0; reduce < REDUCES; reduce++)
		for (int g = GROUPS - 1; g >= 0; g--) {
			for (int p = 0; p < PARAMS; p++) {
				float *sums;

				if (!trainable(g, p))
					continue;
				sums = zero_gradient_undefined(m->params[g][p], ZERO_F32);
				check(sums || !counts[g][p], "%s", zero_last_error());
				for (size_t i = 0; i < counts[g][p]; i++)
					sums[i] = (float)gradient(rank, step, reduce, g, p, i);
			}
			ok(zero_reduce(m->groups[g]));
			/* In a grid the next reduce then adds to what is summed over the teams. */
			if (step == STEPS - 1)
				ok(zero_reduce_replicas(m->job, &m->groups[g], 1));
		}
}

/* ---- what a rank owns ------------------------------------------------------------------------ */

static void check_cuts(const zero_group *group, const zero_param *param, size_t count, size_t first,
		       size_t owned)
{
	size_t cuts[9], shard = 0;

	while (zero_shard_owner(group, (int)shard) != rank)
		shard++;
	ok(zero_param_cuts(param, cuts));
	check(!cuts[0] && cuts[world] == count, "%zu to %zu of %zu", cuts[0], cuts[world], count);
	for (int r = 0; r < world; r++)
		check(cuts[r] <= cuts[r + 1], "%zu, %zu", cuts[r], cuts[r + 1]);
	check(owned == cuts[shard + 1] - cuts[shard] && (!owned || first == cuts[shard]),
	      "%zu from %zu, cuts %zu to %zu", owned, first, cuts[shard], cuts[shard + 1]);
}

/* Steps one parameter of this rank by its gradient, which is made half as long. */
static void step_param(struct model *m, int step, int g, int p)
{
	zero_param *param = m->params[g][p];
	size_t first, count, stored_first, stored_count;
	float *sums;
	zero_dtype dtype = kinds[p];
	void *stored;

	ok(zero_gradient_shard(param, &sums, &first, &count));
	check_cuts(m->groups[g], param, counts[g][p], first, count);
	ok(zero_shard(param, &stored, &stored_first, &stored_count));
	check(stored_first <= first && stored_first + stored_count >= first + count,
	      "stores %zu from %zu", stored_count, stored_first);
	for (size_t i = 0; i < count; i++) {
		double want = sum_of(step, g, p, first + i);

		check((double)sums[i] == want, "step %d, %s element %zu: %a, not %a", step,
		      zero_param_name(param), first + i, (double)sums[i], want);
		sums[i] /= 2;
		set_element(stored, dtype, first + i - stored_first,
			    (double)element(stored, dtype, first + i - stored_first) -
				    rate * (double)sums[i]);
	}
}

static void step_reference(struct model *m, int step, int groups)
{
	for (int g = 0; g < groups; g++)
		for (int p = 0; p < PARAMS; p++)
			for (size_t i = 0; trainable(g, p) && i < counts[g][p]; i++) {
				double *value = &m->values[g][p][i];

				*value -= rate * sum_of(step, g, p, i) / 2;
				*value = (double)rounded(*value, kinds[p]);
			}
}

static void check_values(struct model *m, const char *when)
{
	for (int g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		for (int p = 0; p < PARAMS; p++)
			for (size_t i = 0; i < counts[g][p]; i++) {
				float got = element(zero_data(m->params[g][p]), kinds[p], i);
				float want = rounded(m->values[g][p][i], kinds[p]);

				check(got == want, "%s, %s element %zu: %a, not %a", when,
				      zero_param_name(m->params[g][p]), i, (double)got,
				      (double)want);
			}
		ok(zero_release(m->groups[g]));
	}
}

static size_t optimizer_bytes(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.optimizer.now;
}

static size_t gradient_bytes(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.gradients.now;
}

/* Steps all groups, or all but the last one, whose sums stay. */
/* Each rank sets a flag of its own. */
static void backward_end(struct model *m)
{
	unsigned char flags[9] = {[8] = 1};

	flags[rank] = 1;
	ok(zero_backward_end(m->job, flags, sizeof(flags)));
	for (int r = 0; r < 8; r++)
		check(flags[r] == (r < world), "flag %d of %d ranks is %d", r, world, flags[r]);
	check(flags[8] == 1, "flag 8");
}

static uint64_t agreements(const struct model *m)
{
	zero_traffic traffic;

	ok(zero_traffic_now(m->job, &traffic));
	return traffic.agreements;
}

static void train(struct model *m, const char *settings)
{
	size_t before = gradient_bytes(m->job);

	for (int step = 0; step < STEPS; step++) {
		int groups = step == 1 ? GROUPS - 1 : GROUPS;

		reduce_all(m, step);
		if (step)
			backward_end(m);
		ok(zero_step_begin(m->job, m->groups, (size_t)groups));
		for (int g = 0; g < groups; g++)
			for (int p = 0; p < PARAMS; p++)
				if (trainable(g, p))
					step_param(m, step, g, p);
		ok(zero_step_end(m->job, NULL));
		step_reference(m, step, groups);
		check_values(m, settings);
		if (step == 1) /* what was reduced for the last group counts no more */
			ok(zero_reset(m->job));
		ok(zero_agree(m->job, NULL));
		check(gradient_bytes(m->job) == before, "%zu of gradients, %zu before",
		      gradient_bytes(m->job), before);
	}
	check(!optimizer_bytes(m->job), "%zu of moments", optimizer_bytes(m->job));
}

static uint64_t step_agreements; /* of the last step of the library's own */

/* A step of the library's own, after which all ranks have the same bits. Returns what tells
   them. */
static uint64_t step_by_library(struct model *m, bool means)
{
	/* an eps by which the gradients' size matters in a first step */
	const zero_adamw adamw = {
		.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1, .gradients_are_means = means};
	uint64_t told = 0, before;
	double all[8];

	before = agreements(m);
	ok(zero_step(m->job, &adamw, NULL));
	step_agreements = agreements(m) - before;
	for (int g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		for (int p = 0; p < PARAMS; p++) {
			const uint8_t *bytes = zero_data(m->params[g][p]);
			uint64_t hash = 0;

			for (size_t i = 0; i < counts[g][p] * zero_dtype_size(kinds[p]); i++)
				hash = mixed(hash + bytes[i]);
			all_values(m->job, (double)(hash >> 12), all);
			for (int r = 1; r < world; r++)
				check(all[r] == all[0], "%s differs on rank %d",
				      zero_param_name(m->params[g][p]), r);
			told = mixed(told + hash);
		}
		ok(zero_release(m->groups[g]));
	}
	return told;
}

static void own_steps(const char *settings)
{
	struct model *m = begin(settings);

	train(m, settings);
	reduce_all(m, 0);
	step_by_library(m, false);
	end(m);
}

/* What the ranks have told at the end of the backward pass changes no bit. */
static void told(const char *settings)
{
	uint64_t bits[2];

	for (int tell = 0; tell < 2; tell++) {
		struct model *m = begin(settings);

		bits[tell] = 0;
		for (int step = 0; step < STEPS; step++) {
			reduce_all(m, step);
			if (tell)
				backward_end(m);
			bits[tell] = mixed(bits[tell] + step_by_library(m, true));
			check(!on_gpu() || world == 1 || step_agreements == (!tell || !step),
			      "%s: step %d agrees %llu times", settings, step,
			      (unsigned long long)step_agreements);
		}
		end(m);
	}
	check(bits[0] == bits[1], "%s: other values", settings);
}

/* A rank that cannot begin a step of which all is told ends the job of those that can. */
static void begins_not(void)
{
	struct model *m = begin("stage=3 share=1");

	reduce_all(m, 0);
	backward_end(m);
	if (rank == world - 1)
		m->groups[1] = m->groups[0];
	if (rank == world - 1 || !on_gpu()) {
		fails(zero_step_begin(m->job, m->groups, GROUPS),
		      on_gpu() ? ZERO_E_ORDER : ZERO_E_INVALID, "is twice in a step");
	} else {
		ok(zero_step_begin(m->job, m->groups, GROUPS));
		fails(zero_agree(m->job, NULL), ZERO_E_ORDER, "is twice in a step");
	}
	ok(zero_close(m->job));
	free(m);
}

/* A program that takes the sums and gives them back later steps as if it had not. */
static void taken(const char *settings)
{
	uint64_t bits[2];

	for (int take = 0; take < 2; take++) {
		struct model *m = begin(settings);
		static float kept[GROUPS][PARAMS][MOST];
		size_t first, count, before = gradient_bytes(m->job);
		float *sums;

		reduce_all(m, 0);
		ok(zero_reduce_replicas(m->job, m->groups, GROUPS));
		for (int g = 0; take && g < GROUPS; g++) {
			for (int p = 0; p < PARAMS; p++) {
				if (!trainable(g, p))
					continue;
				ok(zero_gradient_shard(m->params[g][p], &sums, &first, &count));
				if (count)
					memcpy(kept[g][p], sums, count * sizeof(float));
			}
			ok(zero_gradient_sums(m->groups[g], false));
			ok(zero_gradient_sums(m->groups[g], false));
		}
		ok(zero_agree(m->job, NULL));
		check(!take || gradient_bytes(m->job) == before, "%zu bytes of gradients",
		      gradient_bytes(m->job));
		for (int g = 0; take && g < GROUPS; g++) {
			ok(zero_gradient_sums(m->groups[g], true));
			ok(zero_gradient_sums(m->groups[g], true));
			for (int p = 0; p < PARAMS; p++) {
				if (!trainable(g, p))
					continue;
				ok(zero_gradient_shard(m->params[g][p], &sums, &first, &count));
				for (size_t i = 0; i < count; i++) {
					check(sums[i] == 0, "%g at first", (double)sums[i]);
					sums[i] = kept[g][p][i];
				}
			}
		}
		bits[take] = step_by_library(m, false);
		end(m);
	}
	check(bits[0] == bits[1], "%s: other values of sums that were taken", settings);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refused(void)
{
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 100, true);
	zero_param *frozen = new_param(group, "f", ZERO_F32, 100, false);
	const zero_adamw adamw = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1};
	size_t cuts[9], first, count;
	float *data;

	fails(zero_param_cuts(param, cuts), ZERO_E_STATE, "'p' has no cuts before zero_layout");
	fails(zero_gradient_shard(param, &data, &first, &count), ZERO_E_STATE,
	      "before zero_layout");
	fails(zero_step_begin(job, &group, 1), ZERO_E_STATE, "after zero_layout");
	ok(zero_layout(job));
	fails(zero_gradient_shard(frozen, &data, &first, &count), ZERO_E_INVALID,
	      "'f' is not trainable");
	ok(zero_gradient_shard(param, &data, &first, &count));
	check(!data, "a gradient before a reduce");
	fails(zero_step_end(job, NULL), ZERO_E_STATE, "without zero_step_begin");
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	if (rank < world - 1)
		ok(zero_release(group));
	fails(zero_step_begin(job, &group, 1), ZERO_E_STATE, "'g' is gathered");
	check(zero_last_error_rank() == world - 1, "%d", zero_last_error_rank());
	if (rank == world - 1)
		ok(zero_release(group));
	ok(zero_step_begin(job, &group, 1));
	fails(zero_step_begin(job, &group, 1), ZERO_E_STATE, "call zero_step_end first");
	fails(zero_step(job, &adamw, NULL), ZERO_E_STATE, "call zero_step_end first");
	fails(zero_restore(job, "nowhere", NULL), ZERO_E_STATE, "zero_restore is refused");
	fails(zero_gather(group, ZERO_DTYPE_PARAM), ZERO_E_STATE, "call zero_step_end first");
	fails(zero_reduce(group), ZERO_E_STATE, "'g' is reduced while the program steps it");
	check(zero_gathered_address(param, ZERO_BF16), "%s", zero_last_error());
	ok(zero_step_end(job, NULL));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	ok(zero_release(group));
	if (world > 1)
		fails(zero_step_begin(job, &group, rank == 0), ZERO_E_ORDER, "of 0 groups");
	ok(zero_close(job));
}

/* ---- writes outside of a step ---------------------------------------------------------------- */

static void written(const char *settings)
{
	const zero_adamw adamw = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1};
	struct model *m = begin(settings);
	zero_group *group = m->groups[0], *other = m->groups[1];

	fails(zero_write_end(group), ZERO_E_STATE, "without zero_write_begin");
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	if (rank < world - 1)
		ok(zero_release(group));
	fails(zero_write_begin(group), ZERO_E_STATE, "'a' is gathered");
	if (rank == world - 1)
		ok(zero_release(group));
	ok(zero_write_begin(group));
	ok(zero_write_begin(other));
	fails(zero_write_begin(group), ZERO_E_STATE, "call zero_write_end first");
	fails(zero_gather(group, ZERO_DTYPE_PARAM), ZERO_E_STATE, "call zero_write_end first");
	fails(zero_step(m->job, &adamw, NULL), ZERO_E_STATE, "call zero_write_end first");
	fails(zero_step_begin(m->job, m->groups, 1), ZERO_E_STATE, "call zero_write_end first");
	fails(zero_restore(m->job, "nowhere", NULL), ZERO_E_STATE, "zero_restore is refused");
	fails(zero_save(m->job, "nowhere", NULL), ZERO_E_STATE, "zero_save is refused");
	ok(zero_write_end(group));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	ok(zero_release(group));
	ok(zero_reset(m->job)); /* ends that of the other group */
	ok(zero_step_begin(m->job, m->groups, 1));
	fails(zero_write_begin(other), ZERO_E_STATE, "call zero_step_end first");
	ok(zero_step_end(m->job, NULL));
	check_values(m, "after writes of nothing");
	end(m);
}

/* ---- after an exception ---------------------------------------------------------------------- */

/* It comes in the middle of a backward pass, or between the begin and the end of a step. */
static void reset(const char *settings)
{
	struct model *m = begin(settings);
	size_t before = gradient_bytes(m->job);

	for (int step = 0; step < 2; step++) {
		ok(zero_gather(m->groups[0], ZERO_BF16));
		ok(zero_gather(m->groups[1], ZERO_DTYPE_PARAM));
		ok(zero_gather(m->groups[1], ZERO_DTYPE_PARAM));
		ok(zero_prefetch(&m->groups[2], 1, ZERO_DTYPE_DEFAULT));
		if (rank == world - 1)
			ok(zero_release(m->groups[1]));
		check(zero_gradient(m->params[1][0]), "%s", zero_last_error());
		reduce_all(m, 0);
		check(zero_gradient(m->params[0][2]), "%s", zero_last_error());
		if (step) { /* a group that is gathered cannot be stepped */
			ok(zero_release(m->groups[0]));
			ok(zero_step_begin(m->job, m->groups, 1));
		}
		ok(zero_reset(m->job));
		check(!zero_data(m->params[1][0]), "'b' is still gathered");
		ok(zero_agree(m->job, NULL));
		check(gradient_bytes(m->job) == before, "%zu of gradients, %zu before",
		      gradient_bytes(m->job), before);
		check_values(m, "after a reset");
	}
	train(m, settings);
	end(m);
}

/* A rank is ahead by a gather, of all ranks or of a team: the job cannot go on, and says so. */
static void diverged(bool in_team)
{
	zero_job *job = open_job("stage=3 share=1");
	int ranks[] = {0, world - 1};
	zero_group *groups[2];
	zero_team *team;

	ok(zero_team_new(job, ranks, 2, &team));
	ok(zero_group_new(job, "all", NULL, &groups[0]));
	ok(zero_group_new(job, "some", team, &groups[1]));
	for (int g = 0; g < 2; g++)
		new_param(groups[g], g ? "q" : "p", ZERO_F32, 1000, true);
	ok(zero_layout(job));
	for (int turn = 0; turn < 2; turn++)
		for (int g = 0; g < 2; g++)
			if (!g || zero_team_rank(team) >= 0) {
				ok(zero_gather(groups[g], ZERO_F32));
				ok(zero_release(groups[g]));
			}
	if (rank == world - 1)
		ok(zero_prefetch(&groups[in_team], 1, ZERO_F32));
	fails(zero_reset(job), ZERO_E_ORDER, "zero_reset");
	ok(zero_close(job));
}

/* A step of the library's own takes the sums that the program has halved, at every stage. */
static void clipped(const char *settings)
{
	static uint64_t stepped;
	uint64_t bits;
	struct model *m = begin(settings);

	reduce_all(m, 0);
	ok(zero_reduce_replicas(m->job, m->groups, GROUPS));
	for (int g = 0; g < GROUPS; g++)
		for (int p = 0; p < PARAMS; p++) {
			size_t first, count;
			float *sums;

			if (!trainable(g, p))
				continue;
			ok(zero_gradient_shard(m->params[g][p], &sums, &first, &count));
			for (size_t i = 0; i < count; i++)
				sums[i] /= 2;
		}
	bits = step_by_library(m, false);
	check(!stepped || bits == stepped, "%s: other values than at stage 0", settings);
	stepped = bits;
	end(m);
}

/* Steps of the program's own complete a save in the background, as soon as all have written. */
static void completes_save(void)
{
	struct model *m = begin("stage=3");
	char dir[1100], latest[1200];
	double all[8] = {0};

	snprintf(dir, sizeof(dir), "%s", file_path("own"));
	snprintf(latest, sizeof(latest), "%s/latest", dir);
	ok(zero_save(m->job, dir, &(zero_save_options){.step = 7, .background = true}));
	while (!all[0]) {
		backward_end(m);
		ok(zero_step_begin(m->job, m->groups, GROUPS));
		ok(zero_step_end(m->job, NULL));
		all_values(m->job, !access(latest, F_OK), all);
	}
	ok(zero_save_wait(m->job));
	end(m);
}

/* Groups of a later layout come and go, whatever they are in the midst of. */
static void dropped(const char *settings)
{
	struct model *m = begin(settings);
	size_t shape[2][1] = {{30011}, {70001}}, after[3];

	for (int turn = 0; turn < 3; turn++) {
		zero_group *late[2];
		zero_param *params[2];
		zero_memory memory;

		for (int g = 0; g < 2; g++) {
			zero_param_spec spec = {.name = g ? "late b" : "late a",
						.dtype = ZERO_F32,
						.ndim = 1,
						.shape = shape[g],
						.trainable = true};
			ok(zero_group_new(m->job, g ? "B" : "A", NULL, &late[g]));
			ok(zero_param_new(late[g], &spec, &params[g]));
		}
		fails(zero_group_drop(late[0]), ZERO_E_STATE, "group 'A' is dropped before");
		ok(zero_layout(m->job));
		for (int g = 0; g < 2; g++) {
			zero_source source = zero_from_constant(g + 1);

			ok(zero_load(params[g], &source));
		}
		ok(zero_gather(late[0], ZERO_BF16));
		ok(zero_gather(late[1], ZERO_DTYPE_PARAM));
		check(*(const float *)zero_data(params[1]) == 2, "values of a late group");
		check(zero_gradient(params[1]), "%s", zero_last_error());
		if (turn) {
			ok(zero_reduce(late[1]));
			check(zero_gradient(params[1]), "%s", zero_last_error());
		}
		for (int g = 0; g < 2; g++)
			ok(zero_group_drop(late[turn == 1 ? 1 - g : g]));
		ok(zero_memory_now(m->job, &memory));
		after[turn] = memory.shards.now + memory.gathered.now + memory.gradients.now +
			      memory.optimizer.now;
	}
	check(after[1] == after[0] && after[2] == after[0], "%zu, %zu, %zu bytes after groups went",
	      after[0], after[1], after[2]);
	ok(zero_step_begin(m->job, m->groups, 1));
	fails(zero_group_drop(m->groups[0]), ZERO_E_STATE, "zero_group_drop is refused");
	ok(zero_step_end(m->job, NULL));
	train(m, settings);
	end(m);
}

int main(void)
{
	static const char *const settings[] = {"stage=0",
					       "stage=1",
					       "stage=2",
					       "stage=3",
					       "stage=1 share=1",
					       "stage=3 share=1",
					       "stage=3 allgather=single"};
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	refused();
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		own_steps(settings[i]);
		written(settings[i]);
		clipped(settings[i]);
		dropped(settings[i]);
		taken(settings[i]);
		if (settings[i][6] != '0')
			told(settings[i]);
	}
	for (int ranks = 1; ranks < world; ranks++) {
		char text[64];

		if (world % ranks)
			continue;
		snprintf(text, sizeof(text), "stage=3 shard=%d", ranks);
		own_steps(text);
		written(text);
		clipped(text);
		dropped(text);
		taken(text);
		reset(text);
	}
	completes_save();
	reset("stage=3");
	reset("stage=1");
	if (world > 1) {
		diverged(false);
		begins_not();
	}
	/* the stand-in for a device has the host wait for a gather that does not end */
	if (world > 1 && !on_gpu())
		diverged(true);
	return 0;
}

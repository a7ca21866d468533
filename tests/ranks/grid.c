/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of the model for each team of ranks: which ranks own what, the bytes that are sent between
 * teams, how `auto` chooses by memory, checkpoints from one grid to another, and what is refused.
 * The property test has the values.
 */
#include "ranks.h"

enum { COUNT = 1 << 20, SMALL = 5000 };

static int world, rank;

static int shard_ranks(zero_job *job)
{
	return atoi(zero_setting(job, "shard"));
}

/* A number that this rank has, and all others too. */
static void same_on_all(zero_job *job, double mine, const char *what)
{
	double all[16];

	all_values(job, mine, all);
	for (int r = 0; r < world; r++)
		check(all[r] == all[0], "%s: %g on rank %d, %g on rank 0", what, all[r], r, all[0]);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static double sum_over_ranks(zero_job *job, double mine)
{
	double all[16], sum = 0;

	all_values(job, mine, all);
	for (int r = 0; r < world; r++)
		sum += all[r];
	return sum;
}

/* The bytes that all ranks send in a step of three micro-batches, bf16 with f32 gradients. */
static double step_bytes(const char *settings)
{
	const zero_adamw adamw = {.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1};
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_BF16, COUNT, true);
	zero_traffic before, after;
	double all;

	ok(zero_layout(job));
	ok(zero_traffic_now(job, &before));
	for (int micro = 0; micro < 3; micro++) {
		float *gradient;

		for (int pass = 0; pass < 2; pass++) {
			ok(zero_gather(group, ZERO_DTYPE_PARAM));
			ok(zero_release(group));
		}
		gradient = zero_gradient(param);
		check(gradient, "%s", zero_last_error());
		for (size_t i = 0; i < COUNT; i++)
			gradient[i] += 1;
		ok(zero_reduce(group));
	}
	ok(zero_step(job, &adamw, NULL));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	ok(zero_release(group));
	ok(zero_agree(job, NULL));
	ok(zero_traffic_now(job, &after));
	all = sum_over_ranks(job, (double)(after.bytes_sent - before.bytes_sent));
	ok(zero_close(job));
	return all;
}

/* With a team for each node, whose ranks share memory: 6 bytes an element, times (n - 1) / n, of
   each of n nodes, however many micro-batches there are. */
static void sends_little(void)
{
	zero_job *job = open_job("stage=3");
	int share = atoi(zero_setting(job, "share")), nodes = world / share;
	char settings[32];
	double bytes;

	ok(zero_close(job));
	if (on_gpu() || world % share || nodes == 1)
		return;
	snprintf(settings, sizeof(settings), "stage=3 shard=%d", share);
	bytes = step_bytes(settings);
	check(bytes <= 6.05 * COUNT * (nodes - 1), "%g bytes an element", bytes / COUNT);
	/* all gathers but the last one, which is after the step, and three reduces */
	bytes = step_bytes("stage=3");
	check(bytes >= (3 * 8 + 2) * (double)COUNT * (nodes - 1), "%g bytes an element",
	      bytes / COUNT);
}

/* ---- auto ------------------------------------------------------------------------------------ */

/* Trains with that budget. Returns the ranks of a team; what is in use never exceeds the budget. */
static int chosen(uint64_t budget, bool program_steps, size_t *peak)
{
	const zero_adamw adamw = {.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1};
	char resolved[64];
	zero_group *groups[3];
	zero_param *params[3];
	zero_memory memory;
	zero_job *job;
	int ranks;

	snprintf(resolved, sizeof(resolved), "budget=%llu", (unsigned long long)budget);
	setenv("ZERO_RESOLVED", resolved, 1);
	ok(zero_open(&(zero_options){.settings = "stage=3 shard=auto share=1",
				     .program_steps = program_steps},
		     &job));
	check(!strcmp(zero_setting(job, "shard"), "auto"), "%s", zero_setting(job, "shard"));
	for (int g = 0; g < 3; g++) {
		groups[g] = new_group(job, (const char *[]){"a", "b", "c"}[g]);
		params[g] = new_param(groups[g], (const char *[]){"p", "q", "r"}[g],
				      g == 1 ? ZERO_BF16 : ZERO_F32, COUNT, true);
	}
	ok(zero_layout(job));
	ranks = shard_ranks(job);
	same_on_all(job, ranks, "ranks of a team");
	check(ranks > 0 && world % ranks == 0, "%d of %d", ranks, world);
	for (int step = 0; step < 2; step++) {
		ok(zero_prefetch(groups, 1, ZERO_DTYPE_PARAM));
		for (int g = 0; g < 3; g++) {
			ok(zero_gather(groups[g], ZERO_DTYPE_PARAM));
			if (g < 2)
				ok(zero_prefetch(groups + g + 1, 1, ZERO_DTYPE_PARAM));
			check(zero_gradient(params[g]), "%s", zero_last_error());
			ok(zero_reduce(groups[g]));
			ok(zero_release(groups[g]));
		}
		ok(zero_step(job, &adamw, NULL));
	}
	ok(zero_memory_now(job, &memory));
	*peak = memory.total.peak;
	ok(zero_close(job));
	unsetenv("ZERO_RESOLVED");
	return ranks;
}

static void by_memory(void)
{
	size_t peak, before = 0;
	int ranks = chosen(UINT64_C(1) << 40, false, &peak), last;

	check(ranks == 1, "a huge budget is shared by %d ranks", ranks);
	/* With less than that takes, more ranks share, as far as there are more. */
	while (ranks < world) {
		last = ranks;
		before = peak;
		ranks = chosen(before - 1, false, &peak);
		check(chosen(before - 1, true, &peak) == ranks,
		      "states are not counted if the program steps");
		check(ranks >= last && peak < before, "%d ranks need %zu, %d need %zu", last,
		      before, ranks, peak);
	}
	ranks = chosen(4096, false, &peak);
	check(ranks == world, "what fits nowhere is shared by %d of %d ranks", ranks, world);
}

/* ---- values, and who owns them --------------------------------------------------------------- */

struct model {
	zero_job *job;
	zero_group *group;
	zero_param *param, *half;
	float counts[SMALL];
};

static float value_of(size_t i)
{
	return signed_unit(mixed(test_seed() + i));
}

static void begin(struct model *m, const char *format, int ranks)
{
	const zero_state_spec state = {
		.name = "counts", .dtype = ZERO_F32, .block = 1, .data = m->counts};

	m->job = open_job(format, ranks);
	m->group = new_group(m->job, "g");
	m->param = new_param(m->group, "p", ZERO_F32, SMALL, true);
	m->half = new_param(m->group, "h", ZERO_BF16, SMALL, true);
	ok(zero_layout(m->job));
	ok(zero_state_register(m->param, &state));
}

/* What this rank owns of the f32 parameter. */
static void owned(const struct model *m, size_t *first, size_t *end)
{
	size_t cuts[17];
	int shard = 0;

	ok(zero_param_cuts(m->param, cuts));
	while (zero_shard_owner(m->group, shard) != rank)
		check(++shard < world, "no shard is rank %d's", rank);
	*first = cuts[shard];
	*end = cuts[shard + 1];
}

static void step(struct model *m, int number)
{
	const zero_adamw adamw = {.lr = 0.01F,
				  .beta1 = 0.9F,
				  .beta2 = 0.99F,
				  .eps = 1e-3F,
				  .gradients_are_means = true};
	float *gradients[2] = {zero_gradient(m->param), zero_gradient(m->half)};

	/* Of one rank, so that the order of sums is nothing to the bits. */
	for (size_t i = 0; i < SMALL && rank == number % world; i++)
		gradients[0][i] = gradients[1][i] = value_of(i + (size_t)number * SMALL);
	ok(zero_step(m->job, &adamw, NULL));
}

static uint64_t hash_of(struct model *m)
{
	uint64_t hash = 0;

	ok(zero_gather(m->group, ZERO_DTYPE_PARAM));
	for (int p = 0; p < 2; p++) {
		const unsigned char *data = zero_data(p ? m->half : m->param);

		for (size_t i = 0; i < SMALL * (p ? 2 : 4); i++)
			hash = mixed(hash + data[i]);
	}
	ok(zero_release(m->group));
	return hash;
}

/* What one grid saves any other one goes on with, and ends in the same bits. */
static void restores(int from)
{
	struct model *m = calloc(1, sizeof(*m));
	char path[1100];
	size_t first, end;
	uint64_t want;

	check(m, "no memory");
	snprintf(path, sizeof(path), "%s", file_path("grid"));
	begin(m, "stage=3 shard=%d", from);
	owned(m, &first, &end);
	for (size_t i = first; i < end; i++)
		m->counts[i - first] = (float)i;
	step(m, 0);
	step(m, 1);
	ok(zero_save(m->job, path, NULL));
	step(m, 2);
	want = hash_of(m);
	same_on_all(m->job, (double)(want >> 12), "values");
	ok(zero_close(m->job));
	for (int to = 1; to <= world; to++)
		for (int stage = 3; stage >= (to == world ? 0 : 3); stage--) {
			char format[32];

			if (world % to)
				continue;
			snprintf(format, sizeof(format), "stage=%d shard=%%d", stage);
			begin(m, format, to);
			memset(m->counts, 0xa5, sizeof(m->counts));
			ok(zero_restore(m->job, path, NULL));
			owned(m, &first, &end);
			for (size_t i = first; i < end; i++)
				check(m->counts[i - first] == (float)i, "state %zu is %g", i,
				      (double)m->counts[i - first]);
			step(m, 2);
			check(hash_of(m) == want, "%d to %d ranks, stage %d", from, to, stage);
			ok(zero_close(m->job));
		}
	free(m);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refuses(void)
{
	zero_job *job = open_job("stage=3 shard=%d", world + 1);
	struct model *m = calloc(1, sizeof(*m));
	size_t first, count;
	float *sums;

	check(m, "no memory");
	new_param(new_group(job, "g"), "p", ZERO_F32, 10, true);
	fails(zero_layout(job), ZERO_E_INVALID, "does not divide");
	fails(zero_set_shard(job, 0), ZERO_E_INVALID, "zero_set_shard: shard: '0' is out of range");
	ok(zero_set_shard(job, 1));
	ok(zero_layout(job));
	check(shard_ranks(job) == 1, "%s", zero_setting(job, "shard"));
	fails(zero_set_shard(job, 1), ZERO_E_STATE, "before zero_layout");
	ok(zero_close(job));
	/* one node */
	job = open_job("stage=3 shard=node");
	ok(zero_layout(job));
	check(shard_ranks(job) == world, "%s", zero_setting(job, "shard"));
	ok(zero_close(job));
	begin(m, "stage=3 shard=%d", 1);
	check(zero_shard_owner(m->group, world) == -1 && zero_shard_owner(m->group, -1) == -1,
	      "shards that are not there have owners");
	check(zero_gradient(m->param), "%s", zero_last_error());
	ok(zero_reduce(m->group));
	if (world > 1)
		fails(zero_gradient_shard(m->param, &sums, &first, &count), ZERO_E_STATE,
		      "call zero_reduce_replicas");
	for (int turn = 0; turn < 2; turn++) {
		ok(zero_reduce_replicas(m->job, &m->group, 1));
		ok(zero_gradient_shard(m->param, &sums, &first, &count));
		check(!sums == !count, "no sums of %zu", count);
	}
	ok(zero_close(m->job));
	free(m);
}

/* A rank of each team waits in a gather, and the others for all ranks: none of these has all of its
   ranks, which is found out. */
static void deadlocked(void)
{
	struct model *m = calloc(1, sizeof(*m));
	zero_status status;

	check(m, "no memory");
	begin(m, "stage=3 shard=%d", 2);
	status = rank % 2 ? zero_agree(m->job, NULL) : zero_gather(m->group, ZERO_DTYPE_PARAM);
	check(status == ZERO_E_ORDER, "%s: %s", zero_strerror(status), zero_last_error());
	ok(zero_close(m->job));
	free(m);
}

int main(void)
{
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	sends_little();
	by_memory();
	for (int from = 1; from <= world; from++)
		if (world % from == 0)
			restores(from);
	refuses();
	/* The stand-in for a device has the host wait for a gather that does not end. */
	if (world == 4 && !on_gpu())
		deadlocked();
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a mixed cluster are told different budgets and come to the threshold and the tier of the
 * least. With a path as its argument, and the options of a job as each argument after it, the
 * program instead trains a small model whose groups are those that zerorun's --plan makes of the
 * names, exports it there and prints what rank 0 held.
 */
#include "ranks.h"

/* Of f32, 12 MB: shards of 1 to 4 ranks are whole pages. */
enum { COUNT = 3 << 20 };

#define FLAT  ((uint64_t)COUNT * 4)
#define CHUNK UINT64_C(65536)

static int world, rank;

/* What this rank is told; the rank with the least is another one each time. */
static void tell(int stage, const char *flatten, uint64_t least)
{
	static int turn;
	uint64_t more = (uint64_t)((rank + turn++) % world) << 36;
	char resolved[256];

	snprintf(resolved, sizeof(resolved), "stage=%d flatten=%s stream_chunk=%llu budget=%llu",
		 stage, flatten, (unsigned long long)CHUNK, (unsigned long long)(least + more));
	setenv("ZERO_RESOLVED", resolved, 1);
}

static uint64_t number(zero_job *job, const char *name)
{
	return strtoull(zero_setting(job, name), NULL, 10);
}

static void agreed(int stage, const char *flatten, uint64_t least, const char *tier)
{
	zero_group *group;
	zero_job *job;

	tell(stage, flatten, least);
	job = open_job("share=1");
	check(number(job, "budget") == least, "%s", zero_setting(job, "budget"));
	check(number(job, "stream_threshold") == (least / 64 > CHUNK ? least / 64 : CHUNK),
	      "%s with a budget of %llu", zero_setting(job, "stream_threshold"),
	      (unsigned long long)least);
	group = new_group(job, "g");
	new_param(group, "p", ZERO_F32, COUNT, true);
	check(!strcmp(zero_setting(job, "flatten"), flatten), "%s before the layout",
	      zero_setting(job, "flatten"));
	ok(zero_layout(job));
	check(!strcmp(zero_setting(job, "flatten"), tier),
	      "%s, not %s: stage %d, flatten=%s, %llu bytes", zero_setting(job, "flatten"), tier,
	      stage, flatten, (unsigned long long)least);
	ok(zero_close(job));
}

/* A GPU's layout adds a page for the steps of groups. */
static uint64_t staging_bytes(void)
{
	zero_job *job = open_job("stage=0 share=1");
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	return memory.staging.now + (on_gpu() ? 4096 : 0);
}

static void mixed_cluster(void)
{
	uint64_t staging = staging_bytes(), ranks = (uint64_t)world;

	for (int stage = 0; stage < 3; stage++) {
		/* parameters and gradients, and sums and two moments, of which a rank may own a
		   part */
		bool all = stage == 0 || world == 1;
		uint64_t taken = all ? 4 * FLAT : 2 * FLAT + 3 * FLAT / ranks;

		taken += staging;
		agreed(stage, "auto", taken + FLAT, "device");
		agreed(stage, "auto", taken + FLAT - 1, world > 1 ? "distributed" : "host");
		agreed(stage, "auto", taken + FLAT / ranks, world > 1 ? "distributed" : "device");
		agreed(stage, "auto", taken + FLAT / ranks - 1, "host");
		agreed(stage, "auto", 1000, "host");
		agreed(stage, "host", taken + 2 * FLAT, "host");
		agreed(stage, "device", 1000, "device");
	}
	agreed(3, "auto", 10 * FLAT, "auto");
	agreed(3, "distributed", 10 * FLAT, "distributed");
}

/* A threshold that one rank is told counts if it is the least; one that is `auto` is a number
   too. */
static void mixed_thresholds(void)
{
	static const uint64_t told[] = {70000, 999999999};

	for (int i = 0; i < 2; i++) {
		uint64_t least = 64 * 80000, want = told[i] < 80000 ? told[i] : 80000;
		char resolved[256];
		zero_job *job;

		snprintf(resolved, sizeof(resolved), "budget=%llu stream_chunk=%llu ",
			 (unsigned long long)least, (unsigned long long)CHUNK);
		if (rank == world - 1)
			snprintf(resolved + strlen(resolved), 64, "stream_threshold=%llu",
				 (unsigned long long)told[i]);
		setenv("ZERO_RESOLVED", resolved, 1);
		job = open_job("%s", "");
		want = world == 1 ? told[i] : want;
		check(number(job, "stream_threshold") == want, "%s",
		      zero_setting(job, "stream_threshold"));
		ok(zero_close(job));
	}
}

/* The budget and the threshold of a job whose launcher has told one rank this, and the others
   nothing. */
static void told(const char *resolved, uint64_t *budget, uint64_t *threshold)
{
	static int turn;
	zero_job *job;

	setenv("ZERO_RESOLVED", turn++ % world == rank ? resolved : "stream_chunk=65536", 1);
	job = open_job("stream_chunk=65536");
	*budget = number(job, "budget");
	*threshold = number(job, "stream_threshold");
	ok(zero_close(job));
}

/*
 * A budget of the host's memory, and the threshold that was computed from it, do not count on a
 * device; one of a device counts if it is less than what the rank measures.
 */
static void measured_budgets(void)
{
	static const char *const of_host[] = {"step_memory", "job_memory", "mem_available"};
	uint64_t measured, budget, threshold;
	char resolved[256];

	told("stream_chunk=65536", &measured, &threshold);
	for (int i = 0; i < 3; i++) {
		snprintf(resolved, sizeof(resolved),
			 "stream_threshold=70000 budget=4480000 vram_free=8960000 vram_source=%s "
			 "origins=backend:flag",
			 of_host[i]);
		told(resolved, &budget, &threshold);
		check(budget == (on_gpu() ? measured : 4480000), "%s: a budget of %llu", of_host[i],
		      (unsigned long long)budget);
		check(threshold == (on_gpu() ? measured / 64 : 70000), "%s: a threshold of %llu",
		      of_host[i], (unsigned long long)threshold);
	}
	if (!on_gpu())
		return;
	told("budget=4480000 stream_threshold=70000 vram_source=nvml origins=backend:flag", &budget,
	     &threshold);
	check(budget == 4480000 && threshold == 70000, "%llu and %llu", (unsigned long long)budget,
	      (unsigned long long)threshold);
	told("budget=1000T stream_threshold=70000 vram_source=nvml origins=backend:flag", &budget,
	     &threshold);
	check(budget == measured && threshold == measured / 64, "%llu and %llu",
	      (unsigned long long)budget, (unsigned long long)threshold);
	/* a threshold that somebody asked for stays */
	told("stream_threshold=70000 budget=1 vram_source=job_memory origins=stream_threshold:flag",
	     &budget, &threshold);
	check(budget == measured && threshold == 70000, "%llu and %llu", (unsigned long long)budget,
	      (unsigned long long)threshold);
}

/* ---- what a rank holds ----------------------------------------------------------------------- */

struct tensor {
	size_t group;
	const char *name;
	zero_dtype dtype;
	size_t count;
};

/* The two largest groups are the last ones, side by side. */
enum { STEPS, SCALE, FIRST, TABLE, SECOND, WTE, GROUPS };

static const struct tensor tensors[] = {
	{STEPS, "steps", ZERO_I64, 5},        {SCALE, "scale", ZERO_F16, 1},
	{FIRST, "h.0.mask", ZERO_BOOL, 5000}, {FIRST, "h.0.w", ZERO_F32, 9000},
	{FIRST, "h.0.b", ZERO_BF16, 777},     {TABLE, "table", ZERO_F64, 3001},
	{SECOND, "h.1.w", ZERO_F32, 40001},   {SECOND, "h.1.low", ZERO_BF16, 20011},
	{SECOND, "h.1.b", ZERO_F32, 70},      {WTE, "wte.weight", ZERO_F32, 123457},
};

enum { TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

struct model {
	zero_job *job;
	zero_group *group[GROUPS];
	zero_param *param[TENSORS];
};

static bool is_trained(size_t i)
{
	zero_dtype dtype = tensors[i].dtype;

	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static void open_model(struct model *m, const char *options)
{
	zero_source source = zero_from_constant(1);

	m->job = open_job("%s", options);
	for (size_t i = 0; i < TENSORS; i++) {
		const struct tensor *tensor = &tensors[i];

		if (!m->group[tensor->group])
			m->group[tensor->group] = new_group(m->job, tensor->name);
		m->param[i] = new_param(m->group[tensor->group], tensor->name, tensor->dtype,
					tensor->count, is_trained(i));
	}
	ok(zero_layout(m->job));
	for (size_t i = 0; i < TENSORS; i++)
		ok(zero_load(m->param[i], &source));
}

/* One group in use and the next on its way. */
static void forward(struct model *m)
{
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->group[g], ZERO_DTYPE_PARAM));
		if (g + 1 < GROUPS)
			ok(zero_prefetch(&m->group[g + 1], 1, ZERO_DTYPE_PARAM));
		ok(zero_release(m->group[g]));
	}
}

/* False if nothing of the group is trained. */
static bool make_gradients(struct model *m, size_t g)
{
	bool any = false;

	for (size_t i = 0; i < TENSORS; i++) {
		if (tensors[i].group != g || !is_trained(i))
			continue;
		check(zero_gradient(m->param[i]), "%s", zero_last_error());
		any = true;
	}
	return any;
}

/* The sums of all groups, and nothing else of gradients. */
static void backward(struct model *m)
{
	for (size_t g = GROUPS; g-- > 0;)
		if (make_gradients(m, g))
			ok(zero_reduce(m->group[g]));
	/* what a reduce gives back is back once something after it is done */
	ok(zero_agree(m->job, NULL));
}

static void print_held(zero_job *job, const char *options)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	if (zero_rank(job) == 0)
		printf("%s%s%sshards %zu\ngathered %zu\ngradients %zu\noptimizer %zu\nstaging "
		       "%zu\n"
		       "total %zu\nflatten %s\nstream_threshold %s\n",
		       *options ? "job " : "", options, *options ? "\n" : "", memory.shards.peak,
		       memory.gathered.peak, memory.gradients.peak, memory.optimizer.peak,
		       memory.staging.peak, memory.total.peak, zero_setting(job, "flatten"),
		       zero_setting(job, "stream_threshold"));
}

/* zero_plan says it without the job. */
static void check_plan(zero_job *job, const char *options)
{
	static const size_t first_of[] = {0, 1, 2, 5, 6, 9};
	int share = atoi(zero_setting(job, "share")), shares[64];
	zero_param_spec params[TENSORS] = {0};
	size_t groups[TENSORS], slices[TENSORS] = {0};
	zero_plan_spec spec = {.settings = options,
			       .world = zero_world(job),
			       .device = on_gpu(),
			       .params = params,
			       .count = TENSORS,
			       .groups = groups};
	zero_memory memory, plan;

	ok(zero_allgather_bytes(job, &share, sizeof(share), shares));
	for (int r = 0; r < zero_world(job); r++)
		share = shares[r] < share ? shares[r] : share;
	spec.share = share;
	for (size_t i = 0; i < TENSORS; i++) {
		params[i] = (zero_param_spec){.name = tensors[i].name,
					      .dtype = tensors[i].dtype,
					      .ndim = 1,
					      .shape = &tensors[i].count,
					      .trainable = is_trained(i)};
		groups[i] = i ? groups[i - 1] + (first_of[groups[i - 1] + 1] == i) : 0;
	}
	ok(zero_plan(&spec, &plan));
	ok(zero_memory_now(job, &memory));
	check(plan.total.peak >= memory.total.peak, "%zu", plan.total.peak);
	if (zero_rank(job) == 0 && strcmp(zero_setting(job, "shard"), "auto"))
		check(plan.shards.peak == memory.shards.peak &&
			      plan.optimizer.peak == memory.optimizer.peak,
		      "%zu and %zu", plan.shards.peak, plan.optimizer.peak);
	spec.settings = "stage=3 stream=auto stream_threshold=100K stream_chunk=8K";
	spec.world = 2;
	spec.share = 1;
	ok(zero_plan(&spec, &plan));
	memory = plan;
	slices[TENSORS - 2] = slices[TENSORS - 1] = ZERO_SLICES_AUTO;
	spec.slices = slices;
	ok(zero_plan(&spec, &plan));
	check(!slices[TENSORS - 2] && slices[TENSORS - 1] == 8192, "%zu", slices[TENSORS - 1]);
	check(plan.gathered.peak < memory.gathered.peak / 2 &&
		      plan.shards.peak <= memory.shards.peak + 4096,
	      "%zu and %zu", plan.gathered.peak, memory.gathered.peak);
	spec = (zero_plan_spec){.settings = options,
				.world = zero_world(job),
				.params = params,
				.count = TENSORS,
				.groups = groups};
	groups[TENSORS - 1]++;
	fails(zero_plan(&spec, &plan), ZERO_E_INVALID, "groups[9] is 6 after 4");
	spec.share = spec.world + 1;
	fails(zero_plan(&spec, &plan), ZERO_E_INVALID, "share from 0");
	spec.settings = "stage=4";
	spec.share = 0;
	fails(zero_plan(&spec, &plan), ZERO_E_INVALID, "groups[9]");
	groups[TENSORS - 1]--;
	fails(zero_plan(&spec, &plan), ZERO_E_INVALID, "stage");
	spec.settings = options;
	params[3].name = params[2].name;
	fails(zero_plan(&spec, &plan), ZERO_E_INVALID, params[2].name);
}

/* As much as the plan says at all, in the second step. */
static void train(const char *path, const char *options)
{
	zero_adamw adamw = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	struct model m = {0};
	bool cut;

	open_model(&m, options);
	cut = zero_world(m.job) > 1 && strcmp(zero_setting(m.job, "stage"), "0") != 0 &&
	      strcmp(zero_setting(m.job, "shard"), "1") != 0;
	forward(&m);
	backward(&m);
	ok(zero_step(m.job, &adamw, NULL));
	backward(&m);
	ok(zero_gather(m.group[SECOND], ZERO_DTYPE_PARAM));
	ok(zero_gather(m.group[WTE], ZERO_DTYPE_PARAM));
	if (cut) {
		make_gradients(&m, SECOND);
		make_gradients(&m, WTE);
		ok(zero_reduce(m.group[SECOND]));
		ok(zero_reduce(m.group[WTE]));
	}
	ok(zero_release(m.group[WTE]));
	ok(zero_release(m.group[SECOND]));
	ok(zero_step(m.job, &adamw, NULL));
	print_held(m.job, options);
	check_plan(m.job, options);
	ok(zero_export(m.job, path));
	ok(zero_close(m.job));
}

int main(int argc, char **argv)
{
	if (argc > 1) {
		train(argv[1], argc > 2 ? argv[2] : "");
		for (int i = 3; i < argc; i++)
			train(argv[1], argv[i]);
		return 0;
	}
	mixed_cluster();
	mixed_thresholds();
	measured_budgets();
	return 0;
}

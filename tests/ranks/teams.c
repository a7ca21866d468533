/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Teams of every shape: one rank, pairs that overlap, ranks of different nodes, all. What is
 * sharded over them loads from every kind of source, gathers, and trains as a reference in f64 says
 * that all ranks compute by themselves; ranks outside a team get a sentence and hold up nobody.
 */
#include <sys/resource.h>

#include "teams.h"

enum { JOBS = 24 };

/* ---- gathers --------------------------------------------------------------------------------- */

static uint16_t to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, 4);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void check_param(const struct model *model, size_t p, zero_dtype as)
{
	const char *data = zero_data(model->params[p]);
	bool changes = as != ZERO_DTYPE_PARAM && dtype_of(p) != ZERO_I32;
	zero_dtype to = changes ? as : dtype_of(p);

	check(data, "parameter %zu is not there", p);
	check(zero_gathered_dtype(model->params[p]) == to, "parameter %zu", p);
	for (size_t i = 0; i < count_of(p); i++) {
		size_t size = zero_dtype_size(to);
		float value;
		char want[4];
		uint16_t half;

		element(p, i, want);
		if (to != dtype_of(p) && to == ZERO_BF16) {
			half = to_bf16(initial(p, i));
			memcpy(want, &half, 2);
		} else if (to != dtype_of(p)) {
			memcpy(&half, want, 2);
			value = from_bf16(half);
			memcpy(want, &value, 4);
		}
		check(!memcmp(data + i * size, want, size), "parameter %zu as %s, element %zu", p,
		      zero_dtype_name(as), i);
	}
}

static void check_group(const struct model *model, size_t g, zero_dtype as)
{
	for (size_t i = 0; i < PER_GROUP; i++)
		check_param(model, g * PER_GROUP + i, as);
}

static void gather_each(struct model *model, zero_dtype as)
{
	for (size_t g = 0; g < groups; g++) {
		if (!is_member(g, rank))
			continue;
		ok(zero_gather(model->groups[g], as));
		check_group(model, g, as);
		ok(zero_release(model->groups[g]));
	}
}

/* Some groups of several teams in one call, used in an order of the rank's own. */
static void gather_mixed(struct model *model, zero_dtype as, uint64_t *random)
{
	zero_group *list[GROUPS_MAX];
	uint64_t own = *random + (uint64_t)rank;
	size_t chosen[GROUPS_MAX], count = 0;

	for (size_t g = 0; g < groups; g++)
		if (below(random, 3) && is_member(g, rank))
			chosen[count++] = g;
	for (size_t i = 0; i < count; i++)
		list[i] = model->groups[chosen[i]];
	ok(zero_prefetch(list, count, as));
	for (size_t left = count; left > 0; left--) {
		size_t i = below(&own, left), g = chosen[i];

		ok(zero_gather(model->groups[g], as));
		check_group(model, g, as);
		/* Some are read once more when others have gone. */
		if (below(&own, 2)) {
			ok(zero_release(model->groups[g]));
			chosen[i] = chosen[left - 1];
			chosen[left - 1] = GROUPS_MAX;
		} else {
			chosen[i] = chosen[left - 1];
			chosen[left - 1] = g;
		}
	}
	for (size_t i = 0; i < count; i++) {
		if (chosen[i] == GROUPS_MAX)
			continue;
		check_group(model, chosen[i], as);
		ok(zero_release(model->groups[chosen[i]]));
	}
}

/* ---- those outside --------------------------------------------------------------------------- */

static void check_outside(struct model *model)
{
	zero_source source = zero_from_constant(1);
	size_t first, count;
	void *data;

	for (size_t g = 0; g < groups; g++) {
		zero_group *group = model->groups[g];
		zero_param *param = model->params[g * PER_GROUP];
		char words[64];

		if (is_member(g, rank))
			continue;
		snprintf(words, sizeof(words), "group 'g%zu'", g);
		fails(zero_gather(group, ZERO_DTYPE_PARAM), ZERO_E_INVALID, words);
		fails(zero_prefetch(&group, 1, ZERO_BF16), ZERO_E_INVALID, "not in its team");
		fails(zero_reduce(group), ZERO_E_INVALID, "not in its team");
		fails(zero_release(group), ZERO_E_STATE, words);
		check(!zero_gradient(param), "a gradient outside");
		check(strstr(zero_last_error(), words), "%s", zero_last_error());
		check(!zero_data(param), "data outside");
		ok(zero_shard(param, &data, &first, &count));
		check(!data && !count, "%zu elements outside", count);
		ok(zero_load(param, &source));
	}
}

/* Every member gets the error, also if it is on one of them only. */
static void check_members_errors(struct model *model)
{
	zero_source source;

	for (size_t g = 0; g < groups; g++) {
		int outside = 0, lowest = shapes[g].members[0];

		while (outside < world && is_member(g, outside))
			outside++;
		source = zero_from_rank(outside, rank == outside ? image : NULL);
		if (outside < world && is_member(g, rank))
			fails(zero_load(model->params[g * PER_GROUP], &source), ZERO_E_INVALID,
			      "not in the team");
		source = zero_from_rank(lowest, NULL);
		if (is_member(g, rank))
			fails(zero_load(model->params[g * PER_GROUP], &source), ZERO_E_INVALID, "");
	}
}

static void values(const char *settings)
{
	uint64_t random = seed;
	struct model model;

	begin(&model, settings);
	write_image(model.job);
	for (size_t kind = 0; kind < 4; kind++) {
		load_zeros(&model);
		load_each(&model, kind, &random);
		gather_each(&model, ZERO_DTYPE_PARAM);
	}
	load_zeros(&model);
	check_outside(&model);
	check_members_errors(&model);
	load_each(&model, 3, &random);
	gather_each(&model, ZERO_BF16);
	gather_each(&model, ZERO_F32);
	for (int round = 0; round < 12; round++) {
		static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F32};

		gather_mixed(&model, types[below(&random, 3)], &random);
	}
	ok(zero_close(model.job));
}

/* Random values do not depend on the team that a parameter is sharded over. */
static void random_values(void)
{
	static float want[2][COUNT_MAX];
	int members[WORLD_MAX], count = world > 1 ? world - 1 : 1;

	for (int r = 0; r < count; r++)
		members[r] = r + (world > 1);
	for (int teams = 0; teams < 2; teams++)
		for (int kind = 0; kind < 2; kind++) {
			zero_job *job = open_job("stage=3");
			zero_source source = kind ? zero_from_normal(1, 2, seed)
						  : zero_from_uniform(-1, 1, seed);
			zero_team *team = NULL;
			zero_group *group;
			zero_param *param;

			if (teams)
				ok(zero_team_new(job, members, (size_t)count, &team));
			ok(zero_group_new(job, "g", team, &group));
			param = new_param(group, "p", ZERO_F32, COUNT_MAX, true);
			ok(zero_layout(job));
			ok(zero_load(param, &source));
			if (!teams || zero_team_rank(team) >= 0) {
				ok(zero_gather(group, ZERO_DTYPE_PARAM));
				if (!teams)
					memcpy(want[kind], zero_data(param), sizeof(want[kind]));
				check(!memcmp(want[kind], zero_data(param), sizeof(want[kind])),
				      "kind %d", kind);
				ok(zero_release(group));
			}
			ok(zero_close(job));
		}
}

/* What teams send is counted too. */
static void traffic(void)
{
	uint64_t random = seed;
	zero_traffic before, after;
	struct model model;

	begin(&model, "stage=3 share=1 allgather=grouped");
	write_image(model.job);
	load_each(&model, 0, &random);
	for (size_t g = 0; g < groups; g++) {
		size_t peers = shapes[g].count - 1, segments = 0, bytes = 0;

		for (size_t p = g * PER_GROUP; p < (g + 1) * PER_GROUP; p++) {
			size_t unit = 256 * (peers + 1), count = (count_of(p) + 255) / 256 * 256;

			/* The last is in the first one's segment. */
			if (p % PER_GROUP == 3)
				continue;
			count += p % PER_GROUP ? 0 : 256;
			segments++;
			bytes += (count + unit - 1) / unit * 256 * zero_dtype_size(dtype_of(p));
		}
		if (!is_member(g, rank) || !peers)
			continue;
		ok(zero_traffic_now(model.job, &before));
		ok(zero_gather(model.groups[g], ZERO_DTYPE_PARAM));
		ok(zero_traffic_now(model.job, &after));
		check(after.collectives - before.collectives == segments, "group %zu: %llu", g,
		      (unsigned long long)(after.collectives - before.collectives));
		check(after.bytes_sent - before.bytes_sent == bytes * peers,
		      "group %zu: %llu bytes, not %zu", g,
		      (unsigned long long)(after.bytes_sent - before.bytes_sent), bytes * peers);
		ok(zero_release(model.groups[g]));
	}
	ok(zero_close(model.job));
}

/* ---- memory that one rank has in use --------------------------------------------------------- */

/* Rank 1 gathers a group while it holds one of another team: its peers know nothing of that. */
static void held_on_one_rank(void)
{
	zero_job *job = open_job("stage=2 share=1");
	static const int members[2][2] = {{0, 1}, {1, 2}};
	zero_source source = zero_from_constant(3);
	zero_group *group[2];
	zero_param *param[2];

	for (int t = 0; t < 2; t++) {
		zero_team *team;

		ok(zero_team_new(job, members[t], 2, &team));
		ok(zero_group_new(job, t ? "second" : "first", team, &group[t]));
		param[t] = new_param(group[t], t ? "b" : "a", ZERO_F32, 2048, true);
	}
	ok(zero_layout(job));
	for (int round = 0; round < 3; round++) {
		for (int t = 2; t-- > 0;) {
			if (rank != t && rank != t + 1)
				continue;
			ok(zero_gather(group[t], ZERO_BF16));
			if (rank != 1 || !round)
				ok(zero_release(group[t]));
		}
		for (int t = 0; t < 2 && rank == 1 && round; t++)
			ok(zero_release(group[t]));
		if (rank < 2)
			ok(zero_load(param[0], &source));
	}
	ok(zero_close(job));
}

/* ---- a limit on what is fetched ahead -------------------------------------------------------- */

/* A rank that holds another team's group still begins what its peers begin. */
static void limited(void)
{
	zero_job *job = open_job("stage=3 share=1 gather_limit=20000");
	static const int members[2][2] = {{0, 1}, {1, 2}};
	zero_group *of[2][3], *both;
	zero_param *param;
	double value = 1;

	ok(zero_group_new(job, "both", NULL, &both));
	new_param(both, "both", ZERO_F32, 64 * 3, false);
	for (int t = 0; t < 2; t++) {
		zero_team *team;

		ok(zero_team_new(job, members[t], 2, &team));
		for (int g = 0; g < 3; g++) {
			char name[8];

			snprintf(name, sizeof(name), "%d.%d", t, g);
			ok(zero_group_new(job, name, team, &of[t][g]));
			param = new_param(of[t][g], name, ZERO_F32, 2048, false);
		}
	}
	ok(zero_layout(job));
	for (int round = 0; round < 3; round++) {
		if (rank == 1 || rank == 2)
			ok(zero_gather(of[1][0], ZERO_DTYPE_PARAM));
		/* Two fit, the third does not. */
		if (rank < 2)
			ok(zero_prefetch(of[0], 3, ZERO_DTYPE_PARAM));
		ok(zero_mean(job, &value, 1, 1));
		ok(zero_prefetch(&both, 1, ZERO_DTYPE_PARAM));
		for (int g = 0; g < 3 && rank < 2; g++)
			ok(zero_gather(of[0][g], ZERO_DTYPE_PARAM));
		ok(zero_gather(both, ZERO_DTYPE_PARAM));
		ok(zero_release(both));
		for (int g = 0; g < 3 && rank < 2; g++)
			ok(zero_release(of[0][g]));
		if (rank == 1 || rank == 2)
			ok(zero_release(of[1][0]));
	}
	check(zero_param_numel(param) == 2048, "%zu", zero_param_numel(param));
	ok(zero_close(job));
}

/* ---- what does not fit ----------------------------------------------------------------------- */

static void bad_teams(void)
{
	zero_job *job = open_job("stage=3");
	const int none[] = {0}, beyond[] = {0, world}, twice[] = {0, 0}, negative[] = {-1};
	int *many = calloc((size_t)world + 1, sizeof(int)),
	    other = rank == world - 1 ? world - 1 : 0;
	zero_team *team;

	check(many, "no memory");
	fails(zero_team_new(job, none, 0, &team), ZERO_E_INVALID, "0 ranks");
	check(!team, "a team in spite of an error");
	if (world > 1) {
		fails(zero_team_new(job, beyond, 2, &team), ZERO_E_INVALID, "at place 1");
		fails(zero_team_new(job, twice, 2, &team), ZERO_E_INVALID, "ascending");
	}
	fails(zero_team_new(job, negative, 1, &team), ZERO_E_INVALID, "-1");
	fails(zero_team_new(job, many, (size_t)world + 1, &team), ZERO_E_INVALID, "ranks");
	/* Wrong on one rank: all get the error. */
	fails(zero_team_new(job, rank == world - 1 ? negative : none, 1, &team), ZERO_E_INVALID,
	      "-1");
	ok(zero_close(job));
	free(many);
	if (world == 1)
		return;
	job = open_job("stage=3");
	fails(zero_team_new(job, &other, 1, &team), ZERO_E_ORDER, "team");
	ok(zero_close(job));
	/* A group that is one team's here and another's there. */
	job = open_job("stage=3");
	{
		static const int zero[] = {0}, one[] = {1};
		zero_team *teams[2];
		zero_group *group;

		ok(zero_team_new(job, zero, 1, &teams[0]));
		ok(zero_team_new(job, one, 1, &teams[1]));
		ok(zero_group_new(job, "g", teams[rank == 0], &group));
		new_param(group, "p", ZERO_F32, 10, true);
		fails(zero_layout(job), ZERO_E_ORDER, "layout");
	}
	ok(zero_close(job));
}

static void limit(bool on)
{
	struct rlimit limit;

	getrlimit(RLIMIT_AS, &limit);
	limit.rlim_cur = on ? process_bytes("VmSize:") + (8 << 20) : limit.rlim_max;
	check(!setrlimit(RLIMIT_AS, &limit), "no limit");
}

/*
 * No memory on rank 0, for what it has with rank 1: rank 2, which has a team with rank 1, gets the
 * error too where all ranks agree, and the job goes on.
 */
static void no_memory(void)
{
	static const int members[2][2] = {{0, 1}, {1, 2}};
	const size_t large = (size_t)16 << 20;
	zero_job *job = open_job("stage=3 share=1");
	zero_param *params[3];
	zero_team *teams[2];
	zero_group *group;
	double value = 1;

	for (int t = 0; t < 2; t++)
		ok(zero_team_new(job, members[t], 2, &teams[t]));
	for (int g = 0; g < 3; g++) {
		char name[8];

		snprintf(name, sizeof(name), "%d", g);
		ok(zero_group_new(job, name, g < 2 ? teams[g] : NULL, &group));
		params[g] = new_param(group, name, ZERO_F32, g ? 100 : large, true);
	}
	if (rank == 0)
		limit(true);
	fails(zero_layout(job), ZERO_E_MEMORY, "rank 0 (");
	limit(false);
	ok(zero_layout(job));
	for (int turn = 0; turn < 2; turn++) {
		if (rank == 0)
			limit(true);
		/* No room for gradients, which the step makes. */
		fails(zero_step(job, &adamw, NULL), ZERO_E_MEMORY, "rank 0 (");
		limit(false);
		ok(zero_mean(job, &value, 1, 1));
	}
	ok(zero_step(job, &adamw, NULL));
	check(zero_param_numel(params[0]) == large, "%zu", zero_param_numel(params[0]));
	ok(zero_close(job));
}

/* ---- one job after the other ----------------------------------------------------------------- */

static size_t count_lines(const char *path)
{
	FILE *file = fopen(path, "r");
	size_t lines = 0;
	int c;

	check(file, "no %s", path);
	while ((c = getc(file)) != EOF)
		lines += c == '\n';
	fclose(file);
	return lines;
}

/* What is left of a job when it is closed is not more each time. */
static void many_jobs(void)
{
	size_t maps = 0, size = 0;
	uint64_t random = seed;
	struct model model;

	for (int round = 0; round < JOBS; round++) {
		model = (struct model){.job = open_job("stage=%d", round % 4)};
		make_groups(&model, 0, groups);
		/* Also jobs that come no further. */
		if (round % 5) {
			ok(zero_layout(model.job));
			load_each(&model, below(&random, 4), &random);
			gather_mixed(&model, ZERO_DTYPE_PARAM, &random);
		}
		ok(zero_close(model.job));
		if (round == JOBS / 2) {
			maps = count_lines("/proc/self/maps");
			size = process_bytes("VmSize:");
		}
	}
	/* The stand-ins keep addresses that were freed aside, and look for leaks themselves. */
	if (on_gpu())
		return;
	check(count_lines("/proc/self/maps") <= maps + 16, "%zu mappings, %zu before",
	      count_lines("/proc/self/maps"), maps);
	check(process_bytes("VmSize:") <= size + (256U << 20), "%zu MB of addresses, %zu before",
	      process_bytes("VmSize:") >> 20, size >> 20);
}

int main(void)
{
	static const char *const settings[] = {"stage=3",
					       "stage=2",
					       "stage=1",
					       "stage=0",
					       "stage=3 share=1 allgather=single",
					       "stage=3 stream_chunk=512 stream_threshold=0"};
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	seed = test_seed();
	check(world <= WORLD_MAX, "%d", world);
	ok(zero_close(job));
	choose_teams();
	make_image();
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		values(settings[i]);
	random_values();
	traffic();
	training();
	bad_teams();
	if (world > 2) {
		held_on_one_rank();
		limited();
		/* a limit on the process says nothing of a GPU's memory */
		if (!on_gpu())
			no_memory();
	}
	many_jobs();
	free(image);
	return 0;
}

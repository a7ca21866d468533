/* SPDX-License-Identifier: Apache-2.0 */
/* A group gathered as one type is always at one address, and a captured step does what a step
   does. */
#include "ranks.h"

enum { GROUPS = 4, ROUNDS = 12, WARM = 3, STEPS = 4 };

static const size_t counts[GROUPS] = {70001, 4096, 1, 30011};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[GROUPS];
	bool in_parts; /* half of the groups is stepped, then the others */
};

/* The last group is one of a team, of all ranks too. */
static void begin(struct model *m, const char *settings, void *stream)
{
	zero_team *team;
	int *all;

	m->job = open_tested("%s", settings);
	all = host_memory((size_t)zero_world(m->job) * sizeof(*all));
	for (int r = 0; r < zero_world(m->job); r++)
		all[r] = r;
	ok(zero_team_new(m->job, all, (size_t)zero_world(m->job), &team));
	free(all);
	if (stream)
		ok(zero_set_stream(m->job, stream));
	for (size_t g = 0; g < GROUPS; g++) {
		char name[2] = {(char)('a' + g), 0};

		ok(zero_group_new(m->job, name, g + 1 < GROUPS ? NULL : team, &m->groups[g]));
		m->params[g] = new_param(m->groups[g], name, ZERO_F32, counts[g], true);
	}
	ok(zero_layout(m->job));
	for (size_t g = 0; g < GROUPS; g++) {
		zero_source source = zero_from_normal(0, 1, seed + g);

		ok(zero_load(m->params[g], &source));
	}
}

/* ---- addresses ------------------------------------------------------------------------------- */

/* Some groups at a time, in a random order that is the same on all ranks. */
void check_addresses(const char *settings)
{
	static const zero_dtype types[] = {ZERO_DTYPE_PARAM, ZERO_BF16, ZERO_F16};
	const void *at[GROUPS][3] = {{NULL}};
	uint64_t random = seed;
	struct model m;

	begin(&m, settings, NULL);
	for (int round = 0; round < ROUNDS; round++) {
		size_t first = below(&random, GROUPS), some = 1 + below(&random, GROUPS);

		for (size_t i = 0; i < some; i++) {
			size_t g = (first + i) % GROUPS, t = below(&random, 3);
			const void *data;

			ok(zero_gather(m.groups[g], types[t]));
			data = zero_data(m.params[g]);
			check(data && (!at[g][t] || at[g][t] == data),
			      "%s: group %zu as type %zu is at %p, and was at %p", settings, g, t,
			      data, at[g][t]);
			at[g][t] = data;
		}
		for (size_t i = 0; i < some; i++)
			ok(zero_release(m.groups[(first + i) % GROUPS]));
	}
	for (size_t i = 0; i < GROUPS * 3; i++)
		for (size_t j = 0; j < i; j++)
			check(!at[i / 3][i % 3] || at[i / 3][i % 3] != at[j / 3][j % 3],
			      "%s: two groups are at %p", settings, at[i / 3][i % 3]);
	ok(zero_close(m.job));
}

/* ---- captured steps -------------------------------------------------------------------------- */

/* The gradient is the values themselves. */
static void train(struct model *m, void *stream)
{
	zero_adamw adamw = {.lr = 1e-3F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F, .clip = 1};

	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->groups[g], ZERO_BF16));
		ok(zero_release(m->groups[g]));
	}
	for (size_t g = GROUPS; g-- > 0;) {
		float *gradient;

		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		if (g > 0)
			ok(zero_prefetch(&m->groups[g - 1], 1, ZERO_DTYPE_PARAM));
		gradient = zero_gradient(m->params[g]);
		check(gradient, "%s", zero_last_error());
		copy_on(stream, gradient, zero_data(m->params[g]), counts[g] * sizeof(float));
		ok(zero_reduce(m->groups[g]));
		ok(zero_release(m->groups[g]));
	}
	if (!m->in_parts) {
		ok(zero_step(m->job, &adamw, NULL));
		return;
	}
	/* Each with its own norm and counts of steps. */
	ok(zero_step_groups(m->job, m->groups, GROUPS / 2, &adamw, NULL));
	ok(zero_step_groups(m->job, m->groups + GROUPS / 2, GROUPS - GROUPS / 2, &adamw, NULL));
}

/* Gathers more groups at a time than the graph does, and asks for more memory than there is: what
   the graph uses stays where it is. Returns how many gathers that refuses. */
static size_t disturb(struct model *m)
{
	bool gathered[GROUPS];
	size_t refused = 0;
	void *all, *more;

	for (size_t g = 0; g < GROUPS; g++) {
		zero_status status = zero_gather(m->groups[g], ZERO_DTYPE_PARAM);

		check(!status || status == ZERO_E_STATE, "%s", zero_last_error());
		gathered[g] = !status;
		refused += status != ZERO_OK;
	}
	for (size_t g = 0; g < GROUPS; g++)
		if (gathered[g])
			ok(zero_release(m->groups[g]));
	all = device_alloc(device_memory_free() / 4096 * 4096);
	if (all && !zero_device_alloc(m->job, (size_t)1 << 20, &more))
		zero_device_free(m->job, more);
	if (all)
		device_free(all);
	return refused;
}

static void take_steps(struct model *m, void *stream, bool captured)
{
	bool partitioned = !strcmp(zero_setting(m->job, "stage"), "3") && zero_world(m->job) > 1;
	size_t refused = 0;
	void *graph;

	for (int i = 0; i < (captured ? WARM : WARM + STEPS); i++)
		train(m, stream);
	if (!captured)
		return;
	ok(zero_agree(m->job, NULL));
	stream_finish(stream);
	capture_begin(stream);
	train(m, stream);
	graph = capture_end(stream);
	for (int i = 0; i < STEPS; i++) {
		graph_launch(graph, stream);
		if (i == 0)
			refused = disturb(m);
	}
	check(refused || !partitioned, "no gather is refused");
	stream_finish(stream);
	graph_delete(graph);
}

static void compare_captured(const char *settings, bool in_parts)
{
	void *values[2][GROUPS], *stream;
	struct model m;

	for (int captured = 0; captured < 2; captured++) {
		stream = stream_new();
		begin(&m, settings, stream);
		m.in_parts = in_parts;
		take_steps(&m, stream, captured);
		for (size_t g = 0; g < GROUPS; g++) {
			size_t bytes = counts[g] * sizeof(float);

			values[captured][g] = host_memory(bytes);
			ok(zero_gather(m.groups[g], ZERO_DTYPE_PARAM));
			stream_finish(stream);
			fetch(values[captured][g], zero_data(m.params[g]), bytes);
			ok(zero_release(m.groups[g]));
		}
		ok(zero_close(m.job));
	}
	for (size_t g = 0; g < GROUPS; g++) {
		check(!memcmp(values[0][g], values[1][g], counts[g] * sizeof(float)),
		      "%s: after %d captured steps group %zu has other values", settings, STEPS, g);
		free(values[0][g]);
		free(values[1][g]);
	}
}

void check_captured(const char *settings)
{
	if (device_on_host())
		return;
	compare_captured(settings, false);
	compare_captured(settings, true);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiers of flattening by the budget, to the byte: what each tier needs is all that it uses, a byte
 * less takes the next one, and where none fits a sentence says what would help. The device has no
 * more than its budget.
 */
#include "ranks.h"

static int world, rank;
static size_t held; /* that the program says it has of the device */

enum { PAGE = 4096 };

/* Of f32; a whole number of pages on each of 1 to 4 ranks. */
enum { COUNT = 3 << 14, CHUNK = PAGE, FLATS = 3 };

#define FLAT ((size_t)COUNT * 4)

struct budget {
	zero_job *job;
	zero_group *group[FLATS];
	zero_param *param[FLATS];
	void *data[FLATS];
	size_t staging;
	int released, greedy;
	void (*release)(void *context, void *data);
	zero_location location;
};

static void release_one(void *context, void *data)
{
	struct budget *b = context;

	check(data == b->data[b->released], "out of order");
	memset(data, 0xdd, FLAT);
	if (b->location == ZERO_ON_DEVICE)
		zero_device_free(b->job, data);
	else
		free(data);
	b->data[b->released++] = NULL;
}

static float value_at(int flat, size_t i)
{
	return (float)(i % 1009) + 2000 * (float)flat;
}

/* The rank with the least budget is another one each time. */
static void open_empty(struct budget *b, int stage, int share, const char *tier, size_t bytes)
{
	static int turn;
	size_t more = (size_t)((rank + turn++) % world) << 30;
	zero_memory memory;
	char resolved[256];

	snprintf(resolved, sizeof(resolved), "stage=%d flatten=%s stream_chunk=%d budget=%zu",
		 stage, tier, CHUNK, bytes + more);
	setenv("ZERO_RESOLVED", resolved, 1);
	b->job = open_job("share=%d", share);
	unsetenv("ZERO_RESOLVED");
	zero_program_holds(b->job, held);
	ok(zero_memory_now(b->job, &memory));
	check(memory.caller.now == (on_gpu() ? held : 0), "%zu", memory.caller.now);
	/* a GPU's layout adds a page for the steps of groups */
	b->staging = memory.total.now + (on_gpu() ? 4096 : 0);
	b->released = 0;
}

/* The last group is of all ranks, the others of a team. */
static void make_params(struct budget *b, zero_team *team)
{
	for (int f = 0; f < FLATS; f++) {
		char name[2] = {(char)('a' + f), 0};

		ok(zero_group_new(b->job, name, f < FLATS - 1 ? team : NULL, &b->group[f]));
		b->param[f] = new_param(b->group[f], name, ZERO_F32, COUNT, false);
	}
}

static void open_budget(struct budget *b, int stage, int share, const char *tier, size_t bytes)
{
	open_empty(b, stage, share, tier, bytes);
	make_params(b, NULL);
}

static void adopt_all(struct budget *b, zero_location location)
{
	b->location = location;
	for (int f = 0; f < FLATS; f++) {
		zero_adopt_spec given = {.location = location,
					 .release = b->release ? b->release : release_one,
					 .context = b};
		float *values;

		if (location == ZERO_ON_DEVICE)
			ok(zero_device_alloc(b->job, FLAT, &b->data[f]));
		else
			b->data[f] = malloc(FLAT);
		values = b->data[f];
		check(values, "no memory");
		for (size_t i = 0; i < COUNT; i++)
			values[i] = value_at(f, i);
		given.data = values;
		ok(zero_adopt(b->param[f], &given));
	}
}

static size_t staging_bytes(int stage, int share, bool *whole)
{
	struct budget b = {0};
	size_t bytes;

	open_budget(&b, stage, share, "auto", (size_t)1 << 40);
	bytes = b.staging;
	*whole = is_replicated(b.job);
	ok(zero_close(b.job));
	return bytes;
}

/* At this budget the tier is taken, and no more than the budget is used; NULL: none fits. */
static void fits(int stage, int share, zero_location location, const char *asked, size_t bytes,
		 const char *tier)
{
	struct budget b = {0};
	zero_memory memory;
	size_t room;
	void *data;

	open_budget(&b, stage, share, asked, bytes);
	adopt_all(&b, location);
	if (!tier) {
		char number[32];

		snprintf(number, sizeof(number), "budget is %zu.", bytes);
		fails(zero_layout(b.job), ZERO_E_MEMORY, number);
		check(strstr(zero_last_error(), location == ZERO_ON_HOST ? "--zero-flatten=host"
									 : "--zero-stream-chunk"),
		      "%s", zero_last_error());
		check(!b.released, "%d are gone", b.released);
		snprintf(number, sizeof(number), "takes %zu bytes", bytes + 1);
		check(strstr(zero_last_error(), number), "not %s: %s", number, zero_last_error());
		for (int f = 0; location == ZERO_ON_HOST && f < FLATS; f++)
			free(b.data[f]);
		ok(zero_close(b.job));
		return;
	}
	ok(zero_layout(b.job));
	check(!strcmp(zero_setting(b.job, "flatten"), tier), "%s, not %s: stage %d, %zu bytes",
	      zero_setting(b.job, "flatten"), tier, stage, bytes);
	check(b.released == FLATS, "%d", b.released);
	ok(zero_memory_now(b.job, &memory));
	check(memory.total.peak <= bytes, "%zu of %zu bytes", memory.total.peak, bytes);
	if (!strcmp(tier, "host") || location == ZERO_ON_HOST)
		/* two chunks are for hardware that copies through them */
		check(memory.total.peak + 2 * CHUNK >= bytes, "%zu of %zu", memory.total.peak,
		      bytes);
	else
		check(memory.total.peak == bytes, "%zu of %zu bytes", memory.total.peak, bytes);
	for (int f = 0; f < FLATS; f++) {
		const float *view = zero_view(b.param[f]);

		for (size_t i = 0; i < COUNT; i++)
			check(view[i] == value_at(f, i), "%d[%zu]: %g", f, i, (double)view[i]);
	}
	/* There is no more than the budget, and all of it can be had. */
	room = bytes - memory.total.now;
	fails(zero_device_alloc(b.job, room + 1, &data), ZERO_E_MEMORY, "of the budget of ");
	check(!data, "data");
	if (room >= PAGE) {
		ok(zero_device_alloc(b.job, room / PAGE * PAGE, &data));
		zero_device_free(b.job, data);
	}
	ok(zero_agree(b.job, NULL));
	/* A cast takes half of a buffer, of which those that share memory have one between them. */
	if (room < FLAT / 2 / (size_t)world) {
		fails(zero_gather(b.group[0], ZERO_BF16), ZERO_E_MEMORY, "gathered parameters");
		ok(zero_memory_now(b.job, &memory));
		check(memory.gathered.now == 0, "%zu", memory.gathered.now);
		ok(zero_gather(b.group[0], ZERO_DTYPE_PARAM));
		ok(zero_release(b.group[0]));
	}
	ok(zero_close(b.job));
}

static void falls_back(int stage, int share, size_t bytes, size_t there, const char *tier)
{
	zero_memory memory;
	struct budget b = {0};

	open_budget(&b, stage, share, "auto", bytes);
	adopt_all(&b, ZERO_ON_DEVICE);
	ok(zero_layout(b.job));
	check(!strcmp(zero_setting(b.job, "flatten"), tier), "%s, not %s",
	      zero_setting(b.job, "flatten"), tier);
	ok(zero_memory_now(b.job, &memory));
	check(memory.total.peak <=
		      there + (*tier == 'd' ? FLAT / (size_t)world : (size_t)2 * CHUNK),
	      "%zu beside %zu", memory.total.peak, there);
	ok(zero_close(b.job));
}

static void budgets(int stage, int share)
{
	bool whole;
	size_t there = staging_bytes(stage, share, &whole), ranks = (size_t)world, part;
	const char *second = whole && world > 1 ? "distributed" : "host";

	/* of each buffer, by each rank */
	part = whole ? FLAT : FLAT / ranks;
	there += FLATS * FLAT;
	fits(stage, share, ZERO_ON_DEVICE, "auto", there + part, "device");
	if (world > 1 && whole) {
		fits(stage, share, ZERO_ON_DEVICE, "auto", there + FLAT / ranks, "distributed");
		fits(stage, share, ZERO_ON_DEVICE, "distributed", there + FLAT / ranks,
		     "distributed");
	}
	fits(stage, share, ZERO_ON_DEVICE, "auto", there + 2 * CHUNK, "host");
	fits(stage, share, ZERO_ON_DEVICE, "auto", there + 2 * CHUNK - 1, NULL);

	/* a byte less takes the next one, which uses no more than it needs */
	falls_back(stage, share, there + part - 1, there, second);
	if (world > 1 && whole)
		falls_back(stage, share, there + FLAT / ranks - 1, there, "host");

	there += FLATS * part - FLATS * FLAT + 2 * CHUNK;
	fits(stage, share, ZERO_ON_HOST, "auto", there,
	     on_gpu() && world > 1 ? "distributed" : "device");
	fits(stage, share, ZERO_ON_HOST, "device", there, "device");
	fits(stage, share, ZERO_ON_HOST, "auto", there - 1, NULL);
	/* a budget of 0 is one that is not known */
	fits(stage, share, ZERO_ON_HOST, "host", there - FLATS * part - 2 * CHUNK + 1, "host");
}

/* ---- what goes wrong half-way ---------------------------------------------------------------- */

/* Takes what the first tensor gives back, on one rank. */
static void release_and_take(void *context, void *data)
{
	struct budget *b = context;
	void *taken;

	release_one(context, data);
	if (b->released == 1 && rank == b->greedy)
		ok(zero_device_alloc(b->job, FLAT, &taken));
}

/* The second buffer fails on one rank. If it is of a team that only this rank is in, the others
   get the error in the third. */
static void fails_midway(int stage, int share, bool alone)
{
	bool whole;
	size_t bytes = staging_bytes(stage, share, &whole) + (FLATS + 1) * FLAT;
	struct budget b = {.greedy = alone ? 0 : world - 1};
	int first = 0;
	zero_team *team = NULL;
	char words[64];

	open_empty(&b, stage, share, "device", bytes);
	if (alone)
		ok(zero_team_new(b.job, &first, 1, &team));
	make_params(&b, team);
	b.release = release_and_take;
	adopt_all(&b, ZERO_ON_DEVICE);
	snprintf(words, sizeof(words), "rank %d ", b.greedy);
	/* alone, without a launcher, an error names no rank */
	fails(zero_layout(b.job), ZERO_E_MEMORY, world > 1 ? words : "no memory for");
	check(strstr(zero_last_error(), "are the program's own tensors"), "%s", zero_last_error());
	check(!zero_view(b.param[0]), "a view");
	fails(zero_layout(b.job), ZERO_E_STATE, "can only be closed");
	ok(zero_close(b.job));
}

/* Where nothing was released, a layout that failed can be tried again. */
static void again(int stage, int share)
{
	struct budget b = {0};
	bool whole;
	size_t bytes = staging_bytes(stage, share, &whole) + FLATS * FLAT;
	void *more = NULL;

	bytes += whole ? FLAT : FLAT / (size_t)world;
	open_budget(&b, stage, share, "device", bytes);
	adopt_all(&b, ZERO_ON_DEVICE);
	if (rank == world - 1)
		ok(zero_device_alloc(b.job, 1, &more));
	fails(zero_layout(b.job), ZERO_E_MEMORY, "--zero-flatten=host");
	zero_device_free(b.job, more);
	ok(zero_layout(b.job));
	check(b.released == FLATS, "%d", b.released);
	ok(zero_close(b.job));
}

/* A training step fits into what the tier was chosen for. */
static void trains_within(int stage, bool offload)
{
	zero_adamw adamw = {.lr = 1, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	bool all = stage == 0 || world == 1, whole;
	size_t staging = staging_bytes(stage, 1, &whole), ranks = (size_t)world;
	/* parameters and gradients, and of what a rank steps sums and two moments */
	size_t stepped = all ? FLAT : FLAT / ranks, states = offload ? 0 : 2 * stepped;
	size_t taken = staging + 2 * FLAT + (all ? 0 : stepped) + states;
	zero_adopt_spec given = {.location = ZERO_ON_DEVICE};
	char resolved[128];
	zero_memory memory;
	zero_param *param;
	zero_group *group;
	zero_job *job;
	float *view;

	snprintf(resolved, sizeof(resolved), "stage=%d stream_chunk=%d offload=%s budget=%zu",
		 stage, CHUNK, offload ? "optimizer" : "none", taken + FLAT);
	setenv("ZERO_RESOLVED", resolved, 1);
	job = open_job("share=1");
	unsetenv("ZERO_RESOLVED");
	group = new_group(job, "g");
	param = new_param(group, "p", ZERO_F32, COUNT, true);
	ok(zero_device_alloc(job, FLAT, &given.data));
	memset(given.data, 0, FLAT);
	/* the caller keeps it, and frees it later */
	ok(zero_adopt(param, &given));
	ok(zero_layout(job));
	check(!strcmp(zero_setting(job, "flatten"), "device"), "%s", zero_setting(job, "flatten"));
	zero_device_free(job, given.data);
	view = zero_gradient(param);
	check(view, "%s", zero_last_error());
	view[COUNT - 1] = 1;
	ok(zero_reduce(group));
	ok(zero_step(job, &adamw, NULL));
	view = zero_view(param);
	check(view && view[COUNT - 1] < -0.9F, "no step");
	ok(zero_memory_now(job, &memory));
	check(memory.total.peak <= taken + FLAT, "%zu of %zu", memory.total.peak, taken + FLAT);
	ok(zero_close(job));
}

/* Where a budget counts, memory that is used again counts as what was asked for. */
static void used_again(void)
{
	const size_t large = (size_t)40 << 12, small = (size_t)38 << 12;
	zero_job *job = open_job("stage=2 budget=128M");
	zero_memory memory;
	void *data;

	/* the first call sets the limit */
	ok(zero_device_alloc(job, 1, &data));
	zero_device_free(job, data);
	ok(zero_device_alloc(job, large, &data));
	zero_device_free(job, data);
	ok(zero_device_alloc(job, small, &data));
	ok(zero_memory_now(job, &memory));
	check(memory.caller.now == small, "%zu bytes count, not %zu", memory.caller.now, small);
	zero_device_free(job, data);
	ok(zero_close(job));
}

int main(void)
{
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	used_again();
	for (int stage = 0; stage < 3; stage++)
		for (int share = 0; share < (world > 1 ? 2 : 1); share++) {
			held = on_gpu() ? 7 * PAGE : 1;
			budgets(stage, share);
			held = 0;
			again(stage, share);
		}
	for (int stage = 0; stage < 3; stage++)
		for (int offload = 0; offload < 2; offload++)
			trains_within(stage, offload);
	for (int stage = 0; stage < 3; stage++)
		for (int alone = 0; alone < 2; alone++)
			fails_midway(stage, 1, alone);
	fails_midway(0, 0, true);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flattening: tensors on the device or on the host become views of flat buffers, in every tier,
 * with whatever values count; they are released as soon as they may be; and what is trained from
 * there is what zero_load would have given.
 */
#include "ranks.h"

enum { PAGE = 4096 };

static int world, rank, last;
static uint64_t seed;

/* ---- a model --------------------------------------------------------------------------------- */

struct tensor {
	size_t group;
	const char *name;
	zero_dtype dtype;
	size_t count;
	bool trainable;
	bool left; /* not adopted, but loaded afterwards */
};

enum { FIRST, EMPTY, LARGE, TEAM, GROUPS };

static const struct tensor tensors[] = {
	{FIRST, "w", ZERO_F32, 5001, true, false},     {FIRST, "steps", ZERO_I64, 1, false, false},
	{FIRST, "low", ZERO_BF16, 1003, true, false},  {FIRST, "later", ZERO_F32, 300, true, true},
	{FIRST, "table", ZERO_F64, 777, false, false}, {EMPTY, "none", ZERO_F32, 0, true, false},
	{LARGE, "big", ZERO_F32, 40007, true, false},  {LARGE, "mask", ZERO_BOOL, 65, false, false},
	{TEAM, "expert", ZERO_F16, 900, false, false},
};

enum { TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

struct model;

struct source {
	struct model *model;
	size_t index;
	void *data; /* NULL once it is released */
};

struct model {
	zero_job *job;
	zero_group *group[GROUPS];
	zero_param *param[TENSORS], *tied;
	struct source source[TENSORS];
	zero_location location;
	zero_adopt_values values;
	const char *tier; /* that is expected */
	size_t next;      /* none before this one is released any more */
};

/* The values that rank `owner` has of a tensor. */
static void values_of(size_t t, int owner, void *out)
{
	for (size_t i = 0; i < tensors[t].count; i++) {
		uint64_t bits = mixed(seed + mixed((uint64_t)owner << 48 ^ t << 40 ^ i));
		float value = signed_unit(bits);
		double wide = (double)value;

		if (tensors[t].dtype == ZERO_F32)
			((float *)out)[i] = value;
		else if (tensors[t].dtype == ZERO_F64)
			((double *)out)[i] = wide;
		else if (tensors[t].dtype == ZERO_I64)
			((uint64_t *)out)[i] = bits;
		else if (tensors[t].dtype == ZERO_BOOL)
			((uint8_t *)out)[i] = bits & 1;
		else
			/* finite in both types of 16 bits */
			((uint16_t *)out)[i] = (uint16_t)(bits & 0xbfff);
	}
}

static size_t tensor_bytes(size_t t)
{
	return tensors[t].count * zero_dtype_size(tensors[t].dtype);
}

static void make_groups(struct model *m, const char *settings)
{
	int ends[] = {0, last};
	zero_team *team;

	m->job = open_job("%s", settings);
	ok(zero_team_new(m->job, ends, world > 1 ? 2 : 1, &team));
	for (size_t g = 0; g < GROUPS; g++) {
		static const char *const names[] = {"first", "empty", "large", "team"};

		ok(zero_group_new(m->job, names[g], g == TEAM ? team : NULL, &m->group[g]));
	}
	for (size_t t = 0; t < TENSORS; t++)
		m->param[t] = new_param(m->group[tensors[t].group], tensors[t].name,
					tensors[t].dtype, tensors[t].count, tensors[t].trainable);
	ok(zero_param_new(m->group[LARGE],
			  &(zero_param_spec){.name = "tied",
					     .dtype = ZERO_F32,
					     .ndim = 1,
					     .shape = &tensors[6].count,
					     .trainable = true,
					     .alias_of = m->param[6]},
			  &m->tied));
}

static bool in_team(size_t t)
{
	return tensors[t].group != TEAM || rank == 0 || rank == last;
}

/* ---- memory by the documented layout --------------------------------------------------------- */

static size_t up(size_t n, size_t unit)
{
	return (n + unit - 1) / unit * unit;
}

/* What this rank counts of a group's flat buffer. */
static size_t counted(struct model *m, size_t group)
{
	bool whole = is_replicated(m->job);
	size_t ranks = (size_t)world, bytes = 0;

	for (size_t t = 0; t < TENSORS; t++) {
		size_t segment = 0;
		bool seen = false;

		if (tensors[t].group != group)
			continue;
		/* a segment has the type and training of its first tensor */
		for (size_t u = 0; u < TENSORS; u++) {
			if (tensors[u].group != group || tensors[u].dtype != tensors[t].dtype ||
			    tensors[u].trainable != tensors[t].trainable)
				continue;
			seen = seen || u < t;
			segment += up(tensors[u].count, 256);
		}
		if (!seen)
			bytes += up(up(segment, 256 * ranks) * zero_dtype_size(tensors[t].dtype),
				    PAGE);
	}
	return whole ? bytes : up((bytes + ranks - 1) / ranks, PAGE);
}

/* What is there of flat buffers while a group's tensors are released. */
static void check_rolling(struct model *m, size_t group)
{
	bool packed_elsewhere = m->location == ZERO_ON_DEVICE &&
				(!strcmp(m->tier, "host") || (!strcmp(m->tier, "distributed") &&
							      world > 1 && is_replicated(m->job)));
	bool offload = m->location == ZERO_ON_HOST && !strcmp(m->tier, "host");
	size_t bytes = 0;
	zero_memory memory;

	/* The team's own rules are left to the others. */
	if (group == TEAM)
		return;
	for (size_t g = 0; g < group + !packed_elsewhere; g++)
		bytes += counted(m, g);
	ok(zero_memory_now(m->job, &memory));
	check((offload ? memory.offload.now : memory.shards.now) == bytes,
	      "%zu shards, %zu on the host, not %zu bytes in group %zu (tier %s)",
	      memory.shards.now, memory.offload.now, bytes, group, m->tier);
	check(offload ? !memory.shards.now : true, "%zu", memory.shards.now);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static void release(void *context, void *data)
{
	struct source *source = context;
	struct model *m = source->model;
	size_t t = source->index;

	check(data == source->data && data, "tensor '%s' twice", tensors[t].name);
	check(tensors[t].group >= tensors[m->next].group, "'%s' after '%s'", tensors[t].name,
	      tensors[m->next].name);
	check_rolling(m, tensors[t].group);
	m->next = t;
	memset(data, 0xdd, tensor_bytes(t));
	if (m->location == ZERO_ON_DEVICE)
		zero_device_free(m->job, data);
	else
		free(data);
	source->data = NULL;
}

/* Those of rank `last` count if one's do; odd ranks then have none. */
static void adopt(struct model *m, size_t t)
{
	struct source *source = &m->source[t];
	zero_adopt_spec given = {.location = m->location,
				 .values = m->values,
				 .rank = tensors[t].group == TEAM ? 0 : last,
				 .release = release,
				 .context = source};
	bool mine = m->values != ZERO_VALUES_OF_RANK || rank == given.rank || rank % 2 == 0;

	*source = (struct source){.model = m, .index = t};
	if (tensor_bytes(t) && mine) {
		if (m->location == ZERO_ON_DEVICE)
			ok(zero_device_alloc(m->job, tensor_bytes(t), &source->data));
		else
			source->data = malloc(tensor_bytes(t));
		check(source->data, "no memory");
		values_of(t, m->values == ZERO_VALUES_EQUAL ? 0 : rank, source->data);
	}
	given.data = source->data;
	ok(zero_adopt(m->param[t], &given));
}

static void check_values(struct model *m, size_t t, const void *view, const char *what)
{
	const struct tensor *tensor = &tensors[t];
	size_t size = zero_dtype_size(tensor->dtype), bytes = tensor_bytes(t);
	/* Ranks that have one copy between them gave their shards of it. */
	bool mixed_up = m->values == ZERO_VALUES_OWN && !is_replicated(m->job);
	int owner = m->values == ZERO_VALUES_EQUAL ? 0 : rank;
	char *want = malloc(bytes + 1);

	if (m->values == ZERO_VALUES_OF_RANK)
		owner = tensor->group == TEAM ? 0 : last;
	check(want, "no memory");
	values_of(t, owner, want);
	for (size_t i = 0; i < tensor->count; i++) {
		bool same = !memcmp((const char *)view + i * size, want + i * size, size);

		for (int other = 0; !same && mixed_up && other < world; other++) {
			values_of(t, other, want);
			same = !memcmp((const char *)view + i * size, want + i * size, size);
		}
		check(same, "%s of '%s'[%zu] (tier %s, stage %s, share %s)", what, tensor->name, i,
		      m->tier, zero_setting(m->job, "stage"), zero_setting(m->job, "share"));
	}
	free(want);
}

static void load_later(struct model *m)
{
	float values[300];
	zero_source source = zero_from_all(values);

	values_of(3, 0, values);
	ok(zero_load(m->param[3], &source));
}

static void check_model(struct model *m)
{
	for (size_t t = 0; t < TENSORS; t++) {
		const char *view = in_team(t) ? zero_view(m->param[t]) : NULL;

		check(!m->source[t].data, "'%s' was not released", tensors[t].name);
		if (!in_team(t)) {
			check(!zero_view(m->param[t]), "a view on a rank that is not in the team");
			continue;
		}
		check(!view == !tensors[t].count, "'%s': %s", tensors[t].name, zero_last_error());
		for (size_t i = 0; tensors[t].left && i < tensor_bytes(t); i++)
			check(!view[i], "'%s' is not zero", tensors[t].name);
		if (!tensors[t].left)
			check_values(m, t, view, "view");
		if (tensors[t].group == EMPTY)
			continue;
		ok(zero_gather(m->group[tensors[t].group], ZERO_DTYPE_PARAM));
		check(zero_data(m->param[t]) == view, "'%s' is gathered elsewhere",
		      tensors[t].name);
		ok(zero_release(m->group[tensors[t].group]));
	}
	check(zero_view(m->tied) == zero_view(m->param[6]), "what is tied lies elsewhere");
}

/* ---- training from there --------------------------------------------------------------------- */

static void train(struct model *m)
{
	zero_adamw adamw = {.lr = 0.01F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F, .clip = 1};
	uint64_t state = seed + 77 * (uint64_t)rank;

	for (int step = 0; step < 2; step++) {
		for (size_t t = 0; t < TENSORS; t++) {
			float *gradient = tensors[t].trainable && tensors[t].count
						  ? zero_gradient(m->param[t])
						  : NULL;

			for (size_t i = 0; gradient && i < tensors[t].count; i++)
				gradient[i] += signed_unit(draw(&state));
		}
		ok(zero_step(m->job, &adamw, NULL));
	}
}

/* A hash of the values that all ranks see. */
static uint64_t trained_hash(struct model *m)
{
	uint64_t hash = 1;

	for (size_t t = 0; t < TENSORS; t++) {
		const uint8_t *data;

		if (!tensors[t].trainable || !tensors[t].count)
			continue;
		ok(zero_gather(m->group[tensors[t].group], ZERO_DTYPE_PARAM));
		data = zero_data(m->param[t]);
		for (size_t i = 0; i < tensor_bytes(t); i++)
			hash = (hash ^ data[i]) * UINT64_C(0x100000001b3);
		ok(zero_release(m->group[tensors[t].group]));
	}
	return hash;
}

static uint64_t loaded_and_trained(int stage, int share)
{
	struct model m = {0};
	char settings[128];
	uint64_t hash;

	snprintf(settings, sizeof(settings), "stage=%d share=%d allgather=grouped", stage, share);
	make_groups(&m, settings);
	ok(zero_layout(m.job));
	for (size_t t = 0; t < TENSORS; t++) {
		void *values = malloc(tensor_bytes(t) + 1);
		zero_source source = zero_from_all(values);

		values_of(t, 0, values);
		ok(zero_load(m.param[t], &source));
		free(values);
	}
	train(&m);
	hash = trained_hash(&m);
	ok(zero_close(m.job));
	return hash;
}

static const char *const tiers[] = {"device", "distributed", "host", "auto"};

static void flatten(int stage, int share, zero_location location, zero_adopt_values values,
		    const char *tier, uint64_t trained)
{
	struct model m = {.location = location, .values = values, .tier = tier};
	char settings[128];

	snprintf(settings, sizeof(settings),
		 "stage=%d share=%d flatten=%s allgather=grouped check=%d", stage, share, tier,
		 rank >= 0 && stage == 1);
	make_groups(&m, settings);
	if (!strcmp(tier, "auto"))
		m.tier = location == ZERO_ON_HOST && world > 1 &&
					 (values == ZERO_VALUES_OF_RANK ||
					  (values == ZERO_VALUES_EQUAL && on_gpu()))
				 ? "distributed"
				 : "device";
	for (size_t t = 0; t < TENSORS; t++)
		if (!tensors[t].left)
			adopt(&m, t);
	if (!strcmp(m.tier, "distributed") && values == ZERO_VALUES_OWN) {
		fails(zero_layout(m.job), ZERO_E_INVALID, "each rank's own values");
		ok(zero_close(m.job));
		for (size_t t = 0; location == ZERO_ON_HOST && t < TENSORS; t++)
			free(m.source[t].data);
		return;
	}
	ok(zero_layout(m.job));
	check(!strcmp(zero_setting(m.job, "flatten"), m.tier), "%s, not %s",
	      zero_setting(m.job, "flatten"), m.tier);
	check_model(&m);
	if (values == ZERO_VALUES_EQUAL) {
		load_later(&m);
		train(&m);
		check(trained_hash(&m) == trained, "other bits after training from tier %s", tier);
	}
	ok(zero_close(m.job));
}

static void all_cases(void)
{
	for (int stage = 0; stage < 3; stage++)
		/* all of them share memory, none, or two */
		for (int share = 0; share < (on_gpu() ? 1 : world < 3 ? world : 3); share++) {
			uint64_t trained = loaded_and_trained(stage, share);

			/* a third where ranks share memory otherwise */
			for (int i = share; i < 2 * 3 * 4; i += share ? 3 : 1)
				flatten(stage, share, i % 2 ? ZERO_ON_DEVICE : ZERO_ON_HOST,
					(zero_adopt_values)(i / 2 % 3), tiers[i / 6], trained);
		}
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void unequal_values(int stage, int share)
{
	static float values[2][500];
	zero_adopt_spec given = {.data = values[0]};
	zero_job *job;

	if (world == 1)
		return;
	for (int checked = 1; checked >= 0; checked--) {
		char words[64];

		job = open_job("stage=%d share=%d check=%d", stage, share, checked);
		given.data = values[0];
		ok(zero_adopt(new_param(new_group(job, "g"), "same", ZERO_F32, 500, true), &given));
		given.data = values[1];
		values[1][499] = rank == last ? 1 : 0;
		ok(zero_adopt(new_param(new_group(job, "h"), "other", ZERO_F32, 500, true),
			      &given));
		snprintf(words, sizeof(words), "equal, but those of ranks 0 and %d differ", last);
		if (checked) {
			fails(zero_layout(job), ZERO_E_INVALID, words);
			check(strstr(zero_last_error(), "'other'"), "%s", zero_last_error());
		} else {
			ok(zero_layout(job));
		}
		ok(zero_close(job));
	}
}

static void refused(void)
{
	static float values[100];
	zero_adopt_spec given = {.data = values}, other;
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param *param = new_param(group, "p", ZERO_F32, 100, true), *second, *tied;
	void *device;

	fails(zero_adopt(param, &given), ZERO_E_STATE, "use zero_load");
	check(!zero_view(param), "a view");
	ok(zero_layout(job));
	check(!zero_view(param), "a view at stage 3");
	ok(zero_close(job));

	job = open_job("stage=2");
	group = new_group(job, "g");
	param = new_param(group, "p", ZERO_F32, 100, true);
	second = new_param(group, "q", ZERO_F32, 100, true);
	ok(zero_param_new(group,
			  &(zero_param_spec){.name = "t",
					     .dtype = ZERO_F32,
					     .ndim = 1,
					     .shape = (size_t[]){100},
					     .trainable = true,
					     .alias_of = param},
			  &tied));
	ok(zero_device_alloc(job, 0, &device));
	check(!device, "data");
	ok(zero_device_alloc(job, 1000, &device));
	fails(zero_adopt(tied, &given), ZERO_E_INVALID, "'t' is an alias of 'p'");
	other = given;
	other.data = NULL;
	fails(zero_adopt(param, &other), ZERO_E_INVALID, "no data");
	other = given;
	other.location = ZERO_ON_DEVICE;
	fails(zero_adopt(param, &other), ZERO_E_INVALID, "zero_device_alloc");
	other.location = ZERO_ON_HOST;
	other.data = (char *)device + 999;
	fails(zero_adopt(param, &other), ZERO_E_INVALID, "in the device's memory");
	other = given;
	other.values = ZERO_VALUES_OF_RANK;
	other.rank = world;
	fails(zero_adopt(param, &other), ZERO_E_INVALID, "not in the team");
	other.values = (zero_adopt_values)3;
	fails(zero_adopt(param, &other), ZERO_E_INVALID, "values 3");
	ok(zero_adopt(param, &given));
	fails(zero_adopt(param, &given), ZERO_E_STATE, "already");
	other = given;
	other.location = ZERO_ON_DEVICE;
	other.data = (char *)device + 100;
	ok(zero_adopt(second, &other));
	fails(zero_layout(job), ZERO_E_INVALID, "some of the adopted tensors are on the device");
	ok(zero_close(job));

	job = open_job("stage=1");
	param = new_param(new_group(job, "g"), "p", ZERO_F32, 100, true);
	if (rank == 0)
		ok(zero_adopt(param, &given));
	if (world > 1) {
		fails(zero_layout(job), ZERO_E_ORDER, "the same operations");
	} else {
		ok(zero_layout(job));
		fails(zero_adopt(param, &given), ZERO_E_STATE, "after zero_layout");
	}
	ok(zero_close(job));
}

static void count_release(void *context, void *data)
{
	(void)data;
	++*(int *)context;
}

/* Groups that come later are laid out by themselves, and adopt tensors as the first did. */
static void laid_out_again(int stage)
{
	static float values[100] = {1};
	zero_job *job = open_job("stage=%d", stage);
	int released = 0;

	for (int layout = 1; layout <= 3; layout++) {
		char name[] = {(char)('a' + layout), 0};
		zero_param *param = new_param(new_group(job, name), name, ZERO_F32, 100, true);
		zero_adopt_spec spec = {
			.data = values, .release = count_release, .context = &released};

		ok(zero_adopt(param, &spec));
		ok(zero_layout(job));
		check(released == layout, "layout %d: %d tensors are released", layout, released);
		check(on_gpu() || *(const float *)zero_view(param) == 1, "layout %d", layout);
	}
	ok(zero_close(job));
}

int main(void)
{
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	rank = zero_rank(job);
	last = world - 1;
	seed = test_seed();
	ok(zero_close(job));
	refused();
	for (int stage = 0; stage < 3; stage++)
		laid_out_again(stage);
	for (int stage = 0; stage < 3; stage++)
		for (int share = 0; share < (world > 1 ? 2 : 1); share++)
			unequal_values(stage, share);
	all_cases();
	return 0;
}

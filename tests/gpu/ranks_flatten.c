/* SPDX-License-Identifier: Apache-2.0 */
/* Flatten: tensors of the device and of the host become views, in every tier; and whole models. */
#include "ranks.h"

static const struct tensor {
	const char *name;
	size_t group, count;
	zero_dtype dtype;
	bool trainable;
} tensors[] = {
	{"w", 0, 5001, ZERO_F32, true},    {"steps", 0, 1, ZERO_I64, false},
	{"low", 0, 1003, ZERO_BF16, true}, {"none", 1, 0, ZERO_F32, true},
	{"big", 1, 40007, ZERO_F32, true}, {"mask", 1, 65, ZERO_BOOL, false},
	{"half", 1, 900, ZERO_F16, false},
};

enum { GROUPS = 2, TENSORS = sizeof(tensors) / sizeof(tensors[0]) };

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	zero_param *params[TENSORS];
	void *given[TENSORS];
	zero_location location;
	int released;
};

static size_t bytes_of(size_t t)
{
	return tensors[t].count * zero_dtype_size(tensors[t].dtype);
}

static void begin(struct model *m, const char *settings)
{
	*m = (struct model){.job = open_tested("%s", settings)};
	for (size_t g = 0; g < GROUPS; g++)
		m->groups[g] = new_group(m->job, g ? "second" : "first");
	for (size_t t = 0; t < TENSORS; t++)
		m->params[t] = new_param(m->groups[tensors[t].group], tensors[t].name,
					 tensors[t].dtype, tensors[t].count, tensors[t].trainable);
}

/* In a stream that has no order with the library's. */
static void poison(void *data, size_t bytes)
{
	static void *stream, *from;

	if (device_on_host()) {
		memset(data, 0xdd, bytes);
		return;
	}
	if (!stream) {
		stream = stream_new();
		from = pinned_alloc(1 << 18);
		memset(from, 0xdd, 1 << 18);
	}
	check(bytes <= 1 << 18, "%zu bytes", bytes);
	copy_on(stream, data, from, bytes);
	stream_finish(stream);
}

/* What the library may still read afterwards is poisoned at once. */
static void release_one(void *context, void *data)
{
	struct model *m = context;
	size_t t = 0;

	while (t < TENSORS && m->given[t] != data)
		t++;
	check(t < TENSORS, "released, but not given, or twice");
	m->given[t] = NULL;
	m->released++;
	if (m->location == ZERO_ON_DEVICE) {
		poison(data, bytes_of(t));
		zero_device_free(m->job, data);
		return;
	}
	memset(data, 0xdd, bytes_of(t));
	if (t % 2)
		pinned_free(data);
	else
		free(data);
}

static void give(struct model *m, size_t t, zero_adopt_values values, int owner, void *data)
{
	zero_adopt_spec given = {.data = data,
				 .location = m->location,
				 .values = values,
				 .rank = owner,
				 .release = release_one,
				 .context = m};

	m->given[t] = data;
	ok(zero_adopt(m->params[t], &given));
}

/* Values that count: those of rank `from`; others' are different if they do not. */
static void adopt_all(struct model *m, zero_adopt_values values, int owner)
{
	for (size_t t = 0; t < TENSORS; t++) {
		int from = values == ZERO_VALUES_EQUAL ? 0 : rank;
		bool pinned = m->location == ZERO_ON_HOST && t % 2;
		void *plain = pinned ? pinned_alloc(bytes_of(t)) : host_memory(bytes_of(t));
		void *data = plain;

		random_elements(tensors[t].dtype, plain, tensors[t].count,
				t + 100 * (uint64_t)from);
		if (m->location == ZERO_ON_DEVICE) {
			ok(zero_device_alloc(m->job, bytes_of(t) + 1, &data));
			upload(data, plain, bytes_of(t));
			synchronise();
			free(plain);
		}
		give(m, t, values, owner, data);
	}
}

static void compare(struct model *m, zero_adopt_values values, int owner, const char *what)
{
	int from = values == ZERO_VALUES_EQUAL ? 0 : values == ZERO_VALUES_OWN ? rank : owner;

	for (size_t t = 0; t < TENSORS; t++) {
		void *want = host_memory(bytes_of(t)), *got = host_memory(bytes_of(t));
		void *view = zero_view(m->params[t]);
		size_t at;

		check(!view == !tensors[t].count, "%s: '%s'", what, tensors[t].name);
		random_elements(tensors[t].dtype, want, tensors[t].count, t + 100 * (uint64_t)from);
		fetch(got, view, bytes_of(t));
		at = ref_difference(tensors[t].dtype, got, want, tensors[t].count);
		check(at == tensors[t].count, "%s: '%s' differs at %zu; seed %llu", what,
		      tensors[t].name, at, (unsigned long long)seed);
		free(want);
		free(got);
	}
}

/* A step from there, with gradients of 1 and betas of 0: all moves by the same. */
static void trains(struct model *m, const char *what)
{
	zero_adamw adamw = {.lr = 1, .eps = 1};
	size_t count = tensors[4].count, bytes = count * sizeof(float);
	float *ones = host_memory(bytes), *before = host_memory(bytes), *after = host_memory(bytes);
	float *own = zero_gradient(m->params[4]);

	check(own, "%s", zero_last_error());
	for (size_t i = 0; i < count; i++)
		ones[i] = 1;
	fetch(before, zero_view(m->params[4]), bytes);
	upload(own, ones, bytes);
	ok(zero_step(m->job, &adamw, NULL));
	fetch(after, zero_view(m->params[4]), bytes);
	for (size_t i = 0; i < count; i++)
		check(after[i] == before[i] - 0.5F, "%s: %g after %g at %zu", what,
		      (double)after[i], (double)before[i], i);
	free(ones);
	free(before);
	free(after);
}

static void flatten(int stage, const char *tier, zero_location location, zero_adopt_values values)
{
	int owner = (stage + 1) % world;
	/* Ranks that own values of their own at stages 1 and 2 must not be stepped as one. */
	bool train = values != ZERO_VALUES_OWN;
	char settings[128], what[200];
	struct model m;

	snprintf(settings, sizeof(settings), "stage=%d flatten=%s stream_chunk=4096", stage, tier);
	snprintf(what, sizeof(what), "%s, tensors on the %s, values %d", settings,
		 location == ZERO_ON_DEVICE ? "device" : "host", (int)values);
	begin(&m, settings);
	m.location = location;
	adopt_all(&m, values, owner);
	ok(zero_layout(m.job));
	check(!strcmp(tier, "auto") || !strcmp(zero_setting(m.job, "flatten"), tier), "%s: %s",
	      what, zero_setting(m.job, "flatten"));
	check(m.released >= TENSORS - 1, "%s: %d released", what, m.released);
	if (train || !device_on_host())
		compare(&m, values, owner, what);
	if (train)
		trains(&m, what);
	ok(zero_close(m.job));
}

void check_flatten(void)
{
	static const char *const tiers[] = {"device", "distributed", "host", "auto"};
	static const zero_adopt_values values[] = {ZERO_VALUES_EQUAL, ZERO_VALUES_OF_RANK,
						   ZERO_VALUES_OWN};

	for (int stage = 0; stage < 3; stage++)
		for (size_t t = 0; t < 4; t++)
			for (int location = 0; location < 2; location++)
				for (size_t v = 0; v < 3; v++)
					if (t != 1 || v != 2) /* distributed takes no own values */
						flatten(stage, tiers[t],
							location ? ZERO_ON_DEVICE : ZERO_ON_HOST,
							values[v]);
}

/* ---- whole models ---------------------------------------------------------------------------- */

static void compare_model(struct model *m, const char *what)
{
	for (size_t g = 0; g < GROUPS; g++) {
		ok(zero_gather(m->groups[g], ZERO_DTYPE_PARAM));
		for (size_t t = 0; t < TENSORS; t++) {
			void *want;

			if (tensors[t].group != g)
				continue;
			want = host_memory(bytes_of(t));
			random_elements(tensors[t].dtype, want, tensors[t].count, 7000 + t);
			expect_gathered(m->params[t], tensors[t].dtype, want, what);
			free(want);
		}
		ok(zero_release(m->groups[g]));
	}
}

/* Exported, and loaded again at another stage. */
void check_models(const char *settings)
{
	const char *path;
	zero_file *file;
	struct model m;
	char other[64];

	if (!getenv("ZERO_HAVE") || !strstr(getenv("ZERO_HAVE"), "jansson"))
		return;
	begin(&m, settings);
	ok(zero_layout(m.job));
	for (size_t t = 0; t < TENSORS; t++) {
		void *values = host_memory(bytes_of(t));
		zero_source source = zero_from_all(values);

		random_elements(tensors[t].dtype, values, tensors[t].count, 7000 + t);
		ok(zero_load(m.params[t], &source));
		free(values);
	}
	path = file_path("model.safetensors");
	ok(zero_export(m.job, path));
	ok(zero_close(m.job));

	snprintf(other, sizeof(other), "stage=%d stream_chunk=4096", 3 - atoi(settings + 6));
	begin(&m, other);
	ok(zero_layout(m.job));
	ok(zero_load_model(m.job, path, NULL, NULL));
	compare_model(&m, other);
	ok(zero_file_open(m.job, path, &file));
	check(zero_file_count(file) == TENSORS, "%zu tensors", zero_file_count(file));
	zero_file_close(file);
	ok(zero_close(m.job));
}

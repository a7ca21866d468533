/* SPDX-License-Identifier: Apache-2.0 */
/* Partition: values of every kind of source, of every type, on the rank that owns them. */
#include <math.h>

#include "ranks.h"

static const zero_dtype types[] = {ZERO_F32, ZERO_BF16, ZERO_F16, ZERO_F64,
				   ZERO_I64, ZERO_I32,  ZERO_U8,  ZERO_BOOL};
static const size_t counts[] = {0, 1, 65, 4097, 50021};

enum { TYPES = 8, COUNTS = 5, PARAMS = TYPES * COUNTS };

struct model {
	zero_job *job;
	zero_group *groups[TYPES];
	zero_param *params[PARAMS];
	char names[PARAMS][16];
};

static zero_dtype dtype_of(size_t p)
{
	return types[p / COUNTS];
}

static size_t count_of(size_t p)
{
	return counts[p % COUNTS];
}

static void begin(struct model *m, const char *settings)
{
	m->job = open_tested("%s", settings);
	for (size_t t = 0; t < TYPES; t++)
		m->groups[t] = new_group(m->job, zero_dtype_name(types[t]));
	for (size_t p = 0; p < PARAMS; p++) {
		snprintf(m->names[p], sizeof(m->names[p]), "p%zu", p);
		m->params[p] = new_param(m->groups[p / COUNTS], m->names[p], dtype_of(p),
					 count_of(p), false);
	}
	ok(zero_layout(m->job));
}

/* All parameters have their own part of `values`, which has room for each. */
static void compare(struct model *m, void *const *values, const char *what)
{
	for (size_t t = 0; t < TYPES; t++) {
		for (size_t p = t * COUNTS; p < (t + 1) * COUNTS; p++)
			expect_stored(m->params[p], types[t], values[p], what);
		ok(zero_gather(m->groups[t], ZERO_DTYPE_PARAM));
		for (size_t p = t * COUNTS; p < (t + 1) * COUNTS; p++)
			expect_gathered(m->params[p], types[t], values[p], what);
		ok(zero_release(m->groups[t]));
	}
}

/* ---- given values ---------------------------------------------------------------------------- */

struct slices {
	const char *values;
	size_t size;
};

static zero_status slice(void *context, void *elements, size_t first, size_t count)
{
	const struct slices *s = context;

	memcpy(elements, s->values + first * s->size, count * s->size);
	return ZERO_OK;
}

static void from_ranks_and_all(struct model *m, void **values, const char *settings)
{
	size_t most = counts[COUNTS - 1] * 8;
	char *pinned = pinned_alloc(most), *plain = host_memory(most);

	for (size_t p = 0; p < PARAMS; p++) {
		size_t bytes = count_of(p) * zero_dtype_size(dtype_of(p));
		char *given = p % 2 ? pinned : plain;
		int root = (int)(p % (size_t)world);
		zero_source source = p % 3 ? zero_from_all(given)
					   : zero_from_rank(root, rank == root ? given : NULL);

		random_elements(dtype_of(p), values[p], count_of(p), 2000 + p);
		memcpy(given, values[p], bytes);
		ok(zero_load(m->params[p], &source));
		/* The caller may use it again. */
		memset(given, 0xa5, bytes);
	}
	compare(m, values, settings);
	pinned_free(pinned);
	free(plain);
}

static void from_callbacks(struct model *m, void **values, const char *settings)
{
	for (size_t p = 0; p < PARAMS; p++) {
		struct slices slices = {values[p], zero_dtype_size(dtype_of(p))};
		zero_source source = zero_from_callback(slice, &slices);

		random_elements(dtype_of(p), values[p], count_of(p), 4000 + p);
		ok(zero_load(m->params[p], &source));
	}
	compare(m, values, settings);
}

/* From an odd offset in a file of raw values. */
static void from_files(struct model *m, void **values, const char *settings)
{
	for (size_t p = 0; p < PARAMS; p++) {
		size_t bytes = count_of(p) * zero_dtype_size(dtype_of(p));
		char *file = host_memory(bytes + 3);
		zero_tensor tensor = {.name = "raw",
				      .dtype = dtype_of(p),
				      .ndim = 1,
				      .shape = {count_of(p)},
				      .offset = 3};
		zero_source source;

		random_elements(dtype_of(p), values[p], count_of(p), 5000 + p);
		memset(file, 0xa5, 3);
		memcpy(file + 3, values[p], bytes);
		tensor.path = shared_file(m->job, "raw", file, bytes + 3);
		source = zero_from_file(&tensor);
		ok(zero_load(m->params[p], &source));
		free(file);
	}
	compare(m, values, settings);
}

/* ---- made values ----------------------------------------------------------------------------- */

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
}

static void from_constants(struct model *m, void **values, const char *settings)
{
	for (size_t p = 0; p < PARAMS; p++) {
		double value = dtype_of(p) == ZERO_BOOL ? 1 : is_float(dtype_of(p)) ? -0.3 : 77;
		zero_source source = zero_from_constant(value);

		ref_constant(dtype_of(p), values[p], count_of(p), value);
		ok(zero_load(m->params[p], &source));
	}
	compare(m, values, settings);
}

static void from_random(struct model *m, const zero_source *source, const char *settings)
{
	for (size_t p = 0; p < PARAMS; p++) {
		size_t size = zero_dtype_size(dtype_of(p)), count = count_of(p);
		char *got;

		if (!is_float(dtype_of(p)) || !count)
			continue;
		ok(zero_load(m->params[p], source));
		ok(zero_gather(m->groups[p / COUNTS], ZERO_DTYPE_PARAM));
		got = host_memory(count * size);
		fetch(got, zero_data(m->params[p]), count * size);
		ok(zero_release(m->groups[p / COUNTS]));
		for (size_t i = 0; i < count; i++) {
			double want = ref_random(source, dtype_of(p), m->names[p], i);

			check(ref_is_near(source, dtype_of(p), got + i * size, want),
			      "%s: %s[%zu], of %s, is not near %.17g; seed %llu", settings,
			      m->names[p], i, zero_dtype_name(dtype_of(p)), want,
			      (unsigned long long)seed);
		}
		free(got);
	}
}

void check_loads(const char *settings)
{
	zero_source uniform = zero_from_uniform(-0.7, 3.25, seed + 1);
	zero_source normal = zero_from_normal(0.5, 2, seed + 2);
	void *values[PARAMS];
	struct model m;

	for (size_t p = 0; p < PARAMS; p++)
		values[p] = host_memory(count_of(p) * 8);
	begin(&m, settings);
	from_ranks_and_all(&m, values, settings);
	from_callbacks(&m, values, settings);
	from_files(&m, values, settings);
	from_constants(&m, values, settings);
	from_random(&m, &uniform, settings);
	from_random(&m, &normal, settings);
	ok(zero_close(m.job));
	for (size_t p = 0; p < PARAMS; p++)
		free(values[p]);
}

/* ---- tensors of another type, and turned ----------------------------------------------------- */

enum { ROWS = 37, COLUMNS = 501 };

static void file_form(const char *settings, zero_dtype to, zero_dtype from, bool transpose)
{
	size_t count = (size_t)ROWS * COLUMNS, shape[2] = {ROWS, COLUMNS};
	zero_job *job = open_tested("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param_spec spec = {.name = "p", .dtype = to, .ndim = 2, .shape = shape};
	void *file = host_memory(count * 8), *want = host_memory(count * 8);
	zero_tensor tensor = {.name = "t",
			      .dtype = from,
			      .ndim = 2,
			      .shape = {transpose ? COLUMNS : ROWS, transpose ? ROWS : COLUMNS}};
	zero_source source;
	zero_param *param;

	ok(zero_param_new(group, &spec, &param));
	ok(zero_layout(job));
	random_elements(from, file, count, 6000);
	ref_convert(to, want, from, file, transpose ? COLUMNS : count, transpose ? ROWS : 1);
	tensor.path = shared_file(job, "form", file, count * zero_dtype_size(from));
	source = zero_from_file(&tensor);
	source.convert = true;
	source.transpose = transpose;
	ok(zero_load(param, &source));
	expect_stored(param, to, want, settings);
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	expect_gathered(param, to, want, settings);
	ok(zero_release(group));
	ok(zero_close(job));
	free(file);
	free(want);
}

void check_file_forms(const char *settings)
{
	static const zero_dtype pairs[][2] = {{ZERO_F32, ZERO_F32},  {ZERO_BF16, ZERO_F32},
					      {ZERO_F32, ZERO_BF16}, {ZERO_F16, ZERO_F64},
					      {ZERO_F64, ZERO_F16},  {ZERO_I64, ZERO_U8}};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		for (int transpose = 0; transpose < 2; transpose++)
			file_form(settings, pairs[i][0], pairs[i][1], transpose);
}

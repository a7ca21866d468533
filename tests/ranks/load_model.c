/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole checkpoints: random models, written here as safetensors in one or several files, loaded in
 * one call and held element by element against conversions written down here once more, in f64.
 * What each rank reads, reports and stages is counted; what does not fit fails on all ranks alike.
 */
#include <math.h>

#include "load_model.h"

int world;

/* ---- values, once more ----------------------------------------------------------------------- */

/* Every value of a floating type is one of f64; integers are exact in their own way. */
static double float_value(zero_dtype dtype, const unsigned char *element)
{
	uint16_t half = 0;
	double value, sign;
	float single;

	if (dtype == ZERO_F64) {
		memcpy(&value, element, sizeof(value));
		return value;
	}
	if (dtype == ZERO_F32) {
		memcpy(&single, element, sizeof(single));
		return (double)single;
	}
	memcpy(&half, element, sizeof(half));
	const int digits = dtype == ZERO_F16 ? 10 : 7, top = dtype == ZERO_F16 ? 31 : 255;
	const int exponent = half >> digits & top, mantissa = half & ((1 << digits) - 1);

	sign = half >> 15 ? -1.0 : 1.0;
	if (exponent == top)
		return copysign(mantissa ? (double)NAN : (double)INFINITY, sign);
	value = exponent ? mantissa + (1 << digits) : mantissa;
	return sign * ldexp(value, (exponent ? exponent : 1) - top / 2 - digits);
}

static int64_t integer_value(zero_dtype dtype, const unsigned char *element)
{
	int64_t wide;
	int32_t narrow;

	memcpy(&wide, element, dtype == ZERO_I64 ? sizeof(wide) : 1);
	memcpy(&narrow, element, dtype == ZERO_I32 ? sizeof(narrow) : 1);
	return dtype == ZERO_I64 ? wide : dtype == ZERO_I32 ? narrow : *element;
}

/* x rounded to nearest even as `dtype` has it. */
static double rounded(zero_dtype dtype, double x)
{
	const int digits = dtype == ZERO_F16 ? 11 : dtype == ZERO_BF16 ? 8 : 24;
	const int least = dtype == ZERO_F16 ? -14 : -126, most = -least + 2;
	double unit, value;

	if (dtype == ZERO_F64 || x == 0 || !isfinite(x))
		return x;
	unit = ldexp(1, (ilogb(x) > least ? ilogb(x) : least) - digits + 1);
	value = rint(x / unit) * unit;
	return fabs(value) >= ldexp(1, most) ? copysign((double)INFINITY, x) : copysign(value, x);
}

static void check_element(const struct tensor *tensor, size_t i, const unsigned char *got,
			  const unsigned char *in_file)
{
	double want, have;

	if (tensor->dtype == tensor->file_dtype) {
		check(!memcmp(got, in_file, zero_dtype_size(tensor->dtype)),
		      "'%s' (%s): bits of element %zu", tensor->name,
		      zero_dtype_name(tensor->dtype), i);
		return;
	}
	if (!is_float(tensor->dtype)) {
		check(integer_value(tensor->dtype, got) ==
			      integer_value(tensor->file_dtype, in_file),
		      "'%s': element %zu", tensor->name, i);
		return;
	}
	want = rounded(tensor->dtype, float_value(tensor->file_dtype, in_file));
	have = float_value(tensor->dtype, got);
	check(isnan(want) ? isnan(have) : !(want < have) && !(want > have) && !isnan(have),
	      "'%s' (%s from %s): element %zu is %a, not %a", tensor->name,
	      zero_dtype_name(tensor->dtype), zero_dtype_name(tensor->file_dtype), i, have, want);
	check(!signbit(want) == !signbit(have), "'%s': sign of element %zu", tensor->name, i);
}

/* What the callback fills in: a function of the index, and finite in every type. */
static void own_value(zero_dtype dtype, size_t i, unsigned char *element)
{
	uint64_t bits = mixed(i + 17) & ~UINT64_C(0x4000400040004000);

	bits = dtype == ZERO_BOOL ? bits & 1 : bits;
	memcpy(element, &bits, zero_dtype_size(dtype));
}

/* 1 in every type. */
static void one(zero_dtype dtype, unsigned char *element)
{
	const float f32 = 1;
	const double f64 = 1;
	const uint64_t bits = dtype == ZERO_F16 ? 0x3c00 : dtype == ZERO_BF16 ? 0x3f80 : 1;

	memcpy(element,
	       dtype == ZERO_F32   ? (const void *)&f32
	       : dtype == ZERO_F64 ? (const void *)&f64
				   : (const void *)&bits,
	       zero_dtype_size(dtype));
}

/* Where element i of the parameter is in the file. */
static size_t place_in_file(const struct tensor *tensor, size_t i)
{
	if (!tensor->transpose)
		return i;
	return i % tensor->shape[1] * tensor->shape[0] + i / tensor->shape[1];
}

/* Neither infinite nor zero, of which arithmetic may lose the sign. */
static bool is_ordinary(const struct tensor *tensor, const unsigned char *in_file)
{
	double value;

	if (!is_float(tensor->dtype))
		return true;
	value = rounded(tensor->dtype, float_value(tensor->file_dtype, in_file));
	return isfinite(value) && fabs(value) > 0;
}

static void check_tensor(const struct tensor *tensor, bool ordinary_only)
{
	const unsigned char *data = zero_data(tensor->param), *in_file;
	size_t size = zero_dtype_size(tensor->dtype);
	unsigned char element[8];

	for (size_t i = 0; i < tensor->count; i++) {
		if (tensor->origin == CHECKPOINT) {
			in_file = tensor->values +
				  place_in_file(tensor, i) * zero_dtype_size(tensor->file_dtype);
			if (!ordinary_only || is_ordinary(tensor, in_file))
				check_element(tensor, i, data + i * size, in_file);
			continue;
		}
		if (tensor->origin == BY_CALLBACK)
			own_value(tensor->dtype, i, element);
		else
			one(tensor->dtype, element);
		check(!memcmp(data + i * size, element, size),
		      "'%s': element %zu of what is missing", tensor->name, i);
	}
}

/* ---- callbacks ------------------------------------------------------------------------------- */

static struct tensor *find(struct model *model, const char *name)
{
	for (size_t i = 0; i < model->count; i++)
		if (!strcmp(model->tensors[i].name, name))
			return &model->tensors[i];
	check(false, "nobody knows '%s'", name);
	return NULL;
}

static const char *tensor_name(void *context, const char *param, bool *transpose)
{
	static char name[48]; /* poisoned by the next call */
	struct tensor *tensor = find(context, param);

	memset(name, 'x', sizeof(name));
	check(!*transpose, "'%s' is transposed already", param);
	*transpose = tensor->transpose;
	if (tensor->known)
		return NULL;
	memcpy(name, tensor->file_name, sizeof(name));
	return name;
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	const struct tensor *tensor = context;
	size_t size = zero_dtype_size(tensor->dtype);

	for (size_t i = 0; i < count; i++)
		own_value(tensor->dtype, first + i, (unsigned char *)elements + i * size);
	return ZERO_OK;
}

static zero_status initialise(void *context, const char *param, zero_source *source)
{
	struct tensor *tensor = find(context, param);

	check(tensor->origin != CHECKPOINT, "'%s' is in the checkpoint", param);
	check(source->kind == ZERO_FROM_CONSTANT, "kind %d", (int)source->kind);
	if (tensor->origin == BY_CALLBACK)
		*source = zero_from_callback(fill, tensor);
	return ZERO_OK;
}

static zero_status progress(void *context, const char *param, uint64_t done, uint64_t total)
{
	struct model *model = context;

	check(!model->calls == !param, "call %zu: %s", model->calls, param ? param : "no name");
	check(model->calls ? done > model->done && total == model->total : done == 0,
	      "%llu of %llu bytes after %llu", (unsigned long long)done, (unsigned long long)total,
	      (unsigned long long)model->done);
	model->calls++;
	model->done = done;
	model->total = total;
	return ZERO_OK;
}

/* ---- loading --------------------------------------------------------------------------------- */

/* What this rank stores of all parameters, and reads from the files for it. */
static void own_bytes(const struct model *model, uint64_t *stored, uint64_t *read)
{
	size_t first, count;
	void *data;

	*stored = *read = 0;
	for (size_t i = 0; i < model->count; i++) {
		const struct tensor *tensor = &model->tensors[i];

		if (tensor->tied)
			continue;
		ok(zero_shard(tensor->param, &data, &first, &count));
		*stored += count * zero_dtype_size(tensor->dtype);
		if (tensor->origin == CHECKPOINT)
			*read += count * zero_dtype_size(tensor->file_dtype);
	}
}

static bool is_listed(const char *const *names, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

static void check_report(const struct model *model, const zero_load_model_report *report)
{
	size_t missing = 0, unexpected = 0;

	for (size_t i = 0; i < TENSORS + EXTRA; i++) {
		const struct tensor *tensor = &model->tensors[i];

		if (i < model->count && tensor->origin != CHECKPOINT && !tensor->known) {
			missing++;
			check(is_listed(report->missing, report->missing_count, tensor->name),
			      "'%s' is missing", tensor->name);
		}
		if (i >= model->count && tensor->listed) {
			unexpected++;
			check(is_listed(report->unexpected, report->unexpected_count,
					tensor->file_name),
			      "'%s' is unexpected", tensor->file_name);
		}
	}
	check(missing == report->missing_count, "%zu, not %zu", report->missing_count, missing);
	check(unexpected == report->unexpected_count, "%zu, not %zu", report->unexpected_count,
	      unexpected);
}

/* Two tiles of at most a chunk, beside what the queue of communication has. */
static void check_memory(const struct model *model, const zero_memory *before)
{
	size_t tile = model->chunk < 4096 ? 4096 : model->chunk < 1 << 20 ? model->chunk : 1 << 20;
	size_t most = before->staging.now + 2 * ((tile + 4095) / 4096 * 4096);
	zero_memory memory;

	ok(zero_memory_now(model->job, &memory));
	most = most > before->staging.peak ? most : before->staging.peak;
	check(memory.staging.peak <= most, "%zu bytes of staging, not %zu", memory.staging.peak,
	      most);
	check(memory.staging.now == before->staging.now, "%zu bytes of staging are left",
	      memory.staging.now);
	check(memory.gathered.peak == 0, "%zu bytes were gathered", memory.gathered.peak);
}

/* At stage 3 every byte of the tensors that are used is read once. */
static void check_counts(const struct model *model, uint64_t bytes_read)
{
	double all[WORLD_MAX], sum = 0, want = 0;
	uint64_t stored, own;

	own_bytes(model, &stored, &own);
	check(bytes_read == own, "%llu bytes were read, not %llu", (unsigned long long)bytes_read,
	      (unsigned long long)own);
	check(model->done == stored && model->total == stored,
	      "progress ended at %llu of %llu, not %llu", (unsigned long long)model->done,
	      (unsigned long long)model->total, (unsigned long long)stored);
	all_values(model->job, (double)bytes_read, all);
	for (int r = 0; r < world; r++)
		sum += all[r];
	for (size_t i = 0; i < model->count; i++)
		if (!model->tensors[i].tied && model->tensors[i].origin == CHECKPOINT)
			want += (double)file_bytes(&model->tensors[i]);
	check(model->stage < 3 || fabs(sum - want) < 0.5, "%.0f bytes were read in all, not %.0f",
	      sum, want);
}

static void check_values(struct model *model, bool ordinary_only)
{
	for (size_t g = 0; g < GROUPS; g++) {
		if (!is_member(model, g))
			continue;
		ok(zero_gather(model->groups[g], ZERO_DTYPE_PARAM));
		for (size_t i = 0; i < model->count; i++)
			if (group_of(i) == g && !model->tensors[i].tied)
				check_tensor(&model->tensors[i], ordinary_only);
		ok(zero_release(model->groups[g]));
	}
}

static void free_model(struct model *model)
{
	ok(zero_close(model->job));
	for (size_t i = 0; i < TENSORS + EXTRA; i++)
		free(model->tensors[i].values);
}

static zero_load_model_options all_callbacks(struct model *model)
{
	static zero_source initial;

	initial = zero_from_constant(1);
	return (zero_load_model_options){.tensor_name = tensor_name,
					 .initialise = initialise,
					 .progress = progress,
					 .context = model,
					 .initial = &initial,
					 .allow_missing = true,
					 .allow_unexpected = true};
}

/* One that changes nothing, but makes masters of 16-bit parameters, or writes them back. */
static void step(struct model *model)
{
	zero_adamw adamw = {.lr = 0, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};

	ok(zero_step(model->job, &adamw, NULL));
}

/* The same tensors by single loads. */
static void load_singly(struct model *model)
{
	zero_source source;
	zero_file *file;

	ok(zero_file_open(model->job, model->folder, &file));
	for (size_t i = 0; i < model->count; i++) {
		struct tensor *tensor = &model->tensors[i];

		if (tensor->tied || tensor->origin != CHECKPOINT || !tensor->listed)
			continue;
		source = zero_from_constant(0);
		ok(zero_load(tensor->param, &source));
		source = zero_from_file(zero_file_find(file, tensor->file_name));
		source.transpose = tensor->transpose;
		source.convert = true;
		ok(zero_load(tensor->param, &source));
	}
	zero_file_close(file);
	check_values(model, true);
}

static void run_model(uint64_t seed, int stage)
{
	struct model *model = calloc(1, sizeof(*model));
	zero_traffic before, after;
	zero_load_model_report report;
	zero_load_model_options load;
	zero_memory memory;

	check(model, "no memory");
	make_model(model, seed, stage);
	add_params(model);
	write_model(model);
	load = all_callbacks(model);
	if (!model->renamed)
		load.tensor_name = NULL;
	if (seed % 2)
		step(model);
	ok(zero_traffic_now(model->job, &before));
	ok(zero_memory_now(model->job, &memory));
	ok(zero_load_model(model->job, model->folder, &load, &report));
	ok(zero_traffic_now(model->job, &after));
	check_memory(model, &memory);
	/* At stages 1 and 2 a step still sends. */
	check(seed % 2 || after.bytes_sent == before.bytes_sent, "something was sent");
	check_report(model, &report);
	zero_load_model_report_free(&report);
	check(!report.missing && !report.unexpected_count, "not emptied");
	check_counts(model, after.bytes_read - before.bytes_read);
	check_values(model, false);
	/* f32 masters have followed if this leaves the values as they are. */
	step(model);
	check_values(model, true);
	load_singly(model);
	free_model(model);
	free(model);
}

int main(void)
{
	const char *models = getenv("ZERO_TEST_MODELS");
	uint64_t seed = test_seed();
	zero_job *job = open_job("stage=0");

	world = zero_world(job);
	check(world <= WORLD_MAX, "%d", world);
	ok(zero_close(job));
	for (int i = 0; i < (models ? atoi(models) : 24); i++)
		run_model(mixed(seed + (uint64_t)i), i % 4 == 3 ? i / 4 % 3 : 3);
	return 0;
}

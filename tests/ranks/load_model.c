/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole checkpoints: random models, written here as safetensors in one or several files, loaded in
 * one call and held element by element against conversions written down here once more, in f64.
 * What each rank reads, reports and stages is counted; what does not fit fails on all ranks alike.
 */
#include <math.h>

#include "checkpoint.h"

enum { GROUPS = 3, TENSORS = 14, SHARDS = 3, EXTRA = 3, WORLD_MAX = 16 };

/* What a parameter is filled with. */
enum origin { CHECKPOINT, BY_CALLBACK, BY_DEFAULT };

struct tensor {
	zero_param *param;
	char name[40], file_name[48]; /* in the job, in the checkpoint */
	zero_dtype dtype, file_dtype;
	int ndim;
	size_t shape[3], count;
	enum origin origin;
	bool transpose, trainable;
	bool known; /* the callback says that the checkpoint has it not */
	struct tensor *tied;
	bool listed;           /* the file has a tensor of this name */
	unsigned char *values; /* as in the file */
	size_t shard;
};

struct model {
	zero_job *job;
	zero_group *groups[GROUPS];
	struct tensor tensors[TENSORS + EXTRA]; /* extra ones are in the file only */
	size_t count, chunk, shards;
	int stage;
	int left_out; /* the rank that has no part in the last group; -1: none */
	bool renamed;
	char folder[1100];
	/* What progress said last. */
	uint64_t done, total;
	size_t calls;
};

static int world;

/* ---- values, once more ----------------------------------------------------------------------- */

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
}

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

/* ---- a random model -------------------------------------------------------------------------- */

static void random_shape(uint64_t *random, struct tensor *tensor)
{
	static const size_t edges[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 200};

	tensor->ndim = below(random, 3) ? 2 : (int)below(random, 4);
	tensor->count = 1;
	for (int i = 0; i < tensor->ndim; i++) {
		tensor->shape[i] = below(random, 4)
					   ? 1 + below(random, tensor->ndim == 3 ? 30 : 200)
					   : edges[below(random, 10)];
		if (tensor->ndim == 3 && i == 2)
			tensor->shape[i] %= 40;
		tensor->count *= tensor->shape[i];
	}
	tensor->transpose = tensor->ndim == 2 && below(random, 2);
}

static zero_dtype random_dtype(uint64_t *random, bool floating)
{
	static const zero_dtype types[2][4] = {{ZERO_I64, ZERO_I32, ZERO_U8, ZERO_BOOL},
					       {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64}};

	return types[floating][below(random, 4)];
}

/* Often halfway between values of 16 or 32 bits, or next to it; of all sizes. */
static double awkward_value(uint64_t *random)
{
	const uint64_t whole = draw(random) >> (below(random, 2) ? 52 : 39);
	const double beside = ldexp((double)below(random, 3) - 1, -27);
	const int exponents[] = {-12, -25, -38, 0, 5, -140, -160, 110};

	return ldexp(((double)whole + beside) * (below(random, 2) ? 1 : -1),
		     exponents[below(random, 8)] + (int)below(random, 5));
}

static uint64_t random_value(uint64_t *random, const struct tensor *tensor)
{
	const bool same = tensor->dtype == tensor->file_dtype;
	uint64_t bits = draw(random);
	double value = awkward_value(random);
	float single = (float)value;

	if (tensor->file_dtype == ZERO_BOOL || (!same && tensor->dtype == ZERO_BOOL))
		return bits & 1;
	if (tensor->file_dtype == ZERO_U8 || (!same && tensor->dtype == ZERO_U8))
		return bits & 255;
	if (!is_float(tensor->file_dtype))
		return same ? bits : (uint64_t)((int64_t)bits >> 33);
	if (tensor->file_dtype == ZERO_F64 && bits % 8)
		memcpy(&bits, &value, sizeof(value));
	if (tensor->file_dtype == ZERO_F32 && bits % 8)
		memcpy(&bits, &single, sizeof(single));
	return bits;
}

/* Integers fit into what they become. */
static void make_values(uint64_t *random, struct tensor *tensor)
{
	size_t size = zero_dtype_size(tensor->file_dtype);

	tensor->values = malloc(tensor->count * size + 1);
	check(tensor->values, "no memory");
	for (size_t i = 0; i < tensor->count; i++) {
		uint64_t bits = random_value(random, tensor);

		memcpy(tensor->values + i * size, &bits, size);
	}
}

static void random_tensor(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i];
	bool floating = below(random, 4);

	snprintf(tensor->name, sizeof(tensor->name), "layer.%zu.weight", i);
	snprintf(tensor->file_name, sizeof(tensor->file_name), "%s%s",
		 model->renamed ? "model." : "", tensor->name);
	tensor->file_dtype = random_dtype(random, floating);
	tensor->dtype = below(random, 2) ? tensor->file_dtype : random_dtype(random, floating);
	random_shape(random, tensor);
	tensor->transpose = tensor->transpose && model->renamed;
	tensor->trainable = tensor->dtype <= ZERO_BF16 && below(random, 2);
	tensor->listed = true;
	tensor->shard = below(random, model->shards);
	make_values(random, tensor);
}

/* Of a tied parameter the file has its own, its alias's or both; an alias's may have another shape,
   and other values if nobody is to read them. */
static void tie(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i], *target = tensor - 1;
	size_t which = below(random, 3);

	free(tensor->values);
	tensor->dtype = target->dtype;
	tensor->file_dtype = target->file_dtype;
	tensor->trainable = target->trainable;
	tensor->count = target->count;
	if (target->ndim == 2 && below(random, 2)) {
		tensor->ndim = 2;
		memcpy(tensor->shape, target->shape, sizeof(tensor->shape));
		tensor->transpose = model->renamed && below(random, 2);
	} else {
		tensor->ndim = 1;
		tensor->shape[0] = target->count;
		tensor->transpose = false;
	}
	tensor->tied = target;
	make_values(random, tensor);
	tensor->listed = which != 0;
	target->listed = which != 1;
	if (target->listed)
		return;
	free(target->values);
	target->values = tensor->values;
	target->transpose = tensor->transpose;
	tensor->values = NULL;
}

/* Known to be missing, or not; then initialised. */
static void lose(struct model *model, uint64_t *random, size_t i)
{
	struct tensor *tensor = &model->tensors[i];

	if (tensor->tied || tensor[1].tied)
		return;
	/* What is known not to be there is not asked for; if it is there it is unexpected. */
	tensor->listed = false;
	tensor->known = model->renamed && below(random, 2);
	tensor->origin = below(random, 2) ? BY_CALLBACK : BY_DEFAULT;
}

static size_t group_of(size_t i)
{
	return i * GROUPS / TENSORS;
}

static void make_model(struct model *model, uint64_t seed, int stage)
{
	static const char *const modes[] = {"auto", "single", "grouped"};
	static const size_t chunks[] = {64, 1000, 4096, 10000, 100000, 40 << 20};
	uint64_t *random = &seed;

	memset(model, 0, sizeof(*model));
	model->stage = stage;
	model->chunk = chunks[below(random, 6)];
	model->shards = 1 + below(random, SHARDS);
	model->renamed = below(random, 4);
	model->left_out = world > 1 ? (int)below(random, (size_t)world + 1) - 1 : -1;
	model->count = 2 + below(random, TENSORS - 1);
	for (size_t i = 0; i < TENSORS + EXTRA; i++) {
		random_tensor(model, random, i);
		if (i >= model->count)
			model->tensors[i].listed = i >= TENSORS && below(random, 3) == 0;
	}
	for (size_t i = 1; i < model->count; i++)
		if (below(random, 6) == 0 && group_of(i) == group_of(i - 1) &&
		    !model->tensors[i - 1].tied)
			tie(model, random, i);
	for (size_t i = 0; i < model->count; i++)
		if (below(random, 6) == 0)
			lose(model, random, i);
	/* A file has at least one tensor. */
	model->tensors[TENSORS].listed = true;
	model->job = open_job("stage=%d allgather=%s bucket=%zu stream_chunk=%zu share=%zu", stage,
			      modes[below(random, 3)], (64 << 10) + below(random, 1 << 20),
			      model->chunk, below(random, 3));
}

/* COLLECTIVE. The ranks but one; NULL: all of them. */
static zero_team *make_team(const struct model *model)
{
	int ranks[WORLD_MAX];
	size_t count = 0;
	zero_team *team;

	if (model->left_out < 0)
		return NULL;
	for (int r = 0; r < world; r++)
		if (r != model->left_out)
			ranks[count++] = r;
	ok(zero_team_new(model->job, ranks, count, &team));
	return team;
}

/* The last group may be of a team. */
static bool is_member(const struct model *model, size_t g)
{
	return g < GROUPS - 1 || model->left_out != zero_rank(model->job);
}

static void add_params(struct model *model)
{
	zero_team *team = make_team(model);

	for (size_t g = 0; g < GROUPS; g++) {
		char name[16];

		snprintf(name, sizeof(name), "%zu", g);
		ok(zero_group_new(model->job, name, g == GROUPS - 1 ? team : NULL,
				  &model->groups[g]));
	}
	for (size_t i = 0; i < model->count; i++) {
		struct tensor *tensor = &model->tensors[i];
		zero_param_spec spec = {.name = tensor->name,
					.dtype = tensor->dtype,
					.ndim = tensor->ndim,
					.shape = tensor->shape,
					.trainable = tensor->trainable};

		if (tensor->tied)
			spec.alias_of = tensor->tied->param;
		/* Aliases follow their targets into the group. */
		ok(zero_param_new(model->groups[group_of(i)], &spec, &tensor->param));
	}
	ok(zero_layout(model->job));
}

static size_t file_bytes(const struct tensor *tensor)
{
	return tensor->count * zero_dtype_size(tensor->file_dtype);
}

/* COLLECTIVE. In the order of the job's parameters or the other way round. */
static void write_model(struct model *model)
{
	struct file_tensor tensors[TENSORS + EXTRA];
	static int models;
	size_t count = 0;

	snprintf(model->folder, sizeof(model->folder), "%s-%d", file_path("model"), models++);
	for (size_t i = 0; i < TENSORS + EXTRA; i++) {
		const struct tensor *tensor =
			&model->tensors[models % 2 ? i : TENSORS + EXTRA - 1 - i];
		const size_t *shape = tensor->shape;

		if (!tensor->listed)
			continue;
		tensors[count] = (struct file_tensor){
			.name = tensor->file_name,
			.dtype = tensor->file_dtype,
			.ndim = tensor->ndim,
			.shape = {shape[0], shape[1], shape[2]},
			.bytes = file_bytes(tensor),
			.values = tensor->values ? tensor->values : tensor->tied->values,
			.shard = tensor->shard,
		};
		if (tensor->transpose) {
			tensors[count].shape[0] = shape[1];
			tensors[count].shape[1] = shape[0];
		}
		count++;
	}
	if (zero_rank(model->job) == 0)
		write_checkpoint(model->folder, tensors, count, model->shards);
	ok(zero_agree(model->job, NULL));
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

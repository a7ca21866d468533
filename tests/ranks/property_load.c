/* SPDX-License-Identifier: Apache-2.0 */
/* Values from every source. */
#include <math.h>

#include "property.h"

/* Slices of it are values: of any bits, or real numbers of a size that can be trained. */
enum {
	ANY_BYTES = 1 << 20,
	REALS = 160000, /* of each type */
	ANY_AT = 1,     /* in the file nothing is aligned */
	F32_AT = ANY_AT + ANY_BYTES,
	F16_AT = F32_AT + 4 * REALS,
	BF16_AT = F16_AT + 2 * REALS,
	NOISE_BYTES = BF16_AT + 2 * REALS,
};

static unsigned char noise[NOISE_BYTES];
static char noise_path[1024];

void make_noise(zero_job *job)
{
	uint64_t random = 1;
	FILE *file;
	int error = 0;

	for (size_t i = 0; i < F32_AT; i++)
		noise[i] = (unsigned char)draw(&random);
	for (size_t i = 0; i < REALS; i++) {
		double real = (double)signed_unit(draw(&random));

		real *= i % 64 ? 1 : 100;
		ref_narrow(ZERO_F32, real, noise + F32_AT + 4 * i);
		ref_narrow(ZERO_F16, real, noise + F16_AT + 2 * i);
		ref_narrow(ZERO_BF16, real, noise + BF16_AT + 2 * i);
	}
	snprintf(noise_path, sizeof(noise_path), "%s", file_path("noise"));
	if (zero_rank(job) == 0) {
		file = fopen(noise_path, "wb");
		error = !file || fwrite(noise, 1, NOISE_BYTES, file) != NOISE_BYTES || fclose(file);
	}
	ok(zero_agree(job, error ? "cannot write the noise" : NULL));
}

/* Where values for the tensor begin, if they are of that dtype. */
static size_t random_slice(uint64_t *random, const struct tensor *tensor, zero_dtype dtype)
{
	size_t size = zero_dtype_size(dtype);

	if (!tensor->spec.trainable)
		return ANY_AT + below(random, ANY_BYTES - size * COUNT_MAX);
	return (dtype == ZERO_F32   ? F32_AT
		: dtype == ZERO_F16 ? F16_AT
				    : BF16_AT) +
	       size * below(random, REALS - COUNT_MAX);
}

struct filling {
	const unsigned char *values;
	size_t size, first, end; /* what may be asked for, in order */
};

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	struct filling *filling = context;

	check(first == filling->first && first + count <= filling->end,
	      "elements [%zu, +%zu), not of [%zu, %zu)", first, count, filling->first,
	      filling->end);
	memcpy(elements, filling->values + first * filling->size, count * filling->size);
	filling->first += count;
	return ZERO_OK;
}

/* What one load needs until it is done. */
struct loading {
	struct tensor *tensor;
	zero_source source;
	zero_tensor slice;
	struct filling filling;
};

static bool is_random(const zero_source *source)
{
	return source->kind == ZERO_FROM_UNIFORM || source->kind == ZERO_FROM_NORMAL;
}

void refused_load(struct tensor *tensor, const zero_source *source, zero_status status)
{
	fails(zero_load(tensor->param, source), tensor->group->member ? status : ZERO_OK);
}

/* The library's values count, if they are near what they must be. */
static void adopt_random(struct tensor *tensor, const zero_source *source)
{
	zero_dtype dtype = tensor->spec.dtype;
	size_t size = zero_dtype_size(dtype);
	const unsigned char *data;

	if (!tensor->group->member)
		return;
	ok(zero_gather(tensor->group->handle, ZERO_DTYPE_PARAM));
	data = zero_data(tensor->param);
	for (size_t i = 0; i < tensor->count; i++) {
		double want = ref_random(source, dtype, tensor->name, i);

		check(ref_is_near(source, dtype, data + i * size, want),
		      "element %zu of '%s' from %s(%g, %g) is not near %.17g", i, tensor->name,
		      source->kind == ZERO_FROM_NORMAL ? "normal" : "uniform", source->a, source->b,
		      want);
	}
	if (tensor->count)
		memcpy(tensor->ref.values, data, tensor->count * size);
	ok(zero_release(tensor->group->handle));
}

static zero_source prepare_random(struct model *model, struct tensor *tensor)
{
	double a = (double)signed_unit(draw(&model->random));
	double b = 0.1 + fabs((double)signed_unit(draw(&model->random)));
	uint64_t seed = draw(&model->random);
	zero_source source = below(&model->random, 2) ? zero_from_normal(a, b, seed)
						      : zero_from_uniform(a, a + b, seed);

	if (is_real(tensor->spec.dtype) || tensor->spec.dtype == ZERO_F64)
		return source;
	refused_load(tensor, &source, ZERO_E_INVALID);
	ref_constant(tensor->spec.dtype, tensor->ref.values, tensor->count, a);
	return zero_from_constant(a);
}

static zero_source prepare_constant(struct model *model, struct tensor *tensor)
{
	double unit = (double)signed_unit(draw(&model->random));
	double value = unit * (below(&model->random, 2) ? 1 : 400);

	ref_constant(tensor->spec.dtype, tensor->ref.values, tensor->count, value);
	return zero_from_constant(value);
}

static zero_source prepare_slice(struct model *model, struct loading *loading)
{
	struct tensor *tensor = loading->tensor;
	struct filling *filling = &loading->filling;
	const struct group *group = tensor->group;
	size_t at = random_slice(&model->random, tensor, tensor->spec.dtype);
	int root = group->ranks[below(&model->random, (size_t)group->world)];
	void *data;

	*filling =
		(struct filling){.values = noise + at, .size = zero_dtype_size(tensor->spec.dtype)};
	memcpy(tensor->ref.values, noise + at, tensor->count * filling->size);
	switch (below(&model->random, 4)) {
	case 0:
		return zero_from_all(noise + at);
	case 1:
		ok(zero_shard(tensor->param, &data, &filling->first, &filling->end));
		filling->end += filling->first;
		return zero_from_callback(fill, filling);
	default:
		return zero_from_rank(root, model->rank == root ? noise + at : NULL);
	}
}

/* A type of a file that can become the tensor's. */
static zero_dtype file_dtype(uint64_t *random, const struct tensor *tensor)
{
	static const zero_dtype reals[] = {ZERO_F32, ZERO_F16, ZERO_BF16, ZERO_F64};
	zero_dtype to = tensor->spec.dtype, i32 = below(random, 2) ? ZERO_I32 : ZERO_U8;
	size_t real = below(random, tensor->spec.trainable ? 3 : 4);

	if (below(random, 2))
		return to;
	if (is_real(to) || to == ZERO_F64)
		return reals[real];
	return to == ZERO_I64 ? i32 : to == ZERO_I32 ? ZERO_U8 : to;
}

/* From the file; of another type, and turned, at times. */
static zero_source prepare_file(struct model *model, struct loading *loading)
{
	struct tensor *tensor = loading->tensor;
	zero_dtype from = file_dtype(&model->random, tensor);
	size_t at = random_slice(&model->random, tensor, from);
	bool turned = below(&model->random, 2) && tensor->spec.ndim == 2;
	size_t rows = turned ? tensor->shape[1] : 1;
	size_t columns = turned ? tensor->shape[0] : tensor->count;
	zero_source source = zero_from_file(&loading->slice);

	loading->slice = (zero_tensor){.name = "slice",
				       .dtype = from,
				       .ndim = tensor->spec.ndim,
				       .path = noise_path,
				       .offset = at};
	for (int i = 0; i < tensor->spec.ndim; i++)
		loading->slice.shape[i] = tensor->shape[turned ? 1 - i : i];
	source.transpose = turned;
	if (from != tensor->spec.dtype) {
		refused_load(tensor, &source, ZERO_E_FORMAT);
		source.convert = true;
	}
	ref_convert(tensor->spec.dtype, tensor->ref.values, from, noise + at, rows, columns);
	return source;
}

/* Draws a source, whose values are the reference's from here on. */
static void prepare(struct model *model, struct tensor *tensor, struct loading *loading)
{
	if (model->told)
		printf("load '%s', %zu of %s\n", tensor->name, tensor->count,
		       zero_dtype_name(tensor->spec.dtype));
	loading->tensor = tensor;
	loading->filling = (struct filling){0};
	switch (below(&model->random, 7)) {
	case 0:
		loading->source = prepare_random(model, tensor);
		break;
	case 1:
		loading->source = prepare_constant(model, tensor);
		break;
	case 2:
	case 3:
		loading->source = prepare_file(model, loading);
		break;
	default:
		loading->source = prepare_slice(model, loading);
	}
}

static void finish(struct loading *loading)
{
	const struct filling *filling = &loading->filling;

	if (is_random(&loading->source))
		adopt_random(loading->tensor, &loading->source);
	check(loading->source.kind != ZERO_FROM_CALLBACK || filling->first == filling->end,
	      "'%s' was filled to element %zu, not %zu", loading->tensor->name, filling->first,
	      filling->end);
	ref_loaded(&loading->tensor->ref);
}

void load(struct model *model, struct tensor *tensor)
{
	struct loading loading;

	bool counted = below(&model->random, 2);
	uint64_t before, sent = 0;

	prepare(model, tensor, &loading);
	if (loading.source.kind == ZERO_FROM_RANK && tensor->group->member)
		sent = scatter_bytes(model, tensor, loading.source.rank);
	before = counted ? sent_so_far(model) : 0;
	ok(zero_load(tensor->param, &loading.source));
	if (counted)
		check_sent(model, before, sent, tensor->name);
	finish(&loading);
}

/* ---- a whole checkpoint ---------------------------------------------------------------------- */

/* What becomes of a parameter: a quarter of them are not in the checkpoint. */
struct mapping {
	uint64_t seed;
	size_t missing, unexpected;
};

enum outcome { LOADED, NOT_EXPECTED, MISSING };

static enum outcome outcome_of(const struct mapping *mapping, const char *name)
{
	uint64_t bits = mixed(mapping->seed + (uint64_t)name[1] * 256 + (uint64_t)name[3]);

	return bits % 8 ? LOADED : bits & 8 ? MISSING : NOT_EXPECTED;
}

static const char *tensor_name(void *context, const char *param, bool *transpose)
{
	enum outcome outcome = outcome_of(context, param);

	check(!*transpose, "'%s' begins transposed", param);
	return outcome == LOADED ? param : outcome == MISSING ? "nowhere" : NULL;
}

void load_export(struct model *model, const char *path)
{
	struct mapping mapping = {.seed = draw(&model->random)};
	zero_source initial = zero_from_constant(0.25);
	bool fills = below(&model->random, 2);
	zero_load_model_options how = {.tensor_name = tensor_name,
				       .context = &mapping,
				       .initial = fills ? &initial : NULL,
				       .allow_missing = true,
				       .allow_unexpected = true};
	zero_load_model_report report;

	for (size_t g = 0; g < model->group_count; g++)
		for (size_t i = 0; i < model->groups[g].count; i++) {
			struct tensor *tensor = &model->groups[g].tensors[i];
			enum outcome outcome = outcome_of(&mapping, tensor->name);

			if (tensor->tied)
				continue;
			mapping.missing += outcome == MISSING;
			mapping.unexpected += outcome != LOADED;
			/* It keeps what it has, to the last bit of the master. */
			if (outcome != LOADED && !fills)
				continue;
			if (outcome == LOADED)
				memcpy(tensor->ref.values, tensor->ref.exported,
				       tensor->count * zero_dtype_size(tensor->ref.dtype));
			else
				ref_constant(tensor->ref.dtype, tensor->ref.values, tensor->count,
					     0.25);
			ref_loaded(&tensor->ref);
		}
	release_all(model);
	ok(zero_load_model(model->job, path, &how, &report));
	check(report.missing_count == mapping.missing &&
		      report.unexpected_count == mapping.unexpected,
	      "%zu missing and %zu unexpected, not %zu and %zu", report.missing_count,
	      report.unexpected_count, mapping.missing, mapping.unexpected);
	zero_load_model_report_free(&report);
}

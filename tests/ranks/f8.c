/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors of 8-bit floats: stored and gathered as they are, or converted when they are loaded, with
 * scales of blocks and transposed, against the formats' definition in f64.
 */
#include <math.h>

#include "checkpoint.h"
#include "reference.h"

enum { TENSORS = 9, MOST = 300 * 260 };

/* What the files have; the scales of a tensor follow it. */
static const struct {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t rows, columns;
	zero_dtype param; /* that it fills; ZERO_DTYPE_PARAM: none */
} in_files[TENSORS] = {
	{"a", ZERO_F8_E4M3, 2, 300, 260, ZERO_BF16},
	{"a_scale_inv", ZERO_F32, 2, 3, 3, ZERO_DTYPE_PARAM},
	{"b", ZERO_F8_E5M2, 2, 129, 128, ZERO_F32},
	{"b_scale_inv", ZERO_BF16, 2, 2, 1, ZERO_DTYPE_PARAM},
	{"c", ZERO_F8_E4M3, 2, 7, 300, ZERO_F16},
	{"d", ZERO_F8_E4M3, 2, 31, 33, ZERO_F8_E4M3},
	{"e", ZERO_F8_E5M2, 1, 1, 300, ZERO_F8_E5M2},
	{"f", ZERO_F8_E5M2, 1, 1, 1000, ZERO_F32},
	{"g", ZERO_F32, 2, 20, 50, ZERO_F8_E4M3},
};

static unsigned char values[TENSORS][4 * MOST];

static size_t count_of(size_t t)
{
	return in_files[t].rows * in_files[t].columns;
}

/* What a code means: a sign, an exponent and a fraction. */
static double meaning(zero_dtype dtype, unsigned char code)
{
	int bits = dtype == ZERO_F8_E4M3 ? 3 : 2, bias = dtype == ZERO_F8_E4M3 ? 7 : 15;
	int exponent = (code & 0x7f) >> bits, fraction = code & ((1 << bits) - 1);
	double size = exponent ? ldexp(1 + fraction / (double)(1 << bits), exponent - bias)
			       : ldexp(fraction / (double)(1 << bits), 1 - bias);

	if (dtype == ZERO_F8_E4M3 && (code & 0x7f) == 0x7f)
		size = NAN;
	if (dtype == ZERO_F8_E5M2 && exponent == 31)
		size = fraction ? NAN : INFINITY;
	return code & 0x80 ? -size : size;
}

/* The nearest code, of two the even one, by trying all that are finite. */
static unsigned char nearest(zero_dtype dtype, double value)
{
	unsigned best = 0;

	for (unsigned code = 0; code < 0x7f; code++) {
		double distance = fabs(meaning(dtype, (unsigned char)code) - fabs(value));
		double least = fabs(meaning(dtype, (unsigned char)best) - fabs(value));

		if (distance < least || (distance == least && code % 2 == 0))
			best = code;
	}
	return (unsigned char)(best | (signbit(value) ? 0x80 : 0));
}

static void make_values(void)
{
	uint64_t random = test_seed();

	for (size_t t = 0; t < TENSORS; t++)
		for (size_t i = 0; i < count_of(t); i++) {
			float value = signed_unit(draw(&random)) * 4;

			if (zero_dtype_size(in_files[t].dtype) == 1)
				values[t][i] = (unsigned char)draw(&random);
			else
				ref_narrow(in_files[t].dtype, (double)value,
					   values[t] + i * zero_dtype_size(in_files[t].dtype));
		}
}

/* The value of an element in the file, as a parameter of that type has it. */
static double value_of(size_t t, size_t i)
{
	size_t row = i / in_files[t].columns / 128, column = i % in_files[t].columns / 128;
	size_t blocks = (in_files[t].columns + 127) / 128;
	const zero_dtype scale = t + 1 < TENSORS ? in_files[t + 1].dtype : ZERO_F32;
	double value;

	if (in_files[t].dtype == ZERO_F32)
		return (double)ref_widen(ZERO_F32, values[t] + 4 * i);
	value = meaning(in_files[t].dtype, values[t][i]);
	if (t > 2 || t % 2)
		return value;
	/* The product is one of f32. */
	return (double)((float)value *
			ref_widen(scale, values[t + 1] +
						 (row * blocks + column) * zero_dtype_size(scale)));
}

static void check_element(size_t t, size_t i, zero_dtype dtype, const char *data)
{
	double want = value_of(t, i);
	uint32_t narrowed = 0;

	if (dtype == in_files[t].dtype) {
		check((unsigned char)*data == values[t][i], "%s[%zu]: other bits", in_files[t].name,
		      i);
	} else if (zero_dtype_size(dtype) == 1) {
		check((unsigned char)*data == nearest(dtype, want),
		      "%s[%zu] is %02x, not %02x of %g", in_files[t].name, i, (unsigned char)*data,
		      nearest(dtype, want), want);
	} else {
		float got = ref_widen(dtype, data);

		ref_narrow(dtype, want, &narrowed);
		check(isnan(want) ? isnan(got) : got == ref_widen(dtype, &narrowed),
		      "%s[%zu] is %.9g, not %.9g", in_files[t].name, i, (double)got, want);
	}
}

static void write_files(zero_job *job, const char *folder)
{
	struct file_tensor tensors[TENSORS];

	for (size_t t = 0; t < TENSORS; t++) {
		tensors[t] = (struct file_tensor){
			.name = in_files[t].name,
			.dtype = in_files[t].dtype,
			.ndim = in_files[t].ndim,
			.shape = {in_files[t].rows, in_files[t].columns},
			.bytes = count_of(t) * zero_dtype_size(in_files[t].dtype),
			.values = values[t],
			.shard = t == 1, /* scales in another file than what they scale */
		};
		if (in_files[t].ndim == 1)
			tensors[t].shape[0] = in_files[t].columns;
	}
	if (zero_rank(job) == 0)
		write_checkpoint(folder, tensors, TENSORS, 2);
	ok(zero_agree(job, NULL));
}

static zero_param *param_of(zero_group *group, size_t t, bool turned)
{
	size_t shape[2] = {in_files[t].rows, in_files[t].columns};
	zero_param_spec spec = {.name = in_files[t].name,
				.dtype = in_files[t].param,
				.ndim = in_files[t].ndim,
				.shape = in_files[t].ndim == 1 ? shape + 1 : shape};
	zero_param *param;

	if (turned) {
		shape[0] = in_files[t].columns;
		shape[1] = in_files[t].rows;
	}
	ok(zero_param_new(group, &spec, &param));
	return param;
}

/* The whole model: each finds its scales. */
static void loads_model(const char *settings, const char *folder)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param *params[TENSORS] = {NULL};
	zero_load_model_report report;

	for (size_t t = 0; t < TENSORS; t++)
		if (in_files[t].param)
			params[t] = param_of(group, t, false);
	ok(zero_layout(job));
	ok(zero_load_model(job, folder, NULL, &report));
	check(!report.unexpected_count && !report.missing_count, "%zu and %zu",
	      report.unexpected_count, report.missing_count);
	zero_load_model_report_free(&report);
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	for (size_t t = 0; t < TENSORS; t++)
		for (size_t i = 0; params[t] && i < count_of(t); i++)
			check_element(t, i, in_files[t].param,
				      (const char *)zero_data(params[t]) +
					      i * zero_dtype_size(in_files[t].param));
	ok(zero_release(group));
	ok(zero_close(job));
}

/* One matrix by itself, turned, and what does not fit. */
static void loads_turned(const char *settings, const char *folder)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "g");
	zero_param *param = param_of(group, 0, true), *other = param_of(group, 5, false);
	size_t rows = in_files[0].rows, columns = in_files[0].columns;
	zero_source source;
	zero_file *file;

	ok(zero_layout(job));
	ok(zero_file_open(job, folder, &file));
	source = zero_from_file(zero_file_find(file, "a"));
	source.transpose = source.convert = true;
	source.scale = zero_file_find(file, "a_scale_inv");
	ok(zero_load(param, &source));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	for (size_t i = 0; i < rows * columns; i++)
		check_element(0, i, ZERO_BF16,
			      (const char *)zero_data(param) +
				      2 * (i % columns * rows + i / columns));
	ok(zero_release(group));
	source.scale = zero_file_find(file, "b_scale_inv");
	fails(zero_load(param, &source), ZERO_E_FORMAT, "it is [3, 3]");
	source.scale = zero_file_find(file, "c");
	fails(zero_load(param, &source), ZERO_E_FORMAT, "it is [3, 3]");
	source = zero_from_file(zero_file_find(file, "d"));
	source.scale = zero_file_find(file, "a_scale_inv");
	fails(zero_load(other, &source), ZERO_E_INVALID, "becomes another type");
	source = zero_from_constant(0.3);
	ok(zero_load(other, &source));
	source.scale = zero_file_find(file, "a_scale_inv");
	fails(zero_load(other, &source), ZERO_E_INVALID, "converted or scaled");
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	check(*(const unsigned char *)zero_data(other) == nearest(ZERO_F8_E4M3, 0.3), "a constant");
	ok(zero_release(group));
	source = zero_from_uniform(0, 1, 1);
	fails(zero_load(other, &source), ZERO_E_INVALID, "random values are");
	zero_file_close(file);
	ok(zero_close(job));
}

int main(void)
{
	static const char *const settings[] = {
		"stage=3", "stage=3 stream_chunk=5000 stream_threshold=0", "stage=1 share=1",
		"stage=3 shard=1", "stage=3 stream_chunk=1 stream_threshold=0"};
	zero_job *job = open_job("stage=3");
	zero_group *group = new_group(job, "g");
	zero_param_spec trained = {.name = "t", .dtype = ZERO_F8_E5M2, .trainable = true};
	zero_param *param;
	char folder[1100];

	fails(zero_param_new(group, &trained, &param), ZERO_E_INVALID, "what is trained is");
	snprintf(folder, sizeof(folder), "%s", file_path("f8"));
	make_values();
	write_files(job, folder);
	ok(zero_close(job));
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		loads_model(settings[i], folder);
		loads_turned(settings[i], folder);
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

/* ---- elements -------------------------------------------------------------------------------- */

/* The 16-bit types; an exponent is one of 1.x * 2^e. */
struct half {
	int mantissa_bits;
	int least; /* exponent of the smallest normal value */
	uint16_t infinity;
};

static struct half half_of(zero_dtype dtype)
{
	return dtype == ZERO_F16 ? (struct half){10, -14, 0x7c00} : (struct half){7, -126, 0x7f80};
}

float ref_widen(zero_dtype dtype, const void *element)
{
	const struct half half = half_of(dtype);
	uint16_t bits;
	int exponent, mantissa;
	float value;

	if (dtype == ZERO_F32) {
		memcpy(&value, element, sizeof(value));
		return value;
	}
	memcpy(&bits, element, sizeof(bits));
	exponent = (bits & 0x7fff) >> half.mantissa_bits;
	mantissa = bits & ((1 << half.mantissa_bits) - 1);
	if ((bits & half.infinity) == half.infinity)
		value = mantissa ? NAN : INFINITY;
	else if (exponent)
		value = ldexpf((float)(mantissa + (1 << half.mantissa_bits)),
			       exponent - 1 + half.least - half.mantissa_bits);
	else
		value = ldexpf((float)mantissa, half.least - half.mantissa_bits);
	return copysignf(value, bits >> 15 ? -1 : 1);
}

void ref_narrow(zero_dtype dtype, double value, void *element)
{
	const struct half half = half_of(dtype);
	const uint16_t sign = signbit(value) ? 0x8000 : 0;
	const float single = (float)value;
	double units;
	uint32_t bits;
	uint16_t result;
	int exponent;

	if (dtype == ZERO_F32) {
		memcpy(element, &single, sizeof(single));
		return;
	}
	if (isnan(value)) {
		bits = half.infinity | 1U << (half.mantissa_bits - 1);
	} else if (isinf(value)) {
		bits = half.infinity;
	} else {
		frexp(value, &exponent);
		exponent = value == 0 || exponent - 1 < half.least ? half.least : exponent - 1;
		units = nearbyint(ldexp(fabs(value), half.mantissa_bits - exponent));
		/* A mantissa that is rounded up to the next power of two carries by itself. */
		bits = ((uint32_t)(exponent - half.least) << half.mantissa_bits) + (uint32_t)units;
		bits = bits > half.infinity ? half.infinity : bits;
	}
	result = (uint16_t)(sign | bits);
	memcpy(element, &result, sizeof(result));
}

void ref_cast(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count)
{
	size_t to_size = zero_dtype_size(to), from_size = zero_dtype_size(from);

	if (to == from && count)
		memcpy(out, in, count * to_size);
	for (size_t i = 0; to != from && i < count; i++)
		ref_narrow(to, (double)ref_widen(from, (const char *)in + i * from_size),
			   (char *)out + i * to_size);
}

static double real_of(zero_dtype dtype, const void *element)
{
	double value;

	if (dtype != ZERO_F64)
		return (double)ref_widen(dtype, element);
	memcpy(&value, element, sizeof(value));
	return value;
}

static bool equal_nans(zero_dtype dtype, const void *a, const void *b)
{
	double x, y;

	if (dtype != ZERO_F32 && dtype != ZERO_F16 && dtype != ZERO_BF16 && dtype != ZERO_F64)
		return false;
	x = real_of(dtype, a);
	y = real_of(dtype, b);
	return isnan(x) && isnan(y) && !signbit(x) == !signbit(y);
}

static int64_t integer_of(zero_dtype dtype, const void *element)
{
	int64_t i64;
	int32_t i32;

	memcpy(&i64, element, dtype == ZERO_I64 ? sizeof(i64) : 0);
	memcpy(&i32, element, dtype == ZERO_I32 ? sizeof(i32) : 0);
	return dtype == ZERO_I64 ? i64 : dtype == ZERO_I32 ? i32 : *(const unsigned char *)element;
}

static void convert(zero_dtype to, void *out, zero_dtype from, const void *in)
{
	double real;
	int64_t i64;

	if (to == from) {
		memcpy(out, in, zero_dtype_size(to));
	} else if (to == ZERO_I64 || to == ZERO_I32) {
		i64 = integer_of(from, in);
		/* An integer that is wider in the file is not asked for; the lower bytes are
		   first. */
		memcpy(out, &i64, zero_dtype_size(to));
	} else if (to == ZERO_F64) {
		real = real_of(from, in);
		memcpy(out, &real, sizeof(real));
	} else {
		ref_narrow(to, real_of(from, in), out);
	}
}

void ref_convert(zero_dtype to, void *out, zero_dtype from, const void *in, size_t rows,
		 size_t columns)
{
	size_t to_size = zero_dtype_size(to), from_size = zero_dtype_size(from);

	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < columns; j++)
			convert(to, (char *)out + (j * rows + i) * to_size, from,
				(const char *)in + (i * columns + j) * from_size);
}

size_t ref_difference(zero_dtype dtype, const void *a, const void *b, size_t count)
{
	size_t size = zero_dtype_size(dtype);
	const char *x = a, *y = b;

	if (!count || !memcmp(a, b, count * size))
		return count;
	for (size_t i = 0; i < count; i++)
		if (memcmp(x + i * size, y + i * size, size) &&
		    !equal_nans(dtype, x + i * size, y + i * size))
			return i;
	return count;
}

void ref_constant(zero_dtype dtype, void *out, size_t count, double value)
{
	const size_t size = zero_dtype_size(dtype);
	const double whole = nearbyint(value);
	const int64_t i64 = (int64_t)whole;
	const int32_t i32 = (int32_t)whole;
	const uint8_t u8 = (uint8_t)(whole < 0 ? 0 : whole > 255 ? 255 : whole);
	const uint8_t truth = value != 0;
	unsigned char element[8];

	if (dtype == ZERO_F64)
		memcpy(element, &value, sizeof(value));
	else if (dtype == ZERO_I64)
		memcpy(element, &i64, sizeof(i64));
	else if (dtype == ZERO_I32)
		memcpy(element, &i32, sizeof(i32));
	else if (dtype == ZERO_U8 || dtype == ZERO_BOOL)
		element[0] = dtype == ZERO_U8 ? u8 : truth;
	else
		ref_narrow(dtype, value, element);
	for (size_t i = 0; i < count; i++)
		memcpy((char *)out + i * size, element, size);
}

/* ---- random values --------------------------------------------------------------------------- */

/* Philox 4x32-10 (Salmon et al., SC11): key `seed`, counter {block, stream}. */
static void philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t x[4])
{
	uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

	x[0] = (uint32_t)block;
	x[1] = (uint32_t)(block >> 32);
	x[2] = (uint32_t)stream;
	x[3] = (uint32_t)(stream >> 32);
	for (int round = 0; round < 10; round++) {
		uint64_t a = (uint64_t)0xd2511f53 * x[0], b = (uint64_t)0xcd9e8d57 * x[2];
		uint32_t next[4] = {(uint32_t)(b >> 32) ^ x[1] ^ key[0], (uint32_t)b,
				    (uint32_t)(a >> 32) ^ x[3] ^ key[1], (uint32_t)a};

		memcpy(x, next, sizeof(next));
		key[0] += 0x9e3779b9;
		key[1] += 0xbb67ae85;
	}
}

/* FNV-1a. */
static uint64_t stream_of(const char *name)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (; *name; name++)
		hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
	return hash;
}

double ref_random(const zero_source *source, zero_dtype dtype, const char *name, size_t i)
{
	uint32_t x[4];
	double radius, angle, u;

	philox(source->seed, stream_of(name), i / 4, x);
	if (source->kind == ZERO_FROM_UNIFORM) {
		u = dtype == ZERO_F64 ? x[i % 4] * 0x1p-32 : (x[i % 4] >> 8) * 0x1p-24;
		return source->a * (1 - u) + source->b * u;
	}
	radius = sqrt(-2 * log((x[i % 4 & 2] + 0.5) * 0x1p-32));
	angle = 2 * M_PI * (x[(i % 4 & 2) + 1] * 0x1p-32);
	return source->a + source->b * radius * (i % 2 ? sin(angle) : cos(angle));
}

bool ref_is_near(const zero_source *source, zero_dtype dtype, const void *element, double want)
{
	const double size = fabs(source->a) + 7 * fabs(source->b); /* no value is larger */
	const double got = real_of(dtype, element);
	double unit = dtype == ZERO_F64   ? 1e-16
		      : dtype == ZERO_F32 ? 0x1p-24
		      : dtype == ZERO_F16 ? 0x1p-11
					  : 0x1p-8;

	/* In an interval open above, the nearest value may be the next one below. */
	if (source->kind == ZERO_FROM_UNIFORM && !(got >= source->a && got < source->b))
		return false;
	unit *= source->kind == ZERO_FROM_UNIFORM ? 2 : 1;
	return fabs(got - want) <= unit * fmax(fabs(want), 0x1p-14) * 1.001 + size * 1e-12;
}

/* ---- parameters ------------------------------------------------------------------------------ */

bool ref_new(struct ref_param *param)
{
	size_t count = param->count;
	bool made;

	param->values = calloc(count + 1, zero_dtype_size(param->dtype));
	param->exported = calloc(count + 1, zero_dtype_size(param->dtype));
	if (!param->trainable)
		return param->values && param->exported;
	param->master = calloc(count + 1, sizeof(float));
	param->m = calloc(count + 1, sizeof(float));
	param->v = calloc(count + 1, sizeof(float));
	param->team = param->team ? param->team : param->world;
	param->sums = calloc(count + 1, sizeof(float));
	param->team_sums = calloc((size_t)(param->world / param->team) * count + 1, sizeof(float));
	param->pending = calloc((size_t)param->world, sizeof(float *));
	made = param->values && param->exported && param->master && param->m && param->v &&
	       param->sums && param->team_sums && param->pending;
	for (int rank = 0; made && rank < param->world; rank++) {
		param->pending[rank] = calloc(count + 1, sizeof(float));
		made = param->pending[rank];
	}
	return made;
}

void ref_free(struct ref_param *param)
{
	for (int rank = 0; param->pending && rank < param->world; rank++)
		free(param->pending[rank]);
	free(param->pending);
	free(param->sums);
	free(param->team_sums);
	free(param->v);
	free(param->m);
	free(param->master);
	free(param->exported);
	free(param->values);
}

void ref_loaded(struct ref_param *param)
{
	if (param->trainable)
		ref_cast(ZERO_F32, param->master, param->dtype, param->values, param->count);
}

void ref_drop_pending(struct ref_param *param)
{
	for (int rank = 0; param->trainable && rank < param->world; rank++)
		memset(param->pending[rank], 0, param->count * sizeof(float));
}

void ref_reduce(struct ref_param *param, bool accumulate, zero_dtype rounded)
{
	for (int first = 0; param->trainable && first < param->world; first += param->team) {
		float *sums = param->team_sums + (size_t)(first / param->team) * param->count;

		for (size_t i = 0; i < param->count; i++) {
			float sum = param->pending[first][i];
			unsigned char element[4];

			for (int rank = first + 1; rank < first + param->team; rank++)
				sum += param->pending[rank][i];
			ref_narrow(rounded, (double)sum, element);
			sum = ref_widen(rounded, element);
			sums[i] = accumulate ? sums[i] + sum : sum;
			param->sums[i] = first ? param->sums[i] + sums[i] : sums[i];
		}
	}
	ref_drop_pending(param);
}

double ref_norm2(const struct ref_param *param)
{
	double sum = 0;

	for (size_t i = 0; param->trainable && i < param->count; i++)
		sum += (double)param->sums[i] * (double)param->sums[i];
	return sum;
}

/* By squaring, so that the last bit is not a matter of libm. */
static double power(double base, uint64_t exponent)
{
	double result = 1;

	for (; exponent; exponent >>= 1, base *= base)
		if (exponent & 1)
			result *= base;
	return result;
}

/* There is one NaN that comes out of a step, whatever the machine makes of inf - inf. */
static float one_nan(float x)
{
	return isnan(x) ? NAN : x;
}

void ref_step(struct ref_param *param, const zero_adamw *adamw, float scale, uint64_t step)
{
	const float beta1 = adamw->beta1, beta2 = adamw->beta2;
	const float correction1 = (float)(1 / (1 - power((double)beta1, step)));
	const float correction2 = (float)(1 / (1 - power((double)beta2, step)));
	const float lr = adamw->lr * (param->lr_scale != 0 ? param->lr_scale : 1);
	const float decay = lr * (adamw->weight_decay * param->weight_decay);
	const float rate = lr * correction1, root = sqrtf(correction2);

	for (size_t i = 0; param->trainable && i < param->count; i++) {
		const float g = param->sums[i] * scale;
		const float m = fmaf(beta1, param->m[i], (1 - beta1) * g);
		const float v = fmaf(beta2, param->v[i], (1 - beta2) * g * g);
		const float step_size = rate * m / fmaf(root, sqrtf(v), adamw->eps);

		const float next = param->master[i] - fmaf(decay, param->master[i], step_size);

		param->m[i] = one_nan(m);
		param->v[i] = one_nan(v);
		param->master[i] = one_nan(next);
	}
	if (param->trainable)
		ref_cast(param->dtype, param->values, ZERO_F32, param->master, param->count);
}

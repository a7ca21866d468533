/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts elements of one storage type to another, block by block in the cache. f32, f16 and bf16
 * use the cast kernel, and f64 and f8 go by way of f32. Integers go by way of i64.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

enum { BLOCK = 1024 }; /* elements */

static bool is_f8(zero_dtype dtype)
{
	return dtype == ZERO_F8_E4M3 || dtype == ZERO_F8_E5M2;
}

/* Of those that the cast kernel knows. */
static bool is_cast(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16;
}

static size_t cast_size(zero_dtype dtype)
{
	return dtype == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
}

static bool is_float(zero_dtype dtype)
{
	return is_cast(dtype) || dtype == ZERO_F64 || is_f8(dtype);
}

static bool is_integer(zero_dtype dtype)
{
	return dtype == ZERO_I64 || dtype == ZERO_I32 || dtype == ZERO_U8 || dtype == ZERO_BOOL;
}

bool zero_convertible(zero_dtype to, zero_dtype from)
{
	return (is_float(to) && is_float(from)) || (is_integer(to) && is_integer(from));
}

/*
 * Rounds to f32 by rounding to odd (Boldo and Melquiond, "Emulation of FMA and correctly rounded
 * sums: proved algorithms using rounding to odd", 2008): if x lies between two values of f32, takes
 * the one whose last bit is 1. A second rounding, to a type with at least two bits less, then has
 * the same result as rounding x itself.
 */
static float narrow_to_odd(double x)
{
	float f = (float)x;
	uint32_t bits;

	if (isnan(x) || (double)f == x)
		return f;
	memcpy(&bits, &f, sizeof(bits));
	if (fabs((double)f) > fabs(x))
		bits--;
	bits |= 1;
	memcpy(&f, &bits, sizeof(f));
	return f;
}

static void to_f32(const struct zero_kernels *kernels, float *out, zero_dtype from, const void *in,
		   size_t at, size_t count)
{
	if (is_f8(from))
		zero_f8_widen(from, out, (const uint8_t *)in + at, count);
	else if (from != ZERO_F64)
		kernels->cast(ZERO_F32, out, from, (const char *)in + at * cast_size(from), count);
	else
		for (size_t i = 0; i < count; i++)
			out[i] = narrow_to_odd(((const double *)in)[at + i]);
}

static void from_f32(const struct zero_kernels *kernels, zero_dtype to, void *out, size_t at,
		     const float *in, size_t count)
{
	if (is_f8(to))
		zero_f8_narrow(to, (uint8_t *)out + at, in, count);
	else if (to != ZERO_F64)
		kernels->cast(to, (char *)out + at * cast_size(to), ZERO_F32, in, count);
	else
		for (size_t i = 0; i < count; i++)
			((double *)out)[at + i] = (double)in[i];
}

static void floats(const struct zero_kernels *kernels, zero_dtype to, void *out, zero_dtype from,
		   const void *in, size_t count)
{
	float block[BLOCK];

	if (to == ZERO_F32 && from == ZERO_F64) {
		for (size_t i = 0; i < count; i++)
			((float *)out)[i] = (float)((const double *)in)[i];
		return;
	}
	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		to_f32(kernels, block, from, in, at, n);
		from_f32(kernels, to, out, at, block, n);
	}
}

static void widen(int64_t *wide, zero_dtype from, const void *in, size_t at, size_t count)
{
	if (from == ZERO_I64)
		memcpy(wide, (const int64_t *)in + at, count * sizeof(*wide));
	else if (from == ZERO_I32)
		for (size_t i = 0; i < count; i++)
			wide[i] = ((const int32_t *)in)[at + i];
	else
		for (size_t i = 0; i < count; i++)
			wide[i] = ((const uint8_t *)in)[at + i];
}

static void narrow(zero_dtype to, void *out, size_t at, const int64_t *wide, size_t count)
{
	if (to == ZERO_I64)
		memcpy((int64_t *)out + at, wide, count * sizeof(*wide));
	else if (to == ZERO_I32)
		for (size_t i = 0; i < count; i++)
			((int32_t *)out)[at + i] = (int32_t)wide[i];
	else
		for (size_t i = 0; i < count; i++)
			((uint8_t *)out)[at + i] = (uint8_t)wide[i];
}

/* How many elements fit into `to` before the first that does not. */
static size_t fitting(zero_dtype to, const int64_t *wide, size_t count)
{
	const int64_t low = to == ZERO_I64 ? INT64_MIN : to == ZERO_I32 ? INT32_MIN : 0;
	const int64_t high = to == ZERO_I64   ? INT64_MAX
			     : to == ZERO_I32 ? INT32_MAX
			     : to == ZERO_U8  ? UINT8_MAX
					      : 1;
	size_t i = 0;

	while (i < count && wide[i] >= low && wide[i] <= high)
		i++;
	return i;
}

static bool integers(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count,
		     size_t *bad)
{
	int64_t wide[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		widen(wide, from, in, at, n);
		const size_t fit = fitting(to, wide, n);
		narrow(to, out, at, wide, fit);
		if (fit < n) {
			*bad = at + fit;
			return false;
		}
	}
	return true;
}

bool zero_convert(const struct zero_kernels *kernels, zero_dtype to, void *out, zero_dtype from,
		  const void *in, size_t count, size_t *bad)
{
	if (to == from || (is_cast(to) && is_cast(from)))
		kernels->cast(to, out, from, in, count);
	else if (is_integer(to))
		return integers(to, out, from, in, count, bad);
	else
		floats(kernels, to, out, from, in, count);
	return true;
}

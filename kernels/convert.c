/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts elements of one storage type to another, block by block in the cache. f32, f16 and bf16
 * use the cast kernel, and f64 does by way of f32. Integers go by way of i64.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

enum { BLOCK = 1024 }; /* elements */

static bool is_float(zero_dtype dtype)
{
	return dtype == ZERO_F32 || dtype == ZERO_F16 || dtype == ZERO_BF16 || dtype == ZERO_F64;
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

static void from_f64(const struct zero_kernels *kernels, zero_dtype to, char *out, const double *in,
		     size_t count)
{
	float block[BLOCK];

	if (to == ZERO_F32) {
		for (size_t i = 0; i < count; i++)
			((float *)(void *)out)[i] = (float)in[i];
		return;
	}
	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		for (size_t i = 0; i < n; i++)
			block[i] = narrow_to_odd(in[at + i]);
		kernels->cast(to, out + at * sizeof(uint16_t), ZERO_F32, block, n);
	}
}

static void to_f64(const struct zero_kernels *kernels, double *out, zero_dtype from, const char *in,
		   size_t count)
{
	const size_t size = from == ZERO_F32 ? sizeof(float) : sizeof(uint16_t);
	float block[BLOCK];

	for (size_t at = 0; at < count; at += BLOCK) {
		const size_t n = count - at < BLOCK ? count - at : BLOCK;

		kernels->cast(ZERO_F32, block, from, in + at * size, n);
		for (size_t i = 0; i < n; i++)
			out[at + i] = (double)block[i];
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
	if (to == from || (is_float(to) && is_float(from) && to != ZERO_F64 && from != ZERO_F64))
		kernels->cast(to, out, from, in, count);
	else if (is_integer(to))
		return integers(to, out, from, in, count, bad);
	else if (to == ZERO_F64)
		to_f64(kernels, out, from, in, count);
	else
		from_f64(kernels, to, out, in, count);
	return true;
}

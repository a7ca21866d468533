/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of the instruction set that is compiled for (-DZERO_ISA=avx512, avx2, neon or scalar), so
 * that a kernel is written once. Arithmetic uses the operators of C, which compilers have for vectors;
 * in the scalar set a vector is one float. vec8 is a table of eight floats, vec8_at(table, at) the
 * elements of it; vec_from_int and vec_to_int convert to and from 32-bit integers with a sign.
 *
 * Which NaN an operation returns depends on the order of its operands, which the compiler chooses.
 * So kernels pass their results through vec_canon, which replaces every NaN by 0x7fc00000.
 */
#ifndef ZERO_SIMD_H
#define ZERO_SIMD_H

#include <math.h>
#include <string.h>

#include "kernels.h"

#ifndef ZERO_ISA
#define ZERO_ISA scalar
#endif

#define ZERO_PASTE2(a, b) a##b
#define ZERO_PASTE(a, b)  ZERO_PASTE2(a, b)
#define ZERO_TEXT2(a)     #a
#define ZERO_TEXT(a)      ZERO_TEXT2(a)

/* The name of a kernel in this set: zero_cast_avx2. */
#define ZERO_NAME(kernel) ZERO_PASTE(ZERO_PASTE(zero_, kernel##_), ZERO_ISA)

void ZERO_NAME(cast)(zero_dtype to, void *out, zero_dtype from, const void *in, size_t count);
void ZERO_NAME(sum)(float *out, zero_dtype from, const void *const *in, int n, size_t count,
		    bool accumulate);
double ZERO_NAME(norm2)(const float *x, size_t count);
void ZERO_NAME(adamw)(const struct zero_adamw_args *args, float *p, float *m, float *v,
		      const float *g, void *low, zero_dtype low_dtype, size_t count);
void ZERO_NAME(muon_momentum)(const struct zero_muon_args *args, float *m, const float *g,
			      float *out, size_t count);
void ZERO_NAME(muon_update)(const struct zero_muon_args *args, float *p, const float *update,
			    void *low, zero_dtype low_dtype, size_t count);
void ZERO_NAME(quantize)(const struct zero_dynamic_map *map, uint8_t *codes, float *absmax,
			 const float *x, size_t count);
void ZERO_NAME(dequantize)(const struct zero_dynamic_map *map, float *x, const uint8_t *codes,
			   const float *absmax, size_t count);
void ZERO_NAME(fill_uniform)(zero_dtype dtype, void *out, size_t first, size_t count, double low,
			     double high, uint64_t seed, uint64_t stream);
int ZERO_NAME(uniform_ends)(zero_dtype dtype, double low, double high, double *first, double *last);
void ZERO_NAME(fill_normal)(zero_dtype dtype, void *out, size_t first, size_t count, double mean,
			    double stddev, uint64_t seed, uint64_t stream);

/* Lanes of f32 in a vector; avx512_emulated is avx512 without the hardware, for tests. */
#define ZERO_LANES_scalar          1
#define ZERO_LANES_neon            4
#define ZERO_LANES_avx2            8
#define ZERO_LANES_avx512          16
#define ZERO_LANES_avx512_emulated 16
#define VEC                        ZERO_PASTE(ZERO_LANES_, ZERO_ISA)
#define VECD                       (VEC > 1 ? VEC / 2 : 1) /* lanes of f64 */

#if VEC == 16
#include "simd_avx512.h"
#elif VEC == 8
#include "simd_avx2.h"
#elif VEC == 4
#include "simd_neon.h"
#else
#include "simd_scalar.h"
#endif

#if VEC > 1

static inline vecu vec_bits(vec v)
{
	return (vecu)v;
}

static inline vec vec_from_bits(vecu u)
{
	return (vec)u;
}

/* All ones in the lanes of which it is true, else zero. */
static inline vecu vec_at_least(vec a, vec b)
{
	return (vecu)(a >= b);
}

/* All ones in the lanes that are NaN, else zero. */
static inline vecu vec_nan(vec v)
{
	return (vecu)(v != v);
}

#endif

/* Replaces every NaN by 0x7fc00000. */
static inline vec vec_canon(vec v)
{
	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	const vecu nan = vec_nan(v);
	return vec_from_bits((vec_bits(v) & ~nan) | (0x7fc00000 & nan));
}

/* Makes NaNs quiet, and clears their lower half for vec_to_bf16. */
static inline vec vec_quiet(vec v)
{
	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	const vecu u = vec_bits(v), nan = vec_nan(v), quiet = (u | 0x400000) & 0xffff0000;
	return vec_from_bits((u & ~nan) | (quiet & nan));
}

/* Rounds to nearest even by a carry from the lower half, which must be 0 in a NaN. */
static inline vech vec_to_bf16(vec v)
{
	const vecu u = vec_bits(v);

	return vecu_narrow((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline vec vec_from_bf16(vech h)
{
	return vec_from_bits(vech_widen(h) << 16);
}

/* Prefetches the line `bytes` beyond x. A prefetch beyond the end of an array does no harm. */
static inline void vec_prefetch(const void *x, size_t bytes)
{
	__builtin_prefetch((const void *)((uintptr_t)x + bytes), 0, 0);
}

/*
 * Whether stores to out[count] should go past the cache: out is at a cache line, and it is so long
 * that the first elements would leave the cache before the last is written.
 */
static inline bool vec_may_stream(const void *out, size_t count)
{
	return out && (uintptr_t)out % 64 == 0 && count >= (size_t)1 << 18;
}

static inline size_t vec_dtype_size(zero_dtype dtype)
{
	switch (dtype) {
	case ZERO_F64:
	case ZERO_I64:
		return 8;
	case ZERO_F32:
	case ZERO_I32:
		return 4;
	case ZERO_F16:
	case ZERO_BF16:
		return 2;
	case ZERO_U8:
	case ZERO_BOOL:
	case ZERO_F8_E4M3:
	case ZERO_F8_E5M2:
		return 1;
	case ZERO_DTYPE_PARAM:
	case ZERO_DTYPE_DEFAULT:
		break;
	}
	return 0;
}

/* Loads element i and on of f32, f16 or bf16; vec_store_as stores them. */
static inline __attribute__((always_inline)) vec vec_load_as(zero_dtype from, const void *in,
							     size_t i)
{
	if (from == ZERO_F32)
		return vec_load((const float *)in + i);
	const vech h = vech_load((const uint16_t *)in + i);
	return from == ZERO_BF16 ? vec_from_bf16(h) : vec_from_f16(h);
}

static inline __attribute__((always_inline)) void vec_store_as(zero_dtype to, void *out, size_t i,
							       vec v, bool stream)
{
	if (to == ZERO_F32) {
		if (stream)
			vec_stream((float *)out + i, v);
		else
			vec_store((float *)out + i, v);
		return;
	}
	const vech h = to == ZERO_BF16 ? vec_to_bf16(v) : vec_to_f16(v);
	if (stream)
		vech_stream((uint16_t *)out + i, h);
	else
		vech_store((uint16_t *)out + i, h);
}

#endif

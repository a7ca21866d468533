/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of the instruction set that is compiled for (-DZERO_ISA=avx512, avx2, neon or scalar), so
 * that a kernel is written once. They are the compiler's, with the operators of C, of which it
 * makes what the processor has. Only what has no operator, or is translated badly, is an intrinsic.
 * "scalar" runs on every processor, and calls fma() where there is no instruction for it.
 * vec_at(table, at) is the elements `at` of a table of eight.
 *
 * Which NaN an operation returns depends on the order of its operands, which the compiler chooses.
 * So kernels pass their results through vec_canon, which replaces every NaN by 0x7fc00000.
 */
#ifndef ZERO_SIMD_H
#define ZERO_SIMD_H

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif
#ifdef ZERO_NEON
#include <arm_neon.h>
#endif

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

#define ZERO_DECLARE(kernel) __typeof__(*zero_kernels_scalar.kernel) ZERO_NAME(kernel);
ZERO_ISA_KERNELS(ZERO_DECLARE)

/* Lanes of f32 in a vector. */
#define ZERO_LANES_scalar 4
#define ZERO_LANES_neon   4
#define ZERO_LANES_avx2   8
#define ZERO_LANES_avx512 16
#define VEC               ZERO_PASTE(ZERO_LANES_, ZERO_ISA)
#define VECD              (VEC / 2) /* lanes of f64 */

typedef float vec __attribute__((vector_size(4 * VEC)));
typedef double vecd __attribute__((vector_size(4 * VEC)));
typedef uint32_t vecu __attribute__((vector_size(4 * VEC)));
typedef int32_t veci __attribute__((vector_size(4 * VEC)));
typedef float vec_half __attribute__((vector_size(2 * VEC)));
typedef uint16_t vech __attribute__((vector_size(2 * VEC)));

/* The same in memory, aligned to their elements alone. */
typedef vec vec_memory __attribute__((aligned(4), may_alias));
typedef vecd vecd_memory __attribute__((aligned(8), may_alias));
typedef vec_half vec_half_memory __attribute__((aligned(2), may_alias));
typedef vech vech_memory __attribute__((aligned(2), may_alias));

static inline vec vec_set(float x)
{
	return x - (vec){0};
}

static inline vec vec_load(const float *p)
{
	return *(const vec_memory *)p;
}

static inline void vec_store(float *p, vec v)
{
	*(vec_memory *)p = v;
}

static inline void vecd_store(double *p, vecd v)
{
	*(vecd_memory *)p = v;
}

static inline vech vech_load(const uint16_t *p)
{
	return *(const vech_memory *)p;
}

/* Not as vech: AVX-512's conversion to f16 straight into memory takes longer on some processors. */
static inline void vech_store(uint16_t *p, vech h)
{
	*(vec_half_memory *)p = (vec_half)h;
}

static inline vecu vec_to_int(vec v)
{
	return (vecu) __builtin_convertvector(v, veci);
}

/* a in the lanes where the mask is all ones, b in those where it is 0. */
static inline vecu vecu_select(vecu mask, vecu a, vecu b)
{
	return (a & mask) | (b & ~mask);
}

#if VEC > 4

#if VEC == 16
#define VEC_OP(op)  _mm512_##op
#define HALF_OP(op) _mm256_##op
#else
#define VEC_OP(op)  _mm256_##op
#define HALF_OP(op) _mm_##op
#endif

typedef long long vech_m __attribute__((vector_size(2 * VEC))); /* __m128i or __m256i */

static inline vec vec_at(const float table[8], vecu at)
{
	const __m256 values = _mm256_loadu_ps(table);

#if VEC == 16
	return _mm512_permutexvar_ps((__m512i)at, _mm512_castps256_ps512(values));
#else
	return _mm256_permutevar8x32_ps(values, (__m256i)at);
#endif
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return VEC_OP(fmadd_ps)(a, b, c);
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return VEC_OP(fmadd_pd)(a, b, c);
}

static inline vec vec_sqrt(vec v)
{
	return VEC_OP(sqrt_ps)(v);
}

static inline vec vec_max(vec a, vec b)
{
	return VEC_OP(max_ps)(a, b);
}

static inline vec vec_min(vec a, vec b)
{
	return VEC_OP(min_ps)(a, b);
}

static inline bool vec_any_nan(vec v)
{
#if VEC == 16
	return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
#else
	return _mm256_movemask_ps((vec)(v != v));
#endif
}

static inline vecd vecd_load(const float *p)
{
	return VEC_OP(cvtps_pd)(HALF_OP(loadu_ps)(p));
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
#if VEC == 16
	return (vecu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#else
	return (vecu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#endif
}

static inline vecu vech_widen(vech h)
{
	return (vecu)VEC_OP(cvtepu16_epi32)((vech_m)h);
}

/* Values are below 2^16, so that the packing does not saturate. */
static inline vech vecu_narrow(vecu u)
{
#if VEC == 16
	return (vech)_mm512_cvtepi32_epi16((__m512i)u);
#else
	return (vech)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)u),
				      _mm256_extracti128_si256((__m256i)u, 1));
#endif
}

static inline vech vec_to_f16(vec v)
{
	return (vech)VEC_OP(cvtps_ph)(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_from_f16(vech h)
{
	return VEC_OP(cvtph_ps)((vech_m)h);
}

static inline void vec_stream(float *p, vec v)
{
	VEC_OP(stream_ps)(p, v);
}

static inline void vech_stream(uint16_t *p, vech h)
{
	HALF_OP(stream_ps)((float *)p, (vec_half)h);
}

/* Orders streaming stores before later ones, for other threads. */
static inline void vec_fence(void)
{
	_mm_sfence();
}

#else

static inline void vec_stream(float *p, vec v)
{
#ifdef __SSE2__
	_mm_stream_ps(p, v);
#else
	vec_store(p,
		  v); /* processors of AArch64 find out themselves that whole lines are written */
#endif
}

static inline void vech_stream(uint16_t *p, vech h)
{
	vech_store(p, h);
}

static inline void vec_fence(void)
{
#ifdef __SSE2__
	_mm_sfence();
#endif
}

static inline bool vec_any_nan(vec v)
{
	typedef uint64_t pairs __attribute__((vector_size(16)));
	const pairs nan = (pairs)(v != v);

	return nan[0] | nan[1];
}

static inline vec vec_max(vec a, vec b)
{
	return (vec)vecu_select((vecu)(a > b), (vecu)a, (vecu)b);
}

static inline vec vec_min(vec a, vec b)
{
	return (vec)vecu_select((vecu)(a < b), (vecu)a, (vecu)b);
}

static inline vecd vecd_load(const float *p)
{
	return __builtin_convertvector(*(const vec_half_memory *)p, vecd);
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
	return (vecu){p[0], p[1], p[2], p[3]};
}

static inline vecu vech_widen(vech h)
{
	return __builtin_convertvector(h, vecu);
}

static inline vech vecu_narrow(vecu u)
{
	return __builtin_convertvector(u, vech);
}

#ifdef ZERO_NEON

/* The bytes of element k are at 4 k and on. */
static inline vec vec_at(const float table[8], vecu at)
{
	const uint8x16x2_t bytes = vld1q_u8_x2((const uint8_t *)table);

	return (vec)vqtbl2q_u8(bytes, (uint8x16_t)(at * 0x04040404 + 0x03020100));
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return vfmaq_f32(c, a, b);
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return vfmaq_f64(c, a, b);
}

static inline vec vec_sqrt(vec v)
{
	return vsqrtq_f32(v);
}

static inline vech vec_to_f16(vec v)
{
	return (vech)vcvt_f16_f32(v);
}

static inline vec vec_from_f16(vech h)
{
	return vcvt_f32_f16((float16x4_t)h);
}

#else

static inline vec vec_at(const float table[8], vecu at)
{
	return (vec){table[at[0]], table[at[1]], table[at[2]], table[at[3]]};
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return (vec){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]),
		     fmaf(a[3], b[3], c[3])};
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return (vecd){fma(a[0], b[0], c[0]), fma(a[1], b[1], c[1])};
}

static inline vec vec_sqrt(vec v)
{
	return (vec){sqrtf(v[0]), sqrtf(v[1]), sqrtf(v[2]), sqrtf(v[3])};
}

/* In integers. Below 2^-14 adding 0.5 rounds to the unit of f16's subnormals. */
static inline vech vec_to_f16(vec v)
{
	const vecu u = (vecu)v, sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	const vecu normal = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
	const vecu subnormal = (vecu)((vec)a + 0.5f) - 0x3f000000;
	const vecu finite = vecu_select((vecu)(a >= 0x38800000), normal, subnormal);
	const vecu nan = (vecu)(a > 0x7f800000) & (0x200 | (a >> 13 & 0x3ff));
	const vecu h = vecu_select((vecu)(a >= 0x47800000), 0x7c00 | nan, finite);

	return vecu_narrow(sign | h);
}

/* A multiplication puts the exponent right, of subnormals too. */
static inline vec vec_from_f16(vech h)
{
	const vecu u = vech_widen(h), sign = (u & 0x8000) << 16, a = u & 0x7fff;
	const vecu finite = (vecu)((vec)(a << 13) * 0x1p112f);
	const vecu special = (vecu)(a >= 0x7c00) & 0x7f800000,
		   quiet = (vecu)(a > 0x7c00) & 0x400000;

	return (vec)(sign | finite | special | quiet);
}

#endif
#endif

/* Replaces every NaN by 0x7fc00000. */
static inline vec vec_canon(vec v)
{
	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	return (vec)vecu_select((vecu)(v == v), (vecu)v, (vecu)vec_set(NAN));
}

/* Makes NaNs quiet, and clears their lower half for vec_to_bf16. */
static inline vec vec_quiet(vec v)
{
	const vecu u = (vecu)v;

	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	return (vec)vecu_select((vecu)(v == v), u, (u | 0x400000) & 0xffff0000);
}

/* Rounds to nearest even by a carry from the lower half, which must be 0 in a NaN. */
static inline vech vec_to_bf16(vec v)
{
	const vecu u = (vecu)v;

	return vecu_narrow((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline vec vec_from_bf16(vech h)
{
	return (vec)(vech_widen(h) << 16);
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

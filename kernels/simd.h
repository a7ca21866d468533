/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The vectors of the instruction set being compiled (-DZERO_ISA=avx512, avx2 or scalar), so that a
 * kernel is written once. Arithmetic is written with the operators of C: compilers know them for
 * vectors, and in the scalar set a vector is one float.
 *
 * The bits of a NaN that arithmetic makes depend on the order of operands, which is the compiler's
 * choice: kernels that calculate pass results through vec_canon, which leaves one NaN.
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
void ZERO_NAME(fill_uniform)(zero_dtype dtype, void *out, size_t first, size_t count, double low,
			     double high, uint64_t seed, uint64_t stream);
int ZERO_NAME(uniform_ends)(zero_dtype dtype, double low, double high, double *first, double *last);
void ZERO_NAME(fill_normal)(zero_dtype dtype, void *out, size_t first, size_t count, double mean,
			    double stddev, uint64_t seed, uint64_t stream);

/* Lanes of f32 in a vector; avx512_emulated is avx512 without the hardware, for tests. */
#define ZERO_LANES_scalar          1
#define ZERO_LANES_avx2            8
#define ZERO_LANES_avx512          16
#define ZERO_LANES_avx512_emulated 16
#define VEC                        ZERO_PASTE(ZERO_LANES_, ZERO_ISA)
#define VECD                       (VEC > 1 ? VEC / 2 : 1) /* lanes of f64 */

#ifdef ZERO_EMULATE
#include "avx512_emulated.h"
#elif VEC > 1
#include <immintrin.h>
#endif

#if VEC == 16

typedef __m512 vec;
typedef __m512d vecd;
typedef __m256i vech; /* 16-bit elements, as many as in vec */
typedef uint32_t vecu __attribute__((vector_size(64)));

static inline vec vec_set(float x)
{
	return _mm512_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
	return _mm512_loadu_ps(p);
}

static inline void vec_store(float *p, vec v)
{
	_mm512_storeu_ps(p, v);
}

static inline void vec_stream(float *p, vec v)
{
	_mm512_stream_ps(p, v);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm512_fmadd_ps(a, b, c);
}

static inline vec vec_sqrt(vec v)
{
	return _mm512_sqrt_ps(v);
}

static inline bool vec_any_nan(vec v)
{
	return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
}

static inline vecd vecd_zero(void)
{
	return _mm512_setzero_pd();
}

static inline vecd vecd_load(const float *p)
{
	return _mm512_cvtps_pd(_mm256_loadu_ps(p));
}

static inline void vecd_store(double *p, vecd v)
{
	_mm512_storeu_pd(p, v);
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return _mm512_fmadd_pd(a, b, c);
}

static inline vech vech_load(const uint16_t *p)
{
	return _mm256_loadu_si256((const __m256i *)p);
}

static inline void vech_store(uint16_t *p, vech h)
{
	_mm256_storeu_si256((__m256i *)p, h);
}

static inline void vech_stream(uint16_t *p, vech h)
{
	_mm256_stream_si256((__m256i *)p, h);
}

static inline vech vecu_narrow(vecu u)
{
	return _mm512_cvtepi32_epi16((__m512i)u);
}

static inline vecu vech_widen(vech h)
{
	return (vecu)_mm512_cvtepu16_epi32(h);
}

static inline vech vec_to_f16(vec v)
{
	return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_from_f16(vech h)
{
	return _mm512_cvtph_ps(h);
}

#elif VEC == 8

typedef __m256 vec;
typedef __m256d vecd;
typedef __m128i vech;
typedef uint32_t vecu __attribute__((vector_size(32)));

static inline vec vec_set(float x)
{
	return _mm256_set1_ps(x);
}

static inline vec vec_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

static inline void vec_store(float *p, vec v)
{
	_mm256_storeu_ps(p, v);
}

static inline void vec_stream(float *p, vec v)
{
	_mm256_stream_ps(p, v);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return _mm256_fmadd_ps(a, b, c);
}

static inline vec vec_sqrt(vec v)
{
	return _mm256_sqrt_ps(v);
}

static inline bool vec_any_nan(vec v)
{
	return _mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

static inline vecd vecd_zero(void)
{
	return _mm256_setzero_pd();
}

static inline vecd vecd_load(const float *p)
{
	return _mm256_cvtps_pd(_mm_loadu_ps(p));
}

static inline void vecd_store(double *p, vecd v)
{
	_mm256_storeu_pd(p, v);
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return _mm256_fmadd_pd(a, b, c);
}

static inline vech vech_load(const uint16_t *p)
{
	return _mm_loadu_si128((const __m128i *)p);
}

static inline void vech_store(uint16_t *p, vech h)
{
	_mm_storeu_si128((__m128i *)p, h);
}

static inline void vech_stream(uint16_t *p, vech h)
{
	_mm_stream_si128((__m128i *)p, h);
}

/* Values are below 2^16: the packing saturates nothing. */
static inline vech vecu_narrow(vecu u)
{
	return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)u),
				_mm256_extracti128_si256((__m256i)u, 1));
}

static inline vecu vech_widen(vech h)
{
	return (vecu)_mm256_cvtepu16_epi32(h);
}

static inline vech vec_to_f16(vec v)
{
	return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_from_f16(vech h)
{
	return _mm256_cvtph_ps(h);
}

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

/* All ones in the lanes that are NaN, else zero. */
static inline vecu vec_nan(vec v)
{
	return (vecu)(v != v);
}

/* Makes streaming stores visible to other threads in their turn. */
static inline void vec_fence(void)
{
	_mm_sfence();
}

#else

typedef float vec;
typedef double vecd;
typedef uint16_t vech;
typedef uint32_t vecu;

static inline vec vec_set(float x)
{
	return x;
}

static inline vec vec_load(const float *p)
{
	return *p;
}

static inline void vec_store(float *p, vec v)
{
	*p = v;
}

static inline void vec_stream(float *p, vec v)
{
	*p = v;
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return fmaf(a, b, c);
}

static inline vec vec_sqrt(vec v)
{
	return sqrtf(v);
}

static inline bool vec_any_nan(vec v)
{
	return v != v;
}

static inline vecd vecd_zero(void)
{
	return 0;
}

static inline vecd vecd_load(const float *p)
{
	return (double)*p;
}

static inline void vecd_store(double *p, vecd v)
{
	*p = v;
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return fma(a, b, c);
}

static inline vech vech_load(const uint16_t *p)
{
	return *p;
}

static inline void vech_store(uint16_t *p, vech h)
{
	*p = h;
}

static inline void vech_stream(uint16_t *p, vech h)
{
	*p = h;
}

static inline vech vecu_narrow(vecu u)
{
	return (vech)u;
}

static inline vecu vech_widen(vech h)
{
	return h;
}

static inline vecu vec_bits(vec v)
{
	vecu u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

static inline vec vec_from_bits(vecu u)
{
	vec v;

	memcpy(&v, &u, sizeof(v));
	return v;
}

static inline vecu vec_nan(vec v)
{
	return v != v ? ~0u : 0;
}

/* In integers, but below 2^-14: there 0.5 has the unit of f16's subnormals and rounds for us. */
static inline vech vec_to_f16(vec v)
{
	const vecu u = vec_bits(v), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;

	if (a > 0x7f800000)
		return (vech)(sign | 0x7e00 | (a >> 13 & 0x3ff));
	if (a >= 0x47800000)
		return (vech)(sign | 0x7c00);
	if (a >= 0x38800000)
		return (vech)(sign | (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13);
	return (vech)(sign | (vec_bits(vec_from_bits(a) + 0.5f) - 0x3f000000));
}

static inline vec vec_from_f16(vech h)
{
	const vecu sign = (vecu)(h & 0x8000) << 16, a = h & 0x7fff;

	if (a > 0x7c00)
		return vec_from_bits(sign | 0x7fc00000 | a << 13);
	if (a == 0x7c00)
		return vec_from_bits(sign | 0x7f800000);
	if (a >= 0x400)
		return vec_from_bits(sign | ((a << 13) + (112u << 23)));
	return vec_from_bits(sign | vec_bits((float)a * 0x1p-24f));
}

static inline void vec_fence(void)
{
}

#endif

/* One NaN, 0x7fc00000, for all sets; anything else stays what it is. */
static inline vec vec_canon(vec v)
{
	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	const vecu nan = vec_nan(v);
	return vec_from_bits((vec_bits(v) & ~nan) | (0x7fc00000 & nan));
}

/* NaNs are made quiet, and short enough for vec_to_bf16. */
static inline vec vec_quiet(vec v)
{
	if (__builtin_expect(!vec_any_nan(v), true))
		return v;
	const vecu u = vec_bits(v), nan = vec_nan(v), quiet = (u | 0x400000) & 0xffff0000;
	return vec_from_bits((u & ~nan) | (quiet & nan));
}

/* To nearest even by a carry from the lower half, which must be zero in a NaN. */
static inline vech vec_to_bf16(vec v)
{
	const vecu u = vec_bits(v);

	return vecu_narrow((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline vec vec_from_bf16(vech h)
{
	return vec_from_bits(vech_widen(h) << 16);
}

/* Asks for the line `bytes` beyond x; beyond the end of an array too, as that faults on nothing. */
static inline void vec_prefetch(const void *x, size_t bytes)
{
	__builtin_prefetch((const void *)((uintptr_t)x + bytes), 0, 0);
}

/*
 * Whether stores to out[count] may go past the cache: from and to full lines, and so many elements
 * that the first would have left the cache before the last is written.
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
		return 1;
	case ZERO_DTYPE_PARAM:
	case ZERO_DTYPE_DEFAULT:
		break;
	}
	return 0;
}

/* f32, f16 or bf16 from element i of `in`, and to element i of `out`. */
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

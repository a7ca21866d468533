/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of AVX-512, or of its emulation. Only simd.h includes this file. */
#ifndef ZERO_SIMD_AVX512_H
#define ZERO_SIMD_AVX512_H

#ifdef ZERO_EMULATE
#include "avx512_emulated.h"
#else
#include <immintrin.h>
#endif

typedef __m512 vec;
typedef __m512d vecd;
typedef __m256i vech; /* 16-bit elements, as many as in vec */
typedef __m512 vec8;
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

static inline vecu vecu_max(vecu a, vecu b)
{
	return (vecu)_mm512_max_epu32((__m512i)a, (__m512i)b);
}

static inline vec vec_max(vec a, vec b)
{
	return _mm512_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
	return _mm512_min_ps(a, b);
}

static inline vec vec_from_int(vecu u)
{
	return _mm512_cvtepi32_ps((__m512i)u);
}

static inline vecu vec_to_int(vec v)
{
	return (vecu)_mm512_cvttps_epi32(v);
}

static inline vec8 vec8_load(const float *p)
{
	return _mm512_castps256_ps512(_mm256_loadu_ps(p));
}

static inline vec vec8_at(vec8 table, vecu at)
{
	return _mm512_permutexvar_ps((__m512i)at, table);
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
	return (vecu)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}

static inline void vecu_store_bytes(uint8_t *p, vecu u)
{
	_mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8((__m512i)u));
}

static inline vech vec_to_f16(vec v)
{
	return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_from_f16(vech h)
{
	return _mm512_cvtph_ps(h);
}

/* Orders streaming stores before later ones, for other threads. */
static inline void vec_fence(void)
{
	_mm_sfence();
}

#endif

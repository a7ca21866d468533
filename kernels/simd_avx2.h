/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of AVX2, FMA and F16C. Only simd.h includes this file. */
#ifndef ZERO_SIMD_AVX2_H
#define ZERO_SIMD_AVX2_H

#include <immintrin.h>

typedef __m256 vec;
typedef __m256d vecd;
typedef __m128i vech;
typedef __m256 vec8;
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

/* Values are below 2^16, so the packing does not saturate. */
static inline vech vecu_narrow(vecu u)
{
	return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)u),
				_mm256_extracti128_si256((__m256i)u, 1));
}

static inline vecu vech_widen(vech h)
{
	return (vecu)_mm256_cvtepu16_epi32(h);
}

static inline vecu vecu_max(vecu a, vecu b)
{
	return (vecu)_mm256_max_epu32((__m256i)a, (__m256i)b);
}

static inline vec vec_max(vec a, vec b)
{
	return _mm256_max_ps(a, b);
}

static inline vec vec_min(vec a, vec b)
{
	return _mm256_min_ps(a, b);
}

static inline vec vec_from_int(vecu u)
{
	return _mm256_cvtepi32_ps((__m256i)u);
}

static inline vecu vec_to_int(vec v)
{
	return (vecu)_mm256_cvttps_epi32(v);
}

static inline vec8 vec8_load(const float *p)
{
	return _mm256_loadu_ps(p);
}

static inline vec vec8_at(vec8 table, vecu at)
{
	return _mm256_permutevar8x32_ps(table, (__m256i)at);
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
	return (vecu)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/* Values are below 2^8, so the packing does not saturate. */
static inline void vecu_store_bytes(uint8_t *p, vecu u)
{
	const vech h = vecu_narrow(u);

	_mm_storel_epi64((__m128i *)p, _mm_packus_epi16(h, h));
}

static inline vech vec_to_f16(vec v)
{
	return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT);
}

static inline vec vec_from_f16(vech h)
{
	return _mm256_cvtph_ps(h);
}

/* Orders streaming stores before later ones, for other threads. */
static inline void vec_fence(void)
{
	_mm_sfence();
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The AVX-512 instructions that simd.h uses, for tests on machines without them: SIMDe's, and some
 * that its older releases lack.
 */
#ifndef ZERO_AVX512_EMULATED_H
#define ZERO_AVX512_EMULATED_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#undef _mm512_stream_ps
#define _mm512_stream_ps(p, v) simde_mm512_storeu_ps(p, v)

#undef _mm512_cvtps_pd
#define _mm512_cvtps_pd emulated_cvtps_pd
static inline simde__m512d emulated_cvtps_pd(simde__m256 v)
{
	simde__m512d d;

	for (int k = 0; k < 8; k++)
		d[k] = (double)v[k];
	return d;
}

#undef _mm512_cvtepu16_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
static inline simde__m512i emulated_cvtepu16_epi32(simde__m256i h)
{
	uint16_t from[16];
	uint32_t to[16];

	memcpy(from, &h, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = from[k];
	return simde_mm512_loadu_si512(to);
}

#undef _mm512_cvtepi32_epi16
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16
static inline simde__m256i emulated_cvtepi32_epi16(simde__m512i u)
{
	uint32_t from[16];
	uint16_t to[16];

	memcpy(from, &u, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = (uint16_t)from[k];
	return simde_mm256_loadu_si256((const simde__m256i *)to);
}

#undef _mm512_cvtepu8_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
static inline simde__m512i emulated_cvtepu8_epi32(simde__m128i b)
{
	uint8_t from[16];
	uint32_t to[16];

	memcpy(from, &b, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = from[k];
	return simde_mm512_loadu_si512(to);
}

#undef _mm512_cvtepi32_epi8
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
static inline simde__m128i emulated_cvtepi32_epi8(simde__m512i u)
{
	uint32_t from[16];
	uint8_t to[16];

	memcpy(from, &u, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = (uint8_t)from[k];
	return simde_mm_loadu_si128((const simde__m128i *)to);
}

#undef _mm512_cvtepi32_ps
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
static inline simde__m512 emulated_cvtepi32_ps(simde__m512i u)
{
	int32_t from[16];
	float to[16];

	memcpy(from, &u, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = (float)from[k];
	return simde_mm512_loadu_ps(to);
}

#undef _mm512_cvttps_epi32
#define _mm512_cvttps_epi32 emulated_cvttps_epi32
static inline simde__m512i emulated_cvttps_epi32(simde__m512 v)
{
	float from[16];
	int32_t to[16];

	memcpy(from, &v, sizeof(from));
	for (int k = 0; k < 16; k++)
		to[k] = (int32_t)from[k];
	return simde_mm512_loadu_si512(to);
}

#undef _mm512_cvtph_ps
#define _mm512_cvtph_ps emulated_cvtph_ps
static inline simde__m512 emulated_cvtph_ps(simde__m256i h)
{
	const simde__m256 low = simde_mm256_cvtph_ps(simde_mm256_castsi256_si128(h));
	const simde__m256 high = simde_mm256_cvtph_ps(simde_mm256_extracti128_si256(h, 1));
	float to[16];

	simde_mm256_storeu_ps(to, low);
	simde_mm256_storeu_ps(to + 8, high);
	return simde_mm512_loadu_ps(to);
}

#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(v, rounding) emulated_cvtps_ph(v)
static inline simde__m256i emulated_cvtps_ph(simde__m512 v)
{
	float from[16];

	simde_mm512_storeu_ps(from, v);
	return simde_mm256_set_m128i(
		simde_mm256_cvtps_ph(simde_mm256_loadu_ps(from + 8),
				     SIMDE_MM_FROUND_TO_NEAREST_INT),
		simde_mm256_cvtps_ph(simde_mm256_loadu_ps(from), SIMDE_MM_FROUND_TO_NEAREST_INT));
}

#endif

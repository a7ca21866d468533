/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit states (Dettmers et al., arXiv 2110.02861), by the tables of dynamic_map.c, which fit
   registers. */
#include "simd.h"

enum { INFINITE = 0x7f800000, NORMAL = 0x00800000, SIGN = 127 /* code of 0 in a signed map */ };

/* The largest magnitude's bits: those of a NaN or of infinity if one value is. */
static uint32_t top_of(const float x[ZERO_BLOCK])
{
	uint32_t most = 0, bits;

	for (size_t i = 0; i < ZERO_BLOCK; i++) {
		memcpy(&bits, x + i, sizeof(bits));
		most = (bits & 0x7fffffff) > most ? bits & 0x7fffffff : most;
	}
	return most;
}

/* The callers' constant is_signed makes one loop for each. */
static inline __attribute__((always_inline)) float
quantize_block(const struct zero_dynamic_map *map, bool is_signed, uint8_t *codes, const float *x)
{
	const vec zero = {0}, one = vec_set(map->one);
	/* The bits of a float are a linear approximation of its logarithm, which is at most 0.087
	   larger. So these are at most one decade too low. */
	const vec to_decade = vec_set(0x1.344136p-25F), from = vec_set(8 - 0.45F - 38.23081F);
	const uint32_t top = top_of(x);
	uint16_t code[ZERO_BLOCK];
	float absmax;

	if (top < NORMAL || top >= INFINITE) {
		memset(codes, is_signed ? SIGN : 0, ZERO_BLOCK);
		return top < NORMAL ? 0 : NAN;
	}
	memcpy(&absmax, &top, sizeof(absmax));
	for (size_t i = 0; i < ZERO_BLOCK; i += VEC) {
		const vec q = vec_load(x + i) * (1.0f / absmax);
		const vecu sign = is_signed ? (vecu)q & 0x80000000 : (vecu){0};
		const vec a = (vec)((vecu)q ^ sign);
		const vec size = __builtin_convertvector((veci)a, vec);
		vecu decade = vec_to_int(vec_max(vec_fma(size, to_decade, from), zero));

		decade -= (vecu)(a >= vec_at(map->bound, decade));
		const vec by = vec_at(map->code_by, decade), at = vec_at(map->code_at, decade);
		const vec k = vec_min(vec_fma(a, by, at), vec_at(map->code_most, decade));
		/* There is no -1. */
		const vecu c = vec_to_int((vec)((vecu)k | sign)) - (vecu)(q >= one);

		vech_store(code + i, vecu_narrow(c + (is_signed ? SIGN : 0)));
	}
	for (size_t i = 0; i < ZERO_BLOCK; i++)
		codes[i] = (uint8_t)code[i];
	return absmax;
}

/* The end of the last block, by way of a whole one. */
static __attribute__((noinline)) float quantize_end(const struct zero_dynamic_map *map,
						    uint8_t *codes, const float *x, size_t count)
{
	float whole[ZERO_BLOCK] = {0}, absmax;
	uint8_t of_whole[ZERO_BLOCK];

	memcpy(whole, x, count * sizeof(*whole));
	absmax = map->is_signed ? quantize_block(map, true, of_whole, whole)
				: quantize_block(map, false, of_whole, whole);
	memcpy(codes, of_whole, count);
	return absmax;
}

static inline __attribute__((always_inline)) void quantize(const struct zero_dynamic_map *map,
							   bool is_signed, uint8_t *codes,
							   float *absmax, const float *x,
							   size_t count)
{
	for (; count >= ZERO_BLOCK; count -= ZERO_BLOCK, x += ZERO_BLOCK, codes += ZERO_BLOCK)
		*absmax++ = quantize_block(map, is_signed, codes, x);
	if (count)
		*absmax = quantize_end(map, codes, x, count);
}

void ZERO_NAME(quantize)(const struct zero_dynamic_map *map, uint8_t *codes, float *absmax,
			 const float *x, size_t count)
{
	if (map->is_signed)
		quantize(map, true, codes, absmax, x, count);
	else
		quantize(map, false, codes, absmax, x, count);
}

static inline __attribute__((always_inline)) void
dequantize_block(const struct zero_dynamic_map *map, bool is_signed, float *x, const uint8_t *codes,
		 float absmax)
{
	const vec one = vec_set(1), step = vec_set(is_signed ? 2 : 1);

	for (size_t i = 0; i < ZERO_BLOCK; i += VEC) {
		const veci code = (veci)vecu_load_bytes(codes + i) - (is_signed ? SIGN : 0);
		const vecu c = (vecu) __builtin_convertvector(code, vec), sign = c & 0x80000000;
		const vec j = vec_fma((vec)(c ^ sign), step, one);
		const vecu decade = ((vecu)j >> 23) & 7;
		const vec by = vec_at(map->value_by, decade), at = vec_at(map->value_at, decade);

		vec_store(x + i, (vec)((vecu)vec_fma(j, by, at) | sign) * absmax);
	}
}

static __attribute__((noinline)) void dequantize_end(const struct zero_dynamic_map *map, float *x,
						     const uint8_t *codes, float absmax,
						     size_t count)
{
	float whole[ZERO_BLOCK];
	uint8_t of_whole[ZERO_BLOCK] = {0};

	memcpy(of_whole, codes, count);
	if (map->is_signed)
		dequantize_block(map, true, whole, of_whole, absmax);
	else
		dequantize_block(map, false, whole, of_whole, absmax);
	memcpy(x, whole, count * sizeof(*whole));
}

static inline __attribute__((always_inline)) void dequantize(const struct zero_dynamic_map *map,
							     bool is_signed, float *x,
							     const uint8_t *codes,
							     const float *absmax, size_t count)
{
	for (; count >= ZERO_BLOCK; count -= ZERO_BLOCK, x += ZERO_BLOCK, codes += ZERO_BLOCK)
		dequantize_block(map, is_signed, x, codes, *absmax++);
	if (count)
		dequantize_end(map, x, codes, *absmax, count);
}

void ZERO_NAME(dequantize)(const struct zero_dynamic_map *map, float *x, const uint8_t *codes,
			   const float *absmax, size_t count)
{
	if (map->is_signed)
		dequantize(map, true, x, codes, absmax, count);
	else
		dequantize(map, false, x, codes, absmax, count);
}

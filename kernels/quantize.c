/* SPDX-License-Identifier: Apache-2.0 */
/* 8-bit states (Dettmers et al., arXiv 2110.02861), by the tables of dynamic_map.c, which fit registers. */
#include "simd.h"

enum { INFINITE = 0x7f800000, NORMAL = 0x00800000, SIGN = 127 /* code of 0 in a signed map */ };

/* The largest magnitude's bits: those of a NaN or of infinity if one value is. */
static uint32_t top_of(const float *x, size_t count)
{
	uint32_t lanes[VEC], most = 0;
	vecu top = vec_bits(vec_set(0));

	for (size_t i = 0; i < count; i += VEC)
		top = vecu_max(top, vec_bits(vec_load(x + i)) & 0x7fffffff);
	memcpy(lanes, &top, sizeof(lanes));
	for (int k = 0; k < VEC; k++)
		most = lanes[k] > most ? lanes[k] : most;
	return most;
}

/* `count` is a multiple of VEC. The callers' constant is_signed makes one loop for each. */
static inline __attribute__((always_inline)) float
quantize_block(const struct zero_dynamic_map *map, bool is_signed, uint8_t *codes, const float *x,
	       size_t count)
{
	const vec8 bound = vec8_load(map->bound), by = vec8_load(map->code_by);
	const vec8 at = vec8_load(map->code_at), most = vec8_load(map->code_most);
	const vec zero = vec_set(0), one = vec_set(map->one);
	/* The bits of a float are a linear approximation of its logarithm, which is at most 0.087
	   larger. So these are at most one decade too low. */
	const vec to_decade = vec_set(0x1.344136p-25F), from = vec_set(8 - 0.45F - 38.23081F);
	const uint32_t top = top_of(x, count);
	float absmax;
	vec scale;

	if (top < NORMAL || top >= INFINITE) {
		memset(codes, is_signed ? SIGN : 0, count);
		return top < NORMAL ? 0 : NAN;
	}
	memcpy(&absmax, &top, sizeof(absmax));
	scale = vec_set(1.0f / absmax);
	for (size_t i = 0; i < count; i += VEC) {
		const vec q = vec_load(x + i) * scale;
		const vecu sign = is_signed ? vec_bits(q) & 0x80000000 : vec_bits(zero);
		const vecu bits = vec_bits(q) ^ sign;
		const vec a = vec_from_bits(bits);
		vecu decade =
			vec_to_int(vec_max(vec_fma(vec_from_int(bits), to_decade, from), zero));

		decade -= vec_at_least(a, vec8_at(bound, decade));
		const vec k = vec_min(vec_fma(a, vec8_at(by, decade), vec8_at(at, decade)),
				      vec8_at(most, decade));
		/* There is no -1. */
		const vecu code =
			vec_to_int(vec_from_bits(vec_bits(k) | sign)) - vec_at_least(q, one);

		vecu_store_bytes(codes + i, code + (is_signed ? SIGN : 0));
	}
	return absmax;
}

/* The end of the last block, by way of a whole one. */
static __attribute__((noinline)) float quantize_end(const struct zero_dynamic_map *map,
						    uint8_t *codes, const float *x, size_t count)
{
	float whole[ZERO_BLOCK] = {0}, absmax;
	uint8_t of_whole[ZERO_BLOCK];

	memcpy(whole, x, count * sizeof(*whole));
	absmax = map->is_signed ? quantize_block(map, true, of_whole, whole, ZERO_BLOCK)
				: quantize_block(map, false, of_whole, whole, ZERO_BLOCK);
	memcpy(codes, of_whole, count);
	return absmax;
}

static inline __attribute__((always_inline)) void quantize(const struct zero_dynamic_map *map,
							   bool is_signed, uint8_t *codes,
							   float *absmax, const float *x,
							   size_t count)
{
	for (; count >= ZERO_BLOCK; count -= ZERO_BLOCK, x += ZERO_BLOCK, codes += ZERO_BLOCK)
		*absmax++ = quantize_block(map, is_signed, codes, x, ZERO_BLOCK);
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
		 float absmax, size_t count)
{
	const vec8 by = vec8_load(map->value_by), at = vec8_load(map->value_at);
	const vec scale = vec_set(absmax), one = vec_set(1);
	const vec step = vec_set(is_signed ? 2 : 1);

	for (size_t i = 0; i < count; i += VEC) {
		const vec c = vec_from_int(vecu_load_bytes(codes + i) - (is_signed ? SIGN : 0));
		const vecu sign = vec_bits(c) & 0x80000000;
		const vec j = vec_fma(vec_from_bits(vec_bits(c) ^ sign), step, one);
		const vecu decade = (vec_bits(j) >> 23) & 7;
		const vec value = vec_fma(j, vec8_at(by, decade), vec8_at(at, decade));

		vec_store(x + i, vec_from_bits(vec_bits(value) | sign) * scale);
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
		dequantize_block(map, true, whole, of_whole, absmax, ZERO_BLOCK);
	else
		dequantize_block(map, false, whole, of_whole, absmax, ZERO_BLOCK);
	memcpy(x, whole, count * sizeof(*whole));
}

static inline __attribute__((always_inline)) void dequantize(const struct zero_dynamic_map *map,
							     bool is_signed, float *x,
							     const uint8_t *codes,
							     const float *absmax, size_t count)
{
	for (; count >= ZERO_BLOCK; count -= ZERO_BLOCK, x += ZERO_BLOCK, codes += ZERO_BLOCK)
		dequantize_block(map, is_signed, x, codes, *absmax++, ZERO_BLOCK);
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

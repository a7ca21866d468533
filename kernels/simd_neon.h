/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of AArch64's NEON (Advanced SIMD). Only simd.h includes this file. SVE would add nothing on
 * the processors that this is for: Grace's SVE vectors have 128 bits, too.
 */
#ifndef ZERO_SIMD_NEON_H
#define ZERO_SIMD_NEON_H

#include <arm_neon.h>

typedef float32x4_t vec;
typedef float64x2_t vecd;
typedef uint16x4_t vech;
typedef uint8x16x2_t vec8;
typedef uint32_t vecu __attribute__((vector_size(16)));

static inline vec vec_set(float x)
{
	return vdupq_n_f32(x);
}

static inline vec vec_load(const float *p)
{
	return vld1q_f32(p);
}

static inline void vec_store(float *p, vec v)
{
	vst1q_f32(p, v);
}

/* The processor itself finds out that whole lines are written, and does not read them before. */
static inline void vec_stream(float *p, vec v)
{
	vec_store(p, v);
}

static inline vec vec_fma(vec a, vec b, vec c)
{
	return vfmaq_f32(c, a, b);
}

static inline vec vec_sqrt(vec v)
{
	return vsqrtq_f32(v);
}

static inline bool vec_any_nan(vec v)
{
	return vminvq_u32(vceqq_f32(v, v)) == 0;
}

static inline vecd vecd_zero(void)
{
	return vdupq_n_f64(0);
}

static inline vecd vecd_load(const float *p)
{
	return vcvt_f64_f32(vld1_f32(p));
}

static inline void vecd_store(double *p, vecd v)
{
	vst1q_f64(p, v);
}

static inline vecd vecd_fma(vecd a, vecd b, vecd c)
{
	return vfmaq_f64(c, a, b);
}

static inline vech vech_load(const uint16_t *p)
{
	return vld1_u16(p);
}

static inline void vech_store(uint16_t *p, vech h)
{
	vst1_u16(p, h);
}

static inline void vech_stream(uint16_t *p, vech h)
{
	vech_store(p, h);
}

static inline vech vecu_narrow(vecu u)
{
	return vmovn_u32((uint32x4_t)u);
}

static inline vecu vech_widen(vech h)
{
	return (vecu)vmovl_u16(h);
}

static inline vecu vecu_max(vecu a, vecu b)
{
	return (vecu)vmaxq_u32((uint32x4_t)a, (uint32x4_t)b);
}

static inline vec vec_max(vec a, vec b)
{
	return vmaxq_f32(a, b);
}

static inline vec vec_min(vec a, vec b)
{
	return vminq_f32(a, b);
}

static inline vec vec_from_int(vecu u)
{
	return vcvtq_f32_s32((int32x4_t)u);
}

static inline vecu vec_to_int(vec v)
{
	return (vecu)vcvtq_s32_f32(v);
}

static inline vec8 vec8_load(const float *p)
{
	return vld1q_u8_x2((const uint8_t *)p);
}

/* The bytes of element k are at 4 k and on. */
static inline vec vec8_at(vec8 table, vecu at)
{
	return (vec)vqtbl2q_u8(table, (uint8x16_t)(at * 0x04040404 + 0x03020100));
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
	return (vecu){p[0], p[1], p[2], p[3]};
}

static inline void vecu_store_bytes(uint8_t *p, vecu u)
{
	for (int k = 0; k < 4; k++)
		p[k] = (uint8_t)u[k];
}

static inline vech vec_to_f16(vec v)
{
	return vreinterpret_u16_f16(vcvt_f16_f32(v));
}

static inline vec vec_from_f16(vech h)
{
	return vcvt_f32_f16(vreinterpret_f16_u16(h));
}

/* No store goes past the cache. */
static inline void vec_fence(void)
{
}

#endif

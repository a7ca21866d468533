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

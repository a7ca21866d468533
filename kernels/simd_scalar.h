/* SPDX-License-Identifier: Apache-2.0 */
/* A vector is one float. Only simd.h includes this file. */
#ifndef ZERO_SIMD_SCALAR_H
#define ZERO_SIMD_SCALAR_H

typedef float vec;
typedef double vecd;
typedef uint16_t vech;
typedef uint32_t vecu;
typedef const float *vec8;

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

static inline vecu vecu_max(vecu a, vecu b)
{
	return a > b ? a : b;
}

static inline vec vec_max(vec a, vec b)
{
	return a > b ? a : b;
}

static inline vec vec_min(vec a, vec b)
{
	return a < b ? a : b;
}

static inline vec vec_from_int(vecu u)
{
	return (float)(int32_t)u;
}

static inline vecu vec_to_int(vec v)
{
	return (vecu)(int32_t)v;
}

static inline vec8 vec8_load(const float *p)
{
	return p;
}

static inline vec vec8_at(vec8 table, vecu at)
{
	return table[at];
}

static inline vecu vec_at_least(vec a, vec b)
{
	return a >= b ? ~0u : 0;
}

static inline vecu vecu_load_bytes(const uint8_t *p)
{
	return *p;
}

static inline void vecu_store_bytes(uint8_t *p, vecu u)
{
	*p = (uint8_t)u;
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

/* In integers. Below 2^-14 adding 0.5 rounds to the unit of f16's subnormals. */
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The words, types and intrinsics of CUDA that need no threads; see emulate.h. */
#ifndef EMULATE_WORDS_H
#define EMULATE_WORDS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

/* ---- words of the language ------------------------------------------------------------------- */

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__      static thread_local /* one block at a time in each thread of the program */
#define __align__(n)    alignas(n)
#define __launch_bounds__(...)

#define EMULATE_VECTORS(name, type, two, four)                               \
	struct alignas(two) name##2                                          \
	{                                                                    \
		type x, y;                                                   \
	};                                                                   \
	struct alignas(four) name##4                                         \
	{                                                                    \
		type x, y, z, w;                                             \
	};                                                                   \
	static inline name##2 make_##name##2(type x, type y)                 \
	{                                                                    \
		return name##2 {x, y};                                       \
	}                                                                    \
	static inline name##4 make_##name##4(type x, type y, type z, type w) \
	{                                                                    \
		return name##4 {x, y, z, w};                                 \
	}

EMULATE_VECTORS(uchar, unsigned char, 2, 4)
EMULATE_VECTORS(short, short, 4, 8)
EMULATE_VECTORS(ushort, unsigned short, 4, 8)
EMULATE_VECTORS(int, int, 8, 16)
EMULATE_VECTORS(uint, unsigned int, 8, 16)
EMULATE_VECTORS(float, float, 8, 16)
EMULATE_VECTORS(longlong, long long, 16, 16)
EMULATE_VECTORS(ulonglong, unsigned long long, 16, 16)
EMULATE_VECTORS(double, double, 16, 16)
#undef EMULATE_VECTORS

using std::max;
using std::min;

/* ---- memory ---------------------------------------------------------------------------------- */

namespace zero_emulation
{

/* A device faults on an address that is not aligned to what is read or written. */
template <class T> static inline void aligned(const T *p)
{
	if (reinterpret_cast<uintptr_t>(p) % alignof(T)) {
		fprintf(stderr, "emulated kernel: %p is not aligned to %zu bytes\n",
			static_cast<const void *>(p), alignof(T));
		abort();
	}
}

} // namespace zero_emulation

#define EMULATE_LOAD(name)                                                                  \
	template <class T> static inline T name(const T *p)                                 \
	{                                                                                   \
		T value;                                                                    \
                                                                                            \
		zero_emulation::aligned(p);                                                 \
		memcpy(&value, p, sizeof(T)); /* whatever type the memory was written as */ \
		return value;                                                               \
	}
#define EMULATE_STORE(name)                                                                        \
	template <class T> static inline void name(T *p, typename std::common_type<T>::type value) \
	{                                                                                          \
		zero_emulation::aligned(p);                                                        \
		memcpy(p, &value, sizeof(T));                                                      \
	}

EMULATE_LOAD(__ldg)
EMULATE_LOAD(__ldca)
EMULATE_LOAD(__ldcg)
EMULATE_LOAD(__ldcs)
EMULATE_LOAD(__ldlu)
EMULATE_LOAD(__ldcv)
EMULATE_STORE(__stwb)
EMULATE_STORE(__stcg)
EMULATE_STORE(__stcs)
EMULATE_STORE(__stwt)
#undef EMULATE_LOAD
#undef EMULATE_STORE

/* One thread runs at a time, and other launches touch other memory. */
#define EMULATE_ATOMIC(name, expression)                                                        \
	template <class T> static inline T name(T *p, typename std::common_type<T>::type value) \
	{                                                                                       \
		const T old = *p;                                                               \
                                                                                                \
		*p = (expression);                                                              \
		return old;                                                                     \
	}

EMULATE_ATOMIC(atomicAdd, old + value)
EMULATE_ATOMIC(atomicSub, old - value)
EMULATE_ATOMIC(atomicMax, old < value ? value : old)
EMULATE_ATOMIC(atomicMin, value < old ? value : old)
EMULATE_ATOMIC(atomicOr, old | value)
EMULATE_ATOMIC(atomicAnd, old &value)
EMULATE_ATOMIC(atomicExch, value)
#undef EMULATE_ATOMIC

template <class T>
static inline T atomicCAS(T *p, typename std::common_type<T>::type compare,
			  typename std::common_type<T>::type value)
{
	const T old = *p;

	if (old == compare)
		*p = value;
	return old;
}

/* ---- bits and rounding ----------------------------------------------------------------------- */

namespace zero_emulation
{

template <class To, class From> static inline To bits(From value)
{
	static_assert(sizeof(To) == sizeof(From), "bits of one size");
	To to;

	memcpy(&to, &value, sizeof(To));
	return to;
}

} // namespace zero_emulation

#define EMULATE(result, name, parameters, expression) \
	static inline result name parameters          \
	{                                             \
		return expression;                    \
	}

EMULATE(unsigned int, __float_as_uint, (float x), zero_emulation::bits<unsigned int>(x))
EMULATE(int, __float_as_int, (float x), zero_emulation::bits<int>(x))
EMULATE(float, __uint_as_float, (unsigned int x), zero_emulation::bits<float>(x))
EMULATE(float, __int_as_float, (int x), zero_emulation::bits<float>(x))
EMULATE(long long, __double_as_longlong, (double x), zero_emulation::bits<long long>(x))
EMULATE(double, __longlong_as_double, (long long x), zero_emulation::bits<double>(x))
EMULATE(unsigned int, __umulhi, (unsigned int a, unsigned int b),
	static_cast<unsigned int>(static_cast<uint64_t>(a) * b >> 32))
EMULATE(unsigned long long, __umul64hi, (unsigned long long a, unsigned long long b),
	static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64))
EMULATE(int, __popc, (unsigned int x), __builtin_popcount(x))
EMULATE(int, __clz, (int x), x ? __builtin_clz(static_cast<unsigned int>(x)) : 32)
EMULATE(int, __ffs, (int x), __builtin_ffs(x))
EMULATE(unsigned int, __funnelshift_r, (unsigned int low, unsigned int high, unsigned int by),
	static_cast<unsigned int>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31)))
EMULATE(unsigned int, __funnelshift_l, (unsigned int low, unsigned int high, unsigned int by),
	static_cast<unsigned int>(((static_cast<uint64_t>(high) << 32 | low) << (by & 31)) >> 32))

EMULATE(float, __fadd_rn, (float a, float b), a + b)
EMULATE(float, __fsub_rn, (float a, float b), a - b)
EMULATE(float, __fmul_rn, (float a, float b), a *b)
EMULATE(float, __fdiv_rn, (float a, float b), a / b)
EMULATE(float, __fsqrt_rn, (float a), sqrtf(a))
EMULATE(float, __fmaf_rn, (float a, float b, float c), fmaf(a, b, c))
EMULATE(double, __dadd_rn, (double a, double b), a + b)
EMULATE(double, __dsub_rn, (double a, double b), a - b)
EMULATE(double, __dmul_rn, (double a, double b), a *b)
EMULATE(double, __ddiv_rn, (double a, double b), a / b)
EMULATE(double, __dsqrt_rn, (double a), sqrt(a))
EMULATE(double, __fma_rn, (double a, double b, double c), fma(a, b, c))
EMULATE(float, __double2float_rn, (double a), static_cast<float>(a))
EMULATE(float, __int2float_rn, (int a), static_cast<float>(a))
EMULATE(float, __uint2float_rn, (unsigned int a), static_cast<float>(a))
EMULATE(float, rsqrtf, (float a), 1 / sqrtf(a))
EMULATE(double, rsqrt, (double a), 1 / sqrt(a))
EMULATE(float, __fdividef, (float a, float b), a / b)
EMULATE(float, __saturatef, (float a), a > 0 ? a < 1 ? a : 1 : 0)

/* Words of the C library too. */
#define __expf(a) expf(a)
#define __logf(a) logf(a)

struct __half {
	unsigned short bits;
};

struct __nv_bfloat16 {
	unsigned short bits;
};

typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;

EMULATE(unsigned short, __half_as_ushort, (__half h), h.bits)
EMULATE(__half, __ushort_as_half, (unsigned short bits), __half{bits})
EMULATE(unsigned short, __bfloat16_as_ushort, (__nv_bfloat16 h), h.bits)
EMULATE(__nv_bfloat16, __ushort_as_bfloat16, (unsigned short bits), __nv_bfloat16{bits})
EMULATE(float, __bfloat162float, (__nv_bfloat16 h),
	__uint_as_float(static_cast<unsigned int>(h.bits) << 16))
#undef EMULATE

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
	const unsigned int u = __float_as_uint(x);
	const unsigned int rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;

	return __nv_bfloat16{static_cast<unsigned short>(x != x ? 0x7fff : rounded)};
}

static inline __nv_bfloat16 __float2bfloat16(float x)
{
	return __float2bfloat16_rn(x);
}

/* Subnormals by adding 0.5, whose last place is f16's smallest value. */
static inline __half __float2half_rn(float x)
{
	const unsigned int u = __float_as_uint(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
	unsigned int h = __float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000;

	if (a > 0x7f800000)
		return __half{0x7fff};
	if (a >= 0x47800000)
		h = 0x7c00;
	else if (a >= 0x38800000)
		h = (a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13;
	return __half{static_cast<unsigned short>(sign | h)};
}

static inline __half __float2half(float x)
{
	return __float2half_rn(x);
}

static inline float __half2float(__half h)
{
	const unsigned int sign = (h.bits & 0x8000u) << 16, a = h.bits & 0x7fffu;

	if (a > 0x7c00)
		return __uint_as_float(0x7fffffff);
	if (a == 0x7c00)
		return __uint_as_float(sign | 0x7f800000);
	if (a >= 0x400)
		return __uint_as_float(sign | ((a << 13) + (112u << 23)));
	return __uint_as_float(sign | __float_as_uint(static_cast<float>(a) * 0x1p-24f));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device's kernels share. A kernel is a body that does N elements at a time. N is 4, for
 * accesses of 16 bytes (8 bytes of a 16-bit type, so that a warp accesses one contiguous range on
 * both sides of a cast and writes full sectors of 32 bytes), or 1 where pointers are not aligned
 * alike. sweep() calls it for all elements, U groups of N for each thread. The body reads all
 * groups before it writes the first: by Little's law some 40 KB must be under way in each
 * multiprocessor to keep the memory busy.
 *
 * Arithmetic is IEEE as on the host, with explicit fma: nvcc must not fuse by itself (-fmad=false).
 */
#ifndef ZERO_DEVICE_CUH
#define ZERO_DEVICE_CUH

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

#include "kernels.h"

#define ZERO_KERNEL extern "C" __global__ void __launch_bounds__(ZERO_DEVICE_THREADS)
#define ZERO_INLINE static __device__ __forceinline__
#define ZERO_MEMBER __device__ __forceinline__

/* ---- elements -------------------------------------------------------------------------------- */

/* One NaN, 0x7fc00000, as on the host. */
ZERO_INLINE float canon(float x)
{
	return x != x ? __uint_as_float(0x7fc00000) : x;
}

/* A NaN keeps its sign and as much of its payload as there is room for. */
ZERO_INLINE uint32_t to_bf16(float x)
{
	const uint32_t u = __float_as_uint(x);

	return x != x ? u >> 16 | 0x40 : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

ZERO_INLINE uint32_t to_f16(float x)
{
	const uint32_t u = __float_as_uint(x);

	return x != x ? (u >> 16 & 0x8000) | 0x7e00 | (u >> 13 & 0x3ff)
		      : __half_as_ushort(__float2half_rn(x));
}

ZERO_INLINE float from_f16(uint32_t h)
{
	const uint32_t nan = (h & 0x8000) << 16 | 0x7fc00000 | (h & 0x3ff) << 13;
	const float x = __half2float(__ushort_as_half((unsigned short)h));

	return (h & 0x7fff) > 0x7c00 ? __uint_as_float(nan) : x;
}

/* A signalling NaN stays one: arithmetic or rounding makes it quiet later. */
ZERO_INLINE float from_bf16(uint32_t h)
{
	return __uint_as_float(h << 16);
}

/* Elements i .. i + N of `in`, each read once by the whole grid. */
template <int N> ZERO_INLINE void load_f32(float (&x)[N], const float *in, size_t i)
{
	if constexpr (N == 4) {
		const float4 v = __ldcs((const float4 *)(in + i));

		x[0] = v.x;
		x[1] = v.y;
		x[2] = v.z;
		x[3] = v.w;
	} else {
		x[0] = __ldcs(in + i);
	}
}

template <int N> ZERO_INLINE void store_f32(float *out, size_t i, const float (&x)[N])
{
	if constexpr (N == 4)
		__stcs((float4 *)(out + i), make_float4(x[0], x[1], x[2], x[3]));
	else
		__stcs(out + i, x[0]);
}

template <zero_dtype from> ZERO_INLINE float from_half(uint32_t h)
{
	return from == ZERO_BF16 ? from_bf16(h) : from_f16(h);
}

template <zero_dtype to> ZERO_INLINE uint32_t to_half(float x)
{
	return to == ZERO_BF16 ? to_bf16(x) : to_f16(x);
}

/* `from` and `to` are f32, f16 or bf16. */
template <zero_dtype from, int N> ZERO_INLINE void load_as(float (&x)[N], const void *in, size_t i)
{
	if constexpr (from == ZERO_F32) {
		load_f32(x, (const float *)in, i);
	} else if constexpr (N == 4) {
		const uint2 v = __ldcs((const uint2 *)((const uint16_t *)in + i));

		x[0] = from_half<from>(v.x & 0xffff);
		x[1] = from_half<from>(v.x >> 16);
		x[2] = from_half<from>(v.y & 0xffff);
		x[3] = from_half<from>(v.y >> 16);
	} else {
		x[0] = from_half<from>(__ldcs((const unsigned short *)in + i));
	}
}

template <zero_dtype to, int N> ZERO_INLINE void store_as(void *out, size_t i, const float (&x)[N])
{
	if constexpr (to == ZERO_F32)
		store_f32((float *)out, i, x);
	else if constexpr (N == 4)
		__stcs((uint2 *)((uint16_t *)out + i),
		       make_uint2(to_half<to>(x[0]) | to_half<to>(x[1]) << 16,
				  to_half<to>(x[2]) | to_half<to>(x[3]) << 16));
	else
		__stcs((unsigned short *)out + i, (unsigned short)to_half<to>(x[0]));
}

/* ---- all elements ---------------------------------------------------------------------------- */

/*
 * How many elements of `size` bytes p is past a multiple of G * size bytes. Pointers for which it
 * is equal reach such a boundary at the same element.
 */
template <int G> ZERO_INLINE unsigned int past_boundary(const void *p, size_t size)
{
	return (unsigned int)((uintptr_t)p / size % G);
}

enum { STRIDE = ZERO_DEVICE_THREADS }; /* groups between those of one thread in a tile */

/* Groups of N elements from `begin` on. body.step<N, U>(i) does elements i + u * STRIDE * N + k,
   u < U and k < N. */
template <int N, int U, class Body> ZERO_INLINE void tiles(Body &body, size_t begin, size_t groups)
{
	const size_t tile = STRIDE * U;

	for (size_t at = blockIdx.x * tile; at < groups; at += gridDim.x * tile) {
		const size_t g = at + threadIdx.x;

		if (U > 1 && groups - at >= tile) {
			body.template step<N, U>(begin + g * N);
			continue;
		}
		for (size_t u = 0; u < U && g + u * STRIDE < groups; u++)
			body.template step<N, 1>(begin + (g + u * STRIDE) * N);
	}
}

/*
 * Calls the body for `count` elements, in groups of G. `past` is past_boundary of all pointers, or
 * G if they differ: then elements are done one by one, as are those before the first boundary and
 * after the last.
 */
template <int G, int U, class Body>
ZERO_INLINE void sweep(Body &body, size_t count, unsigned int past)
{
	if (past == G) {
		tiles<1, U>(body, 0, count);
		return;
	}
	const size_t to_boundary = (G - past) % G;
	const size_t head = to_boundary < count ? to_boundary : count;
	const size_t groups = (count - head) / G, end = head + groups * G;
	const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

	tiles<G, U>(body, head, groups);
	if (i < head)
		body.template step<1, 1>(i);
	else if (i - head < count - end)
		body.template step<1, 1>(end + (i - head));
}

#endif

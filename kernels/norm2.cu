/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sum of squares in f64, in two passes: atomics would add in another order in every run. Thread
 * i / 4 % 256 always adds element i of a part, to sum i % 4 of its four, also where it cannot read
 * 16 bytes at once. Then the sums are added pairwise.
 */
#include "device.cuh"

enum { NORM2_LANES = 4, NORM2_UNROLL = 4 };

/* The sum over the block; thread 0 gets it. */
ZERO_INLINE double block_sum(double sum)
{
	__shared__ double of_warp[ZERO_DEVICE_THREADS / 32];

	for (int far = 16; far; far /= 2)
		sum += __shfl_xor_sync(0xffffffff, sum, far);
	__syncthreads(); /* the last sum has been read */
	if (threadIdx.x % 32 == 0)
		of_warp[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x)
		return 0;
	for (int far = ZERO_DEVICE_THREADS / 64; far; far /= 2)
		for (int k = 0; k < far; k++)
			of_warp[k] += of_warp[k + far];
	return of_warp[0];
}

template <bool aligned> ZERO_INLINE void load_lanes(float (&v)[NORM2_LANES], const float *x)
{
	if constexpr (aligned) {
		load_f32(v, x, 0);
	} else {
#pragma unroll
		for (int k = 0; k < NORM2_LANES; k++)
			v[k] = x[k];
	}
}

ZERO_INLINE void add_squares(double (&sum)[NORM2_LANES], const float (&v)[NORM2_LANES])
{
#pragma unroll
	for (int k = 0; k < NORM2_LANES; k++)
		sum[k] = fma((double)v[k], (double)v[k], sum[k]);
}

/* This thread's share of a part. */
template <bool aligned> ZERO_INLINE double part_sum(const float *x, size_t count)
{
	const size_t groups = count / NORM2_LANES, far = ZERO_DEVICE_THREADS;
	double sum[NORM2_LANES] = {0, 0, 0, 0};
	float v[NORM2_UNROLL][NORM2_LANES];
	size_t g = threadIdx.x;

	for (; g + (NORM2_UNROLL - 1) * far < groups; g += NORM2_UNROLL * far) {
#pragma unroll
		for (int u = 0; u < NORM2_UNROLL; u++)
			load_lanes<aligned>(v[u], x + (g + u * far) * NORM2_LANES);
#pragma unroll
		for (int u = 0; u < NORM2_UNROLL; u++)
			add_squares(sum, v[u]);
	}
	for (; g < groups; g += far) {
		load_lanes<aligned>(v[0], x + g * NORM2_LANES);
		add_squares(sum, v[0]);
	}
	if (g == groups) { /* whose turn the last, unfinished group would be */
#pragma unroll
		for (int k = 0; k < NORM2_LANES; k++)
			v[0][k] = g * NORM2_LANES + k < count ? x[g * NORM2_LANES + k] : 0;
		add_squares(sum, v[0]);
	}
	return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

ZERO_KERNEL zero_device_norm2(const __grid_constant__ struct zero_device_norm2 args)
{
	const size_t parts = zero_norm2_parts(args.count);
	const size_t length = args.count ? zero_norm2_length(args.count) : 0;

	for (size_t b = blockIdx.x; b < parts; b += gridDim.x) {
		const size_t at = b * length < args.count ? b * length : args.count;
		const size_t count = args.count - at < length ? args.count - at : length;
		const float *x = args.x + at;
		const double sum =
			(uintptr_t)x % 16 ? part_sum<false>(x, count) : part_sum<true>(x, count);
		const double all = block_sum(sum);

		if (threadIdx.x == 0)
			args.parts[b] = all;
	}
}

ZERO_KERNEL zero_device_norm2_fold(const __grid_constant__ struct zero_device_norm2_fold args)
{
	double sum = 0;

	for (size_t b = threadIdx.x; b < args.count; b += blockDim.x)
		sum += args.parts[b];
	sum = block_sum(sum);
	if (threadIdx.x || blockIdx.x)
		return;
	if (args.accumulate)
		sum = *args.sum + sum;
	*args.sum = sum != sum ? __longlong_as_double(0x7ff8000000000000) : sum;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC11), operation for operation as in philox.c, which explains them. A thread makes one block of
 * four words at a time, and of it the elements that were asked for.
 */
#include "device.cuh"

/* The four elements of a block of words. */
struct quad {
	double x[4];
};

struct words {
	uint32_t w[4];
};

ZERO_INLINE words philox(uint64_t block, uint64_t seed, uint64_t stream)
{
	uint32_t x0 = (uint32_t)block, x1 = (uint32_t)(block >> 32);
	uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#pragma unroll
	for (int round = 0; round < 10; round++) {
		const uint32_t a = x0 * 0xd2511f53, a_high = __umulhi(x0, 0xd2511f53);
		const uint32_t c = x2 * 0xcd9e8d57, c_high = __umulhi(x2, 0xcd9e8d57);

		x0 = c_high ^ x1 ^ k0;
		x2 = a_high ^ x3 ^ k1;
		x1 = c;
		x3 = a;
		k0 += 0x9e3779b9;
		k1 += 0xbb67ae85;
	}
	return words{{x0, x1, x2, x3}};
}

ZERO_INLINE double from_bits(uint64_t u)
{
	return __longlong_as_double((long long)u);
}

ZERO_INLINE uint64_t to_bits(double x)
{
	return (uint64_t)__double_as_longlong(x);
}

#include "log_sin_cos.h"

ZERO_INLINE void sincos_of(uint32_t w, double *sine, double *cosine)
{
	uint32_t quarter;
	const double r = angle_of(w, &quarter), s = sine_of(r), c = cosine_of(r);
	const double a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;

	*sine = quarter & 2 ? -a : a;
	*cosine = (quarter + 1) & 2 ? -b : b;
}

struct normal_values {
	ZERO_MEMBER quad operator()(const zero_device_random &args, words word) const
	{
		quad q;

#pragma unroll
		for (int k = 0; k < 4; k += 2) {
			const double u = middle_of(word.w[k]) * 0x1p-32;
			const double radius = __dsqrt_rn(-2 * log_of(u));
			double sine, cosine;

			sincos_of(word.w[k + 1], &sine, &cosine);
			q.x[k] = fma(args.b, radius * cosine, args.a);
			q.x[k + 1] = fma(args.b, radius * sine, args.a);
		}
		return q;
	}
};

struct uniform_values {
	ZERO_MEMBER quad operator()(const zero_device_random &args, words word) const
	{
		const double unit = 1 / (double)(1ull << (32 - args.cut));
		quad q;

#pragma unroll
		for (int k = 0; k < 4; k++) {
			const uint64_t upper = word.w[k] >> args.cut;
			const double u = (from_bits(upper | 0x4330000000000000) - 0x1p52) * unit;
			const double v = fma(args.b, u, args.a * (1 - u));
			const double above = v < args.first_value ? args.first_value : v;

			q.x[k] = above > args.last_value ? args.last_value : above;
		}
		return q;
	}
};

/* All four, from element i on, at a boundary of four elements; or one of them. */
template <zero_dtype dtype> ZERO_INLINE void store_quad(void *out, size_t i, const quad &q)
{
	if constexpr (dtype == ZERO_F64) {
		double2 *to = (double2 *)((double *)out + i);

		__stcs(to, make_double2(q.x[0], q.x[1]));
		__stcs(to + 1, make_double2(q.x[2], q.x[3]));
	} else {
		const float x[4] = {(float)q.x[0], (float)q.x[1], (float)q.x[2], (float)q.x[3]};

		store_as<dtype>(out, i, x);
	}
}

template <zero_dtype dtype> ZERO_INLINE void store_one(void *out, size_t i, double value)
{
	if constexpr (dtype == ZERO_F64) {
		((double *)out)[i] = value;
	} else {
		const float x[1] = {(float)value};

		store_as<dtype>(out, i, x);
	}
}

template <zero_dtype dtype, class Values> ZERO_INLINE void random_as(const zero_device_random &args)
{
	const size_t size = dtype == ZERO_F64 ? 8 : dtype == ZERO_F32 ? 4 : 2;
	const size_t skip = args.first % 4, left = args.count; /* of the first block */
	const size_t blocks = (skip + left % 4 + 3) / 4 + left / 4;
	/* Whether the elements of a block lie between boundaries. */
	const bool whole = past_boundary<4>(args.out, size) == skip;
	const Values values;

	for (size_t b = (size_t)blockIdx.x * blockDim.x + threadIdx.x; b < blocks;
	     b += (size_t)gridDim.x * blockDim.x) {
		const quad q = values(args, philox(args.first / 4 + b, args.seed, args.stream));
		const size_t i = b * 4 - skip; /* of its first element; before out's in block 0 */

		if (whole && b * 4 >= skip && i + 4 <= args.count) {
			store_quad<dtype>(args.out, i, q);
			continue;
		}
#pragma unroll
		for (int k = 0; k < 4; k++)
			if (b * 4 + k >= skip && i + k < args.count)
				store_one<dtype>(args.out, i + k, q.x[k]);
	}
}

template <class Values> ZERO_INLINE void random_values(const zero_device_random &args)
{
	if (args.dtype == ZERO_F32)
		random_as<ZERO_F32, Values>(args);
	else if (args.dtype == ZERO_BF16)
		random_as<ZERO_BF16, Values>(args);
	else if (args.dtype == ZERO_F16)
		random_as<ZERO_F16, Values>(args);
	else
		random_as<ZERO_F64, Values>(args);
}

ZERO_KERNEL zero_device_uniform(const __grid_constant__ struct zero_device_random args)
{
	random_values<uniform_values>(args);
}

ZERO_KERNEL zero_device_normal(const __grid_constant__ struct zero_device_random args)
{
	random_values<normal_values>(args);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers, by philox.h as on the host. A thread makes one block of four words at a time. */
#include "device.cuh"

/* The four elements of a block of words. */
struct quad {
	double x[4];
};

ZERO_INLINE double from_bits(uint64_t u)
{
	return __longlong_as_double((long long)u);
}

ZERO_INLINE uint64_t to_bits(double x)
{
	return (uint64_t)__double_as_longlong(x);
}

#include "philox.h"

struct normal_values {
	ZERO_MEMBER quad operator()(const zero_device_random &args, const uint32_t (&word)[4]) const
	{
		quad q;

#pragma unroll
		for (int k = 0; k < 4; k += 2)
			normals_of(word[k], word[k + 1], args.a, args.b, &q.x[k], &q.x[k + 1]);
		return q;
	}
};

struct uniform_values {
	ZERO_MEMBER quad operator()(const zero_device_random &args, const uint32_t (&word)[4]) const
	{
		quad q;

#pragma unroll
		for (int k = 0; k < 4; k++)
			q.x[k] = uniform_of(word[k], args.a, args.b, args.first_value,
					    args.last_value, args.cut);
		return q;
	}
};

/* Stores all four elements from element i on, which is at a boundary of four. */
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
		const size_t i = b * 4 - skip; /* of its first element; before out's in block 0 */
		uint32_t word[4];

		philox(args.first / 4 + b, args.seed, args.stream, &word[0], &word[1], &word[2],
		       &word[3]);
		const quad q = values(args, word);

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

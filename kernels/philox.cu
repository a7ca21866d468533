/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
 * SC11), operation for operation as in philox.c, which explains them. A thread makes one block of
 * four words at a time, and of it the elements that were asked for.
 */
#include "vec.cuh"

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

ZERO_INLINE double of_bits(uint64_t u)
{
	return __longlong_as_double((long long)u);
}

ZERO_INLINE uint64_t bits_of_f64(double x)
{
	return (uint64_t)__double_as_longlong(x);
}

ZERO_INLINE double log_of(double x)
{
	const uint64_t past = bits_of_f64(x) - 0x3fe6a09e00000000;
	const double e = of_bits(((past >> 52) ^ 0x800) | 0x4330000000000000);
	const double y = of_bits((past & 0x000fffffffffffff) + 0x3fe6a09e00000000);
	const double s = (y - 1) / (y + 1), z = s * s;
	double sum = 1.0 / 17;

	sum = fma(sum, z, 1.0 / 15);
	sum = fma(sum, z, 1.0 / 13);
	sum = fma(sum, z, 1.0 / 11);
	sum = fma(sum, z, 1.0 / 9);
	sum = fma(sum, z, 1.0 / 7);
	sum = fma(sum, z, 1.0 / 5);
	sum = fma(sum, z, 1.0 / 3);
	sum = fma(sum * z, s, s);
	return fma(e - (0x1p52 + 0x800), 0x1.62e42fefa39efp-1, 2 * sum);
}

ZERO_INLINE void sincos_of(uint32_t w, double *sine, double *cosine)
{
	const uint32_t quarter = (w + 0x20000000) >> 30;
	const double r = (int32_t)(w - (quarter << 30)) * (0x1.921fb54442d18p+2 * 0x1p-32);
	const double z = r * r;
	double s = 1.0 / 6227020800, c = -1.0 / 87178291200;

	s = fma(s, z, -1.0 / 39916800);
	s = fma(s, z, 1.0 / 362880);
	s = fma(s, z, -1.0 / 5040);
	s = fma(s, z, 1.0 / 120);
	s = fma(s, z, -1.0 / 6);
	s = fma(s * z, r, r);
	c = fma(c, z, 1.0 / 479001600);
	c = fma(c, z, -1.0 / 3628800);
	c = fma(c, z, 1.0 / 40320);
	c = fma(c, z, -1.0 / 720);
	c = fma(c, z, 1.0 / 24);
	c = fma(c, z, -0.5);
	c = fma(c, z, 1.0);

	const double a = quarter & 1 ? c : s, b = quarter & 1 ? s : c;
	*sine = quarter & 2 ? -a : a;
	*cosine = (quarter + 1) & 2 ? -b : b;
}

ZERO_INLINE double middle_of(uint32_t w)
{
	return of_bits(w | 0x4330000000000000) - (0x1p52 - 0.5);
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
			const double u = (of_bits(upper | 0x4330000000000000) - 0x1p52) * unit;
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

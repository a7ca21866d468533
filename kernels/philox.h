/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counter-based random numbers with the same bits on the host and on a device: Philox 4x32-10
 * (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC11), and what is
 * made of its words. Arithmetic is f64 with explicit fma, and of libm it uses fma and sqrt alone,
 * which are exactly defined. There are no branches, so that loops of the host vectorise. The
 * including file defines ZERO_INLINE, and from_bits and to_bits between an f64 and its bits.
 */
#ifndef ZERO_PHILOX_H
#define ZERO_PHILOX_H

/* The four words of a block. */
ZERO_INLINE void philox(uint64_t block, uint64_t seed, uint64_t stream, uint32_t *w0, uint32_t *w1,
			uint32_t *w2, uint32_t *w3)
{
	uint32_t x0 = (uint32_t)block, x1 = (uint32_t)(block >> 32);
	uint32_t x2 = (uint32_t)stream, x3 = (uint32_t)(stream >> 32);
	uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 10
#endif
	for (int round = 0; round < 10; round++) {
		const uint64_t a = (uint64_t)x0 * 0xd2511f53, c = (uint64_t)x2 * 0xcd9e8d57;

		x0 = (uint32_t)(c >> 32) ^ x1 ^ k0;
		x2 = (uint32_t)(a >> 32) ^ x3 ^ k1;
		x1 = (uint32_t)c;
		x3 = (uint32_t)a;
		k0 += 0x9e3779b9;
		k1 += 0xbb67ae85;
	}
	*w0 = x0;
	*w1 = x1;
	*w2 = x2;
	*w3 = x3;
}

/*
 * log(x) of a normal x > 0 to about 1e-15: x = 2^e * y with y in [sqrt(1/2), sqrt(2)), and
 * log(y) = 2 atanh(s), s = (y - 1) / (y + 1), whose series ends at s^17 (|s| < 0.172).
 */
ZERO_INLINE double log_of(double x)
{
	const uint64_t half = to_bits(x) - 0x3fe6a09e00000000; /* the upper bits of sqrt(1/2) */
	/* e as f64, by the bits of 2^52 + 2^11 + e: AVX2 has no conversion from i64. */
	const double e = from_bits(((half >> 52) ^ 0x800) | 0x4330000000000000);
	const double y = from_bits((half & 0x000fffffffffffff) + 0x3fe6a09e00000000);
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

/* The angle 2 pi * w / 2^32, reduced by *quarter quarters of a circle to at most pi / 4. */
ZERO_INLINE double angle_of(uint32_t w, uint32_t *quarter)
{
	*quarter = (w + 0x20000000) >> 30;
	return (int32_t)(w - (*quarter << 30)) * (0x1.921fb54442d18p+2 * 0x1p-32);
}

/* Sine and cosine of an angle of at most pi / 4, to about 1e-14: the series end at r^13 and r^14.
   */
ZERO_INLINE double sine_of(double r)
{
	const double z = r * r;
	double s = 1.0 / 6227020800;

	s = fma(s, z, -1.0 / 39916800);
	s = fma(s, z, 1.0 / 362880);
	s = fma(s, z, -1.0 / 5040);
	s = fma(s, z, 1.0 / 120);
	s = fma(s, z, -1.0 / 6);
	return fma(s * z, r, r);
}

ZERO_INLINE double cosine_of(double r)
{
	const double z = r * r;
	double c = -1.0 / 87178291200;

	c = fma(c, z, 1.0 / 479001600);
	c = fma(c, z, -1.0 / 3628800);
	c = fma(c, z, 1.0 / 40320);
	c = fma(c, z, -1.0 / 720);
	c = fma(c, z, 1.0 / 24);
	c = fma(c, z, -0.5);
	return fma(c, z, 1.0);
}

/* Sine and cosine of 2 pi * w / 2^32. */
ZERO_INLINE void sincos_of(uint32_t w, double *sine, double *cosine)
{
	uint32_t quarter;
	const double r = angle_of(w, &quarter);
	const uint64_t odd = -(uint64_t)(quarter & 1);
	const uint64_t sb = to_bits(sine_of(r)), cb = to_bits(cosine_of(r));

	*sine = from_bits(((sb & ~odd) | (cb & odd)) ^ (uint64_t)(quarter & 2) << 62);
	*cosine = from_bits(((cb & ~odd) | (sb & odd)) ^ (uint64_t)((quarter + 1) & 2) << 62);
}

/* w + 0.5, exactly, by the bits of 2^52 + w. */
ZERO_INLINE double middle_of(uint32_t w)
{
	return from_bits(w | 0x4330000000000000) - (0x1p52 - 0.5);
}

/*
 * Box and Muller ("A note on the generation of random normal deviates", 1958): two words make two
 * normals. The first stands for (w + 1/2) / 2^32, so it is never 0, and no value is beyond 6.8
 * deviations.
 */
ZERO_INLINE void normals_of(uint32_t w0, uint32_t w1, double mean, double stddev, double *x0,
			    double *x1)
{
	const double radius = sqrt(-2 * log_of(middle_of(w0) * 0x1p-32));
	double sine, cosine;

	sincos_of(w1, &sine, &cosine);
	*x0 = fma(stddev, radius * cosine, mean);
	*x1 = fma(stddev, radius * sine, mean);
}

/* In [low, high), without the `cut` low bits of the word; `first` and `last` are the type's first
   and last value there. */
ZERO_INLINE double uniform_of(uint32_t word, double low, double high, double first, double last,
			      int cut)
{
	const double unit = 1 / (double)(1ull << (32 - cut));
	const double u = (from_bits((word >> cut) | 0x4330000000000000) - 0x1p52) * unit;
	const double v = fma(high, u, low * (1 - u)), above = v < first ? first : v;

	return above > last ? last : above;
}

#endif

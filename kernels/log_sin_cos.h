/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What normal numbers are made with, the same bits on the host and on a device: f64 with explicit
 * fma, and nothing from a library. Whoever includes it has ZERO_INLINE, and from_bits and to_bits
 * between an f64 and its bits.
 */
#ifndef ZERO_LOG_SIN_COS_H
#define ZERO_LOG_SIN_COS_H

/*
 * log(x) of a normal x > 0 to about 1e-15: x = 2^e * y with y in [sqrt(1/2), sqrt(2)), and
 * log(y) = 2 atanh(s), s = (y - 1) / (y + 1), whose series ends at s^17 (|s| < 0.172).
 */
ZERO_INLINE double log_of(double x)
{
	const uint64_t half = to_bits(x) - 0x3fe6a09e00000000; /* the upper bits of sqrt(1/2) */
	/* e as f64, by the bits of 2^52 + 2^11 + e: there is no vector instruction for it. */
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

/* 2 pi * w / 2^32 less the nearest quarter of the circle, which is *quarter: at most pi / 4. */
ZERO_INLINE double angle_of(uint32_t w, uint32_t *quarter)
{
	*quarter = (w + 0x20000000) >> 30;
	return (int32_t)(w - (*quarter << 30)) * (0x1.921fb54442d18p+2 * 0x1p-32);
}

/* Of such an angle, to about 1e-14: the series end at 13 and 14. */
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

/* w + 0.5, exactly, by the bits of 2^52 + w. */
ZERO_INLINE double middle_of(uint32_t w)
{
	return from_bits(w | 0x4330000000000000) - (0x1p52 - 0.5);
}

#endif

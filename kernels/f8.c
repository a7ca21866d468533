/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 8-bit floats of Micikevicius et al. 2022, "FP8 formats for deep learning": e4m3 has 3 bits
 * after the point, one NaN of each sign and no infinity; e5m2 is the upper byte of f16. They are
 * stored and converted, and nothing computes with them.
 */
#include <math.h>
#include <string.h>

#include "kernels.h"

struct format {
	int fraction, bias;
	unsigned most; /* the code of the largest value, or of infinity */
	bool infinite;
	float least; /* the least value above 0 */
};

static struct format format_of(zero_dtype dtype)
{
	return dtype == ZERO_F8_E4M3 ? (struct format){3, 7, 0x7e, false, 0x1p-9F}
				     : (struct format){2, 15, 0x7c, true, 0x1p-16F};
}

/* The fraction and the exponent of f32 are as in f8, but for their place and the bias. Subnormal
   values are whole multiples of the least one. */
static float widen(const struct format *format, uint8_t code)
{
	const uint32_t size = code & 0x7f, sign = (uint32_t)(code & 0x80) << 24;
	const float subnormal = (float)size * format->least;
	uint32_t bits = (size << (23 - format->fraction)) + ((uint32_t)(127 - format->bias) << 23);
	float x;

	if (size < 1U << format->fraction)
		memcpy(&bits, &subnormal, sizeof(bits));
	if (size > format->most)
		bits = 0x7fc00000;
	else if (size == format->most && format->infinite)
		bits = 0x7f800000;
	bits |= sign;
	memcpy(&x, &bits, sizeof(x));
	return x;
}

void zero_f8_widen(zero_dtype from, float *out, const uint8_t *in, size_t count)
{
	const struct format format = format_of(from);

	for (size_t i = 0; i < count; i++)
		out[i] = widen(&format, in[i]);
}

/* To the nearest value, ties to even. What is larger than all of them is infinite, or else NaN. */
static uint8_t narrow(const struct format *format, float x)
{
	const unsigned sign = signbit(x) ? 0x80 : 0;
	const float size = fabsf(x);
	const int least = 1 - format->bias; /* of the exponents */
	int exponent = least;
	unsigned code;

	if (isnan(x))
		return (uint8_t)(sign | 0x7f);
	if (isinf(x))
		return (uint8_t)(sign | (format->infinite ? format->most : 0x7f));
	if (size > 0 && ilogbf(size) > exponent)
		exponent = ilogbf(size);
	if (exponent - least > 31)
		return (uint8_t)(sign | (format->infinite ? format->most : 0x7f));
	/* A carry out of the fraction is one into the exponent. */
	code = ((unsigned)(exponent - least) << format->fraction) +
	       (unsigned)nearbyintf(ldexpf(size, format->fraction - exponent));
	if (code > format->most)
		code = format->infinite ? format->most : 0x7f;
	return (uint8_t)(sign | code);
}

void zero_f8_narrow(zero_dtype to, uint8_t *out, const float *in, size_t count)
{
	const struct format format = format_of(to);

	for (size_t i = 0; i < count; i++)
		out[i] = narrow(&format, in[i]);
}

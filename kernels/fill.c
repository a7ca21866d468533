/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels.h"

/* The nearest integer, ties to even, saturated to [bottom, top - 1]; 0 for NaN. */
static int64_t to_integer(double value, double bottom, double top)
{
	const double x = nearbyint(value);

	if (isnan(x))
		return 0;
	if (x >= top)
		return top == 0x1p63 ? INT64_MAX : (int64_t)(top - 1);
	return (int64_t)(x < bottom ? bottom : x);
}

/* Copies an element of `size` bytes to out[0], and from there to all others. */
static void repeat(void *out, const void *element, size_t size, size_t count)
{
	const size_t most = 4096; /* elements copied at a time: the source stays in the cache */

	if (count)
		memcpy(out, element, size);
	for (size_t done = 1, n; done < count; done += n) {
		n = done < most ? done : most;
		n = n < count - done ? n : count - done;
		memcpy((char *)out + done * size, out, n * size);
	}
}

void zero_fill_constant(zero_dtype dtype, void *out, size_t count, double value)
{
	const float f32 = (float)value;
	const int64_t i64 = to_integer(value, -0x1p63, 0x1p63);
	const int32_t i32 = (int32_t)to_integer(value, -0x1p31, 0x1p31);
	const uint8_t u8 = (uint8_t)to_integer(value, 0, 0x1p8);
	const uint8_t truth = value != 0;
	uint16_t half;
	uint8_t f8;

	switch (dtype) {
	case ZERO_F64:
		repeat(out, &value, sizeof(value), count);
		break;
	case ZERO_F32:
		repeat(out, &f32, sizeof(f32), count);
		break;
	case ZERO_F16:
	case ZERO_BF16:
		zero_convert(&zero_kernels_scalar, dtype, &half, ZERO_F64, &value, 1, NULL);
		repeat(out, &half, sizeof(half), count);
		break;
	case ZERO_F8_E4M3:
	case ZERO_F8_E5M2:
		zero_convert(&zero_kernels_scalar, dtype, &f8, ZERO_F64, &value, 1, NULL);
		repeat(out, &f8, sizeof(f8), count);
		break;
	case ZERO_I64:
		repeat(out, &i64, sizeof(i64), count);
		break;
	case ZERO_I32:
		repeat(out, &i32, sizeof(i32), count);
		break;
	case ZERO_U8:
		repeat(out, &u8, sizeof(u8), count);
		break;
	case ZERO_BOOL:
		repeat(out, &truth, sizeof(truth), count);
		break;
	case ZERO_DTYPE_PARAM:
	case ZERO_DTYPE_DEFAULT:
		break;
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Types, names and sums. */
#include <math.h>
#include <string.h>

#include "nccl.h"

static const struct {
	const char *name;
	size_t size;
} types[ncclNumTypes] = {
	[ncclInt8] = {"i8", 1},       [ncclUint8] = {"u8", 1},       [ncclInt32] = {"i32", 4},
	[ncclUint32] = {"u32", 4},    [ncclInt64] = {"i64", 8},      [ncclUint64] = {"u64", 8},
	[ncclFloat16] = {"f16", 2},   [ncclFloat32] = {"f32", 4},    [ncclFloat64] = {"f64", 8},
	[ncclBfloat16] = {"bf16", 2}, [ncclFloat8e4m3] = {"f8a", 1}, [ncclFloat8e5m2] = {"f8b", 1},
};

static const char *const kinds[] = {
	[ALL_GATHER] = "AllGather",
	[REDUCE_SCATTER] = "ReduceScatter",
	[ALL_REDUCE] = "AllReduce",
	[BROADCAST] = "Broadcast",
	[SEND] = "Send",
	[RECV] = "Recv",
	[INIT] = "Init",
	[SPLIT] = "Split",
	[WINDOW_REGISTER] = "WindowRegister",
};

size_t type_size(ncclDataType_t type)
{
	return (unsigned)type < ncclNumTypes ? types[type].size : 0;
}

const char *type_name(ncclDataType_t type)
{
	return (unsigned)type < ncclNumTypes ? types[type].name : "?";
}

const char *kind_name(enum kind kind)
{
	return kinds[kind];
}

static float from_bf16(uint16_t x)
{
	uint32_t bits = (uint32_t)x << 16;
	float value;

	memcpy(&value, &bits, sizeof value);
	return value;
}

static uint16_t to_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof bits);
	if (isnan(value))
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_f16(uint16_t x)
{
	int exponent = x >> 10 & 31, fraction = x & 1023;
	float value;

	if (exponent == 31)
		value = fraction ? NAN : INFINITY;
	else if (exponent)
		value = ldexpf((float)(1024 + fraction), exponent - 25);
	else
		value = ldexpf((float)fraction, -24);
	return x & 0x8000 ? -value : value;
}

/* Rounds to nearest even: rintf does so once the last place has the value 1. */
static uint16_t to_f16(float value)
{
	uint16_t sign = signbit(value) ? 0x8000 : 0;
	float size = fabsf(value);
	int exponent;
	float units;

	if (isnan(value))
		return sign | 0x7e00;
	if (size >= 65520)
		return sign | 0x7c00;
	frexpf(size, &exponent);
	if (size < 6.103515625e-5f)
		exponent = -13;
	units = rintf(ldexpf(size, 11 - exponent));
	/* a carry into the exponent is correct */
	return (uint16_t)(sign | ((exponent + 13) * 1024 + (int)units));
}

bool can_add(ncclDataType_t type)
{
	switch (type) {
	case ncclFloat16:
	case ncclBfloat16:
	case ncclFloat32:
	case ncclFloat64:
	case ncclInt32:
	case ncclInt64:
		return true;
	default:
		return false;
	}
}

void add(ncclDataType_t type, void *to, const void *a, const void *b, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		switch (type) {
		case ncclFloat16:
			((uint16_t *)to)[i] = to_f16(from_f16(((const uint16_t *)a)[i]) +
						     from_f16(((const uint16_t *)b)[i]));
			break;
		case ncclBfloat16:
			((uint16_t *)to)[i] = to_bf16(from_bf16(((const uint16_t *)a)[i]) +
						      from_bf16(((const uint16_t *)b)[i]));
			break;
		case ncclFloat32:
			((float *)to)[i] = ((const float *)a)[i] + ((const float *)b)[i];
			break;
		case ncclFloat64:
			((double *)to)[i] = ((const double *)a)[i] + ((const double *)b)[i];
			break;
		case ncclInt32:
			((uint32_t *)to)[i] = ((const uint32_t *)a)[i] + ((const uint32_t *)b)[i];
			break;
		default:
			((uint64_t *)to)[i] = ((const uint64_t *)a)[i] + ((const uint64_t *)b)[i];
		}
	}
}

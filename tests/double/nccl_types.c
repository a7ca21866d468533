/* SPDX-License-Identifier: Apache-2.0 */
/* Types, names, and conversions for sums. */
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

/* A bf16 is the upper half of an f32. */
static float widen(ncclDataType_t type, const void *element)
{
	uint32_t bits = 0;
	uint16_t low;
	float value;
	_Float16 half;

	if (type == ncclFloat32) {
		memcpy(&value, element, sizeof value);
	} else if (type == ncclFloat16) {
		memcpy(&half, element, sizeof half);
		value = (float)half;
	} else {
		memcpy(&low, element, sizeof low);
		bits = (uint32_t)low << 16;
		memcpy(&value, &bits, sizeof value);
	}
	return value;
}

static void narrow(ncclDataType_t type, float value, void *element)
{
	_Float16 half = (_Float16)value;
	uint32_t bits;
	uint16_t low;

	memcpy(&bits, &value, sizeof bits);
	/* to the nearest, ties to even; a NaN stays one */
	low = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	if ((bits & 0x7fffffff) > 0x7f800000)
		low = (uint16_t)(bits >> 16 | 0x40);
	if (type == ncclFloat32)
		memcpy(element, &value, sizeof value);
	else
		memcpy(element, type == ncclFloat16 ? (void *)&half : (void *)&low, sizeof low);
}

void widen_all(ncclDataType_t type, float *to, const void *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		to[i] = widen(type, (const char *)from + i * type_size(type));
}

void narrow_all(ncclDataType_t type, void *to, const float *from, size_t count)
{
	for (size_t i = 0; i < count; i++)
		narrow(type, from[i], (char *)to + i * type_size(type));
}

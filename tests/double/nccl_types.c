/* SPDX-License-Identifier: Apache-2.0 */
/* Types, names, and sums of f32. */
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

void add(void *to, const void *a, const void *b, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((float *)to)[i] = ((const float *)a)[i] + ((const float *)b)[i];
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "zero.h"

struct dtype_info {
	const char *name;
	size_t size;
};

static const struct dtype_info dtypes[] = {
	[ZERO_DTYPE_PARAM] = {"param", 0}, [ZERO_F32] = {"f32", 4},
	[ZERO_F16] = {"f16", 2},           [ZERO_BF16] = {"bf16", 2},
	[ZERO_F64] = {"f64", 8},           [ZERO_I64] = {"i64", 8},
	[ZERO_I32] = {"i32", 4},           [ZERO_U8] = {"u8", 1},
	[ZERO_BOOL] = {"bool", 1},         [ZERO_F8_E4M3] = {"f8_e4m3", 1},
	[ZERO_F8_E5M2] = {"f8_e5m2", 1},
};

static const struct dtype_info *dtype_info(zero_dtype dtype)
{
	static const struct dtype_info unknown = {"unknown", 0};
	size_t i = (size_t)dtype;

	return i < sizeof(dtypes) / sizeof(dtypes[0]) ? &dtypes[i] : &unknown;
}

size_t zero_dtype_size(zero_dtype dtype)
{
	return dtype_info(dtype)->size;
}

const char *zero_dtype_name(zero_dtype dtype)
{
	return dtype_info(dtype)->name;
}

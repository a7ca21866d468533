/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum for AVX2, twice as fast: every byte of a checkpoint passes through here. */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#ifdef HAVE_X86
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include <xxhash.h>

#include "files/manifest.h"

uint64_t files_checksum_avx2(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int files_checksums_avx2_is_empty;
#endif

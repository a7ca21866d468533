/* SPDX-License-Identifier: Apache-2.0 */
/* The loop of checksums.c, compiled for AVX2: every byte of a checkpoint passes through here. */
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

void files_checksum_blocks_avx2(const void *data, size_t bytes, uint64_t *checksums)
{
	const char *from = data;

	for (size_t at = 0, now; at < bytes; at += now) {
		now = bytes - at < ZERO_CHECKSUM_BLOCK ? bytes - at : ZERO_CHECKSUM_BLOCK;
		*checksums++ = XXH3_64bits(from + at, now);
	}
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#else
typedef int files_checksums_avx2_is_empty;
#endif

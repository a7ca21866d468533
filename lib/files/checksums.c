/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of a checkpoint's bytes: XXH3 of 64 bits, seed 0, as xxhsum -H3 prints it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "files/input.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

static void sums_plain(const void *data, size_t bytes, uint64_t *sums)
{
	const char *from = data;

	for (size_t at = 0, now; at < bytes; at += now) {
		now = bytes - at < ZERO_SUM_BLOCK ? bytes - at : ZERO_SUM_BLOCK;
		*sums++ = XXH3_64bits(from + at, now);
	}
}

void files_sums(const void *data, size_t bytes, uint64_t *sums)
{
#ifdef HAVE_X86
	if (__builtin_cpu_supports("avx2")) {
		files_sums_avx2(data, bytes, sums);
		return;
	}
#endif
	sums_plain(data, bytes, sums);
}

uint64_t files_sum(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

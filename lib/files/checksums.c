/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of a checkpoint's bytes: XXH3 of 64 bits, seed 0, as xxhsum -H3 prints it. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "files/manifest.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

void files_checksum_blocks(const void *data, size_t bytes, uint64_t *checksums)
{
	uint64_t (*checksum)(const void *, size_t) = files_checksum;
	const char *from = data;

#ifdef HAVE_X86
	if (__builtin_cpu_supports("avx2"))
		checksum = files_checksum_avx2;
#endif
	for (size_t at = 0, now; at < bytes; at += now) {
		now = bytes - at < ZERO_CHECKSUM_BLOCK ? bytes - at : ZERO_CHECKSUM_BLOCK;
		*checksums++ = checksum(from + at, now);
	}
}

uint64_t files_checksum(const void *data, size_t bytes)
{
	return XXH3_64bits(data, bytes);
}

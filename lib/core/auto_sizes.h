/* SPDX-License-Identifier: Apache-2.0 */
/* The sizes that `auto` stands for, from a budget of memory alone. The plugin, the launcher and the
   library come to the same numbers. */
#ifndef ZERO_AUTO_SIZES_H
#define ZERO_AUTO_SIZES_H

#include <stdint.h>

/* Bytes above which a parameter is streamed, for stream_threshold. */
static inline uint64_t zero_auto_stream_threshold(uint64_t chunk, uint64_t budget)
{
	return chunk > budget / 64 ? chunk : budget / 64;
}

/* Bytes of gathered groups beyond which none is prefetched, for gather_limit. */
static inline uint64_t zero_auto_gather_limit(uint64_t budget)
{
	return budget / 4;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the buffers of a reduce-scatter: the backends allocate them, and the plan of a job
   counts them. */
#ifndef ZERO_EXCHANGE_H
#define ZERO_EXCHANGE_H

#include <stddef.h>

/* On a device, bytes of the window that all values go through, whatever the number of ranks.
   Starting a collective takes as long as sending megabytes. */
#define ZERO_REDUCE_WINDOW ((size_t)64 << 20)

/* On the host, bytes of one peer's piece of a gradient in one of two sets of buffers. */
static inline size_t zero_exchange_piece(size_t peers)
{
	const size_t set = (size_t)1 << 20, least = (size_t)16 << 10;
	size_t bytes = set / peers / least * least;

	return bytes ? bytes : least;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the exchange buffers of a reduce-scatter: the backends allocate them, and the plan of
   a job counts them. */
#ifndef ZERO_EXCHANGE_H
#define ZERO_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Bytes of one peer's piece of a gradient in one of the two sets of exchange buffers. A device has
 * larger pieces, because starting an exchange there takes as long as sending megabytes.
 */
static inline size_t zero_exchange_piece(size_t peers, bool device)
{
	const size_t set = (size_t)(device ? 16 : 1) << 20;
	const size_t least = (size_t)(device ? 32 : 16) << 10;
	size_t bytes = set / peers / least * least;

	return bytes ? bytes : least;
}

#endif

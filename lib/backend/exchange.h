/* SPDX-License-Identifier: Apache-2.0 */
/* The size of the exchange buffers of a reduce-scatter: the backends allocate them, and the plan of
   a job counts them. */
#ifndef ZERO_EXCHANGE_H
#define ZERO_EXCHANGE_H

#include <stddef.h>

/*
 * A device has two sets of so many bytes, however many ranks there are. Starting an exchange there
 * takes as long as sending megabytes.
 */
#define ZERO_EXCHANGE_SET ((size_t)16 << 20)

/* On the host, bytes of one peer's piece of a gradient in one of two sets of buffers. */
static inline size_t zero_exchange_piece(size_t peers)
{
	const size_t set = (size_t)1 << 20, least = (size_t)16 << 10;
	size_t bytes = set / peers / least * least;

	return bytes ? bytes : least;
}

#endif

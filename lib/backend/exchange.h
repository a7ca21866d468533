/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ZERO_EXCHANGE_H
#define ZERO_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of one peer's piece of a gradient in one of the two sets of exchange buffers. A device takes
   as long to begin an exchange as to carry megabytes. */
static inline size_t zero_exchange_piece(size_t peers, bool device)
{
	const size_t set = (size_t)(device ? 16 : 1) << 20;
	const size_t least = (size_t)(device ? 32 : 16) << 10;
	size_t bytes = set / peers / least * least;

	return bytes ? bytes : least;
}

#endif

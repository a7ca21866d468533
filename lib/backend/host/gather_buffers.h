/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses at which gather buffers appear. Safe from any thread. */
#ifndef ZERO_GATHER_BUFFERS_H
#define ZERO_GATHER_BUFFERS_H

#include "core/module.h"

struct zero_gather_buffers;

struct zero_gather_buffers *zero_gather_buffers_new(void);
/* Also unmaps all ranges. NULL is a no-op. */
void zero_gather_buffers_delete(struct zero_gather_buffers *buffers);
/* See reserve and unreserve in backend.h. */
zero_status zero_gather_buffers_reserve(struct zero_gather_buffers *buffers, size_t bytes,
					void **address);
void zero_gather_buffers_unreserve(struct zero_gather_buffers *buffers, void *address);

/* Moves a block of anonymous memory to a reserved address. False: this system cannot. */
bool zero_gather_buffers_move_in(struct zero_gather_buffers *buffers, void *address, void *block);
/* Makes fresh memory appear at a reserved address. */
zero_status zero_gather_buffers_fill(struct zero_gather_buffers *buffers, void *address);
/* Makes a block of an arena, which stays where it is, appear at a reserved address too. */
zero_status zero_gather_buffers_map(struct zero_gather_buffers *buffers, void *address,
				    void *block);
/* Ends all three: from now on an access ends the process. *block becomes the one of
   zero_gather_buffers_move_in, which is back in its place, or NULL. False if no such range was
   reserved. */
bool zero_gather_buffers_unmap(struct zero_gather_buffers *buffers, void *address, void **block);

#endif

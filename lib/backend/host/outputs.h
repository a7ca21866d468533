/* SPDX-License-Identifier: Apache-2.0 */
/* Ranges of addresses at which outputs of gathers appear. Safe from any thread. */
#ifndef ZERO_OUTPUTS_H
#define ZERO_OUTPUTS_H

#include "core/module.h"

struct zero_outputs;

struct zero_outputs *zero_outputs_new(void);
/* Also unmaps all ranges. NULL is a no-op. */
void zero_outputs_delete(struct zero_outputs *outputs);
/* See reserve and unreserve in backend.h. */
zero_status zero_outputs_reserve(struct zero_outputs *outputs, size_t bytes, void **address);
void zero_outputs_unreserve(struct zero_outputs *outputs, void *address);

/* The block that was mapped last at a reserved address; NULL: none. */
const void *zero_outputs_base(struct zero_outputs *outputs, const void *address);
/* Lets the process access a block at a reserved address: byte `at` and on of `file`. `base` is the
   block's own address, by which it is known again; NULL with a file of -1 for fresh memory. */
zero_status zero_outputs_map(struct zero_outputs *outputs, void *address, const void *base,
			     int file, size_t at);
/* From now on an access ends the process. False if the address is not a reserved one. */
bool zero_outputs_revoke(struct zero_outputs *outputs, void *address);
/* A block is about to be unmapped. */
void zero_outputs_forget(struct zero_outputs *outputs, const void *base);

#endif

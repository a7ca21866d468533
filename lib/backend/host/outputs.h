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

/* Moves a block of anonymous memory to a reserved address. False: this system cannot. */
bool zero_outputs_take(struct zero_outputs *outputs, void *address, void *block);
/* Makes fresh memory appear at a reserved address. */
zero_status zero_outputs_fill(struct zero_outputs *outputs, void *address);
/* Makes a block of an arena, which stays where it is, appear at a reserved address too. */
zero_status zero_outputs_show(struct zero_outputs *outputs, void *address, void *block);
/* Ends all three: from now on an access ends the process. *block becomes the one of
   zero_outputs_take, which is back in its place, or NULL. False if no such range was reserved. */
bool zero_outputs_hide(struct zero_outputs *outputs, void *address, void **block);

#endif

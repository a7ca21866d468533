/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: zero_save, zero_restore and zero_export. */
#ifndef ZERO_CHECKPOINT_H
#define ZERO_CHECKPOINT_H

#include "job/hooks.h"

/* A save in the background: what changes is copied first, and a step completes the save once all
   ranks have written. */
extern const struct zero_hooks zero_checkpoint_hooks;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD of a task. */
#ifndef ZERO_TASK_PRELOAD_H
#define ZERO_TASK_PRELOAD_H

#include "step.h"

/*
 * Prepends the library, unless the options say no, or the container of the task has none; sets the
 * option preload_path to what was prepended. On error, returns false with a sentence in *why.
 */
bool task_preload_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		      char *why, size_t size);

#endif

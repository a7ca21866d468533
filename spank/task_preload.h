/* SPDX-License-Identifier: Apache-2.0 */
/* LD_PRELOAD and PYTHONPATH of a task. */
#ifndef ZERO_TASK_PRELOAD_H
#define ZERO_TASK_PRELOAD_H

#include "step.h"

/*
 * Prepends the library, unless the options say no, or the container of the task has none; sets the
 * option preload_path to what was prepended. On error, returns false with a sentence in *why.
 */
bool task_preload_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		      char *why, size_t size);

/*
 * After that: prepends the folder of the package slurm_zero that is beside the preloaded library, or,
 * if nothing is preloaded, beside the installed one, and sets the option python_path to it. Does
 * nothing if the options say no, or if there is no such folder. Errors as above.
 */
bool task_python_set(spank_t spank, const struct step_node *node, struct zero_settings *resolved,
		     char *why, size_t size);

#endif

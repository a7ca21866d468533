/* SPDX-License-Identifier: Apache-2.0 */
/* The options of a task, sized for the GPUs or the memory that it may use. */
#ifndef ZERO_TASK_BUDGET_H
#define ZERO_TASK_BUDGET_H

#include "step.h"
#include "user_request.h"

/* Finds the task's GPUs, computes the budget and resolves all options with it. *vram, which must be
   cleared, has the GPU of the budget. On error, returns false with a sentence in *why; *resolved needs
   no clearing then. */
bool task_budget_resolve(spank_t spank, const struct step_node *node,
			 const struct user_request *request, struct zero_settings *resolved,
			 struct zero_vram *vram, struct zero_budget *budget, char *why,
			 size_t size);
/* Sets one of the options that only a launcher sets, such as `tasks`. */
bool task_budget_set_fact(struct zero_settings *resolved, enum zero_option_id id, const char *text,
			  char *why, size_t size);

#endif

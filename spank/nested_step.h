/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cleans the environment of a step that a task of a zero step started: its srun passes on variables
 * that belong to that task only.
 */
#ifndef ZERO_NESTED_STEP_H
#define ZERO_NESTED_STEP_H

#include <slurm/spank.h>

/* Removes the PMIx variables of the task around the step. With them, an MPI program would wait for
   the ranks of that task. A PMIx server of the step sets its own variables after this. */
void nested_step_remove_pmix(spank_t spank);
/* Removes the variables that the plugin set for the task around this one. */
void nested_step_remove_variables(spank_t spank);

#endif

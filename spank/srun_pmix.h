/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this Slurm has its PMIx plugin, as far as srun can see without asking the controller. */
#ifndef ZERO_SRUN_PMIX_H
#define ZERO_SRUN_PMIX_H

#include <limits.h>
#include <stdbool.h>

/* Returns whether mpi_pmix.so is missing from the folder of Slurm's other plugins, and sets
   `folder` to that folder. Returns false if the folder cannot be found. */
bool srun_lacks_pmix(char folder[PATH_MAX]);

#endif

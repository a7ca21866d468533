/* SPDX-License-Identifier: Apache-2.0 */
/* Whether this Slurm has the PMIx plugin, as far as srun can see without asking the controller. */
#ifndef ZERO_PMIX_H
#define ZERO_PMIX_H

#include <limits.h>
#include <stdbool.h>

/* True if it is not where Slurm's other plugins are; `folder` is that place then. */
bool pmix_is_missing(char folder[PATH_MAX]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* How many ranks the launcher says that it started, whatever MPI or PMIx see of them. */
#ifndef ZERO_LAUNCHER_WORLD_SIZE_H
#define ZERO_LAUNCHER_WORLD_SIZE_H

#include <stdlib.h>

/* 0 if the environment of no known launcher is there. */
static inline int zero_launcher_world_size(void)
{
	/* In this order: an mpirun within a Slurm step inherits the step's variables. */
	static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE",
					    "SLURM_STEP_NUM_TASKS"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *value = getenv(names[i]);
		int world = value ? atoi(value) : 0;

		if (world > 0)
			return world;
	}
	return 0;
}

#endif

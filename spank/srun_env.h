/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets the variables that srun reads: SLURM_MPI_TYPE=pmix, so that tasks find each other by PMIx,
 * and SLURM_KILL_BAD_EXIT=1, so that a step ends with its first task that fails. A variable that
 * the user set is unchanged, and the user's --mpi overrides it.
 *
 * sbatch and salloc pass both variables to the sruns of the job. srun reads them before a plugin
 * sees its flags. srun_env_init therefore sets them if the first arguments and the environment
 * suggest that zero is on, and removes what the job set if they suggest that it is off. If this
 * guess turns out to be wrong, srun is executed once more:
 *
 *	guess      once flags are read    then
 *	on         on                     nothing
 *	on         off                    executed again, in its original environment
 *	off        on                     executed again, with the variables
 *	off        off                    nothing
 */
#ifndef ZERO_SRUN_ENV_H
#define ZERO_SRUN_ENV_H

#include "user_request.h"

enum zero_state {
	ZERO_NOT_ON,
	ZERO_ON_BY_USER,
	ZERO_ON_BY_SITE,  /* the site has it on for all jobs, and the user set nothing */
	ZERO_OFF_BY_USER, /* even if the job around this step has it on */
};

/* In srun, before flags are read. */
void srun_env_init(void);
/* In srun, once flags are read. It may execute srun again instead of returning. */
void srun_env_set(enum zero_state state);
/* In sbatch and salloc, once flags are read. */
void job_env_set(enum zero_state state);
/* Returns whether the user turned zero on or off for the job around this command. */
enum user_choice srun_env_job_choice(void);

#endif

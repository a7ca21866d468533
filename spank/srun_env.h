/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the tasks of a step come to find each other: srun offers them PMIx if SLURM_MPI_TYPE says so,
 * and ends the step with its first task that fails if SLURM_KILL_BAD_EXIT does. What the user set
 * is left alone, as is their --mpi.
 *
 * sbatch and salloc hand both variables down to the sruns of the job. srun reads them before a
 * plugin sees its flags. It therefore sets them at its beginning if it looks as if zero were on,
 * and if that was wrong, or was not seen, it is executed once more:
 *
 *	at the beginning    once flags are read    then
 *	looks on            on                     nothing more to do
 *	looks on            off or not said        again, as it was started
 *	does not            on                     again, with the variables
 *	does not            off or not said        nothing; in a job that is on again, without
 */
#ifndef ZERO_BOOTSTRAPUP_H
#define ZERO_BOOTSTRAPUP_H

#include <stdbool.h>

enum wireup_zero {
	WIREUP_NONE, /* nobody has it on */
	WIREUP_ON,   /* the user has */
	WIREUP_SITE, /* the site has, and the user says nothing */
	WIREUP_OFF,  /* the user says no, whatever the job around says */
};

/* Before options are read. */
void wireup_begin(void);
/* Once they are. In srun it may not return. */
void wireup(enum wireup_zero zero);
/* Whether the user has it on for the job that this command is in. */
bool wireup_job_is_on(void);

#endif

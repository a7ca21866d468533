/* SPDX-License-Identifier: Apache-2.0 */
/* Starts what a plan says. */
#ifndef ZERORUN_LAUNCH_H
#define ZERORUN_LAUNCH_H

#include "launcher/recover/recover.h"

/* Becomes mpirun or srun. Returns only if that fails: the exit status, after an error. */
int launch(struct plan *plan);
/* Gives the ranks a key of this zerorun in ZERO_RUN, the same in each attempt, unless it has one,
   of another that it goes on for. Returns false after an error. */
bool launch_set_key(struct plan *plan);
/* Runs mpirun or srun, again up to `limit` times if the job fails. With a recovery, which may be
   NULL, it goes on without nodes that are lost. The exit status of the last. */
int launch_restarting(struct plan *plan, unsigned limit, struct recovery *recovery);

/* Starts a process that kills this one if, once it is Open MPI 4's mpirun, it hangs after all ranks
   ended. */
void guard_start(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flags in a crontab of Slurm. scrontab has a plugin read the flags of #SCRON lines, but calls no
 * slurm_spank_init_post_opt and passes on nothing that a plugin sets (src/scrontab/scrontab.c). The
 * lines themselves reach the node, in the head of the batch script.
 */
#ifndef ZERO_SCRON_H
#define ZERO_SCRON_H

#include <slurm/spank.h>

/* In the process that becomes a batch script, as the user: makes the flags of its #SCRON lines flags
   of the job, which its sruns then check and apply. */
void scron_pass_on_flags(spank_t spank);

#endif

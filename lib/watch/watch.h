/* SPDX-License-Identifier: Apache-2.0 */
/* Lost ranks: who notices that a rank has died, stopped or never came, and ends the job. */
#ifndef ZERO_WATCH_H
#define ZERO_WATCH_H

#include "job/hooks.h"

extern const struct zero_hooks zero_watch_hooks;

/* Before ranks wait for each other: a thread ends the process if zero_open takes too long. Local. */
void zero_opening_begin(zero_job *job);
/* Starts its time again; NULL is a no-op. */
void zero_opening_again(struct zero_opening *opening);
/* Ends the thread; NULL is a no-op. */
void zero_opening_end(struct zero_opening *opening);
/* COLLECTIVE, once the options are agreed on. From now on lost ranks are found. */
zero_status zero_job_watch(zero_job *job);
/* See ring.h. */
void zero_ring_look_at_signals(void);

#endif

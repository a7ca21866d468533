/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a job (--zero-report) and its slow ranks (--zero-slow), for zero_open; all else
   happens by hooks. */
#ifndef ZERO_JOB_REPORT_H
#define ZERO_JOB_REPORT_H

#include "backend/backend.h"
#include "job/hooks.h"

extern const struct zero_hooks zero_report_hooks, zero_slow_hooks;

/* Once the options are read, before a backend is opened. Local, and so are those below. */
zero_status zero_report_begin(zero_job *job);
/* Where the backend reports its submissions; NULL: nowhere. */
const struct zero_meter *zero_report_meter(const zero_job *job);
/* Records this rank's own sizes, before all ranks agree on theirs. */
void zero_report_sizes(zero_job *job);
/* Finds out whether the report can be written; all ranks then agree on that. */
zero_status zero_report_open(zero_job *job);
/* Likewise, for the slow ranks, if they are to be named. */
zero_status zero_slow_open(zero_job *job);
/* All ranks have agreed. */
void zero_report_opened(zero_job *job);

#endif

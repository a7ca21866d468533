/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How rooms that the job must not know take part in its life. Each has one table of functions, and
 * lib/open.c lists the tables. A member that is NULL is not called.
 */
#ifndef ZERO_HOOKS_H
#define ZERO_HOOKS_H

#include "zero.h"

struct zero_hooks {
	/* Before a submission. An error means that a rank is lost: nothing is submitted, since the
	   others may never come. */
	zero_status (*check_peers)(zero_job *job);
	/* Before a submission: an error of this rank that it has to report to all others. */
	zero_status (*before_submit)(zero_job *job);
	/* Before stored values or states of `group` change; NULL stands for every group. A step
	   changes trainable segments only. Local. */
	void (*before_change)(zero_job *job, zero_group *group, bool step);
	/* In each step: whether this rank has work under way that completes once no rank is
	   busy. */
	bool (*busy)(const zero_job *job);
	/* COLLECTIVE, in a step, when the room is busy on no rank. */
	void (*all_idle)(zero_job *job);
	/* COLLECTIVE. After a step that succeeded. */
	void (*after_step)(zero_job *job);
	/* This rank has written its part of a checkpoint, or with `protection` its node and its
	   partner have it; or that failed. From any thread. */
	void (*after_save)(zero_job *job, bool protection, double seconds, uint64_t bytes, bool ok);
	/* At the end of zero_layout; COLLECTIVE. */
	zero_status (*after_layout)(zero_job *job);
	/* In zero_close, while the backend is open, the last table first. `together`: all ranks are
	   closing the job, so that collective work is possible. */
	void (*before_close)(zero_job *job, bool together);
	/* In zero_close, while the backend is open, after all before_close: frees the room's state.
	   False: the backend is still in use, and the job is left as it is. */
	bool (*close)(zero_job *job);
	/* In zero_close, once the backend is closed. */
	void (*closed)(zero_job *job);
};

/* These call the hooks of all rooms. Those that return a status stop at the first error. */
zero_status zero_hooks_check_peers(zero_job *job);
zero_status zero_hooks_before_submit(zero_job *job);
void zero_hooks_before_change(zero_job *job, zero_group *group, bool step);
/* One bit for each room that is busy. */
unsigned zero_hooks_busy(const zero_job *job);
/* `busy` has the bits of all ranks. */
void zero_hooks_all_idle(zero_job *job, unsigned busy);
void zero_hooks_after_step(zero_job *job);
void zero_hooks_after_save(zero_job *job, bool protection, double seconds, uint64_t bytes, bool ok);
zero_status zero_hooks_after_layout(zero_job *job);
void zero_hooks_before_close(zero_job *job, bool together);
bool zero_hooks_close(zero_job *job);
void zero_hooks_closed(zero_job *job);

#endif

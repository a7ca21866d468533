/* SPDX-License-Identifier: Apache-2.0 */
/* A training step, in order: gather, reduce, norm, step. */
#ifndef ZERO_TRAIN_H
#define ZERO_TRAIN_H

#include "model/model.h"

/* Reduces under way at one time: more would let gradient buffers pile up behind a slow network. */
#define ZERO_REDUCES 2

struct zero_trainer {
	struct zero_work *reduces[ZERO_REDUCES]; /* ring of the last ones */
	unsigned reduce_next;
	uint64_t steps;
	zero_adamw adamw; /* of the last step, for checkpoints */
	bool has_adamw;
	/* Under ZERO_CHECK=1: found changed, and not yet reported to the other ranks. */
	_Atomic(const zero_param *) changed;
};

extern const struct zero_hooks zero_train_hooks;

/* ---- gather.c -------------------------------------------------------------------------------- */

/* zero_gathered_dtype. Called with the job's lock held, or if the group is known to be gathered. */
zero_dtype zero_gathered_dtype_locked(const zero_param *param);
/* Frees what is gathered, for zero_close. */
void zero_gather_free(zero_group *group);
/* Where a parameter is when it is gathered as `as`, and its type then; NULL if no address is reserved.
   For a signal handler. */
const char *zero_output_at(const zero_param *param, zero_dtype as, zero_dtype *dtype);

/* ---- stray_access.c -------------------------------------------------------------------------- */

/* Installs the handler of SIGSEGV, after the layout. */
zero_status zero_stray_access_open(zero_job *job);
/* Removes it. A no-op if it was not installed. */
void zero_stray_access_close(void);

/* ---- reduce.c -------------------------------------------------------------------------------- */

/* zero_reduce. Called with the job's lock held. */
zero_status zero_reduce_locked(zero_group *group);

/* ---- norm.c ---------------------------------------------------------------------------------- */

/* What a step knows of all ranks. */
struct zero_step_sums {
	double norm2;   /* squared norm of the gradient sums of all groups */
	double samples; /* of all ranks */
	bool all_idle;  /* no rank is busy, see struct zero_hooks */
	bool stop;      /* a signal of zero_stop_on came to some rank */
};

/* COLLECTIVE. Also agrees on everything that ranks must pass to zero_step alike. */
zero_status zero_step_exchange(zero_job *job, zero_status status, const zero_adamw *adamw,
			       struct zero_step_sums *sums);

/* ---- scale.c --------------------------------------------------------------------------------- */

/* NULL is a valid scale: none. */
zero_status zero_loss_scale_check(const zero_loss_scale *scale);
/* Describes the scale in words that are the same on all ranks; "" for NULL. */
void zero_loss_scale_label(const zero_loss_scale *scale, char *text, size_t size);
/* After a step, or one that was skipped because a gradient was not finite. */
void zero_loss_scale_update(zero_loss_scale *scale, bool finite);

/* ---- adamw.c --------------------------------------------------------------------------------- */

/* The arguments that all parameters have in common in step number `steps`. */
struct zero_adamw_args zero_adamw_args_at(const zero_adamw *adamw, uint64_t steps, float scale);
/* Steps what this rank owns of a group. */
void zero_adamw_group(zero_group *group, const zero_adamw *adamw,
		      const struct zero_adamw_args *args);

/* ---- check.c: ZERO_CHECK=1 ------------------------------------------------------------------- */

/* After a gather: stores the checksums of the gathered values. */
void zero_check_record(zero_group *group);
/* After a declared change of one parameter. */
void zero_check_record_param(zero_param *param);
/* Returns an error if a gathered value has changed. Called before the last release, with the job's
   lock held. */
zero_status zero_check_compare(zero_group *group);
/* That error, once, for this rank's next submission. */
zero_status zero_check_pending(zero_job *job);

#endif

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
	pthread_cond_t released; /* a group was */
	uint64_t steps; /* that were taken, as far as the host knows: zero_step_state_read tells */
	uint64_t begun; /* steps, also those that were skipped: the same on all ranks at any time */
	uint64_t own_steps; /* that the program took by itself */
	zero_adamw adamw;   /* of the last step, for checkpoints */
	bool has_adamw;
	bool stopping; /* what the last step said of signals */
	/* Since the last step zero_backward_end has told what ranks tell in a step, and this of
	   signals. */
	bool told, told_stop;
	/* In memory of the backend: the state of the last step, and squared norms of the gradient
	   sums: this rank's, then [world] those of all ranks. */
	struct zero_step_state *state;
	double *norms;
	struct zero_step_state *seen; /* the state, where the host reads it; may be `state` */
	/* Under ZERO_CHECK=1: found changed, and not yet reported to the other ranks. */
	_Atomic(const zero_param *) changed;
};

extern const struct zero_hooks zero_train_hooks;

/* ---- gather.c -------------------------------------------------------------------------------- */

/* Waits for what is under way of the group and its slices. */
void zero_gather_wait(zero_group *group);
/* Frees what is gathered of them, which is not under way. */
void zero_gather_free(zero_group *group);

/* ---- gather_buffer.c ------------------------------------------------------------------------- */

/* The type that a segment has if its group is gathered as `as`. */
zero_dtype zero_gather_buffer_dtype(const struct zero_segment *segment, zero_dtype as);
/* The dtype of the setting gather_dtype for ZERO_DTYPE_DEFAULT. */
zero_dtype zero_gather_resolve_dtype(const zero_job *job, zero_dtype as);
/* Whether the group can be gathered on this rank as that type. */
zero_status zero_gather_check(const zero_group *group, zero_dtype as);
/* Whether a segment is read where it is stored, so that it has no gather buffer. */
bool zero_gather_buffer_is_in_place(const struct zero_flat *flat,
				    const struct zero_segment *segment, zero_dtype as);
/* The bytes of the gather buffers of segments [0, end), which lie one behind the other. */
size_t zero_gather_buffer_bytes_before(const struct zero_flat *flat, size_t end, zero_dtype as);
/* The gather buffer of a type. All types that leave a flat buffer as it is stored share one. */
struct zero_gather_buffer *zero_gather_buffer_of(struct zero_flat *flat, zero_dtype as);
/* Reserves the address of a gather buffer once. Called with the job's lock held. */
zero_status zero_gather_buffer_reserve(struct zero_flat *flat, zero_dtype as);
/* Waits until no other threads alone use the memory that the group had last. Called with the job's
   lock held, which is released meanwhile. */
void zero_gather_buffer_wait_for_memory(zero_group *group, zero_dtype as);
/* zero_gathered_dtype. Called with the job's lock held, or if the group is known to be gathered. */
zero_dtype zero_gathered_dtype_locked(const zero_param *param);
/* Where a parameter is when it is gathered as `as`, and its type then; NULL if no address is
   reserved. For a signal handler. */
const char *zero_param_gather_buffer(const zero_param *param, zero_dtype as, zero_dtype *dtype);

/* ---- unmapped_access.c ----------------------------------------------------------------------- */

/* Installs the handler of SIGSEGV, after the layout. */
zero_status zero_unmapped_access_open(zero_job *job);
/* Removes it. A no-op if it was not installed. */
void zero_unmapped_access_close(void);

/* ---- reduce.c -------------------------------------------------------------------------------- */

/* zero_reduce. Called with the job's lock held. */
zero_status zero_reduce_locked(zero_group *group);
/* COLLECTIVE. In a grid: sums what was summed over the teams over all ranks, also after an error,
   of which the ranks that store the same then learn. Else does nothing. */
zero_status zero_sum_replicas(zero_job *job, zero_group **groups, size_t count, zero_status status);
/* Waits for the group's last reduce, and returns its error, until a step uses it up. Called with
   the job's lock held. */
zero_status zero_reduce_wait(const zero_group *group);
/* The same, and lets go of it. */
zero_status zero_reduce_end(zero_group *group);
/* Stage 0: all ranks get the sums from their owners, as a reduce does at its end. `ops` has room
   for the operations of a step of the group. */
zero_status zero_gather_sums(zero_group *group, struct zero_op *ops);

/* ---- step.c ---------------------------------------------------------------------------------- */

/* Whether the groups, in the order of the model, can be stepped: each once, none gathered. */
zero_status zero_step_check_groups(zero_group **groups, size_t count);
/* Waits for sums that are under way, and for values of the step before. Returns the first error. */
zero_status zero_step_wait_groups(zero_job *job, zero_group **groups, size_t count);
/* Frees the groups' sums, and with `all` their gradients that were not reduced. */
void zero_step_free_gradients(zero_group **groups, size_t count, bool all);
/* Operations of zero_send_stepped for the group that has most. */
size_t zero_most_step_ops(const zero_job *job);
/* The owners' values of a segment, to all ranks that store them. */
struct zero_op zero_gather_stored_op(const struct zero_flat *flat,
				     const struct zero_segment *segment);
/* Whether a step of the library sends what the owners stepped: at stages 1 and 2, and in a grid. */
bool zero_sends_stepped(const zero_group *group);
/* Begins to send the new values of the owners to all ranks that store them while the caller goes
   on. Ranks that all share memory see them in place and only need to know when they are
   complete. */
zero_status zero_send_stepped(zero_group *group, struct zero_op *ops);

/* ---- norm.c ---------------------------------------------------------------------------------- */

/* A hash of the groups' names, for a label by which ranks compare them. */
uint64_t zero_groups_hash(zero_group **groups, size_t count);

/* What a step knows of all ranks on the host. */
struct zero_step_agreed {
	double samples;    /* of all ranks */
	unsigned busy;     /* rooms that are busy on some rank, see zero_hooks_busy */
	bool stop;         /* a signal of zero_stop_on came to some rank */
	bool sums_exposed; /* by zero_gradient_shard at stage 0, on some rank */
};

/* COLLECTIVE. Sums the squares of the groups' gradient sums, of all ranks into trainer->norms. Also
   agrees on everything that ranks must pass to zero_step alike. The device may still be at work
   then. */
zero_status zero_step_agree(zero_job *job, zero_status status, const zero_adamw *adamw,
			    zero_group **groups, size_t count, struct zero_step_agreed *agreed);
/* COLLECTIVE. What the end of the program's own step needs of that. */
zero_status zero_step_agree_end(zero_job *job, zero_status status, struct zero_step_agreed *agreed);

/* ---- step_state.c ---------------------------------------------------------------------------- */

/* Allocates the state, for as long as the job is open. Local. */
zero_status zero_step_state_alloc(zero_job *job);
void zero_step_state_free(zero_job *job);
/* Reads the state into trainer->seen, and trainer->steps: the host waits for the device. */
zero_status zero_step_state_read(zero_job *job);
/* Sets the number of steps, after a restore. */
void zero_steps_set(zero_job *job, uint64_t steps);
/* Reads the number of steps of each group into group->steps: the host waits for the device. */
zero_status zero_group_steps_read(zero_job *job);
/* Sets those of a group. */
void zero_group_steps_set(zero_group *group, uint64_t steps);
/* Whether a step with this loss scale has it on the device. */
bool zero_loss_scale_is_kept(const zero_job *job, const zero_loss_scale *scale);

/* ---- loss_scale.c ---------------------------------------------------------------------------- */

/* NULL is a valid scale: none. The scale is in host memory. */
zero_status zero_loss_scale_check(const zero_loss_scale *scale);
/* Describes the scale in words that are the same on all ranks; "" for NULL. */
void zero_loss_scale_label(const zero_loss_scale *scale, char *text, size_t size);

/* ---- adamw.c --------------------------------------------------------------------------------- */

/* Steps what this rank owns of a group. */
void zero_adamw_group(zero_group *group, const zero_adamw *adamw);

/* ---- muon.c ---------------------------------------------------------------------------------- */

struct zero_muon_step;

zero_status zero_muon_check(const zero_muon *muon);
/* Describes it in words that are the same on all ranks; "" for NULL. */
void zero_muon_label(const zero_muon *muon, char *text, size_t size);
/* Deals out the matrices of the groups, which are in the order of the model, and allocates what the
   step needs. Local. On failure, too, *prepared is to be freed. */
zero_status zero_muon_prepare(zero_job *job, zero_group **groups, size_t count,
			      const zero_muon *muon, struct zero_muon_step **prepared);
/* How evenly the matrices of all groups are dealt out, which need not be laid out: their number,
   and the work of the rank with most of them over the mean. Local. */
zero_status zero_muon_balance(zero_job *job, size_t *matrices, double *balance);
/* Steps them, and takes part in all transfers even if this rank has an error. COLLECTIVE over the
   teams of the groups. */
zero_status zero_muon_run(struct zero_muon_step *step);
/* NULL is a no-op. */
void zero_muon_free(struct zero_muon_step *step);

/* ---- check_changes.c: ZERO_CHECK=1 ----------------------------------------------------------- */

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

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libzero share: a job, its groups, and how a group lies in memory. */
#ifndef ZERO_INTERNAL_H
#define ZERO_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "backend/backend.h"
#include "files/files.h"
#include "model/layout.h"
#include "core/options.h"
#include "model/sizing.h"

/* ---- error.c --------------------------------------------------------------------------------- */

/* Keeps the sentence as the thread's last error, arisen on this rank. Returns `status`. */
zero_status zero_fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, arisen on some rank and told to all. */
zero_status zero_fail_on(int rank, zero_status status, const char *text);
/* Whether the thread's last error is one that all ranks know of. */
bool zero_last_error_shared(void);
/* The thread's last error, set aside while what fails is of less weight; no text: there is none. */
struct zero_saved_error {
	int rank;
	bool shared; /* all ranks know of it */
	char text[1024];
};
void zero_error_save(struct zero_saved_error *kept);
void zero_error_restore(const struct zero_saved_error *kept);
/* The rank of this process, once it is known; for errors that arise outside of a job's calls. */
void zero_process_rank_set(int rank);
int zero_process_rank(void);

uint64_t zero_hash(const void *data, size_t bytes, uint64_t seed); /* FNV-1a */

/* ---- module.c -------------------------------------------------------------------------------- */

/* The table of module zero_<name>.so, opened once from the library's own folder. */
zero_status zero_module_open(const char *name, const void **table);

/* ---- a job ----------------------------------------------------------------------------------- */

/* Ranks that a group is sharded over. */
struct zero_team {
	zero_job *job;
	struct zero_team_comm *team_comm; /* NULL: all ranks */
	struct zero_place place;          /* its rank is -1 where this rank is not in it */
	int *ranks;                       /* [place.world], of the job, ascending */
	atomic_uint waits;                /* submissions that its ranks waited for */
	struct zero_team *next;           /* in the order in which they were made */
};

struct zero_param {
	zero_group *group;
	struct zero_flat *flat; /* from the layout on; an alias has its target's */
	zero_param *alias_of;
	zero_adopt_spec *adopted; /* what zero_layout is to lay; NULL: nothing */
	char *name;
	size_t shape[ZERO_MAX_DIMS];
	size_t count;
	size_t segment; /* index of flat->segments */
	size_t first;   /* element of the segment */
	zero_dtype dtype;
	int ndim;
	float weight_decay;
	float lr_scale;
	bool trainable;
	uint64_t sum; /* of what is gathered, if the group is `checked` */
};

/* A segment in memory; its layout is the same on all ranks. */
struct zero_segment {
	zero_dtype dtype;
	bool trainable;
	size_t count;       /* elements of all shards */
	size_t shard;       /* elements of one */
	size_t stored_at;   /* byte of flat->stored where what this rank stores begins */
	size_t first_at;    /* and where element 0 is, if all of the segment is there */
	size_t gathered_at; /* byte of flat->gathered; NOT_GATHERED: read where it is stored */
	size_t gradient_at; /* element of flat->gradient, for a trainable segment */
	size_t state_at;    /* element of flat->m and flat->v */
};

#define NOT_GATHERED SIZE_MAX

/* What is gathered as one: a group, or the part of one that the layout made. */
struct zero_flat {
	zero_group *group;
	struct zero_segment *segments;
	size_t segment_count;
	size_t gradient_count; /* elements of all trainable segments */
	size_t state_count;    /* those that this rank steps */
	size_t stored_bytes;

	/* Whole segments if the group stores such. Else each segment's shards of the ranks that share
	   memory, one behind the other: this rank's own lies among them. */
	char *stored;
	struct zero_shared window;   /* what `stored` is, in that case */
	struct zero_shared gathered; /* outputs; empty if all is read where it is stored */
	void *gradient; /* this rank's own, [gradient_count] of the group's gradient_dtype; NULL if
	                   unused since the last reduce */
	float *reduced; /* sums over ranks, [state_count] */
	float *m, *v;   /* moments, [state_count] */
	float *master;  /* f32 values of 16-bit segments, [state_count]; NULL if there are none */
};

struct zero_group {
	zero_job *job;
	zero_team *team;
	char *name;
	zero_param **params; /* owned */
	struct zero_flat *flats;
	size_t param_count, param_room, flat_count;
	bool trainable;  /* a parameter of it is */
	bool adopts;     /* a parameter of it was given: its buffers are made when they are laid */
	bool replicated; /* each rank stores whole segments of its own */
	bool steps_replicated; /* and steps them, as stage 0 does */
	bool in_place; /* what is gathered as it is stored needs no copy: the node has all of it */
	zero_dtype gradient_dtype;

	/* Guarded by the job's lock. */
	struct zero_work *gather; /* the gather under way or done; NULL: not gathered */
	bool beginning;           /* within one call */
	unsigned uses;
	_Atomic bool ready; /* a gather waited for it; read without the lock */
	zero_dtype as;
	bool checked;             /* its parameters' sums are those of what was gathered */
	size_t live;              /* bytes of its outputs */
	bool reduced;             /* since the last step, on all ranks alike */
	struct zero_work *reduce; /* the last of those under way; NULL: none */
	struct zero_work *post_step_gather; /* of stepped values, at stages 1 and 2; NULL: none */
	/* The same from the step to the next gather, on all ranks alike: what that waits for, if
	   `stepped_at` is still what zero_group_wait_count says. */
	struct zero_work *stepped;
	unsigned stepped_at;
};

/* Reduces under way at one time: more would let gradient buffers pile up behind a slow network. */
#define ZERO_REDUCES 2

/* See stage.c. */
struct zero_staging {
	void *data[2];
	uint64_t copied[2]; /* events of the copies from and to them */
	size_t bytes;       /* of each; 0: not allocated */
	int next;
};

struct zero_job {
	const struct zero_backend_ops *ops;
	struct zero_backend *backend;
	struct zero_place place;
	struct zero_settings settings;
	char *setting_text[ZERO_OPTIONS];
	pthread_mutex_t lock;
	zero_group **groups; /* owned */
	size_t group_count, group_room;
	zero_team all;                      /* every rank */
	zero_team *teams;                   /* owned */
	void *names;                        /* tsearch tree of all parameters */
	void *group_names;                  /* and of all groups */
	pid_t process;                      /* that opened it; a forked child cannot use it */
	struct zero_ring *ring;             /* NULL: nobody is watched */
	struct zero_opening *opening;       /* while zero_open lasts */
	_Atomic(const char *) current_call; /* see zero_set_current_call; NULL: none */
	bool joined;                        /* the backend is open on all ranks */
	bool laid_out;
	bool adopts;           /* a group does */
	bool released_tensors; /* tensors, which another zero_layout would miss */
	int stage;
	size_t chunk, threshold;
	size_t gather_limit;       /* bytes of a team's live outputs, for what is fetched ahead */
	struct zero_sizing sizing; /* from the layout on */
	enum zero_tier tier;       /* from the layout on, at stages 0 to 2 */
	uint64_t steps;
	/* Gradients and values, twice, on the way to offloaded states and back; the backend's to
	   free. */
	void *staging[2][2];
	size_t staged; /* f32 elements of each; 0: not allocated */
	struct zero_staging staging_buffers;
	struct zero_work *reduces[ZERO_REDUCES]; /* ring of the last ones */
	unsigned reduce_next;
	char *slice_path; /* the file that zero_load read last, kept open */
	int slice_fd;
	uint64_t bytes_read;            /* of tensors, from files */
	struct zero_job_report *report; /* NULL: none is wanted */
	struct zero_save *save; /* under way, or not yet asked for how it ended; NULL: none */
	zero_adamw adamw;       /* of the last step, for what checkpoints say */
	bool has_adamw;
	/* Under ZERO_CHECK=1: found changed, and not yet told. */
	_Atomic(const zero_param *) changed;
};

/* ---- submit.c -------------------------------------------------------------------------------- */

/* COLLECTIVE over the team. Submits `ops` with this rank's status (its sentence is the thread's
   last error). `waited`: the caller waits for it next, as it must then. */
zero_status zero_submit(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			bool waited, struct zero_work **work, const char *label, ...)
	__attribute__((format(printf, 7, 8)));
/* The same and waits; `count` 0 is how ranks agree on `status` alone. */
zero_status zero_submit_wait(zero_team *team, zero_status status, struct zero_op *ops, size_t count,
			     const char *label, ...) __attribute__((format(printf, 5, 6)));
/* Says, for zero_close, to all ranks and to those of all teams that this one has no more to do with
   them; returns when each of them came to something. */
zero_status zero_leave(zero_job *job);
/* Waits, and puts the reference that *work is; a NULL *work is done. With the job's lock, unless
   *work is the caller's own. */
zero_status zero_work_wait(zero_job *job, struct zero_work **work);
/* Waits for what other ranks stepped to be here (stages 1 and 2). */
zero_status zero_wait_post_step_gather(zero_group *group);
/* Submissions that all ranks of the group waited for so far: those before them are done too. */
unsigned zero_group_wait_count(zero_group *group);

/* ---- checkpoint/save.c, save_thread.c: a save in the background ------------------------------ */

/* Before stored values or states of the group change, NULL: of any: what a save has not written yet
   is copied. Local. */
void zero_save_snapshot(zero_job *job, zero_group *group);
/* Before a step changes the group: only what is trainable. */
void zero_save_snapshot_stepped(zero_group *group);
/* Whether this rank has nothing left to write: what it tells in each step. */
bool zero_save_written(const zero_job *job);
/* COLLECTIVE. In a step, once all ranks have said so: completes the save. */
void zero_save_complete(zero_job *job);
/* For zero_close: waits, and completes it if `together`, all ranks being there. */
void zero_save_end(zero_job *job, bool together);

/* ---- stop.c ---------------------------------------------------------------------------------- */

/* Whether a signal of zero_stop_on came to this rank. */
bool zero_stop_requested(void);
/* For zero_close. */
void zero_stop_close(zero_job *job);

/* ---- report/report.c ------------------------------------------------------------------------- */

/* Not collective: once the options are read, and before a backend is opened. */
zero_status zero_report_begin(zero_job *job);
/* What the backend tells of submissions; NULL: nobody asks. */
const struct zero_meter *zero_report_meter(const zero_job *job);
/* What this rank would take if it were alone, before all agree. */
void zero_report_sizes(zero_job *job);
/* Not collective: finds out whether the report can be written; then all ranks agree. */
zero_status zero_report_open(zero_job *job);
void zero_report_opened(zero_job *job);
/* After a step. */
void zero_report_step(zero_job *job);
/* This rank has saved its part of a checkpoint, or could not. From any thread. */
void zero_report_saved(zero_job *job, double seconds, uint64_t bytes, bool well);
/* For zero_close; COLLECTIVE if `together`, all ranks being there. What cannot be written is the
   thread's last error, and no more. */
void zero_report_end(zero_job *job, bool together);
/* Once the backend is closed. */
void zero_report_free(zero_job *job);

/* ---- watch/watch.c, watch/open_timeout.c ---------------------------------------------------------- */

/* Not collective, before ranks wait for each other: a thread ends the process if they do for too
   long. */
void zero_opening_begin(zero_job *job);
void zero_opening_again(struct zero_opening *opening); /* from 0; NULL is legal */
void zero_opening_end(struct zero_opening *opening);   /* NULL is legal */
/* COLLECTIVE, once the options are agreed on: from now on lost ranks are found. */
zero_status zero_job_watch(zero_job *job);
/* False: a rank was lost and the job is being ended, by threads that still look at it. */
bool zero_job_unwatch(zero_job *job);
/* Under on_fault=return, where nothing else tells of a lost rank: an error if there is one. */
zero_status zero_job_check_watch(zero_job *job);

/* What this rank is in, for others to see; a static string. Returns what it was. */
static inline const char *zero_set_current_call(zero_job *job, const char *call)
{
	return atomic_exchange(&job->current_call, call);
}

/* ---- check.c --------------------------------------------------------------------------------- */

static inline bool zero_check_enabled(const zero_job *job)
{
	return job->settings.value[ZERO_OPT_CHECK].number;
}
/* After a gather: keeps the sums of what is gathered. */
void zero_check_record(zero_group *group);
/* After a declared change of one parameter. */
void zero_check_record_param(zero_param *param);
/* Before the last release, with the job's lock: an error if what is gathered was changed. */
zero_status zero_check_compare(zero_group *group);
/* Such an error, once: all ranks get it with the next submission. */
zero_status zero_check_pending(zero_job *job);

/* ---- settings.c ------------------------------------------------------------------------------ */

/* From the environment, ZERO_RESOLVED and the caller; not collective. */
zero_status zero_job_read_settings(zero_job *job, const zero_options *options);
/* COLLECTIVE. `status` is that of reading them. */
zero_status zero_job_agree_settings(zero_job *job, zero_status status);
void zero_job_apply_settings(zero_job *job);
/* The tier in which tensors become flat, from what all ranks agreed on; once all is laid out. */
void zero_job_choose_tier(zero_job *job);

/* ---- team.c ---------------------------------------------------------------------------------- */

void zero_teams_free(zero_job *job);
/* Whether this rank is in the group's team. */
static inline bool zero_is_member(const zero_group *group)
{
	return group->team->place.rank >= 0;
}
/* The rank within the team; -1 if it is not of it. */
static inline int zero_team_rank_of(const zero_team *team, int rank)
{
	if (!team->ranks)
		return rank >= 0 && rank < team->place.world ? rank : -1;
	for (int i = 0; i < team->place.world; i++)
		if (team->ranks[i] == rank)
			return i;
	return -1;
}
/* For what only members may do: an error that is this rank's alone. */
zero_status zero_require_member(const zero_group *group, const char *what);

/* ---- storage.c ------------------------------------------------------------------------------- */

/* The elements of a segment that this rank stores, and those that it steps: [*first, *first +
   *count). */
void zero_stored_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		      size_t *count);
void zero_stepped_part(const zero_group *group, const struct zero_segment *segment, size_t *first,
		       size_t *count);
/* The part of a parameter that lies in a part of its segment: elements of the parameter. */
void zero_param_part(const zero_param *param, size_t segment_first, size_t segment_count,
		     size_t *first, size_t *count);
/* Where element `element` of the segment is stored; it must be in the stored part. */
char *zero_stored_at(const struct zero_flat *flat, const struct zero_segment *segment,
		     size_t element);

/* Frees the buffers of a group; it is no longer laid out. */
void zero_storage_drop(zero_group *group);

/* ---- group.c --------------------------------------------------------------------------------- */

/* Frees a group and all that belongs to it. */
void zero_group_free(zero_group *group);

/* ---- source.c: none of these is collective --------------------------------------------------- */

zero_status zero_source_check(const zero_param *param, const zero_source *source);
/* The values of elements [first, first + count) of `param` at `out`. */
zero_status zero_source_read(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count);
/* What is loaded, in words that must be the same on all ranks. */
void zero_source_label(const zero_param *param, const zero_source *source, char *text, size_t size);

/* ---- stage.c: with a device ------------------------------------------------------------------ */

/* A piece is a multiple of it, but for the last one: whole elements, and whole blocks of
   checksums. */
#define ZERO_STAGING_MIN ((size_t)64 << 10)

/* Writes bytes [at, at + bytes) of what is to be copied. */
typedef zero_status (*zero_staging_fill)(void *context, void *data, size_t at, size_t bytes);
/* Reads them. */
typedef zero_status (*zero_staging_use)(void *context, const void *data, size_t at, size_t bytes);

/* `bytes` of the device's memory from what the host fills, a chunk at a time; in order, but maybe
   still under way. */
zero_status zero_staging_in(zero_job *job, void *to, size_t bytes, zero_staging_fill fill,
			    void *context);
zero_status zero_staging_out(zero_job *job, const void *from, size_t bytes, zero_staging_use use,
			     void *context);
/* Two buffers for so many bytes, at most a chunk each. */
zero_status zero_staging_open(zero_job *job, size_t bytes);
void zero_staging_close(zero_job *job);
/* Waits until the device has done what it was told so far. */
zero_status zero_device_sync(zero_job *job);

/* ---- slice.c --------------------------------------------------------------------------------- */

/* Elements [first, first + count) of a tensor that was checked, in the parameter's type and order,
   at `out`. */
zero_status zero_slice_read(const zero_param *param, const zero_tensor *tensor, bool transpose,
			    void *out, size_t first, size_t count);
/* Closes the file that was read last. */
void zero_slice_close(zero_job *job);

/* ---- adopt.c --------------------------------------------------------------------------------- */

/* COLLECTIVE. Whether all that was given can be laid, and in which tier: job->tier. */
zero_status zero_flatten_plan(zero_job *job);
/* Bytes of a flat buffer that this rank counts, and those that it packs if it cannot lay its part
   of it straight. */
size_t zero_flat_counted(const struct zero_flat *flat);
size_t zero_flat_packed(const struct zero_flat *flat);

/* ---- flatten.c ------------------------------------------------------------------------------- */

/* COLLECTIVE, the end of zero_layout: lays what was given. */
zero_status zero_flatten_adopted(zero_job *job);

/* ---- partition.c ----------------------------------------------------------------------------- */

/* Sends the values that `rank` has at `data` to all ranks of the team, whole or each its shard's.
   The caller adds where they are received. `bounds` has room for a slice of each rank. */
struct zero_op zero_scatter_op(const zero_param *param, int rank, const void *data, bool whole,
			       size_t *bounds);

/* After a parameter's stored values changed: f32 masters of 16-bit ones follow. */
void zero_param_update_masters(zero_param *param);

/* ---- norm.c, scale.c, adamw.c: parts of a step ----------------------------------------------- */

struct zero_step_sums {
	double norm2;   /* of the sums of all groups, squared */
	double samples; /* of all ranks */
	bool written;   /* no rank has anything left to write of a save in the background */
	bool stop;      /* a signal asks for an end, on whatever rank */
};

/* COLLECTIVE. Agrees on all that ranks must say alike, too. */
zero_status zero_step_exchange(zero_job *job, zero_status status, const zero_adamw *adamw,
			       struct zero_step_sums *sums);

/* `scale` may be NULL: none. */
zero_status zero_loss_scale_check(const zero_loss_scale *scale);
/* In words that must be the same on all ranks. */
void zero_loss_scale_label(const zero_loss_scale *scale, char *text, size_t size);
/* After a step, or one that was skipped. */
void zero_loss_scale_update(zero_loss_scale *scale, bool finite);

/* Allocates the states that are not there yet. */
zero_status zero_adamw_states(zero_job *job);
/* What all parameters have in common in step number `steps`. */
struct zero_adamw_args zero_adamw_args_at(const zero_adamw *adamw, uint64_t steps, float scale);
/* Steps what this rank owns of a group. */
void zero_adamw_group(zero_group *group, const zero_adamw *adamw,
		      const struct zero_adamw_args *args);
/* The f32 masters, if there are any, of elements [first, first + count) of a segment follow what is
   stored; they are among those that this rank steps. */
void zero_master_set(struct zero_flat *flat, const struct zero_segment *segment, size_t first,
		     size_t count);

/* ---- file.c, gather.c, reduce.c -------------------------------------------------------------- */

/* The module for formats, opened when first needed. */
zero_status zero_files_open(const struct zero_files_ops **files);
/* zero_gathered_dtype with the job's lock, or where the group is known to be gathered. */
zero_dtype zero_gathered_dtype_locked(const zero_param *param);
/* Gives back what is gathered; for zero_close. */
void zero_gather_free(zero_group *group);
/* zero_reduce with the job's lock. */
zero_status zero_reduce_locked(zero_group *group);

#endif

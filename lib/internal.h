/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of libzero share: a job, its groups, and how a group lies in memory. */
#ifndef ZERO_INTERNAL_H
#define ZERO_INTERNAL_H

#include <pthread.h>
#include <sys/types.h>

#include "backend.h"
#include "files/files.h"
#include "layout.h"
#include "options.h"
#include "sizing.h"

/* ---- error.c --------------------------------------------------------------------------------- */

/* Keeps the sentence as the thread's last error, arisen on this rank. Returns `status`. */
zero_status zero_fail(zero_status status, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* The same, arisen on some rank and told to all. */
zero_status zero_fail_on(int rank, zero_status status, const char *text);
/* Whether the thread's last error is one that all ranks know of. */
bool zero_last_error_shared(void);
/* The rank of this process, once it is known; for errors that arise outside of a job's calls. */
void zero_process_rank_set(int rank);
int zero_process_rank(void);

uint64_t zero_hash(const void *data, size_t bytes, uint64_t seed); /* FNV-1a */

/* ---- module.c -------------------------------------------------------------------------------- */

/* The table of module zero_<name>.so, opened once from the library's own folder. */
zero_status zero_module_open(const char *name, const void **table);

/* ---- a job ----------------------------------------------------------------------------------- */

struct zero_param {
	zero_group *group;
	struct zero_flat *flat; /* from the layout on; an alias has its target's */
	zero_param *alias_of;
	char *name;
	size_t shape[ZERO_MAX_DIMS];
	size_t count;
	size_t run;   /* index of flat->runs */
	size_t first; /* element of the run */
	zero_dtype dtype;
	int ndim;
	float weight_decay;
	float lr_scale;
	bool trainable;
};

/* A run in memory; its layout is the same on all ranks. */
struct zero_run {
	zero_dtype dtype;
	bool trainable;
	size_t count;       /* elements of all shards */
	size_t shard;       /* elements of one */
	size_t stored_at;   /* byte of flat->stored */
	size_t gathered_at; /* byte of flat->gathered; NOT_GATHERED: read where it is stored */
	size_t gradient_at; /* element of flat->gradient, for a trainable run */
	size_t state_at;    /* element of flat->m and flat->v */
};

#define NOT_GATHERED SIZE_MAX

/* What is gathered as one: a group, or the part of one that the layout made. */
struct zero_flat {
	struct zero_run *runs;
	size_t run_count;
	size_t gradient_count; /* elements of all trainable runs */
	size_t state_count;    /* those that this rank steps */
	size_t stored_bytes;

	char *stored; /* the owned shard of each run; whole runs if the job stores whole ones */
	char *gathered;
	float *gradient; /* this rank's own, [gradient_count]; NULL if unused since the last
	reduce */
	float *reduced;  /* sums over ranks, [state_count] */
	float *m, *v;    /* moments, [state_count] */
	float *master;   /* f32 values of 16-bit runs, [state_count]; NULL if there are none */
};

struct zero_group {
	zero_job *job;
	char *name;
	zero_param **params; /* owned */
	struct zero_flat *flats;
	size_t param_count, param_room, flat_count;
	bool trainable; /* a parameter of it is */

	/* Guarded by the job's lock. */
	struct zero_work *gather; /* the gather under way or done; NULL: not gathered */
	bool beginning;           /* within one call */
	unsigned uses;
	zero_dtype as;
	bool reduced;             /* since the last step, on all ranks alike */
	struct zero_work *reduce; /* the last of those under way; NULL: none */
	struct zero_work *update; /* stages 1 and 2: the gather of stepped values; NULL: none */
};

/* Reduces under way at one time: more would let gradient buffers pile up behind a slow network. */
#define ZERO_REDUCES 2

struct zero_job {
	const struct zero_backend_ops *ops;
	struct zero_backend *backend;
	struct zero_place place;
	struct zero_settings settings;
	char *setting_text[ZERO_OPTIONS];
	pthread_mutex_t lock;
	zero_group **groups; /* owned */
	size_t group_count, group_room;
	void *names;       /* tsearch tree of all parameters */
	void *group_names; /* and of all groups */
	pid_t process;     /* that opened it; a forked child cannot use it */
	bool joined;       /* the backend is open on all ranks */
	bool laid_out;
	int stage;
	bool whole;      /* every rank stores whole runs: stages 0 to 2, or one rank */
	bool step_whole; /* every rank steps whole runs: stage 0, or one rank */
	size_t chunk, threshold;
	struct zero_sizing sizing; /* from the layout on */
	enum zero_tier tier;       /* from the layout on, at stages 0 to 2 */
	uint64_t steps;
	struct zero_work *reduces[ZERO_REDUCES]; /* ring of the last ones */
	unsigned reduce_next;
	char *slice_path; /* the file that zero_load read last, kept open */
	int slice_fd;
};

/* ---- submit.c -------------------------------------------------------------------------------- */

/* COLLECTIVE. Submits `ops` with this rank's status (its sentence is the thread's last error).
   `waited`: the caller waits for it next, as it must then. */
zero_status zero_submit(zero_job *job, zero_status status, struct zero_op *ops, size_t count,
			bool waited, struct zero_work **work, const char *label, ...)
	__attribute__((format(printf, 7, 8)));
/* The same and waits; `count` 0 is how ranks agree on `status` alone. */
zero_status zero_run(zero_job *job, zero_status status, struct zero_op *ops, size_t count,
		     const char *label, ...) __attribute__((format(printf, 5, 6)));
/* Waits, and puts the reference that *work is; a NULL *work is done. With the job's lock, unless
   *work is the caller's own. */
zero_status zero_finish(zero_job *job, struct zero_work **work);
/* Waits for what other ranks stepped to be here (stages 1 and 2). */
zero_status zero_finish_update(zero_group *group);

/* ---- settings.c ------------------------------------------------------------------------------ */

/* From the environment, ZERO_RESOLVED and the caller; not collective. */
zero_status zero_job_read_settings(zero_job *job, const zero_options *options);
/* COLLECTIVE. `status` is that of reading them. */
zero_status zero_job_agree_settings(zero_job *job, zero_status status);
void zero_job_apply_settings(zero_job *job);
/* The tier in which tensors become flat, from what all ranks agreed on; once all is laid out. */
void zero_job_choose_tier(zero_job *job);

/* ---- group.c --------------------------------------------------------------------------------- */

/* The elements of a run that this rank stores, and those that it steps: [*first, *first +
   *count). */
void zero_stored_part(const zero_job *job, const struct zero_run *run, size_t *first,
		      size_t *count);
void zero_stepped_part(const zero_job *job, const struct zero_run *run, size_t *first,
		       size_t *count);
/* The part of a parameter that lies in a part of its run: elements of the parameter. */
void zero_param_part(const zero_param *param, size_t run_first, size_t run_count, size_t *first,
		     size_t *count);
/* Where element `element` of the run is stored; it must be in the stored part. */
char *zero_stored_at(const zero_job *job, const struct zero_flat *flat, const struct zero_run *run,
		     size_t element);

/* Frees a group and all that belongs to it. */
void zero_group_free(zero_group *group);

/* ---- source.c: none of these is collective --------------------------------------------------- */

zero_status zero_source_check(const zero_param *param, const zero_source *source);
/* The values of elements [first, first + count) of `param` at `out`. */
zero_status zero_source_read(zero_param *param, const zero_source *source, void *out, size_t first,
			     size_t count);
/* What is loaded, in words that must be the same on all ranks. */
void zero_source_label(const zero_param *param, const zero_source *source, char *text, size_t size);
void zero_source_forget(zero_job *job);

/* ---- file.c, gather.c, reduce.c -------------------------------------------------------------- */

/* The module for formats, opened when first needed. */
zero_status zero_files_open(const struct zero_files_ops **files);
/* Gives back what is gathered; for zero_close. */
void zero_gather_drop(zero_group *group);
/* zero_reduce with the job's lock. */
zero_status zero_reduce_locked(zero_group *group);

#endif

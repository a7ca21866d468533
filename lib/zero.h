/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero.h - the interface of libzero: ZeRO sharding for training jobs under Slurm and MPI.
 *
 * ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) shards the parameters, gradients and optimizer
 * states of a data-parallel model over its ranks. The unit of sharding is the GROUP: parameters
 * that are gathered together, usually those of one layer. The parameters of a group are stored one
 * after the other in one flat buffer. The buffer is cut into as many equal shards as there are
 * ranks, and rank r owns shard r. (There is a buffer for each type of element, see zero_layout.) A
 * JOB is the ranks that have opened the library together; a TEAM is some of them, see
 * zero_team_new.
 *
 *	gather	one all-gather, into the buffer that the parameters are then read from
 *	reduce	one reduce-scatter of the group's gradients, into the owned shard
 *	step	AdamW over the owned shard, or Muon, or a step of the program's own
 *
 * The stage, a setting, says what is sharded: nothing (0), the optimizer states (1), the gradients
 * too (2), or the parameters too (3). A program is the same at every stage:
 *
 *	zero_open
 *	zero_group_new, zero_param_new, ...	describe the model
 *	zero_layout				allocates the shards
 *	zero_load or zero_load_model		fills them; or zero_restore, from a checkpoint
 *	in each step:
 *		zero_gather, read zero_data, zero_release		forward
 *		zero_gather, add to zero_gradient, zero_reduce, zero_release	backward
 *		zero_step
 *		zero_save, now and then
 *	zero_close
 *
 * zero_prefetch starts gathers ahead of their use. zero_adopt, at stages 0 to 2, builds the flat
 * buffers from tensors that already exist. The header has first what these steps need, in their
 * order, and then what only some programs need.
 *
 * ERRORS. A function that can fail returns a zero_status. It never prints, exits or aborts. After
 * any status but ZERO_OK, zero_last_error() returns a full sentence for the calling thread.
 *
 * COLLECTIVE FUNCTIONS. All ranks call a function marked COLLECTIVE, in the same order. A function
 * that takes a group or a parameter is collective over the ranks of the group's team, which are all
 * ranks by default. The ranks agree on errors: the call fails on all of them or on none, with the
 * sentence of the lowest rank that met an error, and no rank waits for a peer that has given up.
 *
 * If ranks of a team begin different operations, the library finds out before any data moves. The
 * operation fails with ZERO_E_ORDER on all ranks of the team. Outside of the team, the next
 * operation that a rank shares with one of these ranks fails too. Such a job can only be closed. If
 * ranks begin operations of several teams in different orders, each waits for the others: that is
 * found within 10 s, when all ranks wait and no operation has all of its ranks, and fails with
 * ZERO_E_ORDER on all of them. So it does if the ranks' GPUs wait for each other, unless that is
 * within a CUDA graph.
 *
 * With GPUs, zero_prefetch, zero_gather and zero_reduce are enqueued without waiting for the other
 * ranks. Only the first ones of a group are agreed on, because they may allocate. What was enqueued
 * since is compared in the next function that agrees, at the latest in zero_step, which fails with
 * ZERO_E_ORDER if ranks differ. If such a call fails on one rank alone, communication ends on all
 * ranks, and their next call returns the sentence of that rank. With the setting `check`
 * (ZERO_CHECK=1) ranks agree on each operation, as they do on CPUs.
 *
 * LOST RANKS. If a rank dies, hangs, or exits without zero_close while a job is open, one rank
 * prints a line that names it, and the processes of all ranks are ended. The same happens if an
 * operation waits too long for its peers, and on CPUs if zero_open does. This is the one exception
 * to "never prints or exits". With ZERO_ON_FAULT=return calls fail instead; zero_open then fails,
 * too, after zero_close: a new job needs new processes. LOST RANKS in zero(3) says what is
 * detected, and explains ZERO_ON_FAULT=return, ZERO_WATCH_SECONDS, ZERO_STALL_SECONDS and
 * ZERO_OPEN_SECONDS.
 *
 * THREADS. Any thread may call any function. All ranks must begin their collective operations in
 * one order, so let one thread begin them. Other threads may call zero_gather too: for a group that
 * is already gathered or being gathered it starts no operation. An operation fails on one rank
 * alone, without the agreement above, if MPI does not allow the calling thread to communicate, or
 * if there is no memory to queue the operation.
 *
 * UNITS. Counts are in elements and sizes in bytes. Both are size_t and may exceed 2^31.
 *
 * OWNERSHIP. The library owns every handle and buffer that it returns, and zero_close frees them
 * all; no handle may be used after it. The library keeps no pointer that is passed to it, unless
 * the function says so. Handles and pointers must not be NULL, unless the function says so.
 *
 * STRUCTURES. A field that is 0 has its default, so a designated initialiser needs to name only the
 * fields that differ.
 */
#ifndef ZERO_H
#define ZERO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ZERO_VERSION_MAJOR 0
#define ZERO_VERSION_MINOR 2

typedef struct zero_job zero_job;
typedef struct zero_team zero_team;
typedef struct zero_group zero_group;
typedef struct zero_param zero_param;
typedef struct zero_file zero_file;

/* ---- errors and types ------------------------------------------------------------------------ */

typedef enum zero_status {
	ZERO_OK = 0,
	ZERO_E_INVALID,     /* an argument or an option has a value that is not allowed */
	ZERO_E_STATE,       /* the call is not allowed now, such as a load before zero_layout */
	ZERO_E_MEMORY,      /* an allocation failed, or the budget has no room */
	ZERO_E_FILE,        /* a file or folder cannot be opened, read or written */
	ZERO_E_FORMAT,      /* a file is damaged, or its contents do not match the model */
	ZERO_E_UNSUPPORTED, /* not built in, or not available on this machine */
	ZERO_E_ORDER,       /* ranks of a team began different operations */
	ZERO_E_COMM,        /* communication failed */
	ZERO_E_APPLICATION, /* the program reported an error: by zero_agree or from a callback */
} zero_status;

/* Returns a few words for a status; a static string. */
const char *zero_strerror(zero_status status);
/*
 * Returns the calling thread's last error: what failed, on which rank and node, with which value,
 * and what to do. The text is valid until the thread's next call that fails. It is "" before the
 * first error.
 */
const char *zero_last_error(void);
/*
 * Returns the rank on which the calling thread's last error arose. A program that prints errors
 * only where `zero_last_error_rank() == zero_rank(job)` prints an agreed error once.
 */
int zero_last_error_rank(void);
/* Its status, for functions that return a pointer; ZERO_OK: there was none yet. */
zero_status zero_last_error_status(void);
/* Returns the version of the library that runs, such as "0.2.0"; a static string. Of a library that
   was preloaded it may be another than that of the header. */
const char *zero_version(void);

/* Types of elements. Floating-point types are IEEE or bfloat16, all are little-endian, and a bool
   is one byte, 0 or 1. */
typedef enum zero_dtype {
	ZERO_DTYPE_PARAM = 0, /* as an argument of a gather: the type that is stored */
	ZERO_F32,
	ZERO_F16,
	ZERO_BF16,
	ZERO_F64,
	ZERO_I64,
	ZERO_I32,
	ZERO_U8,
	ZERO_BOOL,
	/* 8 bits, of which 4 or 5 are the exponent's: these are stored, gathered as they are, and
	   converted when they are loaded. */
	ZERO_F8_E4M3,
	ZERO_F8_E5M2,
	ZERO_DTYPE_DEFAULT, /* as an argument of a gather: the setting gather_dtype */
} zero_dtype;

/* Returns the bytes of one element; 0 for ZERO_DTYPE_PARAM and ZERO_DTYPE_DEFAULT. */
size_t zero_dtype_size(zero_dtype dtype);
/* Returns "f32", "bf16" and so on; a static string. */
const char *zero_dtype_name(zero_dtype dtype);

/* ---- open a job ------------------------------------------------------------------------------ */

/*
 * A source of device memory that replaces the library's own pools, such as a framework's caching
 * allocator. Both functions must be set. They are called from several threads and must not call
 * functions of the job. Page-locked host memory never comes from here, and neither does the memory
 * that groups are gathered into, which is mapped at fixed addresses and registered with NCCL.
 */
typedef struct zero_allocator {
	/*
	 * Returns `bytes` bytes of device memory that begin at a multiple of `alignment`, or NULL
	 * if there is none left. The memory is used in the order of `stream`, a cudaStream_t.
	 * `kind` is the name of a field of zero_memory.
	 */
	void *(*alloc)(void *context, size_t bytes, size_t alignment, int device, void *stream,
		       const char *kind);
	/* Frees a block; `stream` is the one that it was allocated for. */
	void (*free)(void *context, void *data, size_t bytes, int device, void *stream);
	void *context; /* passed to both */
} zero_allocator;

typedef struct zero_options {
	/*
	 * Settings as "name=value", separated by spaces: "stage=3 stream_chunk=40M". Names are
	 * those of the flags in zerorun(1), without "--zero-" and with '_' instead of '-'. NULL or
	 * "" sets nothing. Precedence, highest first: these settings; ZERO_RESOLVED, which the
	 * launcher or the Slurm plugin sets; the user's variables, such as ZERO_STAGE; the default.
	 */
	const char *settings;
	/* Backend cuda: where device memory comes from. NULL: the library's pools. Copied. */
	const zero_allocator *allocator;
	/* Backend cuda: the initial stream, see zero_set_stream. */
	void *stream;
	/* The program steps by itself, see zero_step_begin, or steps a part of its groups alone.
	   The forecast of what the budget has room for then counts no moments and masters, but for
	   the choice of `shard=auto`: they are still allocated by the first zero_step or
	   zero_step_groups, for the groups that it steps. The same on all ranks. */
	bool program_steps;
	/* Backend cuda: see zero_program_holds, at this time. */
	size_t program_holds;
} zero_options;

/*
 * COLLECTIVE. Opens a job: joins the ranks that a launcher (zerorun, mpirun, srun --mpi=pmix)
 * started, and agrees on the settings. Without a launcher the job has one rank. A process has at
 * most one open job; a second zero_open fails with ZERO_E_STATE. `options` may be NULL. On failure
 * *job is NULL.
 *
 * On CPUs the library initialises MPI unless the program has done so. It finalises MPI when the
 * process exits with status 0 after zero_close. If the program initialised MPI with less than
 * MPI_THREAD_MULTIPLE, communication runs in the calling thread and overlaps nothing.
 */
zero_status zero_open(const zero_options *options, zero_job **job);
/*
 * COLLECTIVE. Closes the job and frees everything that belongs to it. It may be called at any time,
 * also after an error. A NULL job is a no-op, and so is a call in a forked child. Always returns
 * ZERO_OK.
 *
 * A rank may close the job because it gave up: a peer that waits in another operation then gets
 * ZERO_E_ORDER there. With the setting `report`, rank 0 writes the report of the job (see REPORT in
 * zero(3)); if that fails, zero_last_error() on rank 0 says why.
 */
zero_status zero_close(zero_job *job);
/* Returns this process's rank. For a NULL job, the rank as far as it is known, else 0. */
int zero_rank(const zero_job *job);
/* Returns the number of ranks; 1 for NULL. */
int zero_world(const zero_job *job);
/* Returns this rank's index among the ranks of its node; 0 for NULL. */
int zero_local_rank(const zero_job *job);
/* Returns the number of ranks on this node; 1 for NULL. */
int zero_local_world(const zero_job *job);

/* ---- describe the model ---------------------------------------------------------------------- */

#define ZERO_MAX_DIMS 8

typedef struct zero_param_spec {
	const char *name;     /* unique in the job, also the tensor's name in an export; copied */
	zero_dtype dtype;     /* the type that is stored; f32, f16 or bf16 if trainable */
	int ndim;             /* 0 (one element) to ZERO_MAX_DIMS */
	const size_t *shape;  /* [ndim], copied; a 0 makes the parameter empty, which is allowed */
	bool trainable;       /* has a gradient and optimizer states */
	bool no_weight_decay; /* excluded from weight decay, as biases and norms often are */
	float weight_decay_scale; /* factor on zero_adamw.weight_decay; 0 means 1 */
	float lr_scale;           /* factor on zero_adamw.lr; 0 means 1 */
	/* A parameter of the same group that this one is tied to: the alias shares its storage, and
	   is neither loaded nor exported. It has the target's dtype, number of elements and
	   `trainable`; the target's factors apply. */
	zero_param *alias_of;
} zero_param_spec;

/*
 * Adds an empty group to the job, to be laid out by the next zero_layout. `name` is unique in the
 * job and copied. All ranks add the same groups and parameters in the same order, which zero_layout
 * checks. Groups are laid out and stepped in that order.
 *
 * `team` is the team that the group is sharded over, or NULL for all ranks. Ranks outside the team
 * add the group too, but store nothing of it: zero_load does nothing there, zero_shard returns no
 * elements, and gathers, reduces and gradients fail with ZERO_E_INVALID. Gradients of the group are
 * summed over its team and divided by the number of all ranks. That is the mean over the samples of
 * the whole job if the samples of every rank reach the team, as in a mixture of experts.
 */
zero_status zero_group_new(zero_job *job, const char *name, zero_team *team, zero_group **group);
/*
 * Adds a parameter to a group that is not laid out yet. With only the first fields of the spec set,
 * the parameter trains with the learning rate and the weight decay of the step.
 *
 * A parameter that is used twice in a step, such as a tied embedding, may keep its gradient buffer
 * from the first use to the last, or be reduced twice: the reduces of one step add up.
 */
zero_status zero_param_new(zero_group *group, const zero_param_spec *spec, zero_param **param);

/* ---- lay it out ------------------------------------------------------------------------------ */

/*
 * COLLECTIVE. Fixes the layout of the groups that were added since the last call, and allocates
 * their shards. They contain 0, or the values of adopted tensors. Groups that were laid out before
 * keep their addresses, values and states, and may be gathered. What a function says of all groups
 * is said of those that are laid out. After an error the new groups are as before the call, and it
 * may be called again.
 *
 * A group is split into segments by (dtype, trainable). Within a segment, parameters begin at
 * multiples of 256 elements, and the segment is padded to a multiple of 256 * world elements, of
 * which rank r owns the r-th part. Bounds are counted in elements and do not depend on the type
 * that is gathered.
 *
 * The setting `allgather` says what is gathered as one. `grouped` keeps the groups. `single` cuts
 * them into single parameters; a parameter of less than 256 elements per rank is gathered together
 * with a neighbouring one. `auto` cuts groups of more than `bucket` bytes.
 *
 * At stages 0 to 2 every rank has access to all of each segment. At stages 1 and 2, if all ranks
 * share memory, they store one copy of it together: each rank stores its shard.
 *
 * At stage 3 the setting `shard` may divide the ranks into teams, each of which stores one copy,
 * see zero_set_shard. With `auto` the first layout chooses the size of a team, by what its groups
 * need.
 */
zero_status zero_layout(zero_job *job);
/*
 * COLLECTIVE over all ranks. Frees all that a group that was laid out has, its parameters and its
 * name: neither may be used from then on, nor any address of them. Not between zero_step_begin and
 * zero_step_end, nor zero_write_begin and zero_write_end.
 */
zero_status zero_group_drop(zero_group *group);

/* ---- load values: each rank fills what it stores --------------------------------------------- */

/* A tensor that is stored row by row in a file. zero_file_tensor returns one; a program may also
   fill one in to read raw data. */
typedef struct zero_tensor {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t shape[ZERO_MAX_DIMS];
	const char *path; /* the file that holds the elements */
	uint64_t offset;  /* of element 0, in bytes from the start of the file */
} zero_tensor;

typedef enum zero_source_kind {
	ZERO_FROM_FILE,     /* `tensor`: each rank reads its own slice */
	ZERO_FROM_RANK,     /* `data` on rank `rank`, which sends each rank its own slice */
	ZERO_FROM_ALL,      /* `data` on all ranks, equal: each rank copies its own slice */
	ZERO_FROM_CONSTANT, /* every element is `a` */
	ZERO_FROM_UNIFORM,  /* uniform in [a, b); the same values at every number of ranks */
	ZERO_FROM_NORMAL,   /* normal with mean a and standard deviation b; likewise */
	ZERO_FROM_CALLBACK, /* `fill` writes the elements that it is asked for */
} zero_source_kind;

/*
 * Writes `count` elements of a parameter from element `first` to `elements`, in the stored type,
 * row by row. `elements` is host memory, also with a GPU. Any status but ZERO_OK fails the load
 * with ZERO_E_APPLICATION.
 */
typedef zero_status (*zero_fill_callback)(void *context, void *elements, size_t first,
					  size_t count);

/* The source of a parameter's values. The functions below return one. */
typedef struct zero_source {
	const zero_tensor *tensor;
	const void *data;
	zero_source_kind kind;
	int rank;
	double a, b;
	uint64_t seed;
	zero_fill_callback fill;
	void *context;
	bool transpose;           /* of a tensor: it is [n, m] where the parameter is [m, n] */
	bool convert;             /* of a tensor: it may be of another dtype, see zero_load */
	const zero_tensor *scale; /* of a converted tensor of f8, see zero_load; NULL: none */
} zero_source;

zero_source zero_from_file(const zero_tensor *tensor);
/* `rank` is one of the job's, in the group's team; `data` is ignored on other ranks. */
zero_source zero_from_rank(int rank, const void *data);
zero_source zero_from_all(const void *data);
zero_source zero_from_constant(double value);
zero_source zero_from_uniform(double low, double high, uint64_t seed);
zero_source zero_from_normal(double mean, double stddev, uint64_t seed);
zero_source zero_from_callback(zero_fill_callback fill, void *context);

/*
 * COLLECTIVE, after zero_layout. Fills the parameter, and its f32 master if it has one, from a
 * source of the parameter's dtype and shape. Those of a tensor are checked: ZERO_E_FORMAT. The
 * group must not be gathered, and the parameter must not be an alias. After an error the values of
 * the parameter are undefined. What the source points to is no longer used when the call returns.
 *
 * A parameter of more than `stream_threshold` bytes is loaded in pieces of `stream_chunk`. On CPUs
 * no staging memory is needed. With a GPU, files, callbacks, and pageable memory of another rank
 * pass through two page-locked buffers of at most `stream_chunk`, but at least 64 KiB.
 *
 * Element i of a random parameter p depends on (seed, the name of p, i) alone: Philox 4x32-10
 * (Salmon et al., SC11).
 *
 * With `convert`, a tensor of f32, f16, bf16, f64 or f8 may fill a parameter of any of these types,
 * rounded once to nearest even: values beyond the range become infinite, or NaN in f8_e4m3, which
 * has no infinity, and a NaN stays a NaN. A tensor of i64, i32, u8 or bool may fill a parameter of
 * any of those types; an integer that does not fit is ZERO_E_FORMAT. With `transpose`, the matrix
 * is transposed. Both work in tiles, through two buffers of at most 1 MiB and `stream_chunk`, and
 * each rank still reads its own elements only.
 *
 * With `scale`, a matrix of f8 is multiplied by a scale for each block of ZERO_SCALE_BLOCK rows and
 * as many columns, in f32, and then rounded to the parameter's type: DeepSeek-V3's weight_scale_inv
 * (arXiv 2412.19437). The scales are a matrix of floats, with one row for each such rows that the
 * matrix in the file begins.
 */
#define ZERO_SCALE_BLOCK 128
zero_status zero_load(zero_param *param, const zero_source *source);

/*
 * How the tensors of a model's files become the parameters of a job. Every rank calls the
 * callbacks, in the thread that called zero_load_model. Callbacks must not use the job. Except for
 * `progress`, their results must be the same on all ranks, which is checked.
 */
typedef struct zero_load_model_options {
	/*
	 * Returns the name of the tensor for parameter `param`, valid until the next call; or NULL
	 * if the files are expected to have none. Sets *transpose, which is false before, if the
	 * tensor is [n, m] where the parameter is [m, n]: some models store a layer as [in, out],
	 * others as [out, in]. Called for aliases too. If tensor_name is NULL, the tensor has the
	 * parameter's own name.
	 */
	const char *(*tensor_name)(void *context, const char *param, bool *transpose);
	/*
	 * Sets *source for a parameter that the files do not have. *source is *initial before, if
	 * that is set. Any kind but ZERO_FROM_RANK is allowed. What the source points to must stay
	 * valid until zero_load_model returns. Any status but ZERO_OK fails the load with
	 * ZERO_E_APPLICATION.
	 */
	zero_status (*initialise)(void *context, const char *param, zero_source *source);
	/*
	 * Reports that this rank has filled `done` of the `total` bytes that it stores, most
	 * recently a part of `param`. Called once before anything is read, with a NULL `param`, and
	 * then after each piece. Any status but ZERO_OK ends this rank's reads, and the load is
	 * ZERO_E_APPLICATION on all ranks.
	 */
	zero_status (*progress)(void *context, const char *param, uint64_t done, uint64_t total);
	void *context; /* passed to the callbacks */
	/* The source of parameters that the files do not have. Without it and without `initialise`
	   these parameters are left unchanged. */
	const zero_source *initial;
	bool strict_dtype;     /* a tensor of another dtype is ZERO_E_FORMAT, not converted */
	bool allow_missing;    /* parameters without a tensor are no error */
	bool allow_unexpected; /* tensors without a parameter are no error */
} zero_load_model_options;

/* The names that only the job or only the files have; the same on all ranks. */
typedef struct zero_load_model_report {
	size_t missing_count, unexpected_count;
	const char **missing;    /* parameters whose tensor the files do not have */
	const char **unexpected; /* tensors that no parameter is loaded from */
} zero_load_model_report;

/*
 * COLLECTIVE, after zero_layout. Fills all parameters of the job from a path as for zero_file_open,
 * usually a folder with model.safetensors.index.json. `options` may be NULL. `report` may be NULL;
 * else it is filled, also if missing or unexpected names make the call fail, and must be freed with
 * zero_load_model_report_free. No group may be gathered.
 *
 * Each rank reads the elements that it stores straight into its shard, in the order of the files'
 * bytes. At stage 3 one rank reads each byte; where ranks store whole parameters, each reads all.
 * Converted and transposed elements are staged as in zero_load, and missing parameters are filled
 * by slice. Nothing is sent and nothing is gathered. f32 masters are updated.
 *
 * The ranks agree on names, shapes and types before anything is changed, and again when each has
 * read its own elements. After an error during the load, which is one on all ranks then, the values
 * of the parameters are undefined.
 *
 * A tensor "X" of f8 that fills a parameter of another type is multiplied by the scales of a tensor
 * "X_scale_inv", if the files have one, see zero_load.
 *
 * The files may have a tied parameter under its own name, under its alias's, or under both. An
 * alias is neither missing nor unexpected, and is read only if its target has no tensor.
 */
zero_status zero_load_model(zero_job *job, const char *path, const zero_load_model_options *options,
			    zero_load_model_report *report);
/* Frees the names and sets *report to 0. If all of *report is 0, the call is a no-op. */
void zero_load_model_report_free(zero_load_model_report *report);

/* ---- train: gather, reduce, step ------------------------------------------------------------- */

/*
 * COLLECTIVE. Begins to gather the groups, and returns before the data are there; zero_gather waits
 * for each of them. The groups of one team are gathered in one submission. At stages 1 and 2 the
 * call first waits for values of these groups that the last step is still sending.
 *
 * `as` is the type in which f32, f16 and bf16 parameters are gathered, or ZERO_DTYPE_PARAM or
 * ZERO_DTYPE_DEFAULT. One of the stored and the gathered type must be f32, or both be equal. A cast
 * is made into this rank's part of the gather buffer, which is then sent. Other types are gathered
 * as they are stored.
 *
 * A group that is already gathered or being gathered is skipped. The setting `gather_limit` bounds
 * the bytes of gather buffers that are live at one time: the first group that would exceed it, and
 * all groups after it, are skipped, and zero_gather begins them later. All ranks must skip the same
 * groups, so they must also release groups in the same order. With GPUs that holds for zero_gather,
 * too: which groups are held decides about the memory of the next, which all ranks choose alike.
 *
 * Ranks of a node that share memory have one gather buffer together. There is none for a group
 * that these ranks store completely, if it is gathered in the stored type.
 */
zero_status zero_prefetch(zero_group **groups, size_t count, zero_dtype as);
/*
 * COLLECTIVE. Waits until the group is gathered as `as`, beginning the gather if necessary, and
 * counts one use of the group. A group has one type for as long as it is gathered: a gather as
 * another type is ZERO_E_STATE.
 */
zero_status zero_gather(zero_group *group, zero_dtype as);
/*
 * Ends one use of the group. The last release frees the gathered buffer; so does the release of a
 * group that was only prefetched.
 *
 * With the setting `check` (ZERO_CHECK=1), the last release fails with ZERO_E_STATE if a parameter
 * was changed since the gather without zero_param_changed. The group is released all the same, and
 * this rank's next collective operation fails on all its ranks. The check reads all gathered values
 * twice. On a GPU memory that was gathered is then unmapped, so that a late access is an error of
 * the device; without the check it may see another group's values, as those have the memory next.
 */
zero_status zero_release(zero_group *group);
/*
 * Returns the whole parameter, row by row, in the gathered type. Valid from zero_gather to
 * zero_release, and at the same address in each gather as that type. NULL if the group is not
 * gathered or the parameter is empty. Ranks may share this memory: it is read only, except for a
 * change that zero_param_changed announces.
 */
void *zero_data(const zero_param *param);
/*
 * Returns the parameter's gradient, f32, [zero_param_numel]. It is 0 at first. Add this rank's
 * gradient to it: the mean over the rank's own samples, which zero_step divides by the number of
 * ranks, or a sum, see zero_adamw.samples. The pointer is valid from the first call for the group
 * to the zero_reduce of the group. The call is not collective: ranks may use different parameters.
 *
 * Returns NULL, and sets zero_last_error(), if the parameter is not trainable, if the group's
 * gradients are of another type, or if there is no memory. Returns NULL without an error if the
 * group has no elements.
 */
float *zero_gradient(zero_param *param);
/*
 * COLLECTIVE. Begins to sum the group's gradient over the ranks, into the owner's shard, and
 * returns before the sums are there. It waits at most for the reduce before the last one. A rank
 * that made no gradient adds zeros. A second reduce before the step adds to the first. A gradient
 * that is added after the group's last reduce of a step counts for the next step.
 *
 * Sums are f32. On CPUs an element is the sum of the ranks' values in rank order. On GPUs NCCL sums
 * in an order of its own, and may round sums of 16-bit values to 16 bits within a node, unless the
 * setting `reduce` is `ordered`; see ZERO_REDUCE in zero(3).
 */
zero_status zero_reduce(zero_group *group);

/*
 * A loss scale for f16 training (Micikevicius et al., arXiv 1710.03740). The program multiplies the
 * loss by `scale` before the backward pass, so that fewer gradients underflow, and zero_step
 * divides by it. The structure belongs to the program and is the same on all ranks. zero_step
 * updates it in the same way on all of them. If a gradient is not finite, the step is skipped and
 * the scale becomes scale * backoff, but at least `min`. After `interval` steps without such a
 * gradient it becomes scale * growth, but at most `max`. Powers of two scale exactly.
 */
typedef struct zero_loss_scale {
	float scale;         /* min <= scale <= max */
	uint32_t good_steps; /* since the last change */
	float growth;        /* >= 1 */
	float backoff;       /* in (0, 1]; 1 for a constant scale */
	float min, max;      /* min > 0, max finite */
	uint32_t interval;   /* 0: the scale never grows */
} zero_loss_scale;

typedef enum zero_muon_rate {
	ZERO_MUON_ORIGINAL,        /* lr * sqrt(max(1, rows / columns)), as Jordan has it */
	ZERO_MUON_MATCH_RMS_ADAMW, /* lr * 0.2 * sqrt(max(rows, columns)), arXiv 2502.16982 */
	ZERO_MUON_SPECTRAL,        /* lr * sqrt(rows / columns) */
} zero_muon_rate;

/*
 * Muon (Jordan, 2024), for the parameters of zero_param_set_muon. With the mean gradient g of a
 * matrix, unscaled and clipped as for AdamW:
 *	buf = momentum * buf + (1 - momentum) * g
 *	u = orthogonalise(momentum * buf + (1 - momentum) * g)
 *	p -= lr * weight_decay * p + lr' * u
 * where lr' is lr times what `rate` makes of the shape. To orthogonalise is to divide by the
 * Frobenius norm and to do `steps` iterations of Newton and Schulz, in f32. Each matrix of a stack
 * is one by itself. buf is f32 and sharded as moments are, 4 bytes an element where AdamW has 8.
 *
 * A matrix is put together on one rank, which orthogonalises it: the costliest first, each by the
 * rank that has least to do (4 s^2 l + 2 s^3 for the short and the long side), over all that one
 * call steps. Per step a rank sends its parts of the momentum, and receives those of the steps: 8
 * bytes for each of its elements, as many as it stores. With equal momentum the bits are the same
 * at any number of ranks and any stage, as far as the machine's cblas gives the same bits for the
 * same product.
 *
 * The call holds f32 buffers until it returns: for whole matrices, of 64 MB or of the largest, with
 * 4 (s l + 2 s^2) bytes of scratch, and for this rank's parts of as many matrices from each rank.
 * The plan does not have them: they take the room of activations, see ZERO_VRAM_RESERVE in zero(3).
 */
typedef struct zero_muon {
	float lr;              /* >= 0 */
	float weight_decay;    /* >= 0 */
	float momentum;        /* in [0, 1); 0.95 is usual */
	bool plain_momentum;   /* u of buf itself, without Nesterov's */
	int steps;             /* 1 to 100; 0 means 5 */
	float coefficients[3]; /* of the iterations; all 0 means 3.4445, -4.775, 2.0315 */
	float eps;             /* least norm that is divided by; 0 means 1e-7 */
	zero_muon_rate rate;
} zero_muon;

typedef struct zero_adamw {
	float lr;           /* >= 0 */
	float beta1, beta2; /* in [0, 1) */
	float eps;          /* > 0; 1e-8 is usual */
	float weight_decay; /* >= 0 */
	float clip;         /* bound on the global gradient norm; 0 for none */
	int micro_batches;  /* gradients that were added up since the last step; 0 means 1 */
	/*
	 * For batches of different sizes: the number of samples, or their total weight, up to 2^53,
	 * that this rank's gradient was made of, in all its micro-batches. micro_batches is then 0
	 * or 1. If the value is not 0 on any rank, every rank's gradient is taken as a sum over its
	 * samples instead of a mean, and a rank with 0 had none. It may differ between ranks; all
	 * other fields must be the same.
	 */
	double samples;
	/* NULL for none. With a GPU the host waits in each step to update it, unless it is the
	   address that zero_device_loss_scale returned. */
	zero_loss_scale *loss_scale;
	/* The sums of the reduces are taken as the mean gradient, not divided by world *
	   micro_batches: the program has divided. `samples` is then 0 on all ranks, and
	   micro_batches 0 or 1. A loss scale still applies. */
	bool gradients_are_means;
	/* For the parameters of zero_param_set_muon, to which lr, betas, eps and weight_decay of
	   this do not apply. NULL only if there are none. */
	const zero_muon *muon;
} zero_adamw;

typedef struct zero_step_result {
	double grad_norm; /* of the mean gradient, unscaled and before clipping */
	bool skipped;     /* the norm was not finite: only the loss scale was changed */
	float loss_scale; /* for the next step; 1 if there is none */
	bool stop;        /* a rank has received a signal of zero_stop_on */
} zero_step_result;

/*
 * COLLECTIVE over all ranks. Takes one step of AdamW (Loshchilov and Hutter, arXiv 1711.05101) over
 * all trainable parameters, with the mean gradient: the sum over ranks / (world * micro_batches),
 * or / the samples of all ranks, or with gradients_are_means the sum itself. Groups that were not
 * reduced since the last step are reduced first. No group may be gathered. `result` may be NULL; it
 * is filled on success.
 *
 * With a GPU and a NULL `result` the host waits for the other ranks to call zero_step, and for no
 * device: the norm, clipping, and whether the step is skipped are decided on the devices. So such
 * a step can be captured as part of a CUDA graph, without the setting `offload` and without a loss
 * scale in host memory; see CAPTURE under GPUs. A captured step repeats its arguments, and what
 * ranks agree on by way of the host (samples, signals to stop) is that of the capture.
 *
 * With f32 parameters and gradients, the new values are the same bits at every stage, on every
 * instruction set, and wherever the optimizer states are, for one number of ranks and one backend;
 * with GPUs if the setting `reduce` is `ordered`, or else as far as NCCL repeats its sums.
 *
 * With the setting `offload=optimizer`, moments and masters are in host memory and stepped there.
 *
 * After an error, all gradients are lost and the loss scale is unchanged. The values of the
 * parameters depend on the error. An argument, a gathered group, a missing allocation or a failed
 * reduce is found before any rank steps: parameters, states and the number of steps are then
 * unchanged. A failure after that, of communication or of the device, leaves some groups stepped
 * and others not, and ranks may differ: parameters, states and the number of steps are undefined.
 * The sentence says so, and zero_step, zero_save and zero_export are refused with ZERO_E_STATE
 * until zero_restore has succeeded. Where communication or the device has failed, that needs a new
 * job. At stages 1 and 2, across nodes, and of a GPU, such a failure may be returned by a later
 * call.
 *
 * At stages 1 and 2, across nodes, the new values of each group are sent while further groups are
 * stepped, and after the call has returned. A gather that needs no cast, and that is called before
 * anything else that waits for other ranks, waits for its own group only. It then communicates
 * nothing, so that a call with wrong arguments fails on this rank only.
 */
zero_status zero_step(zero_job *job, const zero_adamw *adamw, zero_step_result *result);
/*
 * COLLECTIVE. Replaces values[i] by sum(weight * values[i]) / sum(weight) over the ranks. The sums
 * are f64 and in rank order, so all ranks get the same bits. Weights are finite and >= 0. The
 * values of a rank with weight 0 are ignored. The call fails with ZERO_E_INVALID if the sum of all
 * weights is 0 or infinite. After an error the values are unchanged.
 */
zero_status zero_mean(zero_job *job, double *values, size_t count, double weight);

/* ---- save, restore, export ------------------------------------------------------------------- */

typedef struct zero_save_options {
	/* Bytes of the program, such as its position in the data. Rank 0's are stored, and
	   zero_restore returns them on all ranks. NULL for none. Copied. */
	const void *user;
	size_t user_bytes;
	/* For a program that takes its own steps, see zero_step_begin, or steps some of the groups:
	   how many steps it counts, for the checkpoint's name and zero_checkpoint_info. 0 means
	   those of zero_step. */
	uint64_t step;
	/* The number of complete checkpoints to leave in the folder, this one included; older ones
	   are deleted. 0 leaves all. */
	int keep_last;
	/*
	 * Returns as soon as the ranks have agreed on what to write. A thread of each rank writes
	 * while training goes on. Values that the next step would change before they are written
	 * are first copied, group by group: at most one copy of the rank's shard and states, named
	 * ones too, counted as `checkpoint` in zero_memory. With a GPU everything is copied to host
	 * memory before the call returns.
	 */
	bool background;
} zero_save_options;

/*
 * COLLECTIVE. Writes the checkpoint dir/step-<number of steps>. Each rank writes its own shard,
 * optimizer states and named states as a safetensors file, straight from where they are, or from a
 * GPU through two page-locked buffers of `stream_chunk`. Rank 0 writes a manifest, see
 * zero_checkpoint(5). No group may be gathered. `options` may be NULL.
 *
 * `dir` is created if it does not exist. It must be on a file system that all ranks share, and used
 * by this job only. The checkpoint appears under its name when it is complete and on disk, or not
 * at all; dir/latest is then a link to it. A checkpoint of the same step is replaced.
 *
 * A save in the background becomes visible soon after the first zero_step, zero_step_end,
 * zero_save_wait, zero_save or zero_close by which all ranks have written their part. Its error is
 * returned by the next zero_save_wait or zero_save; such a zero_save has still made its own
 * checkpoint. zero_close returns ZERO_OK and leaves the error as the thread's last error, if there
 * was none. Call zero_save_wait before writing to zero_data for zero_param_changed: that memory may
 * be the memory that is being saved.
 */
zero_status zero_save(zero_job *job, const char *dir, const zero_save_options *options);
/*
 * COLLECTIVE. Waits until the save in the background is complete, and returns its status. ZERO_OK
 * if there is none.
 */
zero_status zero_save_wait(zero_job *job);

/* What zero_restore found. Free it with zero_checkpoint_info_free. */
typedef struct zero_checkpoint_info {
	char *path;       /* of the checkpoint; NULL: the folder has none */
	uint64_t step;    /* number of steps taken, or zero_save_options.step */
	int world, stage; /* of the job that saved it */
	void *user;       /* the program's bytes, the same on all ranks; NULL: none */
	size_t user_bytes;
} zero_checkpoint_info;

/*
 * COLLECTIVE, after zero_layout. Fills parameters, optimizer states, named states and the number of
 * steps from a checkpoint. `path` is a checkpoint, or a folder of checkpoints, whose `latest` is
 * used. No group may be gathered. The number of ranks, the stage, the offload and the grouping may
 * differ from those of the job that saved it. Parameters must have the same names, dtypes and
 * shapes. What was trainable must be trainable. A parameter that is trainable, but was not, begins
 * with no steps; then others of its group may have taken none either. Each rank reads the ranges
 * that it needs, and checks every byte before it is used: damage is ZERO_E_FORMAT, with the file
 * and the tensor. At the same number of ranks training goes on with the same bits.
 *
 * The checkpoint must have each named state that is registered for a parameter, with its type and
 * block. States that it has beyond these are an error too, so that a forgotten one is noticed; but
 * if no state is registered at all, as in a program that only evaluates, they are not read.
 *
 * If `info` is not NULL it is filled, also after some errors, and must be freed. A path that has no
 * checkpoint, or does not exist, is then no error: the call returns ZERO_OK with info->path NULL
 * and changes nothing. After an error the values of parameters and states are undefined.
 */
zero_status zero_restore(zero_job *job, const char *path, zero_checkpoint_info *info);
/* Frees the path and the program's bytes, and sets *info to 0. If all of *info is 0, the call is a
   no-op. */
void zero_checkpoint_info_free(zero_checkpoint_info *info);

/*
 * Catches a signal as a request to stop, such as the one that Slurm sends before a time limit
 * (`sbatch --signal=USR1@120`) or at a preemption (SIGTERM). Once any rank has received it, the
 * next zero_step or zero_step_end tells `stop` on all ranks. The program can then save and exit:
 * with status 75 (EX_TEMPFAIL) to be started again, see --max-restarts in zerorun(1). The function
 * may be called for several signals, but not for SIGSEGV, SIGBUS, SIGFPE and SIGILL:
 * ZERO_E_INVALID. zero_close restores the previous handlers.
 */
zero_status zero_stop_on(zero_job *job, int signal);
/* What the last step said of these signals, see zero_step_result.stop, also where it was not asked
   for its result. The same on all ranks. */
bool zero_stopping(const zero_job *job);
/*
 * COLLECTIVE. Writes all parameters except aliases, in the stored types, as safetensors for other
 * programs. A path that ends in .safetensors is one file. Any other path is a folder, created if it
 * does not exist, with the names that Hugging Face's libraries expect: model.safetensors, or, of
 * more than 5 GB, model-00001-of-0000N.safetensors and so on with model.safetensors.index.json. A
 * tensor is never split over two files.
 *
 * Every rank writes its own bytes in place, and nothing is gathered, so the path must be on a file
 * system that all ranks share. A file appears under its name when it is complete, the index last.
 * Existing files of these names are replaced.
 */
zero_status zero_export(zero_job *job, const char *path);

/* ---- protection: a lost node costs a step ---------------------------------------------------- */

typedef struct zero_protect_options {
	/* After each step whose number is a multiple of this; 0: whenever the one before is
	   complete. The option `protect` overrides it. */
	uint64_t every;
	uint64_t step; /* as in zero_save_options */
	bool due; /* the program has asked zero_protect_due, perhaps of another count of steps */
	/* Bytes of the program. Rank 0's come back on all ranks, with zero_restore. Copied. */
	const void *user;
	size_t user_bytes;
	/* Bytes of this rank, such as the states of its random generators, see zero_protected.
	   Copied. */
	const void *own;
	size_t own_bytes;
} zero_protect_options;

/*
 * COLLECTIVE, after a step, with no group gathered. If it is due, see zero_protect_due, what
 * zero_save would write is written to the memory of this node (the option `protect_dir`), and a
 * copy of it is sent to a rank on another node, if there is one. A thread does both while training
 * goes on, as with zero_save in the background. A protection is complete once all ranks have both;
 * the one before is kept until then. So node memory holds four times what a rank saves: two
 * protections of its own and two of a partner. The loss of one node, or of several that are not
 * partners, loses none of it.
 *
 * What cannot be protected, such as for a full folder, costs the protection and not the job: rank 0
 * prints a sentence, and it is tried again later. What was protected is removed when the process
 * ends with status 0 after zero_close; else the next attempt finds it.
 */
zero_status zero_protect(zero_job *job, const zero_protect_options *options);
/* Whether zero_protect would protect after this step, the same on all ranks. */
bool zero_protect_due(const zero_job *job, uint64_t every, uint64_t step);

/* What zero_protect_find found. It belongs to the job, until the next zero_protect or
   zero_close. */
typedef struct zero_protected {
	/* For zero_restore: the name of what is in memory, or the path of the checkpoint. NULL:
	   there is neither. */
	const char *path;
	uint64_t step;
	int world;            /* of the job that protected it; 0: it is a checkpoint */
	const char *manifest; /* see zero_checkpoint(5), of what is in memory; else NULL */
	size_t manifest_bytes;
	/* What this rank gave to zero_protect. NULL: none, or the number of ranks is another. */
	const void *own;
	size_t own_bytes;
} zero_protected;

/*
 * COLLECTIVE, after zero_layout, before the first zero_protect. Finds the newest state that is
 * complete: in the memory of the nodes, left there by an attempt of this run that has ended, each
 * byte of it verified, or the checkpoint `path` or in the folder `path`, see zero_restore; NULL for
 * none. If something was protected, but nothing of it is complete, rank 0 prints a sentence.
 *
 * What an attempt has protected is found by the next one of the same zerorun, or of one that was
 * given its ZERO_RUN, at any number of ranks. ZERO_E_STATE after the first zero_protect. Reading it
 * is zero_restore(job, found.path, ...), whose ranges then come from the nodes that have them.
 */
zero_status zero_protect_find(zero_job *job, const char *path, zero_protected *found);
/* COLLECTIVE. Both, in this order. */
zero_status zero_protect_restore(zero_job *job, const char *path, zero_checkpoint_info *info);

/* ---- inspect: settings, memory, traffic ------------------------------------------------------ */

/*
 * Returns the value of a setting as text, with sizes in bytes: "stream_chunk" is "41943040". NULL
 * for an unknown name. The text is valid until zero_close. Some values are the result of what the
 * ranks found:
 *
 *	budget, stream_chunk, stream_threshold, gather_limit
 *		the lowest value of all ranks; a number even if the setting was `auto`. With GPUs
 *		the budget of a rank is what its device has free in zero_open, or less if the
 *		launcher has found less by NVML; what a launcher measured on the host does not
 *		count.
 *	share	the number of ranks that share memory with this one, itself included
 *	flatten	after zero_layout at stages 0 to 2, the tier that all ranks use: "device",
 *		"distributed" or "host". If no tensor was adopted and the setting is `auto`, the
 *		tier that the budget would allow for equal tensors on the device. Before
 *		zero_layout, and at stage 3, the setting itself.
 */
const char *zero_setting(const zero_job *job, const char *name);

typedef struct zero_bytes {
	size_t now, peak;
} zero_bytes;

/* Memory of this rank in bytes, by kind. */
typedef struct zero_memory {
	zero_bytes shards; /* stored parameters: shards, or all of them where they are replicated */
	zero_bytes gathered;   /* gather buffers */
	zero_bytes gradients;  /* full gradient buffers and reduced shards */
	zero_bytes optimizer;  /* moments, and f32 masters of 16-bit parameters */
	zero_bytes staging;    /* the library's own buffers for communication */
	zero_bytes caller;     /* what zero_device_alloc returned, and zero_program_holds says */
	zero_bytes pinned;     /* page-locked host memory for copies to and from a device */
	zero_bytes offload;    /* in host memory instead of device memory */
	zero_bytes checkpoint; /* copies, in host memory, of what a save has not written yet */
	zero_bytes total;      /* all of these but pinned, offload and checkpoint */
} zero_memory;

/* Fills *memory. Memory that ranks share is counted once: each rank counts its part. */
zero_status zero_memory_now(zero_job *job, zero_memory *memory);

/*
 * Says how many bytes of the device's memory the program holds from elsewhere, such as those of a
 * framework's allocator, at this time. They count in the budget and as `caller` in zero_memory:
 * zero_layout leaves room for them. If tensors that a program adopts are among them, their release
 * functions say what is left. A job on CPUs ignores the call.
 */
void zero_program_holds(zero_job *job, size_t bytes);
/*
 * Gives the host memory that the library has freed, but keeps for what it allocates next, back to
 * the system: for a program that is about to allocate much. Fresh pages cost time. With a GPU it is
 * page-locked memory, and the call waits for the device.
 */
void zero_trim(zero_job *job);

/* What is asked of zero_plan. */
typedef struct zero_plan_spec {
	const char *settings; /* as in zero_options, with the same precedence */
	int world;            /* ranks */
	int share;            /* of them share memory on a node; 0 or 1: none, as with GPUs */
	bool device;          /* they have GPUs, on which gather buffers are rounded up to 2 MB */
	bool one_stays;       /* a group stays gathered while others are, as PyTorch's outermost */
	const zero_param_spec *params;
	size_t count;
	const size_t *groups; /* [count]: the group of each, numbered from 0 as they come */
	/* [count], or NULL: bytes of a slice of each, which is then a group of its own; 0: it is
	   whole; ZERO_SLICES_AUTO: it can have slices, and zero_plan writes here what `stream`
	   makes of it, and 0 for all where nothing is gathered. With stream_threshold=auto they
	   are whole unless `budget` says of what the threshold is a part: a job measures it. */
	size_t *slices;
} zero_plan_spec;

#define ZERO_SLICES_AUTO SIZE_MAX

/*
 * Says what a rank needs at most for a model, before anything is allocated and without a job: the
 * `peak` of each kind of *need, with AdamW's states, without activations. Of the teams that `shard`
 * makes this knows numbers alone: `auto` and `node` count as all ranks.
 */
zero_status zero_plan(const zero_plan_spec *spec, zero_memory *need);

/* What this rank has sent and read since zero_open. */
typedef struct zero_traffic {
	uint64_t bytes_sent;  /* payload, without the few bytes by which ranks agree */
	uint64_t collectives; /* all-gathers, reduce-scatters, scatters and broadcasts of payload */
	/* Submissions on which all ranks agreed by way of the host, so that each waited for the
	   others: with a GPU few, on CPUs all. */
	uint64_t agreements;
	uint64_t bytes_read; /* of tensors, from files; of checkpoints, with their checksums */
} zero_traffic;

/* Fills *traffic. */
zero_status zero_traffic_now(zero_job *job, zero_traffic *traffic);

/*
 * What follows is for programs that need more than the functions above.
 */

/* ---- what ranks agree on and exchange -------------------------------------------------------- */

/*
 * COLLECTIVE. Lets the ranks agree on the outcome of work that each rank did by itself, such as
 * opening a file. `error` is NULL on a rank that succeeded, else a sentence. Returns ZERO_OK on all
 * ranks, or ZERO_E_APPLICATION on all ranks with the sentence of the lowest rank that failed.
 */
zero_status zero_agree(zero_job *job, const char *error);
/*
 * COLLECTIVE. Gives every rank the bytes of every rank: all[world][bytes], in rank order. `bytes`
 * is the same on all ranks. It is for a few bytes, such as the address of a service of rank 0.
 */
zero_status zero_allgather_bytes(zero_job *job, const void *mine, size_t bytes, void *all);

/* ---- ranks that are only watched ------------------------------------------------------------- */

/*
 * A job of backend=none is for programs that move their tensors by themselves, by
 * torch.distributed, NCCL or MPI of their own. The ranks meet by their launcher's PMIx, without MPI
 * and NCCL, agree and exchange, and are watched; such a job has no groups, teams and memory:
 * ZERO_E_UNSUPPORTED. Its ranks may end at different times. zero_close waits for nobody, and
 * exit(0) without it is no fault: a rank that has ended well is lost only if others wait for it,
 * see zero_set_wait_label. Any other end is told and ends the job, as LOST RANKS says, and so does
 * a rank that does not come to its end, see zero_finish.
 */

/*
 * Says that this rank has done its work, and that its process is to end. If it is still there after
 * ZERO_END_SECONDS (60), and not in a call of the library, a line says so, and the job is ended.
 * With backend=none exit says the same by itself, and the process may then take a tenth of that.
 * With one rank nothing is watched. zero_close then finalises PMIx or MPI, instead of exit.
 */
zero_status zero_finish(zero_job *job);
/*
 * Says that the program itself now waits in something that all ranks take part in, such as a
 * barrier of its own: `what`, a text that stays valid, which is shown if a rank is lost. NULL: it
 * goes on. With backend=none a rank that has ended with exit(0) counts as lost once another one has
 * waited for more than 3 s.
 */
void zero_set_wait_label(zero_job *job, const char *what);

/*
 * Sets what is called once in this process before it is ended because a rank was lost, so that the
 * program can write where it is. It is called in a thread of the library, while the others may hold
 * any lock: writing to a file is safe, malloc is not. So is raise() of a signal that has a handler.
 * The process ends within a second. NULL: nothing.
 */
typedef void (*zero_loss_callback)(void *context);

void zero_on_loss(zero_job *job, zero_loss_callback call, void *context);

/* ---- parameters: what they are, and what a step does with them ------------------------------- */

/*
 * These functions describe groups and parameters as they were added, also before zero_layout. The
 * strings and arrays are valid until zero_close.
 */

const char *zero_param_name(const zero_param *param);
zero_group *zero_param_group(const zero_param *param);
/* Returns the type that is stored. */
zero_dtype zero_param_dtype(const zero_param *param);
int zero_param_ndim(const zero_param *param);
/* Returns [ndim] dimensions; not NULL, also where ndim is 0. */
const size_t *zero_param_shape(const zero_param *param);
/* Returns the number of elements: the product of the shape, 1 where ndim is 0. */
size_t zero_param_numel(const zero_param *param);

/*
 * These functions change what a step does with a parameter, from the next step on. Call them
 * between steps, in the same way on all ranks, which the step checks: ZERO_E_ORDER. An alias stands
 * for its target. Checkpoints do not have what they set. A captured step keeps what it was captured
 * with.
 */

/* Sets the factor on zero_adamw.lr. It is finite and >= 0; here 0 is 0. */
zero_status zero_param_set_lr_scale(zero_param *param, float scale);
/* Sets the factor on zero_adamw.weight_decay, likewise. */
zero_status zero_param_set_weight_decay_scale(zero_param *param, float scale);
/*
 * Freezes a trainable parameter (false), or lets it be trained again, after it was laid out. While
 * it is frozen, a step changes neither the parameter nor its moments, and its gradient counts as 0.
 * A group of which all are frozen is not reduced by the step, and its own count of steps stands
 * still. A parameter that was laid out as not trainable cannot be trained: ZERO_E_STATE.
 */
zero_status zero_param_set_trainable(zero_param *param, bool trainable);
/*
 * Has a parameter of 2 dimensions, or a stack of matrices of 3, stepped by Muon, see zero_muon, or
 * by AdamW (false). Before the first step of its group, and before a restore; a checkpoint of the
 * one is refused by the other. A step needs a cblas on the machine, such as OpenBLAS, or cuBLAS
 * with GPUs: the one that the process has loaded, or else the first that is found. It cannot be
 * captured.
 */
zero_status zero_param_set_muon(zero_param *param, bool muon);

/* ---- where parameters are, and changes of them ----------------------------------------------- */

/*
 * Finds the part of the parameter that this rank stores, after zero_layout: `*count` elements from
 * element `*first`, at `*data`, in the stored type. The pointer is valid until zero_close. A
 * parameter may be stored on some ranks only: elsewhere *count is 0 and *data NULL. At stages 1 and
 * 2 the part is all of the parameter or this rank's shard of it, see zero_layout; zero_view returns
 * all of it in either case. Waits for values that the last step is still sending. To change values
 * use zero_load, which also updates f32 masters, or zero_write_begin.
 */
zero_status zero_shard(const zero_param *param, void **data, size_t *first, size_t *count);
/*
 * Returns the address at which the parameter is whenever its group is gathered as `as`, the same
 * from zero_layout to zero_close. It may be asked for before the first gather. Reading it while the
 * group is not gathered as `as` ends the process with a sentence that names the group, unless the
 * parameter is read where it is stored. NULL if the parameter is empty; NULL, with
 * zero_last_error(), if its group is not laid out, cannot be gathered as `as`, or if there is no
 * room among the process's addresses.
 */
void *zero_gathered_address(const zero_param *param, zero_dtype as);
/*
 * Returns the type that the parameter is gathered as, from the start of the gather; or
 * ZERO_DTYPE_PARAM if it is not gathered, as after a zero_prefetch that skipped it.
 */
zero_dtype zero_gathered_dtype(const zero_param *param);
/*
 * COLLECTIVE. Makes the values that rank `rank` has written to the parameter's zero_data the values
 * of the parameter: the other ranks' gathered values, the shards and the f32 masters are updated.
 * Moments are unchanged. `rank` is a rank of the job, in the group's team. The group is gathered on
 * all ranks and stays gathered. Aliases may be passed.
 *
 * No other rank may write to the parameter, and no rank may read it, from the first change until
 * the call returns. Several parameters of a group may be changed before the first call, with one
 * call for each.
 *
 * If the gathered type differs from the stored one, values are cast back, rounded once to nearest
 * even. So an f32 parameter that is gathered as bf16 is set to the bf16 values, even where nothing
 * was changed. A 16-bit parameter that is gathered as f32 is set to the rounded values, and so are
 * the gathered f32 values. Uses at most `stream_chunk` bytes of staging memory.
 */
zero_status zero_param_changed(zero_param *param, int rank);
/*
 * COLLECTIVE in the group's team. Until zero_write_end the program may change the elements that
 * this rank owns (zero_param_cuts) at zero_shard's address, outside of a step, as when it loads
 * values of frozen parameters too. With a GPU, work on the caller's stream may do so. The group is
 * not gathered; it cannot be gathered meanwhile, nor any group stepped, saved or restored. What a
 * save in the background still has to write of it is copied first.
 */
zero_status zero_write_begin(zero_group *group);
/*
 * COLLECTIVE in the group's team. Makes what ranks have written the values of the parameters: the
 * other ranks that store them get them, and f32 masters become them. Gradients and moments are
 * unchanged. Without zero_write_begin: ZERO_E_STATE.
 */
zero_status zero_write_end(zero_group *group);

/* ---- tensors in files (safetensors) ---------------------------------------------------------- */

/*
 * COLLECTIVE. Opens a .safetensors file, a model.safetensors.index.json, or a folder that has one
 * of them, and checks all headers in full. Damage is ZERO_E_FORMAT. On failure *file is NULL. Close
 * the file with zero_file_close, before zero_close.
 */
zero_status zero_file_open(zero_job *job, const char *path, zero_file **file);
/* Closes the file and frees its tensors. NULL is a no-op. */
void zero_file_close(zero_file *file);
/* Returns the number of tensors; 0 for NULL. */
size_t zero_file_count(const zero_file *file);
/* Returns tensor i, in the order of the files' bytes. The file owns it, until zero_file_close. */
const zero_tensor *zero_file_tensor(const zero_file *file, size_t i);
/* Returns the tensor of that name, or NULL. */
const zero_tensor *zero_file_find(const zero_file *file, const char *name);

/* ---- slices: a parameter that is whole on no rank -------------------------------------------- */

/*
 * A group of one parameter that is too large to be gathered may be used slice by slice. A slice is
 * the same part of what each rank stores: N runs of whole rows, N the ranks that store a copy
 * between them, of a matrix or of a stack of them. It is a group to zero_prefetch, zero_gather,
 * zero_release and zero_reduce, which never waits for the others of its parameter; their bytes are
 * those of the whole in all. Values are loaded, stepped, saved, restored and exported as those of
 * any group.
 *
 * A program walks over the slices in the same order on all ranks, backward in any order, and
 * computes with the runs of each:
 *
 *	for (size_t i = 0; i < zero_group_slice_count(group); i++) {
 *		zero_group *slice = zero_group_slice(group, i);
 *
 *		zero_gather(slice, ZERO_DTYPE_DEFAULT);
 *		count = zero_slice_runs(slice, runs);
 *		weights = zero_slice_data(slice);
 *		...
 *		zero_release(slice);
 *	}
 *
 * examples/gpt.c goes by the settings `stream`, `stream_threshold` and `stream_chunk`, as PyTorch
 * programs do.
 *
 * Where slices save nothing the group is its own only slice, with one run of all elements: below
 * stage 3, where it is read in place, on one node of CPUs; and where none were asked for.
 */

/* Elements [first, first + count) of a parameter, from element `at` of a slice. */
typedef struct zero_run {
	size_t first, count, at;
} zero_run;

/*
 * Asks for slices of at most so many bytes as they are stored, but of one row of each rank at
 * least; 0: none. The same on all ranks, before zero_layout, which fails with ZERO_E_INVALID if
 * the group has not one parameter. A rank's shard is then padded to whole rows.
 */
zero_status zero_group_set_slices(zero_group *group, size_t bytes);
/* After zero_layout, how many slices the group has; 1 if it is not sliced. */
size_t zero_group_slice_count(const zero_group *group);
/* Returns a slice, which lives as long as the group; NULL if there is no such one. */
zero_group *zero_group_slice(zero_group *group, size_t index);
/* Fills runs[], ascending, with what a slice has of the parameter: at most as many as its team has
   ranks. Returns how many there are. The first run of slice 0 begins with element 0, and no other
   is longer. */
size_t zero_slice_runs(const zero_group *slice, zero_run *runs);
/* Returns the values of a gathered slice, as zero_data does of a parameter. */
void *zero_slice_data(const zero_group *slice);
/* Returns where a slice is when it is gathered as that type, see zero_gathered_address. */
void *zero_slice_address(zero_group *slice, zero_dtype as);
/* Returns the slice's own gradient on this rank, see zero_gradient_undefined: the program writes
   all runs, and zero_reduce adds them to the sums of the parameter, once or more in a step. A
   sliced parameter has no whole gradient: zero_gradient and zero_reduce of its group fail, and so
   does a zero_step before the zero_reduce of the slice. */
void *zero_slice_gradient(zero_group *slice, zero_dtype dtype);

/* ---- gradients of 16 bits, loss scales, steps of some groups --------------------------------- */

/*
 * Sets the type of a group's gradients to f32 (the default), f16 or bf16. Call it before
 * zero_layout, with the same type on all ranks. A 16-bit type halves the memory and the bytes sent.
 * Sums over the ranks are still f32, but what a rank adds to its own gradient is rounded at each
 * addition: add one gradient per reduce to such a group, and let several reduces of a step add up.
 */
zero_status zero_group_gradient_dtype(zero_group *group, zero_dtype dtype);
/* Returns the gradient as zero_gradient does, in `dtype`, the type of the group's gradients. */
void *zero_gradient_as(zero_param *param, zero_dtype dtype);
/*
 * The same, but if this is the first call for the group since its last reduce, its gradients are
 * undefined instead of 0: write those of all its trainable parameters before the zero_reduce.
 */
void *zero_gradient_undefined(zero_param *param, zero_dtype dtype);
/* Sets a scale of 65536 that doubles after 2000 steps, up to 2^24, and halves, down to 1. */
void zero_loss_scale_init(zero_loss_scale *scale);
/*
 * COLLECTIVE. Keeps a loss scale where steps are taken, so that zero_step need not wait for a GPU
 * to know whether a gradient was finite. Sets it to *scale, the same on all ranks, and *address to
 * where it is: the same address in each call, valid until zero_close. It is for
 * zero_adamw.loss_scale, and for the program's kernels on its stream, which may read it: with a GPU
 * it is device memory, else host memory. zero_step_result.loss_scale tells its value. On failure
 * *address is NULL.
 */
zero_status zero_device_loss_scale(zero_job *job, const zero_loss_scale *scale,
				   zero_loss_scale **address);

/* The type of AdamW's moments; the setting `states` is the one that a job begins with. */
typedef enum zero_states {
	ZERO_STATES_F32,
	/*
	 * One byte for each moment and element, and an f32 absmax of each 256 elements for
	 * each: 2.03 bytes an element instead of 8 (Dettmers et al., arXiv 2110.02861). A parameter
	 * of less than 4096 elements keeps f32. A step computes with f32, and rounds its moments
	 * after it has used them. What is lost: a second moment below 1.6e-7 of the largest of its
	 * 256 becomes 0, and a NaN or an infinity makes all 256 NaN.
	 */
	ZERO_STATES_8BIT,
} zero_states;

/*
 * COLLECTIVE, after zero_layout. Makes the moments of all groups that type: those that there are
 * are converted, which to 8 bits rounds them, and later ones begin so. After an error that
 * communication did not cause, zero_step is refused until zero_restore has succeeded.
 */
zero_status zero_set_states(zero_job *job, zero_states states);
/*
 * After zero_layout. Sets f32 moments of AdamW that another program has made: of the elements
 * [first, first + count) of a trainable parameter, from f32 values in host memory. Elements that
 * this rank does not step are ignored. The moments of the group are allocated as by its first step.
 * zero_set_steps must follow.
 */
zero_status zero_set_moments(zero_param *param, size_t first, size_t count, const float *exp_avg,
			     const float *exp_avg_sq);
/*
 * After zero_layout. Copies these moments to host memory: those of elements that this rank steps,
 * which are 0 before the first step. The others are left as they are.
 */
zero_status zero_get_moments(zero_param *param, size_t first, size_t count, float *exp_avg,
			     float *exp_avg_sq);
/*
 * COLLECTIVE, after zero_layout. Sets the number of steps that the job and these groups have taken,
 * as zero_restore does. No group may be frozen. With 0 their moments are as before the first step.
 */
zero_status zero_set_steps(zero_job *job, zero_group **groups, size_t count, uint64_t steps);
/*
 * COLLECTIVE over all ranks. As zero_step, over these groups alone, as for a generator and its
 * critic: the norm and clipping are theirs, and no other group is reduced, stepped or loses its
 * gradients. Other groups may be gathered. `groups` are the same ones in the same order on all
 * ranks, each once.
 *
 * The bias correction of AdamW counts the steps of each group by itself. A job counts each of these
 * calls as a step. Moments and masters are allocated by the first step of a group. Checkpoints have
 * the number of steps of each group; zero_restore refuses to put tensors into one group that were
 * stepped a different number of times.
 */
zero_status zero_step_groups(zero_job *job, zero_group **groups, size_t count,
			     const zero_adamw *adamw, zero_step_result *result);

/* ---- a step of the program's own ------------------------------------------------------------- */

/*
 * A program may step with an optimizer of its own instead of zero_step: after the reduces it reads
 * zero_gradient_shard, calls zero_step_begin, writes new values to the shards, and calls
 * zero_step_end. At every stage a rank steps the elements that it owns, which are all that it
 * stores at stage 3 unless the setting `shard` divides the ranks. No moments are allocated for
 * that.
 */

/*
 * Finds the elements of a parameter in each shard of its group, after zero_layout: shard i has
 * [cuts[i], cuts[i + 1]). There is one for each rank of the group's team, and `cuts` has room for
 * as many + 1 numbers. cuts[0] is 0, the last one is zero_param_numel, and a shard may have
 * nothing.
 */
zero_status zero_param_cuts(const zero_param *param, size_t *cuts);
/*
 * Returns the rank of the team that owns a shard of the group, after zero_layout: shard i is rank
 * i's unless the setting `shard` divides the ranks, see zero_set_shard. -1 if there is no such
 * shard.
 */
int zero_shard_owner(const zero_group *group, int shard);
/*
 * Finds the sum over the ranks of the gradients of the elements that this rank owns: `*count` f32
 * values from element `*first`, at `*data`. It waits for the group's reduce, and returns its error;
 * with a GPU, the caller's stream waits. *data is NULL if the group was not reduced since the last
 * step, or if *count is 0. The program may change the values, to clip them. A later zero_reduce of
 * the group adds to them. Valid until the next zero_step or zero_step_end. A zero_step uses changed
 * values too.
 */
zero_status zero_gradient_shard(zero_param *param, float **data, size_t *first, size_t *count);
/*
 * For a program that keeps gradients by itself, the same on all ranks, which communicates nothing.
 * Without `have` the sums of a group are freed, and the next zero_reduce begins anew: the program
 * has taken them. With it, a group that has none gets sums of 0, for the program to write those
 * that a zero_step is to use. It waits for the group's reduce, and returns its error.
 */
zero_status zero_gradient_sums(zero_group *group, bool have);
/*
 * COLLECTIVE over all ranks. Where the setting `shard` divides the ranks, zero_reduce sums over
 * those that store a copy between them. This begins to sum what they have over all ranks, as
 * zero_step and zero_step_begin do by themselves: call it before zero_gradient_shard, which fails
 * with ZERO_E_STATE until then. A zero_reduce after it adds to the sums of the next such call.
 * Else, and for groups that were not reduced since the last one, it does nothing. A failed reduce
 * of one of the groups is its error.
 */
zero_status zero_reduce_replicas(zero_job *job, zero_group **groups, size_t count);
/*
 * COLLECTIVE over all ranks. For the end of a backward pass: sets each of flags[count], 0 or 1, if
 * any rank has set it, such as whether a parameter has a gradient. Signals of zero_stop_on are told
 * with it, so that of the next step zero_step_begin, zero_step_end, and zero_step with
 * gradients_are_means, at stages 1 to 3 and without Muon, need nothing from other ranks by way of
 * the host: with a GPU they wait for none. An error of one rank alone then ends the job, as one of
 * a gather does.
 */
zero_status zero_backward_end(zero_job *job, unsigned char *flags, size_t count);
/*
 * COLLECTIVE over all ranks. Begins a step of the program's own over these groups, the same on all
 * ranks and none of them gathered. Until zero_step_end each rank may read and write the elements
 * that it owns (zero_param_cuts) at zero_shard's address. With a GPU, work on the caller's stream
 * may do so. The groups cannot be gathered or reduced meanwhile, nor a zero_step or a zero_restore
 * done. After an error, such as that of a reduce, these groups' gradients are lost, unless a step
 * was under way already.
 */
zero_status zero_step_begin(zero_job *job, zero_group **groups, size_t count);
/*
 * COLLECTIVE over all ranks. Ends that step. f32 masters, where a step of the library has made
 * some, become the new values; the groups' gradient sums are freed; and at stages 0 to 2 the new
 * values are sent to all ranks, while the caller goes on. Without zero_step_begin: ZERO_E_STATE. As
 * in zero_step_result, *stop tells whether a rank has received a signal of zero_stop_on; it may be
 * NULL, and is unchanged after an error. The report counts the step.
 */
zero_status zero_step_end(zero_job *job, bool *stop);
/*
 * COLLECTIVE over all ranks, after an exception in the program, such as one in the middle of a
 * forward or a backward pass. All gathers are released, however many uses they have; all gradients
 * and sums are dropped; a step that zero_step_begin began is ended, with the values written so far,
 * and so are writes that zero_write_begin began. The job is then ready for the next step.
 * Parameters and states are unchanged. If ranks have begun different operations before, the call
 * fails with ZERO_E_ORDER, and the job can only be closed.
 */
zero_status zero_reset(zero_job *job);

/* ---- named states in checkpoints ------------------------------------------------------------- */

#define ZERO_STATE_NAME_MAX 64 /* bytes of the name of a named state, without the zero */
#define ZERO_STATE_WHOLE    SIZE_MAX

/* A named state: an array that the program keeps beside a parameter, such as its own optimizer's.
 */
typedef struct zero_state_spec {
	const char *name; /* unique for the parameter, UTF-8 without a slash; copied */
	zero_dtype dtype; /* any type that is stored */
	/*
	 * The number of elements of the parameter for which there is one value: 0 or 1 for a value
	 * for each element; a power of two, such as 256, for one for each block, counted from
	 * element 0 of the parameter; ZERO_STATE_WHOLE for one value for all of the parameter, such
	 * as a number of steps.
	 */
	size_t block;
	/*
	 * The values that this rank keeps, back to back. They are those of the elements of the
	 * parameter that it owns, which zero_param_cuts tells, the same at each stage: the values
	 * of all blocks that have one of these elements. Every rank of the group's team keeps the
	 * value of a whole parameter. NULL where the rank keeps none, as outside of the team. It
	 * may be host memory or memory of this rank's GPU.
	 */
	void *data;
} zero_state_spec;

/*
 * Registers a named state of a parameter after zero_layout. zero_save then saves it and
 * zero_restore restores it as they do the library's own optimizer states, also for another number
 * of ranks, another stage and other groups. All ranks register the same states, ranks outside of
 * the team too, in any order; zero_save and zero_restore compare. The state of an alias is its
 * target's.
 *
 * The array is not copied: it belongs to the program, and is valid until zero_state_unregister or
 * zero_close. Where a cut divides a block, each of the ranks that have a part of the block keeps
 * its value, and they must keep the same one: the rank with the block's first element saves it, and
 * all of them get it back. Likewise the team's first rank saves the value of a whole parameter.
 *
 * After a zero_save in the background the array must not change, or be freed, until zero_save_wait
 * has returned, or a zero_step or zero_step_begin of the parameter's group, which copies first what
 * is not written yet, as zero_state_unregister does.
 */
zero_status zero_state_register(zero_param *param, const zero_state_spec *spec);
/* Ends that. If there is no state of this name: ZERO_E_INVALID. */
zero_status zero_state_unregister(zero_param *param, const char *name);

/* ---- adopting tensors that already exist (flatten) ------------------------------------------- */

/* Where a tensor is. With a GPU, any memory of the GPU is on the device. On the host backend, the
   device is what zero_device_alloc returns and the library's own buffers. */
typedef enum zero_location { ZERO_ON_HOST, ZERO_ON_DEVICE } zero_location;

/* Which ranks' values of a tensor become the values of the parameter. */
typedef enum zero_adopt_values {
	ZERO_VALUES_EQUAL,   /* all ranks have the same values */
	ZERO_VALUES_OF_RANK, /* one rank's; `data` may be NULL on the others */
	/* Each rank's own, where each stores a copy. Ranks of a node that share memory store one
	   copy together at stages 1 and 2: each rank supplies the values of its shard. */
	ZERO_VALUES_OWN,
} zero_adopt_values;

/* A tensor that becomes a parameter. */
typedef struct zero_adopt_spec {
	void *data; /* the whole parameter, row by row, in the stored type; it is only read */
	zero_location location;
	zero_adopt_values values;
	int rank; /* of ZERO_VALUES_OF_RANK */
	/*
	 * Frees the tensor, with zero_device_free for example. zero_layout calls it as soon as the
	 * tensor is no longer needed, before it allocates the next flat buffer. No other function
	 * of the job may be called in it. It is not called for NULL data. If it is NULL the caller
	 * keeps the tensor, and both the tensor and the flat buffer use memory.
	 */
	void (*release)(void *context, void *data);
	void *context;
} zero_adopt_spec;

/*
 * Gives a parameter the values of an existing tensor, which zero_layout then puts into the group's
 * flat buffer. Call it before zero_layout, at stages 0 to 2; at stage 3 use zero_load. All ranks
 * adopt the same parameters, with the same location, values and rank. All tensors are on the device
 * or all on the host. Other parameters of the group are 0 and can be loaded after zero_layout.
 * *spec is copied, the data are not. An alias cannot be adopted: adopt its target.
 *
 * zero_layout builds the flat buffers of these groups one after the other. The setting `flatten`
 * says where. For a flat buffer of G bytes, at N ranks and with a stream_chunk of C bytes, each
 * tier needs this much memory on the device, besides the tensors:
 *
 *	tensors on	tier		needs
 *	the device	device		G	copied, then released
 *			distributed	G/N	each rank packs its shard; after the release the
 *						shards are all-gathered
 *			host		2 C	moved to host memory, released, moved back
 *	the host	device		G + 2 C	each rank copies all of it
 *			distributed	G + 2 C	each rank copies its shard; the shards are
 *						all-gathered
 *			host		0	the flat buffer itself is in host memory
 *
 * A flat buffer that is larger than the tensors that were released adds the difference, in every
 * tier. Where ranks of a node share one buffer, at stages 1 and 2, each rank counts its part of G
 * and copies it into place.
 *
 * `distributed` is not possible with ZERO_VALUES_OWN. `auto` uses, for tensors on the device, the
 * first tier for which the budget has room, counting what the stage allocates later: gradients,
 * optimizer states and gathered groups. For tensors on the host it uses `distributed` if ranks
 * share a node and the values allow it, else `device`; without a GPU `distributed` only if some
 * values are those of one rank, since a copy is faster than a gather. All ranks use the same tier.
 *
 * If the budget is known and has no room, zero_layout fails with ZERO_E_MEMORY before any tensor is
 * released. With ZERO_CHECK=1 it also compares, before that, values that were declared equal. If
 * zero_layout fails later, the tensors that were released are lost and the job can only be closed.
 * Tensors that were not released belong to the caller in any case.
 */
zero_status zero_adopt(zero_param *param, const zero_adopt_spec *spec);
/*
 * Returns the whole parameter in its flat buffer, row by row, in the stored type. Read only. The
 * address is the same from zero_layout to zero_close. At stages 1 and 2 values that other ranks
 * stepped may not have arrived yet: this call waits for them, and a program that keeps the pointer
 * must wait after each step too, by this call or by a gather. Returns NULL and sets
 * zero_last_error() at stage 3, before zero_layout, and on ranks outside the group's team. Returns
 * NULL without an error if the parameter is empty.
 */
void *zero_view(zero_param *param);
/*
 * Allocates device memory at a 4096-byte boundary, counted as `caller` in zero_memory. 0 bytes are
 * NULL. On the host backend it is host memory. In a job that calls this function or adopts tensors,
 * an allocation beyond the budget fails with ZERO_E_MEMORY, if the launcher or the plugin has set a
 * budget.
 */
zero_status zero_device_alloc(zero_job *job, size_t bytes, void **data);
/* Frees such memory; NULL is a no-op. zero_close frees the rest. */
void zero_device_free(zero_job *job, void *data);

/* ---- teams and replicas ---------------------------------------------------------------------- */

/*
 * COLLECTIVE over all ranks. Makes a team of `count` ranks of the job, in ascending order, such as
 * those that train one expert of a mixture. All ranks make the same teams in the same order, also
 * those that are not members. A rank that is in several teams must begin their operations in an
 * order that suits all its peers, see COLLECTIVE FUNCTIONS above. zero_close frees the team.
 */
zero_status zero_team_new(zero_job *job, const int *ranks, size_t count, zero_team **team);
/* Returns this rank's index in the team; -1 if it is not a member. */
int zero_team_rank(const zero_team *team);
/* COLLECTIVE over the team, and ZERO_E_INVALID elsewhere. As zero_allgather_bytes, with the bytes
   of the team's ranks, in their order. */
zero_status zero_team_allgather_bytes(zero_team *team, const void *mine, size_t bytes, void *all);
/*
 * Sets the setting `shard`, the same on all ranks, before zero_layout: over how many ranks a copy
 * of what is sharded is stored at stage 3, from 1 to zero_world, which it must divide. With less
 * than zero_world there are several copies, the replicas of hybrid sharding (HSDP). Groups with a
 * team of their own are sharded over that all the same.
 *
 * A gather, and each reduce, then takes place within a team of so many ranks, of one node or of
 * whole nodes where the numbers allow it. The step is divided over all ranks: each owns one shard,
 * as many as there are teams make what a rank stores, and those who store the same sum their
 * gradients once a step and send each other what they stepped. Between n nodes that are teams, that
 * is 4 bytes for a gradient's element and one stored element, times (n - 1) / n, a step, however
 * many micro-batches it has. The order of sums, and so the bits of a step, depend on the size.
 */
zero_status zero_set_shard(zero_job *job, int ranks);

/* ---- GPUs ------------------------------------------------------------------------------------ */

/*
 * With the backend cuda, parameters, shards and gradients are in GPU memory, ranks find each other
 * through PMIx and communicate by NCCL. The setting `backend` selects it; `auto` does so if there
 * is a GPU. A rank uses the GPU that is current in the thread that calls zero_open, or else the one
 * of its index among the ranks of the node. A program that computes on the CPU should set
 * backend=host, whatever the machine has.
 *
 * ORDER. The library works with one stream of the caller. What the caller has enqueued on it before
 * a call is done before the call's own work, and work that the caller enqueues after a function
 * returns sees the function's results. The host waits for the other ranks to agree, for values that
 * it needs (the result of zero_step, ZERO_CHECK=1, zero_export), and where memory becomes the
 * caller's again (the end of zero_load and zero_load_model, and of zero_layout with adopted
 * tensors). It waits for nothing else, so an error of the device may be returned by a later call.
 *
 * CAPTURE. What the library enqueues may be captured with the caller's stream, as a CUDA graph that
 * takes training steps: zero_gather, zero_prefetch, zero_release, zero_gradient, zero_reduce, and
 * zero_step without a result, without a loss scale of the program and without offloaded states.
 * Take some steps first, so that all memory is there. Call zero_agree(job, NULL) and wait for the
 * stream before the capture begins, gather nothing across its beginning or end, and capture on all
 * ranks alike. A call that would wait for the device fails with ZERO_E_STATE. The ranks agree once,
 * while they capture; launch the graph equally often and in one order on all of them. Values that
 * the host passed are part of the graph, such as the learning rate. Delete it before zero_close.
 * From then on a gather that would need other memory than the graph's, because more is gathered at
 * a time, fails with ZERO_E_STATE.
 *
 * POINTERS. The pointers of zero_data, zero_view, zero_shard, zero_gradient, zero_gradient_as and
 * zero_device_alloc are device memory. Kernels and copies on the stream may use them, the host may
 * not. The data of zero_from_rank and zero_from_all may be host memory, page-locked or not, or
 * device memory. A zero_fill_callback writes to host memory. An adopted tensor is where its
 * location says.
 */

/*
 * Sets the caller's stream, a cudaStream_t. It must be ordered after the previous one, and must not
 * be cudaStreamPerThread. NULL is the legacy default stream, which is used unless zero_options or
 * this function set another. On the host backend NULL is a no-op and anything else is
 * ZERO_E_UNSUPPORTED.
 */
zero_status zero_set_stream(zero_job *job, void *stream);
/* The number of this rank's GPU among those that the process sees; -1 on the host backend. */
int zero_device_index(const zero_job *job);
/*
 * COLLECTIVE. Returns an ncclComm_t of all ranks for the caller's own operations. It is made by the
 * first call, and later calls return the same. With zero_open this is all that a program needs to
 * use NCCL. zero_close destroys it; it is aborted when a rank is lost.
 *
 * NCCL allows two communicators of a GPU to be in use at the same time only if all ranks launch
 * their operations in one order (see "Using multiple NCCL communicators concurrently" in its user
 * guide); else they may deadlock. The library launches its operations in the calling thread, within
 * the call that begins them, so the order of the program is the order of the launches. Call the
 * library and use this communicator in the same order on all ranks, from one thread, and call
 * zero_agree(job, NULL) first: the caller's stream then waits for all operations that the library
 * has begun, and what it begins later waits for what is on that stream. From NCCL 2.26 on that call
 * is not needed where all ranks have NCCL_LAUNCH_ORDER_IMPLICIT=1 in their environment before the
 * process makes its first communicator: operations of all communicators then run in the order in
 * which they were launched. As copy engines have no part in that order, the setting `nccl_cta` is
 * then `default` where it is `auto`.
 */
zero_status zero_nccl_comm(zero_job *job, void **comm);

#ifdef __cplusplus
}
#endif

#endif

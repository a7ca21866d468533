/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero.h - ZeRO sharding for training jobs under Slurm and MPI.
 *
 * ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054) shards the parameters, gradients and optimizer
 * states of a data-parallel model over its ranks. The unit here is the GROUP: parameters that are
 * gathered together, usually one layer. They lie one behind the other in one flat buffer which is
 * cut into `world` equal shards; rank r owns shard r. Gathering a group is one all-gather into the
 * buffer the parameters are then read from, reducing its gradient is one reduce-scatter into the
 * owned shard, and a step is AdamW over what is owned. Nothing is staged or copied out afterwards.
 *
 *	zero_open      -> zero_group_new, zero_param_new ... -> zero_layout
 *	               -> zero_load or zero_load_model, or zero_restore from a checkpoint; tensors
 *	                  that exist already: zero_adopt before the layout, zero_view after it
 *	                  (stages 0 to 2)
 *	each step:        zero_gather, use zero_data, zero_release        (forward)
 *	                  zero_gather, fill zero_gradient, zero_reduce, zero_release   (backward)
 *	                  zero_step; zero_prefetch begins gathers ahead; zero_save now and then
 *	zero_close
 *
 * ERRORS. Functions that can fail return a zero_status and never print, exit or abort. On anything
 * but ZERO_OK, zero_last_error() is a full sentence for the calling thread. Functions marked
 * COLLECTIVE are called by all ranks in the same order; they agree on errors, so that they fail on
 * all ranks or on none, each with the sentence of the lowest rank that met one, and no rank waits
 * for a peer that has left. Calls in a different order on two ranks are found out before any data
 * moves and are ZERO_E_ORDER on all ranks; such a job can only be closed.
 *
 * LOST RANKS. Where a rank dies, stops, or exits without zero_close while a job is open, one rank
 * prints a line that says so and the processes of all ranks are ended; so they are where an
 * operation waits for too long, or, on CPUs, zero_open does. That is the one exception to the
 * above. See LOST RANKS in zero(3) for what is caught, and for ZERO_ON_FAULT=return,
 * ZERO_WATCH_SECONDS, ZERO_STALL_SECONDS and ZERO_OPEN_SECONDS.
 *
 * THREADS. Any function may be called from any thread, but all ranks must begin their collective
 * operations in one order: let one thread begin them and others join (a gather of a group that is
 * already gathered or under way joins it). A handle must not be used after zero_close. Begun by a
 * thread that MPI does not allow, or without memory for a few bytes, an operation fails on its own
 * rank alone.
 *
 * UNITS. Counts are elements, sizes are bytes, both size_t and both beyond 2^31.
 *
 * OWNERSHIP. The library owns every handle and buffer that it returns; zero_close frees them all.
 * It keeps no pointer to what a caller passes, unless the function says so. Handles and pointers
 * must not be NULL, unless the function says that they may be.
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
#define ZERO_VERSION_MINOR 1

typedef enum zero_status {
	ZERO_OK = 0,
	ZERO_E_INVALID,     /* an argument or an option has a value that is not allowed */
	ZERO_E_STATE,       /* the call does not fit the moment, such as a load before the layout */
	ZERO_E_MEMORY,      /* no memory for what was asked */
	ZERO_E_FILE,        /* a file or folder cannot be opened, read or written */
	ZERO_E_FORMAT,      /* a file's contents are damaged or do not fit the model */
	ZERO_E_UNSUPPORTED, /* not built in, or not offered by this machine */
	ZERO_E_ORDER,       /* ranks began different operations */
	ZERO_E_COMM,        /* communication failed */
	ZERO_E_APPLICATION, /* the program said so, through zero_agree */
} zero_status;

/* Storage types. Elements are little-endian IEEE; bool is one byte, 0 or 1. */
typedef enum zero_dtype {
	ZERO_DTYPE_PARAM = 0, /* "as it is stored": for the `as` of a gather */
	ZERO_F32,
	ZERO_F16,
	ZERO_BF16,
	ZERO_F64,
	ZERO_I64,
	ZERO_I32,
	ZERO_U8,
	ZERO_BOOL,
	ZERO_DTYPE_DEFAULT, /* what the setting gather_dtype says: for the `as` of a gather */
} zero_dtype;

#define ZERO_MAX_DIMS 8

typedef struct zero_job zero_job;
typedef struct zero_team zero_team;
typedef struct zero_group zero_group;
typedef struct zero_param zero_param;
typedef struct zero_file zero_file;

/* ---- errors and types ------------------------------------------------------------------------ */

/* A few words for a status; a static string. */
const char *zero_strerror(zero_status status);
/*
 * The calling thread's last error: what failed, on which rank and node, with which value, and what
 * to do. Valid until the thread's next call that fails; "" before the first.
 */
const char *zero_last_error(void);
/*
 * The rank on which the calling thread's last error arose. A program that prints an error only
 * where `zero_last_error_rank() == zero_rank(job)` prints an agreed one once.
 */
int zero_last_error_rank(void);

size_t zero_dtype_size(zero_dtype dtype);      /* bytes of an element; 0 for ZERO_DTYPE_PARAM */
const char *zero_dtype_name(zero_dtype dtype); /* "f32", "bf16" ...; a static string */

/* ---- a job ----------------------------------------------------------------------------------- */

/*
 * Where device memory comes from instead of the library's own pools: a framework's caching
 * allocator, say. Called from several threads, by the names of the kinds in zero_memory. Memory
 * begins at a multiple of `alignment`, as alloc must see to, and is used in the order of `stream`
 * (a cudaStream_t); NULL: there is none left. It is given back for the stream that it was allocated
 * for. With an allocator outputs of gathers are not registered with NCCL. Both functions are set,
 * and call none of the job's. Page-locked memory does not come from it.
 */
typedef struct zero_allocator {
	void *(*alloc)(void *context, size_t bytes, size_t alignment, int device, void *stream,
		       const char *kind);
	void (*free)(void *context, void *data, size_t bytes, int device, void *stream);
	void *context;
} zero_allocator;

/* What is not said is 0. */
typedef struct zero_options {
	/*
	 * Settings as "name=value" separated by spaces, such as "stage=3 stream_chunk=40M"; names
	 * are the flags' without "--zero-", with '_' for '-'. NULL or "" adds none. They come
	 * before ZERO_RESOLVED (what the launcher or the Slurm plugin decided), then ZERO_STAGE,
	 * ZERO_STREAM_CHUNK ... (what a user said), then the compiled default.
	 */
	const char *settings;
	/* For the backend cuda; NULL: the library's own. Copied. */
	const zero_allocator *allocator;
	/* For the backend cuda: the stream of zero_set_stream from the beginning on. */
	void *stream;
} zero_options;

/*
 * COLLECTIVE. Joins the ranks that the launcher (zerorun, mpirun, srun --mpi=pmix) started, agrees
 * on the options and opens a job. Without a launcher the job is one rank alone. `options` may be
 * NULL. On CPUs MPI is initialised unless the program has done so, and finalised when the process
 * exits with status 0 after zero_close; if the program asked MPI for less than MPI_THREAD_MULTIPLE,
 * communication runs in the calling thread and overlaps nothing. One job at a time is open in a
 * process.
 */
zero_status zero_open(const zero_options *options, zero_job **job);
/*
 * COLLECTIVE. Frees everything of the job; legal at any moment of its life and on NULL. A peer that
 * is in another operation meanwhile, because this rank gave up, gets ZERO_E_ORDER there. With the
 * setting `report` rank 0 writes the job's report, see REPORT in zero(3); if that fails,
 * zero_last_error() says so there. Returns ZERO_OK. In a forked child it does nothing.
 */
zero_status zero_close(zero_job *job);

int zero_rank(const zero_job *job);       /* for NULL: of this process, as far as known, else 0 */
int zero_world(const zero_job *job);      /* number of ranks; 1 for NULL */
int zero_local_rank(const zero_job *job); /* among the ranks that share this node */
int zero_local_world(const zero_job *job);
/*
 * The resolved value of a setting as text, sizes in bytes ("stream_chunk" -> "41943040"). Sizes of
 * memory are the least of all ranks': "budget", "stream_chunk", and "stream_threshold", which is a
 * number also where `auto` was given. "share" is the number of ranks that share memory with this
 * one, which counts; 1 if none does. "flatten" is, after zero_layout at stages 0 to 2, the tier
 * that all ranks took ("device", "distributed" or "host"; if nothing was adopted, for `auto` the
 * one that the budget has room for, as if the tensors were on the device and equal on all ranks);
 * before that, and at stage 3, the setting as given. NULL for an unknown name. Valid until
 * zero_close.
 */
const char *zero_setting(const zero_job *job, const char *name);

/*
 * COLLECTIVE. Ends a stretch in which every rank did something of its own that may have failed
 * (opened its own file, say). `error` is NULL where all went well, else a sentence. ZERO_OK on all
 * ranks, or ZERO_E_APPLICATION on all of them with the lowest failing rank's sentence.
 */
zero_status zero_agree(zero_job *job, const char *error);
/*
 * COLLECTIVE. Replaces values[i] by sum(weight * values[i]) / sum(weight) over the ranks, folded in
 * rank order in f64: the same bits on all ranks. Weights are >= 0 with a sum > 0; a rank may give
 * 0.
 */
zero_status zero_mean(zero_job *job, double *values, size_t count, double weight);

/* ---- devices --------------------------------------------------------------------------------- */

/*
 * With the backend cuda (the setting `backend`; `auto` takes it where there is a GPU) all memory of
 * parameters, shards and gradients is the GPU's, ranks find each other by PMIx and communicate by
 * NCCL. A rank uses the GPU that is current in the thread that calls zero_open, or else the one of
 * its place among the node's ranks. A program that computes on the CPU says backend=host in its
 * settings, whatever the machine has.
 *
 * ORDER. What a function says is there when it returns is there for what the caller begins on its
 * stream from then on; and what the caller has begun on it before is done first. The host waits for
 * other ranks to agree, for what it must know (the norm in zero_step, ZERO_CHECK=1, zero_export)
 * and for what becomes the caller's again (the end of zero_load, zero_load_model and zero_layout
 * with adopted tensors); for nothing else. An error of the device comes with a later call. The
 * stream is the legacy default stream, unless zero_options or this function name another: a
 * cudaStream_t, which must be in order after the last one, and is not cudaStreamPerThread.
 * ZERO_E_UNSUPPORTED on the host, but for NULL.
 *
 * POINTERS. What zero_data, zero_view, zero_shard, zero_gradient, zero_gradient_as and
 * zero_device_alloc give is the device's memory: kernels and copies on the stream use it, the host
 * does not. zero_from_rank and zero_from_all take memory of the host, page-locked or not, or of the
 * device; a zero_fill writes to the host's; an adopted tensor is where its location says.
 */
zero_status zero_set_stream(zero_job *job, void *stream);
/*
 * COLLECTIVE. An ncclComm_t of all ranks for the caller's own use, made on the first call;
 * zero_open and this are all that a program needs to have NCCL wired up. zero_close destroys it. It
 * is aborted when a rank is lost.
 */
zero_status zero_nccl_comm(zero_job *job, void **comm);

/* ---- teams ----------------------------------------------------------------------------------- */

/*
 * COLLECTIVE over all ranks, before zero_layout. A team of `count` ranks of the job, ascending:
 * such as those that train one expert of a mixture. Every rank makes the same teams in the same
 * order, also those that it is not in. zero_close frees it.
 */
zero_status zero_team_new(zero_job *job, const int *ranks, size_t count, zero_team **team);
int zero_team_rank(const zero_team *team); /* of this rank in it; -1 if it is not */
int zero_team_world(const zero_team *team);

/* ---- groups and parameters ------------------------------------------------------------------- */

typedef struct zero_param_spec {
	const char *name;    /* unique in the job; copied. The tensor's name in an export */
	zero_dtype dtype;    /* storage type; f32, f16 or bf16 if trainable */
	int ndim;            /* 0 (one element) to ZERO_MAX_DIMS */
	const size_t *shape; /* [ndim], copied; a 0 makes the parameter empty, which is legal */
	bool trainable;      /* has a gradient and optimizer states */
	float weight_decay;  /* factor on zero_adamw.weight_decay: 1 for matrices, 0 for biases */
	float lr_scale;      /* factor on zero_adamw.lr; 0 is read as 1 */
	zero_param
		*alias_of; /* tied to this parameter of the same group: shares its storage, has the
	                         same dtype and element count, is neither loaded nor exported */
} zero_param_spec;

/*
 * A new, empty group, its name unique in the job and copied; groups are laid out and stepped in the
 * order in which they were made. The same groups and parameters in the same order on all ranks:
 * zero_layout checks it. `team` is NULL for all ranks, or those that the group is sharded over: the
 * others make the group too, but hold nothing of it. For them zero_load does nothing, zero_shard
 * gives no elements, and gather, reduce and gradients are ZERO_E_INVALID. What is marked COLLECTIVE
 * is so among the ranks of a group's team. Gradients are summed over the team and divided by the
 * number of all ranks: the mean over the samples of the whole job, if every rank's samples reach
 * the team, as those of a mixture's experts do.
 */
zero_status zero_group_new(zero_job *job, const char *name, zero_team *team, zero_group **group);
/*
 * Adds a parameter to a group, before the layout. A parameter used twice in a step (a tied
 * embedding) keeps its gradient buffer from the first use to the last, or is reduced twice: reduces
 * of one step add up.
 */
zero_status zero_param_new(zero_group *group, const zero_param_spec *spec, zero_param **param);
/*
 * COLLECTIVE. Fixes the layout and allocates the shards, their contents zero, or what zero_adopt
 * gave.
 *
 * A group is split into runs by (dtype, trainable). In a run, parameters begin at multiples of 64
 * elements, and the run is padded to a multiple of 64 * world elements, of which rank r owns the
 * r-th part. Bounds are counted in elements and do not depend on the type gathered. The setting
 * `allgather` fixes what is gathered as one: `grouped` keeps the groups, `single` cuts them into
 * single parameters (one of less than 64 elements a rank joins its neighbour), `auto` cuts groups
 * of more than `bucket` bytes. At stages 0 to 2 every rank holds the whole of each run; but at
 * stages 1 and 2 ranks that all share memory hold it between them, each its shard.
 */
zero_status zero_layout(zero_job *job);

/*
 * The part of the parameter that this rank stores: `*count` elements from element `*first` on, at
 * `*data`, in the storage type; valid until zero_close. A parameter may lie on some ranks only:
 * count is then 0 and data NULL. At stages 1 and 2 it is all of the parameter or the rank's shard
 * of it, see zero_layout: zero_view has all of it in either case. To change values use zero_load,
 * which reaches f32 masters too.
 */
zero_status zero_shard(const zero_param *param, void **data, size_t *first, size_t *count);
size_t zero_param_count(const zero_param *param); /* elements; 1 for ndim 0 */
const char *zero_param_name(const zero_param *param);

/* ---- tensors in files (safetensors) ---------------------------------------------------------- */

/* A tensor that lies row by row in a file. From zero_file_tensor, or filled by hand for raw
   data. */
typedef struct zero_tensor {
	const char *name;
	zero_dtype dtype;
	int ndim;
	size_t shape[ZERO_MAX_DIMS];
	const char *path; /* the file that holds the bytes */
	uint64_t offset;  /* bytes from the file's begin to element 0 */
} zero_tensor;

/*
 * COLLECTIVE. Opens a .safetensors file, a model.safetensors.index.json, or a folder with either,
 * and checks every header in full. Close it with zero_file_close, at the latest before zero_close.
 */
zero_status zero_file_open(zero_job *job, const char *path, zero_file **file);
void zero_file_close(zero_file *file);
size_t zero_file_count(const zero_file *file);
/* Tensor i in the order of the files' bytes; the file's own, valid until zero_file_close. */
const zero_tensor *zero_file_tensor(const zero_file *file, size_t i);
/* The tensor of that name, or NULL. */
const zero_tensor *zero_file_find(const zero_file *file, const char *name);

/* ---- partition: each rank fills what it owns ------------------------------------------------- */

typedef enum zero_source_kind {
	ZERO_FROM_FILE, /* `tensor`: each rank reads its own slice with pread */
	ZERO_FROM_RANK, /* `data` on rank `rank`, NULL elsewhere: each rank is sent its own slice */
	ZERO_FROM_ALL,  /* `data` on all ranks, the same values: each copies its own slice */
	ZERO_FROM_CONSTANT, /* every element is `a` */
	ZERO_FROM_UNIFORM,  /* in [a, b), counter-based: the same values at every world size */
	ZERO_FROM_NORMAL,   /* mean a, standard deviation b, likewise */
	ZERO_FROM_CALLBACK, /* `fill` writes the elements that it is asked for */
} zero_source_kind;

/* Writes `count` elements from element `first` on, in the storage type, row by row, to host memory,
   also with a GPU. Any status but ZERO_OK fails the load with ZERO_E_APPLICATION. */
typedef zero_status (*zero_fill)(void *context, void *elements, size_t first, size_t count);

/* Where a parameter's values come from; make one with the functions below. */
typedef struct zero_source {
	const zero_tensor *tensor;
	const void *data;
	zero_source_kind kind;
	int rank;
	double a, b;
	uint64_t seed;
	zero_fill fill;
	void *context;
	bool transpose; /* of a tensor: it is [n, m] where the parameter is [m, n] */
	bool convert;   /* of a tensor: it may be of another dtype, see zero_load */
} zero_source;

zero_source zero_from_file(const zero_tensor *tensor);
zero_source zero_from_rank(int rank, const void *data);
zero_source zero_from_all(const void *data);
zero_source zero_from_constant(double value);
zero_source zero_from_uniform(double low, double high, uint64_t seed);
zero_source zero_from_normal(double mean, double stddev, uint64_t seed);
zero_source zero_from_callback(zero_fill fill, void *context);

/*
 * COLLECTIVE. Fills the parameter from a source of its own dtype and shape; a tensor's are checked.
 * A parameter of more than `stream_threshold` bytes is streamed in pieces of `stream_chunk`.
 * On CPUs neither needs staging memory; with a GPU, files, callbacks and another rank's pageable
 * memory go through two page-locked buffers of `stream_chunk` at most (64 KiB at least). A random
 * element i of parameter p is a function of (seed, p's name, i) alone: Philox 4x32-10 (Salmon et
 * al., SC11). A group must not be gathered.
 *
 * With `convert`, a tensor of f32, f16, bf16 or f64 fills a parameter of any of these, rounded once
 * to nearest even (beyond the range is infinity, a NaN stays one), and one of i64, i32, u8 or bool
 * a parameter of any of those; an integer that does not fit is ZERO_E_FORMAT. With `transpose`, a
 * matrix is turned. Both work by tile, through two buffers of at most 1 MiB and `stream_chunk`
 * each; each rank still reads its own elements only.
 */
zero_status zero_load(zero_param *param, const zero_source *source);
/*
 * COLLECTIVE. Loads params[i] from sources[i], all in one go: parameters that come from different
 * ranks are streamed at the same time, so that none of these is what all wait for. Their groups are
 * of one team. If it fails, any of them may have been changed.
 */
zero_status zero_load_many(zero_param **params, const zero_source *sources, size_t count);

/* ---- flatten: tensors that already exist become views of the flat buffer --------------------- */

/* Where a tensor is. With a GPU any of its memory is the device's. On the host backend that is an
   arena on the host: what zero_device_alloc gives, and the library's own buffers. */
typedef enum zero_location { ZERO_ON_HOST, ZERO_ON_DEVICE } zero_location;

/* Whose values of a tensor count. */
typedef enum zero_values {
	ZERO_VALUES_EQUAL,   /* all ranks have the same */
	ZERO_VALUES_OF_RANK, /* those of one rank; the others' are given up, and may be NULL */
	/* Each rank's, where each has a copy of its own. Ranks of a node that share memory have one
	   between them at stages 1 and 2: each gives its shard of it. */
	ZERO_VALUES_OWN,
} zero_values;

/* A tensor that becomes a parameter; what is not said is 0. */
typedef struct zero_adopt_spec {
	void *data; /* the whole parameter, row by row, in its dtype; it is read only */
	zero_location location;
	zero_values values;
	int rank; /* of ZERO_VALUES_OF_RANK */
	/*
	 * Called, in zero_layout, as soon as nothing of the tensor is needed any more, before
	 * anything of the next flat buffer is allocated. It frees the tensor: with
	 * zero_device_free, say; no other function of the job may be called. Not called for NULL
	 * data. NULL: the caller keeps the tensor, which then takes memory beside the flat buffer.
	 */
	void (*release)(void *context, void *data);
	void *context;
} zero_adopt_spec;

/*
 * A tensor that has the values of this parameter; at stages 0 to 2, before zero_layout, which lays
 * it into the group's flat buffer. All ranks adopt the same parameters, with the same location,
 * values and rank; all are on the device or all on the host. In a group, what is not adopted is
 * zero and can be loaded afterwards. At stage 3 use zero_load. *given is copied, data are not.
 *
 * zero_layout makes the flat buffers of such groups one by one, in order. The setting `flatten`
 * says where. Of the G bytes of a flat buffer, at N ranks and with C for stream_chunk, these are
 * needed on the device, beside the tensors:
 *
 *	on the device  device       G       copied, then released
 *	               distributed  G/N     each packs its shard; all-gathered after the release
 *	               host         2 C     moved to host memory, released, moved back
 *	on the host    device       G + 2 C each rank copies all of it
 *	               distributed  G + 2 C each rank copies its shard; the rest is all-gathered
 *	               host         0       the flat buffer itself is in host memory
 *
 * and, in every tier, what flat buffers take beyond what was released. (Where ranks of a node have
 * one buffer between them, at stages 1 and 2, each counts its part of G, and lays it straight.)
 * `distributed` refuses ZERO_VALUES_OWN. `auto` takes the first for which the budget has room, with
 * what the stage allocates later: gradients, optimizer states, gathered groups. With tensors on the
 * host it takes `distributed` if ranks share a node and values allow it, else `device`. All ranks
 * take the same. If the budget is known and has no room, zero_layout fails with ZERO_E_MEMORY
 * before anything is released. Under ZERO_CHECK=1 values that are declared equal are compared
 * before that.
 *
 * If zero_layout fails later, tensors whose release was called are gone, and the job can only be
 * closed. What was not released is the caller's in any case.
 */
zero_status zero_adopt(zero_param *param, const zero_adopt_spec *given);
/*
 * The whole parameter in its flat buffer, row by row, as it is stored: the same place from
 * zero_layout to zero_close. It waits for what other ranks stepped, as whoever kept the pointer
 * must do after each step, by this or by a gather. NULL, with a sentence, at stage 3, before the
 * layout and on ranks that are not in the team; NULL if it is empty. Read only.
 */
void *zero_view(zero_param *param);

/*
 * Memory of the device, from a 4096-byte boundary, counted as `caller` in zero_memory. In a job
 * that has such memory, or adopts tensors, the device has no more than the budget, if that is known
 * (from the launcher or the plugin): whatever goes beyond is ZERO_E_MEMORY.
 */
zero_status zero_device_alloc(zero_job *job, size_t bytes, void **data);
void zero_device_free(zero_job *job, void *data); /* NULL is legal; zero_close frees the rest */

/* ---- load a whole model ---------------------------------------------------------------------- */

/*
 * How the tensors of a checkpoint become the parameters of a job; all zero is a legal one. The
 * callbacks are called on every rank, in the calling thread, and may not use the job. But for
 * `progress` they must say the same on all ranks, which is checked.
 */
typedef struct zero_load_model_options {
	/*
	 * The name under which a checkpoint has `param`; it stays valid until the next call. NULL:
	 * the checkpoint has no such tensor, nor is it expected to. *transpose is false; where it
	 * is set, the tensor is [n, m] and the parameter [m, n], as of layers that some models
	 * store as [in, out] and others as [out, in]. NULL: every parameter's own name. Aliases
	 * are asked for too.
	 */
	const char *(*tensor_name)(void *context, const char *param, bool *transpose);
	/*
	 * Where the values of a parameter come from that the checkpoint does not have. *source is
	 * *initial, if that is given; any kind but ZERO_FROM_RANK may be set. What it points to
	 * stays valid until zero_load_model returns. Any status but ZERO_OK fails the load with
	 * ZERO_E_APPLICATION.
	 */
	zero_status (*initialise)(void *context, const char *param, zero_source *source);
	/*
	 * This rank has filled `done` of the `total` bytes that it is to fill; `param` came last,
	 * NULL at first. Called once before anything is read and then after each piece, `done`
	 * growing up to `total`. Any status but ZERO_OK ends the load on all ranks with
	 * ZERO_E_APPLICATION.
	 */
	zero_status (*progress)(void *context, const char *param, uint64_t done, uint64_t total);
	void *context; /* handed to the callbacks */
	/* For parameters that the checkpoint does not have; without it and `initialise` they keep
	   the values that they have. */
	const zero_source *initial;
	bool strict_dtype;     /* no tensor is converted: another dtype is ZERO_E_FORMAT */
	bool allow_missing;    /* parameters without a tensor are no error */
	bool allow_unexpected; /* tensors without a parameter are no error */
} zero_load_model_options;

/* What of a job and a checkpoint did not meet; the same on all ranks. */
typedef struct zero_load_model_report {
	size_t missing_count, unexpected_count;
	const char **missing;    /* parameters whose tensor the checkpoint does not have */
	const char **unexpected; /* tensors that no parameter is loaded from */
} zero_load_model_report;

/*
 * COLLECTIVE. Fills all parameters of the job from a checkpoint: a path as for zero_file_open,
 * above all a folder with model.safetensors.index.json. `load` may be NULL, for all zero; `report`
 * may be NULL, else it is filled also if what it says is why the call fails, and is to be freed.
 *
 * Each rank reads, in the order of the files' bytes, the elements that it stores, straight into its
 * shard: at stage 3 every byte is read by one rank; where ranks store whole parameters, each reads
 * all. Converted and transposed elements go through staging as in zero_load, missing parameters are
 * filled by slice: nothing is sent and nothing gathered. f32 masters follow. Ranks agree once
 * before anything is changed, when names, shapes and types have been checked, and then after every
 * 32 chunks (1 GiB at most), so that an error on one rank soon ends all; the parameters then have
 * no certain values and are to be loaded again. No group may be gathered.
 *
 * A tied parameter may be in the checkpoint under its own name, its alias's, or both: an alias is
 * neither missing nor unexpected, and is read only if its target has no tensor.
 */
zero_status zero_load_model(zero_job *job, const char *path, const zero_load_model_options *load,
			    zero_load_model_report *report);
/* Frees the names and empties the report; legal for one that is all zero. */
void zero_load_model_report_free(zero_load_model_report *report);

/* ---- gather ---------------------------------------------------------------------------------- */

/*
 * COLLECTIVE, returns before the data are there. Begins to gather the groups, those of one team as
 * one submission; zero_gather waits for each. (At stages 1 and 2 it waits for what the last step
 * still sends.) A group that is gathered or under way already is passed over; so are, from the
 * first on whose outputs would make more than the setting `gather_limit` bytes with those that are
 * live, all further ones: zero_gather begins them when it comes to them. All ranks must count
 * alike, so releases too come in one order. Ranks of a node that share memory have one output
 * between them, and none for a group that all of them together store and that is wanted as it is
 * stored. `as` is ZERO_DTYPE_PARAM, ZERO_DTYPE_DEFAULT, or the type in which f32, f16 and bf16 parameters are
 * wanted (f32 to bf16 or f16 is cast into the own part of the output before it is sent; f16 or bf16
 * to f32 likewise). Integers stay what they are.
 */
zero_status zero_prefetch(zero_group **groups, size_t count, zero_dtype as);
/*
 * COLLECTIVE. Waits until the group is gathered as `as`, beginning that if need be, and counts one
 * use of it. A group is of one type as long as it is gathered: another is ZERO_E_STATE.
 */
zero_status zero_gather(zero_group *group, zero_dtype as);
/*
 * Ends one use; the last one frees the gathered buffer, as does releasing a mere prefetch. With the
 * setting `check` (ZERO_CHECK=1) a parameter that was changed since the gather without zero_param_changed
 * is ZERO_E_STATE: here on a rank that sees the change, where the group is released all the same,
 * and on all ranks at what this rank next begins with them. It costs each rank two readings of what
 * is gathered.
 */
zero_status zero_release(zero_group *group);
/*
 * The whole parameter, row by row, in the gathered type: valid from gather to release. NULL if not
 * gathered or empty. Read only, but for what zero_param_changed tells to all: ranks may share the bytes.
 */
void *zero_data(const zero_param *param);
/* The type it is gathered as, from the begin of that on; ZERO_DTYPE_PARAM if it is not: zero_prefetch may
   have passed it over. */
zero_dtype zero_gathered_dtype(const zero_param *param);
/*
 * COLLECTIVE. Rank `rank` (of the job, in the group's team) has written to the parameter's
 * zero_data: what it holds there, all of it, becomes the parameter's values: what all ranks have
 * gathered, the shards, and f32 masters. Moments stay. The group is gathered on all ranks and stays
 * so; nobody else writes to the parameter, and nobody reads it between the first change and the
 * return. Other parameters of the group may be changed already and told afterwards, one by one;
 * tied ones are told by any of their names.
 *
 * Gathered in another type than stored, values are cast back, rounded once to nearest even: shards
 * of f32 that are gathered as bf16 become the bf16 values, also where nothing was changed; 16-bit
 * shards that are gathered as f32 become the rounded values, and what is gathered becomes these
 * too. Takes at most `stream_chunk` bytes of staging.
 */
zero_status zero_param_changed(zero_param *param, int rank);

/* ---- gradients and the step ------------------------------------------------------------------ */

/*
 * The type of a group's gradients, before zero_layout and the same on all ranks, which checks it:
 * f32 unless this says f16 or bf16. Half the bytes are then kept and sent. They are summed over the
 * ranks in f32, but what a rank adds up itself is rounded at each addition: give such a group one
 * gradient for each reduce, and let several reduces of a step add up in f32.
 */
zero_status zero_group_gradient_dtype(zero_group *group, zero_dtype dtype);
/*
 * The parameter's gradient, f32, [count], zero at first; add this rank's into it, the mean over its
 * own samples: zero_step divides the sum by the number of ranks (or see zero_adamw.samples). Valid
 * from the first call for the group to zero_reduce of the group. NULL if the parameter is not
 * trainable, the group's gradients are of another type or there is no memory (zero_last_error says
 * which), or if its group is empty. Not collective: ranks may differ in what they use.
 */
float *zero_gradient(zero_param *param);
/* The same in `dtype`, which must be that of the group's gradients. */
void *zero_gradient_as(zero_param *param, zero_dtype dtype);
/*
 * COLLECTIVE, returns before the sums are there, waiting at most for the last reduce but one. Sums
 * the group's gradient over the ranks in f32, each element folded in rank order (f32 of GPUs on
 * several nodes in NCCL's, see ZERO_REDUCE in zero(3)), into the owner's shard. A rank that made no
 * gradient gives zeros. A second reduce before the step adds to the first. What is added to a
 * gradient after its group's last reduce counts for the next step.
 */
zero_status zero_reduce(zero_group *group);

/*
 * A loss scale, for f16: the loss is multiplied by it before the backward pass, so that fewer
 * gradients are too small for the type, and zero_step divides it out. The caller's, and the same on
 * all ranks: zero_step changes it in the same way on all of them. If a gradient is not finite, the
 * step is skipped and scale becomes scale * backoff, but not less than min; after `interval` steps
 * without that it becomes scale * growth, but not more than max. Powers of two scale exactly.
 */
typedef struct zero_loss_scale {
	float scale;         /* to multiply the loss with; min <= scale <= max */
	uint32_t good_steps; /* since it last changed */
	float growth;        /* >= 1 */
	float backoff;       /* in (0, 1]; 1 for a scale that stays as it is */
	float min, max;      /* min > 0, max finite */
	uint32_t interval;   /* 0: it never grows */
} zero_loss_scale;

/* 65536, doubled after 2000 steps up to 2^24, halved down to 1. */
void zero_loss_scale_init(zero_loss_scale *scale);

typedef struct zero_adamw {
	float lr, beta1, beta2, eps, weight_decay; /* betas in [0, 1); eps > 0, 1e-8 is usual */
	float clip;        /* bound on the global gradient norm; 0 for none */
	int micro_batches; /* gradients were added up over so many; 0 is read as 1 */
	/*
	 * For batches of uneven size: how many samples (or their weight, up to 2^53) this rank's
	 * gradient is of, those of all its micro-batches; micro_batches is then 0 or 1. If any rank
	 * says other than 0, every rank's gradient is a sum over its samples, not a mean, and a
	 * rank that says 0 had none. Ranks need not say the same.
	 */
	double samples;
	zero_loss_scale *loss_scale; /* NULL: none */
} zero_adamw;

typedef struct zero_step_result {
	double grad_norm; /* of the mean gradient, before clipping and without the loss scale */
	bool skipped;     /* the norm was not finite: nothing was changed but the loss scale */
	float loss_scale; /* for the next step; 1 if there is none */
	bool stop;        /* a signal of zero_stop_on came, on whatever rank */
} zero_step_result;

/*
 * COLLECTIVE. One step of AdamW (Loshchilov and Hutter, arXiv 1711.05101) over all trainable
 * parameters, with the mean gradient: sum over ranks / (world * micro_batches), or / the sum of all
 * ranks' samples. Groups that were not reduced since the last step are reduced first. No group may
 * be gathered. `result` may be NULL. The gradients are gone afterwards, also after an error, which
 * leaves the loss scale as it was. In f32 the outcome is the same bits at every stage and on every
 * instruction set, at one world size, with one backend, and wherever the optimizer states are.
 *
 * With the setting `offload=optimizer`, moments and masters are in host memory and stepped there.
 * At stages 1 and 2, across nodes, new values are sent group by group while further groups are
 * stepped and after the call returns. A gather that needs no cast, and comes before all else that
 * waits for other ranks, waits for its own group alone. It then communicates nothing: if the call
 * does not fit, that is an error on this rank only.
 */
zero_status zero_step(zero_job *job, const zero_adamw *adamw, zero_step_result *result);

/* ---- checkpoints ----------------------------------------------------------------------------- */

/* What is not said is 0. */
typedef struct zero_save_options {
	/* The program's own bytes, such as its place in the data: rank 0's are kept, and given back
	   by zero_restore. NULL: none. Copied. */
	const void *user;
	size_t user_bytes;
	/* The number of complete checkpoints that remain in the folder when this one is complete:
	   the oldest are deleted. 0: none is deleted. */
	int keep_last;
	/* Returns once the ranks know what to write: a thread of each rank writes while training
	   goes on. What the next step would change before it is written is copied first, group by
	   group: one copy of the rank's shard and states at most, counted as `checkpoint` in
	   zero_memory. With a GPU all of it is copied to host memory before the call returns. */
	bool background;
} zero_save_options;

/*
 * COLLECTIVE. Writes a checkpoint, dir/step-<number of steps>: each rank its own shard and
 * optimizer states, straight from where they are (a GPU's by two page-locked buffers of
 * `stream_chunk`), as a file of safetensors, and rank 0 a manifest, see zero_checkpoint(5). `dir`,
 * made if it is not there, is on a file system that all ranks share, and of this job alone. The
 * checkpoint appears whole or not at all, and is on disk when it does; dir/latest is then a link to
 * it. One of the same step is replaced. No group may be gathered. `options` may be NULL.
 *
 * A save in the background is complete, and seen, soon after the first zero_step (or
 * zero_save_wait, zero_save or zero_close) by which all ranks have written. An error of it is told
 * by the first zero_save_wait or zero_save after that (such a zero_save has made its own checkpoint
 * all the same); zero_close returns ZERO_OK and leaves it as the thread's last error, if that had
 * none. What the program itself writes to zero_data, for zero_param_changed, may be the very place that is
 * still being saved: call zero_save_wait before.
 */
zero_status zero_save(zero_job *job, const char *dir, const zero_save_options *options);
/* COLLECTIVE. Waits until the save in the background is complete, and returns how it ended. ZERO_OK
   if there is none. */
zero_status zero_save_wait(zero_job *job);

/* What a checkpoint says of itself; free it with zero_checkpoint_free. */
typedef struct zero_checkpoint {
	char *path;       /* of the checkpoint; NULL: the folder has none */
	uint64_t step;    /* steps that had been taken */
	int world, stage; /* of the job that saved it */
	void *user;       /* the program's own bytes, the same on all ranks; NULL: none */
	size_t user_bytes;
} zero_checkpoint;

/*
 * COLLECTIVE, after zero_layout. Fills parameters, optimizer states and the number of steps from a
 * checkpoint: `path` is that of one, or a folder of them, whose `latest` is taken. It may have been
 * saved at another number of ranks, stage, offload, or with other groups; parameters must have the
 * same names, types and shapes, and be trainable or not as they were. Each rank reads the ranges of
 * the files that it needs, and every byte is checked before it is used: damage is ZERO_E_FORMAT,
 * with file and tensor. At the same number of ranks training goes on to the same bits.
 *
 * If `checkpoint` is not NULL it is filled, also after some errors. Only then a folder that has no
 * checkpoint, or is not there, is ZERO_OK, with checkpoint->path NULL and nothing changed. After an
 * error parameters and states have no certain values.
 */
zero_status zero_restore(zero_job *job, const char *path, zero_checkpoint *checkpoint);
void zero_checkpoint_free(zero_checkpoint *checkpoint); /* legal for one that is all zero */

/*
 * Asks for an end on a signal, such as the one that Slurm sends before a time limit (`sbatch
 * --signal=USR1@120`) or a preemption (SIGTERM): once any rank got it, the next zero_step says
 * `stop` in its result, on all ranks alike, so that the program can save and exit: with status 75
 * (EX_TEMPFAIL), if it is to be begun again, see --max-restarts in zerorun(1). May be called for
 * several signals, but not for those that tell of a fault; zero_close gives back what they did
 * before.
 */
zero_status zero_stop_on(zero_job *job, int signal);

/* ---- export ---------------------------------------------------------------------------------- */

/*
 * COLLECTIVE. Writes all parameters but aliases in their storage types, for other programs to load:
 * as one file if `path` ends in .safetensors; else as a folder (made if it is not there) with
 * model.safetensors, or, beyond 5 GB, with model-00001-of-0000N.safetensors and so on (a tensor is
 * in one of them) and model.safetensors.index.json, as Hugging Face's libraries load them. Every
 * rank writes its own bytes in place, nothing is gathered: the path is on a file system that all
 * ranks share. A file appears whole or not at all, the index last; what was there is replaced.
 */
zero_status zero_export(zero_job *job, const char *path);

/* ---- accounting ------------------------------------------------------------------------------ */

typedef struct zero_bytes {
	size_t now, peak;
} zero_bytes;

/* Memory of this rank in bytes, by kind. */
typedef struct zero_memory {
	zero_bytes shards;     /* owned parameters; whole ones where a rank holds such */
	zero_bytes gathered;   /* outputs of gathers */
	zero_bytes gradients;  /* full gradient buffers and reduced shards */
	zero_bytes optimizer;  /* moments, and f32 masters of 16-bit parameters */
	zero_bytes staging;    /* the library's own buffers for communication */
	zero_bytes caller;     /* what the program has from zero_device_alloc */
	zero_bytes pinned;     /* page-locked host memory, on the way to a device and back */
	zero_bytes offload;    /* in host memory instead of the device's */
	zero_bytes checkpoint; /* copies, in host memory, of what a save still has to write */
	zero_bytes total;      /* of all these but pinned, offload and checkpoint */
} zero_memory;

zero_status zero_memory_now(zero_job *job, zero_memory *memory);

/* What this rank has sent and read since zero_open, counted where it leaves or enters the
   library. */
typedef struct zero_traffic {
	uint64_t bytes_sent;  /* payload, without the few bytes by which ranks agree */
	uint64_t collectives; /* all-gathers, reduce-scatters, scatters and broadcasts of payload */
	uint64_t bytes_read;  /* of tensors, from files; of checkpoints, with their checksums */
} zero_traffic;

zero_status zero_traffic_now(zero_job *job, zero_traffic *traffic);

#ifdef __cplusplus
}
#endif

#endif

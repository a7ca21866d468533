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
 *	zero_open      -> zero_group_new, zero_param_new ... -> zero_layout -> zero_load ...
 *	each step:        zero_gather, use zero_data, zero_release        (forward)
 *	                  zero_gather, fill zero_gradient, zero_reduce, zero_release   (backward)
 *	                  zero_step
 *	zero_close
 *
 * ERRORS. Functions that can fail return a zero_status and never print, exit or abort. On anything
 * but ZERO_OK, zero_last_error() is a full sentence for the calling thread. Functions marked
 * COLLECTIVE are called by all ranks in the same order; they agree on errors, so that they fail on
 * all ranks or on none, each with the sentence of the lowest rank that met one, and no rank waits
 * for a peer that has left. Calls in a different order on two ranks are found out before any data
 * moves and are ZERO_E_ORDER on all ranks; such a job can only be closed.
 *
 * THREADS. Any function may be called from any thread, but all ranks must begin their collective
 * operations in one order: let one thread begin them and others join (a gather of a group that is
 * already gathered or under way joins it). A handle must not be used after zero_close.
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
	ZERO_PARAM = 0, /* "as it is stored": for the `as` of a gather */
	ZERO_F32,
	ZERO_F16,
	ZERO_BF16,
	ZERO_F64,
	ZERO_I64,
	ZERO_I32,
	ZERO_U8,
	ZERO_BOOL,
} zero_dtype;

#define ZERO_MAX_DIMS 8

typedef struct zero_job zero_job;
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

size_t zero_dtype_size(zero_dtype dtype);      /* bytes of an element; 0 for ZERO_PARAM */
const char *zero_dtype_name(zero_dtype dtype); /* "f32", "bf16" ...; a static string */

/* ---- a job ----------------------------------------------------------------------------------- */

typedef struct zero_options {
	/*
	 * Settings as "name=value" separated by spaces, such as "stage=3 stream_chunk=40M"; names
	 * are the flags' without "--zero-", with '_' for '-'. NULL or "" adds none. They come
	 * before ZERO_RESOLVED (what the launcher or the Slurm plugin decided), then ZERO_STAGE,
	 * ZERO_STREAM_CHUNK ... (what a user said), then the compiled default.
	 */
	const char *settings;
} zero_options;

/*
 * COLLECTIVE. Joins the ranks that the launcher (zerorun, mpirun, srun --mpi=pmix) started, agrees
 * on the options and opens a job. Without a launcher the job is one rank alone. `options` may be
 * NULL. MPI is initialised unless the program has done so, and finalised when the process exits
 * with status 0 after zero_close; if the program asked MPI for less than MPI_THREAD_MULTIPLE,
 * communication runs in the calling thread and overlaps nothing. One job at a time is open in a
 * process.
 */
zero_status zero_open(const zero_options *options, zero_job **job);
/*
 * COLLECTIVE. Frees everything of the job; legal at any moment of its life and on NULL. A peer that
 * is in another operation meanwhile, because this rank gave up, gets ZERO_E_ORDER there. Returns
 * ZERO_OK. In a forked child it does nothing.
 */
zero_status zero_close(zero_job *job);

int zero_rank(const zero_job *job);       /* for NULL: of this process, as far as known, else 0 */
int zero_world(const zero_job *job);      /* number of ranks; 1 for NULL */
int zero_local_rank(const zero_job *job); /* among the ranks that share this node */
int zero_local_world(const zero_job *job);
/*
 * The resolved value of a setting as text, sizes in bytes ("stream_chunk" -> "41943040"). Sizes of
 * memory are the least of all ranks': "budget", "stream_chunk", and "stream_threshold", which is a
 * number also where `auto` was given. "flatten" is, after zero_layout at stages 0 to 2, the tier
 * that all ranks take ("device", "distributed" or "host"; for `auto` the one that the budget has
 * room for, if the tensors are on the device and equal on all ranks); before that, and at stage 3,
 * the setting as given. NULL for an unknown name. Valid until zero_close.
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
 * zero_layout checks it.
 */
zero_status zero_group_new(zero_job *job, const char *name, zero_group **group);
/*
 * Adds a parameter to a group, before the layout. A parameter used twice in a step (a tied
 * embedding) keeps its gradient buffer from the first use to the last, or is reduced twice: reduces
 * of one step add up.
 */
zero_status zero_param_new(zero_group *group, const zero_param_spec *spec, zero_param **param);
/*
 * COLLECTIVE. Fixes the layout and allocates the shards, their contents zero.
 *
 * A group is split into runs by (dtype, trainable). In a run, parameters begin at multiples of 64
 * elements, and the run is padded to a multiple of 64 * world elements, of which rank r owns the
 * r-th part. Bounds are counted in elements and do not depend on the type gathered. The setting
 * `allgather` fixes what is gathered as one: `grouped` keeps the groups, `single` cuts them into
 * single parameters (one of less than 64 elements a rank joins its neighbour), `auto` cuts groups
 * of more than `bucket` bytes. At stages 0 to 2 every rank holds the whole of each run.
 */
zero_status zero_layout(zero_job *job);

/*
 * The part of the parameter that this rank stores: `*count` elements from element `*first` on, at
 * `*data`, in the storage type; valid until zero_close. A parameter may lie on some ranks only:
 * count is then 0 and data NULL. To change values use zero_load, which reaches f32 masters too.
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

/* Writes `count` elements from element `first` on, in the storage type, row by row. Any status but
   ZERO_OK fails the load with ZERO_E_APPLICATION. */
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
 * Neither needs staging memory on the host. A random element i of parameter p is a function of
 * (seed, p's name, i) alone: Philox 4x32-10 (Salmon et al., SC11). A group must not be gathered.
 */
zero_status zero_load(zero_param *param, const zero_source *source);

/* ---- gather ---------------------------------------------------------------------------------- */

/*
 * COLLECTIVE, returns before the data are there. Begins to gather the groups as one submission, all
 * of whose outputs are allocated now; zero_gather waits for each. (At stages 1 and 2 it waits for
 * what the last step still sends.) A group that is gathered or under way already is passed over.
 * `as` is ZERO_PARAM, or the type in which f32, f16 and bf16 parameters are wanted (f32 to bf16 or
 * f16 is cast into the own part of the output before it is sent; f16 or bf16 to f32 likewise).
 * Integers stay what they are.
 */
zero_status zero_prefetch(zero_group **groups, size_t count, zero_dtype as);
/*
 * COLLECTIVE. Waits until the group is gathered as `as`, beginning that if need be, and counts one
 * use of it. A group is of one type as long as it is gathered: another is ZERO_E_STATE.
 */
zero_status zero_gather(zero_group *group, zero_dtype as);
/* Ends one use; the last one frees the gathered buffer, as does releasing a mere prefetch. */
zero_status zero_release(zero_group *group);
/*
 * The whole parameter, row by row, in the gathered type: valid from gather to release. NULL if not
 * gathered or empty. Read only: what is written here reaches no other rank.
 */
void *zero_data(const zero_param *param);

/* ---- gradients and the step ------------------------------------------------------------------ */

/*
 * The parameter's gradient, f32, [count], zero at first; add this rank's into it, the mean over its
 * own samples: zero_step divides the sum by the number of ranks. Valid from the first call for
 * the group to zero_reduce of the group. NULL if the parameter is not trainable or there is no
 * memory (zero_last_error says which), or if its group is empty. Not collective: ranks may differ
 * in what they use.
 */
float *zero_gradient(zero_param *param);
/*
 * COLLECTIVE, returns before the sums are there, waiting at most for the last reduce but one. Sums
 * the group's gradient over the ranks, each element folded in
 * rank order, into the owner's shard. A rank that made no gradient gives zeros. A second reduce
 * before the step adds to the first. What is added to a gradient after its group's last reduce
 * counts for the next step.
 */
zero_status zero_reduce(zero_group *group);

typedef struct zero_adamw {
	float lr, beta1, beta2, eps, weight_decay; /* betas in [0, 1); eps > 0, 1e-8 is usual */
	float clip;        /* bound on the global gradient norm; 0 for none */
	int micro_batches; /* gradients were added up over so many; 0 is read as 1 */
} zero_adamw;

typedef struct zero_step_result {
	double grad_norm; /* of the mean gradient (over ranks and micro-batches), before clipping */
	bool skipped;     /* the norm was not finite: nothing was changed */
} zero_step_result;

/*
 * COLLECTIVE. One step of AdamW (Loshchilov and Hutter, arXiv 1711.05101) over all trainable
 * parameters, with the mean gradient: sum over ranks / (world * micro_batches). Groups that were
 * not reduced since the last step are reduced first. No group may be gathered. `result` may be
 * NULL. The gradients are gone afterwards, also after an error. In f32 the outcome is the same bits
 * at every stage and on every instruction set, at one world size.
 */
zero_status zero_step(zero_job *job, const zero_adamw *adamw, zero_step_result *result);

/* ---- export ---------------------------------------------------------------------------------- */

/*
 * COLLECTIVE. Writes all parameters but aliases as one .safetensors file in their storage types.
 * Every rank writes its own bytes in place: the path is on a file system that all ranks share. The
 * file appears whole or not at all; one that was there is replaced.
 */
zero_status zero_export(zero_job *job, const char *path);

/* ---- accounting ------------------------------------------------------------------------------ */

typedef struct zero_bytes {
	size_t now, peak;
} zero_bytes;

/* Memory of this rank in bytes, by kind. */
typedef struct zero_memory {
	zero_bytes shards;    /* owned parameters; at stages 0 to 2 whole ones */
	zero_bytes gathered;  /* outputs of gathers */
	zero_bytes gradients; /* full gradient buffers and reduced shards */
	zero_bytes optimizer; /* moments, and f32 masters of 16-bit parameters */
	zero_bytes staging;   /* the library's own buffers for communication */
	zero_bytes total;
} zero_memory;

zero_status zero_memory_now(zero_job *job, zero_memory *memory);

/* What this rank has sent to others since zero_open, counted where it leaves the library. */
typedef struct zero_traffic {
	uint64_t bytes_sent;  /* payload, without the few bytes by which ranks agree */
	uint64_t collectives; /* all-gathers, reduce-scatters, scatters and broadcasts of payload */
} zero_traffic;

zero_status zero_traffic_now(zero_job *job, zero_traffic *traffic);

#ifdef __cplusplus
}
#endif

#endif

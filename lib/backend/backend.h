/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only door to hardware: memory, one queue of communication, and the kernels that run on a
 * rank's own data. lib/backend/host implements it with a worker thread and MPI, lib/backend/cuda with streams and
 * NCCL; what both have is in lib/backend. libzero itself never includes an MPI or CUDA header.
 */
#ifndef ZERO_BACKEND_H
#define ZERO_BACKEND_H

#include "core/module.h"

/*
 * Ranks that operate together: all of a job, or a team. The ranks of one node may share memory:
 * then one of them allocates, and all of them read and write the same bytes.
 */
struct zero_team_comm;

struct zero_place {
	int rank, world;             /* rank is -1 where this rank is not one of them */
	int local_rank, local_world; /* among those of this node */
	int shm_rank, shm_world;     /* among those that share memory with this rank: 0 of 1 if
	                                none does. In the order of their ranks */
	int shm_groups;              /* sets of ranks that share memory */
	int shm_world_min;           /* ranks of the smallest of them */
	char node[64];
};

/* All of them share memory, so that their parts of a shared buffer are the whole of it. */
static inline bool zero_place_all_share_memory(const struct zero_place *place)
{
	return place->shm_world == place->world;
}

enum zero_memory_kind {
	ZERO_MEM_SHARDS,
	ZERO_MEM_GATHERED,
	ZERO_MEM_GRADIENTS,
	ZERO_MEM_OPTIMIZER,
	ZERO_MEM_STAGING, /* on the device, for a while */
	ZERO_MEM_CALLER,  /* on the device, what the program asked for */
	/* In host memory, no part of what the device holds. */
	ZERO_MEM_PINNED,     /* on the way to a device and back; where there is none, staging */
	ZERO_MEM_OFFLOAD,    /* what lies there instead of on the device */
	ZERO_MEM_CHECKPOINT, /* copies of what a save still has to write */
	ZERO_MEM_KINDS,
};

/* Whether memory of that kind counts as the device's. */
static inline bool zero_on_device(enum zero_memory_kind kind)
{
	return kind < ZERO_MEM_PINNED;
}

/* Every buffer, and every run in one, is a multiple of 4096 bytes long. */
static inline size_t zero_round_to_pages(size_t bytes)
{
	const size_t page = 4096;

	return (bytes + page - 1) / page * page;
}

/*
 * A buffer of which the ranks that share memory have one between them; a rank that shares with none
 * has one of its own. Each counts its part of the bytes.
 */
struct zero_shared {
	char *data; /* NULL: none */
	size_t bytes;
	enum zero_memory_kind kind;
	void *owner; /* the backend's */
};

enum zero_op_kind {
	/* Makes `shared`, count bytes of the given kind, before the other operations of the
	   submission begin. If it is zeroed, its pages are also there already. */
	ZERO_OP_ALLOC,
	/* recv[world][count] of `to` from every rank's send[count] of `from`. If the types differ,
	   the own slot of recv is cast first and gathered in place; send may be the own slot.
	   Ranks that share `shared` fill it together: recv is at its byte `at`. */
	ZERO_OP_ALL_GATHER,
	/* recv[count] (+)= sum over ranks of their send[world][count] part, in f32 and in rank
	   order; send is of `from`. recv may be the own part of send. */
	ZERO_OP_REDUCE_SCATTER,
	/* recv[bounds[rank+1] - bounds[rank]] = root's send[bounds[rank] ...], in pieces. */
	ZERO_OP_SCATTER,
	/* recv[count] of every rank = root's send[count], in pieces. */
	ZERO_OP_BROADCAST,
	/* recv[world][count] bytes from every rank's send[count]: small things that ranks agree on.
	   Not counted as traffic. */
	ZERO_OP_EXCHANGE,
	/* recv[count] of `to` = send[count] of `from`. Local. */
	ZERO_OP_CAST,
	/* Gives `recv` back once all before it is done. Local. */
	ZERO_OP_FREE,
	/* *team_comm of the `count` ranks of `members`, ascending; it lasts until close. All ranks
	   take part, also those that are not in it. */
	ZERO_OP_TEAM_COMM,
};

struct zero_op {
	enum zero_op_kind kind;
	zero_dtype from, to;
	int root;
	bool accumulate; /* reduce-scatter: add to recv */
	bool zeroed;     /* alloc */
	enum zero_memory_kind memory;
	struct zero_shared *shared; /* the caller's until the submission has been waited for */
	size_t at;
	const void *send;
	void *recv;
	size_t count; /* elements, see above */
	size_t piece; /* scatter and broadcast: elements sent in one message at most */
	const int *members;
	struct zero_team_comm **team_comm;
	const size_t *bounds; /* scatter: [world + 1] element indices into root's send; the caller's
	                         until the submission has been waited for */
};

/*
 * Operations that are submitted, agreed on and completed together. `label` names it in messages
 * ("gather of group 'h.3' as bf16") and is copied. Before any data moves, the ranks compare hash
 * and sizes, and their `status`: if one rank says other than ZERO_OK here, no operation but FREE is
 * run, and the submission ends on all ranks with that rank's status and `error`.
 */
struct zero_submission {
	struct zero_team_comm *team_comm; /* NULL: all ranks */
	const char *label;
	uint64_t hash; /* of what it does, as the label says in full */
	zero_status status;
	const char *error;
	int error_rank;      /* where it arose if all ranks know of it already, else -1 */
	bool leaving;        /* this rank's last: teams that it is in are told too */
	bool waited;         /* the caller waits for it next: no other thread need be woken */
	struct zero_op *ops; /* copied */
	size_t count;
};

/* A submission under way. Reference counted; waiting leaves the references alone. */
struct zero_work;

/* A submission that was run. Times are of CLOCK_MONOTONIC, in nanoseconds. */
struct zero_metered {
	const char *label;
	uint64_t begun, ready, agreed, done; /* ready: to agree with the others */
	uint64_t bytes;                      /* sent */
	bool failed;
};

/* Who wants to know of each submission; called by one thread at a time. */
struct zero_meter {
	void (*add)(void *context, const struct zero_metered *metered);
	void *context;
};

struct zero_backend_config {
	const char *isa;    /* "auto" or the instruction set to use */
	int expected_world; /* number of ranks that the launcher said; 0 unknown */
	int share;          /* ranks of a node that share memory, at most; 0: all of them */
	/* With a device: whose memory it has and the stream that the caller computes on, see
	   zero_options; and how long ranks wait for each other at first. */
	const zero_allocator *allocator;
	void *stream;
	double open_seconds;
	int reduce;                     /* ZERO_REDUCE_AUTO ... */
	const char *nccl;               /* path of the library; "": whatever is found */
	const struct zero_meter *meter; /* NULL: nobody; lives as long as the backend */
};

/* One of several copies. */
struct zero_copy {
	void *to;
	const void *from;
	size_t bytes;
};

struct zero_adamw_args {
	float lr, beta1, beta2, eps;
	float decay;       /* p -= decay * p; lr * weight_decay of the parameter */
	float correction1; /* 1 / (1 - beta1^t) */
	float correction2; /* 1 / (1 - beta2^t) */
	float scale;       /* the gradient is multiplied by this first */
};

/* One of the last submissions of this rank. */
enum { ZERO_RECENT_SUBMISSIONS = 16 };
struct zero_recent_submission {
	uint64_t number;    /* counted from 1 */
	double begun, done; /* see zero_seconds; done 0: under way */
	char label[112];
};

struct zero_backend;

struct zero_backend_ops {
	int abi;
	const char *name; /* "host" */
	bool host_memory; /* its own memory is the host's: values need no staging on their way */

	/* Whether this machine has what it runs on; what is missing is the calling thread's last
	   error. */
	bool (*available)(void);
	/* COLLECTIVE. One at a time in a process. If it fails and *backend is not NULL, place() is
	   known, and it is to be closed. */
	zero_status (*open)(const struct zero_backend_config *config,
			    struct zero_backend **backend);
	/* Completes what was submitted and frees all. */
	void (*close)(struct zero_backend *backend);
	/* Of all ranks, or of a team_comm. */
	void (*place)(const struct zero_backend *backend, const struct zero_team_comm *team_comm,
		      struct zero_place *place);

	/* Memory from a 4096-byte boundary, all zero if `zeroed`; bytes > 0. Shards, gathered
	   parameters and gradients can be read by the ranks that share memory. Safe from any
	   thread. */
	zero_status (*alloc)(struct zero_backend *backend, enum zero_memory_kind kind, size_t bytes,
			     bool zeroed, void **data);
	/* NULL is legal. */
	void (*free)(struct zero_backend *backend, void *data);
	/* From now on more than so many bytes on the device, all that zero_on_device says together,
	   are refused with ZERO_E_MEMORY. SIZE_MAX: no limit, as at first. */
	void (*limit)(struct zero_backend *backend, size_t bytes);
	/* Whether `data` lies in device memory that the program asked for; *bytes of it if it
	   begins there, else 0. */
	bool (*caller_block)(struct zero_backend *backend, const void *data, size_t *bytes);
	/* This rank has done with what ZERO_OP_ALLOC made; an empty one is legal. */
	void (*shared_free)(struct zero_backend *backend, struct zero_shared *shared);
	void (*memory)(const struct zero_backend *backend, zero_memory *memory);
	/* By kind, when the device held most since the last call. */
	void (*memory_at_peak)(struct zero_backend *backend, size_t kinds[ZERO_MEM_KINDS]);
	void (*traffic)(const struct zero_backend *backend, zero_traffic *traffic);
	size_t (*memory_free)(
		const struct zero_backend *backend); /* bytes free, this rank's part */

	/* Queues a submission, to be run after all before it; *work has one reference. */
	zero_status (*submit)(struct zero_backend *backend,
			      const struct zero_submission *submission, struct zero_work **work);
	zero_status (*wait)(struct zero_backend *backend, struct zero_work *work);
	void (*work_get)(struct zero_backend *backend, struct zero_work *work);
	void (*work_put)(struct zero_backend *backend, struct zero_work *work); /* NULL is legal */

	/* What was begun last, the newest first: how many, at most `count`. From any thread, and
	   waits for nobody. */
	size_t (*recent)(struct zero_backend *backend, struct zero_recent_submission *recent,
			 size_t count);
	/* Ends the processes of all ranks, this one too. From any thread; may return before they
	   have ended, or not at all. */
	void (*abort)(struct zero_backend *backend, int status, const char *text);

	/* Makes what the caller computes on, see zero_set_stream. NULL: there are none. */
	void (*set_stream)(struct zero_backend *backend, void *stream);
	/* COLLECTIVE. A communicator of the caller's own, see zero_nccl_comm; NULL: there are
	   none. */
	zero_status (*caller_comm)(struct zero_backend *backend, void **comm);

	/*
	 * Kernels on a rank's own data, in the order of the calls, and after what was waited for. A
	 * device may still be at them when they return: its errors come with the next submission or
	 * `reach`. copy takes any memory, which is free again, and can be read by the host, once it
	 * was reached. The others take memory of which a part at least is the backend's own; adamw
	 * and cast also such that is all in the host's (kinds OFFLOAD and PINNED), and then are
	 * done when they return: what they read must have been reached.
	 */
	/* Up to here; to be reached. */
	uint64_t (*event_record)(struct zero_backend *backend);
	/* Waits until all that was called before the mark is done. */
	zero_status (*event_wait)(struct zero_backend *backend, uint64_t mark);
	void (*fill_constant)(struct zero_backend *backend, zero_dtype dtype, void *out,
			      size_t count, double value);
	/* Elements first .. first + count of the stream (seed, stream); f32, f16, bf16, f64. */
	void (*fill_uniform)(struct zero_backend *backend, zero_dtype dtype, void *out,
			     size_t first, size_t count, double low, double high, uint64_t seed,
			     uint64_t stream);
	void (*fill_normal)(struct zero_backend *backend, zero_dtype dtype, void *out, size_t first,
			    size_t count, double mean, double stddev, uint64_t seed,
			    uint64_t stream);
	void (*copy)(struct zero_backend *backend, void *to, const void *from, size_t bytes);
	/* The same for many, such as the tensors of a group. `copies` is free on return. */
	void (*copy_many)(struct zero_backend *backend, const struct zero_copy *copies,
			  size_t count);
	void (*cast)(struct zero_backend *backend, zero_dtype to, void *out, zero_dtype from,
		     const void *in, size_t count);
	/* Whether values of type `from` can become `to`: both floating, or both integers or
	   bool. */
	bool (*convertible)(const struct zero_backend *backend, zero_dtype to, zero_dtype from);
	/* Between such types, in host memory; floating ones are rounded once, to nearest even.
	   False: the integer *bad does not fit. Both are aligned to their elements. */
	bool (*convert)(struct zero_backend *backend, zero_dtype to, void *out, zero_dtype from,
			const void *in, size_t count, size_t *bad);
	/* out[c * out_stride + r] = in[r * in_stride + c] for r < rows and c < columns, in host
	   memory; strides are elements. */
	void (*transpose)(struct zero_backend *backend, void *out, size_t out_stride,
			  const void *in, size_t in_stride, size_t rows, size_t columns,
			  size_t element_size);
	/* *sum, which on a device is in memory of kind PINNED, is there once it was reached. */
	void (*norm2)(struct zero_backend *backend, const float *x, size_t count, double *sum);
	/* p, m, v, g: f32[count]; `low` is NULL, or p is written there too as `low_dtype`. */
	void (*adamw)(struct zero_backend *backend, const struct zero_adamw_args *args, float *p,
		      float *m, float *v, const float *g, void *low, zero_dtype low_dtype,
		      size_t count);
};

#endif

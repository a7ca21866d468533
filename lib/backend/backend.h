/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The only interface to hardware. A backend is a module, opened with dlopen, that owns the memory
 * of a rank, moves data between ranks and runs kernels on the rank's own data. libzero calls it
 * through struct zero_backend_ops and includes no header of MPI or CUDA itself.
 *
 * lib/backend/host is a backend on CPUs: MPI, and one thread that runs what was submitted.
 * lib/backend/cuda is one on NVIDIA GPUs: CUDA streams and NCCL. lib/backend/none moves no tensors.
 * Of the files of lib/backend itself, libzero has those that need no hardware (queue.c, agree.c,
 * progress.c, workers.c, cpu_step.c); account.c and team_comm.c are linked into the backends that
 * need them. See comm.h, and rendezvous.h for ranks that meet without MPI.
 *
 * Functions marked COLLECTIVE return on no rank before all ranks have called them.
 */
#ifndef ZERO_BACKEND_H
#define ZERO_BACKEND_H

#include "core/module.h"

/* The ranks that take part in an operation: those of a team. NULL stands for all ranks. */
struct zero_team_comm;

struct zero_net;
struct zero_net_ops;

/*
 * Where this rank stands among the ranks of the job, or of a team. Ranks of one node may share
 * memory: then one of them allocates a buffer, and all of them read and write the same bytes. The
 * option `share` limits how many do, so that a node can have several such sets of ranks.
 */
struct zero_rank_info {
	int rank, world;             /* rank is -1 if this rank is not in the team */
	int local_rank, local_world; /* among the ranks of this node */
	int shm_rank, shm_world;     /* among the ranks that share memory with this one: 0 and 1 if
	                                none does. Ordered by rank */
	int shm_groups;              /* number of sets of ranks that share memory */
	int shm_world_min;           /* ranks in the smallest of these sets */
	char node[64];               /* host name */
};

/* Whether all ranks share memory with each other. */
static inline bool zero_all_share_memory(const struct zero_rank_info *place)
{
	return place->shm_world == place->world;
}

/* What memory is used for. Use is counted, and shown to the user, by kind. */
enum zero_memory_kind {
	/* On the device. */
	ZERO_MEM_SHARDS,
	ZERO_MEM_GATHERED,
	ZERO_MEM_GRADIENTS,
	ZERO_MEM_OPTIMIZER,
	ZERO_MEM_STAGING, /* buffers of communication */
	ZERO_MEM_CALLER,  /* by zero_device_alloc, and what it says that it holds */
	/* In host memory beside a device. A backend whose own memory is the host's counts PINNED as
	   STAGING. */
	ZERO_MEM_PINNED,     /* page-locked, for copies to and from the device */
	ZERO_MEM_OFFLOAD,    /* optimizer states and flat buffers that are kept off the device */
	ZERO_MEM_CHECKPOINT, /* snapshots that a save still has to write */
	ZERO_MEM_KINDS,
};

/* The name of a kind in reports and plans, which is that of the member of zero_memory. */
static inline const char *zero_memory_kind_short(enum zero_memory_kind kind)
{
	static const char *const names[ZERO_MEM_KINDS] = {
		"shards", "gathered", "gradients", "optimizer",  "staging",
		"caller", "pinned",   "offload",   "checkpoint",
	};

	return names[kind];
}

/* Whether memory of that kind is the device's, and counts against its limit. */
static inline bool zero_on_device(enum zero_memory_kind kind)
{
	return kind < ZERO_MEM_PINNED;
}

/* Buffers, and the segments in them, are multiples of 4096 bytes long: windows of NCCL must be. */
static inline size_t zero_round_to_pages(size_t bytes)
{
	const size_t page = 4096;

	return (bytes + page - 1) / page * page;
}

/*
 * A buffer that ZERO_OP_ALLOC made. Ranks that share memory have one such buffer between them, and
 * each counts its part of the bytes; a rank that shares memory with none has its own.
 */
struct zero_shared {
	char *data; /* NULL: there is no buffer */
	char *base; /* of a gather buffer: another address of the same memory, which
	               communication uses. Else `data`, or NULL */
	size_t bytes;
	enum zero_memory_kind kind;
	void *owner; /* the backend's own */
};

/* Where communication and kernels of the backend access a buffer. */
static inline char *zero_shared_base(const struct zero_shared *shared)
{
	return shared->base ? shared->base : shared->data;
}

/* The operations of a submission. COLLECTIVE but for CAST and FREE. */
enum zero_op_kind {
	/* Allocates op->shared: `count` bytes of kind `memory`. It precedes the other operations of
	   its submission. If `zeroed`, its bytes are 0 and its pages are resident. If `recv` is an
	   address of reserve, the buffer is there. If `own`, no other rank shares it. */
	ZERO_OP_ALLOC,
	/* recv[world][count] of type `to` = every rank's send[count] of type `from`. If the types
	   differ, each rank casts its values into its own part of recv and gathers from there. send
	   may be this rank's part of recv. With `shared`, recv is at byte `at` of that buffer, and
	   the ranks that share it fill it together. */
	ZERO_OP_ALL_GATHER,
	/* recv[count] of f32 = sum over all ranks of their send[world][count] at this rank's part;
	   send is of type `from`. Added in f32, in rank order where the backend promises that. With
	   `accumulate` the sum is added to recv. recv may be this rank's part of send. */
	ZERO_OP_REDUCE_SCATTER,
	/* recv = this rank's slice of the root's send[count], of type `from`; see zero_op_slice.
	   The root has at most `piece` elements under way of each, or in a device of all
	   together. */
	ZERO_OP_SCATTER,
	/* recv[count] on every rank = the root's send[count], of type `from`, in messages of
	   `piece` elements at most. recv may be send on the root. */
	ZERO_OP_BROADCAST,
	/* Each rank sends op->sends to ranks, also itself, and receives op->receives: the first one
	   that it sends to a rank is the first that the rank receives from it, and so on, and these
	   have the same count. Elements are of type `from`. */
	ZERO_OP_ALL_TO_ALL,
	/* recv[world][count] bytes in host memory = every rank's send[count]. For small things that
	   ranks agree on; not counted as traffic. With `on_device` both are in the backend's
	   memory, and a device does it without the host. */
	ZERO_OP_ALLGATHER_BYTES,
	/* recv[count] of type `to` = send[count] of type `from`, on this rank alone. With `shared`,
	   recv is at byte `at` of that buffer. */
	ZERO_OP_CAST,
	/* Frees `recv`, memory of alloc, once everything submitted before is done. Done on this
	   rank alone, and also if the submission fails. */
	ZERO_OP_FREE,
	/* Makes a communicator of the ranks members[count], ascending, and stores it in *team_comm,
	   where it stays until close. All ranks of the job take part, also those that are not
	   members. If it `divides` the ranks into teams of one size, each rank names its own, which
	   is number `root` of them. */
	ZERO_OP_TEAM_COMM,
};

/* What a rank sends to another one, or receives from it. */
struct zero_transfer {
	int rank;
	void *data;
	size_t count; /* elements, > 0 */
};

/* Members that an operation's kind does not name are ignored. */
struct zero_op {
	enum zero_op_kind kind;
	zero_dtype from, to;
	int root; /* a rank of the team */
	bool accumulate;
	bool divides;
	bool zeroed;
	bool on_device;
	bool own;
	enum zero_memory_kind memory;
	struct zero_shared *shared; /* stays the caller's; valid until the wait returns */
	size_t at;
	const void *send;
	void *recv;
	size_t count; /* elements; bytes for ALLOC and ALLGATHER_BYTES, ranks for TEAM_COMM */
	size_t piece;
	const int *members;
	struct zero_team_comm **team_comm;
	size_t first, shard; /* see zero_op_slice */
	/* Of ALL_TO_ALL; they stay the caller's, and valid until the wait returns. */
	const struct zero_transfer *sends, *receives;
	size_t send_count, receive_count;
};

/*
 * Of a SCATTER, whose send is elements [first, first + count) of an array of which each rank has
 * `shard` elements: where in send the rank's slice begins, and that of the rank before it ends.
 */
static inline size_t zero_op_slice(const struct zero_op *op, int rank)
{
	size_t at = op->shard * (size_t)rank;

	return at <= op->first ? 0 : at - op->first >= op->count ? op->count : at - op->first;
}

/* What a submission is for. */
enum zero_work_kind {
	ZERO_WORK_GATHER,
	ZERO_WORK_REDUCE,
	ZERO_WORK_UPDATE, /* parameters after a step, to the other ranks */
	ZERO_WORK_STEP,   /* the gradients' norm */
	ZERO_WORK_LOAD,
	ZERO_WORK_FLATTEN,
	ZERO_WORK_CHECKPOINT,
	ZERO_WORK_PROGRAM, /* zero_mean, zero_agree */
	ZERO_WORK_OTHER,
	ZERO_WORK_KINDS,
};

enum { ZERO_WORK_GROUP = 96 }; /* bytes of a group's name that are kept, or of several names */

/*
 * Operations that run and complete together. Ranks agree on a submission that is `agreed`, and on
 * every one on the host: before any data moves they compare `hash` and the kinds, types and counts
 * of the operations. If they differ, the submission fails on all ranks with ZERO_E_ORDER and a
 * sentence that names two ranks and their labels. If a rank has a `status` other than ZERO_OK, no
 * operation but FREE is run, and the submission fails on all ranks with that status and `error`.
 *
 * On a device a submission that is not agreed is enqueued at once. An error of one rank then ends
 * communication on all ranks: they learn of it from the watch, or in their next call.
 */
struct zero_submission {
	struct zero_team_comm *team_comm; /* NULL: all ranks */
	enum zero_work_kind kind;
	const char *group;  /* or groups; NULL: none */
	const char *label;  /* for messages, "gather of group 'h.3' as bf16" */
	uint64_t hash;      /* of all that must be equal on all ranks */
	zero_status status; /* an error of this rank */
	const char *error;
	int error_rank;      /* the rank of the error if all ranks know it already, else -1 */
	bool agreed;         /* ranks agree on it on every backend */
	bool leaving;        /* this rank's last one: the error is also sent to its teams */
	bool waited;         /* the caller waits for it next, so no thread need be woken for it */
	struct zero_op *ops; /* [count]; submit copies them, and the texts */
	size_t count;
};

/* A submission that was queued, with a count of references. It is freed with the last one. */
struct zero_work;

/* How long a submission took. Times are CLOCK_MONOTONIC in nanoseconds. */
struct zero_metered {
	enum zero_work_kind kind;
	const char *group; /* "": none */
	const char *label;
	uint64_t begun;
	uint64_t ready;  /* this rank was ready to agree with the others */
	uint64_t agreed; /* all ranks were */
	uint64_t done;
	uint64_t bytes; /* sent by this rank */
	bool failed;
};

/* Receives the times of each submission, from one thread at a time. */
struct zero_meter {
	void (*add)(void *context, const struct zero_metered *metered);
	void *context;
};

/* How a rank has spent its time, in seconds. */
struct zero_spent {
	double own;    /* it communicated nothing */
	double waited; /* for others to come, or for what was communicated */
};

struct zero_kernels;
struct zero_comm;

struct zero_backend_config {
	const struct zero_kernels *kernels; /* on host memory */
	/* COLLECTIVE. Agrees on a status outside of a submission, so that a rank which cannot go on
	   does not leave the others waiting. Every rank returns the error of the lowest rank that
	   has one. */
	zero_status (*agree_status)(struct zero_comm *comm, zero_status status);
	int expected_world; /* number of ranks according to the launcher; 0 if unknown */
	int share;          /* most ranks of a node that share memory; 0: all of them */
	/* For a device; see zero_options. */
	const zero_allocator *allocator; /* NULL: the backend's own */
	void *stream;                    /* that the caller computes on */
	double open_seconds;             /* how long open waits for the other ranks */
	int reduce;                      /* ZERO_REDUCE_NCCL ... */
	int nccl_cta;                    /* ZERO_NCCL_CTA_AUTO ... */
	bool check;                      /* late accesses are to be found, whatever that costs */
	const char *nccl;                /* path of the library; "": search for it */
	/* For a backend whose ranks meet without MPI: it is joined by open, and closed after it. */
	struct zero_net *net;
	const struct zero_net_ops *net_ops;
};

/* An element of copy_many. */
struct zero_copy {
	void *to;
	const void *from;
	size_t bytes;
};

/* See adamw in kernels/kernels.h for the formula. */
struct zero_adamw_args {
	float lr, beta1, beta2, eps;
	float decay;       /* lr * weight_decay of the parameter: p -= decay * p */
	float correction1; /* 1 / (1 - beta1^t) */
	float correction2; /* 1 / (1 - beta2^t) */
	float scale;       /* factor of the gradient, applied first */
};

/* See muon_momentum and muon_update in kernels/kernels.h for the formulas. */
struct zero_muon_args {
	float lr;    /* of the parameter, with what its shape makes of it */
	float decay; /* lr * weight_decay of the parameter: p -= decay * p */
	float momentum;
	float scale; /* factor of the gradient, applied first */
	bool nesterov;
};

/* How a matrix is orthogonalised: x = x / |x|, and then `steps` times
   x = a x + (b (x x') + c (x x')^2) x; with x' x from the right if that is smaller. */
struct zero_newton_schulz {
	float a, b, c;
	float eps; /* the least |x| that is divided by */
	int steps;
};

/* Elements of f32: a copy of the matrix, and two of x x'. */
static inline size_t zero_newton_schulz_scratch(size_t rows, size_t columns)
{
	size_t s = rows < columns ? rows : columns;

	return rows * columns + 2 * s * s;
}

/* Where the moments of elements to step are: f32, or codes with an absmax for each ZERO_BLOCK of
   them, of which the first begins at the first element; see kernels/kernels.h. */
enum { ZERO_BLOCK = 256 };
struct zero_moments {
	float *m, *v; /* NULL: the others are */
	uint8_t *m_codes, *v_codes;
	float *m_absmax, *v_absmax;
};

/*
 * What a step makes of the norm, in memory of the backend: the kernel that steps reads it there, so
 * that a device need not ask the host.
 */
struct zero_step_state {
	uint64_t steps;                 /* that were taken */
	double norm;                    /* of the mean gradient, unscaled and before clipping */
	float scale;                    /* see zero_adamw_args */
	float correction1, correction2; /* likewise; of a group's state */
	uint32_t skipped;               /* 1: the norm is not finite, and nothing is stepped */
	zero_loss_scale loss_scale;     /* see zero_device_loss_scale */
};

/* Bytes of the state, and of the norms of this rank and of all ranks behind it. */
static inline size_t zero_step_state_bytes(size_t world)
{
	return zero_round_to_pages(sizeof(struct zero_step_state) + (world + 1) * sizeof(double));
}

struct zero_step_rule {
	struct zero_step_state *state;
	const double *norms; /* [world]: squared norms of the ranks' sums */
	int world;
	bool scaled; /* by state->loss_scale, which is then updated */
	double mean; /* factor that makes the mean gradient of the sums */
	float clip;
};

/* Each group has a state too, since it may be stepped less often than the job. Its norm and its
   loss scale are not used. */
struct zero_group_rule {
	const struct zero_step_state *state; /* the job's, of this step */
	struct zero_step_state *groups;      /* [count] */
	size_t count;
	float beta1, beta2;
};

/* A submission that this rank has begun. */
struct zero_begun {
	uint64_t number;    /* counted from 1 */
	double begun, done; /* see zero_seconds; done is 0 while it is under way */
	/* Its team, counted from 1 in the order in which teams were made, 0 for the job; how many
	   ranks that has; and its number among the submissions of the team. */
	uint32_t team, ranks;
	uint64_t sequence;
	char label[112];
};

/* How many submissions of a team a rank has done. */
struct zero_team_sequence {
	uint32_t team;
	uint64_t sequence;
};

enum { ZERO_TEAMS_REPORTED = 16 };

/* What a rank is doing: the submission that it began last or, where the device is behind and is
   watched, the first one that the device has not done. */
struct zero_recent_submission {
	struct zero_begun what;
	bool waiting;   /* for other ranks to begin it too; of a device: at all */
	uint32_t teams; /* how many it has; ZERO_TEAMS_REPORTED + 1 if not all are reported */
	struct zero_team_sequence sequences[ZERO_TEAMS_REPORTED];
};

struct zero_backend;

/*
 * The table of a backend module. An operation that fails returns a status, and its sentence is the
 * calling thread's last error (zero_core->fail). What all backends do alike is not in it: libzero
 * runs submissions on the communicator that open makes (comm.h), and has the kernels of the CPU
 * from `kernels` (workers.h).
 */
struct zero_backend_ops {
	int abi;          /* ZERO_MODULE_ABI */
	const char *name; /* "host", "cuda" */
	bool host_memory; /* the CPU can read the memory of alloc: values need no staging */
	/* Ranks only exchange, agree and are watched: there are no hardware, memory, teams, traffic
	   and kernels, which are NULL below, and a rank may end while others work. */
	bool watch_only;

	/* ---- opening and closing ---- */

	/* Whether this machine has the hardware. If not, the last error says what is missing. NULL:
	   it needs none. */
	bool (*available)(void);
	/* The kernels on host memory for an instruction set; see zero_kernels_choose. */
	const struct zero_kernels *(*kernels)(const char *isa);
	/*
	 * COLLECTIVE. Connects the ranks that the launcher started, and sets *comm to all of them.
	 * One backend can be open at a time in a process. On failure *backend may be other than
	 * NULL: then *comm has this rank's place, so that the caller can name it, and the caller
	 * must close the backend.
	 */
	zero_status (*open)(const struct zero_backend_config *config, struct zero_backend **backend,
			    struct zero_comm **comm);
	/* Frees the backend and all of its memory. What was submitted is complete. */
	void (*close)(struct zero_backend *backend);

	/* ---- memory: safe from any thread ---- */

	/* Allocates bytes > 0 at a multiple of 4096 bytes, all zero if `zeroed`. Returns
	   ZERO_E_MEMORY if there is none or if the limit would be passed. Freed by free. */
	zero_status (*alloc)(struct zero_backend *backend, enum zero_memory_kind kind, size_t bytes,
			     bool zeroed, void **data);
	/* Frees memory of alloc at once. NULL is a no-op. See also ZERO_OP_FREE. */
	void (*free)(struct zero_backend *backend, void *data);
	/* Releases this rank's use of a buffer of ZERO_OP_ALLOC and clears *shared; its memory goes
	   when all ranks that share it have done so. A cleared *shared is a no-op. Not
	   COLLECTIVE. */
	void (*shared_free)(struct zero_backend *backend, struct zero_shared *shared);
	/* Reserves a range of addresses, without memory, for a gather buffer of ZERO_OP_ALLOC; it
	   stays until unreserve or close. While no buffer is there, a read of it ends the process.
	   NULL in a backend whose gather buffers have no fixed addresses. */
	zero_status (*reserve)(struct zero_backend *backend, size_t bytes, void **address);
	/* Puts the memory that was at a reserved address last there again, if no other gather
	   buffer has it now, and fills *shared. Returns whether it did. Ranks that gather and free
	   gather buffers in one order get the same result. NULL in a backend where ZERO_OP_ALLOC
	   costs nothing more. */
	bool (*reuse)(struct zero_backend *backend, void *address, size_t bytes,
		      struct zero_shared *shared);
	/* Returns the address of the gather buffer that has this memory now; NULL if none does. */
	void *(*holder)(struct zero_backend *backend, void *address);
	/* Gives the range back. No buffer may be there. NULL is a no-op. */
	void (*unreserve)(struct zero_backend *backend, void *address, size_t bytes);
	/* Limits the bytes on the device, over all kinds that zero_on_device counts; SIZE_MAX, the
	   initial value, is no limit. What is in use already stays. */
	void (*limit)(struct zero_backend *backend, size_t bytes);
	/* How much memory of the device the program has from elsewhere, which counts as
	   ZERO_MEM_CALLER. NULL in a backend without a device. */
	void (*hold)(struct zero_backend *backend, size_t bytes);
	/* Whether `data` lies in a block of kind ZERO_MEM_CALLER. *bytes becomes the block's size
	   if `data` is its first byte, else 0. */
	bool (*caller_block)(struct zero_backend *backend, const void *data, size_t *bytes);
	/* Fills *memory with bytes in use and their peak, by kind; and, unless it is NULL, at_peak
	   with the bytes of each kind at the moment when memory on the device was highest since the
	   last call that asked for them. */
	void (*memory)(struct zero_backend *backend, zero_memory *memory,
		       size_t at_peak[ZERO_MEM_KINDS]);
	/* Returns the bytes that are free, divided by the ranks that share the device or node. */
	size_t (*memory_free)(const struct zero_backend *backend);
	/* Gives freed memory of the host, which is kept for a later alloc, back to the system; with
	   a device, once that is done with it, which it waits for. NULL where no memory is kept. */
	void (*trim)(struct zero_backend *backend);

	/* ---- ends ---- */

	/* Ends the processes of all ranks, this one included, with that exit status; `text` is for
	   the launcher's log. From any thread. It may return before they have ended. */
	void (*abort)(struct zero_backend *backend, int status, const char *text);
	/* COLLECTIVE. After close, if the process opens no other job of this backend; NULL: nothing
	   is left to be done. */
	void (*finalise)(void);

	/* ---- the caller's own; NULL in a backend without a device ---- */

	/* Sets the stream that the caller computes on; see zero_set_stream. */
	void (*set_stream)(struct zero_backend *backend, void *stream);
	/* The device's number among those that the process sees; see zero_device_index. */
	int (*device_index)(const struct zero_backend *backend);
	/* Writes the device's model and UUID: "NVIDIA H100, GPU-8932f937-...". */
	void (*device_text)(const struct zero_backend *backend, char *text, size_t size);
	/* Whether what is enqueued on that stream is being captured. */
	bool (*capturing)(struct zero_backend *backend);
	/* COLLECTIVE. Makes a communicator for the caller's own use; see zero_nccl_comm. */
	zero_status (*caller_comm)(struct zero_backend *backend, void **comm);

	/*
	 * ---- copies and kernels ----
	 *
	 * They run in the order of the calls, and after each submission that was waited for. A
	 * device may still run them when they return: its errors come with the next submission or
	 * event_wait.
	 */

	/* Copies bytes between host and device memory, also the program's own, in any direction,
	   without overlap. */
	void (*copy)(struct zero_backend *backend, void *to, const void *from, size_t bytes);
	/* Copies `count` blocks, such as the tensors of a group. `copies` may be freed on
	   return. */
	void (*copy_many)(struct zero_backend *backend, const struct zero_copy *copies,
			  size_t count);
	/* Runs kernel ZERO_K_... of kernels.h on memory of alloc or ZERO_OP_ALLOC. NULL in a
	   backend without a device, as are the next three. */
	void (*launch)(struct zero_backend *backend, int kernel, const void *arguments);
	/* Adds the sum of the squares of x[count] to *sum. */
	void (*norm2)(struct zero_backend *backend, const float *x, size_t count, double *sum);
	/* Records an event after all kernels so far. Returns a number for event_wait. */
	uint64_t (*event_record)(struct zero_backend *backend);
	/* Waits until all kernels before the event are done: the CPU may then read their results,
	   and free or overwrite their inputs. Returns an error of the device. */
	zero_status (*event_wait)(struct zero_backend *backend, uint64_t event);
	/* Opens the library of gemm that orthogonalise needs. A sentence says where it was
	   looked for. Any number of times. */
	zero_status (*open_gemm)(struct zero_backend *backend);
	/* Makes x[rows][columns] the nearest matrix with equal singular values, nearly, by `steps`
	   iterations of Newton and Schulz with these coefficients;
	   `scratch` has zero_newton_schulz_scratch(rows, columns) elements. */
	zero_status (*orthogonalise)(struct zero_backend *backend,
				     const struct zero_newton_schulz *rule, float *x, size_t rows,
				     size_t columns, float *scratch);
};

#endif

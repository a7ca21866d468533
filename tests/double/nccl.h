/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVIDIA's libnccl.so.2 on machines without GPUs. Ranks are processes of one machine
 * (or threads of one), which share a piece of memory for each communicator and read each other's
 * buffers with process_vm_readv. Operations are host functions on the streams of the CUDA driver
 * that the process has, which is a stand-in too; without one they are run at once.
 *
 * It is stricter than NCCL. What NCCL would do wrong in silence, or hang on, ends the process with
 * status 96 and one line that names both ranks and both operations; the other ranks then see a
 * communicator that has failed (ncclRemoteError). A rank that is killed is not seen by anybody: as
 * over NVLink the others hang until they call ncclCommAbort.
 *
 * As with NCCL, everything on a communicator that is not blocking may return ncclInProgress, and
 * here always does: operations too, which are not on their stream until ncclCommGetAsyncError says
 * ncclSuccess. Nor is there a communicator from ncclCommSplit, or a window, before that.
 *
 *   DOUBLE_NCCL_FAIL     what is to go wrong, separated by commas; [:RANK] left out: everywhere
 *     FUNCTION:N:RESULT[:RANK]   the Nth call of this function returns that ncclResult_t
 *     async:N:RESULT[:RANK]      after N operations, ncclCommGetAsyncError says so, and those that
 *                                follow hang
 *     kill:FUNCTION:N[:RANK]     the Nth of these ends its process with SIGKILL
 *     hang:FUNCTION:N[:RANK]     the Nth of these never arrives
 *   DOUBLE_NCCL_LEAKS=1  communicators, windows and memory that are left when the process exits
 *                        make its status 95
 *
 * RANK is that of PMIX_RANK, or else of the first communicator. Built with -DOLD_NCCL it is 2.19,
 * without what came later.
 */
#ifndef DOUBLE_NCCL_H
#define DOUBLE_NCCL_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef OLD_NCCL
enum { NCCL_DOUBLE_VERSION = 21903 };
#else
enum { NCCL_DOUBLE_VERSION = 22809 };
#endif

/* Operations on streams, and calls of the host that all ranks make, are counted apart. */
enum lane { LANE_STREAM, LANE_CALLS, LANES };

enum kind {
	ALL_GATHER,
	REDUCE_SCATTER,
	ALL_REDUCE,
	BROADCAST,
	SEND,
	RECV,
	INIT,
	SPLIT,
	WINDOW_REGISTER,
};

enum member_state { ABSENT, ATTACHED, FINALIZED, ABORTED };

/* What a rank is about to do. */
struct record {
	_Atomic uint64_t number; /* from 1; the rest is about this one */
	enum kind kind;
	ncclDataType_t type;
	int root;
	unsigned window; /* that the larger buffer lies in; 0 none */
	uint64_t offset; /* in it */
	uint64_t count;  /* elements, or bytes of a window */
	uint64_t send;
};

/* Where a communicator's memory is: a file without a name that this process has open. */
struct segment_id {
	char magic[8];
	int32_t pid, fd;
	uint64_t nonce[2];
};

struct member {
	_Alignas(64) _Atomic unsigned state;
	_Atomic uint32_t bell; /* rung when there is a message from it or for it */
	_Atomic int32_t pid;   /* 0: nobody yet */
	int32_t color, key;    /* of its split */
	uint64_t ids;          /* a hash of those that it was given */
	struct segment_id made;
	struct record record[LANES];
};

/* From one rank to another; at most one is under way. */
struct message {
	_Alignas(64) _Atomic uint64_t posted;
	_Atomic uint64_t taken;
	uint64_t data, count;
	ncclDataType_t type;
};

/* What the ranks of a communicator share. */
struct segment {
	struct segment_id id;
	_Atomic int world;
	_Atomic bool failed;
	_Atomic unsigned ended; /* ranks that have finalized or aborted */
	struct {
		_Atomic uint64_t steps; /* that all ranks together have arrived at */
		_Atomic uint32_t word;  /* changed whenever waiting should look again */
	} lane[LANES];
	struct member member[]; /* [world], and then message[world][world], of sender, receiver */
};

struct window {
	char *data;
	size_t bytes;
	unsigned number; /* from 1; the same on all ranks */
	bool symmetric;
	struct window *next;
};

struct ncclComm {
	int rank, world;
	bool blocking;
	void *context;                    /* of the driver, that was current when it was made */
	_Atomic(struct segment *) shared; /* NULL before there is one */
	size_t bytes;
	_Atomic bool aborted;
	_Atomic int async; /* an ncclResult_t */
	bool finalized;
	uint64_t steps[LANES], number[LANES];
	uint64_t *sent, *received; /* [world] */
	pthread_mutex_t mutex;     /* what follows */
	pthread_cond_t changed;
	uint64_t queued, done;    /* launches */
	unsigned running;         /* launches: 0 or 1 */
	struct launch *launches;  /* queued or running */
	unsigned busy;            /* helper threads that work on it */
	struct ncclComm *pending; /* that a split is about to make */
	unsigned references;      /* the caller's, launches', helper threads' */
	struct window *windows;
	unsigned window_count; /* that ever were */
	struct ncclComm *next; /* among those that are alive, or dead */
};

/* An operation that is submitted. Buffers are where the device has them; those of the host are
   known once it runs. */
struct op {
	enum kind kind;
	struct ncclComm *comm;
	cudaStream_t stream;
	const void *send;
	void *recv;
	size_t count;
	ncclDataType_t type;
	int root; /* or peer; -1 */
	const char *from;
	char *into;
	bool kill, hang;
	enum { UNPOSTED, POSTED, DONE } state;
	struct op *next;
};

/* Operations of one communicator that are one kernel. */
struct launch {
	struct ncclComm *comm;
	struct op *ops;
	uint64_t number;
	struct launch *next;
};

/* What is done by the caller, or by a helper thread. */
struct job {
	struct ncclComm *comm; /* whose state says how it is going */
	ncclResult_t (*run)(struct job *);
	bool hang;
	int id_count;
	ncclUniqueId *ids;
	int color, key;
	struct ncclComm *child;
	struct ncclComm **made;
	char *data;
	size_t bytes;
	int flags;
	ncclWindow_t *window;
	ncclResult_t result;
	pthread_t thread;
	struct job *next;
};

/* nccl_settings.c */
enum trouble { NO_TROUBLE, FAIL, KILL, HANG };
/* What is to go wrong in this call; *result is set for FAIL. Ends the process for KILL, unless it
   is an operation. */
enum trouble trouble_in(const char *function, bool operation, ncclResult_t *result);
/* Counts an operation that was run. */
void count_operation(void);
ncclResult_t injected_async(void);
bool setting_leaks(void);
void know_rank(int rank);
/* Returns `result`; the text is what ncclGetLastError then says. */
ncclResult_t refuse(ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* One line, and status 96. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* nccl_types.c */
size_t type_size(ncclDataType_t type); /* 0: there is no such type */
const char *type_name(ncclDataType_t type);
const char *kind_name(enum kind kind);
bool can_add(ncclDataType_t type);
/* to[count] = a[count] + b[count], rounded to the type. */
void add(ncclDataType_t type, void *to, const void *a, const void *b, size_t count);

/* nccl_driver.c */
void driver_find(void);
bool driver_there(void);
/* The current context; false: the driver is there, but no context is current. */
bool driver_context(void **context);
void driver_push(void *context);
void driver_pop(void *context);
bool driver_run(cudaStream_t stream, void (*run)(void *), void *data);
/* `later` waits for what is on `earlier` now. */
bool driver_order(cudaStream_t later, cudaStream_t earlier);
/* Whether so many bytes may be used by the device; if not, why. */
const char *driver_refuses(const void *data, size_t bytes);
/* On a stream: where the host finds it; NULL: it is not there. */
void *driver_reach(const void *data, size_t bytes, bool write);
void *driver_alloc(size_t bytes);
bool driver_free(void *data, size_t bytes);

/* nccl_segment.c */
bool segment_new(ncclUniqueId *id);
/* This process need not keep it open for others any more. */
void segment_close(const ncclUniqueId *id);
/* False: it is not there. Ends the process if another process is this rank, or of another world. */
bool segment_attach(struct ncclComm *comm, const ncclUniqueId *id, uint64_t ids);
bool segment_is_there(const ncclUniqueId *id);
void segment_detach(struct ncclComm *comm);
struct message *message_of(const struct ncclComm *comm, int from, int to);
/* Whoever waits for this word looks again. */
void wake(_Atomic uint32_t *word);
/* Until the word is not `seen` any more, or a while has passed. */
void wait_word(const struct ncclComm *comm, _Atomic uint32_t *word, uint32_t seen);
/* All threads of this rank look again. */
void wake_own(struct ncclComm *comm);
/* This rank has come to its end. */
void set_state(struct ncclComm *comm, enum member_state state);

/* nccl_agree.c */
/* Waits for all ranks; false: aborted. */
bool barrier(struct ncclComm *comm, enum lane lane);
/* ... which are to do the same as this one says. */
bool agree(struct ncclComm *comm, enum lane lane, const struct record *mine);
void wait_for_abort(struct ncclComm *comm);
/* Ends the process, unless another rank has failed first; then waits for the abort. */
void mismatch(struct ncclComm *comm, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Copies from another rank; false: aborted. */
bool read_from(struct ncclComm *comm, int rank, void *to, uint64_t from, size_t bytes);

/* nccl_comm.c */
/* ncclSuccess if the communicator can be used. Ends the process if it is not alive. */
ncclResult_t comm_ready(struct ncclComm *comm, const char *function);
struct ncclComm *comm_alive(struct ncclComm *comm, const char *function);
struct ncclComm *comm_new(int rank, int world);
/* Ends what a call that failed has made. */
void comm_discard(struct ncclComm *comm);
/* An abort of this one is also one of the child that it is about to have; NULL: none. */
void comm_set_pending(struct ncclComm *comm, struct ncclComm *child);
void comm_get(struct ncclComm *comm);
void comm_put(struct ncclComm *comm);
void comm_busy(struct ncclComm *comm);
void comm_idle(struct ncclComm *comm);
unsigned comms_left(void);
/* Whether something that is queued uses the memory; NULL: on any communicator. */
bool comms_use(const struct ncclComm *comm, const void *data, size_t bytes);

/* nccl_group.c */
/* Runs it now or at the end of the group. Takes the job. */
ncclResult_t submit_job(struct job *job);
ncclResult_t submit_op(const struct op *op, const char *function);

/* nccl_check.c */
struct range {
	const char *data;
	size_t bytes;
};
/* What an operation reads, and what it writes: all but its own part, if it is in place. */
struct touch {
	struct range read, write[2];
};
struct touch touch_of(const struct op *op);
bool in_place(const struct op *op);
/* Whether it reads or writes some of it. */
bool op_uses(const struct op *op, const void *data, size_t bytes);
ncclResult_t check_op(const struct op *op);
/* Those of one group do not write what others of it read or write. */
ncclResult_t check_group(const struct op *ops);

/* nccl_run.c */
void run_launch(void *launch);
void launch_free(struct launch *launch);

/* nccl_memory.c */
struct window *window_of(const struct ncclComm *comm, const void *data, size_t bytes);
/* Those of a communicator that ends. Unless it was aborted they count as left behind. */
void windows_free(struct ncclComm *comm, bool aborted);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVIDIA's libnccl.so.2 on machines without GPUs. Ranks are processes of one machine
 * (or threads of one), which share a piece of memory for each communicator and read each other's
 * buffers with process_vm_readv. Operations are host functions on the streams of the CUDA driver
 * that the process has, which is a stand-in too.
 *
 * It is stricter than NCCL. If ranks run different operations, NCCL would hang or give wrong
 * results; here the process ends with status 96 and one line that names both ranks and both
 * operations, and the other ranks see a failed communicator (ncclRemoteError). Ranks also launch
 * collectives of several communicators in the same order, or end like this. No rank learns of a
 * killed rank: as over NVLink, the others hang until they call ncclCommAbort.
 *
 * As with NCCL, every call on a non-blocking communicator may return ncclInProgress, and here
 * always does. An operation is not on its stream, and a window or the result of ncclCommSplit does
 * not exist, until ncclCommGetAsyncError returns ncclSuccess.
 *
 *   DOUBLE_NCCL_FAIL     rules, separated by commas; a rule without [:RANK] is for all ranks
 *     FUNCTION:N:RESULT[:RANK]   the Nth call of this function returns that ncclResult_t
 *     async:N:RESULT[:RANK]      after N operations ncclCommGetAsyncError returns RESULT, and later
 *                                operations hang
 *     kill:FUNCTION:N[:RANK]     the Nth of these ends its process with SIGKILL
 *     hang:FUNCTION:N[:RANK]     the Nth of these never arrives
 *     slow:FUNCTION:N[:RANK]     the Nth of these takes a while before it has any effect
 *   DOUBLE_SEED=N        not 0: what an operation writes is poisoned before, and some calls take a
 *                        while
 *   DOUBLE_COUNTS=FOLDER nccl.RANK is written there at exit: a line for each function that was
 *                        called, with how often; registered_bytes and registered_bytes_most;
 *                        collectives and collective_bytes, which this rank sent, graphs included;
 *                        and for each peer "sent RANK messages N bytes N" and "received ...", of
 *                        ncclSend and ncclRecv
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

/* For tests, which find it with dlsym: what DOUBLE_COUNTS would write by this name, or the total of
   sent_messages, sent_bytes, sent_peers, received_messages, ... */
unsigned long long double_nccl_count(const char *name);

/* Operations on streams and collective calls of the host are counted separately. */
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

/* How many collectives of a communicator its process has launched. */
struct order {
	uint64_t id;
	uint64_t count;
};

enum { ORDERS = 32 };

enum member_state { ABSENT, ATTACHED, FINALIZED, ABORTED };

/* What a rank is about to do; ranks compare it. */
struct record {
	_Atomic uint64_t number; /* of the operation, from 1; written last */
	enum kind kind;
	ncclDataType_t type;
	int root;
	unsigned window; /* that contains the larger buffer; 0: none */
	uint64_t offset; /* in it */
	uint64_t count;  /* elements, or bytes of a window */
	uint64_t send;
	unsigned orders;
	struct order order[ORDERS]; /* of all communicators of the process, when it was launched */
};

/* Names a communicator's shared memory: an anonymous file that this process has open. */
struct segment_id {
	char magic[8];
	int32_t pid, fd;
	uint64_t nonce[2];
};

struct member {
	_Alignas(64) _Atomic unsigned state;
	_Atomic uint32_t bell; /* futex, changed when there is a message from it or for it */
	_Atomic int32_t pid;   /* 0: not attached yet */
	int32_t color, key;    /* of its split */
	_Atomic int32_t own;   /* the rank of its process, as settings know it */
	_Atomic bool aborts;   /* its process has aborted a communicator, this one or another */
	uint64_t ids;          /* a hash of the ids that it got */
	struct segment_id made;
	struct record record[LANES];
};

/* From one rank to another; at most one is in progress. */
struct message {
	_Alignas(64) _Atomic uint64_t posted;
	_Atomic uint64_t taken;
	uint64_t data, count;
	ncclDataType_t type;
};

/* The shared memory of a communicator. */
struct segment {
	struct segment_id id;
	_Atomic int world;
	_Atomic bool failed;
	_Atomic unsigned ended; /* ranks that have finalized or aborted */
	struct {
		_Atomic uint64_t steps; /* arrivals of all ranks together */
		_Atomic uint32_t word;  /* futex, changed when waiting ranks must check again */
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
	bool copy_engines; /* NCCL_CTA_POLICY_ZERO */
	_Atomic bool gone;
	_Atomic uintptr_t holder; /* the thread that is in a call on it; 0: none */
	uint64_t collectives;     /* launched */
	void *context;            /* of the driver; current when the communicator was created */
	_Atomic(struct segment *) shared; /* NULL until it is attached */
	size_t bytes;
	_Atomic bool aborted;
	_Atomic int async; /* an ncclResult_t */
	bool finalized;
	uint64_t steps[LANES], number[LANES];
	uint64_t *sent, *received; /* [world] */
	pthread_mutex_t mutex;     /* guards what follows */
	pthread_cond_t changed;
	uint64_t queued, done;    /* launches */
	unsigned running;         /* launches: 0 or 1 */
	unsigned captured;        /* launches that graphs repeat */
	struct launch *launches;  /* queued or running */
	unsigned busy;            /* helper threads that use it */
	struct ncclComm *pending; /* the child that a split is creating */
	unsigned references;      /* the caller's, launches', helper threads' */
	struct window *windows;
	unsigned window_count; /* windows registered so far */
	struct ncclComm *next; /* in the list of live or of destroyed ones */
};

/* A submitted operation. The host's addresses of its buffers are known once it runs. */
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
	bool kill, hang, slow;
	enum { UNPOSTED, POSTED, DONE } state;
	struct op *next;
};

/* Operations of one communicator that run as one kernel. */
struct launch {
	struct ncclComm *comm;
	struct op *ops;
	uint64_t number;
	unsigned orders;
	struct order order[ORDERS];
	struct launch *next;
};

/* A call that runs in the caller's thread or in a helper thread. */
struct job {
	struct ncclComm *comm; /* its async state shows the progress */
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
enum trouble { NO_TROUBLE, FAIL, KILL, HANG, SLOW };
/* Returns what must go wrong in this call, and sets *result for FAIL. KILL ends the process here,
   unless the call is an operation. */
enum trouble trouble_in(const char *function, bool operation, ncclResult_t *result);
/* Counts an operation that has run. */
void count_operation(void);
bool setting_seed(void);
int setting_rank(void);

/* nccl_counts.c */
void count_add(const char *name, long long more);
void count_registered(long long bytes);
void count_message(bool sent, int peer, size_t bytes);
void counts_write(int rank);

ncclResult_t injected_async(void);
bool setting_leaks(void);
void know_rank(int rank);
/* Returns `result` and sets the text that ncclGetLastError returns. */
ncclResult_t refuse(ncclResult_t result, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints one line and exits with status 96. */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* nccl_types.c */
size_t type_size(ncclDataType_t type); /* 0 for an unknown type */
const char *type_name(ncclDataType_t type);
const char *kind_name(enum kind kind);
/* f32, f16 and bf16 to f32, and back. */
void widen_all(ncclDataType_t type, float *to, const void *from, size_t count);
void narrow_all(ncclDataType_t type, void *to, const float *from, size_t count);

/* nccl_driver.c */
void driver_find(void);
/* The current context. Returns false if there is a driver but no current context. */
bool driver_context(void **context);
void driver_push(void *context);
void driver_pop(void *context);
bool driver_captures(cudaStream_t stream);
/* While the stream is captured, each launch of its graph runs what `renew` makes of the data, and
   the data are dropped with the graph. */
bool driver_run(cudaStream_t stream, void (*run)(void *), void *data, void *(*renew)(void *),
		void (*drop)(void *));
/* `later` waits for the work on `earlier` so far. */
bool driver_order(cudaStream_t later, cudaStream_t earlier);
/* Returns NULL if the device may use the bytes, or else why not. */
const char *driver_refuses(const void *data, size_t bytes);
/* Returns NULL if it is memory of cuMemCreate that NCCL can register, all in one mapping. */
const char *driver_not_mapped(const void *data, size_t bytes);
/* Registered memory must not be unmapped. */
void driver_pin(const void *data, bool pin);
/* Called on a stream. Returns the host's address of the memory, or NULL if it does not exist. */
void *driver_reach(const void *data, size_t bytes, bool write);
void *driver_alloc(size_t bytes);
bool driver_free(void *data);

/* nccl_segment.c */
bool segment_new(ncclUniqueId *id);
/* No other process needs the descriptor of this process any more. */
void segment_close(const ncclUniqueId *id);
/* Returns false if it does not exist. Ends the process if ranks or world sizes contradict. */
bool segment_attach(struct ncclComm *comm, const ncclUniqueId *id, uint64_t ids);
bool segment_is_there(const ncclUniqueId *id);
void segment_detach(struct ncclComm *comm);
struct message *message_of(const struct ncclComm *comm, int from, int to);
/* Wakes all that wait for this word. */
void wake(_Atomic uint32_t *word);
/* Waits until the word differs from `seen`, or for a short time. */
void wait_word(const struct ncclComm *comm, _Atomic uint32_t *word, uint32_t seen);
/* Wakes all threads of this rank. */
void wake_own(struct ncclComm *comm);
/* Sets the final state of this rank. */
void set_state(struct ncclComm *comm, enum member_state state);

/* nccl_agree.c */
/* Waits for all ranks. Returns false after an abort. */
bool barrier(struct ncclComm *comm, enum lane lane);
/* Waits for all ranks and checks that their records are the same as `mine`. */
bool agree(struct ncclComm *comm, enum lane lane, const struct record *mine);
void wait_for_abort(struct ncclComm *comm);
/* Ends the process, unless another rank has failed first; then waits for the abort. */
void mismatch(struct ncclComm *comm, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Copies memory of another rank. Returns false after an abort. */
bool read_from(struct ncclComm *comm, int rank, void *to, uint64_t from, size_t bytes);

/* nccl_comm.c */
/* Returns ncclSuccess if the communicator can be used. Ends the process if it was destroyed. */
ncclResult_t comm_ready(struct ncclComm *comm, const char *function);
struct ncclComm *comm_alive(struct ncclComm *comm, const char *function);
struct ncclComm *comm_new(int rank, int world);
/* Frees the communicator of a call that failed. */
void comm_discard(struct ncclComm *comm);
/* Sets the child that an abort of this communicator aborts too; NULL: none. */
void comm_set_pending(struct ncclComm *comm, struct ncclComm *child);
void comm_get(struct ncclComm *comm);
void comm_put(struct ncclComm *comm);
void comm_busy(struct ncclComm *comm);
void comm_idle(struct ncclComm *comm);
unsigned comms_left(void);
/* Whether a queued operation uses the memory. `comm` NULL: on any communicator. */
bool comms_use(const struct ncclComm *comm, const void *data, size_t bytes);

/* Notes the launch's place among the collectives of all communicators. */
void comms_order(struct launch *launch);

/* nccl_group.c */
/* Ends the process if another thread is in a call on the communicator. */
void comm_hold(struct ncclComm *comm, const char *function);
void comm_release(struct ncclComm *comm);
/* Runs it now or at the end of the group. Takes ownership of the job. */
ncclResult_t submit_job(struct job *job);
ncclResult_t submit_op(const struct op *op, const char *function);

/* nccl_check.c */
struct range {
	const char *data;
	size_t bytes;
};
/* What an operation reads and writes. In place, its own part is not written. */
struct touch {
	struct range read, write[2];
};
struct touch touch_of(const struct op *op);
bool in_place(const struct op *op);
/* Whether the operation reads or writes any of the bytes. */
bool op_uses(const struct op *op, const void *data, size_t bytes);
ncclResult_t check_op(const struct op *op);
/* Checks that no operation of a group writes what another one reads or writes. */
ncclResult_t check_group(const struct op *ops);

/* nccl_run.c */
void run_launch(void *launch);
/* Gives it the next place among those of its communicator. */
void launch_add(struct launch *launch);
/* A launch that a graph repeats: a copy of it, which is to run; and its end. */
void *launch_renew(void *launch);
void launch_drop(void *launch);
void launch_free(struct launch *launch);

/* nccl_memory.c */
struct window *window_of(const struct ncclComm *comm, const void *data, size_t bytes);
/* Frees the windows of a communicator that ends. Unless it was aborted they count as leaks. */
void windows_free(struct ncclComm *comm, bool aborted);

#endif

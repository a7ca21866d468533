/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVIDIA's libcuda.so.1 on machines without GPUs, for the functions of
 * lib/backend/cuda/driver.h. Each stream runs asynchronously on a thread of its own, device memory
 * is host memory, and kernels are the host's. It is stricter than a device: a program that works on
 * a device by luck fails here.
 *
 *   CUDA_VISIBLE_DEVICES   empty: there is no device; else there is one
 *   DOUBLE_CUDA_MEMORY     bytes of the device in this process, K, M or G may follow; 1G
 *   DOUBLE_CUDA_GRAIN      granularity of cuMemCreate and of reserved addresses, in bytes; 2M
 *   DOUBLE_CUDA_DELAY_US   mean random delay before an operation, in microseconds; 20
 *   DOUBLE_CUDA_DELAY_OF   one operation of so many is delayed; 1
 *   DOUBLE_SEED            a number: streams run on a schedule that it chooses, late and far apart,
 *   and
 *                          what an operation writes all of is poisoned before; 0: neither
 *   DOUBLE_COUNTS          a folder, in which cuda.RANK is written at exit: a line for each
 *   function
 *                          that was called, with how often, and "round_trips", which is how often
 *                          the host waited for a stream or event, by whatever call
 *   DOUBLE_CUDA_LEGACY     wait: calls on the NULL stream return when their work is done
 *   DOUBLE_CUDA_FABRIC     yes: GPUs of other nodes take part, by FABRIC handles; refused: but not
 *                          of this process
 *   DOUBLE_CUDA_PROTECT    1: the host cannot reach device memory, but by double_cuda_reach
 *   DOUBLE_CUDA_FAIL       call:n:result[:rank],...: the nth call of that function (from 1; "n+":
 *                          and every later one) does nothing and returns that CUresult, in the
 *                          process whose PMIX_RANK is rank. "*" is every function. After 700 and
 *                          its like every call fails, as on a device
 *   DOUBLE_CUDA_LEAKS      1: objects alive at exit are printed, and the exit status is 97
 *
 * They are read at the first call. A use of freed memory, streams or events ends the process with a
 * line, and so do accesses of two streams to the same bytes without an order between them.
 */
#ifndef DOUBLE_CUDA_H
#define DOUBLE_CUDA_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* For tests and for the stand-in for NCCL, which find these functions with dlsym. */

/* Returns the host's address of device or pinned memory, also under DOUBLE_CUDA_PROTECT, or NULL if
   not all of it is allocated. A function that cuLaunchHostFunc runs calls it for all memory that it
   reads or writes, so that the order with other streams is checked. */
void *double_cuda_reach(CUdeviceptr data, size_t bytes, bool write);
/* Calls of this thread are not counted and do not fail by a rule from now on: for another library
   that calls the driver and is not under test. */
void double_cuda_quiet(bool quiet);
/* No operation starts on any stream until it is called with false; for tests of order. */
void double_cuda_hold(bool hold);
/* Like cuLaunchHostFunc. While the stream is captured each launch of the graph calls `renew`, whose
   result the function gets, and `drop` is called when the graph is deleted. */
CUresult double_cuda_launch(CUstream stream, CUhostFn function, void *user, void *(*renew)(void *),
			    void (*drop)(void *));
/* How often the program has called this function so far; "round_trips": see DOUBLE_COUNTS. */
unsigned long long double_cuda_count(const char *name);
/* Memory that is registered with another library must not be unmapped. Returns false if nothing is
   there. */
bool double_cuda_pin(CUdeviceptr at, bool pin);

/* Bytes of page-locked memory. */
size_t double_cuda_pinned_bytes(void);

/* ---- shared by the files of the stand-in ----------------------------------------------------- */

enum { DOUBLE_CLOCKS = 64, DOUBLE_POISON = 0xcb };

enum double_kind {
	DOUBLE_STREAM = 0x51,
	DOUBLE_EVENT,
	DOUBLE_POOL,
	DOUBLE_MODULE,
	DOUBLE_FUNCTION,
	DOUBLE_PHYSICAL,
	DOUBLE_RANGE,
	DOUBLE_GRAPH,
	DOUBLE_EXEC,
};

/* The first member of everything that a handle points to. Objects are never freed, so that a late
   use of a handle is detected. */
struct double_object {
	enum double_kind kind;
	bool dead;
	struct double_object *next;
};

/* A vector clock: for each stream, the last of its operations that is ordered before. */
struct double_clock {
	uint64_t at[DOUBLE_CLOCKS];
};

struct double_capture;

/* A point in a stream, recorded by an event. */
struct double_marker {
	int references;
	bool done, asked;
	uint64_t time;                  /* when it was done, in nanoseconds */
	struct double_clock clock;      /* in a capture it counts operations of its lanes */
	struct double_capture *capture; /* that it was recorded in; NULL: none */
	int number;                     /* in the capture */
};

/* A graph: operations, markers and waits, in the order of the calls. */
struct double_step {
	int lane; /* the stream, as the capture counts them */
	struct double_op *op;
	bool marks, waits;
	int marker;
};

struct double_script {
	unsigned references;
	struct double_step *steps;
	size_t count, size;
	int lanes, markers;
};

enum double_pace { DOUBLE_USUAL, DOUBLE_QUICK, DOUBLE_SLOW, DOUBLE_LATE };

struct CUctx_st {
	CUdevice device;
	unsigned retained;
	CUresult fault;  /* the error that every later call returns */
	size_t reserved; /* bytes of pools and of blocks outside pools */
	CUstream legacy;
};

struct CUstream_st {
	struct double_object object;
	CUcontext context;
	unsigned id, flags;
	bool started;
	struct double_op *first, *last;
	uint64_t queued, done;     /* operations */
	struct double_clock clock; /* of the next operation */
	uint64_t random;
	enum double_pace pace;
	unsigned stretch; /* operations that are left at this pace */
	pthread_cond_t work;
	struct double_capture *capture; /* that is going on; NULL: none */
};

struct CUevent_st {
	struct double_object object;
	CUcontext context;
	unsigned flags;
	struct double_marker *marker; /* NULL: never recorded */
};

struct CUmemPoolHandle_st {
	struct double_object object;
	CUcontext context;
	size_t used;     /* allocated and not freed */
	size_t held;     /* used, and freed by operations that have not run */
	size_t reserved; /* held, and cached for reuse */
	size_t threshold;
	size_t most; /* 0: no limit */
};

struct CUmod_st {
	struct double_object object;
	CUcontext context;
};

struct CUfunc_st {
	struct double_object object;
	CUmodule module;
	const struct double_kernel *kernel;
	bool loaded;
};

enum double_state {
	DOUBLE_COMING, /* the operation that allocates it has not run */
	DOUBLE_LIVE,
	DOUBLE_GONE,
};

struct double_record;

struct double_block {
	uintptr_t base;
	char *data; /* the host's address of it */
	void *map;
	size_t bytes, map_bytes;
	bool pinned;
	bool freed; /* the call was made; its operation may not have run */
	enum double_state state;
	unsigned pending; /* operations queued that use it */
	CUcontext context;
	CUmemoryPool pool; /* NULL: none */
	uint64_t number;
	struct double_record *records;
	size_t record_count, record_size;
	unsigned pins; /* registrations with NCCL */
	/* Memory of cuMemCreate that is mapped here, whose accesses are recorded; NULL: none. */
	struct double_block *physical;
	CUmemAccess_flags access; /* only of mapped memory */
};

/* Memory that an operation reads or writes; *slot is the pointer in its arguments. */
struct double_access {
	void **slot;
	uintptr_t at;
	size_t bytes, align;
	bool write;
	struct double_block *block; /* the block that it was in when it was queued */
};

struct double_op {
	struct double_op *next;
	const char *call;
	CUstream stream;
	uint64_t sequence; /* in the clocks */
	struct double_clock clock;
	/* Runs on the stream's thread, without the lock. */
	CUresult (*run)(struct double_op *op);
	bool always; /* even after a fault */
	struct double_block *block;
	struct double_marker *marker;
	CUhostFn function;
	void *user;
	void *(*renew)(void *user); /* what the function gets in one launch of a graph */
	void (*drop)(void *user);   /* called when the graph goes */
	void *to, *from, *staging;
	size_t bytes;
	uint32_t value;
	const struct double_kernel *kernel;
	unsigned grid;
	void *arguments;
	struct double_access *accesses;
	size_t access_count, access_size;
};

struct double_settings {
	bool read;
	int devices; /* 0 or 1 */
	size_t memory, grain;
	uint64_t delay_us, delay_of, seed;
	bool legacy_waits, protect, leaks;
};

extern struct double_settings double_settings;

/* What a call needs; the last is for calls that free something. */
enum double_need { DOUBLE_NOTHING, DOUBLE_INIT, DOUBLE_CONTEXT, DOUBLE_CONTEXT_OR_FAULT };

/* cuda.c: every call begins with enter, which takes the lock, and ends with leave. */
CUresult double_enter(const char *call, enum double_need need);
CUresult double_leave(CUresult result);
void double_lock(void);
void double_unlock(void);
/* Releases the lock until something has happened on a stream. */
void double_wait(void);
/* Returns false when it is late. */
bool double_wait_until(const struct timespec *end);
void double_happened(void);
/* Releases the lock until there is work for the stream. */
void double_sleep(CUstream stream);
CUcontext double_current(void);
CUcontext double_context_of(CUdevice device); /* NULL: no such device */
void double_object_add(void *object, enum double_kind kind);
/* Returns CUDA_ERROR_INVALID_HANDLE for a bad handle. Ends the process for a destroyed one. */
CUresult double_object_check(const void *object, enum double_kind kind, const char *call);
struct double_object *double_objects(void);
/* Set while a stream's thread calls a function of the program, which must not call the driver. */
extern _Thread_local struct double_op *double_in_function;
void double_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
void *double_new(size_t count, size_t size);

/* cuda_settings.c: both with the lock held */
void double_settings_read(void);
CUresult double_injected(const char *call);
bool double_is_sticky(CUresult result);
bool double_is_quiet(void);

/* cuda_counts.c: with the lock held */
void double_count(const char *name);
void double_counts_write(void);

/* cuda_schedule.c: with the lock held, which may be released for a while */
void double_schedule_begin(CUstream stream, uint64_t number);
void double_schedule(CUstream stream);
/* A thread of the program waits from now on, or not any more. */
void double_host_waits(bool waits);
/* Called without the lock, before an operation writes all of the bytes. */
void double_write_late(CUstream stream, void *data, size_t bytes);

/* cuda_stream.c: all with the lock held */
struct double_op *double_op_new(const char *call, CUresult (*run)(struct double_op *op));
/* The stream of a handle; NULL is the legacy stream of the current context. */
CUresult double_stream_of(CUstream handle, const char *call, CUstream *stream);
void double_queue(CUstream stream, struct double_op *op);
void double_op_free(struct double_op *op);
CUstream double_stream_new(CUcontext context, unsigned flags);
void double_stream_end(CUstream stream);
/* The stream is not capturing. Who gets a marker puts it. */
struct double_marker *double_marker_record(CUstream stream);
void double_marker_wait(CUstream stream, struct double_marker *marker);
void double_marker_put(struct double_marker *marker); /* may be NULL */
/* Waits for everything queued on it now. */
void double_stream_drain(CUstream stream);
void double_context_drain(CUcontext context);

/* cuda_block.c: all with the lock held */
struct double_block *double_block_new(size_t bytes, bool pinned, bool paged, CUcontext context);
void double_block_gone(struct double_block *block);
/* After a fault what is queued does nothing any more: waits until it is gone. */
void double_block_wait(const struct double_block *block);
/* The block that contains the address, or the last freed one that did; NULL: none. */
struct double_block *double_block_find(uintptr_t at);
/* The first block that ends after the address; NULL: none. */
struct double_block *double_block_next(uintptr_t at);
/* A mapping, whose memory the caller has. */
void double_block_add(struct double_block *block);
void double_block_remove(struct double_block *block);
size_t double_tell_blocks(void);

/* cuda_virtual.c, with the lock held. Ends the process if the address is reserved, and nothing is
   mapped there. */
void double_virtual_check(uintptr_t at, const char *call);

/* cuda_access.c: all with the lock held */
void double_access_add(struct double_op *op, void *slot, size_t count, size_t size, bool write);
/* Called when it is queued. Freed memory ends the process. Blocks are `pending` until it is
   done. */
void double_access_queue(struct double_op *op, bool pending);
/* Called when it runs: checks accesses from `first` on, and sets their slots to host addresses. */
CUresult double_access(struct double_op *op, size_t first);
void double_access_done(struct double_op *op);
/* Whether the device may access memory that is mapped there. */
bool double_block_allows(const struct double_block *block, bool write);
/* The operations in the clock are ordered before what the host does next. */
void double_host_saw(const struct double_clock *clock);
const struct double_clock *double_host_clock(void);
void double_clock_join(struct double_clock *clock, const struct double_clock *other);

/* cuda_capture.c: all with the lock held */
/* Whether a thread may make such a call while streams are captured. */
CUresult double_capture_allows(const char *call);
/* Returns `result`; the capture fails at its end. */
CUresult double_capture_spoil(struct double_capture *capture, CUresult result);
CUresult double_capture_state(CUstream stream);
CUresult double_capture_legacy(void);
void double_capture_op(CUstream stream, struct double_op *op);
struct double_marker *double_capture_record(CUstream stream);
CUresult double_capture_wait(CUstream stream, const struct double_marker *marker);

/* cuda_graph.c: all with the lock held */
struct double_script *double_script_new(void);
void double_script_put(struct double_script *script);
CUgraph double_graph_new(struct double_script *script);

/* cuda_memory.c, with the lock held: called after a synchronization */
void double_pools_trim(CUcontext context);
void double_poison(void *data, size_t bytes);

/* cuda_kernels.c */
struct double_kernel {
	const char *name;
	size_t size;
	/* Adds the memory among its arguments. Returns false for invalid arguments. */
	bool (*memory)(struct double_op *op, void *arguments);
	CUresult (*run)(struct double_op *op, void *arguments);
};
const struct double_kernel *double_kernel_find(const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* One rank's device: its streams, events, kernels and memory. */
#ifndef ZERO_GPU_H
#define ZERO_GPU_H

#include <pthread.h>

#include "backend/account.h"
#include "backend/comm.h"
#include "driver.h"
#include "kernels.h"

/* ---- device.c: the device and its errors ----------------------------------------------------- */

/* How many of the events of zero_device_record exist at a time. */
enum { ZERO_DEVICE_EVENTS = 64 };

/* An event without timing. */
struct zero_event {
	CUevent event;
	cuuint64_t capture;      /* number of the capture of a stream that it belongs to; 0: none */
	struct zero_event *next; /* in the list of unused ones */
};

/* Waits that the device has not done, or whose time was not read yet. If there are more, the time
   of what goes beyond is not measured. */
enum { ZERO_WAITS = 1024 };

struct zero_waits {
	pthread_mutex_t lock;                         /* guards everything below */
	CUevent begins[ZERO_WAITS], ends[ZERO_WAITS]; /* rings; NULL: not made yet */
	uint64_t first, next;
	unsigned depth;          /* threads that wait */
	bool open;               /* begins[next] is recorded */
	struct zero_spent spent; /* up to the end of the one before `first` */
};

struct zero_device {
	CUdevice id;
	CUcontext context;
	CUuuid uuid;
	char name[64];
	int processors;
	int gpu_direct;                   /* physical memory may be sent by network adapters */
	atomic_int fabric;                /* and given to the GPUs of other nodes, over NVLink */
	_Atomic(CUstream) compute_stream; /* the caller's, which may change at any time */
	CUstream comm_stream;             /* of collectives */
	CUstream reduce_stream;           /* of reduces, beside the gathers */
	bool check;                       /* what is released is unmapped, see ZERO_CHECK */
	bool hung; /* work on the device may never end, and is not waited for */
	CUmemoryPool pool;
	CUmodule module;
	CUfunction functions[ZERO_KERNELS];
	size_t most_blocks[ZERO_KERNELS]; /* that the device runs at a time */
	pthread_mutex_t lock;             /* guards everything below */
	struct zero_event *spare;         /* unused ones */
	struct zero_event
		*events[ZERO_DEVICE_EVENTS]; /* event n is events[n % ZERO_DEVICE_EVENTS] */
	uint64_t last_event;
	/* The last mark that the communication stream has reached: a word of page-locked memory,
	   which the device writes and any thread reads. NULL: there is none. */
	_Atomic uint32_t *reached;
	uint32_t last_mark;
	struct zero_waits waits;
	zero_status error; /* the first error of a function that returns none; sticky */
	char error_text[512];
	/* Returns the error if communication has failed, so that work on the device may have ended
	   early. NULL: there is none. */
	zero_status (*has_failed)(void *context, char *text, size_t size, int *rank);
	void *failure_context;
};

/* Opens the device that is current in this thread, or else the one of `local_rank`. */
zero_status zero_device_open(int local_rank, CUstream compute, struct zero_device **device);
/* Waits for all work on it, or until communication has failed. */
void zero_device_finish(struct zero_device *device);
/* Waits for the work on it. NULL is a no-op. */
void zero_device_close(struct zero_device *device);
/* Between the two the device's context is current in this thread. */
void zero_device_enter(struct zero_device *device);
void zero_device_leave(struct zero_device *device);

/* Stores the first error. Returns whether `result` is a success. */
bool zero_device_check(struct zero_device *device, CUresult result, const char *call);
/* Returns whether the device met an error that it cannot recover from, and copies it to `text`.
   From any thread. */
bool zero_device_failed(struct zero_device *device, char *text, size_t size);
/* Returns the stored error, as this thread's last error. */
zero_status zero_device_error(struct zero_device *device);

/* Whether the device can read `data`. *on_device: whether it is the device's own memory. */
bool zero_device_can_read(const void *data, bool *on_device);

/* ---- event.c: order between streams, and between streams and the host ------------------------ */

/*
 * The caller may capture what is enqueued on its stream as a graph. An event of a capture says
 * nothing about the device, and CUDA refuses to wait for it outside of the capture, or within for
 * one from before. Such waits are left out: the program lets the device finish before it begins a
 * capture, and all streams come together before it ends.
 */

/* Returns an event without timing, or NULL after an error, which the device stores. */
struct zero_event *zero_event_get(struct zero_device *device);
void zero_event_put(struct zero_device *device, struct zero_event *event); /* NULL is a no-op */
/* Returns an event recorded at the end of the stream's work so far. */
struct zero_event *zero_event_record(struct zero_device *device, CUstream stream);
/* Later work on the stream waits for the event. NULL is a no-op. */
void zero_stream_wait(struct zero_device *device, CUstream stream, const struct zero_event *event);
/* Returns whether communication has failed, and fails then with the sentence that says why. */
bool zero_device_has_lost_peer(const struct zero_device *device, zero_status *status);
/* The host waits for the event. Also returns when communication has failed. */
zero_status zero_event_synchronize(struct zero_device *device, const struct zero_event *event);
/* Whether the device has not reached the event yet, or cannot be asked. */
bool zero_event_is_ahead(struct zero_device *device, const struct zero_event *event);
/* Whether the caller's stream is being captured. */
bool zero_device_is_capturing(struct zero_device *device);

/*
 * The communication stream writes a number to device->reached when its work so far is done. Returns
 * the number; 0 if it does not: within a capture, whose graph would write the same number at each
 * launch, or if the device cannot.
 */
uint32_t zero_device_mark(struct zero_device *device);

/* Records a numbered event on the compute stream and returns its number. */
uint64_t zero_device_record(struct zero_device *device);
/* The host waits for the event of that number. */
zero_status zero_device_wait(struct zero_device *device, uint64_t number);

/* ---- waits.c: how long the compute stream waits for communication ---------------------------- */

/* Around what the caller waits in. Several threads may; captured streams are not measured. */
void zero_wait_begins(struct zero_device *device);
void zero_wait_ends(struct zero_device *device);
/* How the stream has spent its time, up to the last of them that the device has done. */
struct zero_spent zero_wait_times(struct zero_device *device);
void zero_waits_close(struct zero_waits *waits);

/* ---- kernel_launch.c ------------------------------------------------------------------------- */

zero_status zero_kernels_load(struct zero_device *device);
/* Launches a kernel for what its arguments count; nothing if that is 0. */
void zero_launch(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
		 const void *arguments);
void zero_launch_blocks(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
			const void *arguments, size_t blocks);
void zero_launch_cast(struct zero_device *device, CUstream stream, zero_dtype to, void *out,
		      zero_dtype from, const void *in, size_t count);

/* ---- gemm.c ---------------------------------------------------------------------------------- */

struct zero_cublas;

/* See open_gemm in backend.h. parts[ZERO_NORM2_PARTS] and *sum are the device's to write. */
zero_status zero_cublas_open(struct zero_device *device, double *parts, double *sum,
			     struct zero_cublas **opened);
void zero_cublas_close(struct zero_cublas *cublas); /* NULL is a no-op */
/* On the compute stream; see orthogonalise in backend.h. */
zero_status zero_cublas_orthogonalise(struct zero_cublas *cublas,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch);

/* ---- memory.c: allocation, counted by kind --------------------------------------------------- */

struct zero_memory_pool;

zero_status zero_memory_new(struct zero_device *device, const zero_allocator *allocator,
			    struct zero_memory_pool **memory);
void zero_memory_delete(struct zero_memory_pool *memory); /* NULL is a no-op */
/* Later work on the stream may use the memory. */
zero_status zero_memory_alloc(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes, bool zeroed, CUstream stream, void **data);
/* Frees the memory after the stream's work so far. NULL data is a no-op. */
void zero_memory_free(struct zero_memory_pool *memory, void *data, CUstream stream);
void zero_memory_limit(struct zero_memory_pool *memory, size_t bytes);
void zero_memory_hold(struct zero_memory_pool *memory, size_t bytes);
void zero_memory_read(struct zero_memory_pool *memory, zero_memory *bytes,
		      size_t at_peak[ZERO_MEM_KINDS]);
bool zero_memory_caller_block(struct zero_memory_pool *memory, const void *data, size_t *bytes);
/* Counts memory that is allocated elsewhere. */
zero_status zero_memory_count(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes);
void zero_memory_uncount(struct zero_memory_pool *memory, enum zero_memory_kind kind, size_t bytes);
/* Returns unused page-locked memory to the system. */
void zero_memory_trim_pinned(struct zero_memory_pool *memory);
/* Returns unused memory to the driver. */
void zero_memory_trim(struct zero_memory_pool *memory);
/* Returns ZERO_E_MEMORY. The sentence names how much is free. */
zero_status zero_memory_error(enum zero_memory_kind kind, size_t bytes);

/* ---- window.c: memory that other ranks may be given ------------------------------------------ */

struct zero_window {
	CUmemGenericAllocationHandle physical; /* 0: none */
	char *base;
	size_t bytes;
};

/* Rounds up to what the device allocates at once. */
zero_status zero_window_round_up(const struct zero_device *device, size_t *bytes);
zero_status zero_window_reserve(size_t bytes, char **address);
/* Maps the first bytes of a window at a reserved address too. */
zero_status zero_window_map(const struct zero_device *device, char *address, size_t bytes,
			    const struct zero_window *window);
/* `bytes` are rounded up. The memory is not counted. */
zero_status zero_window_new(struct zero_device *device, struct zero_memory_pool *memory,
			    enum zero_memory_kind kind, size_t bytes, struct zero_window *window);
void zero_window_delete(struct zero_window *window); /* an empty one is a no-op */

/* ---- copy.c ---------------------------------------------------------------------------------- */

void zero_device_copy(struct zero_device *device, CUstream stream, void *to, const void *from,
		      size_t bytes);
/* Many copies on the compute stream. One launch makes those between memory that the device
   reads. */
void zero_device_copy_many(struct zero_device *device, struct zero_memory_pool *memory,
			   const struct zero_copy *copies, size_t count);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the device module share: a device with its streams, its memory and kernels, and
   communicators on NCCL. */
#ifndef ZERO_GPU_H
#define ZERO_GPU_H

#include <pthread.h>

#include "backend/account.h"
#include "backend/comm.h"
#include "control/control.h"
#include "core/clock.h"
#include "device.h"
#include "driver.h"
#include "kernels.h"
#include "nccl_api.h"
#include "core/options.h"
#include "backend/exchange.h"

struct zero_watch;
struct zero_bootstrap_ops;

/* ---- device.c: a device, its streams and what orders them ------------------------------------ */

enum zero_kernel {
	ZERO_K_CAST,
	ZERO_K_SUM,
	ZERO_K_ADAMW,
	ZERO_K_NORM2,
	ZERO_K_NORM2_FOLD,
	ZERO_K_FILL,
	ZERO_K_UNIFORM,
	ZERO_K_NORMAL,
	ZERO_K_COPY_MANY,
	ZERO_KERNELS,
};

enum { ZERO_MARKS = 64 };

struct zero_device {
	CUdevice id;
	CUcontext context;
	CUuuid uuid;
	char name[64];
	int processors;
	CUstream compute; /* the caller's */
	CUstream comm;    /* of collectives */
	CUstream side;    /* of sums, beside the exchange of the next piece */
	bool stuck;       /* what is under way may never end: nothing waits for it */
	CUmemoryPool pool;
	CUmodule module;
	CUfunction functions[ZERO_KERNELS];
	pthread_mutex_t lock; /* of all that follows */
	CUevent *spare;       /* events that nobody uses */
	size_t spare_count, spare_room;
	CUevent marks[ZERO_MARKS]; /* mark n is in n % ZERO_MARKS, unless a later one is */
	uint64_t last_mark;
	zero_status error; /* the first of a call that could not return it; sticky */
	char error_text[512];
	/* Whether the ranks have fallen apart, so that what is under way may have ended early. */
	bool (*is_broken)(void *context, char *text, size_t size, int *rank);
	void *on_failure_context;
};

/* The device that is current in this thread, or that of `local_rank`. */
zero_status zero_device_open(int local_rank, CUstream compute, struct zero_device **device);
/* After all that was begun on it. NULL is legal. */
void zero_device_close(struct zero_device *device);
/* Its context is current in this thread between the two. */
void zero_device_enter(struct zero_device *device);
void zero_device_leave(struct zero_device *device);

/* Keeps the first error of what returns none; returns whether all is well. */
bool zero_device_note(struct zero_device *device, CUresult result, const char *call);
/* Whether it met an error after which nothing is done any more; in `text`. From any thread. */
bool zero_device_failed(struct zero_device *device, char *text, size_t size);
/* That error as this thread's. */
zero_status zero_device_error(struct zero_device *device);

/* An event without timing; NULL after an error, which is kept. */
CUevent zero_event_get(struct zero_device *device);
void zero_event_put(struct zero_device *device, CUevent event); /* NULL is legal */
/* An event that is there when the stream has come so far. */
CUevent zero_event_record(struct zero_device *device, CUstream stream);
/* What is begun on the stream from now on waits for the event; NULL is none. */
void zero_event_order(struct zero_device *device, CUstream stream, CUevent event);
/* The host waits. Ends also when the ranks have fallen apart. */
zero_status zero_event_finish(struct zero_device *device, CUevent event);

uint64_t zero_device_mark(struct zero_device *device);
zero_status zero_device_reach(struct zero_device *device, uint64_t mark);

/* Whether the device can read it; *on_device: it is the device's own. */
bool zero_device_reads(const void *data, bool *on_device);

/* ---- launch.c: kernels ----------------------------------------------------------------------- */

/* `work` is what each of so many threads would do one of; 0 of it launches nothing. */
void zero_launch(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
		 const void *arguments, size_t work);
void zero_launch_blocks(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
			const void *arguments, size_t blocks);
void zero_launch_cast(struct zero_device *device, CUstream stream, zero_dtype to, void *out,
		      zero_dtype from, const void *in, size_t count);
/* out (+)= in[0] + ... + in[n - 1]; any n >= 1. */
void zero_launch_sum(struct zero_device *device, CUstream stream, float *out, zero_dtype from,
		     const void *const *in, int n, size_t count, bool accumulate);

/* Many copies in the caller's stream, those between memory that the device reads in one launch. */
struct zero_memory_pool;
void zero_launch_copies(struct zero_device *device, struct zero_memory_pool *memory,
			const struct zero_copy *copies, size_t count);

/* ---- memory.c: counted by kind --------------------------------------------------------------- */

zero_status zero_memory_new(struct zero_device *device, const zero_allocator *allocator,
			    struct zero_memory_pool **memory);
void zero_memory_delete(struct zero_memory_pool *memory); /* NULL is legal */
/* For what is begun on the stream from now on. */
zero_status zero_memory_alloc(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes, bool zeroed, CUstream stream, void **data);
/* Once what was begun on the stream until now is done. NULL data is legal. */
void zero_memory_free(struct zero_memory_pool *memory, void *data, CUstream stream);
void zero_memory_limit(struct zero_memory_pool *memory, size_t bytes);
void zero_memory_read(struct zero_memory_pool *memory, zero_memory *bytes);
void zero_memory_high(struct zero_memory_pool *memory, size_t kinds[ZERO_MEM_KINDS]);
bool zero_memory_caller_block(struct zero_memory_pool *memory, const void *data, size_t *bytes);
zero_status zero_memory_count(struct zero_memory_pool *memory, enum zero_memory_kind kind,
			      size_t bytes);
void zero_memory_uncount(struct zero_memory_pool *memory, enum zero_memory_kind kind, size_t bytes);
/* Memory that nobody uses goes back to the driver. */
void zero_memory_trim(struct zero_memory_pool *memory);
/* ZERO_E_MEMORY, with what is free. */
zero_status zero_memory_none(enum zero_memory_kind kind, size_t bytes);
/* Whether it all comes from the caller. */
bool zero_memory_is_callers(const struct zero_memory_pool *memory);

/* ---- windows.c: outputs of gathers that NCCL knows ------------------------------------------- */

struct zero_windows;
struct zero_window;
struct zero_nccl_comm;

/* Of one communicator. */
zero_status zero_windows_new(struct zero_nccl_comm *nccl, struct zero_memory_pool *memory,
			     bool symmetric, struct zero_windows **windows);
void zero_windows_delete(struct zero_windows *windows);
/* An idle one or a new one; if `fresh`, a new one. */
zero_status zero_window_make(struct zero_windows *windows, size_t bytes, bool fresh,
			     struct zero_window **window);
/* COLLECTIVE. A new one is registered. */
zero_status zero_window_register(struct zero_window *window);
uint64_t zero_window_id(const struct zero_window *window); /* 0: not registered */
void *zero_window_data(const struct zero_window *window);
/* Idle again once the stream has come so far; nothing was begun on it for ZERO_NO_STREAM. */
void zero_window_free(struct zero_window *window, CUstream stream);

#define ZERO_NO_STREAM ((CUstream)(uintptr_t)-1)

/* ---- nccl.c: a communicator of NCCL ---------------------------------------------------------- */

struct zero_nccl_comm {
	pthread_mutex_t lock; /* around each call: another thread may abort it */
	ncclComm_t comm;
	bool aborted;
	bool callers; /* who looks for its errors by themselves */
	struct zero_device *device;
};

zero_status zero_nccl_init(struct zero_nccl_comm *nccl, struct zero_device *device, int rank,
			   int world, ncclUniqueId *ids, int id_count, double seconds);
/* COLLECTIVE over `from`. `color` as in ncclCommSplit. `made` stays where it is, also after an
   error: NCCL may still write to it. */
zero_status zero_nccl_split(struct zero_nccl_comm *from, int color, int key, double seconds,
			    struct zero_nccl_comm *made);
/* COLLECTIVE unless it was aborted, or the ranks are apart: then nobody is waited for. */
void zero_nccl_close(struct zero_nccl_comm *nccl, bool apart);
/* What is under way on all of them ends early. From any thread; NULL ones are passed over. */
void zero_nccl_abort(struct zero_nccl_comm *const *nccl, size_t count);
/* Between them several calls are one; `end` waits until they are on their streams. */
zero_status zero_nccl_begin(struct zero_nccl_comm *nccl);
zero_status zero_nccl_end(struct zero_nccl_comm *nccl, zero_status status);
/* COLLECTIVE if it is `symmetric`: a window then, else a buffer of this rank's. */
zero_status zero_nccl_register(struct zero_nccl_comm *nccl, void *data, size_t bytes,
			       bool symmetric, void **handle);
void zero_nccl_deregister(struct zero_nccl_comm *nccl, void *handle, bool symmetric);
/* Whether NCCL says that something went wrong meanwhile, in `text`. */
bool zero_nccl_failed(struct zero_nccl_comm *nccl, char *text, size_t size);

/* ---- comm.c, collectives.c: what ranks do together ------------------------------------------- */

/* Memory that the host fills while the device empties the other one. */
struct zero_turns {
	void *data[2];
	CUevent free[2]; /* when the device has done with it; NULL: it has */
	size_t bytes;    /* of each */
	int next;
};

/* Of all ranks, or of a team. */
struct zero_cuda_comm {
	struct zero_comm comm;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	struct zero_windows *windows;          /* NULL: none */
	struct zero_control *control;          /* the first communicator's; NULL with one rank */
	struct zero_watch *watch;              /* likewise */
	const struct zero_bootstrap_ops *wire; /* of the first; NULL: no launcher */
	unsigned number;                       /* of the first: among those of this process */
	bool uses_windows;                     /* of the first: all ranks do */
	bool symmetric; /* of the first: windows are, else registered buffers */
	bool joined;    /* of the first: its ranks can talk */
	bool agreed;    /* of the first: and are all there */
	bool aborted;   /* of the first: its communicator was */
	struct zero_control_team *talk;
	struct zero_nccl_comm nccl;
	struct zero_cuda_comm *first; /* that of all ranks, which counts for all; maybe itself */
	uint64_t *nodes;              /* of the first: [world], equal on one node */
	struct zero_nccl_comm *none;  /* of the first: what a split leaves that it is not in */
	double open_seconds;
	int reduce;               /* of the first: ZERO_REDUCE_AUTO ... */
	bool ordered;             /* sums are folded in rank order */
	void *staging[2];         /* [world - 1][piece] of an exchange */
	size_t piece;             /* bytes */
	const void **summands;    /* [world] */
	struct zero_turns pinned; /* for what comes from pageable memory of a root */
};

static inline struct zero_cuda_comm *zero_cuda_of(struct zero_comm *comm)
{
	return (struct zero_cuda_comm *)comm;
}

extern const struct zero_comm_ops zero_cuda_team_ops, zero_cuda_alone_ops;

/* Before a communicator of NCCL is closed: nobody aborts it any more, and if a rank is lost it is
   aborted, so that what is under way ends. */
void zero_cuda_part(struct zero_cuda_comm *cuda, struct zero_nccl_comm *nccl);
/* COLLECTIVE over all ranks: ZERO_OP_TEAM_COMM. */
zero_status zero_cuda_team_comm(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* What the operations need beside their buffers. */
zero_status zero_cuda_prepare(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count);
/* For exchanges, once in a communicator's life. */
zero_status zero_cuda_make_staging(struct zero_cuda_comm *cuda);
void zero_cuda_drop_buffers(struct zero_cuda_comm *cuda);
/* On the communication stream. */
void zero_cuda_copy(struct zero_cuda_comm *cuda, void *to, const void *from, size_t bytes);
/* Puts them on the streams. */
zero_status zero_cuda_run(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count);

/* ---- reduce.c, scatter.c --------------------------------------------------------------------- */

zero_status zero_cuda_reduce_scatter(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* `count` of them, at the same time. */
zero_status zero_cuda_scatter(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count);
zero_status zero_cuda_broadcast(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* Bytes of pinned memory that a root needs, of each turn; 0: none. */
size_t zero_cuda_root_bytes(const struct zero_cuda_comm *cuda, const struct zero_op *ops,
			    size_t count);

/* ---- open.c: how the ranks find each other --------------------------------------------------- */

/* COLLECTIVE. An error with a *comm is one that all ranks know. *sharing: ranks of this node that
   have the same GPU. */
zero_status zero_cuda_open(const struct zero_backend_config *config, struct zero_cuda_comm **comm,
			   size_t *sharing);
void zero_cuda_close(struct zero_cuda_comm *comm);
/* COLLECTIVE. A communicator for the caller; `path` as for zero_nccl_open. */
zero_status zero_cuda_caller_comm(struct zero_cuda_comm *cuda, const char *path,
				  struct zero_nccl_comm *made);

/* ---- watch.c --------------------------------------------------------------------------------- */

/* `device` may be NULL. */
zero_status zero_watch_new(struct zero_control *control, struct zero_device *device, int rank,
			   struct zero_watch **watch);
/* Its thread ends; false: it is in an abort that does not end, and keeps what it looks after. NULL
   is legal, as for all of these. */
bool zero_watch_stop(struct zero_watch *watch);
/* Then, when nobody can wake it any more. */
void zero_watch_delete(struct zero_watch *watch);
void zero_watch_add(struct zero_watch *watch, struct zero_nccl_comm *nccl);
void zero_watch_remove(struct zero_watch *watch, struct zero_nccl_comm *nccl);
/* The ranks have fallen apart; `context` is a watch. */
void zero_watch_wake(void *context);

#endif

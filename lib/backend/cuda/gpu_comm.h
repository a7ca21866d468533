/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks with devices do together: communicators, and the collectives on them. */
#ifndef ZERO_GPU_COMM_H
#define ZERO_GPU_COMM_H

#include <stdatomic.h>

#include "backend/exchange.h"
#include "backend/rendezvous.h"
#include "core/options.h"
#include "gpu.h"
#include "nccl_api.h"

struct zero_nccl_watchdog;

/* ---- nccl_comm.c: a communicator of NCCL ----------------------------------------------------- */

struct zero_nccl_comm {
	pthread_mutex_t lock; /* held in each call: one thread at a time may make one */
	ncclComm_t comm;
	atomic_bool aborted; /* no call may be made any more */
	bool blocking;       /* a call has enqueued its work when it returns */
	bool for_caller;     /* made for the caller, who checks its errors */
	struct zero_device *device;
};

/* COLLECTIVE. Makes a non-blocking communicator, with one rank a blocking one. */
zero_status zero_nccl_init(struct zero_nccl_comm *nccl, struct zero_device *device, int rank,
			   int world, ncclUniqueId *ids, int id_count, double seconds);
/* COLLECTIVE over `from`, a non-blocking one. Makes a blocking one. `color` is that of
   ncclCommSplit. With `copy_engines` these make the gathers where they can, and leave the
   processors to the program. `made` must not be freed after an error, because NCCL may still write
   to it. */
zero_status zero_nccl_split(struct zero_nccl_comm *from, int color, int key, double seconds,
			    bool copy_engines, struct zero_nccl_comm *made);
/* COLLECTIVE, after all work on it; unless it was aborted or communication has `failed`: then it
   waits for no rank. */
void zero_nccl_close(struct zero_nccl_comm *nccl, bool failed);
/* Ends the work on all of them early. From any thread. */
void zero_nccl_abort(struct zero_nccl_comm *const *nccl, size_t count);
/* Calls between the two are one group of NCCL, which is enqueued when zero_nccl_group_end
   returns. */
zero_status zero_nccl_group_begin(struct zero_nccl_comm *nccl);
zero_status zero_nccl_group_end(struct zero_nccl_comm *nccl, zero_status status);
/* Registers a symmetric window, which is COLLECTIVE, or else a buffer of this rank. */
zero_status zero_nccl_register(struct zero_nccl_comm *nccl, void *data, size_t bytes,
			       bool symmetric, void **handle);
void zero_nccl_deregister(struct zero_nccl_comm *nccl, void *handle, bool symmetric);
/* Returns whether NCCL reports an asynchronous error, and copies it to `text`. */
bool zero_nccl_failed(struct zero_nccl_comm *nccl, char *text, size_t size);

/* ---- nccl_watchdog.c ------------------------------------------------------------------------- */

/* `device` may be NULL. */
zero_status zero_nccl_watchdog_new(struct zero_net *net, struct zero_device *device, int rank,
				   struct zero_nccl_watchdog **watchdog);
/* Ends the thread. Returns false if the thread is in an abort that does not end: the watchdog must
   not be deleted then. NULL is a no-op, as for all of these functions. */
bool zero_nccl_watchdog_stop(struct zero_nccl_watchdog *watchdog);
/* Frees a stopped watchdog, which no thread may wake any more. */
void zero_nccl_watchdog_delete(struct zero_nccl_watchdog *watchdog);
void zero_nccl_watchdog_add(struct zero_nccl_watchdog *watchdog, struct zero_nccl_comm *nccl);
/* Call it before zero_nccl_close. The watchdog does not abort the communicator any more. If
   communication has failed, the communicator is aborted now, so that its work ends. */
void zero_nccl_watchdog_remove(struct zero_nccl_watchdog *watchdog, struct zero_nccl_comm *nccl);
/* Aborts all communicators, because their work may never end. */
void zero_nccl_watchdog_abort(struct zero_nccl_watchdog *watchdog);

/* ---- gather_slot.c: memory that groups are gathered into ------------------------------------- */

struct zero_slots; /* those of one communicator, or of this rank alone */
struct zero_device_gather_buffer;

/* Reserves addresses for a gather buffer and adds it to the tree `buffers`; NULL: it is empty. */
zero_status zero_gather_buffer_new(struct zero_device *device, size_t bytes, void **buffers,
				   void **address);
/* NULL: no gather buffer was reserved there. */
struct zero_device_gather_buffer *zero_gather_buffer_at(void *const *buffers, const void *address);
/* The device must no longer use it. */
void zero_gather_buffer_delete(struct zero_device_gather_buffer *buffer, void **buffers);
void zero_gather_buffers_delete(void **buffers);

/* `nccl` is NULL for slots of this rank alone. */
zero_status zero_slots_new(struct zero_nccl_comm *nccl, struct zero_device *device,
			   struct zero_memory_pool *memory, bool symmetric,
			   struct zero_slots **slots);
/* The gather buffers that use them must have been deleted. NULL is a no-op. */
void zero_slots_delete(struct zero_slots *slots);
/* Gives the gather buffer an idle slot, or a new one; a new one if `fresh`. */
zero_status zero_gather_buffer_acquire(struct zero_slots *slots,
				       struct zero_device_gather_buffer *buffer, bool fresh);
/* Gives the gather buffer the slot that it had last, if that is idle. Returns whether it was. */
bool zero_gather_buffer_reacquire(struct zero_device_gather_buffer *buffer);
/* Returns the address of the gather buffer that has that slot now; NULL: none, or no slot yet. */
void *zero_gather_buffer_holder(const struct zero_device_gather_buffer *buffer);
/* COLLECTIVE. Registers the gather buffer's slot with NCCL if it is new. */
zero_status zero_gather_buffer_register(struct zero_device_gather_buffer *buffer);
/* Makes the gather buffer's slot idle. What is enqueued later may write to it. */
void zero_gather_buffer_release(struct zero_device_gather_buffer *buffer);
/* The number of the slot, the same on all ranks; 0: it is new. */
uint64_t zero_gather_buffer_slot(const struct zero_device_gather_buffer *buffer);
/* Where communication and the library's kernels access the slot. */
char *zero_gather_buffer_base(const struct zero_device_gather_buffer *buffer);

/* ---- a communicator of all ranks, or of a team ----------------------------------------------- */

/* Page-locked memory of a root: the host fills one buffer while the device sends the other. */
struct zero_pinned_buffers {
	void *data[2];
	struct zero_event *sent[2]; /* when the device has read the buffer; NULL: it has */
	int next;
};

/*
 * The ranks of a communicator as reduces see them. A row has ranks of one node, and all rows have
 * as many: the ranks of a node if nodes have equally many, else their greatest common divisor. With
 * reduce=ordered there is one row.
 */
struct zero_reduce_grid {
	int rows, columns;
	int row, column;   /* of this rank */
	int *order;        /* [columns][rows]: ranks */
	int *device_order; /* the same on the device; NULL: it is that of the ranks */
};

struct zero_cuda_comm {
	struct zero_comm comm;
	struct zero_device *device;
	struct zero_memory_pool *memory;
	struct zero_slots *slots;            /* of gather buffers of its ranks */
	struct zero_net *net;                /* shared by all; NULL with one rank */
	struct zero_nccl_watchdog *watchdog; /* likewise */
	struct zero_nccl_comm nccl;          /* of its ranks, for all but reduces */
	struct zero_cuda_comm *first;        /* the communicator of all ranks, maybe itself */
	double open_seconds;
	struct zero_reduce_grid grid; /* of its ranks; unused with one rank */
	struct zero_nccl_comm near;   /* of the ranks of its row, for reduces; unused with one */
	struct zero_nccl_comm far;    /* of those of its column, likewise */
	void *near_registration, *far_registration; /* of the window */
	size_t window_bytes;                        /* of the window that are used */
	struct zero_pinned_buffers pinned;          /* for what a root has in pageable memory */
	/* Only the first communicator uses these: */
	struct zero_rendezvous rendezvous;
	struct zero_nccl_comm parent; /* all others are split from it */
	struct zero_window window;    /* for the values of reduces, of all communicators */
	bool ordered;                 /* sums are made in rank order */
	struct zero_slots *own_slots; /* of gather buffers that no other rank takes part in */
	void *buffers;                /* all of this rank: see gather_slot.c */
	bool copy_engines;            /* make gathers, see nccl_cta */
	bool symmetric;  /* slots are symmetric windows of NCCL, else registered buffers */
	bool joined;     /* its ranks have control connections */
	bool agreed;     /* and all ranks have opened without an error */
	bool aborted;    /* its communicator of NCCL was */
	uint64_t *nodes; /* [world], equal for ranks of one node */
	struct zero_nccl_comm *not_member; /* result of a split that excludes this rank */
};

enum { ZERO_NCCL_CTA_SINCE = 22800 }; /* the version that has copy engines */

static inline struct zero_cuda_comm *zero_cuda_of(struct zero_comm *comm)
{
	return (struct zero_cuda_comm *)comm;
}

/* comm_ops.c */
extern const struct zero_comm_ops zero_cuda_comm_ops, zero_cuda_single_rank_ops;

/* ---- comm_open.c ----------------------------------------------------------------------------- */

/* COLLECTIVE. If it fails and sets *comm, all ranks know of the error. *sharing: ranks of this node
   that have the same device. */
zero_status zero_cuda_open(const struct zero_backend_config *config, struct zero_cuda_comm **comm,
			   size_t *sharing);
void zero_cuda_close(struct zero_cuda_comm *comm);
/* COLLECTIVE. A communicator for the caller; `path` as for zero_nccl_open. */
zero_status zero_cuda_caller_comm(struct zero_cuda_comm *cuda, const char *path,
				  struct zero_nccl_comm *made);

/* ---- rendezvous.c: how several ranks find each other ----------------------------------------- */

/* COLLECTIVE, whatever `status` this rank has so far: the other ranks learn of it. */
zero_status zero_cuda_rendezvous(struct zero_cuda_comm *comm, zero_status status, size_t *sharing);

/* ---- team.c ---------------------------------------------------------------------------------- */

/* COLLECTIVE over all ranks: ZERO_OP_TEAM_COMM. */
zero_status zero_cuda_team_comm(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* zero_comm_ops.close */
void zero_cuda_team_close(struct zero_comm *comm);

/* ---- collectives: they enqueue operations on the communication stream ------------------------ */

/* collectives.c: all operations of a submission */
zero_status zero_cuda_run_operations(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				     size_t count);

/* all_gather.c: `count` of them as one group */
zero_status zero_cuda_all_gather(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				 size_t count);

/* reduce_grid.c. Of the communicator of all ranks, or of a team, in this order: */
zero_status zero_reduce_grid_new(struct zero_cuda_comm *cuda);
/* COLLECTIVE over all ranks of the job: makes near and far. `cuda` is NULL for a rank that is no
   member, or has an error. */
zero_status zero_cuda_split_reduces(struct zero_cuda_comm *first, struct zero_cuda_comm *cuda);
/* Allocates what they need. */
zero_status zero_cuda_prepare_reduces(struct zero_cuda_comm *cuda);
/* COLLECTIVE over its ranks, once all of them are prepared. */
zero_status zero_cuda_register_reduces(struct zero_cuda_comm *cuda);
/* See zero_nccl_close. */
void zero_cuda_close_reduces(struct zero_cuda_comm *cuda, bool failed);

/* reduce_scatter.c. Reduces are enqueued on the reduce stream. */
zero_status zero_cuda_reduce_scatter(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* How many of `count` elements to reduce at a time, if at most `unit` are, a multiple of 64. */
size_t zero_reduce_piece(size_t count, size_t unit);
/* reduce_ordered.c */
zero_status zero_cuda_reduce_ordered(struct zero_cuda_comm *cuda, const struct zero_op *op);

/* scatter.c: `count` scatters at the same time, and broadcast */
zero_status zero_cuda_scatter(struct zero_cuda_comm *cuda, const struct zero_op *ops, size_t count);
zero_status zero_cuda_all_to_all(struct zero_cuda_comm *cuda, const struct zero_op *op);
zero_status zero_cuda_broadcast(struct zero_cuda_comm *cuda, const struct zero_op *op);
/* Allocates the page-locked memory that this rank needs as a root of the operations. It is freed by
   zero_cuda_free_pinned, when they are enqueued or will not be. */
zero_status zero_cuda_reserve_pinned(struct zero_cuda_comm *cuda, const struct zero_op *ops,
				     size_t count);
void zero_cuda_free_pinned(struct zero_cuda_comm *cuda);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, opened when the first job of several ranks asks for it: the one that the program already
 * carries (PyTorch's wheel brings its own), or else the system's. What came after 2.19 is NULL in
 * an older one.
 */
#ifndef ZERO_NCCL_API_H
#define ZERO_NCCL_API_H

#include <nccl.h>

#include "core/module.h"

struct zero_nccl_api {
	int version; /* that of the library, such as 22809 */
	char path[256];

	/* ncclGetVersion, ncclGetUniqueId ...: each as its name says */
	ncclResult_t (*get_version)(int *version);
	ncclResult_t (*get_unique_id)(ncclUniqueId *id);
	const char *(*get_error_string)(ncclResult_t result);
	const char *(*get_last_error)(ncclComm_t comm);
	ncclResult_t (*comm_init_rank_config)(ncclComm_t *comm, int world, ncclUniqueId id,
					      int rank, ncclConfig_t *config);
	/* since 2.23 */
	ncclResult_t (*comm_init_rank_scalable)(ncclComm_t *comm, int world, int rank, int id_count,
						ncclUniqueId *ids, ncclConfig_t *config);
	ncclResult_t (*comm_split)(ncclComm_t comm, int color, int key, ncclComm_t *made,
				   ncclConfig_t *config);
	ncclResult_t (*comm_finalize)(ncclComm_t comm);
	ncclResult_t (*comm_destroy)(ncclComm_t comm);
	ncclResult_t (*comm_abort)(ncclComm_t comm);
	ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t *error);
	ncclResult_t (*mem_alloc)(void **data, size_t bytes);
	ncclResult_t (*mem_free)(void *data);
	ncclResult_t (*comm_register)(ncclComm_t comm, void *data, size_t bytes, void **handle);
	ncclResult_t (*comm_deregister)(ncclComm_t comm, void *handle);
	/* since 2.27; a window is an ncclWindow_t */
	ncclResult_t (*comm_window_register)(ncclComm_t comm, void *data, size_t bytes,
					     void **window, int flags);
	ncclResult_t (*comm_window_deregister)(ncclComm_t comm, void *window);
	ncclResult_t (*all_gather)(const void *send, void *recv, size_t count, ncclDataType_t type,
				   ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*reduce_scatter)(const void *send, void *recv, size_t count,
				       ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
				       cudaStream_t stream);
	ncclResult_t (*broadcast)(const void *send, void *recv, size_t count, ncclDataType_t type,
				  int root, ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*send)(const void *data, size_t count, ncclDataType_t type, int peer,
			     ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*recv)(void *data, size_t count, ncclDataType_t type, int peer,
			     ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*group_start)(void);
	ncclResult_t (*group_end)(void);
};

/* NCCL_WIN_COLL_SYMMETRIC and NCCL_CTA_POLICY_ZERO, which older headers do not have. */
enum { ZERO_WINDOW_SYMMETRIC = 1, ZERO_CTA_POLICY_ZERO = 2 };

extern struct zero_nccl_api zero_nccl;

/* Once in a process. `path` is "" or that of the library. */
zero_status zero_nccl_open(const char *path);
/* ZERO_OK, also for what is still in progress, or ZERO_E_COMM with NCCL's own words. */
zero_status zero_nccl_status(ncclResult_t result, const char *call, ncclComm_t comm);

#endif

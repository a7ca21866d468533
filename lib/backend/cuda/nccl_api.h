/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL, loaded when the first job of several ranks asks for it: the copy that the program has
 * already loaded (PyTorch's wheel has its own), or else the system's. Functions newer than 2.19 are
 * NULL if the library does not have them.
 */
#ifndef ZERO_NCCL_API_H
#define ZERO_NCCL_API_H

#include <nccl.h>

#include "core/module.h"

struct zero_nccl_api {
	int version; /* of the library, such as 22809 */
	char path[256];

	/* Each member has the name of its function: get_version is ncclGetVersion. */
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

/* NCCL_WIN_COLL_SYMMETRIC and NCCL_CTA_POLICY_..., which older headers lack. */
enum { ZERO_WINDOW_SYMMETRIC = 1, ZERO_CTA_POLICY_EFFICIENCY = 1, ZERO_CTA_POLICY_ZERO = 2 };

extern struct zero_nccl_api zero_nccl;

/* Loads NCCL, once in a process. `path` is the library's, or "" to search for it. */
zero_status zero_nccl_open(const char *path);
/* Returns ZERO_OK for a success or a call in progress, or else ZERO_E_COMM with NCCL's
   description. */
zero_status zero_nccl_status(ncclResult_t result, const char *call, ncclComm_t comm);

#endif

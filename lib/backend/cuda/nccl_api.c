/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL and finds its functions. */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "backend/comm.h"
#include "nccl_api.h"

struct zero_nccl_api zero_nccl;

enum { OLDEST = 21900 };

static const struct function {
	const char *name;
	size_t at;     /* in struct zero_nccl_api */
	bool optional; /* newer than OLDEST, and may be missing */
} functions[] = {
	{"ncclGetVersion", offsetof(struct zero_nccl_api, get_version), false},
	{"ncclGetUniqueId", offsetof(struct zero_nccl_api, get_unique_id), false},
	{"ncclGetErrorString", offsetof(struct zero_nccl_api, get_error_string), false},
	{"ncclGetLastError", offsetof(struct zero_nccl_api, get_last_error), false},
	{"ncclCommInitRankConfig", offsetof(struct zero_nccl_api, comm_init_rank_config), false},
	{"ncclCommInitRankScalable", offsetof(struct zero_nccl_api, comm_init_rank_scalable), true},
	{"ncclCommSplit", offsetof(struct zero_nccl_api, comm_split), false},
	{"ncclCommFinalize", offsetof(struct zero_nccl_api, comm_finalize), false},
	{"ncclCommDestroy", offsetof(struct zero_nccl_api, comm_destroy), false},
	{"ncclCommAbort", offsetof(struct zero_nccl_api, comm_abort), false},
	{"ncclCommGetAsyncError", offsetof(struct zero_nccl_api, comm_get_async_error), false},
	{"ncclCommRegister", offsetof(struct zero_nccl_api, comm_register), false},
	{"ncclCommDeregister", offsetof(struct zero_nccl_api, comm_deregister), false},
	{"ncclCommWindowRegister", offsetof(struct zero_nccl_api, comm_window_register), true},
	{"ncclCommWindowDeregister", offsetof(struct zero_nccl_api, comm_window_deregister), true},
	{"ncclAllGather", offsetof(struct zero_nccl_api, all_gather), false},
	{"ncclReduceScatter", offsetof(struct zero_nccl_api, reduce_scatter), false},
	{"ncclBroadcast", offsetof(struct zero_nccl_api, broadcast), false},
	{"ncclSend", offsetof(struct zero_nccl_api, send), false},
	{"ncclRecv", offsetof(struct zero_nccl_api, recv), false},
	{"ncclGroupStart", offsetof(struct zero_nccl_api, group_start), false},
	{"ncclGroupEnd", offsetof(struct zero_nccl_api, group_end), false},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool opened;

/* The NCCL that the program has loaded comes first: two copies in one process would not know of
   each other's use of the GPU. */
static zero_status find_library(const char *path, void **library)
{
	if (*path) {
		*library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		return *library ? ZERO_OK
				: zero_core->fail(ZERO_E_UNSUPPORTED, "cannot load NCCL: %s",
						  dlerror());
	}
	if (dlsym(RTLD_DEFAULT, "ncclGetVersion"))
		*library = dlopen(NULL, RTLD_NOW);
	if (!*library)
		*library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
	if (!*library)
		*library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	if (*library)
		return ZERO_OK;
	return zero_core->fail(
		ZERO_E_UNSUPPORTED,
		"several ranks with GPUs communicate by NCCL, which is not found: %s; "
		"LD_LIBRARY_PATH may name its folder, or ZERO_NCCL the file",
		dlerror());
}

static zero_status find_functions(void *library)
{
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *function = dlsym(library, functions[i].name);

		*(void **)(void *)((char *)&zero_nccl + functions[i].at) = function;
		if (!function && !functions[i].optional)
			return zero_core->fail(ZERO_E_UNSUPPORTED,
					       "NCCL has no %s: 2.19 or newer is needed",
					       functions[i].name);
	}
	return ZERO_OK;
}

static zero_status check_version(void)
{
	Dl_info info;

	if (dladdr(*(void **)(void *)&zero_nccl.get_version, &info) && info.dli_fname)
		snprintf(zero_nccl.path, sizeof(zero_nccl.path), "%s", info.dli_fname);
	if (zero_nccl.get_version(&zero_nccl.version) == ncclSuccess && zero_nccl.version >= OLDEST)
		return ZERO_OK;
	return zero_core->fail(ZERO_E_UNSUPPORTED, "%s is NCCL %d.%d: 2.19 or newer is needed",
			       zero_nccl.path, zero_nccl.version / 10000,
			       zero_nccl.version / 100 % 100);
}

zero_status zero_nccl_open(const char *path)
{
	void *library = NULL;
	zero_status status = ZERO_OK;

	pthread_mutex_lock(&lock);
	if (!opened) {
		status = find_library(path, &library);
		if (!status)
			status = find_functions(library);
		if (!status)
			status = check_version();
		opened = !status;
	}
	pthread_mutex_unlock(&lock);
	return status;
}

zero_status zero_nccl_status(ncclResult_t result, const char *call, ncclComm_t comm)
{
	const char *more = "";

	if (result == ncclSuccess || result == ncclInProgress)
		return ZERO_OK;
	if (comm)
		more = zero_nccl.get_last_error(comm);
	return zero_core->fail(ZERO_E_COMM, "%s failed: %s (%d)%s%s", call,
			       zero_nccl.get_error_string(result), (int)result,
			       more && *more ? ", " : "", more ? more : "");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of cuBLAS and NCCL that are needed, declared here because the build has neither. */
#include <dlfcn.h>

#include "transfers.h"

/* ---- cuBLAS ---------------------------------------------------------------------------------- */

/* Values of library_types.h and cublas_api.h, which no release has changed. */
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, ALGORITHM_DEFAULT = -1 };

static struct {
	int (*create)(void **handle);
	int (*set_stream)(void *handle, void *stream);
	int (*product)(void *handle, int turn_a, int turn_b, int m, int n, int k, const void *alpha,
		       const void *a, int a_type, int a_stride, const void *b, int b_type,
		       int b_stride, const void *beta, void *c, int c_type, int c_stride,
		       int compute, int algorithm);
	void *handle;
} blas;

static bool find(void *library, const char *name, void *function)
{
	void *address = dlsym(library, name);

	memcpy(function, &address, sizeof(address));
	return address;
}

const char *blas_open(void)
{
	static const char *const names[] = {"libcublas.so", "libcublas.so.13", "libcublas.so.12"};
	void *library = NULL;

	for (size_t i = 0; !library && i < sizeof(names) / sizeof(names[0]); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "libcublas cannot be opened";
	if (!find(library, "cublasCreate_v2", &blas.create) ||
	    !find(library, "cublasSetStream_v2", &blas.set_stream) ||
	    !find(library, "cublasGemmEx", &blas.product))
		return "libcublas has no cublasGemmEx";
	return blas.create(&blas.handle) ? "cublasCreate failed" : NULL;
}

void blas_product(void *stream, bool turn_a, bool turn_b, size_t m, size_t n, size_t k,
		  const void *a, const void *b, void *out, bool wide, bool accumulate)
{
	const float one = 1, before = accumulate ? 1 : 0;
	int failed = blas.set_stream(blas.handle, stream);

	failed = failed ? failed
			: blas.product(blas.handle, turn_a, turn_b, (int)m, (int)n, (int)k, &one, a,
				       R_16BF, (int)(turn_a ? k : m), b, R_16BF,
				       (int)(turn_b ? n : k), &before, out, wide ? R_32F : R_16BF,
				       (int)m, COMPUTE_32F, ALGORITHM_DEFAULT);
	check(!failed, "cublasGemmEx: %d", failed);
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

struct id {
	char bytes[NCCL_ID_BYTES];
};

enum { INT8 = 0 };

static struct {
	int (*version)(int *version);
	int (*new_id)(struct id *id);
	int (*join)(void **comm, int ranks, struct id id, int rank);
	int (*gather)(const void *send, void *recv, size_t count, int type, void *comm,
		      void *stream);
	int (*leave)(void *comm);
	const char *(*text)(int result);
} nccl;

const char *nccl_open(void)
{
	const char *path = getenv("ZERO_NCCL");
	void *library = dlopen(path && *path ? path : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

	if (!library)
		return "libnccl.so.2 cannot be opened";
	if (!find(library, "ncclGetVersion", &nccl.version) ||
	    !find(library, "ncclGetUniqueId", &nccl.new_id) ||
	    !find(library, "ncclCommInitRank", &nccl.join) ||
	    !find(library, "ncclAllGather", &nccl.gather) ||
	    !find(library, "ncclCommDestroy", &nccl.leave) ||
	    !find(library, "ncclGetErrorString", &nccl.text))
		return "libnccl.so.2 is no NCCL";
	return NULL;
}

static void must(int result, const char *call)
{
	check(!result, "%s: %s", call, nccl.text(result));
}

int nccl_version(void)
{
	int version = 0;

	must(nccl.version(&version), "ncclGetVersion");
	return version;
}

void nccl_new_id(void *id)
{
	must(nccl.new_id(id), "ncclGetUniqueId");
}

void *nccl_join(int ranks, int own, const void *id)
{
	struct id copy;
	void *comm;

	memcpy(&copy, id, sizeof(copy));
	must(nccl.join(&comm, ranks, copy, own), "ncclCommInitRank");
	return comm;
}

void nccl_gather(void *comm, const void *send, void *recv, size_t bytes, void *stream)
{
	must(nccl.gather(send, recv, bytes, INT8, comm, stream), "ncclAllGather");
}

void nccl_leave(void *comm)
{
	must(nccl.leave(comm), "ncclCommDestroy");
}

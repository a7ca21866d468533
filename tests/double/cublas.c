/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVIDIA's libcublas.so on machines without GPUs, for what lib/backend/cuda/gemm.c
 * calls. A gemm runs on its stream of the stand-in for the driver, by the machine's OpenBLAS, so
 * that its bits are the host backend's. Accesses are checked as those of kernels are.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALISED = 1, INVALID = 7, COLUMN_MAJOR = 102, CBLAS_NO_TRANS = 111 };

struct handle {
	CUstream stream;
};

struct gemm {
	int transpose_a, transpose_b, m, n, k, a_stride, b_stride, c_stride;
	float alpha, beta;
	const float *a, *b;
	float *c;
};

static struct {
	void *(*reach)(CUdeviceptr, size_t, bool);
	CUresult (*launch)(CUstream, CUhostFn, void *, void *(*)(void *), void (*)(void *));
	void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha,
		      const float *a, int a_stride, const float *b, int b_stride, float beta,
		      float *c, int c_stride);
} library;

static void *find(const char *name, const char *file)
{
	void *loaded = dlopen(file, RTLD_NOW | RTLD_LOCAL);
	void *found = loaded ? dlsym(loaded, name) : NULL;

	if (!found) {
		fprintf(stderr, "cublas: there is no %s in %s\n", name, file);
		abort();
	}
	return found;
}

int EXPORT cublasCreate_v2(void **handle);
int EXPORT cublasDestroy_v2(void *handle);
int EXPORT cublasSetStream_v2(void *handle, CUstream stream);
int EXPORT cublasSgemm_v2(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
			  const float *alpha, const float *a, int a_stride, const float *b,
			  int b_stride, const float *beta, float *c, int c_stride);

int cublasCreate_v2(void **handle)
{
	*(void **)&library.reach = find("double_cuda_reach", "libcuda.so.1");
	*(void **)&library.launch = find("double_cuda_launch", "libcuda.so.1");
	*(void **)&library.sgemm = find("cblas_sgemm", "libopenblas.so.0");
	*handle = calloc(1, sizeof(struct handle));
	return *handle ? SUCCESS : NOT_INITIALISED;
}

int cublasDestroy_v2(void *handle)
{
	free(handle);
	return SUCCESS;
}

int cublasSetStream_v2(void *handle, CUstream stream)
{
	((struct handle *)handle)->stream = stream;
	return SUCCESS;
}

/* All of a matrix of these rows and columns, as they are stored. */
static void *reach(const float *x, int rows, int columns, int stride, bool write)
{
	size_t elements = (size_t)(columns - 1) * (size_t)stride + (size_t)rows;

	return library.reach((CUdeviceptr)x, elements * sizeof(float), write);
}

static void run(void *user)
{
	const struct gemm *p = user;
	const float *a = reach(p->a, p->transpose_a ? p->k : p->m, p->transpose_a ? p->m : p->k,
			       p->a_stride, false);
	const float *b = reach(p->b, p->transpose_b ? p->n : p->k, p->transpose_b ? p->k : p->n,
			       p->b_stride, false);
	float *c = reach(p->c, p->m, p->n, p->c_stride, true);

	if (!a || !b || !c) {
		fprintf(stderr, "cublas: a matrix is not the device's\n");
		abort();
	}
	library.sgemm(COLUMN_MAJOR, CBLAS_NO_TRANS + p->transpose_a,
		      CBLAS_NO_TRANS + p->transpose_b, p->m, p->n, p->k, p->alpha, a, p->a_stride,
		      b, p->b_stride, p->beta, c, p->c_stride);
	free(user);
}

int cublasSgemm_v2(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
		   const float *alpha, const float *a, int a_stride, const float *b, int b_stride,
		   const float *beta, float *c, int c_stride)
{
	struct gemm *gemm = malloc(sizeof(*gemm));

	if (m < 1 || n < 1 || k < 1 || a_stride < (transpose_a ? k : m) ||
	    b_stride < (transpose_b ? n : k) || c_stride < m || !gemm)
		return INVALID;
	*gemm = (struct gemm){transpose_a, transpose_b, m,     n, k, a_stride, b_stride,
			      c_stride,    *alpha,      *beta, a, b, c};
	return library.launch(((struct handle *)handle)->stream, run, gemm, NULL, NULL)
		       ? NOT_INITIALISED
		       : SUCCESS;
}

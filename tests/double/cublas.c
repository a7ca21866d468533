/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for NVIDIA's libcublas.so on machines without GPUs, for what lib/backend/cuda/products.c
 * calls. A product runs on its stream of the stand-in for the driver, by the machine's OpenBLAS, so
 * that its bits are the host backend's. Accesses are checked as those of kernels are.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALISED = 1, INVALID = 7, COLUMN_MAJOR = 102, CBLAS_AS_IT_IS = 111 };

struct handle {
	CUstream stream;
};

struct product {
	int a_turned, b_turned, m, n, k, a_stride, b_stride, c_stride;
	float alpha, beta;
	const float *a, *b;
	float *c;
};

static struct {
	void *(*reach)(CUdeviceptr, size_t, bool);
	CUresult (*launch)(CUstream, CUhostFn, void *, void *(*)(void *), void (*)(void *));
	void (*sgemm)(int order, int a_turned, int b_turned, int m, int n, int k, float alpha,
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
int EXPORT cublasSgemm_v2(void *handle, int a_turned, int b_turned, int m, int n, int k,
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
	const struct product *p = user;
	const float *a = reach(p->a, p->a_turned ? p->k : p->m, p->a_turned ? p->m : p->k,
			       p->a_stride, false);
	const float *b = reach(p->b, p->b_turned ? p->n : p->k, p->b_turned ? p->k : p->n,
			       p->b_stride, false);
	float *c = reach(p->c, p->m, p->n, p->c_stride, true);

	if (!a || !b || !c) {
		fprintf(stderr, "cublas: a matrix is not the device's\n");
		abort();
	}
	library.sgemm(COLUMN_MAJOR, CBLAS_AS_IT_IS + p->a_turned, CBLAS_AS_IT_IS + p->b_turned,
		      p->m, p->n, p->k, p->alpha, a, p->a_stride, b, p->b_stride, p->beta, c,
		      p->c_stride);
	free(user);
}

int cublasSgemm_v2(void *handle, int a_turned, int b_turned, int m, int n, int k,
		   const float *alpha, const float *a, int a_stride, const float *b, int b_stride,
		   const float *beta, float *c, int c_stride)
{
	struct product *product = malloc(sizeof(*product));

	if (m < 1 || n < 1 || k < 1 || a_stride < (a_turned ? k : m) ||
	    b_stride < (b_turned ? n : k) || c_stride < m || !product)
		return INVALID;
	*product = (struct product){a_turned, b_turned, m,     n, k, a_stride, b_stride,
				    c_stride, *alpha,   *beta, a, b, c};
	return library.launch(((struct handle *)handle)->stream, run, product, NULL, NULL)
		       ? NOT_INITIALISED
		       : SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt_cuda.cuh - what the layers in gpt_device.cu use: the device and its errors, memory, launches,
 * sums over a row, and matrix products.
 */
#ifndef GPT_CUDA_CUH
#define GPT_CUDA_CUH

#ifdef __CUDACC__
#include <cublas_v2.h>
#include <cuda_runtime.h>
#else
#include "blas_emulated.h" /* tests compile this file for the host */
#endif

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "gpt_device.h"

#ifndef GPT_THREADS /* tests set a number that fits small models */
#define GPT_THREADS 256
#define GPT_STRIP   256
#endif

static constexpr unsigned int WARP = 32, THREADS = GPT_THREADS;

/* ---- the device ------------------------------------------------------------------------------ */

static char sentence[256];
static cublasHandle_t blas;

/* Records the first call that failed. Returns whether this one succeeded. */
static bool fine(cudaError_t error, const char *call)
{
	if (error != cudaSuccess && !sentence[0])
		snprintf(sentence, sizeof(sentence), "%s failed: %s", call,
			 cudaGetErrorString(error));
	return error == cudaSuccess;
}

static bool fine(cublasStatus_t status, const char *call)
{
	if (status != CUBLAS_STATUS_SUCCESS && !sentence[0])
		snprintf(sentence, sizeof(sentence), "%s failed: %s", call,
			 cublasGetStatusString(status));
	return status == CUBLAS_STATUS_SUCCESS;
}

const char *math_error(void)
{
	return sentence[0] ? sentence : NULL;
}

/* Selects the device that the memory is on. The query needs a context on some device, which takes
   memory there, so this first selects the most likely one: that of the rank's index on the node. */
static bool choose_device(int place, const void *memory)
{
	cudaPointerAttributes where;
	int devices = 0;

	return fine(cudaGetDeviceCount(&devices), "cudaGetDeviceCount") &&
	       fine(cudaSetDevice(place % devices), "cudaSetDevice") &&
	       fine(cudaPointerGetAttributes(&where, memory), "cudaPointerGetAttributes") &&
	       fine(cudaSetDevice(where.device), "cudaSetDevice");
}

static bool begin_blas(void)
{
	const char *tf32 = getenv("GPT_TF32");

	if (!fine(cublasCreate(&blas), "cublasCreate"))
		return false;
	if (tf32 && strcmp(tf32, "1") == 0)
		return fine(cublasSetMathMode(blas, CUBLAS_TF32_TENSOR_OP_MATH),
			    "cublasSetMathMode");
	return true;
}

float *math_open(zero_job *job, size_t bytes)
{
	void *arena = NULL;

	if (zero_device_alloc(job, bytes, &arena) != ZERO_OK) {
		snprintf(sentence, sizeof(sentence), "%s", zero_last_error());
		return NULL;
	}
	if (!choose_device(zero_local_rank(job), arena) || !begin_blas()) {
		math_close(job, (float *)arena);
		return NULL;
	}
	return (float *)arena;
}

void math_close(zero_job *job, float *arena)
{
	if (blas)
		cublasDestroy(blas);
	blas = NULL;
	zero_device_free(job, arena);
}

void copy_in(void *to, const void *from, size_t bytes)
{
	fine(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}

void copy_out(void *to, const void *from, size_t bytes)
{
	fine(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy from the device");
}

void clear(float *x, size_t n)
{
	fine(cudaMemsetAsync(x, 0, n * sizeof(*x), 0), "cudaMemsetAsync");
}

double seconds(void)
{
	struct timespec now;

	fine(cudaStreamSynchronize(0), "cudaStreamSynchronize");
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double matmul_seconds(void)
{
	return NAN;
}

/* The launch kernel<<<blocks, threads>>>(arguments...), in a form that every compiler accepts. */
template <class... P, class... A>
static void launch(const char *name, void (*kernel)(P...), size_t blocks, unsigned int threads,
		   A... arguments)
{
	if (!blocks)
		return;
#ifdef __CUDACC__
	kernel<<<(unsigned int)blocks, threads>>>(arguments...);
#else
	zero_launch(kernel, (unsigned int)blocks, threads, arguments...);
#endif
	fine(cudaGetLastError(), name);
}

/* ---- sums and maxima over a row -------------------------------------------------------------- */

struct plus {
	__device__ float operator()(float x, float y) const
	{
		return x + y;
	}
};

struct larger {
	__device__ float operator()(float x, float y) const
	{
		return fmaxf(x, y);
	}
};

/* Folds x over the threads of a block: over the lanes of each warp, then over the warps. All
   threads get the result. */
template <class Fold> static __device__ float block_fold(float x, Fold fold)
{
	__shared__ float of_warp[WARP];

	for (int distance = WARP / 2; distance > 0; distance /= 2)
		x = fold(x, __shfl_xor_sync(0xffffffff, x, distance));
	__syncthreads(); /* all threads have read the result of the previous fold */
	if (threadIdx.x % WARP == 0)
		of_warp[threadIdx.x / WARP] = x;
	__syncthreads();
	x = of_warp[0];
	for (unsigned int w = 1; w < blockDim.x / WARP; w++)
		x = fold(x, of_warp[w]);
	return x;
}

/* The numerators of a softmax: x[i] = e^(x[i] - max). Returns their sum. */
static __device__ float exp_row(float *x, size_t n, float *max)
{
	float sum = 0, m = -INFINITY;

	for (size_t i = threadIdx.x; i < n; i += blockDim.x)
		m = fmaxf(m, x[i]);
	m = block_fold(m, larger());
	for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
		x[i] = expf(x[i] - m);
		sum += x[i];
	}
	*max = m;
	return block_fold(sum, plus());
}

/* ---- matrix products ------------------------------------------------------------------------- */

static cublasOperation_t stored(bool transposed)
{
	return transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/* cuBLAS is column-major: it sees each matrix as its transpose, and computes c^T = b^T a^T. */
void matmul(bool ta, bool tb, size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
	    const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
	fine(cublasSgemm(blas, stored(tb), stored(ta), (int)n, (int)m, (int)k, &alpha, b, (int)ldb,
			 a, (int)lda, &beta, c, (int)ldc),
	     "cublasSgemm");
}

/* A matrix of each head. That of head h begins `stride` elements after that of head h - 1. */
struct heads {
	const float *first;
	size_t ld, stride;
	bool transposed;
};

/* matmul() for all heads at once. */
static void matmul_heads(size_t count, size_t m, size_t n, size_t k, float alpha, struct heads a,
			 struct heads b, float beta, float *c, size_t ldc, size_t stride)
{
	fine(cublasSgemmStridedBatched(blas, stored(b.transposed), stored(a.transposed), (int)n,
				       (int)m, (int)k, &alpha, b.first, (int)b.ld,
				       (long long)b.stride, a.first, (int)a.ld, (long long)a.stride,
				       &beta, c, (int)ldc, (long long)stride, (int)count),
	     "cublasSgemmStridedBatched");
}

#endif

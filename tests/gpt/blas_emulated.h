/* SPDX-License-Identifier: Apache-2.0 */
/*
 * blas_emulated.h - the calls of cuBLAS and of CUDA's runtime that examples/gpt_device.cu makes, on
 * the host: products by CBLAS, kernels by emulate.h, device memory that faults when the program
 * itself touches it.
 */
#ifndef BLAS_EMULATED_H
#define BLAS_EMULATED_H

#include <cblas.h>
#include <sys/mman.h>

#include "../double/emulate.h"
#include "zero.h"

/* What the program got from zero_device_alloc. Parameters and gradients are not guarded so: the
   library's own threads work on them. */
static char *guarded;
static size_t guarded_bytes;

static inline void guard(int protection)
{
	if (guarded && mprotect(guarded, guarded_bytes, protection) != 0)
		abort();
}

/* Lives while the device works. */
struct at_work {
	at_work()
	{
		guard(PROT_READ | PROT_WRITE);
	}

	~at_work()
	{
		guard(PROT_NONE);
	}
};

static inline zero_status emulated_device_alloc(zero_job *job, size_t bytes, void **data)
{
	zero_status status = zero_device_alloc(job, bytes, data);

	if (status != ZERO_OK)
		return status;
	memset(*data, 0xff, bytes); /* NaN: nobody may rely on zeros */
	guarded = static_cast<char *>(*data);
	guarded_bytes = (bytes + 4095) / 4096 * 4096;
	guard(PROT_NONE);
	return ZERO_OK;
}

static inline void emulated_device_free(zero_job *job, void *data)
{
	guard(PROT_READ | PROT_WRITE);
	guarded = nullptr;
	zero_device_free(job, data);
}

#define zero_device_alloc emulated_device_alloc
#define zero_device_free  emulated_device_free

template <class... P, class... A>
static inline void emulated_launch(void (*kernel)(P...), unsigned int blocks, unsigned int threads,
				   A... arguments)
{
	at_work device;

	zero_emulation::order = 1; /* threads and blocks in any, lest a barrier be missing */
	zero_launch(kernel, blocks, threads, arguments...);
}

#define zero_launch emulated_launch

/* ---- the runtime ----------------------------------------------------------------------------- */

enum cudaError_t { cudaSuccess };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

struct cudaPointerAttributes {
	int device;
};

static inline const char *cudaGetErrorString(cudaError_t)
{
	return "";
}

static inline cudaError_t cudaGetLastError(void)
{
	return cudaSuccess;
}

static inline cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *to, const void *)
{
	to->device = 0;
	return cudaSuccess;
}

static inline cudaError_t cudaGetDeviceCount(int *count)
{
	*count = 1;
	return cudaSuccess;
}

static inline cudaError_t cudaSetDevice(int)
{
	return cudaSuccess;
}

static inline cudaError_t cudaStreamSynchronize(int)
{
	return cudaSuccess;
}

static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind)
{
	at_work device;

	memcpy(to, from, bytes);
	return cudaSuccess;
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, int)
{
	at_work device;

	memset(to, value, bytes);
	return cudaSuccess;
}

/* ---- cuBLAS, whose matrices have columns behind each other ----------------------------------- */

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
enum cublasOperation_t { CUBLAS_OP_N = CblasNoTrans, CUBLAS_OP_T = CblasTrans };
enum cublasMath_t { CUBLAS_TF32_TENSOR_OP_MATH = 3 };
typedef const char *cublasHandle_t;

static inline const char *cublasGetStatusString(cublasStatus_t)
{
	return "";
}

static inline cublasStatus_t cublasCreate(cublasHandle_t *blas)
{
	*blas = "CBLAS";
	return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasDestroy(cublasHandle_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
	return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t
cublasSgemmStridedBatched(cublasHandle_t, cublasOperation_t of_a, cublasOperation_t of_b, int m,
			  int n, int k, const float *alpha, const float *a, int lda,
			  long long stride_a, const float *b, int ldb, long long stride_b,
			  const float *beta, float *c, int ldc, long long stride_c, int count)
{
	at_work device;

	for (int i = 0; i < count; i++, a += stride_a, b += stride_b, c += stride_c)
		cblas_sgemm(CblasColMajor, (CBLAS_TRANSPOSE)of_a, (CBLAS_TRANSPOSE)of_b, m, n, k,
			    *alpha, a, lda, b, ldb, *beta, c, ldc);
	return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasSgemm(cublasHandle_t blas, cublasOperation_t of_a,
					 cublasOperation_t of_b, int m, int n, int k,
					 const float *alpha, const float *a, int lda,
					 const float *b, int ldb, const float *beta, float *c,
					 int ldc)
{
	return cublasSgemmStridedBatched(blas, of_a, of_b, m, n, k, alpha, a, lda, 0, b, ldb, 0,
					 beta, c, ldc, 0, 1);
}

#endif

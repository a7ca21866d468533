/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sgemm by cuBLAS, which is opened when the first one is needed: the copy that the
 * program has loaded (PyTorch's wheel has its own), or else the system's. Matrices are stored row
 * by row here, and column by column there, where each is its transpose.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "backend/newton_schulz.h"
#include "gpu.h"

/* Of cublas_api.h, which need not be there when this is compiled. */
enum { NO_TRANS = 0, TRANS = 1, SUCCESS = 0 };

struct zero_cublas {
	struct zero_device *device;
	double *parts, *sum; /* of a squared norm; page-locked */
	void *handle;
	int (*create)(void **handle);                     /* cublasCreate_v2 */
	int (*destroy)(void *handle);                     /* cublasDestroy_v2 */
	int (*set_stream)(void *handle, CUstream stream); /* cublasSetStream_v2 */
	int (*sgemm)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
		     const float *alpha, const float *a, int a_stride, const float *b, int b_stride,
		     const float *beta, float *c, int c_stride); /* cublasSgemm_v2 */
	int failed; /* the first error of a gemm; 0: none */
};

static void *find_library(void)
{
	static const char *const names[] = {"libcublas.so.13", "libcublas.so.12",
					    "libcublas.so.11"};
	void *library = NULL;

	for (size_t i = 0; !library && i < sizeof(names) / sizeof(*names); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
	for (size_t i = 0; !library && i < sizeof(names) / sizeof(*names); i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	return library;
}

static zero_status open_library(struct zero_cublas *cublas)
{
	const struct {
		const char *name;
		void *at;
	} functions[] = {
		{"cublasCreate_v2", &cublas->create},
		{"cublasDestroy_v2", &cublas->destroy},
		{"cublasSetStream_v2", &cublas->set_stream},
		{"cublasSgemm_v2", &cublas->sgemm},
	};
	void *library = find_library();

	if (!library)
		return zero_core->fail(
			ZERO_E_UNSUPPORTED,
			"a step of Muon on GPUs needs cuBLAS, and libcublas.so.13, .12 "
			"or .11 is not found: LD_LIBRARY_PATH may name its folder");
	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		void *function = dlsym(library, functions[i].name);

		if (!function)
			return zero_core->fail(ZERO_E_UNSUPPORTED, "cuBLAS has no %s",
					       functions[i].name);
		*(void **)functions[i].at = function;
	}
	return ZERO_OK;
}

static zero_status status_of(int error, const char *call)
{
	return error == SUCCESS
		       ? ZERO_OK
		       : zero_core->fail(ZERO_E_COMM, "%s failed with status %d", call, error);
}

zero_status zero_cublas_open(struct zero_device *device, double *parts, double *sum,
			     struct zero_cublas **opened)
{
	struct zero_cublas *cublas;
	zero_status status;

	if (*opened)
		return ZERO_OK;
	cublas = calloc(1, sizeof(*cublas));
	if (!cublas)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for cuBLAS");
	cublas->device = device;
	cublas->parts = parts;
	cublas->sum = sum;
	status = open_library(cublas);
	if (!status)
		status = status_of(cublas->create(&cublas->handle), "cublasCreate");
	if (status)
		free(cublas);
	else
		*opened = cublas;
	return status;
}

void zero_cublas_close(struct zero_cublas *cublas)
{
	if (cublas)
		cublas->destroy(cublas->handle);
	free(cublas);
}

static void gemm(void *context, bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k,
		 float alpha, const float *a, const float *b, float beta, float *c)
{
	struct zero_cublas *cublas = context;
	int error;

	if (cublas->failed)
		return;
	error = cublas->sgemm(cublas->handle, transpose_b ? TRANS : NO_TRANS,
			      transpose_a ? TRANS : NO_TRANS, (int)n, (int)m, (int)k, &alpha, b,
			      (int)(transpose_b ? k : n), a, (int)(transpose_a ? m : k), &beta, c,
			      (int)n);
	cublas->failed = error;
}

static void copy(void *context, float *to, const float *from, size_t count)
{
	const struct zero_cublas *cublas = context;

	zero_device_copy(cublas->device, cublas->device->compute_stream, to, from,
			 count * sizeof(float));
}

static void normalise(void *context, float *x, size_t count, float eps)
{
	const struct zero_cublas *cublas = context;
	struct zero_device *device = cublas->device;
	struct zero_device_norm2 norm2 = {.x = x, .count = count, .parts = cublas->parts};
	struct zero_device_norm2_fold fold = {
		.parts = cublas->parts, .count = zero_norm2_parts(count), .sum = cublas->sum};
	struct zero_device_normalise divide = {
		.x = x, .count = count, .sum = cublas->sum, .eps = eps};

	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2, &norm2, fold.count);
	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2_FOLD, &fold, 1);
	zero_launch(device, device->compute_stream, ZERO_K_NORMALISE, &divide);
}

zero_status zero_cublas_orthogonalise(struct zero_cublas *cublas,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	static const struct zero_gemm_ops table = {gemm, copy, normalise};
	zero_status status =
		status_of(cublas->set_stream(cublas->handle, cublas->device->compute_stream),
			  "cublasSetStream");

	if (status)
		return status;
	zero_newton_schulz(&table, cublas, rule, x, rows, columns, scratch);
	return status_of(cublas->failed, "cublasSgemm");
}

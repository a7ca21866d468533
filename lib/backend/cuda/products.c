/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices by cuBLAS, which is opened when the first one is needed: the copy that the
 * program has loaded (PyTorch's wheel has its own), or else the system's. Matrices are stored row by
 * row here, and column by column there, where each is its transpose.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "backend/newton_schulz.h"
#include "gpu.h"

/* Of cublas_api.h, which need not be there when this is compiled. */
enum { AS_IT_IS = 0, TURNED = 1, SUCCESS = 0 };

struct zero_device_products {
	struct zero_device *device;
	double *parts, *sum; /* of a squared norm; page-locked */
	void *handle;
	int (*create)(void **handle);                     /* cublasCreate_v2 */
	int (*destroy)(void *handle);                     /* cublasDestroy_v2 */
	int (*set_stream)(void *handle, CUstream stream); /* cublasSetStream_v2 */
	int (*sgemm)(void *handle, int a_turned, int b_turned, int m, int n, int k,
		     const float *alpha, const float *a, int a_stride, const float *b, int b_stride,
		     const float *beta, float *c, int c_stride); /* cublasSgemm_v2 */
	int failed; /* the first error of a product; 0: none */
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

static zero_status open_library(struct zero_device_products *products)
{
	const struct {
		const char *name;
		void *at;
	} functions[] = {
		{"cublasCreate_v2", &products->create},
		{"cublasDestroy_v2", &products->destroy},
		{"cublasSetStream_v2", &products->set_stream},
		{"cublasSgemm_v2", &products->sgemm},
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

zero_status zero_device_products_open(struct zero_device *device, double *parts, double *sum,
				      struct zero_device_products **opened)
{
	struct zero_device_products *products;
	zero_status status;

	if (*opened)
		return ZERO_OK;
	products = calloc(1, sizeof(*products));
	if (!products)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for cuBLAS");
	products->device = device;
	products->parts = parts;
	products->sum = sum;
	status = open_library(products);
	if (!status)
		status = status_of(products->create(&products->handle), "cublasCreate");
	if (status)
		free(products);
	else
		*opened = products;
	return status;
}

void zero_device_products_close(struct zero_device_products *products)
{
	if (products)
		products->destroy(products->handle);
	free(products);
}

static void product(void *context, bool a_turned, bool b_turned, size_t m, size_t n, size_t k,
		    float alpha, const float *a, const float *b, float beta, float *c)
{
	struct zero_device_products *products = context;
	int error;

	if (products->failed)
		return;
	error = products->sgemm(products->handle, b_turned ? TURNED : AS_IT_IS,
				a_turned ? TURNED : AS_IT_IS, (int)n, (int)m, (int)k, &alpha, b,
				(int)(b_turned ? k : n), a, (int)(a_turned ? m : k), &beta, c,
				(int)n);
	products->failed = error;
}

static void copy(void *context, float *to, const float *from, size_t count)
{
	const struct zero_device_products *products = context;

	zero_device_copy(products->device, products->device->compute_stream, to, from,
			 count * sizeof(float));
}

static void normalise(void *context, float *x, size_t count, float eps)
{
	const struct zero_device_products *products = context;
	struct zero_device *device = products->device;
	struct zero_device_norm2 norm2 = {.x = x, .count = count, .parts = products->parts};
	struct zero_device_norm2_fold fold = {
		.parts = products->parts, .count = zero_norm2_parts(count), .sum = products->sum};
	struct zero_device_normalise divide = {
		.x = x, .count = count, .sum = products->sum, .eps = eps};

	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2, &norm2, fold.count);
	zero_launch_blocks(device, device->compute_stream, ZERO_K_NORM2_FOLD, &fold, 1);
	zero_launch(device, device->compute_stream, ZERO_K_NORMALISE, &divide);
}

zero_status zero_device_orthogonalise(struct zero_device_products *products,
				      const struct zero_newton_schulz *rule, float *x, size_t rows,
				      size_t columns, float *scratch)
{
	static const struct zero_products table = {product, copy, normalise};
	zero_status status =
		status_of(products->set_stream(products->handle, products->device->compute_stream),
			  "cublasSetStream");

	if (status)
		return status;
	zero_newton_schulz(&table, products, rule, x, rows, columns, scratch);
	return status_of(products->failed, "cublasSgemm");
}

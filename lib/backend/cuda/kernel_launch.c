/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the kernels, and launches them with the number of blocks that suits the device. */
#include "gpu.h"

enum { ITEMS_PER_THREAD = 4 };

#define ZERO_ROW(number, name, elements, count_at) {"zero_device_" #name, elements, count_at},
static const struct {
	const char *name;
	size_t elements, count_at;
} kernels[] = {ZERO_DEVICE_KERNELS(ZERO_ROW)};

/* The question also loads a kernel, which the driver otherwise puts off until its first launch:
   that would take memory after the budget was measured, and fail in a capture. */
static zero_status load(struct zero_device *device, int kernel)
{
	CUfunction *function = &device->functions[kernel];
	int blocks = 0;
	zero_status status = zero_driver_status(
		zero_driver.function_get(function, device->module, kernels[kernel].name),
		kernels[kernel].name);

	if (!status)
		status = zero_driver_status(
			zero_driver.occupancy(&blocks, *function, ZERO_DEVICE_THREADS, 0),
			"cuOccupancyMaxActiveBlocksPerMultiprocessor");
	device->most_blocks[kernel] =
		(size_t)device->processors * (size_t)(blocks > 0 ? blocks : 1);
	return status;
}

zero_status zero_kernels_load(struct zero_device *device)
{
	zero_status status = zero_driver_status(
		zero_driver.module_load(&device->module, zero_device_image), "cuModuleLoadData");

	for (int k = 0; !status && k < ZERO_KERNELS; k++)
		status = load(device, k);
	return status;
}

void zero_launch_blocks(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
			const void *arguments, size_t blocks)
{
	void *pointer = (void *)(uintptr_t)arguments;

	if (blocks)
		zero_device_check(
			device,
			zero_driver.launch(device->functions[kernel], (unsigned int)blocks, 1, 1,
					   ZERO_DEVICE_THREADS, 1, 1, 0, stream, &pointer, NULL),
			"cuLaunchKernel");
}

void zero_launch(struct zero_device *device, CUstream stream, enum zero_kernel kernel,
		 const void *arguments)
{
	const size_t elements = kernels[kernel].elements;
	const size_t each = (size_t)ZERO_DEVICE_THREADS * ITEMS_PER_THREAD * elements;
	const size_t most = device->most_blocks[kernel];
	size_t blocks = 1, count;

	if (elements) {
		count = *(const size_t *)(const void *)((const char *)arguments +
							kernels[kernel].count_at);
		blocks = count / each + (count % each != 0);
	}
	zero_launch_blocks(device, stream, kernel, arguments, blocks < most ? blocks : most);
}

void zero_launch_cast(struct zero_device *device, CUstream stream, zero_dtype to, void *out,
		      zero_dtype from, const void *in, size_t count)
{
	struct zero_device_cast cast = {
		.out = out, .in = in, .count = count, .to = to, .from = from};

	zero_launch(device, stream, ZERO_K_CAST, &cast);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Launches kernels with the number of blocks that suits the device. */
#include "gpu.h"

/* A multiprocessor has 8 blocks at a time, which saturates its memory bandwidth. */
enum { BLOCKS_PER_PROCESSOR = 8, ITEMS_PER_THREAD = 4 };

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
		 const void *arguments, size_t work)
{
	const size_t each = (size_t)ZERO_DEVICE_THREADS * ITEMS_PER_THREAD;
	const size_t most = (size_t)device->processors * BLOCKS_PER_PROCESSOR;
	size_t blocks = work / each + (work % each != 0);

	zero_launch_blocks(device, stream, kernel, arguments, blocks < most ? blocks : most);
}

void zero_launch_cast(struct zero_device *device, CUstream stream, zero_dtype to, void *out,
		      zero_dtype from, const void *in, size_t count)
{
	struct zero_device_cast cast = {
		.out = out, .in = in, .count = count, .to = to, .from = from};

	zero_launch(device, stream, ZERO_K_CAST, &cast, count / 4 + (count % 4 != 0));
}

void zero_launch_sum(struct zero_device *device, CUstream stream, const struct zero_device_sum *sum)
{
	zero_launch(device, stream, ZERO_K_SUM, sum, sum->count / 4 + (sum->count % 4 != 0));
}

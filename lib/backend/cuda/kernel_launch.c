/* SPDX-License-Identifier: Apache-2.0 */
/* Loads the kernels, and launches them with the number of blocks that suits the device. */
#include "gpu.h"

/* A multiprocessor has 8 blocks at a time, which saturates its memory bandwidth. */
enum { BLOCKS_PER_PROCESSOR = 8, ITEMS_PER_THREAD = 4 };

/* A kernel's name, and how many elements an item of its work has, with the place of their number in
   its arguments. A kernel with 0 has as many blocks as the caller says, or one. */
static const struct {
	const char *name;
	size_t elements, count_at;
} kernels[ZERO_KERNELS] = {
	[ZERO_K_CAST] = {"zero_device_cast", 4, offsetof(struct zero_device_cast, count)},
	[ZERO_K_SUM] = {"zero_device_sum", 4, offsetof(struct zero_device_sum, count)},
	[ZERO_K_ADAMW] = {"zero_device_adamw", 4, offsetof(struct zero_device_adamw, count)},
	[ZERO_K_ADAMW_8BIT] = {"zero_device_adamw_8bit", 1,
			       offsetof(struct zero_device_adamw, count)},
	[ZERO_K_NORM2] = {"zero_device_norm2", 0, 0},
	[ZERO_K_NORM2_FOLD] = {"zero_device_norm2_fold", 0, 0},
	[ZERO_K_STEP_RULE] = {"zero_device_step_rule", 0, 0},
	[ZERO_K_GROUP_RULE] = {"zero_device_group_rule", 1,
			       offsetof(struct zero_group_rule, count)},
	[ZERO_K_FILL] = {"zero_device_fill", 4, offsetof(struct zero_device_fill, count)},
	[ZERO_K_UNIFORM] = {"zero_device_uniform", 4, offsetof(struct zero_device_random, count)},
	[ZERO_K_NORMAL] = {"zero_device_normal", 4, offsetof(struct zero_device_random, count)},
	[ZERO_K_COPY_MANY] = {"zero_device_copy_many", 0, 0},
	[ZERO_K_MUON_MOMENTUM] = {"zero_device_muon_momentum", 4,
				  offsetof(struct zero_device_muon, count)},
	[ZERO_K_MUON_UPDATE] = {"zero_device_muon_update", 4,
				offsetof(struct zero_device_muon, count)},
	[ZERO_K_NORMALISE] = {"zero_device_normalise", 1,
			      offsetof(struct zero_device_normalise, count)},
};

zero_status zero_kernels_load(struct zero_device *device)
{
	zero_status status = zero_driver_status(
		zero_driver.module_load(&device->module, zero_device_image), "cuModuleLoadData");

	for (int k = 0; !status && k < ZERO_KERNELS; k++)
		status = zero_driver_status(zero_driver.function_get(&device->functions[k],
								     device->module,
								     kernels[k].name),
					    kernels[k].name);
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
	const size_t most = (size_t)device->processors * BLOCKS_PER_PROCESSOR;
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "emulate.h"

#include "kernels/device.cu"

#include "kernels.h"

template <class Args>
static void launch(void (*kernel)(Args), unsigned int blocks, const void *args)
{
	zero_launch(kernel, blocks, ZERO_DEVICE_THREADS, *static_cast<const Args *>(args));
}

#define ROW(number, name, ...) \
	{"zero_device_" #name, \
	 [](unsigned int blocks, const void *args) { launch(zero_device_##name, blocks, args); }},

static const struct {
	const char *name;
	void (*launch)(unsigned int blocks, const void *args);
} kernels[] = {ZERO_DEVICE_KERNELS(ROW)};

bool zero_emulate_kernel(const char *name, unsigned int blocks, const void *args, uint64_t order)
{
	for (const auto &kernel : kernels) {
		if (strcmp(kernel.name, name))
			continue;
		zero_emulation::order = order;
		kernel.launch(blocks, args);
		zero_emulation::order = 0;
		return true;
	}
	return false;
}

bool zero_emulate_block(const char *name, unsigned int blocks, const void *args, unsigned int block)
{
	zero_emulation::some_first = block;
	zero_emulation::some_count = 1;
	const bool known = zero_emulate_kernel(name, blocks, args, 0);
	zero_emulation::some_count = 0;
	return known;
}

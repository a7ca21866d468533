/* SPDX-License-Identifier: Apache-2.0 */
/* The device's own kernels, run on the host: kernels.cpp compiles them with emulate.h. */
#ifndef DOUBLE_KERNELS_H
#define DOUBLE_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Launches kernel `name` ("zero_device_sum") with its struct of kernels/kernels.h and
 * ZERO_DEVICE_THREADS threads, and waits for it. `order`: see emulate.h. False: there is no such
 * kernel.
 */
bool zero_emulate_kernel(const char *name, unsigned int blocks, const void *args, uint64_t order);
/* Block `block` of them alone. */
bool zero_emulate_block(const char *name, unsigned int blocks, const void *args,
			unsigned int block);

#ifdef __cplusplus
}
#endif

#endif

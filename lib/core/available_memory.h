/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is. */
#ifndef ZERO_AVAILABLE_MEMORY_H
#define ZERO_AVAILABLE_MEMORY_H

#include <stddef.h>

/* Bytes that this process can still allocate: what its control groups leave, or the machine. */
size_t zero_memory_available(void);

#endif

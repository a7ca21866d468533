/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is; shared with the launcher, whose --plan says what ranks would find. */
#ifndef ZERO_AVAILABLE_MEMORY_H
#define ZERO_AVAILABLE_MEMORY_H

#include <stddef.h>

/* Bytes that this process may still take: of its control group or of the machine. */
size_t zero_memory_available(void);

#endif

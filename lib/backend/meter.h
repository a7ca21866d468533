/* SPDX-License-Identifier: Apache-2.0 */
/* The queue's clock: read only where somebody wants to know how long submissions take. */
#ifndef ZERO_METER_H
#define ZERO_METER_H

#include <time.h>

#include "backend.h"

/* Nanoseconds; 0 without a meter. */
static inline uint64_t zero_meter_now(const struct zero_meter *meter)
{
	struct timespec now;

	if (!meter)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif

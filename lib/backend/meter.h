/* SPDX-License-Identifier: Apache-2.0 */
/* The queue's clock: read only where somebody wants to know how long submissions take. */
#ifndef ZERO_METER_H
#define ZERO_METER_H

#include "backend.h"
#include "core/clock.h"

/* Nanoseconds; 0 without a meter. */
static inline uint64_t zero_meter_now(const struct zero_meter *meter)
{
	return meter ? zero_nanoseconds() : 0;
}

#endif

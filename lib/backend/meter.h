/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of struct zero_meter, which is read only if there is one. */
#ifndef ZERO_METER_H
#define ZERO_METER_H

#include "backend.h"
#include "core/clock.h"

/* CLOCK_MONOTONIC in nanoseconds; 0 without a meter. */
static inline uint64_t zero_meter_now(const struct zero_meter *meter)
{
	return meter ? zero_nanoseconds() : 0;
}

#endif

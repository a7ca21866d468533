/* SPDX-License-Identifier: Apache-2.0 */
/* What a step does with the norm: one thread, since the order of additions is fixed. */
#include "backend/step_rule.h"
#include "device.cuh"

ZERO_KERNEL zero_device_step_rule(const __grid_constant__ struct zero_step_rule args)
{
	if (threadIdx.x == 0 && blockIdx.x == 0)
		zero_step_rule_apply(&args);
}

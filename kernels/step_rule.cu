/* SPDX-License-Identifier: Apache-2.0 */
/* What a step does with the norm: one thread, since the order of additions is fixed. Groups have a
   thread each. */
#include "backend/step_rule.h"
#include "device.cuh"

ZERO_KERNEL zero_device_step_rule(const __grid_constant__ struct zero_step_rule args)
{
	if (threadIdx.x == 0 && blockIdx.x == 0)
		zero_step_rule_apply(&args);
}

ZERO_KERNEL zero_device_group_rule(const __grid_constant__ struct zero_group_rule args)
{
	for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < args.count;
	     i += (size_t)gridDim.x * blockDim.x)
		zero_group_rule_apply(&args, &args.groups[i]);
}

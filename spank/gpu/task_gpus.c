/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the GPUs that NVML shows to slurmstepd a task has, and what CUDA calls them there.
 * Numbers identify nothing: with ConstrainDevices=yes of cgroup.conf
 *
 *   - slurmstepd is in the device group of its step before it calls user_init
 *     (task_cgroup_devices_create in src/plugins/task/cgroup/task_cgroup_devices.c), or, with
 *     control groups v2, in that of its job, so that NVML shows the GPUs of the step, or the job,
 *     from 0
 *   - a task that is bound to GPUs may open those alone before task_init is called
 *     (task_cgroup_devices_constrain there, _fork_all_tasks in src/slurmd/slurmstepd/mgr.c)
 *   - CUDA_VISIBLE_DEVICES counts from 0 what may be opened (gres_use_local_device_index in
 *     src/common/gres.c, later src/interfaces/gres.c; src/plugins/gres/common/gres_common.c)
 *
 * So a task has the GPUs whose /dev/nvidiaN it may open, and CUDA numbers them in the order of
 * their PCI addresses. Without control groups these are all, with the numbers of the node.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vram.h"

static int compare_numbers(int left, int right)
{
	return (left > right) - (left < right);
}

/* Puts GPUs in the order of the bus, each before its instances. */
static int compare(const void *a, const void *b)
{
	const struct zero_gpu *left = a, *right = b;
	int order = strcmp(left->bus, right->bus);

	if (!order)
		order = compare_numbers(left->index, right->index);
	return order ? order : compare_numbers(left->instance, right->instance);
}

/*
 * Returns whether the process may open the GPU's file. The kernel asks the control group here as it
 * does in open(), which would start a GPU that nobody uses, and take seconds.
 */
static bool is_own(const struct zero_gpu *gpu)
{
	char path[32];

	if (gpu->minor < 0)
		return true;
	snprintf(path, sizeof(path), "/dev/nvidia%d", gpu->minor);
	return access(path, R_OK | W_OK) == 0;
}

void zero_vram_keep_own(struct zero_vram *vram)
{
	size_t kept = 0;
	int next = -1;

	if (!vram->count)
		return;
	qsort(vram->gpu, vram->count, sizeof(vram->gpu[0]), compare);
	for (size_t i = 0; i < vram->count; i++) {
		if (is_own(&vram->gpu[i]))
			vram->gpu[kept++] = vram->gpu[i];
	}
	/* A GPU that NVML could not query keeps its number, unless it may be another task's. */
	if (vram->why[0] && kept == vram->count)
		return;
	vram->count = kept;
	for (size_t i = 0; i < kept; i++) {
		if (vram->gpu[i].instance < 0)
			next++;
		vram->gpu[i].index = next;
	}
}

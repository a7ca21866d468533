/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Divides the memory that is free among the tasks that share it. Reads nothing but /proc/meminfo,
 * and that only for tasks without GPUs.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/options.h"
#include "visible_gpus.h"

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

/*
 * Returns how many tasks share a GPU. A task that sees all GPUs of the step is expected to use one
 * of them; a task that sees fewer was bound to those. The list of the step may name more GPUs than
 * exist.
 */
static uint64_t tasks_per_gpu(const struct zero_budget_input *input, uint64_t tasks, uint64_t seen)
{
	uint64_t all = visible_gpus_of_step(input);
	bool same = input->visible && input->step_visible &&
		    strcmp(input->visible, input->step_visible) == 0;

	return same || seen >= all ? divide_up(tasks, seen) : divide_up(tasks * seen, all);
}

static void gpu_budget(const struct visible_gpus *visible, uint64_t tasks,
		       struct zero_budget *budget)
{
	size_t unknown = 0;
	uint64_t least = 0;

	budget->gpus = (unsigned)visible->count;
	for (size_t i = 0; i < visible->count; i++) {
		const struct zero_gpu *gpu = visible->entry[i].gpu;
		uint64_t left;

		if (!gpu) {
			unknown++;
			continue;
		}
		left = visible_gpus_left(gpu, visible->input);
		if (!budget->gpu || left < least) {
			budget->gpu = gpu;
			least = left;
		}
	}
	if (unknown)
		snprintf(budget->why, sizeof(budget->why),
			 "CUDA_VISIBLE_DEVICES=%.40s: the free memory of %zu of %zu GPUs is not "
			 "known: %.108s",
			 visible->input->visible, unknown, visible->count, visible->vram->why);
	if (!budget->gpu)
		return;
	budget->budget = least / tasks_per_gpu(visible->input, tasks, visible->count);
	budget->free = budget->gpu->free;
	budget->total = budget->gpu->total;
	budget->source = ZERO_VRAM_NVML;
}

/* Reads the node's memory in bytes. Returns false if the kernel does not report it. */
static bool node_memory(uint64_t *available, uint64_t *total)
{
	FILE *file = fopen("/proc/meminfo", "re");
	bool has_available = false, has_total = false;
	char line[256];

	if (!file)
		return false;
	while (!(has_available && has_total) && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "MemTotal: %" SCNu64 " kB", total) == 1)
			has_total = true;
		else if (sscanf(line, "MemAvailable: %" SCNu64 " kB", available) == 1)
			has_available = true;
	}
	fclose(file);
	*available *= 1024;
	*total *= 1024;
	return has_available && has_total;
}

static void host_budget(const struct zero_budget_input *input, uint64_t tasks,
			struct zero_budget *budget)
{
	uint64_t available = 0, total = 0;

	if (node_memory(&available, &total)) {
		budget->free = available;
		budget->total = total;
		budget->source = ZERO_VRAM_MEM_AVAILABLE;
	}
	if (input->job_memory && (!budget->source || input->job_memory <= budget->free)) {
		budget->free = budget->total = input->job_memory;
		budget->source = ZERO_VRAM_JOB_MEMORY;
	}
	if (input->step_memory && (!budget->source || input->step_memory <= budget->free)) {
		budget->free = budget->total = input->step_memory;
		budget->source = ZERO_VRAM_STEP_MEMORY;
	}
	budget->budget = budget->free / tasks;
}

void zero_budget_compute(const struct zero_vram *vram, const struct zero_budget_input *input,
			 struct zero_budget *budget)
{
	uint64_t tasks = input->tasks ? input->tasks : 1;
	struct visible_gpus visible;

	memset(budget, 0, sizeof(*budget));
	budget->source = ZERO_VRAM_UNKNOWN;
	visible_gpus_find(vram, input, &visible, budget->why, sizeof(budget->why));
	if (visible.count)
		gpu_budget(&visible, tasks, budget);
	else if (input->visible || !input->all_by_default || !vram->why[0])
		host_budget(input, tasks, budget);
	zero_clean(budget->why); /* it quotes the environment */
}

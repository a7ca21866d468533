/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds which GPUs of a node a task sees, as CUDA reads CUDA_VISIBLE_DEVICES, and divides the
 * memory that is free among the tasks that share it. Reads nothing but /proc/meminfo, and that only
 * for tasks without GPUs.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"
#include "vram.h"

/* ---- the GPUs that the task sees ------------------------------------------------------------- */

enum { MAX_LIST = 512 };

enum entry_kind { ENTRY_NUMBER, ENTRY_GPU, ENTRY_MIG, ENTRY_OTHER };

/* An entry of CUDA_VISIBLE_DEVICES. */
struct visible_gpu {
	const char *text;
	int length;
	enum entry_kind kind;
	unsigned number;
	const struct zero_gpu *gpu; /* NULL if NVML did not report it */
};

struct visible_gpus {
	const struct zero_vram *vram;
	const struct zero_budget_input *input;
	struct visible_gpu entry[MAX_LIST];
	size_t count;
};

/* Counts the numbers of "0-3,7". Returns 0 for anything else, spaces included. */
static size_t count_numbers(const char *text)
{
	size_t count = 0;

	if (!text)
		return 0;
	for (;;) {
		unsigned long first, last;
		char *end;

		if (!isdigit((unsigned char)*text))
			return 0;
		first = last = strtoul(text, &end, 10);
		if (*end == '-') {
			text = end + 1;
			if (!isdigit((unsigned char)*text))
				return 0;
			last = strtoul(text, &end, 10);
		}
		if (last < first || last > 0xffff || last - first >= MAX_LIST - count)
			return 0;
		count += last - first + 1;
		if (!*end)
			return count;
		if (*end != ',')
			return 0;
		text = end + 1;
	}
}

/* Returns the free memory of a GPU less the reserve. */
static uint64_t memory_left(const struct zero_gpu *gpu, const struct zero_budget_input *input)
{
	uint64_t reserve = input->reserve;

	if (input->reserve_is_percent) {
		uint64_t percent = reserve < 100 ? reserve : 100;

		reserve = gpu->total / 100 * percent + gpu->total % 100 * percent / 100;
	}
	return gpu->free > reserve ? gpu->free - reserve : 0;
}

/* Parses a number as CUDA does: a sign is allowed, and what follows the digits is ignored. */
static bool parse_ordinal(const char *text, unsigned *number)
{
	char *end;
	long value;

	value = strtol(text, &end, 10);
	if (end == text || value < 0 || value > 0xffff)
		return false;
	*number = (unsigned)value;
	return true;
}

static struct visible_gpu parse_entry(const char *text, int length)
{
	struct visible_gpu entry = {.text = text, .length = length, .kind = ENTRY_OTHER};

	if (zero_begins_with(text, "GPU-"))
		entry.kind = ENTRY_GPU;
	else if (zero_begins_with(text, "MIG-"))
		entry.kind = ENTRY_MIG;
	else if (parse_ordinal(text, &entry.number))
		entry.kind = ENTRY_NUMBER;
	return entry;
}

/* Returns the GPU itself; in MIG mode its first instance, which CUDA uses, or NULL without one. */
static const struct zero_gpu *usable_gpu(const struct zero_vram *vram, const struct zero_gpu *gpu)
{
	const struct zero_gpu *end = vram->gpu + vram->count;

	if (!gpu || !gpu->partitioned)
		return gpu;
	gpu++;
	return gpu < end && gpu->instance >= 0 ? gpu : NULL;
}

static const struct zero_gpu *by_index(const struct zero_vram *vram, unsigned index)
{
	for (size_t i = 0; i < vram->count; i++)
		if (vram->gpu[i].index == (int)index && vram->gpu[i].instance < 0)
			return &vram->gpu[i];
	return NULL;
}

/* Returns the GPU whose UUID equals or starts with the text; NULL if there is none or several. */
static const struct zero_gpu *by_uuid(const struct zero_vram *vram, const char *text, size_t length)
{
	const struct zero_gpu *found = NULL;

	for (size_t i = 0; i < vram->count; i++) {
		const struct zero_gpu *gpu = &vram->gpu[i];

		if (strncmp(gpu->uuid, text, length) != 0)
			continue;
		if (!gpu->uuid[length])
			return gpu;
		if (found)
			return NULL;
		found = gpu;
	}
	return found;
}

/* Finds the GPU of an entry. Returns false if CUDA finds none and ends the list here. */
static bool find_gpu(const struct zero_vram *vram, struct visible_gpu *entry)
{
	entry->gpu = usable_gpu(vram, entry->kind == ENTRY_NUMBER
					      ? by_index(vram, entry->number)
					      : by_uuid(vram, entry->text, (size_t)entry->length));
	/* If NVML did not report all GPUs, the entry may be one of those. */
	return entry->gpu || vram->why[0];
}

static bool same_gpu(const struct visible_gpu *a, const struct visible_gpu *b)
{
	if (a->kind == ENTRY_NUMBER)
		return a->number == b->number;
	if (a->length == b->length && strncmp(a->text, b->text, (size_t)a->length) == 0)
		return true;
	return a->gpu && a->gpu == b->gpu;
}

/* Reads CUDA_VISIBLE_DEVICES as CUDA does. */
static void parse_visible(struct visible_gpus *visible, char *why, size_t size)
{
	const char *list = visible->input->visible, *text = list;

	while (visible->count < MAX_LIST) {
		struct visible_gpu entry;
		const char *end;

		text += strspn(text, " \t");
		end = text + strcspn(text, ",");
		entry = parse_entry(text, (int)(end - text));
		while (entry.length && isspace((unsigned char)text[entry.length - 1]))
			entry.length--;
		/* The list ends at the first entry of another kind. */
		if (entry.kind == ENTRY_OTHER ||
		    (visible->count && entry.kind != visible->entry[0].kind))
			return;
		if (!find_gpu(visible->vram, &entry)) {
			snprintf(why, size,
				 "CUDA_VISIBLE_DEVICES=%.64s: this task has no GPU %.*s, and CUDA "
				 "ignores the entries from there on",
				 list, entry.length < 64 ? entry.length : 64, text);
			return;
		}
		for (size_t i = 0; i < visible->count; i++) {
			if (!same_gpu(&visible->entry[i], &entry))
				continue;
			snprintf(why, size,
				 "CUDA_VISIBLE_DEVICES=%.64s names %.*s twice, so that CUDA sees "
				 "no GPU",
				 list, entry.length < 64 ? entry.length : 64, text);
			visible->count = 0;
			return;
		}
		visible->entry[visible->count++] = entry;
		if (*end != ',')
			return;
		text = end + 1;
	}
}

/* Without CUDA_VISIBLE_DEVICES, CUDA sees every GPU. */
static void add_all(struct visible_gpus *visible, char *why, size_t size)
{
	if (visible->vram->why[0])
		snprintf(why, size, "the free memory of %s GPUs is not known: %.176s",
			 visible->vram->count ? "some" : "this node's", visible->vram->why);
	for (size_t i = 0; i < visible->vram->count && visible->count < MAX_LIST; i++) {
		const struct zero_gpu *gpu = &visible->vram->gpu[i];

		gpu = gpu->instance < 0 ? usable_gpu(visible->vram, gpu) : NULL;
		if (gpu)
			visible->entry[visible->count++] = (struct visible_gpu){.gpu = gpu};
	}
}

/* Returns the number of GPUs of the step on this node, 0 if it is unknown. */
static size_t gpus_of_step(const struct zero_budget_input *input)
{
	size_t numbers = count_numbers(input->step_visible), count = 1;

	if (numbers)
		return numbers;
	if (input->step_visible && (zero_begins_with(input->step_visible, "GPU-") ||
				    zero_begins_with(input->step_visible, "MIG-"))) {
		for (const char *text = input->step_visible; *text; text++)
			count += *text == ',';
		return count;
	}
	return count_numbers(input->step_gpus);
}

/* Finds the GPUs of the task. *why becomes a sentence if CUDA ignores a part of the list. */
static void find_visible(const struct zero_vram *vram, const struct zero_budget_input *input,
			 struct visible_gpus *visible, char *why, size_t size)
{
	visible->vram = vram;
	visible->input = input;
	visible->count = 0;
	if (input->visible)
		parse_visible(visible, why, size);
	else if (input->all_by_default)
		add_all(visible, why, size);
}

/* ---- memory ---------------------------------------------------------------------------------- */

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
	uint64_t all = gpus_of_step(input);
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
		left = memory_left(gpu, visible->input);
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
	find_visible(vram, input, &visible, budget->why, sizeof(budget->why));
	if (visible.count)
		gpu_budget(&visible, tasks, budget);
	else if (input->visible || !input->all_by_default || !vram->why[0])
		host_budget(input, tasks, budget);
	zero_clean(budget->why); /* it quotes the environment */
}

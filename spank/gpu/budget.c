/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GPUs a task sees, how many tasks share one, and what is left for each. Nothing is asked
 * here but /proc/meminfo, for tasks without GPUs.
 */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"
#include "vram.h"

enum { LONGEST_LIST = 512 };

struct numbers {
	unsigned number[LONGEST_LIST];
	size_t count;
};

/* "0-3,7"; false if it is not that, with more than whitespace around no number. */
static bool parse_numbers(const char *text, struct numbers *list)
{
	list->count = 0;
	if (!text)
		return false;
	for (;;) {
		unsigned long first, last;
		char *end;

		if (!isdigit((unsigned char)*text))
			return false;
		first = last = strtoul(text, &end, 10);
		if (*end == '-') {
			text = end + 1;
			if (!isdigit((unsigned char)*text))
				return false;
			last = strtoul(text, &end, 10);
		}
		if (last < first || last > 0xffff || last - first >= LONGEST_LIST - list->count)
			return false;
		for (unsigned long number = first; number <= last; number++)
			list->number[list->count++] = (unsigned)number;
		if (!*end)
			return true;
		if (*end != ',')
			return false;
		text = end + 1;
	}
}

static bool has_number(const struct numbers *list, unsigned number)
{
	for (size_t i = 0; i < list->count; i++)
		if (list->number[i] == number)
			return true;
	return false;
}

static bool same_numbers(const struct numbers *a, const struct numbers *b)
{
	return a->count == b->count &&
	       memcmp(a->number, b->number, a->count * sizeof(a->number[0])) == 0;
}

enum entry_kind { ENTRY_NUMBER, ENTRY_GPU, ENTRY_MIG, ENTRY_OTHER };

/* One of CUDA_VISIBLE_DEVICES. */
struct entry {
	const char *text;
	int length;
	enum entry_kind kind;
	unsigned number;
	const struct zero_gpu *gpu; /* NULL: not in the table */
	bool vague;                 /* `gpu` is the one with the least of those that may be meant */
};

struct sight {
	const struct zero_vram *vram;
	const struct zero_vram_task *task;
	struct numbers map; /* number of the task -> number on the node, unless empty */
	struct entry entry[LONGEST_LIST];
	size_t count;
};

static uint64_t less_reserve(const struct zero_gpu *gpu, const struct zero_vram_task *task)
{
	uint64_t reserve = task->reserve;

	if (task->reserve_is_percent) {
		uint64_t percent = reserve < 100 ? reserve : 100;

		reserve = gpu->total / 100 * percent + gpu->total % 100 * percent / 100;
	}
	return gpu->free > reserve ? gpu->free - reserve : 0;
}

/*
 * As CUDA reads numbers, with something like strtoul: a sign is allowed, and what follows the
 * digits is not looked at.
 */
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

static struct entry parse_entry(const char *text, int length)
{
	struct entry entry = {.text = text, .length = length, .kind = ENTRY_OTHER};

	if (zero_begins_with(text, "GPU-"))
		entry.kind = ENTRY_GPU;
	else if (zero_begins_with(text, "MIG-"))
		entry.kind = ENTRY_MIG;
	else if (parse_ordinal(text, &entry.number))
		entry.kind = ENTRY_NUMBER;
	return entry;
}

/* The GPU itself, or in MIG mode its first instance, the one that CUDA takes; NULL: it has none. */
static const struct zero_gpu *usable(const struct zero_vram *vram, const struct zero_gpu *gpu)
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

/* The one whose UUID this is or begins with this; NULL if there is none or more than one. */
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

/*
 * "MIG-GPU-<uuid>/<GPU instance>/<compute instance>" of drivers before 470: the table has not those
 * numbers if the driver is a later one, so that it may be any instance of that GPU.
 */
static const struct zero_gpu *by_parent(const struct sight *sight, const struct entry *entry)
{
	const char *uuid = entry->text + strlen("MIG-");
	const char *slash = memchr(uuid, '/', (size_t)entry->length - strlen("MIG-"));
	const struct zero_vram *vram = sight->vram;
	const struct zero_gpu *parent, *least = NULL;

	if (!slash || !zero_begins_with(uuid, "GPU-"))
		return NULL;
	parent = by_uuid(vram, uuid, (size_t)(slash - uuid));
	if (!parent)
		return NULL;
	for (size_t i = 0; i < vram->count; i++) {
		const struct zero_gpu *gpu = &vram->gpu[i];

		if (gpu->index != parent->index || gpu->instance < 0)
			continue;
		if (!least || less_reserve(gpu, sight->task) < less_reserve(least, sight->task))
			least = gpu;
	}
	return least;
}

/* False if CUDA does not find the entry's GPU and looks no further. */
static bool resolve(const struct sight *sight, struct entry *entry)
{
	const struct zero_vram *vram = sight->vram;
	unsigned number = entry->number;

	switch (entry->kind) {
	case ENTRY_NUMBER:
		if (sight->map.count) {
			if (number >= sight->map.count)
				return false;
			number = sight->map.number[number];
		}
		entry->gpu = usable(vram, by_index(vram, number));
		break;
	case ENTRY_GPU:
		entry->gpu = usable(vram, by_uuid(vram, entry->text, (size_t)entry->length));
		break;
	case ENTRY_MIG:
		entry->gpu = by_uuid(vram, entry->text, (size_t)entry->length);
		if (!entry->gpu) {
			entry->gpu = by_parent(sight, entry);
			entry->vague = true;
		}
		break;
	case ENTRY_OTHER:
		return false;
	}
	/* From a table with gaps nobody can say that there is no such GPU. */
	return entry->gpu || vram->why[0];
}

static bool same_gpu(const struct entry *a, const struct entry *b)
{
	if (a->kind == ENTRY_NUMBER)
		return a->number == b->number;
	if (a->length == b->length && strncmp(a->text, b->text, (size_t)a->length) == 0)
		return true;
	return a->gpu && a->gpu == b->gpu && !a->vague && !b->vague;
}

/* Reads CUDA_VISIBLE_DEVICES as CUDA does. */
static void look(struct sight *sight, const char *visible, char *why, size_t size)
{
	const char *text = visible;

	while (sight->count < LONGEST_LIST) {
		struct entry entry;
		const char *end;

		text += strspn(text, " \t");
		end = text + strcspn(text, ",");
		entry = parse_entry(text, (int)(end - text));
		while (entry.length && isspace((unsigned char)text[entry.length - 1]))
			entry.length--;
		/* Kinds cannot be mixed: the list ends at the first of another kind. */
		if (entry.kind == ENTRY_OTHER ||
		    (sight->count && entry.kind != sight->entry[0].kind))
			return;
		if (!resolve(sight, &entry)) {
			snprintf(why, size,
				 "CUDA_VISIBLE_DEVICES=%.64s: this node has no GPU %.*s, and CUDA "
				 "looks no further",
				 visible, entry.length < 64 ? entry.length : 64, text);
			return;
		}
		for (size_t i = 0; i < sight->count; i++) {
			if (!same_gpu(&sight->entry[i], &entry))
				continue;
			snprintf(why, size,
				 "CUDA_VISIBLE_DEVICES=%.64s names %.*s twice: CUDA then sees no "
				 "GPU at all",
				 visible, entry.length < 64 ? entry.length : 64, text);
			sight->count = 0;
			return;
		}
		sight->entry[sight->count++] = entry;
		if (*end != ',')
			return;
		text = end + 1;
	}
}

/* Without CUDA_VISIBLE_DEVICES CUDA sees every GPU. */
static void look_at_all(struct sight *sight, char *why, size_t size)
{
	if (sight->vram->why[0])
		snprintf(why, size, "free memory of %s GPUs is not known: %.180s",
			 sight->vram->count ? "some" : "this node's", sight->vram->why);
	for (size_t i = 0; i < sight->vram->count && sight->count < LONGEST_LIST; i++) {
		const struct zero_gpu *gpu = &sight->vram->gpu[i];

		gpu = gpu->instance < 0 ? usable(sight->vram, gpu) : NULL;
		if (gpu)
			sight->entry[sight->count++].gpu = gpu;
	}
}

/*
 * Where control groups hide the other GPUs, the step's are numbered from 0, and so are a task's:
 * Slurm counts them within the step, whatever the task is bound to. The step's own list then
 * differs from the numbers on the node. If it is not known, numbers that are among the
 * node's are those.
 */
static void find_map(struct sight *sight)
{
	const struct zero_vram_task *task = sight->task;
	struct numbers node, step;

	sight->map.count = 0;
	if (!parse_numbers(task->step_gpus, &node))
		return;
	if (task->step_visible) {
		if (!parse_numbers(task->step_visible, &step) || same_numbers(&step, &node))
			return;
	} else if (parse_numbers(task->visible, &step)) {
		bool among = true;

		for (size_t i = 0; i < step.count; i++)
			among &= has_number(&node, step.number[i]);
		if (among)
			return;
	}
	sight->map = node;
}

/* The GPUs of the step on this node; 0: nothing says. */
static size_t step_gpus(const struct zero_vram_task *task)
{
	struct numbers list;
	size_t count = 1;

	if (parse_numbers(task->step_visible, &list))
		return list.count;
	if (task->step_visible && (zero_begins_with(task->step_visible, "GPU-") ||
				   zero_begins_with(task->step_visible, "MIG-"))) {
		for (const char *text = task->step_visible; *text; text++)
			count += *text == ',';
		return count;
	}
	return parse_numbers(task->step_gpus, &list) ? list.count : 0;
}

static uint64_t divide_up(uint64_t a, uint64_t b)
{
	return a / b + (a % b != 0);
}

/*
 * A task that sees all GPUs of the step is expected to take one of its own; others were bound. The
 * step's list may name more than there are.
 */
static uint64_t sharing(const struct zero_vram_task *task, uint64_t tasks, uint64_t seen)
{
	uint64_t all = step_gpus(task);
	bool same = task->visible && task->step_visible &&
		    strcmp(task->visible, task->step_visible) == 0;

	return same || seen >= all ? divide_up(tasks, seen) : divide_up(tasks * seen, all);
}

static void gpu_budget(const struct sight *sight, uint64_t tasks, struct zero_budget *budget)
{
	size_t unknown = 0;
	uint64_t least = 0;

	budget->gpus = (unsigned)sight->count;
	for (size_t i = 0; i < sight->count; i++) {
		const struct zero_gpu *gpu = sight->entry[i].gpu;
		uint64_t left;

		if (!gpu) {
			unknown++;
			continue;
		}
		left = less_reserve(gpu, sight->task);
		if (!budget->gpu || left < least) {
			budget->gpu = gpu;
			least = left;
		}
	}
	if (unknown)
		snprintf(budget->why, sizeof(budget->why),
			 "CUDA_VISIBLE_DEVICES=%.40s: free memory of %zu of %zu GPUs is not known: "
			 "%.112s",
			 sight->task->visible, unknown, sight->count, sight->vram->why);
	if (!budget->gpu)
		return;
	budget->budget = least / sharing(sight->task, tasks, sight->count);
	budget->free = budget->gpu->free;
	budget->total = budget->gpu->total;
	budget->source = ZERO_VRAM_NVML;
}

/* In bytes; false if the kernel does not say. */
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

static void host_budget(const struct zero_vram_task *task, uint64_t tasks,
			struct zero_budget *budget)
{
	uint64_t available = 0, total = 0;

	if (node_memory(&available, &total)) {
		budget->free = available;
		budget->total = total;
		budget->source = ZERO_VRAM_MEM_AVAILABLE;
	}
	if (task->job_memory && (!budget->source || task->job_memory <= budget->free)) {
		budget->free = budget->total = task->job_memory;
		budget->source = ZERO_VRAM_JOB_MEMORY;
	}
	if (task->step_memory && (!budget->source || task->step_memory <= budget->free)) {
		budget->free = budget->total = task->step_memory;
		budget->source = ZERO_VRAM_STEP_MEMORY;
	}
	budget->budget = budget->free / tasks;
}

void zero_budget_of(const struct zero_vram *vram, const struct zero_vram_task *task,
		    struct zero_budget *budget)
{
	uint64_t tasks = task->tasks ? task->tasks : 1;
	struct sight sight = {.vram = vram, .task = task};

	memset(budget, 0, sizeof(*budget));
	budget->source = ZERO_VRAM_UNKNOWN;
	find_map(&sight);
	if (task->visible)
		look(&sight, task->visible, budget->why, sizeof(budget->why));
	else if (task->all)
		look_at_all(&sight, budget->why, sizeof(budget->why));
	if (sight.count)
		gpu_budget(&sight, tasks, budget);
	else if (task->visible || !task->all || !vram->why[0])
		host_budget(task, tasks, budget);
	zero_clean(budget->why); /* it quotes what the user says */
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "visible_gpus.h"

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
		if (last < first || last > 0xffff || last - first >= LONGEST_LIST - count)
			return 0;
		count += last - first + 1;
		if (!*end)
			return count;
		if (*end != ',')
			return 0;
		text = end + 1;
	}
}

uint64_t visible_gpus_left(const struct zero_gpu *gpu, const struct zero_budget_input *input)
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

/*
 * Finds "MIG-GPU-<uuid>/<GPU instance>/<compute instance>", the form of drivers before 470. Later
 * drivers do not report these numbers, so that it may be any instance of that GPU.
 */
static const struct zero_gpu *by_parent(const struct visible_gpus *visible,
					const struct visible_gpu *entry)
{
	const char *uuid = entry->text + strlen("MIG-");
	const char *slash = memchr(uuid, '/', (size_t)entry->length - strlen("MIG-"));
	const struct zero_vram *vram = visible->vram;
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
		if (!least || visible_gpus_left(gpu, visible->input) <
				      visible_gpus_left(least, visible->input))
			least = gpu;
	}
	return least;
}

/* Finds the GPU of an entry. Returns false if CUDA finds none and ends the list here. */
static bool find_gpu(const struct visible_gpus *visible, struct visible_gpu *entry)
{
	const struct zero_vram *vram = visible->vram;

	switch (entry->kind) {
	case ENTRY_NUMBER:
		entry->gpu = usable_gpu(vram, by_index(vram, entry->number));
		break;
	case ENTRY_GPU:
		entry->gpu = usable_gpu(vram, by_uuid(vram, entry->text, (size_t)entry->length));
		break;
	case ENTRY_MIG:
		entry->gpu = by_uuid(vram, entry->text, (size_t)entry->length);
		if (!entry->gpu) {
			entry->gpu = by_parent(visible, entry);
			entry->ambiguous = true;
		}
		break;
	case ENTRY_OTHER:
		return false;
	}
	/* If NVML did not report all GPUs, the entry may be one of those. */
	return entry->gpu || vram->why[0];
}

static bool same_gpu(const struct visible_gpu *a, const struct visible_gpu *b)
{
	if (a->kind == ENTRY_NUMBER)
		return a->number == b->number;
	if (a->length == b->length && strncmp(a->text, b->text, (size_t)a->length) == 0)
		return true;
	return a->gpu && a->gpu == b->gpu && !a->ambiguous && !b->ambiguous;
}

/* Reads CUDA_VISIBLE_DEVICES as CUDA does. */
static void parse_visible(struct visible_gpus *visible, char *why, size_t size)
{
	const char *list = visible->input->visible, *text = list;

	while (visible->count < LONGEST_LIST) {
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
		if (!find_gpu(visible, &entry)) {
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
	for (size_t i = 0; i < visible->vram->count && visible->count < LONGEST_LIST; i++) {
		const struct zero_gpu *gpu = &visible->vram->gpu[i];

		gpu = gpu->instance < 0 ? usable_gpu(visible->vram, gpu) : NULL;
		if (gpu)
			visible->entry[visible->count++] = (struct visible_gpu){.gpu = gpu};
	}
}

size_t visible_gpus_of_step(const struct zero_budget_input *input)
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

void visible_gpus_find(const struct zero_vram *vram, const struct zero_budget_input *input,
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

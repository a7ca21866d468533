/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs of a node a task sees, as CUDA reads CUDA_VISIBLE_DEVICES. */
#ifndef ZERO_VISIBLE_GPUS_H
#define ZERO_VISIBLE_GPUS_H

#include "vram.h"

enum { LONGEST_LIST = 512 };

enum entry_kind { ENTRY_NUMBER, ENTRY_GPU, ENTRY_MIG, ENTRY_OTHER };

/* An entry of CUDA_VISIBLE_DEVICES. */
struct visible_gpu {
	const char *text;
	int length;
	enum entry_kind kind;
	unsigned number;
	const struct zero_gpu *gpu; /* NULL if NVML did not report it */
	bool ambiguous;             /* `gpu` is the one with the least left of several candidates */
};

struct visible_gpus {
	const struct zero_vram *vram;
	const struct zero_budget_input *input;
	struct visible_gpu entry[LONGEST_LIST];
	size_t count;
};

/* Finds the GPUs of the task. *why becomes a sentence if CUDA ignores a part of the list. */
void visible_gpus_find(const struct zero_vram *vram, const struct zero_budget_input *input,
		       struct visible_gpus *visible, char *why, size_t size);
/* Returns the number of GPUs of the step on this node, 0 if it is unknown. */
size_t visible_gpus_of_step(const struct zero_budget_input *input);
/* Returns the free memory of a GPU less the reserve. */
uint64_t visible_gpus_left(const struct zero_gpu *gpu, const struct zero_budget_input *input);

#endif

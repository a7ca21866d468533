/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Budgets of tasks. The input is CUDA_VISIBLE_DEVICES of the task and of the step, SLURM_STEP_GPUS,
 * and the GPUs of a node, with a line "@@" between them.
 */
#include "fuzz.h"
#include "core/options.h"
#include "spank/gpu/vram.h"

enum { MOST = 16 };

/* UUIDs have few letters, so that the input can match them. */
static void make_gpu(struct zero_gpu *gpu, const struct zero_gpu *last, struct fuzz *fuzz)
{
	unsigned bits = fuzz_byte(fuzz);
	int next = last ? last->index + 1 : 0;

	*gpu = (struct zero_gpu){.index = next, .instance = -1, .partitioned = bits & 1};
	if (bits & 2 && last) {
		gpu->index = last->index;
		gpu->instance = last->instance + 1;
		gpu->partitioned = false;
	}
	snprintf(gpu->uuid, sizeof(gpu->uuid), "%s-%c%c", gpu->instance < 0 ? "GPU" : "MIG",
		 'a' + (bits >> 2 & 3), 'a' + (bits >> 4 & 3));
	gpu->total = fuzz_number(fuzz);
	gpu->free = fuzz_number(fuzz);
}

static void check(const struct zero_vram *vram, const struct zero_budget_input *task)
{
	struct zero_budget budget;

	memset(&budget, 0xa5, sizeof(budget));
	zero_budget_compute(vram, task, &budget);
	fuzz_clean(budget.why, sizeof(budget.why));
	must(budget.source >= ZERO_VRAM_UNKNOWN && budget.source <= ZERO_VRAM_MEM_AVAILABLE,
	     "source %d", budget.source);
	must(budget.budget <= budget.free, "more than is free");
	must(!budget.gpu || (budget.gpu >= vram->gpu && budget.gpu < vram->gpu + vram->count),
	     "a GPU from elsewhere");
	must(!budget.gpu || (budget.gpus && budget.free == budget.gpu->free &&
			     budget.source == ZERO_VRAM_NVML),
	     "of another GPU");
	must(budget.source != ZERO_VRAM_UNKNOWN || !budget.budget, "a budget from nowhere");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz fuzz = {data, size};
	char *visible = fuzz_text(&fuzz), *step_visible = fuzz_text(&fuzz);
	char *step_gpus = fuzz_text(&fuzz);
	unsigned bits = fuzz_byte(&fuzz);
	struct zero_budget_input task = {
		.visible = bits & 1 ? visible : NULL,
		.step_visible = bits & 2 ? step_visible : NULL,
		.step_gpus = bits & 4 ? step_gpus : NULL,
		.all_by_default = bits & 8,
		.reserve_is_percent = bits & 16,
		.tasks = (unsigned)fuzz_number(&fuzz),
		.reserve = fuzz_number(&fuzz),
		.step_memory = fuzz_number(&fuzz),
		.job_memory = fuzz_number(&fuzz),
	};
	struct zero_vram vram = {.count = 0};

	vram.gpu = calloc(MOST, sizeof(*vram.gpu));
	must(vram.gpu, "no memory");
	if (bits & 32)
		strcpy(vram.why, "NVML did not answer within 5 s");
	while (fuzz.left && vram.count < MOST) {
		make_gpu(&vram.gpu[vram.count], vram.count ? &vram.gpu[vram.count - 1] : NULL,
			 &fuzz);
		vram.count++;
	}
	check(&vram, &task);
	free(vram.gpu);
	free(visible);
	free(step_visible);
	free(step_gpus);
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that answers anything: the input is the answers to NVML's functions, one after the
 * other. Then what a process of the user's may have left in the memory that it shares: anything.
 */
#include "fuzz.h"

/* Their inner functions: what asks a table of functions, and what takes the answers over. */
#include "../../spank/gpu/nvml.c"
#include "../../spank/gpu/vram.c"

static struct fuzz answers_left;

/* Most calls succeed, so that there is something to read. */
static int status_of_call(void)
{
	unsigned byte = fuzz_byte(&answers_left);

	return byte < 0xe0 ? NVML_SUCCESS : (int)(byte - 0xe0) * (byte & 1 ? -1 : 1);
}

/* Text of any length up to `size`, with an end or without. */
static void answer_text(char *text, unsigned size)
{
	unsigned length = fuzz_byte(&answers_left);

	for (unsigned i = 0; i < length && i < size; i++)
		text[i] = (char)fuzz_byte(&answers_left);
	if (length & 1 && length < size)
		text[length] = '\0';
	else
		memset(text + (length < size ? length : size), 'x',
		       size - (length < size ? length : size));
}

static int ask_nothing(void)
{
	return status_of_call();
}

static const char *ask_error(int status)
{
	static char text[256];

	if (status == 5)
		return NULL;
	answer_text(text, sizeof(text) - 1);
	return text;
}

static int ask_count(unsigned *number)
{
	*number = (unsigned)fuzz_number(&answers_left);
	return status_of_call();
}

static int ask_handle(unsigned index, nvml_device *device)
{
	*device = (nvml_device)(uintptr_t)(index + 1);
	return status_of_call();
}

static int ask_text(nvml_device device, char *text, unsigned size)
{
	(void)device;
	answer_text(text, size);
	return status_of_call();
}

static int ask_memory(nvml_device device, struct nvml_memory *memory)
{
	(void)device;
	memory->total = fuzz_number(&answers_left);
	memory->free = fuzz_number(&answers_left);
	return status_of_call();
}

static int ask_mode(nvml_device device, unsigned *current, unsigned *pending)
{
	(void)device;
	*current = fuzz_byte(&answers_left) % 3;
	*pending = 0;
	return status_of_call();
}

static int ask_mig_count(nvml_device device, unsigned *number)
{
	(void)device;
	return ask_count(number);
}

static int ask_instance(nvml_device device, unsigned index, nvml_device *instance)
{
	(void)device;
	return ask_handle(index, instance);
}

static const struct nvml any = {
	.init = ask_nothing,
	.shutdown = ask_nothing,
	.error_string = ask_error,
	.count = ask_count,
	.handle = ask_handle,
	.uuid = ask_text,
	.name = ask_text,
	.memory = ask_memory,
	.mig_mode = ask_mode,
	.mig_count = ask_mig_count,
	.mig_handle = ask_instance,
};

static void check_table(const struct zero_vram *vram)
{
	struct zero_vram_task task = {.all = true, .tasks = 3, .reserve = 5};
	struct zero_budget budget;

	must(vram->count <= NVML_ENTRIES && !vram->count == !vram->gpu, "%zu GPUs", vram->count);
	fuzz_clean(vram->why, sizeof(vram->why));
	for (size_t i = 0; i < vram->count; i++) {
		fuzz_clean(vram->gpu[i].uuid, sizeof(vram->gpu[i].uuid));
		fuzz_clean(vram->gpu[i].model, sizeof(vram->gpu[i].model));
	}
	for (int percent = 0; percent < 2; percent++) {
		task.reserve_is_percent = percent;
		zero_budget_of(vram, &task, &budget);
		fuzz_clean(budget.why, sizeof(budget.why));
		must(budget.budget <= budget.free, "more than is free");
		must(!budget.gpu ||
			     (budget.gpu >= vram->gpu && budget.gpu < vram->gpu + vram->count),
		     "a GPU from elsewhere");
	}
}

/* What is there after each call fits together: the process may hang in it. */
static void try_asking(struct nvml_answers *answers)
{
	struct question question = {.nvml = any, .answers = answers};
	struct zero_vram vram = {.count = 0};
	struct nvml_progress progress;

	read_gpus(&question);
	progress = progress_of(answers);
	must(progress.count <= NVML_ENTRIES && progress.why < sizeof(answers->why), "%u, %u",
	     progress.count, progress.why);
	for (size_t i = 0; i < progress.count; i++) {
		const struct zero_gpu *gpu = &answers->gpu[i];

		must(gpu->index >= 0 && gpu->index < NVML_GPUS, "GPU %d", gpu->index);
		must(gpu->instance >= -1 && gpu->instance < NVML_INSTANCES, "instance %d",
		     gpu->instance);
		must(gpu->instance < 0 || i, "an instance of no GPU");
	}
	take(answers, true, 5, &vram);
	must(vram.count == progress.count, "%zu GPUs of %u", vram.count, progress.count);
	check_table(&vram);
	zero_vram_clear(&vram);
}

static void try_anything(struct nvml_answers *answers, struct fuzz *fuzz)
{
	struct zero_vram vram = {.count = 0};
	struct nvml_progress progress = {.call = (uint16_t)fuzz_number(fuzz),
					 .of = (uint16_t)fuzz_number(fuzz),
					 .count = (uint16_t)fuzz_number(fuzz),
					 .why = (uint16_t)fuzz_number(fuzz)};
	size_t room = sizeof(answers->gpu) < fuzz->left ? sizeof(answers->gpu) : fuzz->left;

	if (progress.count > 64 && progress.count < NVML_ENTRIES)
		progress.count %= 64;
	atomic_store(&answers->progress, progress);
	memset(answers->why, 0x1b, sizeof(answers->why));
	memset(answers->gpu, 0xff, 8 * sizeof(answers->gpu[0]));
	memcpy(answers->gpu, fuzz->at, room);
	take(answers, progress.call & 1, 5, &vram);
	check_table(&vram);
	zero_vram_clear(&vram);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct nvml_answers answers;
	struct fuzz fuzz = {data, size};

	memset(&answers, 0, sizeof(answers));
	if (fuzz_byte(&fuzz) % 2) {
		try_anything(&answers, &fuzz);
	} else {
		answers_left = fuzz;
		try_asking(&answers);
	}
	return 0;
}

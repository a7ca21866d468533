/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver that returns anything: the input is the results of NVML's functions, one after the
 * other. Then any bytes in the shared memory, which a process of the user may have written.
 */
#include "fuzz.h"

/* For their static functions: read_gpus, which calls a table of functions, and read_results. */
#include "spank/gpu/nvml_query.c"
#include "spank/gpu/vram.c"

static struct fuzz input_left;

/* Most calls succeed, so that there is something to read. */
static int status_of_call(void)
{
	unsigned byte = fuzz_byte(&input_left);

	return byte < 0xe0 ? NVML_SUCCESS : (int)(byte - 0xe0) * (byte & 1 ? -1 : 1);
}

/* Text of any length up to `size`, with an end or without. */
static void fill_text(char *text, unsigned size)
{
	unsigned length = fuzz_byte(&input_left);

	for (unsigned i = 0; i < length && i < size; i++)
		text[i] = (char)fuzz_byte(&input_left);
	if (length & 1 && length < size)
		text[length] = '\0';
	else
		memset(text + (length < size ? length : size), 'x',
		       size - (length < size ? length : size));
}

static int call_nothing(void)
{
	return status_of_call();
}

static const char *call_error(int status)
{
	static char text[256];

	if (status == 5)
		return NULL;
	fill_text(text, sizeof(text) - 1);
	return text;
}

static int call_count(unsigned *number)
{
	*number = (unsigned)fuzz_number(&input_left);
	return status_of_call();
}

static int call_handle(unsigned index, nvml_device *device)
{
	*device = (nvml_device)(uintptr_t)(index + 1);
	return status_of_call();
}

static int call_text(nvml_device device, char *text, unsigned size)
{
	(void)device;
	fill_text(text, size);
	return status_of_call();
}

static int call_memory(nvml_device device, struct nvml_memory *memory)
{
	(void)device;
	memory->total = fuzz_number(&input_left);
	memory->free = fuzz_number(&input_left);
	return status_of_call();
}

static int call_pci(nvml_device device, struct nvml_pci *pci)
{
	(void)device;
	fill_text(pci->bus_id, sizeof(pci->bus_id));
	return status_of_call();
}

static int call_minor(nvml_device device, unsigned *minor)
{
	(void)device;
	return call_count(minor);
}

static int call_mode(nvml_device device, unsigned *current, unsigned *pending)
{
	(void)device;
	*current = fuzz_byte(&input_left) % 3;
	*pending = 0;
	return status_of_call();
}

static int call_mig_count(nvml_device device, unsigned *number)
{
	(void)device;
	return call_count(number);
}

static int call_instance(nvml_device device, unsigned index, nvml_device *instance)
{
	(void)device;
	return call_handle(index, instance);
}

static const struct nvml any = {
	.init = call_nothing,
	.shutdown = call_nothing,
	.error_string = call_error,
	.count = call_count,
	.handle = call_handle,
	.uuid = call_text,
	.name = call_text,
	.memory = call_memory,
	.pci = call_pci,
	.minor = call_minor,
	.mig_mode = call_mode,
	.mig_count = call_mig_count,
	.mig_handle = call_instance,
};

static void check_table(const struct zero_vram *vram)
{
	struct zero_budget_input task = {.all_by_default = true, .tasks = 3, .reserve = 5};
	struct zero_budget budget;

	must(vram->count <= NVML_ENTRIES && (!vram->count || vram->gpu), "%zu GPUs", vram->count);
	fuzz_clean(vram->why, sizeof(vram->why));
	for (size_t i = 0; i < vram->count; i++) {
		fuzz_clean(vram->gpu[i].uuid, sizeof(vram->gpu[i].uuid));
		fuzz_clean(vram->gpu[i].model, sizeof(vram->gpu[i].model));
	}
	for (int percent = 0; percent < 2; percent++) {
		task.reserve_is_percent = percent;
		zero_budget_compute(vram, &task, &budget);
		fuzz_clean(budget.why, sizeof(budget.why));
		must(budget.budget <= budget.free, "more than is free");
		must(!budget.gpu ||
			     (budget.gpu >= vram->gpu && budget.gpu < vram->gpu + vram->count),
		     "a GPU from elsewhere");
	}
}

/* This machine may have no GPU: those whose file NVML did not tell are left. */
static void keep_own(struct zero_vram *vram)
{
	size_t before = vram->count;

	zero_vram_keep_own(vram);
	must(vram->count <= before, "%zu GPUs of %zu", vram->count, before);
	check_table(vram);
}

/* What is there after each call fits together: the process may hang in it. */
static void try_query(struct nvml_results *results)
{
	struct nvml_session session = {.nvml = any, .results = results};
	struct zero_vram vram = {.count = 0};
	struct nvml_progress progress;

	read_gpus(&session);
	progress = progress_of(results);
	must(progress.count <= NVML_ENTRIES && progress.why < sizeof(results->why), "%u, %u",
	     progress.count, progress.why);
	for (size_t i = 0; i < progress.count; i++) {
		const struct zero_gpu *gpu = &results->gpu[i];

		must(gpu->index >= 0 && gpu->index < NVML_GPUS, "GPU %d", gpu->index);
		must(gpu->instance >= -1 && gpu->instance < NVML_INSTANCES, "instance %d",
		     gpu->instance);
		must(gpu->instance < 0 || i, "an instance of no GPU");
	}
	read_results(results, true, 5, &vram);
	must(vram.count == progress.count, "%zu GPUs of %u", vram.count, progress.count);
	check_table(&vram);
	keep_own(&vram);
	zero_vram_clear(&vram);
}

static void try_anything(struct nvml_results *results, struct fuzz *fuzz)
{
	struct zero_vram vram = {.count = 0};
	struct nvml_progress progress = {.call = (uint16_t)fuzz_number(fuzz),
					 .gpu = (uint16_t)fuzz_number(fuzz),
					 .count = (uint16_t)fuzz_number(fuzz),
					 .why = (uint16_t)fuzz_number(fuzz)};
	size_t room = sizeof(results->gpu) < fuzz->left ? sizeof(results->gpu) : fuzz->left;

	if (progress.count > 64 && progress.count < NVML_ENTRIES)
		progress.count %= 64;
	atomic_store(&results->progress, progress);
	memset(results->why, 0x1b, sizeof(results->why));
	memset(results->gpu, 0xff, 8 * sizeof(results->gpu[0]));
	memcpy(results->gpu, fuzz->at, room);
	read_results(results, progress.call & 1, 5, &vram);
	check_table(&vram);
	keep_own(&vram);
	zero_vram_clear(&vram);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct nvml_results results;
	struct fuzz fuzz = {data, size};

	memset(&results, 0, sizeof(results));
	if (fuzz_byte(&fuzz) % 2) {
		try_anything(&results, &fuzz);
	} else {
		input_left = fuzz;
		try_query(&results);
	}
	return 0;
}

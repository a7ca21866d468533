/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is asked of NVML. Each answer is handed over at once, so that those before a call that hangs
 * are not lost: an entry is filled first and counted then.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nvml.h"

/* What we need of nvml.h; its numbers and layouts never change. */
typedef struct nvmlDevice_st *nvml_device;
enum { NVML_SUCCESS = 0, NVML_ERROR_NOT_SUPPORTED = 3, NVML_ERROR_NOT_FOUND = 6 };
enum { NVML_DEVICE_MIG_ENABLE = 1 };

/*
 * nvmlMemory_t, version 1, which every driver has. Version 2 tells apart, within `used`, what
 * driver and firmware keep for themselves; `free` and `total`, all that is read here, are the same
 * in both.
 */
struct nvml_memory {
	unsigned long long total, free, used;
};

struct nvml {
	int (*init)(void);
	int (*shutdown)(void);
	const char *(*error_string)(int status);
	int (*count)(unsigned *count);
	int (*handle)(unsigned index, nvml_device *device);
	int (*uuid)(nvml_device device, char *uuid, unsigned size);
	int (*name)(nvml_device device, char *name, unsigned size);
	int (*memory)(nvml_device device, struct nvml_memory *memory);
	/* NULL in drivers that are older than MIG. */
	int (*mig_mode)(nvml_device device, unsigned *current, unsigned *pending);
	int (*mig_count)(nvml_device device, unsigned *count);
	int (*mig_handle)(nvml_device device, unsigned index, nvml_device *instance);
};

struct nvml_symbol {
	const char *name;
	size_t offset;
	bool optional;
};

static const struct nvml_symbol nvml_symbols[NVML_SYMBOLS] = {
	[NVML_INIT] = {"nvmlInit_v2", offsetof(struct nvml, init), false},
	[NVML_SHUTDOWN] = {"nvmlShutdown", offsetof(struct nvml, shutdown), false},
	[NVML_ERROR_STRING] = {"nvmlErrorString", offsetof(struct nvml, error_string), false},
	[NVML_COUNT] = {"nvmlDeviceGetCount_v2", offsetof(struct nvml, count), false},
	[NVML_HANDLE] = {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, handle), false},
	[NVML_UUID] = {"nvmlDeviceGetUUID", offsetof(struct nvml, uuid), false},
	[NVML_NAME] = {"nvmlDeviceGetName", offsetof(struct nvml, name), false},
	[NVML_MEMORY] = {"nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory), false},
	[NVML_MIG_MODE] = {"nvmlDeviceGetMigMode", offsetof(struct nvml, mig_mode), true},
	[NVML_MIG_COUNT] = {"nvmlDeviceGetMaxMigDeviceCount", offsetof(struct nvml, mig_count),
			    true},
	[NVML_MIG_HANDLE] = {"nvmlDeviceGetMigDeviceHandleByIndex",
			     offsetof(struct nvml, mig_handle), true},
};

struct question {
	struct nvml nvml;
	struct nvml_answers *answers;
};

static struct nvml_progress progress_of(struct nvml_answers *answers)
{
	return atomic_load_explicit(&answers->progress, memory_order_relaxed);
}

static void publish(struct nvml_answers *answers, struct nvml_progress progress)
{
	atomic_store_explicit(&answers->progress, progress, memory_order_release);
}

void nvml_calling(struct nvml_answers *answers, enum nvml_call call, unsigned of)
{
	struct nvml_progress progress = progress_of(answers);

	progress.call = (uint16_t)call;
	progress.of = (uint16_t)of;
	publish(answers, progress);
}

const char *nvml_call_name(unsigned call)
{
	if (call < NVML_SYMBOLS)
		return nvml_symbols[call].name;
	return call == NVML_LOAD ? "dlopen" : "no call was made";
}

/* Only if there is room for a good part of it. */
void nvml_tell(struct nvml_answers *answers, const char *format, ...)
{
	struct nvml_progress progress = progress_of(answers);
	const size_t size = sizeof(answers->why);
	size_t used = progress.why;
	va_list arguments;

	if (used) {
		if (used + 32 > size)
			return;
		memcpy(answers->why + used, "; ", 2);
		used += 2;
	}
	va_start(arguments, format);
	vsnprintf(answers->why + used, size - used, format, arguments);
	va_end(arguments);
	progress.why = (uint16_t)strnlen(answers->why, size);
	publish(answers, progress);
}

/* Takes down a call that failed, the one that `calling` named last, and what is lost by it. */
static void failed(struct question *question, const char *left_out, int status)
{
	struct nvml_progress progress = progress_of(question->answers);
	const char *name = nvml_call_name(progress.call);
	const char *text = question->nvml.error_string(status);

	if (progress.of == NVML_GPUS)
		nvml_tell(question->answers, "%s: %s", name, text);
	else
		nvml_tell(question->answers, "%s %u is left out: %s: %s", left_out,
			  (unsigned)progress.of, name, text);
}

static void calling(struct question *question, enum nvml_call call, unsigned of)
{
	nvml_calling(question->answers, call, of);
}

static void add(struct question *question, const struct zero_gpu *gpu)
{
	struct nvml_progress progress = progress_of(question->answers);

	if (progress.count == NVML_ENTRIES)
		return;
	question->answers->gpu[progress.count++] = *gpu;
	publish(question->answers, progress);
}

static bool load(struct question *question, const char *library)
{
	const char *name = library ? library : "libnvidia-ml.so.1";
	void *handle;

	calling(question, NVML_LOAD, NVML_GPUS);
	handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		nvml_tell(question->answers, "cannot load NVML: %s", dlerror());
		return false;
	}
	for (size_t i = 0; i < NVML_SYMBOLS; i++) {
		const struct nvml_symbol *symbol = &nvml_symbols[i];
		void *address = dlsym(handle, symbol->name);

		if (!address && !symbol->optional) {
			nvml_tell(question->answers, "%s has no %s: it is not NVML, or too old",
				  name, symbol->name);
			return false;
		}
		memcpy((char *)&question->nvml + symbol->offset, &address, sizeof(address));
	}
	return true;
}

static int read_uuid(struct question *question, nvml_device device, struct zero_gpu *gpu)
{
	int status;

	calling(question, NVML_UUID, (unsigned)gpu->index);
	status = question->nvml.uuid(device, gpu->uuid, sizeof(gpu->uuid));
	gpu->uuid[sizeof(gpu->uuid) - 1] = '\0';
	return status;
}

static int read_memory(struct question *question, nvml_device device, struct zero_gpu *gpu)
{
	struct nvml_memory memory = {0};
	int status;

	calling(question, NVML_MEMORY, (unsigned)gpu->index);
	status = question->nvml.memory(device, &memory);
	if (status)
		return status;
	gpu->total = memory.total;
	gpu->free = memory.free;
	return 0;
}

static int read_name(struct question *question, nvml_device device, struct zero_gpu *gpu)
{
	char name[sizeof(gpu->model)] = "";
	int status;

	calling(question, NVML_NAME, (unsigned)gpu->index);
	status = question->nvml.name(device, name, sizeof(name));
	if (status)
		return status;
	name[sizeof(name) - 1] = '\0';
	memcpy(gpu->model, name, sizeof(name));
	return 0;
}

static int read_mig_mode(struct question *question, nvml_device device, struct zero_gpu *gpu)
{
	const struct nvml *nvml = &question->nvml;
	unsigned current = 0, pending = 0;
	int status;

	if (!nvml->mig_mode || !nvml->mig_count || !nvml->mig_handle)
		return 0;
	calling(question, NVML_MIG_MODE, (unsigned)gpu->index);
	status = nvml->mig_mode(device, &current, &pending);
	if (status == NVML_ERROR_NOT_SUPPORTED)
		return 0;
	gpu->partitioned = !status && current == NVML_DEVICE_MIG_ENABLE;
	return status;
}

/* The instances of a GPU in MIG mode; their numbers may have gaps. */
static void read_instances(struct question *question, nvml_device device,
			   const struct zero_gpu *parent)
{
	unsigned of = (unsigned)parent->index, count = 0;
	int status;

	calling(question, NVML_MIG_COUNT, of);
	status = question->nvml.mig_count(device, &count);
	if (status)
		failed(question, "every instance of GPU", status);
	for (unsigned i = 0; i < count && i < NVML_INSTANCES; i++) {
		struct zero_gpu instance = *parent;
		nvml_device handle = NULL;
		int found;

		instance.instance = (int)i;
		instance.partitioned = false;
		calling(question, NVML_MIG_HANDLE, of);
		found = question->nvml.mig_handle(device, i, &handle);
		if (found == NVML_ERROR_NOT_FOUND)
			continue;
		if (!found)
			found = read_uuid(question, handle, &instance);
		if (!found)
			found = read_memory(question, handle, &instance);
		if (found) {
			failed(question, "an instance of GPU", found);
			continue;
		}
		/* Without a name of its own it keeps that of the GPU. */
		read_name(question, handle, &instance);
		add(question, &instance);
	}
}

static int read_gpu(struct question *question, unsigned index)
{
	struct zero_gpu gpu = {.index = (int)index, .instance = -1};
	nvml_device device = NULL;
	int status;

	calling(question, NVML_HANDLE, index);
	status = question->nvml.handle(index, &device);
	if (!status)
		status = read_uuid(question, device, &gpu);
	if (!status)
		status = read_name(question, device, &gpu);
	if (!status)
		status = read_mig_mode(question, device, &gpu);
	if (status)
		return status;
	status = read_memory(question, device, &gpu);
	/* In MIG mode that is for administrators, and nobody needs it. */
	if (status && !gpu.partitioned)
		return status;
	add(question, &gpu);
	if (gpu.partitioned)
		read_instances(question, device, &gpu);
	return 0;
}

static void read_gpus(struct question *question)
{
	unsigned count = 0;
	int status;

	calling(question, NVML_COUNT, NVML_GPUS);
	status = question->nvml.count(&count);
	if (status) {
		failed(question, "GPU", status);
		return;
	}
	for (unsigned i = 0; i < count && i < NVML_GPUS; i++) {
		status = read_gpu(question, i);
		if (status)
			failed(question, "GPU", status);
	}
}

void nvml_ask(struct nvml_answers *answers, const char *library)
{
	struct question question = {.answers = answers};
	int status;

	if (!load(&question, library))
		return;
	calling(&question, NVML_INIT, NVML_GPUS);
	status = question.nvml.init();
	if (status) {
		failed(&question, "GPU", status);
		return;
	}
	read_gpus(&question);
	calling(&question, NVML_SHUTDOWN, NVML_GPUS);
	question.nvml.shutdown();
}

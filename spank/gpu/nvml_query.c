/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls to NVML. Each result is published at once, so that the results before a call that hangs
 * are not lost: an entry is first filled and then counted.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "nvml_query.h"

/* The used part of nvml.h, whose numbers and layouts never change. */
typedef struct nvmlDevice_st *nvml_device;
enum {
	NVML_SUCCESS = 0,
	NVML_ERROR_NOT_SUPPORTED = 3,
	NVML_ERROR_NO_PERMISSION = 4,
	NVML_ERROR_NOT_FOUND = 6,
};
enum { NVML_DEVICE_MIG_ENABLE = 1 };

/*
 * nvmlMemory_t, version 1, which every driver has. Version 2 differs in `used` only, which is not
 * read here.
 */
struct nvml_memory {
	unsigned long long total, free, used;
};

/* nvmlPciInfo_t, version 3. */
struct nvml_pci {
	char legacy_bus[16];
	unsigned domain, bus, device, id, subsystem;
	char bus_id[32];
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
	/* NULL in drivers that are too old */
	int (*pci)(nvml_device device, struct nvml_pci *pci);
	int (*minor)(nvml_device device, unsigned *minor);
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
	[NVML_PCI] = {"nvmlDeviceGetPciInfo_v3", offsetof(struct nvml, pci), true},
	[NVML_MINOR] = {"nvmlDeviceGetMinorNumber", offsetof(struct nvml, minor), true},
	[NVML_MIG_MODE] = {"nvmlDeviceGetMigMode", offsetof(struct nvml, mig_mode), true},
	[NVML_MIG_COUNT] = {"nvmlDeviceGetMaxMigDeviceCount", offsetof(struct nvml, mig_count),
			    true},
	[NVML_MIG_HANDLE] = {"nvmlDeviceGetMigDeviceHandleByIndex",
			     offsetof(struct nvml, mig_handle), true},
};

struct nvml_session {
	struct nvml nvml;
	struct nvml_results *results;
};

static struct nvml_progress progress_of(struct nvml_results *results)
{
	return atomic_load_explicit(&results->progress, memory_order_relaxed);
}

static void publish(struct nvml_results *results, struct nvml_progress progress)
{
	progress.why = (uint16_t)strnlen(results->why, sizeof(results->why));
	atomic_store_explicit(&results->progress, progress, memory_order_release);
}

void nvml_set_call(struct nvml_results *results, enum nvml_call call, unsigned gpu)
{
	struct nvml_progress progress = progress_of(results);

	progress.call = (uint16_t)call;
	progress.gpu = (uint16_t)gpu;
	publish(results, progress);
}

const char *nvml_call_name(unsigned call)
{
	if (call < NVML_SYMBOLS)
		return nvml_symbols[call].name;
	return call == NVML_LOAD ? "dlopen" : "no call was made";
}

void nvml_append_clause(char *why, size_t size, const char *format, ...)
{
	enum { MIN_CLAUSE = 32 };
	size_t used = strlen(why);
	va_list arguments;

	if (used) {
		if (used + MIN_CLAUSE > size)
			return;
		memcpy(why + used, "; ", 3);
		used += 2;
	}
	va_start(arguments, format);
	vsnprintf(why + used, size - used, format, arguments);
	va_end(arguments);
}

/* Reports that the last call failed, and what is left out because of it. */
static void report_failure(struct nvml_session *session, const char *left_out, int status)
{
	struct nvml_results *results = session->results;
	struct nvml_progress progress = progress_of(results);
	const char *name = nvml_call_name(progress.call);
	const char *text = session->nvml.error_string(status);

	if (progress.gpu == NVML_GPUS)
		nvml_append_clause(results->why, sizeof(results->why), "%s: %s", name, text);
	else
		nvml_append_clause(results->why, sizeof(results->why), "%s %u is left out: %s: %s",
				   left_out, (unsigned)progress.gpu, name, text);
}

static void add_gpu(struct nvml_session *session, const struct zero_gpu *gpu)
{
	struct nvml_progress progress = progress_of(session->results);

	if (progress.count == NVML_ENTRIES)
		return;
	session->results->gpu[progress.count++] = *gpu;
	publish(session->results, progress);
}

static bool load_library(struct nvml_session *session, const char *library)
{
	const char *name = library ? library : "libnvidia-ml.so.1";
	const size_t size = sizeof(session->results->why);
	char *why = session->results->why;
	void *handle;

	nvml_set_call(session->results, NVML_LOAD, NVML_GPUS);
	handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!handle) {
		nvml_append_clause(why, size, "NVML cannot be loaded: %s", dlerror());
		return false;
	}
	for (size_t i = 0; i < NVML_SYMBOLS; i++) {
		const struct nvml_symbol *symbol = &nvml_symbols[i];
		void *address = dlsym(handle, symbol->name);

		if (!address && !symbol->optional) {
			nvml_append_clause(why, size,
					   "%s has no function %s: it is not NVML, or too old",
					   name, symbol->name);
			return false;
		}
		memcpy((char *)&session->nvml + symbol->offset, &address, sizeof(address));
	}
	return true;
}

static int read_uuid(struct nvml_session *session, nvml_device device, struct zero_gpu *gpu)
{
	int status;

	nvml_set_call(session->results, NVML_UUID, (unsigned)gpu->index);
	status = session->nvml.uuid(device, gpu->uuid, sizeof(gpu->uuid));
	gpu->uuid[sizeof(gpu->uuid) - 1] = '\0';
	return status;
}

static int read_memory(struct nvml_session *session, nvml_device device, struct zero_gpu *gpu)
{
	struct nvml_memory memory = {0};
	int status;

	nvml_set_call(session->results, NVML_MEMORY, (unsigned)gpu->index);
	status = session->nvml.memory(device, &memory);
	if (status)
		return status;
	gpu->total = memory.total;
	gpu->free = memory.free;
	return 0;
}

static int read_name(struct nvml_session *session, nvml_device device, struct zero_gpu *gpu)
{
	char name[sizeof(gpu->model)] = "";
	int status;

	nvml_set_call(session->results, NVML_NAME, (unsigned)gpu->index);
	status = session->nvml.name(device, name, sizeof(name));
	if (status)
		return status;
	name[sizeof(name) - 1] = '\0';
	memcpy(gpu->model, name, sizeof(name));
	return 0;
}

/* Reads which of the node's boards this is. A driver that does not tell it leaves both unknown. */
static void read_place(struct nvml_session *session, nvml_device device, struct zero_gpu *gpu)
{
	const struct nvml *nvml = &session->nvml;
	struct nvml_pci pci = {.bus_id = ""};
	unsigned minor = 0;

	_Static_assert(sizeof(gpu->bus) == sizeof(pci.bus_id), "the address would be cut");
	nvml_set_call(session->results, NVML_PCI, (unsigned)gpu->index);
	if (nvml->pci && !nvml->pci(device, &pci))
		memcpy(gpu->bus, pci.bus_id, sizeof(gpu->bus) - 1);
	nvml_set_call(session->results, NVML_MINOR, (unsigned)gpu->index);
	if (nvml->minor && !nvml->minor(device, &minor) && minor < INT_MAX)
		gpu->minor = (int)minor;
}

static int read_mig_mode(struct nvml_session *session, nvml_device device, struct zero_gpu *gpu)
{
	const struct nvml *nvml = &session->nvml;
	unsigned current = 0, pending = 0;
	int status;

	if (!nvml->mig_mode || !nvml->mig_count || !nvml->mig_handle)
		return 0;
	nvml_set_call(session->results, NVML_MIG_MODE, (unsigned)gpu->index);
	status = nvml->mig_mode(device, &current, &pending);
	if (status == NVML_ERROR_NOT_SUPPORTED)
		return 0;
	gpu->partitioned = !status && current == NVML_DEVICE_MIG_ENABLE;
	return status;
}

/* Reads the instances of a GPU in MIG mode, whose numbers may have gaps. */
static void read_instances(struct nvml_session *session, nvml_device device,
			   const struct zero_gpu *parent)
{
	unsigned gpu = (unsigned)parent->index, count = 0;
	int status;

	nvml_set_call(session->results, NVML_MIG_COUNT, gpu);
	status = session->nvml.mig_count(device, &count);
	if (status)
		report_failure(session, "every instance of GPU", status);
	for (unsigned i = 0; i < count && i < NVML_INSTANCES; i++) {
		struct zero_gpu instance = *parent;
		nvml_device handle = NULL;
		int failure;

		instance.instance = (int)i;
		instance.partitioned = false;
		nvml_set_call(session->results, NVML_MIG_HANDLE, gpu);
		failure = session->nvml.mig_handle(device, i, &handle);
		if (failure == NVML_ERROR_NOT_FOUND)
			continue;
		if (!failure)
			failure = read_uuid(session, handle, &instance);
		if (!failure)
			failure = read_memory(session, handle, &instance);
		if (failure) {
			report_failure(session, "an instance of GPU", failure);
			continue;
		}
		/* On error the instance keeps the name of the GPU. */
		read_name(session, handle, &instance);
		add_gpu(session, &instance);
	}
}

static int read_gpu(struct nvml_session *session, unsigned index)
{
	struct zero_gpu gpu = {.index = (int)index, .minor = -1, .instance = -1};
	nvml_device device = NULL;
	int status;

	nvml_set_call(session->results, NVML_HANDLE, index);
	status = session->nvml.handle(index, &device);
	/* Control groups hide it: it belongs to another step. Most drivers do not even count it. */
	if (status == NVML_ERROR_NO_PERMISSION)
		return 0;
	if (!status)
		status = read_uuid(session, device, &gpu);
	if (!status)
		status = read_name(session, device, &gpu);
	if (!status)
		status = read_mig_mode(session, device, &gpu);
	if (status)
		return status;
	read_place(session, device, &gpu);
	status = read_memory(session, device, &gpu);
	/* In MIG mode only administrators may read this, and it is not needed. */
	if (status && !gpu.partitioned)
		return status;
	add_gpu(session, &gpu);
	if (gpu.partitioned)
		read_instances(session, device, &gpu);
	return 0;
}

static void read_gpus(struct nvml_session *session)
{
	unsigned count = 0;
	int status;

	nvml_set_call(session->results, NVML_COUNT, NVML_GPUS);
	status = session->nvml.count(&count);
	if (status) {
		report_failure(session, "GPU", status);
		return;
	}
	for (unsigned i = 0; i < count && i < NVML_GPUS; i++) {
		status = read_gpu(session, i);
		if (status)
			report_failure(session, "GPU", status);
	}
}

void nvml_query(struct nvml_results *results, const char *library)
{
	struct nvml_session session = {.results = results};
	int status;

	if (!load_library(&session, library))
		return;
	nvml_set_call(results, NVML_INIT, NVML_GPUS);
	status = session.nvml.init();
	if (status) {
		report_failure(&session, "GPU", status);
		return;
	}
	read_gpus(&session);
	nvml_set_call(results, NVML_SHUTDOWN, NVML_GPUS);
	session.nvml.shutdown();
}

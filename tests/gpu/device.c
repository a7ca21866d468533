/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device.h"

/* Exported names of the driver's functions, in the versions that cuda.h declares. */
static struct {
	CUresult (*Init)(unsigned int);
	CUresult (*DriverGetVersion)(int *);
	CUresult (*GetErrorString)(CUresult, const char **);
	CUresult (*DeviceGetCount)(int *);
	CUresult (*DeviceGet)(CUdevice *, int);
	CUresult (*DeviceGetName)(char *, int, CUdevice);
	CUresult (*DeviceGetAttribute)(int *, CUdevice_attribute, CUdevice);
	CUresult (*DevicePrimaryCtxRetain)(CUcontext *, CUdevice);
	CUresult (*CtxPushCurrent)(CUcontext);
	CUresult (*MemGetInfo)(size_t *, size_t *);
	CUresult (*MemPoolCreate)(CUmemoryPool *, const CUmemPoolProps *);
	CUresult (*MemAllocFromPoolAsync)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
	CUresult (*MemFreeAsync)(CUdeviceptr, CUstream);
	CUresult (*MemHostAlloc)(void **, size_t, unsigned int);
	CUresult (*MemFreeHost)(void *);
	CUresult (*MemcpyAsync)(CUdeviceptr, CUdeviceptr, size_t, CUstream);
	CUresult (*MemsetD8Async)(CUdeviceptr, unsigned char, size_t, CUstream);
	CUresult (*StreamCreate)(CUstream *, unsigned int, int);
	CUresult (*StreamSynchronize)(CUstream);
	CUresult (*EventCreate)(CUevent *, unsigned int);
	CUresult (*EventRecord)(CUevent, CUstream);
	CUresult (*EventSynchronize)(CUevent);
	CUresult (*EventElapsedTime)(float *, CUevent, CUevent);
	CUresult (*ModuleLoadData)(CUmodule *, const void *);
	CUresult (*ModuleGetFunction)(CUfunction *, CUmodule, const char *);
	CUresult (*LaunchKernel)(CUfunction, unsigned int, unsigned int, unsigned int, unsigned int,
				 unsigned int, unsigned int, unsigned int, CUstream, void **,
				 void **);
	CUresult (*CtxSynchronize)(void);
	CUresult (*StreamBeginCapture)(CUstream, CUstreamCaptureMode);
	CUresult (*StreamEndCapture)(CUstream, CUgraph *);
	CUresult (*GraphInstantiate)(CUgraphExec *, CUgraph, unsigned long long);
	CUresult (*GraphDestroy)(CUgraph);
	CUresult (*GraphLaunch)(CUgraphExec, CUstream);
	CUresult (*GraphExecDestroy)(CUgraphExec);
} driver;

static const struct {
	const char *name;
	void *function;
	bool optional; /* only measurements use it, so the stand-in for the driver may lack it */
} functions[] = {
	{"cuInit", &driver.Init, false},
	{"cuDriverGetVersion", &driver.DriverGetVersion, false},
	{"cuGetErrorString", &driver.GetErrorString, false},
	{"cuDeviceGetCount", &driver.DeviceGetCount, false},
	{"cuDeviceGet", &driver.DeviceGet, false},
	{"cuDeviceGetName", &driver.DeviceGetName, false},
	{"cuDeviceGetAttribute", &driver.DeviceGetAttribute, false},
	{"cuDevicePrimaryCtxRetain", &driver.DevicePrimaryCtxRetain, false},
	{"cuCtxPushCurrent_v2", &driver.CtxPushCurrent, false},
	{"cuMemGetInfo_v2", &driver.MemGetInfo, false},
	{"cuMemPoolCreate", &driver.MemPoolCreate, false},
	{"cuMemAllocFromPoolAsync", &driver.MemAllocFromPoolAsync, false},
	{"cuMemFreeAsync", &driver.MemFreeAsync, false},
	{"cuMemHostAlloc", &driver.MemHostAlloc, false},
	{"cuMemFreeHost", &driver.MemFreeHost, false},
	{"cuMemcpyAsync", &driver.MemcpyAsync, false},
	{"cuMemsetD8Async", &driver.MemsetD8Async, false},
	{"cuStreamCreateWithPriority", &driver.StreamCreate, false},
	{"cuStreamSynchronize", &driver.StreamSynchronize, false},
	{"cuEventCreate", &driver.EventCreate, false},
	{"cuEventRecord", &driver.EventRecord, false},
	{"cuEventSynchronize", &driver.EventSynchronize, false},
	{"cuEventElapsedTime", &driver.EventElapsedTime, true},
	{"cuModuleLoadData", &driver.ModuleLoadData, false},
	{"cuModuleGetFunction", &driver.ModuleGetFunction, false},
	{"cuLaunchKernel", &driver.LaunchKernel, false},
	{"cuCtxSynchronize", &driver.CtxSynchronize, false},
	{"cuStreamBeginCapture_v2", &driver.StreamBeginCapture, false},
	{"cuStreamEndCapture", &driver.StreamEndCapture, false},
	{"cuGraphInstantiateWithFlags", &driver.GraphInstantiate, false},
	{"cuGraphDestroy", &driver.GraphDestroy, false},
	{"cuGraphLaunch", &driver.GraphLaunch, false},
	{"cuGraphExecDestroy", &driver.GraphExecDestroy, false},
};

static CUdevice device;
static CUmemoryPool pool;
static CUmodule module;
static bool on_host;

static void must(CUresult result, const char *what)
{
	const char *text = NULL;

	if (result == CUDA_SUCCESS)
		return;
	driver.GetErrorString(result, &text);
	fprintf(stderr, "%s: %s (%d)\n", what, text ? text : "unknown error", (int)result);
	fflush(NULL);
	/* exit() would run handlers that may wait for ranks which wait for this one. */
	_exit(1);
}

/* ---- the device ------------------------------------------------------------------------------ */

bool device_on_host(void)
{
	const char *backend = getenv("ZERO_TEST_BACKEND");

	return backend && !strcmp(backend, "host");
}

static const char *open_driver(void)
{
	static char text[256];
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	CUresult result;
	int count = 0;

	if (!library)
		return "libcuda.so.1 cannot be opened: no driver is installed";
	for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		void *address = dlsym(library, functions[i].name);

		memcpy(functions[i].function, &address, sizeof(address));
		if (address || functions[i].optional)
			continue;
		snprintf(text, sizeof(text), "libcuda.so.1 has no %s", functions[i].name);
		return text;
	}
	result = driver.Init(0);
	if (result == CUDA_SUCCESS)
		result = driver.DeviceGetCount(&count);
	if (result == CUDA_SUCCESS && count > 0)
		return NULL;
	snprintf(text, sizeof(text), "the driver knows no device (cuInit and cuDeviceGetCount: %d)",
		 (int)result);
	return text;
}

/* The launchers' variables are read, because the device is chosen before the job is opened. */
static int number_on_node(void)
{
	static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
					    "LOCAL_RANK"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (getenv(names[i]))
			return atoi(getenv(names[i]));
	return 0;
}

static void open_pool(int ordinal)
{
	CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
				.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal}};

	must(driver.MemPoolCreate(&pool, &props), "cuMemPoolCreate");
}

const char *device_open(void)
{
	CUcontext context;
	const char *why;
	int count = 0;

	on_host = device_on_host();
	if (on_host)
		return NULL;
	why = open_driver();
	if (why)
		return why;
	must(driver.DeviceGetCount(&count), "cuDeviceGetCount");
	must(driver.DeviceGet(&device, number_on_node() % count), "cuDeviceGet");
	must(driver.DevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
	must(driver.CtxPushCurrent(context), "cuCtxPushCurrent");
	open_pool(number_on_node() % count);
	return NULL;
}

void device_describe(char *text, size_t size)
{
	char name[128] = "unknown";
	int major = 0, minor = 0, version = 0;

	snprintf(text, size, "host memory");
	if (on_host)
		return;
	driver.DeviceGetName(name, (int)sizeof(name), device);
	driver.DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	driver.DeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
	driver.DriverGetVersion(&version);
	snprintf(text, size, "%s, sm_%d%d, driver for CUDA %d.%d", name, major, minor,
		 version / 1000, version % 1000 / 10);
}

int device_count(void)
{
	int count = 0;

	if (!on_host)
		must(driver.DeviceGetCount(&count), "cuDeviceGetCount");
	return count;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void *device_alloc(size_t bytes)
{
	CUdeviceptr data = 0;
	CUresult result;

	if (on_host)
		return malloc(bytes ? bytes : 1);
	result = driver.MemAllocFromPoolAsync(&data, bytes ? bytes : 1, pool, NULL);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return NULL;
	must(result, "cuMemAllocFromPoolAsync");
	return (void *)(uintptr_t)data;
}

void device_free(void *data)
{
	if (on_host)
		free(data);
	else if (data)
		must(driver.MemFreeAsync((CUdeviceptr)(uintptr_t)data, NULL), "cuMemFreeAsync");
}

size_t device_memory_free(void)
{
	size_t left = 0, all = 0;

	if (!on_host)
		must(driver.MemGetInfo(&left, &all), "cuMemGetInfo");
	return left;
}

void *pinned_alloc(size_t bytes)
{
	void *data = NULL;

	if (on_host)
		data = malloc(bytes ? bytes : 1);
	else
		must(driver.MemHostAlloc(&data, bytes ? bytes : 1, CU_MEMHOSTALLOC_PORTABLE),
		     "cuMemHostAlloc");
	return data;
}

void pinned_free(void *data)
{
	if (on_host)
		free(data);
	else if (data)
		must(driver.MemFreeHost(data), "cuMemFreeHost");
}

static void copy(void *to, const void *from, size_t bytes)
{
	if (!bytes)
		return;
	if (on_host)
		memcpy(to, from, bytes);
	else
		must(driver.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from,
					bytes, NULL),
		     "cuMemcpyAsync");
}

void upload(void *to, const void *from, size_t bytes)
{
	copy(to, from, bytes);
}

void download(void *to, const void *from, size_t bytes)
{
	copy(to, from, bytes);
}

void device_copy(void *to, const void *from, size_t bytes)
{
	copy(to, from, bytes);
}

void device_set(void *to, unsigned char value, size_t bytes)
{
	if (!bytes)
		return;
	if (on_host)
		memset(to, value, bytes);
	else
		must(driver.MemsetD8Async((CUdeviceptr)(uintptr_t)to, value, bytes, NULL),
		     "cuMemsetD8Async");
}

void synchronise(void)
{
	if (!on_host)
		must(driver.StreamSynchronize(NULL), "cuStreamSynchronize");
}

/* ---- kernels --------------------------------------------------------------------------------- */

void kernels_load(const void *image)
{
	must(driver.ModuleLoadData(&module, image), "cuModuleLoadData of the kernels");
}

void kernels_launch(const char *name, const void *arguments, size_t blocks, unsigned threads)
{
	void *list[] = {(void *)(uintptr_t)arguments};
	CUfunction function;

	must(driver.ModuleGetFunction(&function, module, name), name);
	must(driver.LaunchKernel(function, (unsigned)(blocks ? blocks : 1), 1, 1, threads, 1, 1, 0,
				 NULL, list, NULL),
	     name);
}

size_t kernels_blocks(size_t count)
{
	int processors = 0;
	size_t most;

	must(driver.DeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
				       device),
	     "cuDeviceGetAttribute");
	most = 8 * (size_t)(processors > 0 ? processors : 1);
	return count / 1024 + 1 < most ? count / 1024 + 1 : most;
}

/* ---- streams --------------------------------------------------------------------------------- */

void *stream_new(void)
{
	CUstream stream = NULL;

	must(driver.StreamCreate(&stream, CU_STREAM_NON_BLOCKING, 0), "cuStreamCreateWithPriority");
	return stream;
}

void copy_on(void *stream, void *to, const void *from, size_t bytes)
{
	must(driver.MemcpyAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes,
				stream),
	     "cuMemcpyAsync");
}

void stream_finish(void *stream)
{
	must(driver.StreamSynchronize(stream), "cuStreamSynchronize");
}

/* ---- graphs ---------------------------------------------------------------------------------- */

void capture_begin(void *stream)
{
	must(driver.CtxSynchronize(), "cuCtxSynchronize");
	must(driver.StreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "cuStreamBeginCapture");
}

void *capture_end(void *stream)
{
	CUgraphExec exec = NULL;
	CUgraph graph = NULL;

	must(driver.StreamEndCapture(stream, &graph), "cuStreamEndCapture");
	must(driver.GraphInstantiate(&exec, graph, 0), "cuGraphInstantiate");
	must(driver.GraphDestroy(graph), "cuGraphDestroy");
	return exec;
}

void graph_launch(void *graph, void *stream)
{
	must(driver.GraphLaunch(graph, stream), "cuGraphLaunch");
}

void graph_delete(void *graph)
{
	must(driver.GraphExecDestroy(graph), "cuGraphExecDestroy");
}

/* ---- time ------------------------------------------------------------------------------------ */

struct device_mark {
	CUevent event;
	double wall; /* if the driver does not measure time */
};

device_mark *mark_new(void)
{
	device_mark *m = calloc(1, sizeof(*m));

	if (!m)
		_exit(1);
	if (!on_host)
		must(driver.EventCreate(&m->event, CU_EVENT_DEFAULT), "cuEventCreate");
	return m;
}

void mark(device_mark *m)
{
	mark_on(m, NULL);
}

void mark_on(device_mark *m, void *stream)
{
	m->wall = wall_ms();
	if (!on_host)
		must(driver.EventRecord(m->event, stream), "cuEventRecord");
}

double marks_between(device_mark *begin, device_mark *end)
{
	float ms = (float)(end->wall - begin->wall);

	if (!on_host)
		must(driver.EventSynchronize(end->event), "cuEventSynchronize");
	if (!on_host && driver.EventElapsedTime)
		must(driver.EventElapsedTime(&ms, begin->event, end->event), "cuEventElapsedTime");
	return (double)ms;
}

double wall_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double median(double *values, size_t count)
{
	qsort(values, count, sizeof(*values), by_value);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

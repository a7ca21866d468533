/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the stand-in for CUDA share. A test opens it in its own process. */
#ifndef TEST_DOUBLE_CUDA_H
#define TEST_DOUBLE_CUDA_H

#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "backend/cuda/driver.h"
#include "kernels.h"
#include "unit.h"

static struct zero_driver cu;
static CUresult (*plain_alloc)(CUdeviceptr *, size_t);
static CUresult (*event_finish)(CUevent);
static void *(*reach)(CUdeviceptr, size_t, bool);
static void (*hold)(bool);

static const struct {
	void *function;
	const char *name;
} symbols[] = {
	{&cu.init, "cuInit"},
	{&cu.context_retain, "cuDevicePrimaryCtxRetain"},
	{&cu.context_release, "cuDevicePrimaryCtxRelease_v2"},
	{&cu.context_push, "cuCtxPushCurrent_v2"},
	{&cu.memory_info, "cuMemGetInfo_v2"},
	{&cu.pool_new, "cuMemPoolCreate"},
	{&cu.pool_delete, "cuMemPoolDestroy"},
	{&cu.pool_set, "cuMemPoolSetAttribute"},
	{&cu.pool_trim, "cuMemPoolTrimTo"},
	{&cu.alloc, "cuMemAllocFromPoolAsync"},
	{&cu.free, "cuMemFreeAsync"},
	{&cu.host_alloc, "cuMemHostAlloc"},
	{&cu.host_free, "cuMemFreeHost"},
	{&cu.copy, "cuMemcpyAsync"},
	{&cu.set, "cuMemsetD8Async"},
	{&cu.stream_new, "cuStreamCreateWithPriority"},
	{&cu.stream_delete, "cuStreamDestroy_v2"},
	{&cu.stream_finish, "cuStreamSynchronize"},
	{&cu.stream_wait, "cuStreamWaitEvent"},
	{&cu.event_new, "cuEventCreate"},
	{&cu.event_delete, "cuEventDestroy_v2"},
	{&cu.event_record, "cuEventRecord"},
	{&cu.event_query, "cuEventQuery"},
	{&cu.event_elapsed, "cuEventElapsedTime"},
	{&cu.module_load, "cuModuleLoadData"},
	{&cu.module_unload, "cuModuleUnload"},
	{&cu.function_get, "cuModuleGetFunction"},
	{&cu.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor"},
	{&cu.launch, "cuLaunchKernel"},
	{&plain_alloc, "cuMemAlloc_v2"},
	{&event_finish, "cuEventSynchronize"},
	{&reach, "double_cuda_reach"},
	{&hold, "double_cuda_hold"},
};

#define GOOD(call)         ck_assert_int_eq(call, CUDA_SUCCESS)
#define GIVES(call, error) ck_assert_int_eq(call, error)

static inline void open_double(void)
{
	const char *build = getenv("top_builddir");
	char path[4096];
	void *library;

	snprintf(path, sizeof(path), "%s/tests/double/.libs/cuda.so", build ? build : ".");
	library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	ck_assert_msg(library != NULL, "%s", dlerror());
	for (size_t i = 0; i < COUNT_OF(symbols); i++) {
		void *symbol = dlsym(library, symbols[i].name);

		ck_assert_msg(symbol != NULL, "there is no %s", symbols[i].name);
		memcpy(symbols[i].function, &symbol, sizeof(symbol));
	}
}

/* Device 0 with its context current, a pool and a module. */
static CUcontext context;
static CUmemoryPool pool;
static CUmodule module;

static inline CUmemoryPool new_pool(int device)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	};
	CUmemoryPool made;

	GOOD(cu.pool_new(&made, &props));
	return made;
}

static inline void open_device(void)
{
	open_double();
	GOOD(cu.init(0));
	GOOD(cu.context_retain(&context, 0));
	GOOD(cu.context_push(context));
	GOOD(cu.module_load(&module, "an image"));
	pool = new_pool(0);
}

static inline CUstream new_stream(void)
{
	CUstream stream;

	GOOD(cu.stream_new(&stream, CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

static inline CUevent new_event(void)
{
	CUevent event;

	GOOD(cu.event_new(&event, CU_EVENT_DISABLE_TIMING));
	return event;
}

static inline CUdeviceptr new_block(size_t bytes, CUstream stream)
{
	CUdeviceptr data;

	GOOD(cu.alloc(&data, bytes, pool, stream));
	return data;
}

static inline void *new_pinned(size_t bytes)
{
	void *data;

	GOOD(cu.host_alloc(&data, bytes, CU_MEMHOSTALLOC_PORTABLE));
	return data;
}

/* Loads the kernel first, which a capture does not allow. */
static inline CUresult launch(const char *name, unsigned grid, void *arguments, CUstream stream)
{
	void *pointers[] = {arguments};
	CUfunction function;
	int blocks;

	GOOD(cu.function_get(&function, module, name));
	GOOD(cu.occupancy(&blocks, function, ZERO_DEVICE_THREADS, 0));
	return cu.launch(function, grid, 1, 1, ZERO_DEVICE_THREADS, 1, 1, 0, stream, pointers,
			 NULL);
}

/* x[i] += x[i] */
static inline CUresult twice(CUdeviceptr x, size_t count, CUstream stream)
{
	struct zero_device_sum arguments = {.out = (float *)x,
					    .own = (void *)x,
					    .others = (void *)x,
					    .count = count,
					    .n = 2,
					    .from = ZERO_F32};

	return launch("zero_device_sum", 3, &arguments, stream);
}

/* Runs it in a child process and returns its status. `text` gets its output. */
static inline int in_child(void (*run)(void), char *text, size_t size)
{
	size_t length = 0;
	ssize_t got;
	int ends[2], status;
	pid_t child;

	ck_assert_int_eq(pipe(ends), 0);
	fflush(NULL);
	child = fork();
	if (child == 0) {
		dup2(ends[1], STDERR_FILENO);
		close(ends[0]);
		close(ends[1]);
		run();
		exit(EXIT_SUCCESS);
	}
	close(ends[1]);
	while ((got = read(ends[0], text + length, size - 1 - length)) > 0)
		length += (size_t)got;
	text[length] = '\0';
	close(ends[0]);
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	return status;
}

/* Checks that it ends the process with these words. */
static inline void dies(void (*run)(void), const char *words)
{
	char text[4096];
	int status = in_child(run, text, sizeof(text));

	ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "status %d: %s", status,
		      text);
	ck_assert_msg(strstr(text, words) != NULL, "\"%s\" is not in: %s", words, text);
}

#endif

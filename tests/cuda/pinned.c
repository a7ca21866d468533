/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page-locked memory of the CUDA backend: after a save the process has no more of it than the
 * library counts as in use, and at any time at most 128 MiB more.
 */
#include <dlfcn.h>
#include <math.h>

#include "../ranks/ranks.h"

enum { COUNT = 3000000, MB = 1 << 20 };

static zero_job *job;

/* What the stand-in for the driver has page-locked. */
static size_t locked(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	size_t (*bytes)(void);

	check(library, "%s", dlerror());
	*(void **)&bytes = dlsym(library, "double_cuda_pinned_bytes");
	check(bytes, "%s", dlerror());
	return bytes();
}

static size_t counted(void)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.pinned.now + memory.offload.now + memory.checkpoint.now;
}

static zero_status fill(void *context, void *out, size_t first, size_t count)
{
	(void)context;
	for (size_t i = 0; i < count; i++)
		((float *)out)[i] = (float)(first + i);
	return ZERO_OK;
}

static void step(void)
{
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.99F, .eps = 1e-8F};
	zero_step_result result;

	ok(zero_step(job, &adamw, &result));
}

static void save(const char *name, bool background)
{
	zero_save_options options = {.background = background};
	size_t before = locked(), during;

	ok(zero_save(job, file_path(name), &options));
	during = locked();
	check(!background || during > before, "no copy: %zu bytes, %zu before", during, before);
	ok(zero_save_wait(job));
	check(locked() == counted(), "%s: %zu bytes are page-locked, and %zu in use", name,
	      locked(), counted());
}

/* Returns the number of ranks. */
static int saves(void)
{
	static float values[COUNT];
	zero_source source;
	zero_param *param;
	int world;

	job = open_job("stage=3 share=1");
	world = zero_world(job);
	source = zero_from_rank(0, zero_rank(job) ? NULL : values);
	param = new_param(new_group(job, "g"), "p", ZERO_F32, COUNT, true);
	ok(zero_layout(job));
	ok(zero_load(param, &source));
	step();
	save("background", true);
	step();
	save("foreground", false);
	ok(zero_close(job));
	return world;
}

/* Staging buffers of 66 MiB are replaced by larger ones. */
static void loads(void)
{
	zero_source source = zero_from_callback(fill, NULL);
	zero_param *first, *second, *small;
	zero_group *group;

	job = open_job("stage=3 share=1 stream_chunk=80M");
	group = new_group(job, "g");
	first = new_param(group, "first", ZERO_F32, 66 * MB / sizeof(float), false);
	second = new_param(group, "second", ZERO_F32, 67 * MB / sizeof(float), false);
	small = new_param(group, "small", ZERO_F32, 100, true);
	ok(zero_layout(job));
	ok(zero_load(first, &source));
	ok(zero_load(second, &source));
	ok(zero_load(small, &source));
	/* what was in use when it was freed is looked at again */
	step();
	check(locked() <= counted() + 128 * (size_t)MB, "%zu bytes are page-locked, and %zu in use",
	      locked(), counted());
	ok(zero_close(job));
}

int main(void)
{
	if (saves() == 1)
		loads();
	return 0;
}

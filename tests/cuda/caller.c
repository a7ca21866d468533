/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program uses its own allocator for all device memory of a job, its own stream, and a
 * communicator of NCCL that the job makes for it. tests/cuda/caller.sh runs it with stand-ins,
 * whose streams are asynchronous and check the order of accesses.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>
#include <pthread.h>
#include <semaphore.h>

#include "../gpu/device.h"
#include "../ranks/ranks.h"

enum { COUNT = 30001 };

static float values[COUNT], back[COUNT];

/* ---- an allocator ---------------------------------------------------------------------------- */

struct pool {
	pthread_mutex_t lock;
	size_t live, allocations;
	size_t refuse; /* this allocation and all later ones; 0: none */
	char *base[256], *data[256];
};

/* Allocates enough to align the result. */
static char *take_aligned(struct pool *pool, size_t bytes, size_t alignment)
{
	size_t i = 0;

	while (i < 256 && pool->data[i])
		i++;
	check(i < 256, "too many allocations");
	pool->base[i] = device_alloc(bytes + alignment);
	if (!pool->base[i])
		return NULL;
	/* For any stream. */
	synchronise();
	pool->data[i] = pool->base[i] + (-(uintptr_t)pool->base[i] & (alignment - 1));
	return pool->data[i];
}

static void *give(void *context, size_t bytes, size_t alignment, int device, void *stream,
		  const char *kind)
{
	struct pool *pool = context;
	char *data = NULL;

	(void)stream;
	check(bytes && alignment == 4096 && device >= 0 && kind && *kind, "%zu bytes", bytes);
	pthread_mutex_lock(&pool->lock);
	if (!pool->refuse || pool->allocations + 1 < pool->refuse)
		data = take_aligned(pool, bytes, alignment);
	pool->allocations += data != NULL;
	pool->live += data != NULL;
	pthread_mutex_unlock(&pool->lock);
	return data;
}

/* A caching allocator would keep the block for the stream; this one waits for all work. */
static void take(void *context, void *data, size_t bytes, int device, void *stream)
{
	struct pool *pool = context;

	(void)device;
	check(data && bytes, "nothing is given back");
	stream_finish(stream);
	pthread_mutex_lock(&pool->lock);
	for (size_t i = 0; i < 256; i++)
		if (pool->data[i] == data) {
			device_free(pool->base[i]);
			pool->data[i] = NULL;
			pool->live--;
		}
	pthread_mutex_unlock(&pool->lock);
}

static zero_group *model(zero_job *job, zero_param **param)
{
	zero_group *group = new_group(job, "g");

	*param = new_param(group, "p", ZERO_F32, COUNT, true);
	ok(zero_layout(job));
	return group;
}

static void two_groups(zero_job *job, zero_group *groups[2], zero_param *params[2])
{
	for (int g = 0; g < 2; g++) {
		groups[g] = new_group(job, g ? "right" : "left");
		params[g] = new_param(groups[g], g ? "r" : "l", ZERO_F32, COUNT, true);
	}
	ok(zero_layout(job));
}

/* A refused allocation is an error on all ranks. The next try can use memory that was freed. */
static void refused(struct pool *pool, zero_job *job, const zero_adamw *adamw)
{
	pool->refuse = zero_rank(job) == 0 ? pool->allocations + 1 : 0;
	fails(zero_step(job, adamw, NULL), ZERO_E_MEMORY, "gradients");
	check(strstr(zero_last_error(), " bytes of ") &&
		      (zero_world(job) == 1 || strstr(zero_last_error(), "rank 0")),
	      "%s", zero_last_error());
	pool->refuse = 0;
	ok(zero_step(job, adamw, NULL));
}

static void own_allocator(void)
{
	struct pool pool = {.lock = PTHREAD_MUTEX_INITIALIZER};
	zero_allocator allocator = {.alloc = give, .free = take, .context = &pool};
	zero_options options = {.settings = "backend=cuda stage=3", .allocator = &allocator};
	zero_source source = zero_from_all(values);
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_memory memory;
	zero_group *group;
	zero_param *param;
	zero_job *job;

	ok(zero_open(&options, &job));
	group = model(job, &param);
	ok(zero_load(param, &source));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	download(back, zero_data(param), sizeof(back));
	synchronise();
	check(!memcmp(back, values, sizeof(back)), "other values");
	ok(zero_release(group));
	refused(&pool, job, &adamw);
	check(zero_gradient(param), "%s", zero_last_error());
	ok(zero_step(job, &adamw, NULL));
	ok(zero_memory_now(job, &memory));
	check(pool.allocations > 3 && pool.live, "%zu allocations", pool.allocations);
	ok(zero_close(job));
	check(!pool.live, "%zu allocations are left", pool.live);
}

/* The gradients of a reduce are given back once a peer has sent its part. Until then the caller's
   stream goes on. */
static void late_peer(void)
{
	struct pool pool = {.lock = PTHREAD_MUTEX_INITIALIZER};
	zero_allocator allocator = {.alloc = give, .free = take, .context = &pool};
	void *stream = stream_new();
	zero_options options = {
		.settings = "backend=cuda stage=3", .allocator = &allocator, .stream = stream};
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	float *pinned = pinned_alloc(sizeof(values));
	const char *gone_on = file_path("gone_on");
	zero_group *group;
	zero_param *param;
	zero_job *job;
	void *other;
	FILE *file;

	ok(zero_open(&options, &job));
	group = model(job, &param);
	ok(zero_step(job, &adamw, NULL));
	memcpy(pinned, values, sizeof(values));
	copy_on(stream, zero_gradient(param), pinned, sizeof(values));
	while (zero_rank(job) && access(gone_on, F_OK))
		usleep(1000);
	ok(zero_reduce(group));
	if (zero_rank(job) == 0) {
		/* What can be given back is, when something is allocated. */
		ok(zero_device_alloc(job, COUNT, &other));
		zero_device_free(job, other);
		stream_finish(stream);
		file = fopen(gone_on, "w");
		check(file && !fclose(file), "no file %s", gone_on);
	}
	ok(zero_step(job, &adamw, NULL));
	ok(zero_close(job));
	check(!pool.live, "%zu allocations are left", pool.live);
	pinned_free(pinned);
}

/* ---- order ----------------------------------------------------------------------------------- */

/* Gathers of equal size that ranks begin in another order mix up two groups, but no step is
   taken. */
static void other_order(void)
{
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_options options = {.settings = "backend=cuda stage=3 allgather=grouped"};
	zero_group *groups[2];
	zero_param *params[2];
	zero_job *job;

	ok(zero_open(&options, &job));
	two_groups(job, groups, params);
	ok(zero_step(job, &adamw, NULL));
	for (int round = 0; round < 2; round++)
		for (int g = 0; g < 2; g++) {
			bool other = round && zero_rank(job) == 1;

			ok(zero_gather(groups[other ? !g : g], ZERO_DTYPE_PARAM));
			ok(zero_release(groups[other ? !g : g]));
		}
	if (zero_world(job) == 1)
		ok(zero_step(job, &adamw, NULL));
	else
		fails(zero_step(job, &adamw, NULL), ZERO_E_ORDER,
		      "after 4 gathers and reduces, the last 'reduce of group 'right''");
	ok(zero_close(job));
}

/* ---- a stream -------------------------------------------------------------------------------- */

/* Nothing else is waited for: what is gathered is read, and gradients are written, in the
   stream. */
static void own_stream(void)
{
	void *stream = stream_new();
	zero_options options = {.settings = "backend=cuda stage=3", .stream = stream};
	zero_source source = zero_from_all(values);
	float *pinned = pinned_alloc(sizeof(back));
	zero_group *group;
	zero_param *param;
	zero_job *job;

	ok(zero_open(&options, &job));
	group = model(job, &param);
	ok(zero_load(param, &source));
	for (int turn = 0; turn < 3; turn++) {
		memset(pinned, 0xa5, sizeof(back));
		ok(zero_gather(group, turn == 1 ? ZERO_BF16 : ZERO_DTYPE_PARAM));
		copy_on(stream, pinned, zero_data(param), turn == 1 ? COUNT * 2 : sizeof(back));
		ok(zero_release(group));
		stream_finish(stream);
		check(turn == 1 || !memcmp(pinned, values, sizeof(back)), "turn %d", turn);
	}
	/* And back to the default one, which is in order after it. */
	ok(zero_set_stream(job, NULL));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	download(back, zero_data(param), sizeof(back));
	synchronise();
	check(!memcmp(back, values, sizeof(back)), "other values");
	ok(zero_release(group));
	ok(zero_close(job));
	pinned_free(pinned);
}

/* ---- a device that is late ------------------------------------------------------------------- */

static sem_t let_go;

static void CUDA_CB hold(void *context)
{
	(void)context;
	while (sem_wait(&let_go))
		;
}

/* The stream does nothing until let_go is posted. */
static void hold_stream(void *stream)
{
	CUresult (*host_function)(CUstream, CUhostFn, void *);

	*(void **)&host_function = dlsym(RTLD_DEFAULT, "cuLaunchHostFunc");
	if (!host_function)
		*(void **)&host_function =
			dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc");
	sem_init(&let_go, 0, 0);
	check(!host_function(stream, hold, NULL), "no host function");
}

/* Two steps whose results nobody asks for: with `late` the stream does not begin them before both
   calls have returned. */
static zero_step_result late_steps(bool late)
{
	void *stream = stream_new();
	zero_options options = {.settings = "backend=cuda stage=1", .stream = stream};
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F, .clip = 1};
	float *pinned = pinned_alloc(sizeof(values));
	zero_source source = zero_from_all(values);
	zero_step_result result;
	zero_group *group;
	zero_param *param;
	zero_job *job;

	memcpy(pinned, values, sizeof(values));
	ok(zero_open(&options, &job));
	group = model(job, &param);
	ok(zero_load(param, &source));
	ok(zero_step(job, &adamw, NULL));
	if (late)
		hold_stream(stream);
	for (int turn = 0; turn < 2; turn++) {
		copy_on(stream, zero_gradient(param), pinned, sizeof(values));
		ok(zero_reduce(group));
		ok(zero_step(job, &adamw, NULL));
	}
	if (late)
		sem_post(&let_go);
	copy_on(stream, zero_gradient(param), pinned, sizeof(values));
	ok(zero_step(job, &adamw, &result));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	copy_on(stream, pinned, zero_data(param), sizeof(back));
	ok(zero_release(group));
	stream_finish(stream);
	memcpy(back, pinned, sizeof(back));
	ok(zero_close(job));
	pinned_free(pinned);
	if (late)
		sem_destroy(&let_go);
	return result;
}

/* The host does not wait for the device in a step whose result nobody asks for. */
static void late_device(void)
{
	static float in_time[COUNT];
	zero_step_result a = late_steps(false), b;

	memcpy(in_time, back, sizeof(back));
	b = late_steps(true);
	check(!memcmp(in_time, back, sizeof(back)) && a.grad_norm == b.grad_norm, "other values");
}

/* ---- memory that moves ----------------------------------------------------------------------- */

static void *post_later(void *unused)
{
	(void)unused;
	usleep(100000);
	sem_post(&let_go);
	return NULL;
}

/* Two groups had the same memory. When both are gathered at once one gets other memory at its
   address, but not while the device still reads there. */
static void moved_output(void)
{
	void *stream = stream_new(), *pinned = pinned_alloc(sizeof(values));
	zero_options options = {.settings = "backend=cuda stage=3 allgather=grouped",
				.stream = stream};
	zero_group *groups[2];
	zero_param *params[2];
	pthread_t thread;
	const void *at;
	zero_job *job;

	ok(zero_open(&options, &job));
	two_groups(job, groups, params);
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(groups[g], ZERO_BF16));
		ok(zero_release(groups[g]));
	}
	hold_stream(stream);
	ok(zero_gather(groups[1], ZERO_BF16));
	at = zero_data(params[1]);
	copy_on(stream, pinned, at, COUNT * 2);
	ok(zero_release(groups[1]));
	ok(zero_gather(groups[0], ZERO_BF16));
	check(!pthread_create(&thread, NULL, post_later, NULL), "no thread");
	ok(zero_gather(groups[1], ZERO_BF16));
	pthread_join(thread, NULL);
	check(zero_data(params[1]) == at, "another address");
	for (int g = 0; g < 2; g++)
		ok(zero_release(groups[g]));
	stream_finish(stream);
	ok(zero_close(job));
	sem_destroy(&let_go);
	pinned_free(pinned);
}

/* ---- a thread that goes on ------------------------------------------------------------------- */

/* As autograd's thread of a device does: it uses what another thread has prefetched, and then
   gathers a group which had the same memory. */
static void *go_on(void *context)
{
	zero_group **groups = context;

	for (int g = 0; g < 2; g++)
		ok(zero_gather(groups[g], ZERO_BF16));
	for (int g = 0; g < 2; g++)
		ok(zero_release(groups[g]));
	return NULL;
}

static void other_thread(void)
{
	zero_options options = {.settings = "backend=cuda stage=3 allgather=grouped"};
	zero_group *groups[2];
	zero_param *params[2];
	pthread_t thread;
	zero_job *job;

	ok(zero_open(&options, &job));
	two_groups(job, groups, params);
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(groups[g], ZERO_BF16));
		ok(zero_release(groups[g]));
	}
	ok(zero_prefetch(groups, 1, ZERO_BF16));
	check(!pthread_create(&thread, NULL, go_on, groups), "no thread");
	pthread_join(thread, NULL);
	ok(zero_close(job));
}

/* ---- an access that is late ------------------------------------------------------------------ */

/* With ZERO_CHECK=1 it ends the process. */
static void late_access(void)
{
	void *stream = stream_new(), *pinned = pinned_alloc(sizeof(values));
	zero_options options = {.settings = "backend=cuda stage=3", .stream = stream};
	zero_group *group;
	zero_param *param;
	const void *at;
	zero_job *job;

	ok(zero_open(&options, &job));
	group = model(job, &param);
	for (int i = 0; i < 3; i++) {
		ok(zero_gather(group, ZERO_BF16));
		at = zero_data(param);
		copy_on(stream, pinned, at, COUNT * 2);
		ok(zero_release(group));
	}
	stream_finish(stream);
	copy_on(stream, pinned, at, COUNT * 2);
	stream_finish(stream);
	ok(zero_close(job));
	pinned_free(pinned);
}

/* ---- captures -------------------------------------------------------------------------------- */

/* A step that would have to wait for the device is no part of a graph, and says why. */
static void refused_capture(const char *settings, bool asks, bool scales, const char *words)
{
	void *stream = stream_new(), *graph;
	zero_options options = {.settings = settings, .stream = stream};
	zero_adamw adamw = {.lr = 0.1F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};
	zero_step_result result;
	zero_loss_scale scale;
	zero_param *param;
	zero_job *job;

	ok(zero_open(&options, &job));
	model(job, &param);
	ok(zero_step(job, &adamw, NULL));
	ok(zero_agree(job, NULL));
	zero_loss_scale_init(&scale);
	adamw.loss_scale = scales ? &scale : NULL;
	capture_begin(stream);
	fails(zero_step(job, &adamw, asks ? &result : NULL), ZERO_E_STATE, words);
	ok(zero_agree(job, NULL));
	graph = capture_end(stream);
	graph_delete(graph);
	ok(zero_step(job, &adamw, &result));
	check(!result.skipped && result.grad_norm == 0, "a norm of %g", result.grad_norm);
	ok(zero_close(job));
}

static void refused_captures(void)
{
	refused_capture("backend=cuda stage=1", true, false, "its result must be NULL");
	refused_capture("backend=cuda stage=3", false, true, "zero_device_loss_scale");
	refused_capture("backend=cuda stage=3 offload=optimizer", false, false, "offloaded states");
}

/* ---- idle memory ----------------------------------------------------------------------------- */

/* What a job has freed stays in its pool, and is given back when NCCL needs it for an output. */
static void idle_memory(void)
{
	const size_t bytes = (size_t)16 << 20, some = (size_t)1 << 20;
	zero_options options = {.settings = "backend=cuda stage=3"};
	zero_source source = zero_from_constant(1);
	zero_group *group;
	zero_param *param;
	void *data, *rest;
	zero_job *job;

	ok(zero_open(&options, &job));
	group = new_group(job, "g");
	param = new_param(group, "p", ZERO_BF16, bytes / 4, true);
	ok(zero_layout(job));
	ok(zero_load(param, &source));
	/* ranks of one node have the same device here, and each its part of the memory */
	if (zero_world(job) > 1)
		fails(zero_device_alloc(job, device_memory_free() / 2, &data), ZERO_E_MEMORY,
		      "budget");
	ok(zero_device_alloc(job, bytes, &data));
	zero_device_free(job, data);
	synchronise();
	/* all that is free is someone else's, but for less than the output takes */
	rest = device_alloc(device_memory_free() - some);
	check(rest, "no memory");
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	ok(zero_release(group));
	device_free(rest);
	ok(zero_close(job));
}

/* ---- a communicator -------------------------------------------------------------------------- */

static void own_communicator(void)
{
	zero_options options = {.settings = "backend=cuda"};
	ncclResult_t (*all_reduce)(const void *, void *, size_t, ncclDataType_t, ncclRedOp_t,
				   ncclComm_t, cudaStream_t);
	ncclResult_t (*async_error)(ncclComm_t, ncclResult_t *), result;
	void *library, *comm, *again;
	float *data = device_alloc(sizeof(values));
	zero_job *job;
	int world;

	ok(zero_open(&options, &job));
	world = zero_world(job);
	ok(zero_nccl_comm(job, &comm));
	ok(zero_nccl_comm(job, &again));
	check(comm && comm == again, "%p and %p", comm, again);
	library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
	check(library, "%s", dlerror());
	*(void **)&all_reduce = dlsym(library, "ncclAllReduce");
	*(void **)&async_error = dlsym(library, "ncclCommGetAsyncError");
	upload(data, values, sizeof(values));
	result = all_reduce(data, data, COUNT, ncclFloat32, ncclSum, comm, NULL);
	while (result == ncclInProgress)
		async_error(comm, &result);
	check(result == ncclSuccess, "%d", (int)result);
	download(back, data, sizeof(back));
	synchronise();
	for (size_t i = 0; i < COUNT; i++)
		check(back[i] == values[i] * (float)world, "%zu", i);
	ok(zero_close(job));
	device_free(data);
}

int main(int argc, char **argv)
{
	const char *none = device_open();

	check(!none, "%s", none);
	for (size_t i = 0; i < COUNT; i++)
		values[i] = (float)(i % 1000);
	if (argc > 1 && !strcmp(argv[1], "late")) {
		late_access();
		return 0;
	}
	own_allocator();
	late_peer();
	other_order();
	own_stream();
	late_device();
	moved_output();
	other_thread();
	refused_captures();
	idle_memory();
	own_communicator();
	return 0;
}

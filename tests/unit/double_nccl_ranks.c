/* SPDX-License-Identifier: Apache-2.0 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

enum { LIMIT_SECONDS = 100 };

struct outcome outcome;

/* Shared memory of the processes. */
static struct {
	pthread_barrier_t barrier;
	ncclUniqueId id;
} * common;
static int own_rank;

static struct {
	CUresult (*init)(unsigned);
	CUresult (*retain)(CUcontext *, CUdevice);
	CUresult (*push)(CUcontext);
	CUresult (*alloc)(CUdeviceptr *, size_t);
	CUresult (*free)(CUdeviceptr);
	CUresult (*stream_new)(CUstream *, unsigned, int);
	CUresult (*finish)(CUstream);
	CUresult (*event_new)(CUevent *, unsigned);
	CUresult (*event_record)(CUevent, CUstream);
	CUresult (*event_query)(CUevent);
	void *(*reach)(CUdeviceptr, size_t, bool);
} driver;

void want(bool condition, const char *text, const char *file, int line)
{
	if (condition)
		return;
	fprintf(stderr, "%s:%d: rank %d: not %s; NCCL: %s\n", file, line, own_rank, text,
		ncclGetLastError(NULL));
	_exit(1);
}

static void *find(void *library, const char *name)
{
	void *function = dlsym(library, name);

	WANT(function);
	return function;
}

static void open_driver(void)
{
	const char *build = getenv("top_builddir");
	CUcontext context;
	char path[4096];
	void *library;

	snprintf(path, sizeof path, "%s/tests/double/.libs/cuda.so", build ? build : ".");
	library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	WANT(library);
	*(void **)&driver.init = find(library, "cuInit");
	*(void **)&driver.retain = find(library, "cuDevicePrimaryCtxRetain");
	*(void **)&driver.push = find(library, "cuCtxPushCurrent_v2");
	*(void **)&driver.alloc = find(library, "cuMemAlloc_v2");
	*(void **)&driver.free = find(library, "cuMemFree_v2");
	*(void **)&driver.stream_new = find(library, "cuStreamCreateWithPriority");
	*(void **)&driver.finish = find(library, "cuStreamSynchronize");
	*(void **)&driver.event_new = find(library, "cuEventCreate");
	*(void **)&driver.event_record = find(library, "cuEventRecord");
	*(void **)&driver.event_query = find(library, "cuEventQuery");
	*(void **)&driver.reach = find(library, "double_cuda_reach");
	WANT(!driver.init(0));
	WANT(!driver.retain(&context, 0));
	WANT(!driver.push(context));
}

static void meet(void)
{
	pthread_barrier_wait(&common->barrier);
}

static void share_id(ncclUniqueId *id)
{
	meet();
	if (own_rank == 0)
		WANT(ncclGetUniqueId(&common->id) == ncclSuccess);
	meet();
	*id = common->id;
}

ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
{
	struct timespec pause = {.tv_nsec = 20000};

	while (result == ncclInProgress) {
		if (ncclCommGetAsyncError(comm, &result))
			return ncclInternalError;
		nanosleep(&pause, NULL);
	}
	return result;
}

static ncclConfig_t config_of(bool blocking)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	config.blocking = blocking;
	return config;
}

ncclComm_t join(int rank, int world, bool blocking)
{
	ncclConfig_t config = config_of(blocking);
	ncclUniqueId id;
	ncclComm_t comm;
	ncclResult_t result;

	share_id(&id);
	result = ncclCommInitRankConfig(&comm, world, id, rank, &config);
	WANT(result == (blocking ? ncclSuccess : ncclInProgress));
	WELL(comm, result);
	return comm;
}

void leave(ncclComm_t comm)
{
	WELL(comm, ncclCommFinalize(comm));
	WANT(ncclCommDestroy(comm) == ncclSuccess);
}

void *device_alloc(size_t bytes)
{
	CUdeviceptr data = 0;

	WANT(!driver.alloc(&data, bytes ? bytes : 1));
	return (void *)(uintptr_t)data;
}

void device_free(void *data)
{
	WANT(!driver.free((CUdeviceptr)(uintptr_t)data));
}

char *seen(void *data, size_t bytes)
{
	char *there = driver.reach((CUdeviceptr)(uintptr_t)data, bytes, true);

	WANT(there);
	return there;
}

cudaStream_t stream_new(void)
{
	CUstream stream;

	WANT(!driver.stream_new(&stream, CU_STREAM_NON_BLOCKING, 0));
	return stream;
}

void stream_finish(cudaStream_t stream)
{
	WANT(!driver.finish(stream));
}

bool stream_is_done(cudaStream_t stream)
{
	CUevent event;
	struct timespec pause = {.tv_nsec = 200000000};

	WANT(!driver.event_new(&event, CU_EVENT_DISABLE_TIMING));
	WANT(!driver.event_record(event, stream));
	nanosleep(&pause, NULL);
	return driver.event_query(event) == CUDA_SUCCESS;
}

static void be_rank(int rank, int world, const char *const *environment, int output,
		    void (*body)(int rank, int world))
{
	char number[16];

	own_rank = rank;
	dup2(output, STDERR_FILENO);
	snprintf(number, sizeof number, "%d", rank);
	setenv("PMIX_RANK", number, 1);
	setenv("DOUBLE_NCCL_LEAKS", "1", 1);
	setenv("DOUBLE_CUDA_PROTECT", "1", 1);
	for (; environment && *environment; environment++)
		putenv((char *)(uintptr_t)*environment);
	open_driver();
	body(rank, world);
	exit(EXIT_SUCCESS);
}

static void wait_for(const pid_t *process, int world, bool well)
{
	struct timespec pause = {.tv_nsec = 5000000};
	time_t end = time(NULL) + LIMIT_SECONDS;
	int left = world, status;

	for (int i = 0; i < RANKS; i++)
		outcome.status[i] = -1;
	while (left) {
		for (int i = 0; i < world; i++) {
			if (outcome.status[i] != -1 || !waitpid(process[i], &status, WNOHANG))
				continue;
			outcome.status[i] =
				WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
			if (well && outcome.status[i] && end > time(NULL) + 3)
				end = time(NULL) + 3;
			left--;
		}
		for (int i = 0; time(NULL) > end && i < world; i++)
			if (outcome.status[i] == -1)
				kill(process[i], SIGKILL);
		nanosleep(&pause, NULL);
	}
}

void run_ranks(int world, const char *const *environment, bool well,
	       void (*body)(int rank, int world))
{
	pthread_barrierattr_t shared;
	pid_t process[RANKS];
	int output = memfd_create("output", 0);
	ssize_t length;

	ck_assert_int_le(world, RANKS);
	common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	ck_assert_ptr_ne(common, MAP_FAILED);
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&common->barrier, &shared, (unsigned)world);
	fflush(NULL);
	for (int rank = 0; rank < world; rank++) {
		process[rank] = fork();
		ck_assert_int_ge(process[rank], 0);
		if (process[rank] == 0)
			be_rank(rank, world, environment, output, body);
	}
	wait_for(process, world, well);
	length = pread(output, outcome.output, sizeof outcome.output - 1, 0);
	outcome.output[length > 0 ? length : 0] = 0;
	close(output);
	munmap(common, sizeof *common);
}

int count_status(int status)
{
	int count = 0;

	for (int i = 0; i < RANKS; i++)
		count += outcome.status[i] == status;
	return count;
}

void run_well(int world, void (*body)(int rank, int world))
{
	run_ranks(world, NULL, true, body);
	for (int rank = 0; rank < world; rank++)
		ck_assert_msg(outcome.status[rank] == 0, "rank %d of %d ended with %d:\n%s", rank,
			      world, outcome.status[rank], outcome.output);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the stand-in for NCCL share: processes that are the ranks. */
#ifndef TEST_DOUBLE_NCCL_H
#define TEST_DOUBLE_NCCL_H

#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>

#include "double_cuda.h"

enum { RANKS = 8, COUNT = 64, MISMATCH = 96, LEAK = 95, KILLED = 1000 + SIGKILL };

/* The outcome of a run: exit statuses or 1000 + signal number, and the output on stderr. */
static struct {
	int status[RANKS];
	char output[1 << 16];
} outcome;

/* Shared memory of the processes. */
static struct {
	pthread_barrier_t barrier;
	ncclUniqueId id;
} * common;
static int own_rank;

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Ends the process unless the condition holds. */
#define WANT(condition) want(condition, #condition, __FILE__, __LINE__)

static inline void want(bool condition, const char *text, const char *file, int line)
{
	if (condition)
		return;
	fprintf(stderr, "%s:%d: rank %d: not %s; NCCL: %s\n", file, line, own_rank, text,
		ncclGetLastError(NULL));
	_exit(1);
}

static inline void share_id(ncclUniqueId *id)
{
	pthread_barrier_wait(&common->barrier);
	if (own_rank == 0)
		WANT(ncclGetUniqueId(&common->id) == ncclSuccess);
	pthread_barrier_wait(&common->barrier);
	*id = common->id;
}

/* Waits until the communicator has no call in progress. */
static inline ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
{
	struct timespec pause = {.tv_nsec = 20000};

	while (result == ncclInProgress) {
		if (ncclCommGetAsyncError(comm, &result))
			return ncclInternalError;
		nanosleep(&pause, NULL);
	}
	return result;
}

#define WELL(comm, call) WANT(settle(comm, call) == ncclSuccess)

static inline ncclComm_t join(int rank, int world, bool blocking)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclUniqueId id;
	ncclComm_t comm;
	ncclResult_t result;

	config.blocking = blocking;
	share_id(&id);
	result = ncclCommInitRankConfig(&comm, world, id, rank, &config);
	WANT(result == (blocking ? ncclSuccess : ncclInProgress));
	WELL(comm, result);
	return comm;
}

static inline void leave(ncclComm_t comm)
{
	WELL(comm, ncclCommFinalize(comm));
	WANT(ncclCommDestroy(comm) == ncclSuccess);
}

static inline bool stream_is_done(CUstream stream)
{
	CUevent event = new_event();
	struct timespec pause = {.tv_nsec = 200000000};

	GOOD(cu.event_record(event, stream));
	nanosleep(&pause, NULL);
	return cu.event_query(event) == CUDA_SUCCESS;
}

static inline void be_rank(int rank, int world, int output, void (*body)(int rank, int world))
{
	char number[16];

	own_rank = rank;
	dup2(output, STDERR_FILENO);
	snprintf(number, sizeof number, "%d", rank);
	setenv("PMIX_RANK", number, 1);
	setenv("DOUBLE_NCCL_LEAKS", "1", 1);
	open_device();
	body(rank, world);
	exit(EXIT_SUCCESS);
}

static inline void wait_for(const pid_t *process, int world)
{
	int status;

	for (int i = 0; i < RANKS; i++)
		outcome.status[i] = -1;
	for (int i = 0; i < world; i++) {
		ck_assert_int_eq(waitpid(process[i], &status, 0), process[i]);
		outcome.status[i] =
			WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
	}
}

/* Runs `body` in `world` processes, and waits for them. */
static inline void run_ranks(int world, void (*body)(int rank, int world))
{
	pthread_barrierattr_t shared;
	pid_t process[RANKS];
	int output = memfd_create("output", 0);
	ssize_t length;

	ck_assert_int_le(world, RANKS);
	common = shared_memory(sizeof(*common));
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&common->barrier, &shared, (unsigned)world);
	fflush(NULL);
	for (int rank = 0; rank < world; rank++) {
		process[rank] = fork();
		ck_assert_int_ge(process[rank], 0);
		if (process[rank] == 0)
			be_rank(rank, world, output, body);
	}
	wait_for(process, world);
	length = pread(output, outcome.output, sizeof outcome.output - 1, 0);
	outcome.output[length > 0 ? length : 0] = 0;
	close(output);
	munmap(common, sizeof *common);
}

static inline int count_status(int status)
{
	int count = 0;

	for (int i = 0; i < RANKS; i++)
		count += outcome.status[i] == status;
	return count;
}

static inline void run_well(int world, void (*body)(int rank, int world))
{
	run_ranks(world, body);
	for (int rank = 0; rank < world; rank++)
		ck_assert_msg(outcome.status[rank] == 0, "rank %d of %d ended with %d:\n%s", rank,
			      world, outcome.status[rank], outcome.output);
}

/* What each rank uses. */
struct set {
	ncclComm_t comm;
	CUstream stream;
	float *send, *recv;
};

static inline struct set set_up(int rank, int world, bool blocking)
{
	size_t bytes = (size_t)world * COUNT * sizeof(float);
	struct set set = {.comm = join(rank, world, blocking), .stream = new_stream()};
	CUdeviceptr data[2];

	for (int i = 0; i < 2; i++)
		GOOD(plain_alloc(&data[i], bytes));
	set.send = (float *)data[0];
	set.recv = (float *)data[1];
	memset(reach(data[0], bytes, true), 0, bytes);
	return set;
}

static inline ncclResult_t gather(const struct set *set, size_t count)
{
	return settle(set->comm, ncclAllGather(set->send, set->recv, count, ncclFloat32, set->comm,
					       set->stream));
}

/* The other ranks of a mismatch: the communicator fails, and no operation ends before the abort. */
static inline void fail_and_abort(const struct set *set)
{
	struct timespec pause = {.tv_nsec = 1000000};
	ncclResult_t state = ncclSuccess;

	while (state == ncclSuccess) {
		WANT(!ncclCommGetAsyncError(set->comm, &state));
		nanosleep(&pause, NULL);
	}
	WANT(state == ncclRemoteError);
	WANT(gather(set, 1) == ncclRemoteError);
	WANT(!ncclCommAbort(set->comm));
	GOOD(cu.stream_finish(set->stream));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for NCCL sees what would go wrong with NCCL: ranks in different operations, calls on a
 * communicator that is busy, buffers freed too early, leaks; and a lost rank hangs the others until
 * they abort. Without it a fault of the library would pass all tests that run on the stand-in. That
 * its results are right is tested wherever tests/ranks runs with GPUs.
 */
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

static void want(bool condition, const char *text, const char *file, int line)
{
	if (condition)
		return;
	fprintf(stderr, "%s:%d: rank %d: not %s; NCCL: %s\n", file, line, own_rank, text,
		ncclGetLastError(NULL));
	_exit(1);
}

static void share_id(ncclUniqueId *id)
{
	pthread_barrier_wait(&common->barrier);
	if (own_rank == 0)
		WANT(ncclGetUniqueId(&common->id) == ncclSuccess);
	pthread_barrier_wait(&common->barrier);
	*id = common->id;
}

/* Waits until the communicator has no call in progress. */
static ncclResult_t settle(ncclComm_t comm, ncclResult_t result)
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

static ncclComm_t join(int rank, int world, bool blocking)
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

static void leave(ncclComm_t comm)
{
	WELL(comm, ncclCommFinalize(comm));
	WANT(ncclCommDestroy(comm) == ncclSuccess);
}

static bool stream_is_done(CUstream stream)
{
	CUevent event = new_event();
	struct timespec pause = {.tv_nsec = 200000000};

	GOOD(cu.event_record(event, stream));
	nanosleep(&pause, NULL);
	return cu.event_query(event) == CUDA_SUCCESS;
}

static void be_rank(int rank, int world, int output, void (*body)(int rank, int world))
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

static void wait_for(const pid_t *process, int world)
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
static void run_ranks(int world, void (*body)(int rank, int world))
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

static int count_status(int status)
{
	int count = 0;

	for (int i = 0; i < RANKS; i++)
		count += outcome.status[i] == status;
	return count;
}

static void run_well(int world, void (*body)(int rank, int world))
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

static struct set set_up(int rank, int world, bool blocking)
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

static ncclResult_t gather(const struct set *set, size_t count)
{
	return settle(set->comm, ncclAllGather(set->send, set->recv, count, ncclFloat32, set->comm,
					       set->stream));
}

/* The other ranks of a mismatch: the communicator fails, and no operation ends before the abort. */
static void fail_and_abort(const struct set *set)
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

/* ---- mismatches ------------------------------------------------------------------------------ */

static void other_size(int rank, int world)
{
	struct set set = set_up(rank, world, false);

	for (int i = 0; i < 6; i++)
		WANT(!gather(&set, 7));
	/* a late rank learns of it at once */
	gather(&set, rank == 2 ? COUNT - 1 : COUNT);
	fail_and_abort(&set);
}

static void other_kind(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	if (rank == 1)
		WANT(!ncclBroadcast(set.send, set.recv, COUNT, ncclFloat32, 1, set.comm,
				    set.stream));
	else
		WANT(!gather(&set, COUNT));
	fail_and_abort(&set);
}

static void other_root(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	WANT(!ncclBroadcast(set.send, set.recv, COUNT, ncclFloat32, rank == 1, set.comm,
			    set.stream));
	fail_and_abort(&set);
}

/* Rank 0 does not take part, and the other two detect the mismatch. */
static void two_of_three(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	if (rank)
		WANT(!gather(&set, (size_t)rank));
	fail_and_abort(&set);
}

static void other_message(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	if (rank == 0)
		WANT(!ncclSend(set.send, COUNT, ncclFloat32, 1, set.comm, set.stream));
	else
		WANT(!ncclRecv(set.recv, COUNT, ncclInt32, 0, set.comm, set.stream));
	fail_and_abort(&set);
}

/* Rank 1 has finalized the communicator. */
static void one_more(int rank, int world)
{
	struct set set = set_up(rank, world, false);

	WANT(!gather(&set, COUNT));
	if (rank)
		WANT(ncclCommFinalize(set.comm) == ncclInProgress);
	else
		WANT(!gather(&set, COUNT));
	while (settle(set.comm, ncclInProgress) == ncclSuccess)
		;
	WANT(!ncclCommAbort(set.comm));
	GOOD(cu.stream_finish(set.stream));
}

static void other_window(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclWindow_t window;
	void *data;

	WANT(!ncclMemAlloc(&data, 8192));
	settle(set.comm, ncclCommWindowRegister(set.comm, data, rank ? 4096 : 8192, &window, 0));
	WANT(!ncclCommAbort(set.comm));
	WANT(!ncclMemFree(data));
}

/* A gather into the same window, but at different offsets. */
static void other_place(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclWindow_t window;
	char *data;

	WANT(!ncclMemAlloc((void **)&data, 8192));
	WELL(set.comm,
	     ncclCommWindowRegister(set.comm, data, 8192, &window, NCCL_WIN_COLL_SYMMETRIC));
	settle(set.comm,
	       ncclAllGather(set.send, data + rank * 512, 4, ncclFloat32, set.comm, set.stream));
	while (settle(set.comm, ncclInProgress) == ncclSuccess)
		;
	WANT(!ncclCommAbort(set.comm));
	WANT(!ncclMemFree(data));
}

/* ---- use ------------------------------------------------------------------------------------- */

/* While an operation is in progress the communicator cannot be used. */
static void in_progress(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclResult_t state;

	WANT(ncclAllGather(set.send, set.recv, COUNT, ncclFloat32, set.comm, set.stream) ==
	     ncclInProgress);
	WANT(!ncclCommGetAsyncError(set.comm, &state) && state == ncclInProgress);
	WANT(gather(&set, COUNT) == ncclInvalidArgument);
	WANT(ncclCommDestroy(set.comm) == ncclInvalidArgument);
	WANT(settle(set.comm, ncclInProgress) == ncclSuccess);
	WANT(!gather(&set, COUNT));
	GOOD(cu.stream_finish(set.stream));
	leave(set.comm);
}

static void *symbol(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}

/* A gather that is captured runs on all ranks at each launch, in the order with others. */
static void captured(int rank, int world)
{
	__typeof__(&cuStreamBeginCapture) begin = symbol("cuStreamBeginCapture_v2");
	__typeof__(&cuStreamEndCapture) end = symbol("cuStreamEndCapture");
	__typeof__(&cuGraphInstantiate) instantiate = symbol("cuGraphInstantiateWithFlags");
	__typeof__(&cuGraphLaunch) launch_graph = symbol("cuGraphLaunch");
	__typeof__(&cuGraphExecDestroy) exec_delete = symbol("cuGraphExecDestroy");
	__typeof__(&cuGraphDestroy) graph_delete = symbol("cuGraphDestroy");
	struct set set = set_up(rank, world, true), busy = set_up(rank, world, false);
	CUgraphExec exec;
	CUgraph graph;

	GOOD(begin(set.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	WANT(ncclAllGather(set.send, set.recv, 4, ncclFloat32, busy.comm, set.stream) ==
	     ncclInvalidUsage);
	WANT(!gather(&set, COUNT));
	GOOD(twice((CUdeviceptr)set.send, COUNT, set.stream));
	GOOD(end(set.stream, &graph));
	GOOD(instantiate(&exec, graph, 0));
	GOOD(graph_delete(graph));
	*(float *)reach((CUdeviceptr)set.send, 4, true) = (float)rank + 1;
	for (int i = 0; i < 3; i++) {
		GOOD(launch_graph(exec, set.stream));
		WANT(!gather(&set, 1));
	}
	GOOD(cu.stream_finish(set.stream));
	for (int i = 0; i < world; i++)
		WANT(((float *)reach((CUdeviceptr)set.recv, (size_t)world * 4, false))[i] ==
		     8 * ((float)i + 1));
	if (rank == 0 && world == 3) {
		ncclCommDestroy(set.comm); /* the graph still has operations of it */
		return;
	}
	GOOD(exec_delete(exec));
	if (world == 3)
		WANT(!ncclCommAbort(set.comm));
	else
		leave(set.comm);
	WANT(!ncclCommAbort(busy.comm));
}

/* A window of memory that is mapped: only where it was registered, and as long as it is mapped. */
static void mapped(int rank, int world)
{
	__typeof__(&cuMemCreate) create = symbol("cuMemCreate");
	__typeof__(&cuMemAddressReserve) reserve = symbol("cuMemAddressReserve");
	__typeof__(&cuMemMap) map = symbol("cuMemMap");
	__typeof__(&cuMemUnmap) unmap = symbol("cuMemUnmap");
	__typeof__(&cuMemSetAccess) set_access = symbol("cuMemSetAccess");
	CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
					  .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	const size_t grain = 2 << 20;
	struct set set = set_up(rank, world, true);
	CUmemGenericAllocationHandle plain, handle;
	ncclWindow_t window;
	CUdeviceptr at;

	GOOD(create(&plain, grain, &properties, 0));
	properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	properties.allocFlags.gpuDirectRDMACapable = 1;
	GOOD(create(&handle, grain, &properties, 0));
	GOOD(reserve(&at, 3 * grain, 0, 0, 0));
	GOOD(map(at, grain, 0, plain, 0));
	GOOD(map(at + grain, grain, 0, handle, 0));
	GOOD(map(at + 2 * grain, grain, 0, handle, 0));
	GOOD(set_access(at, 3 * grain, &access, 1));
	WANT(ncclCommWindowRegister(set.comm, (void *)at, grain, &window, 0) ==
	     ncclUnhandledCudaError);
	WANT(ncclCommWindowRegister(set.comm, (void *)(at + grain), 2 * grain, &window, 0) ==
	     ncclUnhandledCudaError);
	WANT(!ncclCommWindowRegister(set.comm, (void *)(at + grain), grain, &window,
				     NCCL_WIN_COLL_SYMMETRIC));
	/* at the other address it is no window, so that another place is no mismatch */
	WANT(!ncclAllGather(set.send, (char *)at + 2 * grain + rank * 512, 4, ncclFloat32, set.comm,
			    set.stream));
	GOOD(cu.stream_finish(set.stream));
	GOOD(unmap(at + 2 * grain, grain));
	if (rank == 0)
		unmap(at + grain, grain);
	WANT(!ncclCommAbort(set.comm));
}

/* Frees memory, or deregisters a window, while an operation that waits for a rank uses it. */
static void give_up_early(int rank, bool window)
{
	struct set set = set_up(rank, 2, true);
	ncclWindow_t made;
	void *data;

	WANT(!ncclMemAlloc(&data, 4096));
	WANT(!ncclCommWindowRegister(set.comm, data, 4096, &made, 0));
	if (!window)
		WANT(!ncclCommWindowDeregister(set.comm, made));
	if (rank == 0) {
		WANT(!ncclAllGather(set.send, data, COUNT, ncclFloat32, set.comm, set.stream));
		if (window)
			ncclCommWindowDeregister(set.comm, made);
		else
			ncclMemFree(data);
	}
	WANT(!ncclCommAbort(set.comm));
	WANT(!ncclMemFree(data));
}

static void free_early(int rank, int world)
{
	(void)world;
	give_up_early(rank, false);
}

static void deregister_early(int rank, int world)
{
	(void)world;
	give_up_early(rank, true);
}

static void leak(int rank, int world)
{
	ncclComm_t comm = join(rank, world, true);
	void *data;

	if (rank)
		leave(comm);
	else
		WANT(!ncclMemAlloc(&data, 4096) && !ncclCommAbort(comm));
}

static const struct {
	void (*body)(int rank, int world);
	int world;
	const char *line;
} mismatches[] = {
	{other_size, 3, "rank 2 runs AllGather of 63 f32 as operation"},
	{other_kind, 2, "runs Broadcast of 64 f32 from rank 1 as operation 1"},
	{other_root, 2, "from rank 0 as operation 1"},
	{two_of_three, 3, "AllGather of 2 f32"},
	{other_message, 2,
	 "rank 1 runs Recv of 64 i32 from rank 0 as message 1 while rank 0 runs "
	 "Send of 64 f32"},
	{one_more, 2, "rank 0 runs AllGather of 64 f32 as operation 2 while rank 1 has finalized"},
	{other_window, 2, "WindowRegister of 4096 bytes as call 2"},
	{other_place, 2, "at byte 512 of window 1"},
	{free_early, 2, "which operations that are queued use"},
	{deregister_early, 2, "deregisters window 1, which operations"},
};

/* One rank ends with this line, and all others with status 0. */
START_TEST(test_mismatches)
{
	run_ranks(mismatches[_i].world, mismatches[_i].body);
	ck_assert_msg(count_status(MISMATCH) == 1, "%d ended with %d:\n%s", count_status(MISMATCH),
		      MISMATCH, outcome.output);
	ck_assert_msg(count_status(0) == mismatches[_i].world - 1, "%s", outcome.output);
	ck_assert_msg(strstr(outcome.output, mismatches[_i].line), "not '%s' but:\n%s",
		      mismatches[_i].line, outcome.output);
}
END_TEST

START_TEST(test_use)
{
	run_well(2, in_progress);
	run_ranks(2, leak);
	ck_assert_int_eq(outcome.status[0], LEAK);
	ck_assert_int_eq(outcome.status[1], 0);
	run_well(2, captured);
	run_ranks(3, captured);
	ck_assert_int_eq(count_status(MISMATCH), 1);
	ck_assert_msg(strstr(outcome.output, "while a graph has 1 launches of it"), "%s",
		      outcome.output);
	run_ranks(2, mapped);
	ck_assert_int_eq(outcome.status[0], 1000 + SIGABRT);
	ck_assert_int_eq(outcome.status[1], 0);
	ck_assert_msg(strstr(outcome.output, "is registered with NCCL"), "%s", outcome.output);
}
END_TEST

/* ---- the lost -------------------------------------------------------------------------------- */

/* The last rank is killed: the others hang without an error until they abort. */
static void lost(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclResult_t state;

	WANT(!gather(&set, COUNT));
	GOOD(cu.stream_finish(set.stream));
	if (rank == world - 1)
		kill(getpid(), SIGKILL);
	WANT(!gather(&set, COUNT));
	WANT(!ncclSend(set.send, 1, ncclFloat32, world - 1, set.comm, set.stream) ||
	     settle(set.comm, ncclInProgress) == ncclSuccess);
	WANT(!stream_is_done(set.stream));
	WANT(!ncclCommGetAsyncError(set.comm, &state) && state == ncclSuccess);
	WANT(!ncclCommAbort(set.comm));
	GOOD(cu.stream_finish(set.stream));
}

START_TEST(test_lost)
{
	run_ranks(3, lost);
	ck_assert_msg(count_status(0) == 2, "%s", outcome.output);
	ck_assert_int_eq(count_status(KILLED), 1);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("stand-in for NCCL");

	tcase_add_loop_test(tests, test_mismatches, 0, COUNT_OF(mismatches));
	tcase_add_test(tests, test_use);
	tcase_add_test(tests, test_lost);
	return run_cases(tests, NULL);
}

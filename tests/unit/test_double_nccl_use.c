/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the stand-in for NCCL does with graphs and with memory that is mapped, that it sees two
 * threads on one communicator, and that it counts.
 */
#include "double_nccl.h"

unsigned long long double_nccl_count(const char *name); /* of the stand-in */

static bool says(const char *words)
{
	return strstr(outcome.output, words) != NULL;
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

/* ---- threads --------------------------------------------------------------------------------- */

static void *calls_finalize(void *comm)
{
	ncclCommFinalize(comm);
	return NULL;
}

/* A group is open, so that its thread is in a call. */
static void two_threads(int rank, int world)
{
	struct set set = set_up(rank, world, true);
	pthread_t thread;

	WANT(!ncclGroupStart());
	WANT(!gather(&set, 4));
	if (rank == 0) {
		pthread_create(&thread, NULL, calls_finalize, set.comm);
		pthread_join(thread, NULL);
	}
	WANT(!ncclCommAbort(set.comm));
}

/* ---- registration and counts ----------------------------------------------------------------- */

static unsigned long long (*count)(const char *);

static void counted(int rank, int world)
{
	struct set set;
	ncclWindow_t window, another;
	void *data, *handle;

	count = symbol("double_cuda_count");
	setenv("DOUBLE_SEED", "1", 1);
	set = set_up(rank, world, true);
	WANT(!ncclMemAlloc(&data, 8192));
	WANT(!ncclCommWindowRegister(set.comm, data, 8192, &window, 0));
	WANT(ncclCommWindowRegister(set.comm, (char *)data + 4096, 4096, &another, 0) ==
	     ncclInvalidUsage);
	WANT(!ncclCommRegister(set.comm, set.send, 256, &handle));
	WANT(ncclCommRegister(set.comm, set.send, 128, &handle) == ncclInvalidUsage);
	WANT(double_nccl_count("registered_bytes") == 8192 + 256);
	WANT(!ncclCommDeregister(set.comm, handle));
	WANT(!ncclCommWindowDeregister(set.comm, window));
	WANT(!ncclMemFree(data));
	WANT(double_nccl_count("registered_bytes") == 0);
	WANT(double_nccl_count("registered_bytes_most") == 8192 + 256);

	WANT(!ncclGroupStart());
	if (rank == 0)
		for (int peer = 1; peer < world; peer++)
			WANT(!ncclSend(set.send, COUNT, ncclFloat32, peer, set.comm, set.stream));
	else
		WANT(!ncclRecv(set.recv, COUNT, ncclFloat32, 0, set.comm, set.stream));
	WANT(!ncclGroupEnd());
	WANT(!gather(&set, 4));
	WANT(count("round_trips") == 0);
	GOOD(cu.stream_finish(set.stream));
	WANT(count("round_trips") == 1 && count("cuStreamSynchronize") == 1);
	WANT(double_nccl_count("sent_messages") == (rank ? 0 : 2));
	WANT(double_nccl_count("sent_peers") == (rank ? 0 : 2));
	WANT(double_nccl_count("sent_bytes") == (rank ? 0 : 2 * COUNT * sizeof(float)));
	WANT(double_nccl_count("received_bytes") == (rank ? COUNT * sizeof(float) : 0));
	WANT(double_nccl_count("ncclAllGather") == 1);
	WANT(double_nccl_count("collectives") == 1 && double_nccl_count("collective_bytes") == 16);
	leave(set.comm);
}

START_TEST(test_graphs)
{
	run_well(2, captured);
	run_ranks(3, captured);
	ck_assert_int_eq(count_status(MISMATCH), 1);
	ck_assert_msg(says("while a graph has 1 launches of it"), "%s", outcome.output);
}
END_TEST

START_TEST(test_mapped)
{
	run_ranks(2, mapped);
	ck_assert_int_eq(outcome.status[0], 1000 + SIGABRT);
	ck_assert_int_eq(outcome.status[1], 0);
	ck_assert_msg(says("is registered with NCCL"), "%s", outcome.output);
}
END_TEST

START_TEST(test_threads)
{
	run_ranks(1, two_threads);
	ck_assert_int_eq(outcome.status[0], MISMATCH);
	ck_assert_msg(says("while another thread is in a call"), "%s", outcome.output);
}
END_TEST

START_TEST(test_counts)
{
	run_well(3, counted);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("stand-in for NCCL");

	tcase_set_timeout(tests, 60);
	tcase_add_test(tests, test_graphs);
	tcase_add_test(tests, test_mapped);
	tcase_add_test(tests, test_threads);
	tcase_add_test(tests, test_counts);
	return run_cases(tests, NULL);
}

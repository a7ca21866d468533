/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for NCCL sees what would go wrong with NCCL: ranks in different operations, calls on a
 * communicator that is busy, buffers freed too early, leaks; and a lost rank hangs the others until
 * they abort. Without it a fault of the library would pass all tests that run on the stand-in. That
 * its results are right is tested wherever tests/ranks runs with GPUs.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double_nccl.h"

enum { COUNT = 64, MISMATCH = 96, LEAK = 95, KILLED = 1000 + SIGKILL };

/* What each rank uses. */
struct set {
	ncclComm_t comm;
	cudaStream_t stream;
	float *send, *recv;
};

static struct set set_up(int rank, int world, bool blocking)
{
	size_t bytes = (size_t)world * COUNT * sizeof(float);
	struct set set = {join(rank, world, blocking), stream_new(), device_alloc(bytes),
			  device_alloc(bytes)};

	memset(seen(set.send, bytes), 0, bytes);
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
	stream_finish(set->stream);
}

/* Checks that one rank ends with this line, and all others with status 0. */
static void want_mismatch(int world, const char *line)
{
	ck_assert_msg(count_status(MISMATCH) == 1, "%d ended with %d:\n%s", count_status(MISMATCH),
		      MISMATCH, outcome.output);
	for (int rank = 0; rank < world; rank++)
		ck_assert_msg(outcome.status[rank] == 0 || outcome.status[rank] == MISMATCH,
			      "rank %d ended with %d:\n%s", rank, outcome.status[rank],
			      outcome.output);
	ck_assert_msg(strstr(outcome.output, line), "not '%s' but:\n%s", line, outcome.output);
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
	stream_finish(set.stream);
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
	WELL(set.comm,
	     ncclAllGather(set.send, data + rank * 512, 4, ncclFloat32, set.comm, set.stream));
	while (settle(set.comm, ncclInProgress) == ncclSuccess)
		;
	WANT(!ncclCommAbort(set.comm));
	WANT(!ncclMemFree(data));
}

START_TEST(test_mismatches)
{
	run_ranks(3, NULL, false, other_size);
	want_mismatch(3, " 64 f32 as operation 7");
	ck_assert_ptr_nonnull(
		strstr(outcome.output, "rank 2 runs AllGather of 63 f32 as operation"));
	run_ranks(2, NULL, false, other_kind);
	want_mismatch(2, "runs Broadcast of 64 f32 from rank 1 as operation 1");
	run_ranks(2, NULL, false, other_root);
	want_mismatch(2, "from rank 0 as operation 1");
	run_ranks(3, NULL, false, two_of_three);
	want_mismatch(3, "AllGather of 2 f32");
	run_ranks(2, NULL, false, other_message);
	want_mismatch(2, "rank 1 runs Recv of 64 i32 from rank 0 as message 1 while rank 0 runs "
			 "Send of 64 f32");
	run_ranks(2, NULL, false, one_more);
	want_mismatch(2, "rank 0 runs AllGather of 64 f32 as operation 2 while rank 1 has "
			 "finalized");
	run_ranks(2, NULL, false, other_window);
	want_mismatch(2, "WindowRegister of 4096 bytes as call 2");
	run_ranks(2, NULL, false, other_place);
	want_mismatch(2, "at byte 512 of window 1");
}
END_TEST

/* ---- use ------------------------------------------------------------------------------------- */

/* Sums are made in another order than that of the ranks. */
static void order(int rank, int world)
{
	ncclComm_t comm = join(rank, world, true);
	cudaStream_t stream = stream_new();
	float *send = device_alloc(12), *recv = device_alloc(4);
	const float value[] = {1e8f, -1e8f, 1};

	for (int i = 0; i < 3; i++)
		((float *)seen(send, 12))[i] = value[rank];
	WELL(comm, ncclReduceScatter(send, recv, 1, ncclFloat32, ncclSum, comm, stream));
	stream_finish(stream);
	/* summed in rank order the result is 1 everywhere */
	WANT(*(float *)seen(recv, 4) == (rank == 2 ? 1.0f : 0.0f));
	leave(comm);
}

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
	stream_finish(set.stream);
	leave(set.comm);
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

START_TEST(test_use)
{
	run_well(3, order);
	run_well(2, in_progress);
	run_ranks(2, NULL, false, free_early);
	want_mismatch(2, "which operations that are queued use");
	run_ranks(2, NULL, false, deregister_early);
	want_mismatch(2, "deregisters window 1, which operations");
	run_ranks(2, NULL, false, leak);
	ck_assert_int_eq(outcome.status[0], LEAK);
	ck_assert_int_eq(outcome.status[1], 0);
}
END_TEST

/* ---- the lost -------------------------------------------------------------------------------- */

/* The last rank is killed: the others hang without an error until they abort. */
static void lost(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclResult_t state;

	WANT(!gather(&set, COUNT));
	stream_finish(set.stream);
	if (rank == world - 1)
		kill(getpid(), SIGKILL);
	WANT(!gather(&set, COUNT));
	WANT(!ncclSend(set.send, 1, ncclFloat32, world - 1, set.comm, set.stream) ||
	     settle(set.comm, ncclInProgress) == ncclSuccess);
	WANT(!stream_is_done(set.stream));
	WANT(!ncclCommGetAsyncError(set.comm, &state) && state == ncclSuccess);
	WANT(!ncclCommAbort(set.comm));
	stream_finish(set.stream);
	device_free(set.send);
	device_free(set.recv);
}

/* A receiver hangs until it aborts if its sender is killed. */
static void lost_in_messages(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	if (rank == world - 1)
		kill(getpid(), SIGKILL);
	WANT(!ncclRecv(set.recv, 1, ncclFloat32, world - 1, set.comm, set.stream));
	WANT(!stream_is_done(set.stream));
	WANT(!ncclCommAbort(set.comm));
	stream_finish(set.stream);
}

/* One rank never joins a split: an abort of the parent ends the split. */
static void absent_from_split(int rank, int world)
{
	ncclComm_t comm = join(rank, world, false), child = NULL;
	struct timespec pause = {.tv_nsec = 100000000};

	if (rank < world - 1)
		WANT(ncclCommSplit(comm, 0, rank, &child, NULL) == ncclInProgress);
	nanosleep(&pause, NULL);
	WANT(!ncclCommAbort(comm));
	WANT(!child);
}

START_TEST(test_lost)
{
	run_ranks(3, NULL, false, lost);
	ck_assert_msg(count_status(0) == 2, "%s", outcome.output);
	ck_assert_int_eq(count_status(KILLED), 1);
	run_ranks(2, NULL, false, lost_in_messages);
	ck_assert_msg(count_status(0) == 1, "%s", outcome.output);
	run_well(3, absent_from_split);
}
END_TEST

/* ---- what is asked for ----------------------------------------------------------------------- */

static void second_fails(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	WANT(!gather(&set, COUNT));
	stream_finish(set.stream);
	WANT(gather(&set, COUNT) == (rank == 1 ? ncclInternalError : ncclSuccess));
	if (rank == 0)
		WANT(!stream_is_done(set.stream));
	WANT(!ncclCommAbort(set.comm));
	stream_finish(set.stream);
}

static void fails_later(int rank, int world)
{
	struct set set = set_up(rank, world, false);
	ncclResult_t state;

	for (int i = 0; i < 4; i++)
		WANT(!gather(&set, COUNT));
	/* it may have run before the communicator reports it as enqueued */
	gather(&set, COUNT);
	stream_finish(set.stream);
	WANT(!ncclCommGetAsyncError(set.comm, &state));
	WANT(state == (rank ? ncclRemoteError : ncclSuccess));
	WANT(!ncclCommAbort(set.comm));
}

static void never_arrives(int rank, int world)
{
	struct set set = set_up(rank, world, true);

	for (int i = 0; i < 3; i++)
		WANT(!gather(&set, COUNT));
	WANT(!stream_is_done(set.stream));
	WANT(!ncclCommAbort(set.comm));
	stream_finish(set.stream);
}

START_TEST(test_asked_for)
{
	const char *const second[] = {"DOUBLE_NCCL_FAIL=ncclAllGather:2:3:1", NULL};
	const char *const later[] = {"DOUBLE_NCCL_FAIL=async:5:6:1", NULL};
	const char *const killed[] = {"DOUBLE_NCCL_FAIL=kill:ncclAllGather:2:1", NULL};
	const char *const hangs[] = {"DOUBLE_NCCL_FAIL=hang:ncclAllGather:2:1", NULL};

	run_ranks(2, second, true, second_fails);
	ck_assert_msg(count_status(0) == 2, "%s", outcome.output);
	run_ranks(2, later, true, fails_later);
	ck_assert_msg(count_status(0) == 2, "%s", outcome.output);
	run_ranks(2, hangs, true, never_arrives);
	ck_assert_msg(count_status(0) == 2, "%s", outcome.output);
	run_ranks(3, killed, false, never_arrives);
	ck_assert_msg(count_status(0) == 2 && outcome.status[1] == KILLED, "%s", outcome.output);
}
END_TEST

int main(void)
{
	TCase *tests = tcase_create("stand-in for NCCL");

	tcase_set_timeout(tests, 300);
	tcase_add_test(tests, test_mismatches);
	tcase_add_test(tests, test_use);
	tcase_add_test(tests, test_lost);
	tcase_add_test(tests, test_asked_for);
	return run_cases(tests, NULL);
}

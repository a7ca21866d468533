/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in for NCCL sees what would go wrong with NCCL: ranks in different operations, calls on
 * a communicator that is busy, buffers freed too early, leaks; and a lost rank hangs the others
 * until they abort. Without it a fault of the library would pass all tests that run on the
 * stand-in. That its results are right is tested wherever tests/ranks runs with GPUs.
 */
#include "double_nccl.h"

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

/* Collectives of two communicators, in another order on rank 1. */
static void other_order(int rank, int world)
{
	struct set one = set_up(rank, world, true), other = set_up(rank, world, true);

	WANT(!gather(&one, 4) && !gather(&other, 4));
	WANT(!gather(rank ? &other : &one, 4));
	WANT(!gather(rank ? &one : &other, 4));
	while (!settle(one.comm, ncclInProgress) && !settle(other.comm, ncclInProgress))
		;
	WANT(!ncclCommAbort(one.comm));
	WANT(!ncclCommAbort(other.comm));
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

/* Both ranks may see it, each in the operation that it runs first. */
START_TEST(test_order)
{
	run_ranks(2, other_order);
	ck_assert_msg(count_status(MISMATCH) > 0, "%s", outcome.output);
	ck_assert_int_eq(count_status(MISMATCH) + count_status(0), 2);
	ck_assert_msg(strstr(outcome.output, "collectives of another communicator, and rank"), "%s",
		      outcome.output);
}
END_TEST

START_TEST(test_use)
{
	run_well(2, in_progress);
	run_ranks(2, leak);
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
	tcase_add_test(tests, test_order);
	tcase_add_test(tests, test_use);
	tcase_add_test(tests, test_lost);
	return run_cases(tests, NULL);
}

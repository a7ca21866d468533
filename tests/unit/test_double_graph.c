/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for CUDA captures streams, repeats what it captured, and refuses what would wait. */
#include <pthread.h>

#include "double_cuda.h"

static __typeof__(&cuStreamBeginCapture) begin;
static __typeof__(&cuStreamEndCapture) end;
static __typeof__(&cuStreamIsCapturing) is_capturing;
static __typeof__(&cuStreamGetCaptureInfo) capture_info;
static __typeof__(&cuThreadExchangeStreamCaptureMode) exchange_mode;
static __typeof__(&cuGraphInstantiate) instantiate;
static __typeof__(&cuGraphLaunch) launch_graph;
static __typeof__(&cuGraphExecDestroy) exec_delete;
static __typeof__(&cuGraphDestroy) graph_delete;
static __typeof__(&cuGraphGetNodes) nodes_of;
static __typeof__(&cuLaunchHostFunc) call_host;

static void open_graphs(void)
{
	static const struct {
		void *function;
		const char *name;
	} more[] = {
		{&begin, "cuStreamBeginCapture_v2"},
		{&end, "cuStreamEndCapture"},
		{&is_capturing, "cuStreamIsCapturing"},
		{&capture_info, "cuStreamGetCaptureInfo_v3"},
		{&exchange_mode, "cuThreadExchangeStreamCaptureMode"},
		{&instantiate, "cuGraphInstantiateWithFlags"},
		{&launch_graph, "cuGraphLaunch"},
		{&exec_delete, "cuGraphExecDestroy"},
		{&graph_delete, "cuGraphDestroy"},
		{&nodes_of, "cuGraphGetNodes"},
		{&call_host, "cuLaunchHostFunc"},
	};

	open_device();
	for (size_t i = 0; i < COUNT_OF(more); i++) {
		void *symbol = dlsym(RTLD_DEFAULT, more[i].name);

		ck_assert_msg(symbol != NULL, "there is no %s", more[i].name);
		memcpy(more[i].function, &symbol, sizeof(symbol));
	}
}

static void wait_on(CUstream later, CUstream earlier)
{
	CUevent event = new_event();

	GOOD(cu.event_record(event, earlier));
	GOOD(cu.stream_wait(later, event, 0));
	GOOD(cu.event_delete(event));
}

static CUgraphExec end_well(CUstream stream, size_t nodes)
{
	CUgraphExec exec;
	CUgraph graph;
	size_t is;

	GOOD(end(stream, &graph));
	GOOD(nodes_of(graph, NULL, &is));
	ck_assert_uint_eq(is, nodes);
	GOOD(instantiate(&exec, graph, 0));
	GOOD(graph_delete(graph));
	return exec;
}

START_TEST(no_kernel_is_loaded_in_a_capture)
{
	struct zero_device_sum sum = {.out = new_pinned(4), .n = 1, .from = ZERO_F32};
	void *pointers[] = {&sum};
	CUstream stream = new_stream();
	CUfunction function;
	CUgraph graph = NULL;

	sum.own = sum.out;
	sum.count = 1;
	GOOD(cu.function_get(&function, module, "zero_device_sum"));
	GOOD(begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(cu.launch(function, 1, 1, 1, ZERO_DEVICE_THREADS, 1, 1, 0, stream, pointers, NULL),
	      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	GIVES(end(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GOOD(cu.launch(function, 1, 1, 1, ZERO_DEVICE_THREADS, 1, 1, 0, stream, pointers, NULL));
	GOOD(cu.stream_finish(stream));
}
END_TEST

/* x = 2x on one stream, y = 2y beside it on another, and then x += y. */
START_TEST(a_graph_repeats_what_was_captured)
{
	CUstream first = new_stream(), second = new_stream();
	float *x = new_pinned(4), *y = new_pinned(4);
	struct zero_device_sum sum = {
		.out = x, .own = x, .others = y, .count = 1, .n = 2, .from = ZERO_F32};
	CUstreamCaptureStatus status;
	CUgraphExec exec;
	cuuint64_t id = 0;

	*x = *y = 1;
	GOOD(begin(first, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GOOD(twice((CUdeviceptr)x, 1, first));
	wait_on(second, first);
	GOOD(twice((CUdeviceptr)y, 1, second));
	GOOD(is_capturing(second, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	GOOD(capture_info(first, &status, &id, NULL, NULL, NULL, NULL));
	ck_assert(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id);
	wait_on(first, second);
	GOOD(launch("zero_device_sum", 3, &sum, first));
	exec = end_well(first, 3);
	GOOD(is_capturing(second, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_NONE);
	GOOD(cu.stream_finish(first));
	ck_assert(*x == 1 && *y == 1);
	memset(&sum, 0, sizeof(sum));
	for (int i = 0; i < 3; i++)
		GOOD(launch_graph(exec, i == 1 ? second : first));
	GOOD(exec_delete(exec));
	GOOD(cu.stream_finish(first));
	GOOD(cu.stream_finish(second));
	ck_assert(*y == 8);
	ck_assert(*x == ((1 * 2 + 2) * 2 + 4) * 2 + 8);
}
END_TEST

/* ---- what is refused ------------------------------------------------------------------------- */

static CUstream captured, plain;
static CUevent before, within;
static CUdeviceptr data;

static CUresult finishes_stream(void)
{
	return cu.stream_finish(captured);
}

static CUresult finishes_another_stream(void)
{
	return cu.stream_finish(plain);
}

static CUresult queries_captured_event(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	GOOD(exchange_mode(&mode));
	return cu.event_query(within);
}

static CUresult queries_another_event(void)
{
	return cu.event_query(before);
}

static CUresult finishes_event(void)
{
	return event_finish(within);
}

static CUresult waits_for_uncaptured(void)
{
	return cu.stream_wait(captured, before, 0);
}

static CUresult allocates(void)
{
	CUdeviceptr more;

	return cu.alloc(&more, 4, pool, captured);
}

static CUresult allocates_plainly(void)
{
	CUdeviceptr more;

	return plain_alloc(&more, 4);
}

static CUresult frees(void)
{
	return cu.free(data, captured);
}

static CUresult copies_pageable(void)
{
	static float x;

	return cu.copy(data, (CUdeviceptr)&x, 4, captured);
}

static CUresult merges(void)
{
	CUresult result;
	CUgraph graph;

	GOOD(begin(plain, CU_STREAM_CAPTURE_MODE_GLOBAL));
	result = cu.stream_wait(plain, within, 0);
	GIVES(end(plain, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	return result;
}

static CUresult ends_another(void)
{
	CUgraph graph;

	GOOD(cu.stream_wait(plain, within, 0));
	return end(plain, &graph);
}

static CUresult uses_legacy(void)
{
	CUstream ordinary;

	GOOD(cu.stream_new(&ordinary, CU_STREAM_DEFAULT, 0));
	GOOD(cu.stream_wait(ordinary, within, 0));
	return cu.set(data, 0, 4, NULL);
}

static CUresult deletes_stream(void)
{
	CUresult result;

	GOOD(cu.stream_wait(plain, within, 0));
	result = cu.stream_delete(plain);
	return result ? result : CUDA_ERROR_UNKNOWN;
}

/* Each spoils the capture. */
static const struct {
	CUresult (*call)(void);
	CUresult error;
} refused[] = {
	{finishes_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{finishes_another_stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{queries_captured_event, CUDA_ERROR_CAPTURED_EVENT},
	{queries_another_event, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{finishes_event, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{waits_for_uncaptured, CUDA_ERROR_STREAM_CAPTURE_ISOLATION},
	{allocates, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{allocates_plainly, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{frees, CUDA_ERROR_INVALID_VALUE},
	{copies_pageable, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED},
	{merges, CUDA_ERROR_STREAM_CAPTURE_MERGE},
	{ends_another, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED},
	{uses_legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT},
	{deletes_stream, CUDA_ERROR_UNKNOWN},
};

static void begin_all(CUstreamCaptureMode mode)
{
	captured = new_stream();
	plain = new_stream();
	before = new_event();
	within = new_event();
	data = new_block(64, captured);
	GOOD(cu.event_record(before, captured));
	GOOD(event_finish(before));
	GOOD(begin(captured, mode));
	GOOD(cu.event_record(within, captured));
	GOOD(cu.set(data, 0, 64, captured));
}

START_TEST(what_waits_spoils_a_capture)
{
	CUstreamCaptureStatus status;
	CUgraph graph = (CUgraph)1;

	begin_all(CU_STREAM_CAPTURE_MODE_GLOBAL);
	GIVES(refused[_i].call(), refused[_i].error);
	GOOD(is_capturing(captured, &status));
	ck_assert_int_eq(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	GIVES(cu.set(data, 0, 64, captured), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	GIVES(end(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	ck_assert_ptr_null(graph);
	GIVES(cu.event_query(within), CUDA_ERROR_CAPTURED_EVENT);
	GIVES(end(captured, &graph), CUDA_ERROR_ILLEGAL_STATE);
	GOOD(cu.set(data, 0, 64, captured));
	GOOD(cu.stream_finish(captured));
}
END_TEST

START_TEST(a_capture_begins_once_and_ends_joined)
{
	CUstream side = new_stream();
	CUgraph graph;

	GIVES(begin(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	begin_all(CU_STREAM_CAPTURE_MODE_GLOBAL);
	GIVES(begin(captured, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_ERROR_ILLEGAL_STATE);
	wait_on(side, captured); /* it does nothing, so it need not be joined */
	wait_on(plain, captured);
	GOOD(cu.set(data, 0, 4, plain));
	wait_on(captured, plain);
	GOOD(cu.set(data, 0, 4, plain));
	GIVES(end(captured, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	GOOD(cu.set(data, 0, 4, plain));
	GOOD(cu.stream_finish(plain));
}
END_TEST

/* Another thread queries an event, and tries to end the capture. */
static void *from_aside(void *results)
{
	CUresult *result = results;
	CUgraph graph;

	GOOD(cu.context_push(context));
	result[0] = cu.event_query(before);
	result[1] = end(captured, &graph);
	return NULL;
}

static const struct {
	CUstreamCaptureMode mode;
	CUresult query, end, own;
} modes[] = {
	{CU_STREAM_CAPTURE_MODE_GLOBAL, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED},
	{CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CUDA_SUCCESS, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
	 CUDA_SUCCESS},
	{CU_STREAM_CAPTURE_MODE_RELAXED, CUDA_SUCCESS, CUDA_SUCCESS, CUDA_ERROR_ILLEGAL_STATE},
};

START_TEST(modes_are_for_threads)
{
	CUresult result[2];
	pthread_t thread;
	CUgraph graph;

	begin_all(modes[_i].mode);
	ck_assert_int_eq(pthread_create(&thread, NULL, from_aside, result), 0);
	pthread_join(thread, NULL);
	ck_assert_int_eq(result[0], modes[_i].query);
	ck_assert_int_eq(result[1], modes[_i].end);
	GIVES(end(captured, &graph), modes[_i].own);
}
END_TEST

/* ---- what ends the process ------------------------------------------------------------------- */

static void races_in_a_graph(void)
{
	CUgraphExec exec;

	open_graphs();
	begin_all(CU_STREAM_CAPTURE_MODE_GLOBAL);
	GOOD(cu.stream_wait(plain, within, 0)); /* it was recorded before the work on the data */
	GOOD(cu.set(data, 0, 4, plain));
	wait_on(captured, plain);
	exec = end_well(captured, 2);
	GOOD(launch_graph(exec, captured));
	cu.stream_finish(captured);
}

static void frees_what_a_graph_uses(void)
{
	CUgraphExec exec;

	open_graphs();
	begin_all(CU_STREAM_CAPTURE_MODE_GLOBAL);
	exec = end_well(captured, 1);
	GOOD(launch_graph(exec, captured));
	GOOD(cu.free(data, captured));
	launch_graph(exec, captured);
}

START_TEST(misuse_ends_the_process)
{
	dies(races_in_a_graph, "nothing puts it after");
	dies(frees_what_a_graph_uses, "is in memory that was freed before");
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("device"), *own = tcase_create("own");

	tcase_set_timeout(own, 60);
	tcase_add_checked_fixture(test, open_graphs, NULL);
	tcase_add_test(test, no_kernel_is_loaded_in_a_capture);
	tcase_add_test(test, a_graph_repeats_what_was_captured);
	tcase_add_loop_test(test, what_waits_spoils_a_capture, 0, (int)COUNT_OF(refused));
	tcase_add_test(test, a_capture_begins_once_and_ends_joined);
	tcase_add_loop_test(test, modes_are_for_threads, 0, (int)COUNT_OF(modes));
	tcase_add_test(own, misuse_ends_the_process);
	return run_cases(test, own, NULL);
}

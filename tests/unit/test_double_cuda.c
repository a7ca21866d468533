/* SPDX-License-Identifier: Apache-2.0 */
/* The stand-in for CUDA: results and errors of its calls, memory, injected failures, and misuse that
   ends the process. */
#include "double_cuda.h"

/* ---- devices and contexts -------------------------------------------------------------------- */

START_TEST(no_device_is_an_error)
{
	setenv("CUDA_VISIBLE_DEVICES", "", 1);
	open_double();
	GIVES(cu.init(0), CUDA_ERROR_NO_DEVICE);
	GIVES(cu.context_retain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
}
END_TEST

/* By CUDA's documentation, calls that work on a device need a current context. */
static void needs_context(CUresult error)
{
	CUstream stream = NULL;
	CUevent event = NULL;
	CUdeviceptr x = 0;
	CUfunction function;
	CUdevice device;
	size_t a, b;
	int least;
	void *data;

	GIVES(cu.context_device(&device), error);
	GIVES(cu.priorities(&least, NULL), error);
	GIVES(cu.memory_info(&a, &b), error);
	GIVES(cu.alloc(&x, 4, pool, stream), error);
	GIVES(cu.free(x, stream), error);
	GIVES(cu.host_alloc(&data, 4, 0), error);
	GIVES(cu.host_free(&data), error);
	GIVES(cu.copy(x, x, 4, stream), error);
	GIVES(cu.set(x, 0, 4, stream), error);
	GIVES(cu.stream_new(&stream, 0, 0), error);
	GIVES(cu.stream_delete(stream), error);
	GIVES(cu.stream_finish(stream), error);
	GIVES(cu.stream_wait(stream, event, 0), error);
	GIVES(cu.event_new(&event, 0), error);
	GIVES(cu.event_delete(event), error);
	GIVES(cu.event_record(event, stream), error);
	GIVES(cu.event_finish(event), error);
	GIVES(cu.module_load(&module, "an image"), error);
	GIVES(cu.function_get(&function, module, "zero_device_sum"), error);
	GIVES(cu.launch(NULL, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL), error);
	GIVES(cu.module_unload(module), error);
	GIVES(host_function(NULL, NULL, NULL), error);
	GIVES(plain_alloc(&x, 4), error);
	GIVES(plain_free(x), error);
}

START_TEST(calls_need_a_context)
{
	CUcontext is;

	open_double();
	needs_context(CUDA_ERROR_NOT_INITIALIZED);
	GOOD(cu.init(0));
	needs_context(CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cu.context_pop(&is), CUDA_ERROR_INVALID_CONTEXT);
	GOOD(cu.context_retain(&context, 0));
	GOOD(cu.context_retain(&is, 0));
	ck_assert_ptr_eq(is, context);
	needs_context(CUDA_ERROR_INVALID_CONTEXT);
	GOOD(cu.context_push(context));
	GOOD(cu.context_push(context));
	ck_assert_uint_eq(depth(), 2);
	GOOD(cu.context_pop(&is));
	ck_assert_ptr_eq(is, context);
	GOOD(cu.context_current(&is));
	ck_assert_ptr_eq(is, context);
	GOOD(cu.context_release(0));
	GOOD(cu.stream_finish(NULL));
	GOOD(cu.context_release(0));
	needs_context(CUDA_ERROR_CONTEXT_IS_DESTROYED);
	GIVES(cu.context_release(0), CUDA_ERROR_INVALID_CONTEXT);
	GIVES(cu.context_push(context), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t bytes_free(void)
{
	size_t unused, total;

	GOOD(cu.memory_info(&unused, &total));
	return unused;
}

START_TEST(memory_has_a_budget)
{
	const size_t all = 1 << 20;
	CUdeviceptr x, y, z;
	cuuint64_t keep = SIZE_MAX;
	CUmemoryPool other;

	setenv("DOUBLE_CUDA_MEMORY", "1M", 1);
	open_device();
	other = new_pool(0);
	GIVES(cu.alloc(&x, 0, pool, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.alloc(&x, SIZE_MAX, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	GIVES(cu.alloc(&x, all + 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	hold(true);
	GOOD(cu.alloc(&x, all / 2 - 100, pool, NULL));
	GOOD(cu.alloc(&y, all / 2, pool, NULL));
	ck_assert_uint_eq(bytes_free(), 0);
	GIVES(cu.alloc(&z, 1, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
	/* the memory is free at once for this pool, and for others once the free has run */
	GOOD(cu.free(x, NULL));
	GIVES(plain_alloc(&z, 1), CUDA_ERROR_OUT_OF_MEMORY);
	GOOD(cu.alloc(&x, all / 4, pool, NULL));
	GOOD(cu.pool_trim(pool, 0));
	ck_assert_uint_eq(bytes_free(), 0);
	hold(false);
	GOOD(cu.stream_finish(NULL));
	ck_assert_uint_eq(bytes_free(), all / 4);
	GOOD(cu.alloc(&z, all / 4, other, NULL));
	GOOD(cu.pool_set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
	GOOD(cu.free(x, NULL));
	GOOD(cu.free(y, NULL));
	GOOD(cu.stream_finish(NULL));
	ck_assert_uint_eq(bytes_free(), 0);
	GOOD(cu.pool_trim(pool, all / 8));
	ck_assert_uint_eq(bytes_free(), all / 4 * 3 - all / 8);
	GOOD(cu.pool_delete(pool));
	ck_assert_uint_eq(bytes_free(), all / 4 * 3);
	GOOD(cu.pool_delete(other));
	ck_assert_uint_eq(bytes_free(), all / 4 * 3);
	GOOD(plain_free(z));
	ck_assert_uint_eq(bytes_free(), all);
	GOOD(plain_alloc(&z, all));
	ck_assert_uint_eq(z % 4096, 0);
}
END_TEST

START_TEST(fresh_memory_is_poisoned)
{
	unsigned char *pinned = new_pinned(1000), device[1000];
	CUdeviceptr x = new_block(1000, NULL);

	GOOD(cu.copy((CUdeviceptr)device, x, 1000, NULL));
	for (int i = 0; i < 1000; i++)
		ck_assert(pinned[i] == 0xcb && device[i] == 0xcb);
}
END_TEST

START_TEST(pointers_are_known)
{
	CUdeviceptr x = new_block(1000, NULL), start;
	char *pinned = new_pinned(1000), plain[8];
	unsigned type;
	size_t size;
	int device;

	GOOD(cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x + 999));
	ck_assert_uint_eq(type, CU_MEMORYTYPE_DEVICE);
	GIVES(cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x + 1000),
	      CUDA_ERROR_INVALID_VALUE);
	GOOD(cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				  (CUdeviceptr)pinned + 999));
	ck_assert_uint_eq(type, CU_MEMORYTYPE_HOST);
	GIVES(cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)plain),
	      CUDA_ERROR_INVALID_VALUE);
	GOOD(cu.pointer_attribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, x));
	ck_assert_int_eq(device, 0);
	GOOD(cu.pointer_attribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, x + 7));
	GOOD(cu.pointer_attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, x + 7));
	ck_assert(start == x && size == 1000);
	GOOD(cu.free(x, NULL));
	GIVES(cu.pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, x),
	      CUDA_ERROR_INVALID_VALUE);
}
END_TEST

START_TEST(copies_stay_in_their_memory)
{
	CUdeviceptr x = new_block(1000, NULL);
	char plain[2000] = {0}, *pinned = new_pinned(1000);

	GIVES(cu.copy(x, (CUdeviceptr)plain, 1001, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.copy((CUdeviceptr)plain, x + 1, 1000, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.copy((CUdeviceptr)pinned + 10, x, 991, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.set(x + 500, 0, 501, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.set((CUdeviceptr)plain, 0, 1, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.free(x + 512, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.host_free(plain), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.host_free((void *)x), CUDA_ERROR_INVALID_VALUE);
	GOOD(cu.copy(x, x, 0, NULL));
	GOOD(cu.stream_finish(NULL));
}
END_TEST

static void reads_device_memory(void)
{
	CUdeviceptr x;

	setenv("DOUBLE_CUDA_PROTECT", "1", 1);
	open_device();
	x = new_block(4, NULL);
	GOOD(cu.set(x, 1, 4, NULL));
	GOOD(twice(x, 1, NULL));
	GOOD(cu.stream_finish(NULL));
	if (*(int *)reach(x, 4, false) == 0x01810101)
		exit(*(volatile int *)x ? 1 : 2);
}

START_TEST(device_memory_can_be_out_of_reach)
{
	char text[4096];
	int status = in_child(reads_device_memory, text, sizeof(text));

	/* a sanitizer turns the signal into an exit status */
	ck_assert_msg(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV
					  : strstr(text, "SEGV") != NULL,
		      "status %d: %s", status, text);
}
END_TEST

/* ---- failures -------------------------------------------------------------------------------- */

START_TEST(calls_fail_as_told)
{
	CUstream stream;
	size_t a, b;

	setenv("PMIX_RANK", "3", 1);
	setenv("DOUBLE_CUDA_FAIL",
	       "cuStreamCreateWithPriority:2:2,cuMemGetInfo:3+:201:3,cuMemGetInfo_v2:1:1:4", 1);
	open_device();
	for (int i = 1; i <= 4; i++)
		GIVES(cu.stream_new(&stream, 0, 0), i == 2 ? 2 : 0);
	for (int i = 1; i <= 6; i++)
		GIVES(cu.memory_info(&a, &b), i >= 3 ? 201 : 0);
	ck_assert_uint_eq(calls("cuMemGetInfo"), 6);
	ck_assert_uint_eq(calls("cuEventCreate"), 0);
	ck_assert(!fail_by("cuMemGetInfo"));
	ck_assert(!fail_by("cuMemGetInfo:0:1"));
	ck_assert(!fail_by("cuMemGetInfo:1:0"));
	ck_assert(!fail_by("cuMemGetInfo:1:2:x"));
	ck_assert(fail_by("*:2:999"));
	GOOD(cu.memory_info(&a, &b));
	quiet(true);
	GOOD(cu.memory_info(&a, &b));
	quiet(false);
	GIVES(cu.stream_new(&stream, 0, 0), 999);
	ck_assert(fail_by("cuStreamSynchronize:1:700"));
	GIVES(cu.stream_finish(NULL), 700);
	GIVES(cu.stream_finish(NULL), 700);
}
END_TEST

/* ---- what ends the process ------------------------------------------------------------------- */

static void frees_twice(void)
{
	CUdeviceptr x;

	open_device();
	x = new_block(4, NULL);
	GOOD(cu.free(x, NULL));
	cu.free(x, NULL);
}

static void uses_freed(void)
{
	CUdeviceptr x;

	open_device();
	x = new_block(4, NULL);
	GOOD(cu.free(x, NULL));
	cu.set(x, 0, 4, NULL);
}

static void launches_on_freed(void)
{
	CUdeviceptr x;

	open_device();
	x = new_block(400, NULL);
	GOOD(cu.free(x, NULL));
	GOOD(cu.stream_finish(NULL));
	twice(x + 40, 10, NULL);
}

static void frees_pinned_in_use(void)
{
	float *x;

	open_device();
	x = new_pinned(4);
	hold(true);
	GOOD(twice((CUdeviceptr)x, 1, NULL));
	cu.host_free(x);
}

static void uses_dead_event(void)
{
	CUevent event;

	open_device();
	event = new_event();
	GOOD(cu.event_delete(event));
	cu.event_query(event);
}

static void deletes_stream_twice(void)
{
	CUstream stream;

	open_device();
	stream = new_stream();
	GOOD(cu.stream_delete(stream));
	cu.stream_delete(stream);
}

static void allocates_without_an_order(void)
{
	CUstream stream;
	CUdeviceptr x;

	open_device();
	stream = new_stream();
	x = new_block(4, NULL);
	GOOD(cu.set(x, 0, 4, stream));
	GOOD(cu.stream_finish(stream));
	GOOD(cu.stream_finish(NULL));
}

static void bad_rule(void)
{
	setenv("DOUBLE_CUDA_FAIL", "cuInit:one:1", 1);
	open_double();
	cu.init(0);
}

START_TEST(misuse_ends_the_process)
{
	dies(frees_twice, "cuMemFreeAsync: 0x");
	dies(uses_freed, "cuMemsetD8Async");
	dies(launches_on_freed, "cuLaunchKernel zero_device_sum");
	dies(frees_pinned_in_use, "is still used by");
	dies(uses_dead_event, "cuEventQuery: event");
	dies(deletes_stream_twice, "cuStreamDestroy_v2: stream");
	dies(allocates_without_an_order, "cuMemsetD8Async");
	dies(bad_rule, "DOUBLE_CUDA_FAIL=cuInit:one:1");
}
END_TEST

static void leaves_all_behind(void)
{
	CUstream stream;

	setenv("DOUBLE_CUDA_LEAKS", "1", 1);
	open_device();
	stream = new_stream();
	new_event();
	new_block(1234, stream);
	new_pinned(4321);
}

static void leaves_nothing_behind(void)
{
	CUstream stream;
	CUdeviceptr x;

	setenv("DOUBLE_CUDA_LEAKS", "1", 1);
	open_device();
	stream = new_stream();
	x = new_block(1234, stream);
	GOOD(cu.set(x, 0, 1234, stream));
	GOOD(cu.free(x, stream));
	GOOD(cu.stream_delete(stream));
	GOOD(cu.module_unload(module));
	GOOD(cu.pool_delete(pool));
	GOOD(cu.context_release(0));
}

START_TEST(leaks_are_told)
{
	static const char *const words[] = {"stream", "event",         "pool",
					    "module", "retained 1",    "device memory",
					    "1234",   "pinned memory", "4321"};
	char text[4096];
	int status;

	status = in_child(leaves_all_behind, text, sizeof(text));
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 97, "%d: %s", status, text);
	for (size_t i = 0; i < COUNT_OF(words); i++)
		ck_assert_msg(strstr(text, words[i]), "no \"%s\" in: %s", words[i], text);
	status = in_child(leaves_nothing_behind, text, sizeof(text));
	ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d: %s", status, text);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("double_cuda");
	TCase *test = tcase_create("device"), *own = tcase_create("own");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(test, 60);
	tcase_set_timeout(own, 120);
	tcase_add_checked_fixture(test, open_device, NULL);
	tcase_add_test(own, no_device_is_an_error);
	tcase_add_test(own, calls_need_a_context);
	tcase_add_test(own, memory_has_a_budget);
	tcase_add_test(test, fresh_memory_is_poisoned);
	tcase_add_test(test, pointers_are_known);
	tcase_add_test(test, copies_stay_in_their_memory);
	tcase_add_test(own, device_memory_can_be_out_of_reach);
	tcase_add_test(own, calls_fail_as_told);
	tcase_add_test(own, misuse_ends_the_process);
	tcase_add_test(own, leaks_are_told);
	suite_add_tcase(suite, test);
	suite_add_tcase(suite, own);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the stand-in for CUDA: which launches it refuses, and that faults stay. What kernels
   compute is compared with the host wherever tests/ranks runs with GPUs. */
#include "double_cuda.h"

/* ---- launches -------------------------------------------------------------------------------- */

START_TEST(launches_are_checked)
{
	struct zero_device_fill arguments = {(void *)new_block(400, NULL), 100, 2, 4};
	void *pointers[] = {&arguments};
	CUfunction function;
	CUmodule none;

	GIVES(cu.module_load(&none, NULL), CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.function_get(&function, module, "zero_device_fills"), CUDA_ERROR_NOT_FOUND);
	GOOD(cu.function_get(&function, module, "zero_device_fill"));
	GIVES(cu.launch(function, 0, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 2, 1, 256, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 1, 1, 128, 1, 1, 0, NULL, pointers, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	GIVES(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL),
	      CUDA_ERROR_INVALID_VALUE);
	hold(true);
	GOOD(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL));
	arguments.out = NULL;
	hold(false);
	GOOD(cu.stream_finish(NULL));
	arguments.count = 0;
	GOOD(cu.launch(function, 1, 1, 1, 256, 1, 1, 0, NULL, pointers, NULL));
	GOOD(cu.stream_finish(NULL));
}
END_TEST

/* After a kernel touches memory that does not exist, the context cannot be used any more. */
static const struct {
	size_t offset, count;
	bool plain;
	CUresult error;
} bad[] = {
	{0, 101, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{4, 100, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{0, SIZE_MAX, false, CUDA_ERROR_ILLEGAL_ADDRESS},
	{1, 50, false, CUDA_ERROR_MISALIGNED_ADDRESS},
	{0, 1, true, CUDA_ERROR_ILLEGAL_ADDRESS},
};

START_TEST(faults_stay)
{
	static float plain[100];
	CUdeviceptr x = new_block(400, NULL), y;
	CUstream stream = new_stream();
	CUevent event = new_event();

	GOOD(twice((bad[_i].plain ? (CUdeviceptr)plain : x) + bad[_i].offset, bad[_i].count, NULL));
	GIVES(cu.stream_finish(NULL), bad[_i].error);
	GIVES(cu.stream_finish(stream), bad[_i].error);
	GIVES(cu.event_query(event), bad[_i].error);
	GIVES(cu.alloc(&y, 4, pool, stream), bad[_i].error);
	/* calls that free something still free it */
	GIVES(cu.free(x, NULL), bad[_i].error);
	GIVES(cu.stream_delete(stream), bad[_i].error);
	GIVES(cu.event_delete(event), bad[_i].error);
	GIVES(cu.module_unload(module), bad[_i].error);
	GOOD(cu.pool_delete(pool));
	GOOD(cu.context_release(0));
	ck_assert_uint_eq(alive(false), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("double_kernels");
	TCase *test = tcase_create("kernels");
	SRunner *runner = srunner_create(suite);
	int failed;

	tcase_set_timeout(test, 120);
	tcase_add_checked_fixture(test, open_device, NULL);
	tcase_add_test(test, launches_are_checked);
	tcase_add_loop_test(test, faults_stay, 0, (int)COUNT_OF(bad));
	suite_add_tcase(suite, test);
	srunner_run_all(runner, CK_NORMAL);
	failed = srunner_ntests_failed(runner);
	srunner_free(runner);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a query of NVML reads; test_vram_process.c has the process that queries. */
#include "nvml_double.h"

START_TEST(every_gpu_is_read)
{
	struct zero_vram vram;

	query("# comment\n"
	      "gpu GPU-aaaa 70G 80G NVIDIA H100 80GB HBM3\n"
	      "\n"
	      "gpu GPU-bbbb 3000M 16384M Tesla T4\n",
	      &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 2);
	ck_assert_str_eq(vram.gpu[0].uuid, "GPU-aaaa");
	ck_assert_str_eq(vram.gpu[0].model, "NVIDIA H100 80GB HBM3");
	ck_assert_uint_eq(vram.gpu[0].free, 70 * GB);
	ck_assert_uint_eq(vram.gpu[0].total, 80 * GB);
	ck_assert_int_eq(vram.gpu[0].index, 0);
	ck_assert_int_eq(vram.gpu[0].instance, -1);
	ck_assert(!vram.gpu[0].partitioned);
	ck_assert_str_eq(vram.gpu[1].model, "Tesla T4");
	ck_assert_uint_eq(vram.gpu[1].free, UINT64_C(3000) << 20);
	ck_assert_int_eq(vram.gpu[1].index, 1);
	ck_assert(!loaded("nvml"));
	zero_vram_clear(&vram);
	ck_assert(!vram.gpu && !vram.count);
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(instances_follow_their_gpu)
{
	struct zero_vram vram;

	query("gpu GPU-a 80G 80G NVIDIA H100\n"
	      "gap\n"
	      "mig MIG-1 9G 10G NVIDIA H100 MIG 1g.10gb\n"
	      "gap\n"
	      "mig MIG-2 19G 20G NVIDIA H100 MIG 2g.20gb\n"
	      "gpu GPU-b 70G 80G NVIDIA H100\n",
	      &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 4);
	ck_assert(vram.gpu[0].partitioned && vram.gpu[0].instance == -1);
	ck_assert(!vram.gpu[1].partitioned && vram.gpu[1].instance == 1);
	ck_assert_str_eq(vram.gpu[1].uuid, "MIG-1");
	ck_assert_str_eq(vram.gpu[1].model, "NVIDIA H100 MIG 1g.10gb");
	ck_assert_uint_eq(vram.gpu[1].free, 9 * GB);
	ck_assert_int_eq(vram.gpu[1].index, 0);
	ck_assert_int_eq(vram.gpu[2].instance, 3);
	ck_assert_uint_eq(vram.gpu[2].total, 20 * GB);
	ck_assert_str_eq(vram.gpu[3].uuid, "GPU-b");
	ck_assert_int_eq(vram.gpu[3].index, 1);
	ck_assert(!vram.gpu[3].partitioned);
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(memory_of_a_divided_gpu_is_not_needed)
{
	struct zero_vram vram;

	query("gpu GPU-a 80G 80G NVIDIA H100\n"
	      "mig MIG-1 9G 10G NVIDIA H100 MIG 1g.10gb\n"
	      "fail nvmlDeviceGetMemoryInfo 4 GPU-a\n"
	      "fail nvmlDeviceGetMemoryInfo 4 GPU-b\n"
	      "gpu GPU-b 80G 80G NVIDIA H100\n"
	      "fail nvmlDeviceGetName 3 MIG-1\n",
	      &vram);
	ck_assert_uint_eq(vram.count, 2);
	ck_assert_str_eq(vram.gpu[1].model, "NVIDIA H100");
	ck_assert_str_eq(vram.why, "GPU 1 is left out: nvmlDeviceGetMemoryInfo: Insufficient "
				   "Permissions");
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(drivers_older_than_mig_work)
{
	struct zero_vram vram;

	write_gpus("gpu GPU-a 70G 80G NVIDIA V100\ngpu GPU-b 60G 80G NVIDIA V100\n");
	read_vram(library("nvml_old"), 300, &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 2);
	ck_assert_uint_eq(vram.gpu[1].free, 60 * GB);
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(lost_gpus_are_left_out)
{
	struct zero_vram vram;

	query("gpu GPU-a 70G 80G NVIDIA H100\nlost GPU-b\ngpu GPU-c 60G 80G NVIDIA H100\n", &vram);
	ck_assert_str_eq(vram.why, "GPU 1 is left out: nvmlDeviceGetHandleByIndex_v2: GPU is lost");
	ck_assert_uint_eq(vram.count, 2);
	ck_assert(vram.gpu[0].index == 0 && vram.gpu[1].index == 2);
	zero_vram_clear(&vram);

	query("gpu GPU-a 70G 80G NVIDIA H100\nmig MIG-1 1G 1G NVIDIA H100 MIG\n"
	      "mig MIG-2 2G 2G NVIDIA H100 MIG\ngpu GPU-b 7G 8G NVIDIA H100\n"
	      "fail nvmlDeviceGetUUID 15 MIG-1\nfail nvmlDeviceGetMigMode 999 GPU-b\n",
	      &vram);
	ck_assert_str_eq(vram.why, "an instance of GPU 0 is left out: nvmlDeviceGetUUID: GPU is "
				   "lost; GPU 1 is left out: nvmlDeviceGetMigMode: Unknown Error");
	ck_assert_uint_eq(vram.count, 2);
	ck_assert_str_eq(vram.gpu[1].uuid, "MIG-2");
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(many_lost_gpus_fit_the_sentence)
{
	struct zero_vram vram;
	char lines[4096] = "";

	for (unsigned i = 0; i < 100; i++)
		sprintf(lines + strlen(lines), "lost GPU-%u\n", i);
	query(lines, &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_ptr_nonnull(strstr(vram.why, "GPU 2 is left out"));
	ck_assert_uint_lt(strlen(vram.why), sizeof(vram.why));
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(more_gpus_than_entries_are_cut)
{
	struct zero_vram vram;
	static char lines[1 << 16];
	size_t used = 0;

	for (unsigned i = 0; i < 200; i++)
		used += (size_t)sprintf(lines + used, "gpu GPU-%u %uM 8G NVIDIA H100\n", i, i);
	query(lines, &vram);
	ck_assert_uint_eq(vram.count, 128);
	ck_assert_uint_eq(vram.gpu[127].free, UINT64_C(127) << 20);
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(a_missing_library_or_driver_is_reported)
{
	struct zero_vram vram;

	read_vram("/no/such/library.so", 300, &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_ptr_null(vram.gpu);
	ck_assert_ptr_nonnull(strstr(vram.why, "NVML cannot be loaded: /no/such/library.so: "));

	read_vram("libm.so.6", 300, &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_str_eq(vram.why,
			 "libm.so.6 has no function nvmlInit_v2: it is not NVML, or too old");

	read_vram(library("nvml"), 300, &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_str_eq(vram.why, "nvmlInit_v2: Driver Not Loaded");

	query("gpu GPU-a 1G 1G T4\nfail nvmlDeviceGetCount_v2 999\n", &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_str_eq(vram.why, "nvmlDeviceGetCount_v2: Unknown Error");

	query("", &vram);
	ck_assert_uint_eq(vram.count, 0);
	ck_assert_str_eq(vram.why, "");
	zero_vram_clear(&vram);
}
END_TEST

START_TEST(a_relative_path_is_refused)
{
	static const char *const paths[] = {"./libnvidia-ml.so.1", "lib/nvml.so", ""};

	for (size_t i = 0; i < COUNT_OF(paths); i++) {
		struct zero_vram vram;
		char why[128];

		snprintf(why, sizeof(why), "NVML cannot be loaded: '%s' is not an absolute path",
			 paths[i]);
		read_vram(paths[i], 300, &vram);
		ck_assert_uint_eq(vram.count, 0);
		ck_assert_str_eq(vram.why, why);
	}
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("vram");

	tcase_add_checked_fixture(test, make_folder, remove_folder);
	tcase_add_test(test, every_gpu_is_read);
	tcase_add_test(test, instances_follow_their_gpu);
	tcase_add_test(test, memory_of_a_divided_gpu_is_not_needed);
	tcase_add_test(test, drivers_older_than_mig_work);
	tcase_add_test(test, lost_gpus_are_left_out);
	tcase_add_test(test, many_lost_gpus_fit_the_sentence);
	tcase_add_test(test, more_gpus_than_entries_are_cut);
	tcase_add_test(test, a_missing_library_or_driver_is_reported);
	tcase_add_test(test, a_relative_path_is_refused);
	return run_cases(test, NULL);
}

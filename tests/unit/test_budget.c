/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "core/options.h"
#include "spank/gpu/vram.h"
#include "unit.h"

static const uint64_t GB = UINT64_C(1) << 30;

/* 4 GPUs; free 40, 30, 20 and 10 GB of 80. */
static struct zero_gpu four[] = {
	{"GPU-a1b2c3", "H100", "", 0, 0, 0, -1, -1, false},
	{"GPU-a1ffff", "H100", "", 0, 0, 1, -1, -1, false},
	{"GPU-b00000", "H100", "", 0, 0, 2, -1, -1, false},
	{"GPU-c00000", "H100", "", 0, 0, 3, -1, -1, false},
};
static struct zero_vram table_of_four = {four, 4, ""};

/* GPU 1 has three MIG instances, and GPU 2 is in MIG mode without one. */
static struct zero_gpu divided[] = {
	{"GPU-a1b2c3", "H100", "", 0, 0, 0, -1, -1, false},
	{"GPU-b1b2c3", "H100", "", 0, 0, 1, -1, -1, true},
	{"MIG-d1", "H100 MIG 2g.20gb", "", 0, 0, 1, -1, 0, false},
	{"MIG-d2", "H100 MIG 1g.10gb", "", 0, 0, 1, -1, 1, false},
	{"MIG-d23", "H100 MIG 1g.10gb", "", 0, 0, 1, -1, 4, false},
	{"GPU-c00000", "H100", "", 0, 0, 2, -1, -1, true},
	{"GPU-d00000", "H100", "", 0, 0, 3, -1, -1, false},
};
static struct zero_vram table_of_divided = {divided, 7, ""};

static void fill_tables(void)
{
	static const unsigned free_divided[] = {40, 80, 19, 6, 7, 80, 50};

	for (unsigned i = 0; i < 4; i++) {
		four[i].free = (40 - 10 * i) * GB;
		four[i].total = 80 * GB;
	}
	for (unsigned i = 0; i < 7; i++) {
		divided[i].free = free_divided[i] * GB;
		divided[i].total = (divided[i].instance < 0 ? 80 : 20) * GB;
	}
}

static struct zero_budget budget_of(const struct zero_vram *vram,
				    const struct zero_budget_input *task)
{
	struct zero_budget budget;

	memset(&budget, 0x5a, sizeof(budget));
	zero_budget_compute(vram, task, &budget);
	return budget;
}

struct visible_case {
	const char *visible;
	unsigned gpus;
	unsigned gb;     /* the budget of the only task on the node */
	const char *why; /* a part of the sentence */
};

static void check_visible(const struct zero_vram *vram, const struct visible_case *row)
{
	struct zero_budget_input task = {.visible = row->visible, .tasks = 1};
	struct zero_budget budget = budget_of(vram, &task);

	ck_assert_msg(budget.gpus == row->gpus, "'%s': %u GPUs", row->visible, budget.gpus);
	ck_assert_msg(row->why ? strstr(budget.why, row->why) != NULL : !budget.why[0], "'%s': %s",
		      row->visible, budget.why);
	if (!row->gpus) {
		ck_assert_int_eq(budget.source, ZERO_VRAM_MEM_AVAILABLE);
		ck_assert_ptr_null(budget.gpu);
		return;
	}
	ck_assert_msg(budget.budget == row->gb * GB, "'%s': %" PRIu64, row->visible, budget.budget);
	ck_assert_int_eq(budget.source, ZERO_VRAM_NVML);
	ck_assert_uint_eq(budget.free, budget.gpu->free);
	ck_assert_uint_eq(budget.total, budget.gpu->total);
}

START_TEST(visible_devices_are_read_as_cuda_does)
{
	static const struct visible_case rows[] = {
		{"0", 1, 40, NULL},
		{"1,0", 2, 30, NULL},
		{"0,1,2,3", 4, 10, NULL},
		{" 0 , 2 ", 2, 20, NULL},
		{"+1", 1, 30, NULL},
		{"1gpu2,2ampere", 2, 20, NULL},
		{"", 0, 0, NULL},
		{" ", 0, 0, NULL},
		{"-1", 0, 0, NULL},
		{",1", 0, 0, NULL},
		{"NoDevFiles", 0, 0, NULL},
		{"one,2", 0, 0, NULL},
		{"0,2,-1,3", 2, 20, NULL},
		{"0,,3", 1, 40, NULL},
		{"0,", 1, 40, NULL},
		{"1,4,3", 1, 30,
		 "this task has no GPU 4, and CUDA ignores the entries from there on"},
		{"99999999999999999999", 0, 0, NULL},
		{"7", 0, 0, "no GPU 7"},
		{"1,1", 0, 0, "names 1 twice, so that CUDA sees no GPU"},
		{"0,1,2,01", 0, 0, "twice"},
		{"1,9,1", 1, 30, "no GPU 9"},
		{"GPU-b00000", 1, 20, NULL},
		{"GPU-b", 1, 20, NULL},
		{"GPU-b00000,GPU-c", 2, 10, NULL},
		{"GPU-a1", 0, 0, "no GPU GPU-a1"},
		{"GPU-a1b", 1, 40, NULL},
		{"GPU-a1b2c3d", 0, 0, "no GPU GPU-a1b2c3d"},
		{"GPU-c,GPU-c00000", 0, 0, "twice"},
		{"GPU-b,3", 1, 20, NULL},
		{"1,GPU-c", 1, 30, NULL},
		{"gpu-b", 0, 0, NULL},
	};

	for (size_t i = 0; i < COUNT_OF(rows); i++)
		check_visible(&table_of_four, &rows[i]);
}
END_TEST

START_TEST(divided_gpus_stand_for_their_first_instance)
{
	static const struct visible_case rows[] = {
		{"0", 1, 40, NULL},
		{"1", 1, 19, NULL},
		{"0,1", 2, 19, NULL},
		{"2", 0, 0, "no GPU 2"},
		{"0,2,1", 1, 40, "no GPU 2"},
		{"GPU-b1", 1, 19, NULL},
		{"GPU-c", 0, 0, "no GPU GPU-c"},
		{"MIG-d2", 1, 6, NULL},
		{"MIG-d23,MIG-d1", 2, 7, NULL},
		{"MIG-d", 0, 0, "no GPU MIG-d"},
		{"MIG-d23", 1, 7, NULL},
		{"MIG-d2,MIG-d23", 2, 6, NULL},
		{"MIG-d23,MIG-d23", 0, 0, "twice"},
		{"MIG-d1,0", 1, 19, NULL},
		{"MIG-GPU-b1b2c3/1/0", 0, 0, "no GPU"},
		{"MIG-f", 0, 0, "no GPU MIG-f"},
	};
	struct zero_budget_input task = {.all_by_default = true, .tasks = 1};
	struct zero_budget budget;

	for (size_t i = 0; i < COUNT_OF(rows); i++)
		check_visible(&table_of_divided, &rows[i]);

	budget = budget_of(&table_of_divided, &task);
	ck_assert_uint_eq(budget.gpus, 3);
	ck_assert_uint_eq(budget.budget, 19 * GB);
	task.all_by_default = false;
	ck_assert_uint_eq(budget_of(&table_of_divided, &task).gpus, 0);
}
END_TEST

/* Which GPUs of the node a task sees, and how many tasks share the one with the least memory. */
START_TEST(gpus_of_a_step_are_found_and_shared)
{
	static const struct {
		const char *visible, *step_visible, *step_gpus;
		unsigned tasks, gpus, gb, share;
	} rows[] = {
		/* without control groups, numbers are those of the node */
		{"2,3", "2,3", "2,3", 1, 2, 10, 1},
		{"2", "2,3", "2-3", 1, 1, 20, 1},
		{"0,2,3", "0,2,3", "0,2-3", 1, 3, 10, 1},
		/* UUIDs are the same everywhere */
		{"GPU-b", "GPU-b,GPU-c", "2,3", 1, 1, 20, 1},
		{"GPU-b", "0,1", "2,3", 1, 1, 20, 1},
		/* each task sees all GPUs and uses one */
		{"0,1,2,3", "0,1,2,3", "0-3", 1, 4, 10, 1},
		{"0,1,2,3", "0,1,2,3", "0-3", 3, 4, 10, 1},
		{"0,1,2,3", "0,1,2,3", "0-3", 4, 4, 10, 1},
		{"0,1,2,3", "0,1,2,3", "0-3", 5, 4, 10, 2},
		{"0,1,2,3", "0,1,2,3", "0-3", 8, 4, 10, 2},
		{"0,1,2,3", NULL, NULL, 8, 4, 10, 2},
		{"0", "0", "0", 3, 1, 40, 3},
		/* two tasks see the only GPU */
		{"0,7", "0,7", NULL, 2, 1, 40, 2},
		/* each task was bound to some GPUs */
		{"0", "0,1,2,3", "0-3", 4, 1, 40, 1},
		{"0", "0,1,2,3", "0-3", 5, 1, 40, 2},
		{"0,1", "0,1,2,3", "0-3", 2, 2, 30, 1},
		{"0,1", "0,1,2,3", "0-3", 4, 2, 30, 2},
		{"0,1,2", "0,1,2,3", "0-3", 2, 3, 20, 2},
		{"0", "0,1,2,3", NULL, 8, 1, 40, 2},
		{"0", NULL, "0-3", 8, 1, 40, 2},
		{"GPU-a1b", "GPU-a1b2c3,GPU-a1ffff", NULL, 4, 1, 40, 2},
		/* the numbers of the job replace those of the step */
		{"0", "0", "0-3", 2, 1, 40, 2},
	};

	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		struct zero_budget_input task = {.visible = rows[i].visible,
						 .step_visible = rows[i].step_visible,
						 .step_gpus = rows[i].step_gpus,
						 .tasks = rows[i].tasks};
		struct zero_budget budget = budget_of(&table_of_four, &task);

		ck_assert_msg(budget.gpus == rows[i].gpus, "row %zu: %u GPUs", i, budget.gpus);
		if (rows[i].gpus)
			ck_assert_msg(budget.budget == rows[i].gb * GB / rows[i].share,
				      "row %zu: %" PRIu64, i, budget.budget);
	}
}
END_TEST

START_TEST(the_reserve_is_left_free)
{
	/* the one with the least left is not the one with the least free: 100 - 40 and 90 - 20 */
	struct zero_gpu large[] = {
		{"GPU-x", "X", "", UINT64_MAX, UINT64_MAX, 0, -1, -1, false},
		{"GPU-y", "Y", "", 100 * GB, 200 * GB, 1, -1, -1, false},
		{"GPU-z", "Z", "", 90 * GB, 100 * GB, 2, -1, -1, false},
	};
	struct zero_vram vram = {large, 3, ""};
	const struct {
		const struct zero_vram *vram;
		const char *visible;
		unsigned tasks;
		bool percent;
		uint64_t reserve, budget, free;
	} rows[] = {
		{&table_of_four, "0", 2, false, GB, 39 * GB / 2, 40 * GB},
		{&table_of_four, "0", 2, false, 40 * GB, 0, 40 * GB},
		{&table_of_four, "0", 2, false, UINT64_MAX, 0, 40 * GB},
		{&table_of_four, "0", 2, true, 10, 16 * GB, 40 * GB},
		{&table_of_four, "0", 2, true, 100, 0, 40 * GB},
		{&table_of_four, "0", 2, true, UINT64_MAX, 0, 40 * GB},
		{&vram, "0", 1, true, 5, UINT64_MAX - UINT64_MAX / 20, UINT64_MAX},
		/* 1 % of its total is 2^30 */
		{&vram, "2", 1, true, UINT64_C(1) << 62, 0, 90 * GB},
		{&vram, "1,2", 1, true, 20, 60 * GB, 100 * GB},
	};

	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		struct zero_budget_input task = {.visible = rows[i].visible,
						 .tasks = rows[i].tasks,
						 .reserve = rows[i].reserve,
						 .reserve_is_percent = rows[i].percent};
		struct zero_budget budget = budget_of(rows[i].vram, &task);

		ck_assert_msg(budget.budget == rows[i].budget, "row %zu: %" PRIu64, i,
			      budget.budget);
		ck_assert_msg(budget.free == rows[i].free, "row %zu: %" PRIu64, i, budget.free);
		ck_assert_int_eq(budget.source, ZERO_VRAM_NVML);
	}
}
END_TEST

START_TEST(gpus_that_nvml_does_not_report_are_unknown)
{
	struct zero_vram none = {NULL, 0, "nvmlInit_v2: Driver Not Loaded"};
	struct zero_vram empty = {NULL, 0, ""};
	struct zero_vram some = {four, 2, "NVML did not answer within 2 s"};
	const struct {
		const struct zero_vram *vram;
		const char *visible;
		bool all_by_default;
		unsigned gpus, gb;
		int source;
		const char *why; /* a part of the sentence; "" is no sentence */
	} rows[] = {
		{&none, "0,1", false, 2, 0, ZERO_VRAM_UNKNOWN,
		 "CUDA_VISIBLE_DEVICES=0,1: the free memory of 2 of 2 GPUs is not known: "
		 "nvmlInit_v2: Driver Not Loaded"},
		{&none, "0,0", false, 0, 5, ZERO_VRAM_STEP_MEMORY, "twice"},
		{&none, "GPU-a,GPU-a", false, 0, 5, ZERO_VRAM_STEP_MEMORY, "twice"},
		{&none, "GPU-a,GPU-b", false, 2, 0, ZERO_VRAM_UNKNOWN, "Driver Not Loaded"},
		{&none, "", false, 0, 5, ZERO_VRAM_STEP_MEMORY, ""},
		{&none, NULL, false, 0, 5, ZERO_VRAM_STEP_MEMORY, ""},
		{&none, "", true, 0, 5, ZERO_VRAM_STEP_MEMORY, ""},
		{&none, NULL, true, 0, 0, ZERO_VRAM_UNKNOWN, "Driver Not Loaded"},
		{&empty, NULL, true, 0, 5, ZERO_VRAM_STEP_MEMORY, ""},
		{&empty, "0", true, 0, 5, ZERO_VRAM_STEP_MEMORY, "no GPU 0"},
		{&some, "1,3", true, 2, 30, ZERO_VRAM_NVML,
		 "1 of 2 GPUs is not known: NVML did not answer"},
		{&some, "0", true, 1, 40, ZERO_VRAM_NVML, ""},
		{&some, NULL, true, 2, 30, ZERO_VRAM_NVML, "some GPUs"},
	};

	for (size_t i = 0; i < COUNT_OF(rows); i++) {
		struct zero_budget_input task = {.visible = rows[i].visible,
						 .all_by_default = rows[i].all_by_default,
						 .tasks = 1,
						 .step_memory = 5 * GB};
		struct zero_budget budget = budget_of(rows[i].vram, &task);

		ck_assert_msg(budget.gpus == rows[i].gpus, "row %zu: %u GPUs", i, budget.gpus);
		ck_assert_msg(budget.budget == rows[i].gb * GB, "row %zu: %" PRIu64, i,
			      budget.budget);
		ck_assert_int_eq(budget.source, rows[i].source);
		ck_assert_msg(*rows[i].why ? strstr(budget.why, rows[i].why) != NULL : !*budget.why,
			      "row %zu: %s", i, budget.why);
	}
}
END_TEST

START_TEST(lists_of_any_length_are_read)
{
	static char visible[1 << 16];
	struct zero_vram none = {NULL, 0, "no driver"};
	struct zero_budget_input task = {.visible = visible, .tasks = UINT_MAX};
	struct zero_budget budget;
	size_t used = 0;

	for (unsigned i = 0; i < 9000; i++)
		used += (size_t)sprintf(visible + used, "%s%u", i ? "," : "", i);
	task.step_gpus = task.step_visible = visible;
	budget = budget_of(&none, &task);
	ck_assert_uint_ge(budget.gpus, 128);
	ck_assert_uint_eq(budget.budget, 0);
	ck_assert_uint_lt(strlen(budget.why), sizeof(budget.why));
	budget = budget_of(&table_of_four, &task);
	ck_assert_uint_eq(budget.gpus, 4);

	memset(visible, 'x', 5000);
	memcpy(visible, "GPU-", 4);
	visible[5000] = '\0';
	budget = budget_of(&table_of_four, &task);
	ck_assert_uint_eq(budget.gpus, 0);
	ck_assert_uint_lt(strlen(budget.why), sizeof(budget.why));
}
END_TEST

/* ---- without GPUs --------------------------------------------------------------------------- */

static uint64_t meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "r");
	unsigned long long kilobytes = 0;
	char line[256], key[64];

	ck_assert_ptr_nonnull(file);
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "%63[^:]: %llu", key, &kilobytes) == 2 && strcmp(key, name) == 0)
			break;
	fclose(file);
	return kilobytes << 10;
}

/* MemAvailable changes during the test: limits differ much from it. */
START_TEST(host_memory_is_the_least_of_the_limits)
{
	const uint64_t total = meminfo("MemTotal"), half = meminfo("MemAvailable") / 2;
	const struct {
		uint64_t step, job, free; /* 0: MemAvailable */
		int source;
	} rows[] = {
		{0, 0, 0, ZERO_VRAM_MEM_AVAILABLE},
		{total + 1, 2 * total, 0, ZERO_VRAM_MEM_AVAILABLE},
		{half, 0, half, ZERO_VRAM_STEP_MEMORY},
		{0, half, half, ZERO_VRAM_JOB_MEMORY},
		{half, half, half, ZERO_VRAM_STEP_MEMORY},
		{half, half - 1, half - 1, ZERO_VRAM_JOB_MEMORY},
		{1, half, 1, ZERO_VRAM_STEP_MEMORY},
		{total + 1, half, half, ZERO_VRAM_JOB_MEMORY},
		{half, total + 1, half, ZERO_VRAM_STEP_MEMORY},
	};
	static const struct zero_vram none;

	for (unsigned i = 0; i < 4 * COUNT_OF(rows); i++) {
		struct zero_budget_input task = {.step_memory = rows[i / 4].step,
						 .job_memory = rows[i / 4].job,
						 .tasks = i % 4,
						 .reserve = GB};
		struct zero_budget budget = budget_of(&none, &task);

		ck_assert_int_eq(budget.source, rows[i / 4].source);
		ck_assert_uint_eq(budget.gpus, 0);
		ck_assert_ptr_null(budget.gpu);
		ck_assert_str_eq(budget.why, "");
		if (rows[i / 4].free) {
			ck_assert_uint_eq(budget.free, rows[i / 4].free);
			ck_assert_uint_eq(budget.total, budget.free);
		} else {
			ck_assert_uint_eq(budget.total, total);
			ck_assert_uint_gt(budget.free, half);
			ck_assert_uint_le(budget.free, total);
		}
		ck_assert_uint_eq(budget.budget, budget.free / (i % 4 ? i % 4 : 1));
	}
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("budget");

	tcase_add_checked_fixture(test, fill_tables, NULL);
	tcase_add_test(test, visible_devices_are_read_as_cuda_does);
	tcase_add_test(test, divided_gpus_stand_for_their_first_instance);
	tcase_add_test(test, gpus_of_a_step_are_found_and_shared);
	tcase_add_test(test, the_reserve_is_left_free);
	tcase_add_test(test, gpus_that_nvml_does_not_report_are_unknown);
	tcase_add_test(test, lists_of_any_length_are_read);
	tcase_add_test(test, host_memory_is_the_least_of_the_limits);
	return run_cases(test, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GPUs a task has, for each way to ask Slurm for them, where control groups hide the others
 * or do not. The node's GPUs are numbered by nobody alike: CUDA's numbers, those of the device
 * files and NVML's order all differ.
 */
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "core/options.h"
#include "device_groups.h"
#include "nvml_double.h"

enum { GPUS = 8, ALL = 0xff };

/* GPUs are sets of bits here, of CUDA's numbers on the node. */
static unsigned minor_of(unsigned gpu)
{
	return gpu ^ 1;
}

static unsigned denied;  /* GPUs that this process may not open */
static bool real_groups; /* the kernel knows which */

int __real_access(const char *path, int mode);
int __wrap_access(const char *path, int mode);
int __wrap_access(const char *path, int mode)
{
	unsigned minor, gpu;

	if (real_groups || sscanf(path, "/dev/nvidia%u", &minor) != 1)
		return __real_access(path, mode);
	for (gpu = 0; minor_of(gpu) != minor; gpu++)
		;
	errno = EPERM;
	return mode != F_OK && denied >> gpu & 1 ? -1 : 0; /* the file is there */
}

/* Asks NVML where it shows these GPUs: GPU N has 10 (N + 1) GB left, and the last one two
   instances. */
static void query_shown(unsigned shown, struct zero_vram *vram)
{
	char lines[2048] = "";

	for (unsigned i = 0; i < GPUS; i++) {
		unsigned gpu = (i + 5) % GPUS;

		sprintf(lines + strlen(lines),
			"gpu GPU-%u %uG 100G H100\nat %u 0000000%u:01:00.0\n%s", gpu, 10 * gpu + 10,
			minor_of(gpu), gpu, shown >> gpu & 1 ? "" : "hidden\n");
		if (gpu == 7)
			strcat(lines, "mig MIG-7a 17G 20G H100 MIG\nmig MIG-7b 7G 10G H100 MIG\n");
	}
	query(lines, vram);
	ck_assert_str_eq(vram->why, "");
}

/* Writes a list such as Slurm's: numbers of the node, or from 0. */
static void write_list(unsigned gpus, bool from_zero, char *list)
{
	unsigned next = 0;

	*list = '\0';
	for (unsigned gpu = 0; gpu < GPUS; gpu++) {
		if (gpus >> gpu & 1)
			sprintf(list + strlen(list), "%s%u", *list ? "," : "",
				from_zero ? next++ : gpu);
	}
}

enum { WITHOUT_GROUPS, GROUPS_V1, GROUPS_V2, GROUPS };

struct way {
	const char *asked;
	unsigned tasks;           /* of the step */
	unsigned job, step, task; /* what Slurm gave each */
	const char *own;          /* CUDA_VISIBLE_DEVICES that the user set; NULL for Slurm's */
	const char *gpu;          /* the fullest of the task */
	unsigned gpus, gb;        /* how many it has, and its budget */
};

static const struct way ways[] = {
	{"--gres=gpu:1, where five are taken", 1, 0x20, 0x20, 0x20, NULL, "GPU-5", 1, 60},
	{"--gpus-per-task=1 -n 8, task 0", 8, ALL, ALL, 0x01, NULL, "GPU-0", 1, 10},
	{"--gpus-per-task=1 -n 8, task 1", 8, ALL, ALL, 0x02, NULL, "GPU-1", 1, 20},
	{"--gpus-per-task=1 -n 8, task 6", 8, ALL, ALL, 0x40, NULL, "GPU-6", 1, 70},
	{"--gpus-per-task=1 -n 8, task 7", 8, ALL, ALL, 0x80, NULL, "MIG-7a", 1, 17},
	{"--gpus-per-task=3 -n 2, task 1", 2, 0x7e, 0x7e, 0x70, NULL, "GPU-4", 3, 50},
	{"--gpus-per-node=2 -n 1", 1, 0x0c, 0x0c, 0x0c, NULL, "GPU-2", 2, 30},
	{"--gpus-per-node=2 -n 4", 4, 0x0c, 0x0c, 0x0c, NULL, "GPU-2", 2, 15},
	{"--gpu-bind=single:1, task 2", 4, 0x78, 0x78, 0x20, NULL, "GPU-5", 1, 60},
	{"--gpu-bind=single:2, task 3", 4, 0x18, 0x18, 0x10, NULL, "GPU-4", 1, 25},
	{"--gpu-bind=map_gpu:3,2,1,0, task 0", 4, 0x0f, 0x0f, 0x08, NULL, "GPU-3", 1, 40},
	{"--gpu-bind=mask_gpu:0xc,0x3, task 0", 2, 0x0f, 0x0f, 0x0c, NULL, "GPU-2", 2, 30},
	{"--exclusive", 1, 0, 0, 0, NULL, NULL, 0, 0},
	{"the second step of a job", 1, 0x0f, 0x0c, 0x0c, NULL, "GPU-2", 2, 30},
	{"a task of the second step", 2, 0x0f, 0x0c, 0x08, NULL, "GPU-3", 1, 40},
	{"a step within a step", 1, 0xf0, 0x60, 0x40, NULL, "GPU-6", 1, 70},
	{"a user's GPU-6", 1, 0x70, 0x70, 0x70, "GPU-6", "GPU-6", 1, 70},
	{"a user's MIG-7b", 1, 0xf0, 0xf0, 0xf0, "MIG-7b", "MIG-7b", 1, 7},
	{"a user's NoDevFiles", 1, 0xf0, 0xf0, 0xf0, "NoDevFiles", NULL, 0, 0},
};

/* Checks what a task of the way has, whose table this is. */
static void check_way(const struct way *way, int groups, const struct zero_vram *vram)
{
	const bool hidden = groups != WITHOUT_GROUPS;
	char visible[32], step_visible[32];
	struct zero_budget_input task = {.visible = way->own ? way->own : visible,
					 .step_visible = step_visible,
					 .tasks = way->tasks,
					 .step_memory = GB};
	struct zero_budget budget;

	write_list(way->task, hidden, visible);
	write_list(way->step, hidden, step_visible);
	zero_budget_compute(vram, &task, &budget);
	ck_assert_msg(budget.gpus == way->gpus, "%s, %d: %u GPUs: %s", way->asked, groups,
		      budget.gpus, budget.why);
	ck_assert_msg(!budget.gpu == !way->gpus &&
			      (!budget.gpu || strcmp(budget.gpu->uuid, way->gpu) == 0),
		      "%s, %d: %s", way->asked, groups, budget.gpu ? budget.gpu->uuid : "no GPU");
	ck_assert_msg(budget.budget == (way->gpus ? way->gb : 1) * GB, "%s, %d: %llu", way->asked,
		      groups, (unsigned long long)budget.budget);
	ck_assert_str_eq(budget.why, "");
}

START_TEST(a_task_has_what_it_may_open)
{
	const struct way *way = &ways[_i / GROUPS];
	const int groups = _i % GROUPS;
	struct zero_vram vram;

	query_shown(groups == WITHOUT_GROUPS ? ALL
		    : groups == GROUPS_V1    ? way->step
					     : way->job,
		    &vram);
	denied = groups == WITHOUT_GROUPS ? 0 : ~way->task;
	zero_vram_keep_own(&vram);
	check_way(way, groups, &vram);
	zero_vram_clear(&vram);
}
END_TEST

static unsigned minors_of(unsigned gpus)
{
	unsigned minors = 0;

	for (unsigned gpu = 0; gpu < GPUS; gpu++)
		minors |= (gpus >> gpu & 1) << minor_of(gpu);
	return minors;
}

/* The process that queried may still be in it. */
static void remove_group(const char *group)
{
	const struct timespec moment = {0, 1000000};

	while (rmdir(group) && errno == EBUSY)
		nanosleep(&moment, NULL);
}

/* The same with control groups v2 of the kernel, where this machine lets us make them. */
START_TEST(real_groups_tell_the_same)
{
	const struct way *way = &ways[_i];
	char top[600], job[700], task[800];
	struct zero_vram vram;
	bool entered;

	if (!find_own_group(top, sizeof(top)) || !own_devices(GPUS))
		return;
	snprintf(job, sizeof(job), "%s/zero-test-%d", top, (int)getpid());
	snprintf(task, sizeof(task), "%s/task", job);
	if (!enter_new_group(job, minors_of(way->job))) {
		rmdir(job);
		return;
	}
	query_shown(ALL, &vram);
	entered = enter_new_group(task, minors_of(way->task));
	real_groups = true;
	zero_vram_keep_own(&vram);
	ck_assert(enter_group(top));
	remove_group(task);
	remove_group(job);
	ck_assert(entered);
	check_way(way, GROUPS_V2, &vram);
	zero_vram_clear(&vram);
}
END_TEST

/* Without CUDA_VISIBLE_DEVICES CUDA has what may be opened. */
START_TEST(all_is_what_may_be_opened)
{
	struct zero_budget_input task = {.all_by_default = true, .tasks = 1};
	struct zero_budget budget;
	struct zero_vram vram;

	query_shown(ALL, &vram);
	denied = ~0x60U;
	zero_vram_keep_own(&vram);
	zero_budget_compute(&vram, &task, &budget);
	ck_assert_uint_eq(budget.gpus, 2);
	ck_assert_uint_eq(budget.budget, 60 * GB);
	zero_vram_clear(&vram);
}
END_TEST

static uint64_t budget_of_first(const char *lines, unsigned others)
{
	struct zero_budget_input task = {.visible = "0", .tasks = 1};
	struct zero_budget budget;
	struct zero_vram vram;

	query(lines, &vram);
	denied = others;
	zero_vram_keep_own(&vram);
	zero_budget_compute(&vram, &task, &budget);
	zero_vram_clear(&vram);
	return budget.budget;
}

/* GPU 0 does not answer. Of a task that may open all it is the first; of others it is not known. */
START_TEST(a_lost_gpu_keeps_its_number_where_none_is_hidden)
{
	static const char lines[] = "lost GPU-0\n"
				    "gpu GPU-1 20G 100G H100\nat 0 00000001:01:00.0\n"
				    "gpu GPU-2 30G 100G H100\nat 3 00000002:01:00.0\n";

	ck_assert_uint_eq(budget_of_first(lines, 0), 0);
	ck_assert_uint_eq(budget_of_first(lines, 0x2), 30 * GB);
}
END_TEST

/* Some drivers count GPUs that are hidden, and refuse them. */
START_TEST(refused_gpus_do_not_count)
{
	static const char lines[] = "gpu GPU-0 10G 100G H100\nat 1 00000000:01:00.0\n"
				    "gpu GPU-1 20G 100G H100\nat 0 00000001:01:00.0\n"
				    "fail nvmlDeviceGetHandleByIndex_v2 4 GPU-0\n";
	struct zero_vram vram;

	query(lines, &vram);
	ck_assert_str_eq(vram.why, "");
	ck_assert_uint_eq(vram.count, 1);
	zero_vram_clear(&vram);
	ck_assert_uint_eq(budget_of_first(lines, 0x1), 20 * GB);
}
END_TEST

/* A driver that tells neither file nor address: as if nothing were hidden. */
START_TEST(gpus_without_a_place_are_everybodys)
{
	static const char lines[] = "gpu GPU-0 10G 100G H100\ngpu GPU-1 20G 100G H100\n";

	ck_assert_uint_eq(budget_of_first(lines, ~0U), 10 * GB);
}
END_TEST

int main(void)
{
	TCase *test = tcase_create("task_gpus");

	tcase_add_checked_fixture(test, make_folder, remove_folder);
	tcase_add_loop_test(test, a_task_has_what_it_may_open, 0, GROUPS * (int)COUNT_OF(ways));
	tcase_add_loop_test(test, real_groups_tell_the_same, 0, (int)COUNT_OF(ways));
	tcase_add_test(test, all_is_what_may_be_opened);
	tcase_add_test(test, a_lost_gpu_keeps_its_number_where_none_is_hidden);
	tcase_add_test(test, refused_gpus_do_not_count);
	tcase_add_test(test, gpus_without_a_place_are_everybodys);
	return run_cases(test, NULL);
}

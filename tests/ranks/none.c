/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job without tensors: ranks exchange and agree, are refused all that needs memory, and end one
 * after the other without waiting for each other. No MPI and no NCCL is there.
 */
#include <dlfcn.h>

#include "ranks.h"

static void agree(zero_job *job)
{
	int rank = zero_rank(job), world = zero_world(job),
	    *all = calloc((size_t)world, sizeof(int));
	double mean = rank;

	check(all, "no memory");
	ok(zero_allgather_bytes(job, &rank, sizeof(rank), all));
	for (int r = 0; r < world; r++)
		check(all[r] == r, "rank %d is %d", r, all[r]);
	ok(zero_mean(job, &mean, 1, 1));
	check(mean * 2 == world - 1, "%g", mean);
	fails(zero_agree(job, rank == world - 1 ? "mine" : NULL), ZERO_E_APPLICATION, "mine");
	check(zero_last_error_rank() == world - 1, "%d", zero_last_error_rank());
	check(zero_local_world(job) == world && zero_local_rank(job) == rank, "not one node");
	ok(zero_reset(job));
	free(all);
}

static void refuse(zero_job *job)
{
	static const char words[] = "has no memory";
	zero_loss_scale scale, *kept;
	zero_memory memory;
	zero_traffic traffic;
	zero_group *group;
	zero_team *team;
	int zero = 0;
	void *data;

	zero_loss_scale_init(&scale);
	fails(zero_group_new(job, "a", NULL, &group), ZERO_E_UNSUPPORTED, words);
	fails(zero_layout(job), ZERO_E_UNSUPPORTED, words);
	fails(zero_team_new(job, &zero, 1, &team), ZERO_E_UNSUPPORTED, words);
	fails(zero_device_alloc(job, 64, &data), ZERO_E_UNSUPPORTED, words);
	fails(zero_device_loss_scale(job, &scale, &kept), ZERO_E_UNSUPPORTED, words);
	fails(zero_nccl_comm(job, &data), ZERO_E_UNSUPPORTED, "no communicator");
	fails(zero_set_stream(job, &zero), ZERO_E_UNSUPPORTED, "no streams");
	fails(zero_step(job, &(zero_adamw){.lr = 1}, NULL), ZERO_E_STATE, "after zero_layout");
	fails(zero_save(job, "x", NULL), ZERO_E_STATE, "after zero_layout");
	zero_device_free(job, NULL);
	ok(zero_memory_now(job, &memory));
	check(!memory.total.peak, "%zu", memory.total.peak);
	ok(zero_traffic_now(job, &traffic));
}

static void check_libraries(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];

	check(maps, "no maps");
	while (fgets(line, sizeof(line), maps))
		check(!strstr(line, "libmpi") && !strstr(line, "libcuda") &&
			      !strstr(line, "libnccl"),
		      "loaded: %s", line);
	fclose(maps);
}

/* A rank that gave up is not waited for. */
static void leave_waiting(void)
{
	zero_job *job = open_job("backend=none");

	if (zero_world(job) > 1 && zero_rank(job))
		fails(zero_agree(job, NULL), ZERO_E_COMM, "rank 0 has closed its job");
	ok(zero_close(job));
}

int main(void)
{
	zero_job *job = open_job("backend=none");
	int rank = zero_rank(job), world = zero_world(job);
	pid_t mine = getpid(), *all = calloc((size_t)world, sizeof(pid_t));

	check(all, "no memory");
	check(!strcmp(zero_setting(job, "backend"), "none"), "%s", zero_setting(job, "backend"));
	agree(job);
	refuse(job);
	ok(zero_close(job));
	leave_waiting();
	check_libraries();
	job = open_job("backend=none report=%s", file_path("report"));
	ok(zero_allgather_bytes(job, &mine, sizeof(mine), all));
	/* Rank 0 is the last one: each waits for the process of the next one. */
	if (rank + 1 == world)
		exit(0);
	wait_for_end(all[rank + 1]);
	/* Nobody is left in the exchange, which this error would end. */
	if (!rank)
		fails(zero_agree(job, NULL), ZERO_E_COMM, "has closed its job while");
	free(all);
	ok(zero_close(job));
	return 0;
}

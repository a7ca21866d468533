/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A task of the tests under Slurm: opens a job, gathers a group that each rank has filled a part
 * of, and prints one line of what it is and what it was told, in the order of ranks.
 *
 *	report_task [SETTING...]     with these settings' values; "time": the clock after
 *	                             the first gather
 *	report_task --own-mpi LEVEL  calls MPI_Init_thread itself before, with level 0 (single) to 3
 */
#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include <time.h>

#include "ranks/ranks.h"
#ifdef HAVE_MPI
#include <mpi.h>
#endif

static int own_mpi(char **argv)
{
#ifdef HAVE_MPI
	int provided;

	if (argv[1] && argv[2] && strcmp(argv[1], "--own-mpi") == 0) {
		MPI_Init_thread(NULL, NULL, atoi(argv[2]), &provided);
		return 3;
	}
#endif
	(void)argv;
	return 1;
}

static void gather(zero_job *job)
{
	size_t shape[1] = {1000};
	zero_param_spec spec = {.name = "w", .dtype = ZERO_F32, .ndim = 1, .shape = shape};
	zero_source source = zero_from_constant(7);
	zero_group *group;
	zero_param *param;
	const float *data;

	ok(zero_group_new(job, "g", NULL, &group));
	ok(zero_param_new(group, &spec, &param));
	ok(zero_layout(job));
	ok(zero_load(param, &source));
	ok(zero_gather(group, ZERO_DTYPE_PARAM));
	data = zero_data(param);
	for (size_t i = 0; i < shape[0]; i++)
		check(data[i] == 7, "element %zu is %g", i, (double)data[i]);
	ok(zero_release(group));
}

int main(int argc, char **argv)
{
	const char *node = getenv("SLURMD_NODENAME");
	int first = own_mpi(argv);
	struct timespec now;
	zero_job *job;

	if (zero_open(NULL, &job)) {
		fprintf(stderr, "report_task: %s\n", zero_last_error());
		return 1;
	}
	gather(job);
	clock_gettime(CLOCK_REALTIME, &now);
	for (int turn = 0; turn < zero_world(job); turn++) {
		ok(zero_agree(job, NULL));
		if (turn != zero_rank(job))
			continue;
		printf("rank=%d world=%d local_rank=%d local_world=%d node=%s", zero_rank(job),
		       zero_world(job), zero_local_rank(job), zero_local_world(job),
		       node ? node : "-");
		for (int i = first; i < argc; i++) {
			const char *value = zero_setting(job, argv[i]);

			if (strcmp(argv[i], "time") == 0)
				printf(" time=%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
			else
				printf(" %s=%s", argv[i], value ? value : "?");
		}
		putchar('\n');
		fflush(stdout);
	}
	ok(zero_close(job));
#ifdef HAVE_MPI
	if (first == 3)
		MPI_Finalize();
#endif
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that initialises MPI itself, with another level of threads at each world size, and
 * goes on using it beside the library and after it.
 */
#include <mpi.h>
#include <pthread.h>

#include "ranks.h"

enum { COUNT = 10000 };

static const zero_adamw adamw = {.lr = 0.5F, .beta1 = 0.9F, .beta2 = 0.9F, .eps = 1e-8F};

static void exchange_own(int world)
{
	int one = 1, sum = 0;

	MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	check(sum == world, "%d", sum);
}

static void train(const char *settings, int world, bool threaded)
{
	zero_job *job = open_job("%s", settings);
	zero_group *groups[2] = {new_group(job, "a"), new_group(job, "b")};
	zero_param *params[2];
	zero_source source = zero_from_constant(2);
	float *sums, *values;

	for (int g = 0; g < 2; g++)
		params[g] = new_param(groups[g], g ? "q" : "p", ZERO_F32, COUNT, true);
	ok(zero_layout(job));
	for (int g = 0; g < 2; g++)
		ok(zero_load(params[g], &source));
	ok(zero_prefetch(groups, 2, ZERO_BF16));
	/* The program's own messages do not meet the library's. */
	if (threaded)
		exchange_own(world);
	for (int g = 0; g < 2; g++) {
		ok(zero_gather(groups[g], ZERO_BF16));
		check(((uint16_t *)zero_data(params[g]))[COUNT - 1] == 0x4000, "not 2");
		ok(zero_release(groups[g]));
		sums = zero_gradient(params[g]);
		check(sums, "%s", zero_last_error());
		sums[COUNT - 1] = 1;
		ok(zero_reduce(groups[g]));
	}
	ok(zero_step(job, &adamw, NULL));
	exchange_own(world);
	ok(zero_gather(groups[1], ZERO_DTYPE_PARAM));
	values = zero_data(params[1]);
	check(values[0] == 2 && values[COUNT - 1] > 1.49F && values[COUNT - 1] < 1.51F, "%g %g",
	      (double)values[0], (double)values[COUNT - 1]);
	fails(zero_agree(job, zero_rank(job) == zero_world(job) - 1 ? "mine" : NULL),
	      ZERO_E_APPLICATION, "mine");
	ok(zero_close(job));
	exchange_own(world);
}

static zero_status reduced, stepped; /* what the other thread got */

static void *reduce(void *group)
{
	reduced = zero_reduce(group);
	return NULL;
}

static void *step(void *job)
{
	stepped = zero_step(job, &adamw, NULL);
	return NULL;
}

static size_t gradient_bytes(zero_job *job)
{
	zero_memory memory;

	ok(zero_memory_now(job, &memory));
	return memory.gradients.now;
}

/* A reduce or a step in a thread that may not communicate fails, and keeps no gradient. */
static void refused_reduce(const char *settings, zero_dtype dtype)
{
	zero_job *job = open_job("%s", settings);
	zero_group *group = new_group(job, "a");
	zero_param *param = new_param(group, "p", ZERO_F32, COUNT, true);
	zero_param *other = new_param(new_group(job, "b"), "q", ZERO_F32, COUNT, true);
	size_t before, one;
	pthread_t thread;

	ok(zero_group_gradient_dtype(group, dtype));
	ok(zero_layout(job));
	before = gradient_bytes(job);
	check(zero_gradient_as(param, dtype), "%s", zero_last_error());
	one = gradient_bytes(job);
	for (int round = 0; round < 3; round++) {
		check(zero_gradient_as(param, dtype), "%s", zero_last_error());
		check(gradient_bytes(job) == one, "%s: round %d: %zu bytes, not %zu", settings,
		      round, gradient_bytes(job), one);
		check(!pthread_create(&thread, NULL, reduce, group), "no thread");
		pthread_join(thread, NULL);
		check(reduced == ZERO_E_STATE, "%s", zero_strerror(reduced));
		check(gradient_bytes(job) == before, "%s: round %d: %zu bytes are left", settings,
		      round, gradient_bytes(job) - before);
	}
	check(zero_gradient_as(param, dtype) && zero_gradient(other), "%s", zero_last_error());
	check(!pthread_create(&thread, NULL, step, job), "no thread");
	pthread_join(thread, NULL);
	check(stepped == ZERO_E_STATE, "%s", zero_strerror(stepped));
	check(gradient_bytes(job) == before, "%s: %zu bytes are left", settings,
	      gradient_bytes(job) - before);
	ok(zero_step(job, &adamw, NULL));
	check(gradient_bytes(job) == before, "%s: %zu bytes are left", settings,
	      gradient_bytes(job) - before);
	ok(zero_close(job));
}

int main(int argc, char **argv)
{
	static const int levels[] = {MPI_THREAD_SINGLE, MPI_THREAD_SINGLE, MPI_THREAD_FUNNELED,
				     MPI_THREAD_SERIALIZED, MPI_THREAD_MULTIPLE};
	const char *text = getenv("OMPI_COMM_WORLD_SIZE");
	int level = levels[text ? (atoi(text) - 1) % 5 : 0], provided, ranks;
	zero_job *job;

	MPI_Init_thread(&argc, &argv, level, &provided);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int stage = 0; stage <= 3; stage++) {
		char settings[32];

		snprintf(settings, sizeof(settings), "stage=%d", stage);
		train(settings, ranks, provided == MPI_THREAD_MULTIPLE);
		if (provided < MPI_THREAD_SERIALIZED)
			refused_reduce(settings, stage % 2 ? ZERO_BF16 : ZERO_F32);
	}
	MPI_Finalize();
	fails(zero_open(NULL, &job), ZERO_E_STATE, "MPI_Finalize was called");
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the work of one call: how many a rank has, that they work at one time, and
   that no bit of a step depends on their number. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

#include "backend/workers.h"
#include "core/error.h"
#include "unit.h"

enum { ITEMS = 1000, MOST = 600000 };

/* ---- how many -------------------------------------------------------------------------------- */

static struct zero_seat seats[8];

/* Rank 0 is this one; the others say what the test has put into seats. */
static zero_status exchange(struct zero_comm *comm, const void *send, void *recv, size_t bytes)
{
	ck_assert_uint_eq(bytes, sizeof(*seats));
	memcpy(recv, seats, (size_t)comm->place.world * bytes);
	memcpy(recv, send, bytes);
	return ZERO_OK;
}

static const struct zero_comm_ops ops = {.allgather = exchange}, alone;

START_TEST(budget)
{
	struct zero_comm comm = {.ops = &ops, .place = {.world = 1, .node = "n1"}};
	cpu_set_t mine;
	int cores;

	unsetenv("SLURM_CPUS_PER_TASK");
	ck_assert(!sched_getaffinity(0, sizeof(mine), &mine));
	cores = CPU_COUNT(&mine);
	/* all on these cores of this node */
	for (comm.place.world = 1; comm.place.world <= 8; comm.place.world++) {
		int want = cores / comm.place.world;

		for (int rank = 0; rank < 8; rank++)
			seats[rank] =
				(struct zero_seat){.node = zero_hash("n1", 2, 0), .cores = mine};
		ck_assert_int_eq(zero_workers_budget(&comm, 0), want > 1 ? want : 1);
	}
	comm.place.world = 8;
	/* on other cores */
	for (int rank = 0; rank < 8; rank++)
		CPU_ZERO(&seats[rank].cores);
	ck_assert_int_eq(zero_workers_budget(&comm, 0), cores);
	/* on other nodes */
	for (int rank = 0; rank < 8; rank++)
		seats[rank] = (struct zero_seat){.node = zero_hash("n2", 2, 0), .cores = mine};
	ck_assert_int_eq(zero_workers_budget(&comm, 0), cores);
	comm = (struct zero_comm){.ops = &alone, .place = {.world = 1}};
	ck_assert_int_eq(zero_workers_budget(&comm, 0), cores);
	ck_assert_int_eq(zero_workers_budget(&comm, 7), 7);
	setenv("SLURM_CPUS_PER_TASK", "1", 1);
	ck_assert_int_eq(zero_workers_budget(&comm, 0), 1);
	setenv("SLURM_CPUS_PER_TASK", "1000", 1);
	ck_assert_int_eq(zero_workers_budget(&comm, 0), cores);
	setenv("SLURM_CPUS_PER_TASK", "many", 1);
	ck_assert_int_eq(zero_workers_budget(&comm, 0), cores);
}
END_TEST

/* ---- threads --------------------------------------------------------------------------------- */

static atomic_int times[ITEMS];

/* No assertion: a child that was forked must not allocate, since a thread may have held a lock. */
static void count_item(void *context, size_t i)
{
	if (context == times)
		atomic_fetch_add(&times[i], 1);
}

START_TEST(each_item_once)
{
	struct zero_workers *workers = zero_workers_new(_i);

	for (int call = 0; call < 200; call++) {
		size_t count = (size_t)(call * 7 % ITEMS);

		memset(times, 0, sizeof(times));
		zero_workers_run(call % 5 ? workers : NULL, count_item, times, count);
		for (size_t i = 0; i < ITEMS; i++)
			ck_assert_int_eq(times[i], i < count);
	}
	zero_workers_delete(workers);
}
END_TEST

static void meet(void *context, size_t i)
{
	(void)i;
	pthread_barrier_wait(context);
}

/* Each item waits for all others, so each has a thread. */
START_TEST(at_one_time)
{
	struct zero_workers *workers = zero_workers_new(5);
	pthread_barrier_t all;

	pthread_barrier_init(&all, NULL, 5);
	for (int call = 0; call < 50; call++)
		zero_workers_run(workers, meet, &all, 5);
	zero_workers_delete(workers);
	pthread_barrier_destroy(&all);
}
END_TEST

static struct zero_workers *shared;
static pthread_barrier_t begun;
static atomic_bool ended;

static void wait_for_other(void *context, size_t i)
{
	(void)context;
	if (i)
		return;
	pthread_barrier_wait(&begun);
	while (!ended)
		sched_yield();
}

static void *other_caller(void *context)
{
	(void)context;
	pthread_barrier_wait(&begun);
	zero_workers_run(shared, count_item, times, ITEMS);
	ended = true;
	return NULL;
}

/* A caller whose call comes during another's does not wait for it. */
START_TEST(two_callers)
{
	pthread_t thread;

	memset(times, 0, sizeof(times));
	shared = zero_workers_new(3);
	pthread_barrier_init(&begun, NULL, 2);
	ck_assert(!pthread_create(&thread, NULL, other_caller, NULL));
	zero_workers_run(shared, wait_for_other, NULL, 2);
	pthread_join(thread, NULL);
	for (size_t i = 0; i < ITEMS; i++)
		ck_assert_int_eq(times[i], 1);
	zero_workers_delete(shared);
}
END_TEST

START_TEST(forked_child)
{
	struct zero_workers *workers = zero_workers_new(3);
	int status;
	pid_t child;

	memset(times, 0, sizeof(times));
	zero_workers_run(workers, count_item, times, ITEMS);
	child = fork();
	if (!child) {
		zero_workers_run(workers, count_item, times, ITEMS);
		_exit(times[ITEMS - 1] == 2 ? 0 : 1);
	}
	ck_assert_int_eq(waitpid(child, &status, 0), child);
	ck_assert_int_eq(status, 0);
	zero_workers_delete(workers);
}
END_TEST

/* ---- a step ---------------------------------------------------------------------------------- */

static const size_t sizes[] = {0, 1, 63, 16384, 16385, 65537, 262144 + 7, MOST};

static float *array_new(uint64_t *state, size_t bytes)
{
	float *data = aligned_alloc(64, (bytes + 63) / 64 * 64);

	ck_assert_ptr_nonnull(data);
	for (size_t i = 0; i < bytes / sizeof(float); i++)
		data[i] = (float)random_below(state, 1 << 20) * 0x1p-20F;
	return data;
}

/* p, m, v and the copy of 16 bits */
static void step(struct zero_workers *workers, size_t count, float *out[4])
{
	const struct zero_adamw_args args = {.lr = 0.1F,
					     .beta1 = 0.9F,
					     .beta2 = 0.99F,
					     .eps = 1e-8F,
					     .decay = 0.01F,
					     .correction1 = 2,
					     .correction2 = 3,
					     .scale = 0.5F};
	const struct zero_cpu cpu = {zero_kernels_choose("auto"), workers};
	uint64_t state = 1;
	float *g;

	for (int i = 0; i < 4; i++)
		out[i] = array_new(&state, MOST * sizeof(float));
	g = array_new(&state, MOST * sizeof(float));
	zero_cpu_run(&cpu, ZERO_K_ADAMW,
		     &(struct zero_device_adamw){.args = args,
						 .p = out[0],
						 .moments = {.m = out[1], .v = out[2]},
						 .g = g,
						 .low = out[3],
						 .low_dtype = ZERO_BF16,
						 .count = count});
	free(g);
}

START_TEST(same_bits)
{
	const size_t count = sizes[_i];
	double norm = 0, exact = 0;

	for (int threads = 1; threads <= 8; threads++) {
		struct zero_workers *workers = zero_workers_new(threads);
		const struct zero_cpu cpu = {zero_kernels_choose("auto"), workers};
		float *want[4], *got[4];
		double sum;

		/* one part is what the kernel does */
		step(NULL, count, want);
		step(workers, count, got);
		for (int i = 0; i < 4; i++)
			ck_assert(!memcmp(want[i], got[i], MOST * sizeof(float)));
		sum = zero_cpu_norm2(&cpu, got[0], count);
		ck_assert(threads == 1 || sum == norm);
		norm = sum;
		exact = 0;
		for (size_t i = 0; i < count; i++)
			exact += (double)got[0][i] * (double)got[0][i];
		ck_assert(fabs(sum - exact) <= 1e-12 * exact);
		for (int i = 0; i < 4; i++) {
			free(want[i]);
			free(got[i]);
		}
		zero_workers_delete(workers);
	}
}
END_TEST

/* Parts are the kernel's, end to end. */
START_TEST(parts_meet)
{
	const struct zero_adamw_args args = {
		.lr = 1, .eps = 1, .correction1 = 1, .correction2 = 1, .scale = 1};
	const struct zero_kernels *kernels = zero_kernels_choose("auto");
	uint64_t state = 2;
	float *whole[4], *parts[4];

	for (int i = 0; i < 4; i++) {
		whole[i] = array_new(&state, MOST * sizeof(float));
		parts[i] = array_new(&state, MOST * sizeof(float));
		memcpy(parts[i], whole[i], MOST * sizeof(float));
	}
	kernels->adamw(&args, whole[0], whole[1], whole[2], whole[3], NULL, ZERO_DTYPE_PARAM, MOST);
	zero_cpu_run(&(struct zero_cpu){kernels, NULL}, ZERO_K_ADAMW,
		     &(struct zero_device_adamw){.args = args,
						 .p = parts[0],
						 .moments = {.m = parts[1], .v = parts[2]},
						 .g = parts[3],
						 .count = MOST});
	for (int i = 0; i < 4; i++) {
		ck_assert(!memcmp(whole[i], parts[i], MOST * sizeof(float)));
		free(whole[i]);
		free(parts[i]);
	}
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("workers");

	tcase_add_test(tcase, budget);
	tcase_add_loop_test(tcase, each_item_once, 1, 9);
	tcase_add_test(tcase, at_one_time);
	tcase_add_test(tcase, two_callers);
	tcase_add_test(tcase, forked_child);
	tcase_add_loop_test(tcase, same_bits, 0, COUNT_OF(sizes));
	tcase_add_test(tcase, parts_meet);
	return run_cases(tcase, NULL);
}

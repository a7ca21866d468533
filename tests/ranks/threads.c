/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads: concurrent gathers of one group make one collective, each use is counted, and the data
 * are valid until the last release. One thread begins gathers in order, and the others join.
 */
#include <pthread.h>

#include "ranks.h"

enum { THREADS = 4, GROUPS = 3, ROUNDS = 200, COUNT = 3000 };

static zero_job *job;
static zero_group *groups[GROUPS];
static zero_param *params[GROUPS][2];
static pthread_barrier_t begun, gathered, released;
static bool main_begins;
static uint64_t collectives;

static uint64_t count_collectives(void)
{
	zero_traffic traffic;

	ok(zero_traffic_now(job, &traffic));
	return traffic.collectives;
}

static float value(int group, size_t i)
{
	return (float)(group * COUNT) + (float)i;
}

static zero_status fill(void *context, void *elements, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		((float *)elements)[i] = value(*(int *)context, first + i);
	return ZERO_OK;
}

static void check_data(int group)
{
	const float *data = zero_data(params[group][0]);
	const int32_t *table = zero_data(params[group][1]);

	check(data && table, "group %d has no data", group);
	for (size_t i = 0; i < COUNT; i += 7)
		check(data[i] == value(group, i), "group %d, element %zu is %g", group, i,
		      (double)data[i]);
	check(table[COUNT - 1] == 2, "%d", table[COUNT - 1]);
}

static void *work(void *context)
{
	int self = *(int *)context;

	for (int round = 0; round < ROUNDS; round++) {
		int g = round % GROUPS;

		if (self == 0) {
			collectives = count_collectives();
			if (main_begins)
				ok(zero_prefetch(&groups[g], 1, ZERO_DTYPE_PARAM));
		}
		pthread_barrier_wait(&begun);
		/* While the others wait for the gather on the stream that is set. */
		if (self == THREADS - 1)
			ok(zero_set_stream(job, NULL));
		ok(zero_gather(groups[g], ZERO_DTYPE_PARAM));
		if (self == 1)
			ok(zero_gather(groups[g], ZERO_DTYPE_PARAM));
		check_data(g);
		pthread_barrier_wait(&gathered);
		if (self == 0) {
			uint64_t now = count_collectives();
			/* One for each of the two segments, unless all values are stored here. */
			uint64_t want = gathers_in_place(job) ? 0 : 2;

			check(now - collectives == want, "%llu collectives, not %llu",
			      (unsigned long long)(now - collectives), (unsigned long long)want);
		}
		/* Some threads release early: the data stay valid for the others. */
		if (self % 2)
			ok(zero_release(groups[g]));
		check(self % 2 == 1 || zero_data(params[g][0]), "gone too early");
		if (self % 2 == 0) {
			check_data(g);
			ok(zero_release(groups[g]));
		}
		if (self == 1)
			ok(zero_release(groups[g]));
		/* Threads fail at the same time, each with its own error. */
		if (self > 1) {
			fails(zero_param_new(groups[g], &(zero_param_spec){.name = "late"},
					     &(zero_param *){NULL}),
			      ZERO_E_STATE, "before zero_layout");
		}
		/* One thread may begin a gather while others still use the previous group. */
		if (!main_begins)
			pthread_barrier_wait(&released);
	}
	return NULL;
}

static void *close_it(void *unused)
{
	(void)unused;
	ok(zero_close(job));
	return NULL;
}

static void make_model(const char *settings)
{
	job = open_job("%s", settings);
	for (int g = 0; g < GROUPS; g++) {
		char name[32];

		snprintf(name, sizeof(name), "%d", g);
		groups[g] = new_group(job, name);
		for (int p = 0; p < 2; p++) {
			snprintf(name, sizeof(name), "%d.%d", g, p);
			params[g][p] =
				new_param(groups[g], name, p ? ZERO_I32 : ZERO_F32, COUNT, !p);
		}
	}
	ok(zero_layout(job));
	for (int g = 0; g < GROUPS; g++) {
		zero_source source = zero_from_callback(fill, &g);

		ok(zero_load(params[g][0], &source));
		source = zero_from_constant(2);
		ok(zero_load(params[g][1], &source));
	}
}

/* Uses group 0 beside the thread that began its gather, on the last rank longer than that one. */
static void *use_longer(void *unused)
{
	bool is_last = zero_rank(job) == zero_world(job) - 1;

	(void)unused;
	pthread_barrier_wait(&begun);
	ok(zero_gather(groups[0], ZERO_DTYPE_PARAM));
	if (!is_last)
		ok(zero_release(groups[0]));
	pthread_barrier_wait(&gathered);
	pthread_barrier_wait(&released);
	check(!is_last || zero_data(params[0][0]), "gone too early");
	if (is_last) {
		check_data(0);
		ok(zero_release(groups[0]));
	}
	return NULL;
}

/* The next group is gathered for the first time while one rank has less memory to choose from. */
static void longer_on_one_rank(void)
{
	pthread_t thread;

	pthread_barrier_init(&begun, NULL, 2);
	pthread_barrier_init(&gathered, NULL, 2);
	pthread_barrier_init(&released, NULL, 2);
	make_model("stage=3 allgather=grouped");
	check(!pthread_create(&thread, NULL, use_longer, NULL), "no thread");
	ok(zero_gather(groups[0], ZERO_DTYPE_PARAM));
	pthread_barrier_wait(&begun);
	pthread_barrier_wait(&gathered);
	ok(zero_release(groups[0]));
	ok(zero_gather(groups[1], ZERO_DTYPE_PARAM));
	check_data(1);
	pthread_barrier_wait(&released);
	pthread_join(thread, NULL);
	check_data(1);
	ok(zero_release(groups[1]));
	ok(zero_close(job));
}

static void run(const char *settings)
{
	pthread_t threads[THREADS];
	int numbers[THREADS];
	zero_memory memory;

	make_model(settings);
	for (int t = 0; t < THREADS; t++) {
		numbers[t] = t;
		check(!pthread_create(&threads[t], NULL, work, &numbers[t]), "no thread");
	}
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	ok(zero_memory_now(job, &memory));
	check(memory.gathered.now == 0, "%zu bytes are still gathered", memory.gathered.now);
	/* In another thread than the one that opened the job. */
	check(!pthread_create(&threads[0], NULL, close_it, NULL), "no thread");
	pthread_join(threads[0], NULL);
}

/* A release of what is only under way waits for it, though a peer comes late: the thread that
   communicates still writes there. */
static void released_before_its_use(void)
{
	zero_group *group;
	char path[1024];
	FILE *file;

	job = open_job("stage=3 share=1");
	group = new_group(job, "g");
	new_param(group, "p", ZERO_F32, COUNT, false);
	ok(zero_layout(job));
	collectives = count_collectives();
	snprintf(path, sizeof(path), "%s", file_path("released"));
	/* The peer begins once the first rank has gone on, which it must not do, or after a
	   while. */
	for (int wait = 0; zero_rank(job) && wait < 50 && access(path, F_OK); wait++)
		usleep(2000);
	ok(zero_prefetch(&group, 1, ZERO_DTYPE_PARAM));
	ok(zero_release(group));
	check(zero_world(job) == 1 || count_collectives() == collectives + 1,
	      "released before it was gathered");
	file = zero_rank(job) ? NULL : fopen(path, "w");
	if (file)
		fclose(file);
	ok(zero_close(job));
}

int main(void)
{
	longer_on_one_rank();
	pthread_barrier_init(&begun, NULL, THREADS);
	pthread_barrier_init(&gathered, NULL, THREADS);
	pthread_barrier_init(&released, NULL, THREADS);
	for (int i = 0; i < 2; i++) {
		main_begins = i;
		run("stage=3 allgather=grouped");
		run("stage=1 allgather=grouped");
	}
	/* the device orders it by itself */
	if (!on_gpu())
		released_before_its_use();
	return 0;
}

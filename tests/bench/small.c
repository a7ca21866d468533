/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation costs that moves next to nothing: agreement, and the queue's thread. */
#include <stdio.h>

#include "bench.h"

enum { ROUNDS = 500, GROUPS = 16 };

struct small {
	struct bench *bench;
	zero_group *groups[GROUPS];
	size_t count;
};

static double gather_one(const struct small *s)
{
	double start = clock_start(s->bench);

	for (int i = 0; i < ROUNDS; i++) {
		must(zero_gather(s->groups[0], ZERO_DTYPE_PARAM));
		must(zero_release(s->groups[0]));
	}
	return clock_stop(s->bench, start) / ROUNDS * 1e6;
}

/* As a model would: many groups in one submission. */
static double gather_many(struct small *s)
{
	const int rounds = ROUNDS / GROUPS;
	double start = clock_start(s->bench);

	for (int i = 0; i < rounds; i++) {
		must(zero_prefetch(s->groups, GROUPS, ZERO_DTYPE_PARAM));
		for (int g = 0; g < GROUPS; g++) {
			must(zero_gather(s->groups[g], ZERO_DTYPE_PARAM));
			must(zero_release(s->groups[g]));
		}
	}
	return clock_stop(s->bench, start) / rounds / GROUPS * 1e6;
}

static double gather_bare(const struct small *s, const float *send, float *recv)
{
	int part = (int)s->count / s->bench->world;
	double start = clock_start(s->bench);

	for (int i = 0; i < ROUNDS; i++)
		MPI_Allgather(send, part, MPI_FLOAT, recv, part, MPI_FLOAT, MPI_COMM_WORLD);
	return clock_stop(s->bench, start) / ROUNDS * 1e6;
}

static void write_cost(struct bench *bench, const char *what, const double *ours,
		       const double *bare)
{
	double x = median(ours, REPEATS), y = median(bare, REPEATS);
	struct row row = {what, x - y, "us", x, y, "us", "MPI_Allgather"};

	write_row(bench, &row);
}

void bench_small(struct bench *bench)
{
	double one[REPEATS], many[REPEATS], bare[REPEATS];
	zero_job *job = open_job(bench);
	struct small s = {.bench = bench, .count = (64 << 10) / sizeof(float)};
	float *send, *recv;
	char name[16];

	for (int g = 0; g < GROUPS; g++) {
		snprintf(name, sizeof(name), "layer.%d", g);
		s.groups[g] = add_layer(job, name, ZERO_F32, s.count, false).group;
	}
	must(zero_layout(job));
	send = pages_new(s.count * sizeof(float), true);
	recv = pages_new(s.count * sizeof(float), true);
	gather_one(&s);
	for (int i = 0; i < REPEATS; i++) {
		one[i] = gather_one(&s);
		many[i] = gather_many(&s);
		bare[i] = gather_bare(&s, send, recv);
	}
	write_cost(bench, "gather of 64 KiB: more than the bare call", one, bare);
	write_cost(bench, "the same, 16 groups in one prefetch, each", many, bare);
	pages_free(send, s.count * sizeof(float));
	pages_free(recv, s.count * sizeof(float));
	must(zero_close(job));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Protection in the memory of nodes: what it adds to a step that is 30 times as long as a push, in
 * seconds and in seconds of the processors. Each rank counts as a node (tests/double/nodes.c), so
 * that its copies go to the other by TCP; their memory is one folder. The work of a step is a fixed
 * number of operations, which takes all cores, as training on processors does.
 */
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

enum { LAYERS = 4, TURNS = 5, STEPS = 3, TIMES = 30, VALUES = 1 << 12 };

struct protecting {
	struct bench *bench;
	zero_job *job;
	struct layer layers[LAYERS];
	uint64_t rounds; /* of the work of a step */
	double cpu;      /* seconds of the last block, of all ranks */
};

static const zero_adamw adamw = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

static double cpu_now(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static void work(uint64_t rounds)
{
	static float values[VALUES];

	for (uint64_t i = 0; i < rounds; i++)
		for (int v = 0; v < VALUES; v++)
			values[v] = values[v] * 0.999f + 0.5f;
	must_be(values[0] >= 0, "the work has another result");
}

static void step(struct protecting *p, bool protect)
{
	const zero_protect_options each = {.every = 1};

	for (int i = 0; i < LAYERS; i++) {
		must(zero_gather(p->layers[i].group, ZERO_DTYPE_PARAM));
		work(p->rounds / LAYERS);
		must_be(zero_gradient(p->layers[i].param), "there is no gradient");
		must(zero_reduce(p->layers[i].group));
		must(zero_release(p->layers[i].group));
	}
	must(zero_step(p->job, &adamw, NULL));
	if (protect)
		must(zero_protect(p->job, &each));
}

/* Steps, and the one after them, in which the last push may still be under way. */
static double block(struct protecting *p, bool protect)
{
	double start = clock_start(p->bench), cpu = cpu_now();

	for (int i = 0; i < STEPS; i++)
		step(p, protect);
	step(p, false);
	p->cpu = total(p->bench, cpu_now() - cpu);
	return clock_stop(p->bench, start);
}

/* Protections as fast as they go: each call waits for the one before. */
static double push_seconds(struct protecting *p)
{
	double seconds[TURNS], start;

	for (int i = 0; i < TURNS; i++) {
		zero_protect_options options = {.every = 1, .step = 1000 + (uint64_t)i};

		start = clock_start(p->bench);
		must(zero_protect(p->job, &options));
		seconds[i] = clock_stop(p->bench, start);
	}
	/* the first one waits for none */
	return median(seconds + 1, TURNS - 1);
}

/* As many rounds as take so long on the slowest rank, the same on all. The first trial is longer
   than the last push, which is still under way when it begins. */
static uint64_t rounds_for(struct protecting *p, double seconds)
{
	const uint64_t trial = 1 << 17;
	double start;

	work(trial);
	start = clock_start(p->bench);
	work(trial);
	return (uint64_t)((double)trial * seconds / clock_stop(p->bench, start)) + 1;
}

/* ---- what partners have received ------------------------------------------------------------- */

static double copied;

static int add_copy(const char *path, const struct stat *info, int type, struct FTW *at)
{
	(void)at;
	if (type == FTW_F && strstr(path, "-copy."))
		copied += (double)info->st_size;
	return 0;
}

/* There are two of each rank's. */
static void write_pushed(struct protecting *p, size_t count)
{
	/* a value, and its master and two moments in f32 */
	double each = 14.0 * (double)(LAYERS * count) / p->bench->world;

	copied = 0;
	if (!p->bench->rank)
		must_be(!nftw(p->bench->folder, add_copy, 16, FTW_PHYS), "no folder of copies");
	struct row row = {"protect: bytes a rank sends, bf16",
			  copied / 2 / p->bench->world / each,
			  "x",
			  copied / 2 / p->bench->world / 1e6,
			  each / 1e6,
			  "MB",
			  "14 bytes an element"};
	write_row(p->bench, &row);
}

void bench_protect(struct bench *bench)
{
	struct protecting p = {.bench = bench};
	double seconds[2][TURNS], cpu[2][TURNS], push, bare[2], ours[2];
	size_t count = scaled(bench, (size_t)1 << 18);
	zero_source source = zero_from_uniform(-1, 1, 1);
	char settings[4096];

	snprintf(settings, sizeof(settings), "stage=3 allgather=grouped protect_dir=%s",
		 bench->folder);
	p.job = open_job_as(bench, settings);
	for (int i = 0; i < LAYERS; i++) {
		char name[32];

		snprintf(name, sizeof(name), "h.%d.weight", i);
		p.layers[i] = add_layer(p.job, name, ZERO_BF16, count, true);
	}
	must(zero_layout(p.job));
	for (int i = 0; i < LAYERS; i++)
		must(zero_load(p.layers[i].param, &source));
	step(&p, false);
	push = push_seconds(&p);
	write_pushed(&p, count);
	p.rounds = rounds_for(&p, TIMES * push);
	for (int turn = -1; turn < TURNS; turn++)
		for (int protect = 0; protect < 2; protect++) {
			double took = block(&p, protect);

			if (turn < 0)
				continue;
			seconds[protect][turn] = took;
			cpu[protect][turn] = p.cpu;
		}
	/* A step bare, and one with all that its protection has added, also to the step after. */
	bare[0] = median(seconds[0], TURNS) / (STEPS + 1);
	bare[1] = median(cpu[0], TURNS) / (STEPS + 1);
	ours[0] = bare[0] + median(seconds[1], TURNS) / STEPS - median(seconds[0], TURNS) / STEPS;
	ours[1] = bare[1] + median(cpu[1], TURNS) / STEPS - median(cpu[0], TURNS) / STEPS;
	write_ratio(bench, "protect: a step of 30 pushes over the same unprotected", ours[0],
		    bare[0], "unprotected");
	write_ratio(bench, "protect: a step of 30 pushes over the same, of the processors", ours[1],
		    bare[1], "unprotected");
	struct row row = {"protect: a push", push, "s", push, bare[0], "s", "a step"};
	write_row(bench, &row);
	must(zero_close(p.job));
}

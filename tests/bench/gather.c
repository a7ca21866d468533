/* SPDX-License-Identifier: Apache-2.0 */
/* Gather of a 512 MiB group, as it is stored and as bf16. */
#include <stdio.h>

#include "bench.h"

struct gathered {
	struct bench *bench;
	zero_job *job;
	struct layer layer;
	const struct zero_kernels *kernels;
	float *shard, *whole;
	uint16_t *low; /* [count] */
	size_t count, part;
};

static double timed_gather(struct gathered *g, zero_dtype as)
{
	double start = clock_start(g->bench), seconds;

	must(zero_gather(g->layer.group, as));
	seconds = clock_stop(g->bench, start);
	must(zero_release(g->layer.group));
	return seconds;
}

static double timed_bare(struct gathered *g, MPI_Datatype type, const void *send, void *recv)
{
	double start = clock_start(g->bench);

	MPI_Allgather(send, (int)g->part, type, recv, (int)g->part, type, MPI_COMM_WORLD);
	return clock_stop(g->bench, start);
}

/* The first gather of the job: what it takes beside its output. */
static void memory_rows(struct gathered *g, double bytes)
{
	zero_memory memory;
	double start, kernel, own;

	resident_peak_reset();
	start = resident_now();
	timed_gather(g, ZERO_PARAM);
	kernel = largest(g->bench, resident_peak() - start - bytes);
	must(zero_memory_now(g->job, &memory));
	own = largest(g->bench, (double)(memory.gathered.peak + memory.staging.peak) - bytes);

	struct row row = {.what = "gather of f32: beyond the output, VmHWM",
			  .figure = kernel / 1e6,
			  .unit = "MB",
			  .goal = "<= 16",
			  .ours = (bytes + kernel) / 1e6,
			  .bare = bytes / 1e6,
			  .in = "MB",
			  .bare_name = "output"};
	write_row(g->bench, &row);
	row.what = "gather of f32: beyond the output, accounted";
	row.figure = own / 1e6;
	row.ours = (bytes + own) / 1e6;
	write_row(g->bench, &row);
}

static void gather_f32(struct gathered *g)
{
	double ours[REPEATS], bare[REPEATS];

	for (int i = 0; i < REPEATS; i++) {
		ours[i] = timed_gather(g, ZERO_PARAM);
		bare[i] = timed_bare(g, MPI_FLOAT, g->shard, g->whole);
	}
	write_ratio(g->bench, "gather of f32", "<= 1.05", ours, bare, "MPI_Allgather");
}

/* Beside the gather in f32 and a cast of all of it, and beside a cast of the own part first. */
static void gather_bf16(struct gathered *g)
{
	double ours[REPEATS], after[REPEATS], before[REPEATS], start;
	uint16_t *own = g->low + g->part * (size_t)g->bench->rank;

	timed_gather(g, ZERO_BF16);
	for (int i = 0; i < REPEATS; i++) {
		ours[i] = timed_gather(g, ZERO_BF16);

		start = clock_start(g->bench);
		MPI_Allgather(g->shard, (int)g->part, MPI_FLOAT, g->whole, (int)g->part, MPI_FLOAT,
			      MPI_COMM_WORLD);
		g->kernels->cast(ZERO_BF16, g->low, ZERO_F32, g->whole, g->count);
		after[i] = clock_stop(g->bench, start);

		start = clock_start(g->bench);
		g->kernels->cast(ZERO_BF16, own, ZERO_F32, g->shard, g->part);
		MPI_Allgather(MPI_IN_PLACE, 0, MPI_UINT16_T, g->low, (int)g->part, MPI_UINT16_T,
			      MPI_COMM_WORLD);
		before[i] = clock_stop(g->bench, start);
	}
	write_ratio(g->bench, "gather of f32 as bf16", "<= 0.55", ours, after,
		    "MPI_Allgather of f32, then a cast");
	write_ratio(g->bench, "gather of f32 as bf16", NULL, ours, before,
		    "cast of the shard, then MPI_Allgather of bf16");
}

void bench_gather(struct bench *bench)
{
	struct gathered g = {.bench = bench, .job = open_job(bench)};
	zero_source source = zero_from_constant(0.5);
	size_t first;
	void *shard;

	g.count = scaled(bench, (size_t)128 << 20);
	g.layer = add_layer(g.job, "layer", ZERO_F32, g.count, false);
	g.kernels = zero_kernels_choose("auto");
	must(zero_layout(g.job));
	must(zero_load(g.layer.param, &source));
	must(zero_shard(g.layer.param, &shard, &first, &g.part));
	g.shard = shard;
	memory_rows(&g, (double)g.count * sizeof(float));
	g.whole = pages_new(g.count * sizeof(float), true);
	gather_f32(&g);
	g.low = pages_new(g.count * sizeof(uint16_t), true);
	gather_bf16(&g);
	pages_free(g.low, g.count * sizeof(uint16_t));
	pages_free(g.whole, g.count * sizeof(float));
	must(zero_close(g.job));
}

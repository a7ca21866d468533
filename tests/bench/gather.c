/* SPDX-License-Identifier: Apache-2.0 */
/* Gather of a 2.03 GB parameter as it is stored, and of several groups in one submission. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

enum { PREFETCHED = 8, SIDES = 3 };

struct gathered {
	struct bench *bench;
	zero_job *job;
	struct layer layers[PREFETCHED];
	zero_group *groups[PREFETCHED];
	size_t layer_count; /* of the job */
	size_t count, part; /* elements of a layer, and of a rank's shard of it */
	uint16_t *shard, *whole;
	const struct zero_kernels *kernels;
	double sum;
};

static double timed_gather(void *context)
{
	struct gathered *g = context;
	double start = clock_start(g->bench), seconds;

	if (g->layer_count > 1)
		must(zero_prefetch(g->groups, g->layer_count, ZERO_DTYPE_PARAM));
	for (size_t i = 0; i < g->layer_count; i++)
		must(zero_gather(g->groups[i], ZERO_DTYPE_PARAM));
	seconds = clock_stop(g->bench, start);
	check_values(zero_data(g->layers[0].param), 0, g->count);
	for (size_t i = 0; i < g->layer_count; i++)
		must(zero_release(g->groups[i]));
	return seconds;
}

/* What is read in place comes to a rank's caches when it is read, and not before. */
static double read_all(struct gathered *g, const void *data)
{
	double start = clock_start(g->bench);

	g->sum += g->kernels->norm2(data, g->count / 2);
	return clock_stop(g->bench, start);
}

static double timed_bare(void *context)
{
	struct gathered *g = context;
	double start = clock_start(g->bench);

	for (size_t i = 0; i < g->layer_count; i++)
		bare_gather_16(g->whole + i * g->count, g->shard, g->part);
	return clock_stop(g->bench, start);
}

static double timed_gather_read(void *context)
{
	struct gathered *g = context;
	double start = clock_start(g->bench), seconds;

	must(zero_gather(g->groups[0], ZERO_DTYPE_PARAM));
	seconds = clock_stop(g->bench, start) + read_all(g, zero_data(g->layers[0].param));
	must(zero_release(g->groups[0]));
	return seconds;
}

static double timed_bare_read(void *context)
{
	struct gathered *g = context;
	double seconds = timed_bare(g);

	return seconds + read_all(g, g->whole);
}

/* Sides of a gather and one read of all of its output. */
static const struct side read_sides[] = {
	{"slurm-zero", timed_gather_read},
	{"MPI_Allgather", timed_bare_read},
};

/* As many bytes as a rank's output lacks at first, from memory that is warm. */
static double timed_memcpy(void *context)
{
	struct gathered *g = context;
	double start = clock_start(g->bench);

	for (size_t i = 0; i < g->layer_count; i++)
		for (size_t r = 1; r < (size_t)g->bench->world; r++)
			memcpy(g->whole + i * g->count + r * g->part, g->shard, g->part * 2);
	return clock_stop(g->bench, start);
}

static struct gathered open_gathered(struct bench *bench, size_t layers, size_t count)
{
	struct gathered g = {.bench = bench, .layer_count = layers, .count = count};
	uint16_t *tensor = pages_new(count * 2, true);
	zero_source source = zero_from_all(tensor);
	char name[32];

	fill(tensor, 0, count);
	g.job = open_job(bench);
	g.kernels = zero_kernels_choose("auto");
	g.part = count / (size_t)bench->world;
	for (size_t i = 0; i < layers; i++) {
		snprintf(name, sizeof(name), "layer.%zu", i);
		g.layers[i] = add_layer(g.job, name, ZERO_BF16, count, false);
		g.groups[i] = g.layers[i].group;
	}
	must(zero_layout(g.job));
	for (size_t i = 0; i < layers; i++)
		must(zero_load(g.layers[i].param, &source));
	pages_free(tensor, count * 2);
	return g;
}

/* The first gather of a job: what it takes beside its output, and what it sends. */
static void first_gather(struct gathered *g)
{
	double bytes = (double)(g->layer_count * g->count * 2), begin, beyond, sent;
	/* Within a node shards are read where they are. */
	const char *beside = sharing() ? "the shards, VmHWM of all ranks" : "the output, VmHWM";
	char what[96];
	bool one = g->layer_count == 1;
	zero_memory memory;

	clock_start(g->bench);
	begin = peak_begin();
	sent = sent_by(g->bench, g->job, timed_gather, g);
	beyond = peak_beyond(begin, sharing() ? 0 : bytes);
	beyond = sharing() ? total(g->bench, beyond) : largest(g->bench, beyond);
	snprintf(what, sizeof(what), "%s %s: beyond %s", one ? "gather" : "prefetch", where(),
		 beside);
	write_beyond(g->bench, what, beyond, bytes, one ? "output" : "outputs");
	snprintf(what, sizeof(what), "%s %s: bytes sent in all", one ? "gather" : "prefetch",
		 where());
	write_sent(g->bench, what, sent, bytes);
	if (!one || sharing())
		return;
	must(zero_memory_now(g->job, &memory));
	write_beyond(
		g->bench, "gather between nodes: beyond the output, accounted",
		largest(g->bench, (double)(memory.gathered.peak + memory.staging.peak) - bytes),
		bytes, "output");
}

static void measure(struct gathered *g, const struct side *sides, int repeats, double *seconds)
{
	size_t bytes = g->layer_count * g->count * 2;
	double read[2];
	char what[64];

	g->whole = pages_new(bytes, true);
	measure_sides(sides, SIDES, g, repeats, seconds);
	if (repeats == REPEATS && g->layer_count == 1) {
		measure_sides(read_sides, 2, g, SWEEP_REPEATS, read);
		snprintf(what, sizeof(what), "gather %s and one read of all: time", where());
		write_ratio(g->bench, what, read[0], read[1], "MPI_Allgather and the read");
	}
	pages_free(g->whole, bytes);
	g->whole = NULL;
}

static void one_size(struct bench *bench, const struct side *sides, size_t count, bool full)
{
	struct gathered g = open_gathered(bench, 1, count);
	double seconds[SIDES];
	char what[64];

	g.shard = pages_new(g.part * 2, true);
	if (full && bench->world > 1)
		first_gather(&g);
	measure(&g, sides, full ? REPEATS : SWEEP_REPEATS, seconds);
	if (bench->world == 2)
		write_sides(bench, "gather-size", (double)count * 2, sides, SIDES, seconds);
	if (full && bench->world > 1) {
		snprintf(what, sizeof(what), "gather %s: time", where());
		write_ratio(bench, what, seconds[0], seconds[1], "MPI_Allgather");
	}
	pages_free(g.shard, g.part * 2);
	must(zero_close(g.job));
}

static void at_ranks(struct bench *bench, const struct side *sides, size_t count)
{
	struct gathered g = open_gathered(bench, 1, count);
	double seconds[SIDES];

	g.shard = pages_new(g.part * 2, true);
	if (bench->world > 1) {
		write_point(bench, "gather-sent", ours_label(), bench->world,
			    sent_by(g.bench, g.job, timed_gather, &g));
		write_point(bench, "gather-sent", "floor: P(N-1), between nodes", bench->world,
			    (double)count * 2 * (bench->world - 1));
	}
	measure(&g, sides, SWEEP_REPEATS, seconds);
	/* Alone, a rank's output lacks nothing. */
	write_sides(bench, "gather-ranks", bench->world, sides, SIDES - (bench->world == 1),
		    seconds);
	pages_free(g.shard, g.part * 2);
	must(zero_close(g.job));
}

static void prefetched(struct bench *bench, const struct side *sides, size_t count)
{
	struct gathered g = open_gathered(bench, PREFETCHED, count);
	double seconds[SIDES];
	char what[64];

	g.shard = pages_new(g.part * 2, true);
	first_gather(&g);
	measure(&g, sides, REPEATS, seconds);
	snprintf(what, sizeof(what), "prefetch %s: time", where());
	write_ratio(bench, what, seconds[0], seconds[1], "8 x MPI_Allgather");
	pages_free(g.shard, g.part * 2);
	must(zero_close(g.job));
}

void bench_gather(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)247808 * 4096);
	size_t quarter = sweep_count(full, SWEEP_POINTS - 2);
	const struct side sides[SIDES] = {
		{ours_label(), timed_gather},
		{"MPI_Allgather", timed_bare},
		{"floor: memcpy of the other ranks' bytes", timed_memcpy},
	};

	must(zero_close(open_job(bench)));
	for (int i = 0; bench->world == 2 && i < SWEEP_POINTS; i++)
		one_size(bench, sides, sweep_count(full, i), i + 1 == SWEEP_POINTS);
	if (bench->world == 2)
		prefetched(bench, sides, sweep_count(full, SWEEP_POINTS - 3));
	if (bench->world == 4)
		one_size(bench, sides, quarter, true);
	at_ranks(bench, sides, quarter);
}

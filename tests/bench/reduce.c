/* SPDX-License-Identifier: Apache-2.0 */
/* Reduce of a 512 MiB gradient: each rank gets the sums of its own part. */
#include <stdio.h>

#include "bench.h"

enum { SIDES = 3, MOST_RANKS = 16 };

struct reduced {
	struct bench *bench;
	zero_job *job;
	struct layer layer;
	const struct zero_kernels *kernels;
	size_t count, part;
	float *send, *recv; /* [count], [part] */
};

/* A reduce returns at once; an agreement is queued behind it. */
static double reduce_once(void *context)
{
	struct reduced *r = context;
	float *gradient = zero_gradient(r->layer.param);
	double start;

	must_be(gradient, zero_last_error());
	for (size_t i = 0; i < r->count; i++)
		gradient[i] = (float)(r->bench->rank + 1);
	start = clock_start(r->bench);
	must(zero_reduce(r->layer.group));
	must(zero_agree(r->job, NULL));
	return clock_stop(r->bench, start);
}

/* A second reduce before a step would add to the first. */
static void use_up(struct reduced *r)
{
	const zero_adamw still = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

	must(zero_step(r->job, &still, NULL));
}

static double timed_reduce(void *context)
{
	double seconds = reduce_once(context);

	use_up(context);
	return seconds;
}

static double timed_bare(void *context)
{
	struct reduced *r = context;
	double start = clock_start(r->bench);

	bare_reduce(r->recv, r->send, r->part);
	return clock_stop(r->bench, start);
}

/* The sum alone, as if what others send were in this rank's memory. */
static double timed_sum(void *context)
{
	struct reduced *r = context;
	const void *parts[MOST_RANKS];
	double start = clock_start(r->bench);

	must_be(r->bench->world <= MOST_RANKS, "at most 16 ranks reduce");
	for (int i = 0; i < r->bench->world; i++)
		parts[i] = r->send + (size_t)i * r->part;
	r->kernels->sum(r->recv, ZERO_F32, parts, r->bench->world, r->part, false);
	return clock_stop(r->bench, start);
}

static void open_reduced(struct reduced *r, struct bench *bench, size_t count)
{
	*r = (struct reduced){.bench = bench, .job = open_job(bench), .count = count};
	r->part = count / (size_t)bench->world;
	r->kernels = zero_kernels_choose("auto");
	r->layer = add_layer(r->job, "layer", ZERO_F32, count, true);
	must(zero_layout(r->job));
	r->send = pages_new(count * 4, true);
	r->recv = pages_new(r->part * 4, true);
	for (size_t i = 0; i < count; i++)
		r->send[i] = (float)(bench->rank + 1);
}

/* What a reduce takes beside gradient and sums, and what it sends. */
static void first_reduce(struct reduced *r)
{
	double bytes = (double)r->count * 4, sent;
	zero_memory memory;
	char what[64];

	clock_start(r->bench);
	sent = sent_by(r->bench, r->job, reduce_once, r);
	must(zero_memory_now(r->job, &memory));
	use_up(r);
	snprintf(what, sizeof(what), "reduce %s: staging, accounted", where());
	write_beyond(r->bench, what, largest(r->bench, (double)memory.staging.peak), bytes,
		     "gradient");
	snprintf(what, sizeof(what), "reduce %s: bytes sent in all", where());
	write_sent(r->bench, what, sent, bytes);
}

static void at_ranks(struct reduced *r)
{
	double sent = sent_by(r->bench, r->job, timed_reduce, r);

	write_point(r->bench, "reduce-sent", ours_label(), r->bench->world, sent);
	write_point(r->bench, "reduce-sent", "floor: P(N-1), between nodes", r->bench->world,
		    (double)r->count * 4 * (r->bench->world - 1));
}

static void measure(struct bench *bench, size_t count, bool full, const char *plot, double x)
{
	const struct side sides[SIDES] = {
		{ours_label(), timed_reduce},
		{"naive: MPI_Reduce_scatter_block", timed_bare},
		{"floor: sum of own memory", timed_sum},
	};
	double seconds[SIDES];
	struct reduced r;
	char what[64];

	open_reduced(&r, bench, count);
	if (full && bench->world > 1)
		first_reduce(&r);
	if (!full && bench->world > 1)
		at_ranks(&r);
	measure_sides(sides, SIDES, &r, full ? REPEATS : SWEEP_REPEATS, seconds);
	if (plot)
		write_sides(bench, plot, x, sides, SIDES, seconds);
	snprintf(what, sizeof(what), "reduce %s: time", where());
	if (full && bench->world > 1)
		write_ratio(bench, what, seconds[0], seconds[1], "MPI_Reduce_scatter_block");
	pages_free(r.send, count * 4);
	pages_free(r.recv, r.part * 4);
	must(zero_close(r.job));
}

void bench_reduce(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)128 << 20);

	must(zero_close(open_job(bench)));
	for (int i = 0; bench->world == 2 && i < SWEEP_POINTS; i++) {
		size_t count = sweep_count(full, i);

		measure(bench, count, i + 1 == SWEEP_POINTS, "reduce-size", (double)count * 4);
	}
	if (bench->world == 4)
		measure(bench, full, true, NULL, 0);
	measure(bench, sweep_count(full, SWEEP_POINTS - 2), false, "reduce-ranks", bench->world);
}

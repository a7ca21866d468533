/* SPDX-License-Identifier: Apache-2.0 */
/* Gather of f32 masters as bf16: each rank casts its own part, and half the bytes travel. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

enum { SIDES = 4 };

struct cast {
	struct bench *bench;
	zero_job *job;
	struct layer layer;
	const struct zero_kernels *kernels;
	size_t count, part;
	float *shard, *whole; /* of the naive way */
	uint16_t *low;        /* [count] */
};

static double timed_gather(void *context)
{
	struct cast *c = context;
	double start = clock_start(c->bench), seconds;

	must(zero_gather(c->layer.group, ZERO_BF16));
	seconds = clock_stop(c->bench, start);
	must_be(((uint16_t *)zero_data(c->layer.param))[c->count - 1] == 0x3f00,
		"a gathered value is wrong");
	must(zero_release(c->layer.group));
	return seconds;
}

static double timed_naive(void *context)
{
	struct cast *c = context;
	double start = clock_start(c->bench);

	naive_gather_then_cast(c->kernels, c->low, c->whole, c->shard, c->part, c->bench->world);
	return clock_stop(c->bench, start);
}

static double timed_bare(void *context)
{
	struct cast *c = context;
	double start = clock_start(c->bench);

	c->kernels->cast(ZERO_BF16, c->low + c->part * (size_t)c->bench->rank, ZERO_F32, c->shard,
			 c->part);
	bare_gather_16(c->low, NULL, c->part);
	return clock_stop(c->bench, start);
}

/* A cast of the shard, and as many bytes copied as the output then lacks. */
static double timed_floor(void *context)
{
	struct cast *c = context;
	double start = clock_start(c->bench);

	c->kernels->cast(ZERO_BF16, c->low, ZERO_F32, c->shard, c->part);
	for (size_t r = 1; r < (size_t)c->bench->world; r++)
		memcpy(c->low + r * c->part, c->low, c->part * 2);
	return clock_stop(c->bench, start);
}

static struct cast open_cast(struct bench *bench, size_t count)
{
	struct cast c = {.bench = bench, .job = open_job(bench), .count = count};
	zero_source source = zero_from_constant(0.5);

	c.part = count / (size_t)bench->world;
	c.kernels = zero_kernels_choose("auto");
	c.layer = add_layer(c.job, "layer", ZERO_F32, count, false);
	must(zero_layout(c.job));
	must(zero_load(c.layer.param, &source));
	return c;
}

static void first_gather(struct cast *c)
{
	double bytes = (double)c->count * 2, begin, beyond, sent;
	char what[64];

	clock_start(c->bench);
	begin = peak_begin();
	sent = sent_by(c->bench, c->job, timed_gather, c);
	beyond = sharing() ? total(c->bench, peak_beyond(begin, 0)) - bytes
			   : largest(c->bench, peak_beyond(begin, bytes));
	write_beyond(c->bench,
		     sharing()
			     ? "gather as bf16 within a node: beyond one output, VmHWM of all ranks"
			     : "gather as bf16 between nodes: beyond the output, VmHWM",
		     beyond, bytes, "output");
	snprintf(what, sizeof(what), "gather as bf16 %s: bytes sent in all", where());
	write_sent(c->bench, what, sent, 2 * bytes);
}

static void at_ranks(struct cast *c)
{
	double sent = sent_by(c->bench, c->job, timed_gather, c);

	write_point(c->bench, "downcast-sent", ours_label(), c->bench->world, sent);
	write_point(c->bench, "downcast-sent", "naive: f32 gather, then cast", c->bench->world,
		    (double)c->count * 4 * (c->bench->world - 1));
}

static void measure(struct bench *bench, size_t count, bool full, const char *plot, double x)
{
	const struct side sides[SIDES] = {
		{ours_label(), timed_gather},
		{"naive: f32 gather, then cast", timed_naive},
		{"cast of the shard, then MPI_Allgather of bf16", timed_bare},
		{"floor: cast of the shard, memcpy of the rest", timed_floor},
	};
	struct cast c = open_cast(bench, count);
	double seconds[SIDES];
	char what[96];

	c.shard = pages_new(c.part * 4, false);
	for (size_t i = 0; i < c.part; i++)
		c.shard[i] = 0.5f;
	if (full && bench->world > 1)
		first_gather(&c);
	if (!full && bench->world > 1)
		at_ranks(&c);
	c.whole = pages_new(count * 4, true);
	c.low = pages_new(count * 2, true);
	measure_sides(sides, SIDES, &c, full ? REPEATS : SWEEP_REPEATS, seconds);
	if (plot)
		write_sides(bench, plot, x, sides, SIDES, seconds);
	if (full && bench->world > 1) {
		snprintf(what, sizeof(what), "gather as bf16 %s: time over f32 gather, then cast",
			 where());
		write_ratio(bench, what, seconds[0], seconds[1], "f32 gather, cast");
		snprintf(what, sizeof(what), "gather as bf16 %s: time over cast, then bf16 gather",
			 where());
		write_ratio(bench, what, seconds[0], seconds[2], "cast, bf16 gather");
	}
	pages_free(c.low, count * 2);
	pages_free(c.whole, count * 4);
	pages_free(c.shard, c.part * 4);
	must(zero_close(c.job));
}

/* 512 MiB of f32. */
void bench_downcast(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)128 << 20);
	size_t quarter = sweep_count(full, SWEEP_POINTS - 2);

	must(zero_close(open_job(bench)));
	for (int i = 0; bench->world == 2 && i < SWEEP_POINTS; i++) {
		size_t count = sweep_count(full, i);

		measure(bench, count, i + 1 == SWEEP_POINTS, "downcast-size", (double)count * 4);
	}
	if (bench->world == 4)
		measure(bench, full, true, NULL, 0);
	measure(bench, quarter, false, "downcast-ranks", bench->world);
}

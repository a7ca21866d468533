/* SPDX-License-Identifier: Apache-2.0 */
/* One huge parameter from a tensor that rank 0 has: every rank is sent its own slice. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"

enum { CHUNK = 40 << 20 };

static const char whole_label[] = "naive: broadcast all of it, then slice";
static const char chunks_label[] = "naive: broadcast by chunks of 40 MiB";

struct parted {
	struct bench *bench;
	size_t count, bytes, slice;
	zero_job *job;
	zero_param *param;
	uint16_t *tensor; /* rank 0's, else NULL */
	char *spare;      /* rank 0's copy; elsewhere room for a whole tensor */
	char *shard;      /* of the naive ways */
};

static double timed_load(void *context)
{
	struct parted *p = context;
	zero_source source = zero_from_rank(0, p->tensor);
	double start = clock_start(p->bench), seconds;

	must(zero_load(p->param, &source));
	seconds = clock_stop(p->bench, start);
	check_shard(p->param);
	return seconds;
}

static double timed_memcpy(void *context)
{
	struct parted *p = context;
	double start = clock_start(p->bench);

	if (p->tensor)
		memcpy(p->spare, p->tensor, p->bytes);
	return clock_stop(p->bench, start);
}

static double timed_whole(void *context)
{
	struct parted *p = context;
	double start = clock_start(p->bench);

	naive_broadcast_whole(p->shard, p->tensor, p->spare, p->bytes);
	return clock_stop(p->bench, start);
}

static double timed_chunks(void *context)
{
	struct parted *p = context;
	double start = clock_start(p->bench);

	naive_broadcast_chunks(p->shard, p->tensor, p->spare, p->bytes, CHUNK);
	return clock_stop(p->bench, start);
}

enum { OURS, FLOOR, BY_CHUNKS, AS_WHOLE, SIDES };

static void open_parted(struct parted *p)
{
	p->job = open_job(p->bench);
	p->param = add_layer(p->job, "embedding", ZERO_BF16, p->count, false).param;
}

static void write_all_sent(struct parted *p)
{
	int ranks = p->bench->world;

	write_point(p->bench, "partition-sent", ours_label(), ranks,
		    sent_by(p->bench, p->job, timed_load, p));
	write_point(p->bench, "partition-sent", "naive: broadcast", ranks,
		    naive_broadcast_whole(p->shard, p->tensor, p->spare, p->bytes));
	write_point(p->bench, "partition-sent", "floor: every slice but the owner's", ranks,
		    (double)(p->bytes - p->slice));
}

/* NAIVE: those ways too, which need the room of a whole tensor on every rank. SENT: count bytes. */
enum { NAIVE = 1, SENT = 2 };

static void measure(struct bench *bench, const struct side *sides, size_t count, int repeats,
		    int what, double *seconds)
{
	const bool naive = what & NAIVE;
	struct parted p = {.bench = bench, .count = count, .bytes = count * 2};
	bool root = bench->rank == 0;

	p.slice = p.bytes / (size_t)bench->world;
	p.tensor = root ? pages_new(p.bytes, true) : NULL;
	if (root)
		fill(p.tensor, 0, count);
	p.spare = root || naive ? pages_new(p.bytes, true) : NULL;
	p.shard = naive ? pages_new(p.slice, true) : NULL;
	open_parted(&p);
	must(zero_layout(p.job));
	measure_sides(sides, naive ? SIDES : BY_CHUNKS, &p, repeats, seconds);
	if (naive)
		check_values((uint16_t *)p.shard, p.slice / 2 * (size_t)bench->rank, p.slice / 2);
	if (what & SENT && bench->world > 1)
		write_all_sent(&p);
	must(zero_close(p.job));
	pages_free(p.shard, p.slice);
	pages_free(p.spare, p.bytes);
	pages_free(p.tensor, p.bytes);
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* What rank 0, or the worst of the others, held beyond its slice. */
static double beyond_slice(const struct parted *p, double begin, bool of_root)
{
	double extra = peak_beyond(begin, (double)p->slice);

	return largest(p->bench, (p->bench->rank == 0) == of_root ? extra : -INFINITY);
}

/* Each rank's own: none lies in memory that another one has given. */
static void memory_rows(const struct parted *p, double begin)
{
	const double slice = (double)p->slice;
	zero_memory memory;

	must(zero_memory_now(p->job, &memory));
	write_beyond(p->bench, "partition from rank 0: beyond tensor and shard, VmHWM there",
		     beyond_slice(p, begin, true), slice, "shard");
	write_beyond(p->bench, "partition from rank 0: beyond the shard, VmHWM elsewhere",
		     beyond_slice(p, begin, false), slice, "shard");
	write_beyond(p->bench, "partition from rank 0: beyond the shard, accounted",
		     largest(p->bench, (double)memory.total.peak - slice), slice, "shard");
}

static void memory_ours(struct parted *p)
{
	const double slice = (double)p->slice;
	double begin, sent;

	open_parted(p);
	clock_start(p->bench);
	begin = peak_begin();
	must(zero_layout(p->job));
	sent = sent_by(p->bench, p->job, timed_load, p);
	if (sharing())
		write_beyond(p->bench,
			     "partition from rank 0: beyond tensor and shards, VmHWM of all ranks",
			     total(p->bench, peak_beyond(begin, slice)), (double)p->bytes,
			     "shards");
	else
		memory_rows(p, begin);
	write_sent(p->bench, "partition from rank 0: bytes sent in all", sent, (double)p->bytes);
	must(zero_close(p->job));
}

static void memory_naive(struct parted *p, bool whole)
{
	size_t spare = p->tensor ? 0 : whole ? p->bytes : CHUNK;
	double begin;

	clock_start(p->bench);
	begin = peak_begin();
	p->shard = pages_new(p->slice, false);
	p->spare = spare ? pages_new(spare, false) : NULL;
	if (whole)
		naive_broadcast_whole(p->shard, p->tensor, p->spare, p->bytes);
	else
		naive_broadcast_chunks(p->shard, p->tensor, p->spare, p->bytes, CHUNK);
	pages_free(p->spare, spare);
	pages_free(p->shard, p->slice);
	write_beyond(p->bench,
		     whole ? "naive, broadcast all then slice: beyond the shard, VmHWM"
			   : "naive, broadcast by chunks: beyond the shard, VmHWM",
		     beyond_slice(p, begin, false), (double)p->slice, "shard");
}

/* All sides from fresh pages, as where a job begins. */
static void memory(struct bench *bench, size_t count)
{
	struct parted p = {.bench = bench, .count = count, .bytes = count * 2};

	p.slice = p.bytes / (size_t)bench->world;
	p.tensor = bench->rank ? NULL : pages_new(p.bytes, true);
	if (p.tensor)
		fill(p.tensor, 0, count);
	memory_ours(&p);
	if (!sharing()) {
		memory_naive(&p, false);
		memory_naive(&p, true);
	}
	pages_free(p.tensor, p.bytes);
}

/* ---- the subject ----------------------------------------------------------------------------- */

/* 247808 x 4096 of bf16 are 2.03 GB. */
void bench_partition(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)247808 * 4096);
	const struct side sides[SIDES] = {
		[OURS] = {ours_label(), timed_load},
		[FLOOR] = {"floor: one memcpy of the tensor", timed_memcpy},
		[BY_CHUNKS] = {chunks_label, timed_chunks},
		[AS_WHOLE] = {whole_label, timed_whole},
	};
	double seconds[SIDES];
	char what[64];

	/* Before ranks can meet there must be some. */
	must(zero_close(open_job(bench)));
	if (bench->world > 1)
		memory(bench, bench->world == 2 ? full : sweep_count(full, SWEEP_POINTS - 2));
	for (int i = 0; bench->world == 2 && i < SWEEP_POINTS; i++) {
		size_t count = sweep_count(full, i);

		measure(bench, sides, count, i + 1 == SWEEP_POINTS ? REPEATS : SWEEP_REPEATS, NAIVE,
			seconds);
		write_sides(bench, "partition-size", (double)count * 2, sides, SIDES, seconds);
	}
	if (bench->world != 2)
		measure(bench, sides, full, SWEEP_REPEATS, 0, seconds);
	snprintf(what, sizeof(what), "partition from rank 0 %s: time", where());
	if (bench->world > 1)
		write_ratio(bench, what, seconds[OURS], seconds[FLOOR], "memcpy of the tensor");
	if (bench->world > 2) {
		double two = earlier(bench, what, 2);

		snprintf(what, sizeof(what), "partition from rank 0 %s: time over that of 2 ranks",
			 where());
		write_ratio(bench, what, seconds[OURS], two, "2 ranks");
	}
	/* All ways, at a size that every rank has room for. */
	measure(bench, sides, sweep_count(full, SWEEP_POINTS - 2), SWEEP_REPEATS, NAIVE | SENT,
		seconds);
	write_sides(bench, "partition-ranks", bench->world, sides, SIDES, seconds);
}

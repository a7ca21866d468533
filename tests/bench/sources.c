/* SPDX-License-Identifier: Apache-2.0 */
/* The same huge parameter from what every rank has at hand: a file, a tensor, or random numbers. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench.h"

struct loaded {
	struct bench *bench;
	size_t count, bytes, slice;
	zero_job *job;
	zero_param *param;
	zero_source source;
	const char *path;
	void *buffer; /* of the bare read, warm */
};

static void write_file(const char *path, size_t count)
{
	const size_t piece = 8 << 20;
	uint16_t *buffer = malloc(piece * sizeof(*buffer));
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	must_be(buffer && fd >= 0, "the file to load from cannot be made");
	for (size_t at = 0; at < count; at += piece) {
		size_t here = count - at < piece ? count - at : piece;

		fill(buffer, at, here);
		must_be(write(fd, buffer, here * 2) == (ssize_t)(here * 2),
			"the file to load from cannot be written: is TMPDIR full?");
	}
	/* The disk is not to be busy with it later. */
	fdatasync(fd);
	close(fd);
	free(buffer);
}

/* What a reader without a library does. */
static double timed_pread(void *context)
{
	struct loaded *l = context;
	double start = clock_start(l->bench);
	int fd = open(l->path, O_RDONLY | O_CLOEXEC);

	must_be(fd >= 0, "the file to load from cannot be opened");
	for (size_t at = 0; at < l->slice;) {
		ssize_t got = pread(fd, (char *)l->buffer + at, l->slice - at,
				    (off_t)(l->slice * (size_t)l->bench->rank + at));

		must_be(got > 0, "the file to load from cannot be read");
		at += (size_t)got;
	}
	close(fd);
	return clock_stop(l->bench, start);
}

static double timed_load(void *context)
{
	struct loaded *l = context;
	double start = clock_start(l->bench), seconds;

	must(zero_load(l->param, &l->source));
	seconds = clock_stop(l->bench, start);
	if (l->source.kind != ZERO_FROM_NORMAL)
		check_shard(l->param);
	return seconds;
}

/* The first load of a job: what it takes from the kernel, and what it sends. */
static void first_load(struct loaded *l, const char *beyond, const char *accounted,
		       const char *sent)
{
	const double slice = (double)l->slice;
	zero_memory memory;
	double begin, all;

	l->job = open_job(l->bench);
	l->param = add_layer(l->job, "embedding", ZERO_BF16, l->count, false).param;
	begin = peak_begin();
	must(zero_layout(l->job));
	all = sent_by(l->bench, l->job, timed_load, l);
	write_beyond(l->bench, beyond, total(l->bench, peak_beyond(begin, slice)), (double)l->bytes,
		     "shards");
	must(zero_memory_now(l->job, &memory));
	if (accounted)
		write_beyond(l->bench, accounted,
			     largest(l->bench, (double)memory.total.peak - slice), slice, "shard");
	write_sent(l->bench, sent, all, (double)l->bytes);
}

static const struct side file_sides[] = {
	{"slurm-zero", timed_load},
	{"floor: pread of the slices", timed_pread},
};

static void from_file(struct bench *bench, size_t count, bool full)
{
	struct loaded l = {.bench = bench, .count = count, .bytes = count * 2};
	char path[4096];
	double seconds[2];
	zero_tensor tensor = {
		.name = "embedding", .dtype = ZERO_BF16, .ndim = 1, .shape = {count}, .path = path};

	snprintf(path, sizeof(path), "%s/embedding.raw", bench->folder);
	if (bench->rank == 0)
		write_file(path, count);
	clock_start(bench);
	l.slice = l.bytes / (size_t)bench->world;
	l.path = path;
	l.source = zero_from_file(&tensor);
	if (full) {
		first_load(&l, "partition from a file: beyond the shards, VmHWM of all ranks",
			   "partition from a file: beyond the shard, accounted",
			   "partition from a file: bytes sent in all");
	} else {
		l.job = open_job(bench);
		l.param = add_layer(l.job, "embedding", ZERO_BF16, count, false).param;
		must(zero_layout(l.job));
	}
	l.buffer = pages_new(l.slice, true);
	measure_sides(file_sides, 2, &l, full ? REPEATS : SWEEP_REPEATS, seconds);
	write_sides(bench, "file-size", (double)l.bytes, file_sides, 2, seconds);
	if (full)
		write_ratio(bench, "partition from a file: time", seconds[0], seconds[1],
			    "pread of the slices");
	pages_free(l.buffer, l.slice);
	must(zero_close(l.job));
	clock_start(bench);
	if (bench->rank == 0)
		unlink(path);
}

static void from_all(struct bench *bench, size_t count)
{
	struct loaded l = {.bench = bench, .count = count, .bytes = count * 2};
	uint16_t *tensor = pages_new(l.bytes, true);

	fill(tensor, 0, count);
	l.slice = l.bytes / (size_t)bench->world;
	l.source = zero_from_all(tensor);
	first_load(&l, "partition from all ranks: beyond tensor and shards, VmHWM of all ranks",
		   NULL, "partition from all ranks: bytes sent in all");
	must(zero_close(l.job));
	pages_free(tensor, l.bytes);
}

static void from_normal(struct bench *bench, size_t count)
{
	struct loaded l = {.bench = bench, .count = count, .bytes = count * 2};

	l.slice = l.bytes / (size_t)bench->world;
	l.source = zero_from_normal(0, 0.02, 1);
	first_load(&l, "partition by initialiser: beyond the shards, VmHWM of all ranks", NULL,
		   "partition by initialiser: bytes sent in all");
	must(zero_close(l.job));
}

void bench_sources(struct bench *bench)
{
	size_t full = scaled(bench, (size_t)247808 * 4096);

	must(zero_close(open_job(bench)));
	for (int i = SWEEP_POINTS; i--;)
		from_file(bench, sweep_count(full, i), i == SWEEP_POINTS - 1);
	from_all(bench, full);
	from_normal(bench, sweep_count(full, SWEEP_POINTS - 2));
}

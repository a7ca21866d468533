/* SPDX-License-Identifier: Apache-2.0 */
/* One huge parameter, from a file that all ranks read and from a tensor that rank 0 has. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

/* What the file and the tensor hold; neighbours differ, and so do slices. */
static uint16_t value(size_t i)
{
	return (uint16_t)(i ^ i >> 16);
}

static void fill(uint16_t *out, size_t first, size_t count)
{
	for (size_t i = 0; i < count; i++)
		out[i] = value(first + i);
}

/* A figure of wrong values would be worth nothing. */
static void check(zero_param *param)
{
	size_t first, count;
	void *data;

	must(zero_shard(param, &data, &first, &count));
	for (size_t i = 0; i < count; i += 4999)
		must_be(((uint16_t *)data)[i] == value(first + i), "a loaded value is wrong");
	must_be(((uint16_t *)data)[count - 1] == value(first + count - 1),
		"the last value loaded is wrong");
}

static void write_file(const char *path, size_t count)
{
	const size_t piece = 8 << 20;
	uint16_t *buffer = malloc(piece * sizeof(*buffer));
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	must_be(buffer && fd >= 0, "the file to load from cannot be made");
	for (size_t at = 0; at < count; at += piece) {
		size_t now = count - at < piece ? count - at : piece;

		fill(buffer, at, now);
		must_be(write(fd, buffer, now * 2) == (ssize_t)(now * 2),
			"the file to load from cannot be written: is TMPDIR full?");
	}
	/* The disk is not to be busy with it later. */
	fdatasync(fd);
	close(fd);
	free(buffer);
}

/* What a reader without a library does. */
static void read_bare(const char *path, void *out, size_t at, size_t bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	must_be(fd >= 0, "the file to load from cannot be opened");
	while (bytes) {
		ssize_t got = pread(fd, out, bytes, (off_t)at);

		must_be(got > 0, "the file to load from cannot be read");
		out = (char *)out + got;
		at += (size_t)got;
		bytes -= (size_t)got;
	}
	close(fd);
}

/* Bytes beyond `wanted` that rank 0, or the worst of the others, ever held since `start`. */
static double beyond(const struct bench *bench, double start, double wanted, bool of_root)
{
	double extra = resident_peak() - start - wanted;

	return largest(bench, (bench->rank == 0) == of_root ? extra : -INFINITY);
}

static double accounted(const struct bench *bench, zero_job *job, double wanted)
{
	zero_memory memory;

	must(zero_memory_now(job, &memory));
	return largest(bench, (double)memory.total.peak - wanted);
}

static void memory_row(struct bench *bench, const char *what, double extra, double shard)
{
	struct row row = {.what = what,
			  .figure = extra / 1e6,
			  .unit = "MB",
			  .goal = "<= 16",
			  .ours = (shard + extra) / 1e6,
			  .bare = shard / 1e6,
			  .in = "MB",
			  .bare_name = "shard"};

	write_row(bench, &row);
}

static double timed_load(struct bench *bench, zero_param *param, const zero_source *source)
{
	double start = clock_start(bench), seconds;

	must(zero_load(param, source));
	seconds = clock_stop(bench, start);
	check(param);
	return seconds;
}

/* The kernel's peak around the layout and the first load. */
struct peaks {
	double root, others, accounted;
};

/* A job for each repetition: its first load meets fresh pages, its second warm ones. */
static void load_twice(struct bench *bench, size_t count, const zero_source *source, double *fresh,
		       double *warm, struct peaks *peaks)
{
	zero_job *job = open_job(bench);
	zero_param *param = add_layer(job, "embedding", ZERO_BF16, count, false).param;
	double shard = (double)count * 2 / bench->world, start;

	resident_peak_reset();
	start = resident_now();
	must(zero_layout(job));
	*fresh = timed_load(bench, param, source);
	if (peaks) {
		peaks->root = beyond(bench, start, shard, true);
		peaks->others = beyond(bench, start, shard, false);
		peaks->accounted = accounted(bench, job, shard);
	}
	*warm = timed_load(bench, param, source);
	must(zero_close(job));
}

static void from_file(struct bench *bench, size_t count)
{
	double fresh[REPEATS], warm[REPEATS], bare_fresh[REPEATS], bare_warm[REPEATS], start;
	size_t bytes = count * 2, slice = bytes / (size_t)bench->world;
	size_t at = slice * (size_t)bench->rank;
	struct peaks peaks;
	void *buffer;
	char path[4096];

	snprintf(path, sizeof(path), "%s/embedding.raw", bench->folder);
	if (bench->rank == 0)
		write_file(path, count);
	clock_start(bench);
	zero_tensor tensor = {
		.name = "embedding", .dtype = ZERO_BF16, .ndim = 1, .shape = {count}, .path = path};
	zero_source source = zero_from_file(&tensor);

	/* The first load of all counts for memory: nothing of MPI's is warm then either. */
	load_twice(bench, count, &source, &fresh[0], &warm[0], &peaks);
	buffer = pages_new(slice, true);
	for (int i = 0; i < REPEATS; i++) {
		void *other = pages_new(slice, false);

		load_twice(bench, count, &source, &fresh[i], &warm[i], NULL);
		start = clock_start(bench);
		read_bare(path, buffer, at, slice);
		bare_warm[i] = clock_stop(bench, start);
		start = clock_start(bench);
		read_bare(path, other, at, slice);
		bare_fresh[i] = clock_stop(bench, start);
		pages_free(other, slice);
	}
	pages_free(buffer, slice);
	clock_start(bench);
	if (bench->rank == 0)
		unlink(path);
	memory_row(bench, "partition from a file: beyond the shard, VmHWM",
		   fmax(peaks.root, peaks.others), (double)slice);
	memory_row(bench, "partition from a file: beyond the shard, accounted", peaks.accounted,
		   (double)slice);
	write_ratio(bench, "partition from a file", "<= 1.2", warm, bare_warm,
		    "pread of the slices");
	write_ratio(bench, "partition from a file, fresh pages", NULL, fresh, bare_fresh,
		    "pread of the slices");
}

static void traffic_row(struct bench *bench, const zero_source *source, size_t count)
{
	zero_job *job = open_job(bench);
	zero_param *param = add_layer(job, "embedding", ZERO_BF16, count, false).param;
	zero_traffic traffic;
	double sent;

	must(zero_layout(job));
	must(zero_load(param, source));
	must(zero_traffic_now(job, &traffic));
	sent = (double)traffic.bytes_sent;
	MPI_Allreduce(MPI_IN_PLACE, &sent, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	must(zero_close(job));
	double whole = (double)count * 2;
	struct row row = {.what = "partition from rank 0: bytes sent in all",
			  .figure = sent / whole,
			  .unit = "x",
			  .goal = bench->world == 2 ? "= 0.5" : "= 0.75",
			  .ours = sent / 1e6,
			  .bare = whole / 1e6,
			  .in = "MB",
			  .bare_name = "the tensor"};
	write_row(bench, &row);
}

static void from_rank(struct bench *bench, size_t count)
{
	double fresh[REPEATS], warm[REPEATS], bare[REPEATS], start;
	size_t bytes = count * 2;
	double shard = (double)bytes / bench->world;
	bool root = bench->rank == 0;
	uint16_t *tensor = root ? pages_new(bytes, true) : NULL;
	struct peaks peaks;
	void *copy;

	if (root)
		fill(tensor, 0, count);
	zero_source source = zero_from_rank(0, tensor);
	load_twice(bench, count, &source, &fresh[0], &warm[0], &peaks);
	copy = root ? pages_new(bytes, true) : NULL;
	for (int i = 0; i < REPEATS; i++) {
		load_twice(bench, count, &source, &fresh[i], &warm[i], NULL);
		start = clock_start(bench);
		if (root)
			memcpy(copy, tensor, bytes);
		bare[i] = clock_stop(bench, start);
	}
	traffic_row(bench, &source, count);
	if (root) {
		pages_free(copy, bytes);
		pages_free(tensor, bytes);
	}
	memory_row(bench, "partition from rank 0: beyond tensor and shard, VmHWM there", peaks.root,
		   shard);
	memory_row(bench, "partition from rank 0: beyond the shard, VmHWM elsewhere", peaks.others,
		   shard);
	memory_row(bench, "partition from rank 0: beyond the shard, accounted", peaks.accounted,
		   shard);
	write_ratio(bench, "partition from rank 0, 40M chunks", "<= 1.15", warm, bare,
		    "memcpy of the tensor");
	write_ratio(bench, "partition from rank 0, fresh pages", NULL, fresh, bare,
		    "memcpy of the tensor, warm");
}

/* 247808 x 4096 of bf16 are 2.03 GB. */
void bench_partition(struct bench *bench)
{
	size_t count = scaled(bench, (size_t)247808 * 4096);

	/* Before ranks can meet there must be some. */
	must(zero_close(open_job(bench)));
	from_file(bench, count);
	from_rank(bench, count);
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

void must_be(bool ok, const char *sentence)
{
	int initialised = 0;

	if (ok)
		return;
	fprintf(stderr, "bench: %s\n", sentence);
	MPI_Initialized(&initialised);
	if (initialised)
		MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
	exit(EXIT_FAILURE);
}

void must(zero_status status)
{
	must_be(!status, zero_last_error());
}

zero_job *open_job(struct bench *bench)
{
	zero_options options = {.settings = "stage=3 allgather=grouped stream_chunk=40M"};
	zero_job *job;

	must(zero_open(&options, &job));
	bench->rank = zero_rank(job);
	bench->world = zero_world(job);
	return job;
}

struct layer add_layer(zero_job *job, const char *name, zero_dtype dtype, size_t count,
		       bool trainable)
{
	zero_param_spec spec = {
		.name = name, .dtype = dtype, .ndim = 1, .shape = &count, .trainable = trainable};
	struct layer layer;

	must(zero_group_new(job, name, NULL, &layer.group));
	must(zero_param_new(layer.group, &spec, &layer.param));
	return layer;
}

size_t scaled(const struct bench *bench, size_t elements)
{
	const size_t unit = 64 * 64;
	size_t units = (size_t)((double)elements * bench->scale) / unit;

	return (units ? units : 1) * unit;
}

/* ---- time ------------------------------------------------------------------------------------ */

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* MPI's own waiting takes a core, and memory's bandwidth with it. */
static void rest(void)
{
	const struct timespec pause = {0, 50000};
	MPI_Request request;
	int done = 0;

	MPI_Ibarrier(MPI_COMM_WORLD, &request);
	while (MPI_Test(&request, &done, MPI_STATUS_IGNORE), !done)
		nanosleep(&pause, NULL);
}

double clock_start(const struct bench *bench)
{
	if (bench->world > 1) {
		rest();
		MPI_Barrier(MPI_COMM_WORLD);
	}
	return now();
}

double largest(const struct bench *bench, double value)
{
	if (bench->world > 1)
		MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return value;
}

double clock_stop(const struct bench *bench, double start)
{
	double seconds = now() - start;

	if (bench->world > 1)
		rest();
	return largest(bench, seconds);
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

double median(const double *values, int count)
{
	double sorted[64];

	must_be(count > 0 && count <= 64, "a median is of 1 to 64 values");
	memcpy(sorted, values, (size_t)count * sizeof(double));
	qsort(sorted, (size_t)count, sizeof(double), by_value);
	return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* ---- memory ---------------------------------------------------------------------------------- */

void touch(void *pages, size_t bytes)
{
	memset(pages, 1, bytes);
}

void *pages_new(size_t bytes, bool touched)
{
	const size_t huge = 2 << 20;
	char *mapped = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			    -1, 0);
	size_t before;

	must_be(mapped != MAP_FAILED, "no memory; BENCH_SCALE=0.25 makes all sizes smaller");
	before = -(uintptr_t)mapped % huge;
	if (before)
		munmap(mapped, before);
	munmap(mapped + before + bytes, huge - before);
	madvise(mapped + before, bytes, MADV_HUGEPAGE);
	if (touched)
		touch(mapped + before, bytes);
	return mapped + before;
}

void pages_free(void *pages, size_t bytes)
{
	munmap(pages, bytes);
}

/* A line of the process's status, such as "VmHWM:   123 kB", in bytes. */
static double status_bytes(const char *key)
{
	FILE *file = fopen("/proc/self/status", "re");
	double bytes = NAN;
	char line[256];

	while (file && fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)))
			bytes = atof(line + strlen(key)) * 1024;
	if (file)
		fclose(file);
	return bytes;
}

double resident_now(void)
{
	return status_bytes("VmRSS:");
}

double resident_peak(void)
{
	return status_bytes("VmHWM:");
}

void resident_peak_reset(void)
{
	int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);

	must_be(fd >= 0 && write(fd, "5", 1) == 1,
		"the kernel's peak of resident memory cannot be reset: /proc/self/clear_refs");
	close(fd);
}

/* ---- rows ------------------------------------------------------------------------------------ */

void write_row(struct bench *bench, const struct row *row)
{
	if (bench->rank)
		return;
	fprintf(bench->rows, "%s\t%d\t%.6g\t%s\t%s\t%.6g\t%.6g\t%s\t%s\n", row->what, bench->world,
		row->figure, row->unit, row->goal ? row->goal : "-", row->ours, row->bare,
		row->in ? row->in : "-", row->bare_name ? row->bare_name : "-");
	fflush(bench->rows);
}

void write_ratio(struct bench *bench, const char *what, const char *goal, const double *ours,
		 const double *bare, const char *bare_name)
{
	double x = median(ours, REPEATS), y = median(bare, REPEATS);
	struct row row = {what, x / y, "x", goal, x, y, "s", bare_name};

	write_row(bench, &row);
}

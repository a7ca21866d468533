/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "record.h"

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

/* ---- jobs ------------------------------------------------------------------------------------ */

/* What run.sh says. */
bool sharing(void)
{
	const char *share = getenv("ZERO_SHARE");

	return !share || strcmp(share, "1");
}

const char *where(void)
{
	return sharing() ? "within a node" : "between nodes";
}

const char *ours_label(void)
{
	return sharing() ? "slurm-zero, within a node" : "slurm-zero, between nodes";
}

zero_job *open_job_as(struct bench *bench, const char *settings)
{
	zero_options options = {.settings = settings};
	zero_job *job;

	must(zero_open(&options, &job));
	bench->rank = zero_rank(job);
	bench->world = zero_world(job);
	return job;
}

zero_job *open_job(struct bench *bench)
{
	return open_job_as(bench, "stage=3 allgather=grouped stream_chunk=40M");
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

static double sent_so_far(zero_job *job)
{
	zero_traffic traffic;

	must(zero_traffic_now(job, &traffic));
	return (double)traffic.bytes_sent;
}

double sent_by(const struct bench *bench, zero_job *job, double (*run)(void *context),
	       void *context)
{
	double before = sent_so_far(job);

	run(context);
	return total(bench, sent_so_far(job) - before);
}

size_t scaled(const struct bench *bench, size_t elements)
{
	const size_t unit = 64 * 64;
	size_t units = (size_t)((double)elements * bench->scale) / unit;

	return (units ? units : 1) * unit;
}

size_t sweep_count(size_t largest, int i)
{
	const size_t unit = 64 * 64;
	size_t units = (largest / unit) >> 2 * (SWEEP_POINTS - 1 - i);

	return (units ? units : 1) * unit;
}

/* ---- time ------------------------------------------------------------------------------------ */

double now(void)
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

double total(const struct bench *bench, double value)
{
	if (bench->world > 1)
		MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
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

void measure_sides(const struct side *sides, int count, void *context, int repeats, double *seconds)
{
	double all[16][REPEATS];

	must_be(count <= 16 && repeats <= REPEATS, "too many sides or repetitions");
	for (int s = 0; s < count; s++)
		sides[s].run(context);
	for (int i = 0; i < repeats; i++)
		for (int s = 0; s < count; s++)
			all[s][i] = sides[s].run(context);
	for (int s = 0; s < count; s++)
		seconds[s] = median(all[s], repeats);
}

/* ---- what is recorded ------------------------------------------------------------------------ */

void write_row(struct bench *bench, const struct row *row)
{
	if (bench->rank)
		return;
	fprintf(bench->record, "row\t%s\t%s\t%d\t%.6g\t%s\t%.6g\t%.6g\t%s\t%s\n", bench->subject,
		row->what, bench->world, row->figure, row->unit, row->ours, row->bare,
		row->in ? row->in : "-", row->bare_name ? row->bare_name : "-");
	fflush(bench->record);
}

void write_ratio(struct bench *bench, const char *what, double ours, double bare,
		 const char *bare_name)
{
	struct row row = {what, ours / bare, "x", ours, bare, "s", bare_name};

	write_row(bench, &row);
}

void write_beyond(struct bench *bench, const char *what, double beyond, double asked,
		  const char *asked_name)
{
	struct row row = {what,        beyond / 1e6, "MB",      (asked + beyond) / 1e6,
			  asked / 1e6, "MB",         asked_name};

	write_row(bench, &row);
}

void write_sent(struct bench *bench, const char *what, double sent, double whole)
{
	struct row row = {what, sent / whole, "x", sent / 1e6, whole / 1e6, "MB", "all of it"};

	write_row(bench, &row);
}

void write_point(struct bench *bench, const char *plot, const char *label, double x, double y)
{
	if (bench->rank)
		return;
	fprintf(bench->record, "point\t%s\t%s\t%.6g\t%.6g\n", plot, label, x, y);
	fflush(bench->record);
}

void write_sides(struct bench *bench, const char *plot, double x, const struct side *sides,
		 int count, const double *seconds)
{
	for (int s = 0; s < count; s++)
		write_point(bench, plot, sides[s].label, x, seconds[s]);
}

double earlier(const struct bench *bench, const char *what, int ranks)
{
	struct record record = record_read(bench->path);
	const struct recorded_row *row = record_find(&record, what, ranks);
	double ours = row ? row->ours : NAN;

	record_free(&record);
	return ours;
}

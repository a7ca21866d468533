/* SPDX-License-Identifier: Apache-2.0 */
/* What the subjects of make bench share: clocks, medians, memory, and rows of the table. */
#ifndef BENCH_H
#define BENCH_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels.h"
#include "zero.h"

#define MIB ((double)(1 << 20))

enum { REPEATS = 7 };

struct bench {
	int rank, world;
	double scale;       /* of sizes: 1, or less where memory is small */
	const char *folder; /* for large files; the caller removes it */
	FILE *rows;         /* rank 0's, else NULL */
};

struct row {
	const char *what;
	double figure;
	const char *unit;
	const char *goal; /* NULL: none */
	/* What the figure was made of; a NaN is left out. */
	double ours, bare;
	const char *in;        /* their unit */
	const char *bare_name; /* what is beside ours */
};

/* A subject measures one thing and writes its rows. */
void bench_partition(struct bench *bench);
void bench_gather(struct bench *bench);
void bench_reduce(struct bench *bench);
void bench_adamw(struct bench *bench);
void bench_step(struct bench *bench);
void bench_small(struct bench *bench);

/* ---- harness.c ------------------------------------------------------------------------------- */

/* Ends all ranks with the last error, unless the status is ZERO_OK. */
void must(zero_status status);
/* The same with a sentence of the bench, unless `ok`. */
void must_be(bool ok, const char *sentence);

/* A job at stage 3 with room for any group; sets rank and world. */
zero_job *open_job(struct bench *bench);
/* A group with one parameter of that many elements. */
struct layer {
	zero_group *group;
	zero_param *param;
};

struct layer add_layer(zero_job *job, const char *name, zero_dtype dtype, size_t count,
		       bool trainable);
/* `elements` by the scale, in whole multiples of 64 * 64. */
size_t scaled(const struct bench *bench, size_t elements);

/* Ranks meet, first asleep and then awake, so that none waits on a core that another needs. */
double clock_start(const struct bench *bench);
/* Seconds since `start` on the rank that was slowest. */
double clock_stop(const struct bench *bench, double start);
double median(const double *values, int count);
double largest(const struct bench *bench, double value); /* over the ranks */

/* Pages as the library's own are, huge where there are such; `touched` ones are warm. */
void *pages_new(size_t bytes, bool touched);
void pages_free(void *pages, size_t bytes);
void touch(void *pages, size_t bytes);

double resident_now(void); /* bytes */
void resident_peak_reset(void);
double resident_peak(void); /* bytes, since the reset */

void write_row(struct bench *bench, const struct row *row);
/* ours / bare, each the median of REPEATS seconds. */
void write_ratio(struct bench *bench, const char *what, const char *goal, const double *ours,
		 const double *bare, const char *bare_name);

/* ---- table.c --------------------------------------------------------------------------------- */

/* Rows from `path` as a table on stdout and as JSON in `json`. */
int print_table(const char *path, const char *json, const char *note);

/* ---- gpt.c ----------------------------------------------------------------------------------- */

int write_tokens(const char *path, size_t count, unsigned vocabulary);
/* Rows from the log of a training run. */
void bench_gpt_log(struct bench *bench, const char *log);

#endif

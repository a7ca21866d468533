/* SPDX-License-Identifier: Apache-2.0 */
/* The record of all subjects, and the goals that its rows are compared with. */
#ifndef BENCH_RECORD_H
#define BENCH_RECORD_H

#include <stdbool.h>
#include <stddef.h>

/* A row as it was written; strings are the record's. */
struct recorded_row {
	const char *subject, *what;
	int ranks;
	double figure;
	const char *unit;
	double ours, bare; /* NaN: not given */
	const char *in, *bare_name;
};

struct point {
	double x, y;
};

struct series {
	const char *plot, *label;
	struct point *points; /* by x */
	size_t count;
};

struct record {
	struct recorded_row *rows;
	size_t row_count;
	struct series *series; /* in the order in which they first appear */
	size_t series_count;
	char **lines; /* what the strings lie in */
	size_t line_count;
};

/* Ends the program if the file cannot be read or a line is not one of a record. */
struct record record_read(const char *path);
void record_free(struct record *record);
/* The last row of that name and number of ranks, or NULL. */
const struct recorded_row *record_find(const struct record *record, const char *what, int ranks);

/* ---- goals.c --------------------------------------------------------------------------------- */

/* A row of the cost table: what is wanted of one figure. */
struct goal {
	const char *operation; /* rows of one follow each other */
	const char *what;      /* name of the row */
	int ranks;
	const char *text; /* "<= 1.05": an order and a number */
};

extern const struct goal goals[]; /* ends with an operation of NULL */

const struct goal *goal_of(const char *what, int ranks); /* NULL: none */
bool goal_met(const struct goal *goal, double figure);

/* ---- machine.c ------------------------------------------------------------------------------- */

struct machine {
	char cpu[128], memory[32], kernel[160], mpi[256], date[32];
	long cores;
};

struct machine machine_now(void);

#endif

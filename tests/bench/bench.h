/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the subjects of make bench share: clocks, medians, memory, and the record that they write.
 *
 * A subject opens a job, sets up its SIDES (the library's way, the bare operation, naive ways),
 * measures them in turn, and records rows and points. A row is a figure of the table; its goal, if
 * it has one, stands in goals.c under the same name. A point belongs to a series of a plot, which
 * page.c has a line for.
 */
#ifndef BENCH_H
#define BENCH_H

#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels.h"
#include "zero.h"

enum { REPEATS = 7, SWEEP_REPEATS = 3, SWEEP_POINTS = 5 };

struct bench {
	int rank, world;
	double scale;        /* of sizes: 1, or less where memory is small */
	const char *folder;  /* for large files; the caller removes it */
	const char *subject; /* what is being measured */
	const char *path;    /* of the record */
	FILE *record;        /* every rank's, but rank 0 alone writes */
};

/* A subject measures one thing and records it: bench_gather and so on. */
#define BENCH_SUBJECTS(X) \
	X(partition)      \
	X(sources)        \
	X(load)           \
	X(flatten)        \
	X(gather)         \
	X(downcast)       \
	X(reduce)         \
	X(adamw)          \
	X(step)           \
	X(cores)          \
	X(copies)         \
	X(save)           \
	X(restore)        \
	X(protect)        \
	X(small)
#define DECLARE_SUBJECT(name) void bench_##name(struct bench *bench);
BENCH_SUBJECTS(DECLARE_SUBJECT)
#undef DECLARE_SUBJECT

/* ---- harness.c: jobs, time, and what is recorded --------------------------------------------- */

/* Ends all ranks with the last error, unless the status is ZERO_OK. */
void must(zero_status status);
/* The same with a sentence of the bench, unless `ok`. */
void must_be(bool ok, const char *sentence);

/*
 * Ranks of one node share memory, unless ZERO_SHARE=1 makes them behave as if each were on a node
 * of its own. What they do is in the names of rows and series: "within a node", "between nodes".
 */
bool sharing(void);
const char *where(void);
const char *ours_label(void);

/* A job at stage 3 with room for any group; sets rank and world. */
zero_job *open_job(struct bench *bench);
/* The same with settings of its own. */
zero_job *open_job_as(struct bench *bench, const char *settings);
/* A group with one parameter of that many elements. */
struct layer {
	zero_group *group;
	zero_param *param;
};

struct layer add_layer(zero_job *job, const char *name, zero_dtype dtype, size_t count,
		       bool trainable);
/* Bytes that all ranks together send while `run` runs. */
double sent_by(const struct bench *bench, zero_job *job, double (*run)(void *context),
	       void *context);

/* `elements` by the scale, in whole multiples of 64 * 64. */
size_t scaled(const struct bench *bench, size_t elements);
/* Size `i` of SWEEP_POINTS that end at `largest` elements, each four times the one before. */
size_t sweep_count(size_t largest, int i);

double now(void); /* seconds of the machine's own clock, the same on all ranks of a node */
/* Ranks meet, first asleep and then awake, so that none waits on a core that another needs. */
double clock_start(const struct bench *bench);
/* Seconds since `start` on the rank that was slowest. */
double clock_stop(const struct bench *bench, double start);
double median(const double *values, int count);
double largest(const struct bench *bench, double value); /* over the ranks */
double total(const struct bench *bench, double value);

/* One way to do a thing. In a plot "floor: ..." is what no way can be faster than. */
struct side {
	const char *label;
	double (*run)(void *context); /* returns seconds */
};

/* Each side once unmeasured and then `repeats` times, in turn; medians in `seconds`. */
void measure_sides(const struct side *sides, int count, void *context, int repeats,
		   double *seconds);
void write_sides(struct bench *bench, const char *plot, double x, const struct side *sides,
		 int count, const double *seconds);

struct row {
	const char *what;
	double figure;
	const char *unit;
	/* What the figure was made of; a NaN is left out. */
	double ours, bare;
	const char *in;        /* their unit */
	const char *bare_name; /* the baseline */
};

void write_row(struct bench *bench, const struct row *row);
/* ours / bare, in seconds. */
void write_ratio(struct bench *bench, const char *what, double ours, double bare,
		 const char *bare_name);
/* Bytes beyond those asked for, in MB. */
void write_beyond(struct bench *bench, const char *what, double beyond, double asked,
		  const char *asked_name);
/* Bytes sent as a part of those of the whole tensor. */
void write_sent(struct bench *bench, const char *what, double sent, double whole);
void write_point(struct bench *bench, const char *plot, const char *label, double x, double y);
/* `ours` of a row that an earlier run recorded at that many ranks; NaN if there is none. */
double earlier(const struct bench *bench, const char *what, int ranks);

/* ---- memory.c -------------------------------------------------------------------------------- */

/* Pages as the library's own are, huge where there are such; `touched` ones are warm. */
void *pages_new(size_t bytes, bool touched);
void pages_free(void *pages, size_t bytes); /* NULL is a no-op */

/* Pages of a file in memory, which stay what they are when this rank forgets that it has them. */
void *shared_pages_new(size_t bytes);
void forget_pages(const void *pages, size_t bytes);
/* Bytes of those that this rank has read or written since. */
double touched_bytes(const void *pages);

/*
 * Begins to follow the kernel's peak (VmHWM); returns what is resident now, in bytes. A page that
 * several ranks share, which the kernel counts for each of them, is divided by them (Pss), so that
 * the sum over ranks is right; where ranks share memory, no rank's figure alone means much.
 */
double peak_begin(void);
/* What the peak is beyond `begin` and the bytes asked for, on this rank. */
double peak_beyond(double begin, double asked);

/* ---- values.c: what tensors hold; neighbours differ, and so do slices ------------------------ */

void fill(uint16_t *out, size_t first, size_t count);
/* A figure of wrong values would be worth nothing. */
void check_values(const uint16_t *values, size_t first, size_t count);
void check_shard(zero_param *param);

/* ---- naive.c: how it is done without the library, by MPI alone ------------------------------- */

/*
 * This rank's slice of `bytes` of rank 0's tensor. `tensor` is NULL on other ranks; `spare` is room
 * for the whole there, or for a chunk. Both return the bytes that all ranks together have sent.
 */
double naive_broadcast_whole(void *shard, void *tensor, void *spare, size_t bytes);
double naive_broadcast_chunks(void *shard, void *tensor, void *spare, size_t bytes, size_t chunk);
/* low[world][part] as bf16 from every rank's shard[part]; f32 travels, through whole[world][part].
 */
void naive_gather_then_cast(const struct zero_kernels *kernels, uint16_t *low, float *whole,
			    const float *shard, size_t part, int world);
/* The bare collectives, for sizes within MPI's int. */
void bare_gather_16(uint16_t *whole, const uint16_t *shard, size_t part);
void bare_reduce(float *shard, const float *gradient, size_t part);
/* Every rank copies all tensors into its own flat buffer. */
void naive_flatten(void *flat, const void *const *tensors, size_t count, size_t bytes);

/* ---- table.c: the record as text and as JSON ------------------------------------------------- */

/* Rows as a table on stdout, all of the record as JSON in `json`. `misses` has a line "row's
   name<TAB>reason" for each that is known. */
int print_table(const char *record, const char *json, const char *misses, const char *note);

/* ---- gpt.c ----------------------------------------------------------------------------------- */

int write_tokens(const char *path, size_t count, unsigned vocabulary);
/* Rows from the logs of training runs at stage 3 and at stage 0. */
void bench_gpt_logs(struct bench *bench, const char *log, const char *unsharded);

#endif

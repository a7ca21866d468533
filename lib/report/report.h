/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a job's report says: libzero fills this in, zero_files.so writes it as JSON and as a page.
 * All of it is bounded, however long the job runs.
 */
#ifndef ZERO_REPORT_H
#define ZERO_REPORT_H

#include "backend/backend.h"

/* What submissions are for, as their labels say. */
enum zero_report_kind {
	ZERO_REPORT_GATHER,
	ZERO_REPORT_REDUCE,
	ZERO_REPORT_UPDATE, /* stepped values go to the other ranks */
	ZERO_REPORT_STEP,   /* the norm, on which ranks agree */
	ZERO_REPORT_LOAD,
	ZERO_REPORT_FLATTEN,
	ZERO_REPORT_CHECKPOINT,
	ZERO_REPORT_PROGRAM, /* zero_mean, zero_agree */
	ZERO_REPORT_OTHER,
	ZERO_REPORT_KINDS,
};

/* Those that each step of a training has. */
static inline bool zero_report_trains(enum zero_report_kind kind)
{
	return kind <= ZERO_REPORT_STEP;
}

enum {
	ZERO_REPORT_SAMPLES = 128, /* of a series: when it is full, each two become one */
	ZERO_REPORT_OPS = 256,     /* rows by kind and group that a rank keeps */
	ZERO_REPORT_GROUP = 96,
	ZERO_REPORT_LABEL = 96,
};

/* Submissions of one sort. Nanoseconds. */
struct zero_report_sum {
	uint64_t count, failed;
	uint64_t bytes; /* sent */
	uint64_t own;   /* between the submission before and this: nothing was communicated */
	uint64_t wait;  /* until all ranks had agreed to begin */
	uint64_t run;   /* until the data were there; with a device: until it was told */
};

struct zero_report_op {
	struct zero_report_sum sum;
	enum zero_report_kind kind;
	char group[ZERO_REPORT_GROUP]; /* "": it is of no group; "...": of those without a row */
};

/* Some steps, one after the other. Floats, since each rank sends all of its samples. */
struct zero_report_sample {
	float seconds;              /* since the job was opened, at the end of the last of them */
	float step, worst;          /* seconds of all that were measured, and of the longest */
	uint32_t steps;             /* so many were */
	float end;                  /* bytes on the device at the end of the last one */
	float peak[ZERO_MEM_KINDS]; /* by kind when the device had most within them */
};

struct zero_report_steps {
	uint64_t count; /* measured, from the end of one to the end of the next */
	double total, median, p95, worst;
};

struct zero_report_saves {
	uint64_t count, failed, bytes;
	double seconds;
};

/* One rank; the same struct on all, which send it to each other. */
struct zero_report_rank {
	int rank, local_rank, share, gpus, source, pid;
	char node[64], gpu[64];
	uint64_t budget, chunk, threshold, gather_limit; /* what it would have taken alone */
	uint64_t memory_free, vram_free, vram_total;
	zero_memory memory;
	zero_traffic traffic;
	struct zero_report_sum kinds[ZERO_REPORT_KINDS];
	struct zero_report_steps steps;
	struct zero_report_saves saves;
	/* The longest time within a step in which it communicated nothing: nanoseconds; when it
	   ended, in seconds; and what it then did. */
	uint64_t longest;
	double longest_at;
	char longest_before[ZERO_REPORT_LABEL];
	uint32_t every; /* steps of a sample */
	uint32_t sample_count;
	struct zero_report_sample samples[ZERO_REPORT_SAMPLES];
};

struct zero_report_option {
	const char *name, *value, *origin, *default_text;
};

struct zero_report {
	const char *id, *program, *host, *backend, *tier;
	const char *why; /* there is no more in it; NULL: it is of all ranks, to the end */
	int64_t started; /* seconds since 1970 */
	double seconds;
	int world, stage, restarts;
	uint64_t steps; /* of the optimizer, those of a checkpoint it began from among them */
	const struct zero_report_option *options;
	size_t option_count;
	/* All ranks in their order, or the one that wrote it. */
	const struct zero_report_rank *ranks;
	size_t rank_count;
	const struct zero_report_op *ops; /* of ranks[0] */
	size_t op_count;
};

/* ---- in zero_files.so; texts are malloc'ed --------------------------------------------------- */

const char *zero_report_kind_name(enum zero_report_kind kind); /* "gather" */
zero_status zero_report_json(const struct zero_report *report, char **text, size_t *bytes);
zero_status zero_report_page(const struct zero_report *report, char **text, size_t *bytes);

#endif

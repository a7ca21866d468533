/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The content of a job's report: libzero fills this in, zero_files.so writes it as JSON. All of it
 * is bounded, however long the job runs.
 */
#ifndef ZERO_REPORT_H
#define ZERO_REPORT_H

#include "backend/backend.h"

/* Whether each step of a training has submissions of the kind. */
static inline bool zero_report_trains(enum zero_work_kind kind)
{
	return kind <= ZERO_WORK_STEP;
}

enum {
	ZERO_REPORT_SAMPLES = 128, /* of a series: when it is full, each pair becomes one */
	ZERO_REPORT_OPS = 256,     /* rows by kind and group that a rank has */
	ZERO_REPORT_LABEL = 96,
	ZERO_REPORT_SLOW = 64, /* slow ranks that are listed */
};

/* Sums of some submissions. Times are nanoseconds. */
struct zero_report_sum {
	uint64_t count, failed;
	uint64_t bytes; /* sent */
	uint64_t own;   /* since the submission before: nothing was communicated */
	uint64_t wait;  /* until all ranks had agreed to begin */
	uint64_t run;   /* until the data were there; with a device, until the work was queued */
};

struct zero_report_op {
	struct zero_report_sum sum;
	enum zero_work_kind kind;
	char group[ZERO_WORK_GROUP]; /* "": no group; "...": all groups without a row */
};

/* Consecutive steps. Floats, since each rank sends all of its samples. */
struct zero_report_sample {
	float seconds;              /* from the opening of the job to the end of the last step */
	float step, worst;          /* seconds of all measured steps, and of the longest */
	uint32_t steps;             /* measured steps */
	float end;                  /* bytes on the device at the end of the last step */
	float peak[ZERO_MEM_KINDS]; /* by kind, when their total was highest within the steps */
};

struct zero_report_steps {
	uint64_t count; /* measured, each from the end of the step before */
	double total, median, p95, worst;
};

struct zero_report_saves {
	uint64_t count, failed, bytes;
	double seconds;
};

/* One rank. Ranks send this struct to each other. */
struct zero_report_rank {
	int rank, local_rank, share, gpus, source, pid;
	char node[64], gpu[64];
	uint64_t budget, chunk, threshold, gather_limit; /* what the rank alone would choose */
	uint64_t memory_free, vram_free, vram_total;
	zero_memory memory;
	zero_traffic traffic;
	struct zero_report_sum kinds[ZERO_WORK_KINDS];
	struct zero_report_steps steps;
	struct zero_report_saves saves, protections;
	/* The longest time within a step in which the rank communicated nothing, in nanoseconds;
	   its end, in seconds; and the label of the submission after it. */
	uint64_t longest;
	double longest_at;
	char longest_before[ZERO_REPORT_LABEL];
	uint32_t every; /* steps of a sample */
	uint32_t sample_count;
	struct zero_report_sample samples[ZERO_REPORT_SAMPLES];
};

/* Ranks that the others waited for, see --zero-slow, in some steps one after the other. */
struct zero_report_slow {
	int ranks[ZERO_REPORT_SLOW]; /* the first of them */
	size_t rank_count;
	char who[256];                 /* "ranks 2 to 3 on node n1" */
	uint64_t first_step, end_step; /* the step after the last; 0: it lasts */
	int64_t time;                  /* when it began, in seconds since 1970 */
	double at, end;                /* seconds since the job was opened */
	double waited;                 /* how long the others waited, at least */
};

struct zero_report_option {
	const char *name, *value, *origin, *default_text;
};

/* Parameters that are used slice by slice, of groups with slices. */
struct zero_streamed {
	size_t count;
	const char *largest;                 /* its name; NULL: there is none */
	uint64_t bytes, slices, slice_bytes; /* of it */
};

struct zero_report {
	const char *id, *program, *host, *backend, *tier;
	const char *gathers; /* how they went on GPUs; NULL: on CPUs */
	const char *why; /* why the report is of one rank alone; NULL: it is of all, to the end */
	struct zero_streamed streamed;
	int64_t started; /* seconds since 1970 */
	double seconds;
	int world, stage, restarts;
	uint64_t steps; /* of the optimizer, with those of the restored checkpoint */
	const struct zero_report_option *options;
	size_t option_count;
	/* All ranks in order, or the rank that wrote the report alone. */
	const struct zero_report_rank *ranks;
	size_t rank_count;
	const struct zero_report_op *ops; /* of ranks[0] */
	size_t op_count;
	const struct zero_report_slow *slow;
	size_t slow_count;
};

/* report_json.c, in zero_files.so: the report as text; malloc'ed. */
zero_status zero_report_json(const struct zero_report *report, char **text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank records for the report while the job runs: counters and a bounded series. */
#ifndef ZERO_RECORD_H
#define ZERO_RECORD_H

#include <pthread.h>

#include "files/report_content.h"

enum {
	ZERO_RECORD_OCTAVES = 40, /* of step times, from a microsecond */
	ZERO_RECORD_PARTS = 32,   /* of an octave: about 2 % of the time each */
};

struct zero_record {
	struct zero_meter meter;
	pthread_mutex_t lock; /* guards all below: the queue's thread adds submissions */
	struct zero_report_rank rank;
	struct zero_report_op ops[ZERO_REPORT_OPS];
	size_t op_count;
	unsigned short places[2 * ZERO_REPORT_OPS]; /* hash table of ops: index + 1 */
	uint64_t opened;                            /* nanoseconds, as all times */
	uint64_t last_end;                          /* of a submission */
	uint64_t last_step;
	bool stepped;                  /* there was a step */
	struct zero_report_sample now; /* the next sample, which is not complete */
	uint32_t now_steps;
	uint32_t times[ZERO_RECORD_OCTAVES * ZERO_RECORD_PARTS];
};

/* NULL: no memory. */
struct zero_record *zero_record_new(void);
void zero_record_free(struct zero_record *record); /* NULL is a no-op */
/* Records the end of a step at `now`. `high` is the memory by kind when it was highest since the
   last step, and `end` what the device holds now. */
void zero_record_step(struct zero_record *record, uint64_t now, const size_t high[ZERO_MEM_KINDS],
		      size_t end);
/* Copies the rank as it is at `now`, with the incomplete sample and the times of steps, and its
   rows; `ops` has room for ZERO_REPORT_OPS. Returns the number of rows. */
size_t zero_record_read(struct zero_record *record, uint64_t now, const size_t high[ZERO_MEM_KINDS],
			size_t end, struct zero_report_rank *rank, struct zero_report_op *ops);

#endif

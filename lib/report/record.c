/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank records for the report: sums of submissions by kind and group, and a series of
 * samples at the ends of steps. When the series is full, each pair of samples becomes one. Only
 * zero_record_new allocates.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/meter.h"
#include "core/error.h"
#include "report/record.h"

/* ---- submissions ----------------------------------------------------------------------------- */

/* The row of a group and kind, which is added if it is new. Once all rows are in use, further
   groups of a kind share the row "...". */
static struct zero_report_op *find_op(struct zero_record *record, const char *group,
				      enum zero_work_kind kind)
{
	const size_t places = sizeof(record->places) / sizeof(*record->places);
	size_t at = zero_hash(group, strlen(group), (uint64_t)kind) % places;
	struct zero_report_op *op;

	for (; record->places[at]; at = (at + 1) % places) {
		op = &record->ops[record->places[at] - 1];
		if (op->kind == kind && !strcmp(op->group, group))
			return op;
	}
	/* One row of each kind is reserved for "...". */
	if (record->op_count >= ZERO_REPORT_OPS - ZERO_WORK_KINDS && strcmp(group, "..."))
		return find_op(record, "...", kind);
	record->places[at] = (unsigned short)(record->op_count + 1);
	op = &record->ops[record->op_count++];
	op->kind = kind;
	strcpy(op->group, group);
	return op;
}

static void add_to(struct zero_report_sum *sum, const struct zero_metered *metered, uint64_t own)
{
	sum->count++;
	sum->failed += metered->failed;
	sum->bytes += metered->bytes;
	sum->own += own;
	sum->wait += metered->agreed - metered->ready;
	sum->run += metered->done - metered->agreed + metered->ready - metered->begun;
}

static void add_submission(void *context, const struct zero_metered *metered)
{
	struct zero_record *record = context;
	uint64_t own;

	pthread_mutex_lock(&record->lock);
	own = record->last_end < metered->begun ? metered->begun - record->last_end : 0;
	record->last_end = metered->done;
	add_to(&record->rank.kinds[metered->kind], metered, own);
	add_to(&find_op(record, metered->group, metered->kind)->sum, metered, own);
	/* Time before the first step does not count: the program may have read files. */
	if (own > record->rank.longest && record->stepped && zero_report_trains(metered->kind)) {
		record->rank.longest = own;
		record->rank.longest_at = (double)(metered->begun - record->opened) * 1e-9;
		snprintf(record->rank.longest_before, ZERO_REPORT_LABEL, "%.*s",
			 ZERO_REPORT_LABEL - 1, metered->label);
	}
	pthread_mutex_unlock(&record->lock);
}

/* ---- samples --------------------------------------------------------------------------------- */

static float total_of(const struct zero_report_sample *sample)
{
	float total = 0;

	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		if (zero_on_device((enum zero_memory_kind)i))
			total += sample->peak[i];
	return total;
}

/* Adds `next`, which comes after `sample`, to it. */
static void merge(struct zero_report_sample *sample, const struct zero_report_sample *next)
{
	struct zero_report_sample first = *sample;

	*sample = *next;
	sample->steps += first.steps;
	sample->step += first.step;
	if (first.worst > sample->worst)
		sample->worst = first.worst;
	if (total_of(&first) > total_of(sample))
		memcpy(sample->peak, first.peak, sizeof(first.peak));
}

/* Adds the complete sample to the series. */
static void store_sample(struct zero_record *record)
{
	struct zero_report_rank *rank = &record->rank;

	if (rank->sample_count == ZERO_REPORT_SAMPLES) {
		for (size_t i = 0; i < ZERO_REPORT_SAMPLES / 2; i++) {
			rank->samples[i] = rank->samples[2 * i];
			merge(&rank->samples[i], &rank->samples[2 * i + 1]);
		}
		rank->sample_count /= 2;
		rank->every *= 2;
	}
	rank->samples[rank->sample_count++] = record->now;
	record->now = (struct zero_report_sample){0};
	record->now_steps = 0;
}

static void add_sample(struct zero_record *record, uint64_t now, const size_t high[ZERO_MEM_KINDS],
		       size_t end, uint64_t step)
{
	struct zero_report_sample one = {
		.seconds = (float)((double)(now - record->opened) * 1e-9),
		.step = (float)((double)step * 1e-9),
		.worst = (float)((double)step * 1e-9),
		.steps = step != 0,
		.end = (float)end,
	};

	for (int i = 0; i < ZERO_MEM_KINDS; i++)
		one.peak[i] = (float)high[i];
	merge(&record->now, &one);
}

/* ---- times of steps -------------------------------------------------------------------------- */

/* The part of an octave in which a time lies; times below a microsecond count as 0. */
static size_t part_of(uint64_t step)
{
	uint64_t micros = step / 1000;
	size_t octave = 0, part;

	if (micros < ZERO_RECORD_PARTS)
		return micros;
	while (micros >> (octave + 1) >= ZERO_RECORD_PARTS)
		octave++;
	part = (octave + 1) * ZERO_RECORD_PARTS + (micros >> octave) - ZERO_RECORD_PARTS;
	return part < ZERO_RECORD_OCTAVES * ZERO_RECORD_PARTS
		       ? part
		       : ZERO_RECORD_OCTAVES * ZERO_RECORD_PARTS - 1;
}

/* Seconds in the middle of a part. */
static double middle_of(size_t part)
{
	size_t octave = part / ZERO_RECORD_PARTS, in = part % ZERO_RECORD_PARTS;

	if (!octave)
		return ((double)part + 0.5) * 1e-6;
	return ((double)(ZERO_RECORD_PARTS + in) + 0.5) * (double)(UINT64_C(1) << (octave - 1)) *
	       1e-6;
}

/* The time that `share` of the steps do not exceed. */
static double quantile(const struct zero_record *record, double share)
{
	double want = share * (double)record->rank.steps.count, seen = 0;

	for (size_t i = 0; i < sizeof(record->times) / sizeof(*record->times); i++) {
		seen += record->times[i];
		if (record->times[i] && seen >= want)
			return middle_of(i) < record->rank.steps.worst ? middle_of(i)
								       : record->rank.steps.worst;
	}
	return 0;
}

/* ---- the record ------------------------------------------------------------------------------ */

struct zero_record *zero_record_new(void)
{
	struct zero_record *record = calloc(1, sizeof(*record));

	if (!record)
		return NULL;
	pthread_mutex_init(&record->lock, NULL);
	record->meter = (struct zero_meter){.add = add_submission, .context = record};
	record->opened = zero_meter_now(&record->meter);
	record->last_end = record->opened;
	record->rank.every = 1;
	return record;
}

void zero_record_free(struct zero_record *record)
{
	if (!record)
		return;
	pthread_mutex_destroy(&record->lock);
	free(record);
}

void zero_record_step(struct zero_record *record, uint64_t now, const size_t high[ZERO_MEM_KINDS],
		      size_t end)
{
	struct zero_report_steps *steps = &record->rank.steps;
	uint64_t step = 0;

	pthread_mutex_lock(&record->lock);
	/* The time before the first step is not measured. */
	if (record->stepped) {
		step = now - record->last_step;
		steps->count++;
		steps->total += (double)step * 1e-9;
		if ((double)step * 1e-9 > steps->worst)
			steps->worst = (double)step * 1e-9;
		record->times[part_of(step)]++;
	}
	record->stepped = true;
	record->last_step = now;
	add_sample(record, now, high, end, step);
	if (++record->now_steps >= record->rank.every)
		store_sample(record);
	pthread_mutex_unlock(&record->lock);
}

size_t zero_record_read(struct zero_record *record, uint64_t now, const size_t high[ZERO_MEM_KINDS],
			size_t end, struct zero_report_rank *rank, struct zero_report_op *ops)
{
	size_t count;

	pthread_mutex_lock(&record->lock);
	add_sample(record, now, high, end, 0);
	*rank = record->rank;
	if (rank->sample_count < ZERO_REPORT_SAMPLES)
		rank->samples[rank->sample_count++] = record->now;
	else
		merge(&rank->samples[ZERO_REPORT_SAMPLES - 1], &record->now);
	rank->steps.median = quantile(record, 0.5);
	rank->steps.p95 = quantile(record, 0.95);
	count = record->op_count;
	memcpy(ops, record->ops, count * sizeof(*ops));
	pthread_mutex_unlock(&record->lock);
	return count;
}

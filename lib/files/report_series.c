/* SPDX-License-Identifier: Apache-2.0 */
/* The series of a report as JSON: what ranks sampled at the ends of steps. */
#include "files/report_values.h"

enum { ALL_SERIES = 16 }; /* of at most so many ranks, the series of each are written */

/* Columns with one value for each sample. */
static json_t *samples_of(const struct zero_report_rank *rank)
{
	json_t *at = json_array(), *steps = json_array(), *sum = json_array();
	json_t *worst = json_array(), *end = json_array(), *peak = json_object(), *one;

	for (uint32_t i = 0; i < rank->sample_count; i++) {
		append(&at, real((double)rank->samples[i].seconds));
		append(&steps, number(rank->samples[i].steps));
		append(&sum, real((double)rank->samples[i].step));
		append(&worst, real((double)rank->samples[i].worst));
		append(&end, real((double)rank->samples[i].end));
	}
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++) {
		one = json_array();
		for (uint32_t i = 0; i < rank->sample_count; i++)
			append(&one, real((double)rank->samples[i].peak[kind]));
		json_object_set_new(peak, zero_memory_kind_short((enum zero_memory_kind)kind), one);
	}
	return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", rank->rank, "at_seconds",
			 at, "steps", steps, "step_seconds", sum, "max_step_seconds", worst,
			 "end_bytes", end, "peak_bytes", peak);
}

/* Bytes on the device at the peak of a sample. */
static double total(const struct zero_report_sample *sample)
{
	double total = 0;

	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (zero_on_device((enum zero_memory_kind)kind))
			total += (double)sample->peak[kind];
	return total;
}

/* The rank whose memory on the device was highest. */
static const struct zero_report_rank *highest(const struct zero_report *report)
{
	const struct zero_report_rank *most = report->ranks;

	for (size_t i = 1; i < report->rank_count; i++)
		if (report->ranks[i].memory.total.peak > most->memory.total.peak)
			most = &report->ranks[i];
	return most;
}

/* Sample i is of the same steps on each rank, since all ranks step together. */
json_t *zero_report_spread(const struct zero_report *report)
{
	json_t *at = json_array(), *most = json_array(), *least = json_array();
	uint32_t count = report->ranks[0].sample_count;

	for (size_t r = 1; r < report->rank_count; r++)
		if (report->ranks[r].sample_count < count)
			count = report->ranks[r].sample_count;
	for (uint32_t i = 0; i < count; i++) {
		double high = total(&report->ranks[0].samples[i]), low = high;

		for (size_t r = 1; r < report->rank_count; r++) {
			double one = total(&report->ranks[r].samples[i]);

			high = one > high ? one : high;
			low = one < low ? one : low;
		}
		append(&at, real((double)report->ranks[0].samples[i].seconds));
		append(&most, real(high));
		append(&least, real(low));
	}
	return json_pack("{s:o, s:o, s:o}", "at_seconds", at, "most_bytes", most, "least_bytes",
			 least);
}

json_t *zero_report_series(const struct zero_report *report)
{
	const struct zero_report_rank *most = highest(report);
	json_t *series = json_array();

	/* Of more ranks, the two that the page shows. */
	for (size_t i = 0; i < report->rank_count; i++)
		if (report->rank_count <= ALL_SERIES || i == 0 || &report->ranks[i] == most)
			append(&series, samples_of(&report->ranks[i]));
	return series;
}

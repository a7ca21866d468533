/* SPDX-License-Identifier: Apache-2.0 */
/* Names and figures of a report in words; part of zero_files.so. */
#ifndef ZERO_REPORT_WORDS_H
#define ZERO_REPORT_WORDS_H

#include <stdio.h>

#include "report/report.h"

struct words {
	char text[32];
};

/* "2.03 GB", as people write it, in steps of 1000; of sizes that were given, in steps of 1024. */
struct words words_bytes(double bytes);
struct words words_size(uint64_t bytes);
struct words words_seconds(double seconds);
struct words words_count(uint64_t count); /* "1 234 567" */
/* "zero_setting"'s words for where free memory is from. */
const char *words_source(int source);
const char *words_memory(enum zero_memory_kind kind);
/* "2025-03-01T12:00:00Z" */
struct words words_time(int64_t seconds);

/* A copy that is UTF-8 without control characters: '?' is for what is not. malloc'ed; NULL: no
   memory. */
char *words_clean(const char *text);
/* Cleaned, as text of XML or of an attribute. */
void words_escape(FILE *out, const char *text);

/* What all ranks' submissions of a training waited, in nanoseconds; and communicated nothing. */
uint64_t words_waited(const struct zero_report_rank *rank);
uint64_t words_own(const struct zero_report_rank *rank);
/* The rank whose memory on the device was highest. */
const struct zero_report_rank *words_highest(const struct zero_report *report);
/* Bytes on the device at the peak of a sample. */
double words_total(const struct zero_report_sample *sample);

#endif

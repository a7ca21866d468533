/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of a report's page. */
#ifndef ZERO_PAGE_SECTIONS_H
#define ZERO_PAGE_SECTIONS_H

#include <jansson.h>
#include <stdio.h>

/* The rank with the highest peak of memory on the device. */
const json_t *highest_rank(const json_t *report);

void section_steps(FILE *out, const json_t *report);
void section_memory(FILE *out, const json_t *report);
void section_collectives(FILE *out, const json_t *report);
void section_ranks(FILE *out, const json_t *report);

/* Cells of tables. */
void put_seconds(FILE *out, double seconds);
void put_bytes(FILE *out, double bytes);
void put_count(FILE *out, uint64_t count);

struct count_text {
	char text[32];
};
struct count_text count_text(uint64_t count); /* "1 234 567" */

#endif

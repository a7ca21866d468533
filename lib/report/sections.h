/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of a report's page. */
#ifndef ZERO_REPORT_SECTIONS_H
#define ZERO_REPORT_SECTIONS_H

#include <stdio.h>

#include "report/report.h"

/* A cell of a table; its text is escaped. `class` "n" is for figures. */
void page_cell(FILE *out, const char *class, const char *text);

void page_memory(FILE *out, const struct zero_report *report);
void page_steps(FILE *out, const struct zero_report *report);
void page_collectives(FILE *out, const struct zero_report *report);
void page_ranks(FILE *out, const struct zero_report *report);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What pages are made of. A page needs no other file and no script, and is XML too: it can be sent
 * by mail and read without a network.
 */
#ifndef ZERO_PAGE_HTML_H
#define ZERO_PAGE_HTML_H

#include <stdio.h>

enum unit { UNIT_SECONDS, UNIT_BYTES };

struct quantity {
	char text[32];
};

/* A quantity for reading: "15 ms", "2.0G" in powers of 1024, "1.5M" elements, "8" ranks. */
struct quantity quantity_text(double value, enum unit unit);

/* Begins a page; `css` is added to the styles of tables and plots. The title is the heading too. */
void html_head(FILE *out, const char *title, const char *css);
/* Ends it. */
void html_tail(FILE *out);
/* Prints text with <, >, & and quotes escaped, and '?' for control characters. */
void html_text(FILE *out, const char *text);
/* A cell of a table, its text escaped. Class "n" is for figures. */
void html_cell(FILE *out, const char *class, const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Charts as inline SVG: lines over two axes, no scripts, colours from the page's style. */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include <stdio.h>

#include "record.h"

enum axis_unit { AXIS_SECONDS, AXIS_BYTES, AXIS_RANKS, AXIS_ELEMENTS };

struct axis {
	const char *title;
	enum axis_unit unit;
	bool log;
};

/* `series` are those of one plot; the ones whose label begins with "floor: " are drawn dashed. */
void svg_chart(FILE *out, const char *title, const struct axis *x, const struct axis *y,
	       const struct series *const *series, size_t count);
/* A quantity as people write it: "2.03 GB", "15 ms", "8". */
void svg_quantity(char *text, size_t size, double value, enum axis_unit unit);
/* Text in which <, >, & and quotes stand for themselves. */
void svg_text(FILE *out, const char *text);

/* Colours and lines of the charts, for the page's <style>. */
extern const char svg_style[];

#endif

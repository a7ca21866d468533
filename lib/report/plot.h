/* SPDX-License-Identifier: Apache-2.0 */
/* Plots over time as inline SVG: no scripts, colours from the page's style. */
#ifndef ZERO_REPORT_PLOT_H
#define ZERO_REPORT_PLOT_H

#include <stdbool.h>
#include <stdio.h>

#define PLOT_COLOURS 9

struct plot_series {
	const char *name;
	const double *values; /* [count]; value i holds from edges[i] to edges[i + 1] */
	int colour;           /* 0 .. PLOT_COLOURS - 1 */
	bool area;            /* filled, on top of the areas before it; else a line */
	bool dashed;
};

struct plot {
	const char *title;
	const double *edges; /* [count + 1], seconds */
	size_t count;
	bool bytes; /* values are; else seconds */
	const struct plot_series *series;
	size_t series_count;
};

void plot_draw(FILE *out, const struct plot *plot);

/* For the page's <style>. */
extern const char plot_style[];

#endif

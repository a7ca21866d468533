/* SPDX-License-Identifier: Apache-2.0 */
/* Plots as inline SVG: lines and stacked areas over two axes, with a legend. */
#ifndef ZERO_PAGE_PLOT_H
#define ZERO_PAGE_PLOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "launcher/page/html.h"

enum { PLOT_COLOURS = 9 };

struct plot_axis {
	const char *title;
	enum unit unit;
};

struct plot_point {
	double x, y;
};

enum plot_style {
	PLOT_LINE,
	PLOT_DASHED,
	PLOT_AREA, /* filled, on top of the areas before it, which have the same x */
};

struct plot_series {
	const char *label;
	const struct plot_point *points; /* in the order of x */
	size_t count;
	int colour; /* 0 to PLOT_COLOURS - 1 */
	enum plot_style style;
};

struct plot {
	const char *title;
	const struct plot_axis *x, *y;
	const struct plot_series *series;
	size_t series_count;
};

/* Draws nothing if there is no series. Leaves out points that are not finite. */
void plot_draw(FILE *out, const struct plot *plot);

/* Colours and lines of plots, for the page's <style>. */
extern const char plot_style[];

#endif

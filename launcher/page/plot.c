/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/page/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	WIDTH = 560,
	LEFT = 82,
	RIGHT = 30,
	TOP = 12,
	PLOT_HEIGHT = 250,
	BELOW = 46, /* tick labels and the axis's title */
	LEGEND_LINE = 18,
	LEGEND_SHORT = 28, /* bytes of labels that fit into two columns */
	MOST_TICKS = 32,
};

/* Distinct for readers who see few colours, on white and on black; dashes differ too. */
const char plot_style[] =
	":root{--c0:#0060b0;--c1:#c44e00;--c2:#00795a;--c3:#a83279;--c4:#8a6d00;--c5:#4b5563;"
	"--c6:#5b4bc4;--c7:#0d8ba1;--c8:#b3261e;--grid:#e3e6ea;--axis:#6b7280}\n"
	"@media(prefers-color-scheme:dark){:root{--c0:#5eb1ff;--c1:#ff9d5c;--c2:#4fd1a5;"
	"--c3:#f08fc6;--c4:#e6c84f;--c5:#b6bfcc;--c6:#a99cff;--c7:#5fd5e8;--c8:#ff8a80;"
	"--grid:#2f3640;--axis:#a3adba}}\n"
	"svg{width:100%;height:auto;font:12px system-ui,sans-serif}\n"
	"svg text{fill:currentColor}\n"
	"svg .grid{stroke:var(--grid)}\n"
	"svg .axis{stroke:var(--axis)}\n"
	"svg .line{fill:none;stroke-width:2;stroke-linejoin:round}\n"
	"svg .dashed{stroke-dasharray:4 3}\n"
	"svg .area{fill-opacity:.75}\n"
	"svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}"
	"svg .f3{fill:var(--c3)}svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}"
	"svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}svg .f8{fill:var(--c8)}\n"
	"svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}"
	"svg .s3{stroke:var(--c3)}svg .s4{stroke:var(--c4)}svg .s5{stroke:var(--c5)}"
	"svg .s6{stroke:var(--c6)}svg .s7{stroke:var(--c7)}svg .s8{stroke:var(--c8)}\n";

/* ---- scales and ticks ------------------------------------------------------------------------ */

/* Values from low to high of an axis are drawn at pixels `from` to `to`. */
struct scale {
	const struct plot_axis *axis;
	double low, high, from, to;
	double ticks[MOST_TICKS];
	int tick_count;
};

static double place(const struct scale *s, double value)
{
	return s->from + (value - s->low) / (s->high - s->low) * (s->to - s->from);
}

static void add_tick(struct scale *s, double value)
{
	const double slack = 1e-9 * fabs(s->high);

	if (value >= s->low - slack && value <= s->high + slack && s->tick_count < MOST_TICKS)
		s->ticks[s->tick_count++] = value;
}

/* At most six steps: of a power of two for bytes, else of 1, 2 or 5 in a decade. */
static void linear_ticks(struct scale *s)
{
	double least = (s->high - s->low) / 6, step;

	if (s->axis->unit == UNIT_BYTES) {
		step = pow(2, ceil(log2(least)));
	} else {
		step = pow(10, floor(log10(least)));
		step *= least <= step ? 1 : least <= 2 * step ? 2 : least <= 5 * step ? 5 : 10;
	}
	for (int i = 0; i < MOST_TICKS; i++)
		add_tick(s, (ceil(s->low / step - 1e-9) + i) * step);
}

/* A linear y axis begins at 0, a linear x axis at the first point. */
static void choose_range(struct scale *s, bool is_x, double least, double most)
{
	if (!(least <= most)) /* no values at all */
		least = most = 1;
	s->low = is_x ? least : 0;
	if (is_x)
		s->high = most > least ? most : least + 1;
	else
		s->high = most > 0 ? most * 1.06 : 1;
	linear_ticks(s);
}

static bool can_be_drawn(double value)
{
	/* The range of two values must be finite too. */
	return fabs(value) < 1e300;
}

/* The points of an area as they are drawn: above the areas before it, in base[i]. */
static double stacked(const struct plot_series *s, const double *base, size_t i)
{
	return s->points[i].y + (s->style == PLOT_AREA ? base[i] : 0);
}

/* Points of the longest area. */
static size_t area_points(const struct plot *plot)
{
	size_t most = 0;

	for (size_t i = 0; i < plot->series_count; i++)
		if (plot->series[i].style == PLOT_AREA && plot->series[i].count > most)
			most = plot->series[i].count;
	return most;
}

/* `base` has room for area_points() zeros, and is left as zeros. */
static void choose_ranges(const struct plot *plot, struct scale *x, struct scale *y, double *base)
{
	double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};

	for (size_t i = 0; i < plot->series_count; i++) {
		const struct plot_series *s = &plot->series[i];

		for (size_t p = 0; p < s->count; p++) {
			double value = stacked(s, base, p);

			if (can_be_drawn(s->points[p].x)) {
				low[0] = fmin(low[0], s->points[p].x);
				high[0] = fmax(high[0], s->points[p].x);
			}
			if (can_be_drawn(value)) {
				low[1] = fmin(low[1], value);
				high[1] = fmax(high[1], value);
			}
			if (s->style == PLOT_AREA)
				base[p] = value;
		}
	}
	memset(base, 0, area_points(plot) * sizeof(*base));
	choose_range(x, true, low[0], high[0]);
	choose_range(y, false, low[1], high[1]);
}

/* ---- axes ------------------------------------------------------------------------------------ */

static void draw_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
		class, x1, y1, x2, y2);
}

static void draw_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	html_text(out, text);
	fprintf(out, "</text>\n");
}

static void draw_x_axis(FILE *out, const struct scale *x, const struct scale *y)
{
	double last = -INFINITY;

	for (int i = 0; i < x->tick_count; i++) {
		double at = place(x, x->ticks[i]);

		draw_line(out, "grid", at, y->to, at, y->from);
		/* Labels that would overlap are left out. */
		if (at - last < 42)
			continue;
		draw_text(out, at, y->from + 17, "middle",
			  quantity_text(x->ticks[i], x->axis->unit).text);
		last = at;
	}
	draw_line(out, "axis", x->from, y->from, x->to, y->from);
	draw_text(out, (x->from + x->to) / 2, y->from + 37, "middle", x->axis->title);
}

static void draw_y_axis(FILE *out, const struct scale *x, const struct scale *y)
{
	double middle = (y->from + y->to) / 2, last = INFINITY;

	for (int i = 0; i < y->tick_count; i++) {
		double at = place(y, y->ticks[i]);

		draw_line(out, "grid", x->from, at, x->to, at);
		if (last - at < 15)
			continue;
		draw_text(out, x->from - 8, at + 4, "end",
			  quantity_text(y->ticks[i], y->axis->unit).text);
		last = at;
	}
	draw_line(out, "axis", x->from, y->from, x->from, y->to);
	fprintf(out, "<g transform=\"rotate(-90 14 %.1f)\">", middle);
	draw_text(out, 14, middle, "middle", y->axis->title);
	fprintf(out, "</g>\n");
}

/* ---- series ---------------------------------------------------------------------------------- */

static void write_class(FILE *out, const struct plot_series *s)
{
	if (s->style == PLOT_AREA)
		fprintf(out, "class=\"area f%d\"", s->colour);
	else
		fprintf(out, "class=\"line s%d%s\"", s->colour,
			s->style == PLOT_DASHED ? " dashed" : "");
}

static void draw_point(FILE *out, const struct scale *x, const struct scale *y, double at,
		       double value)
{
	if (can_be_drawn(at) && can_be_drawn(value))
		fprintf(out, "%.1f,%.1f ", place(x, at), place(y, value));
}

static void draw_curve(FILE *out, const struct plot_series *s, const struct scale *x,
		       const struct scale *y)
{
	fprintf(out, "<polyline ");
	write_class(out, s);
	fprintf(out, " points=\"");
	for (size_t i = 0; i < s->count; i++)
		draw_point(out, x, y, s->points[i].x, s->points[i].y);
	fprintf(out, "\"/>\n");
}

/* Along its upper edge, and back along `base`, which becomes the upper edge. */
static void draw_area(FILE *out, const struct plot_series *s, const struct scale *x,
		      const struct scale *y, double *base)
{
	fprintf(out, "<polygon ");
	write_class(out, s);
	fprintf(out, " points=\"");
	for (size_t i = 0; i < s->count; i++)
		draw_point(out, x, y, s->points[i].x, stacked(s, base, i));
	for (size_t i = s->count; i--;) {
		draw_point(out, x, y, s->points[i].x, base[i]);
		base[i] = stacked(s, base, i);
	}
	fprintf(out, "\"/>\n");
}

/* ---- legend ---------------------------------------------------------------------------------- */

static size_t legend_columns(const struct plot *plot)
{
	for (size_t i = 0; i < plot->series_count; i++)
		if (strlen(plot->series[i].label) > LEGEND_SHORT)
			return 1;
	return 2;
}

static void draw_legend(FILE *out, const struct plot *plot, double top)
{
	size_t columns = legend_columns(plot);

	for (size_t i = 0; i < plot->series_count; i++) {
		const struct plot_series *s = &plot->series[i];
		double x = LEFT + (double)(i % columns) * (WIDTH - LEFT - RIGHT) / 2;
		double y = top + (double)(i / columns) * LEGEND_LINE;

		fprintf(out, s->style == PLOT_AREA ? "<polygon " : "<polyline ");
		write_class(out, s);
		if (s->style == PLOT_AREA)
			fprintf(out, " points=\"%.1f,%.1f %.1f,%.1f %.1f,%.1f %.1f,%.1f\"/>\n", x,
				y - 5, x + 34, y - 5, x + 34, y + 5, x, y + 5);
		else
			fprintf(out, " points=\"%.1f,%.1f %.1f,%.1f\"/>\n", x, y, x + 34, y);
		draw_text(out, x + 42, y + 4, "start", s->label);
	}
}

void plot_draw(FILE *out, const struct plot *plot)
{
	const double bottom = TOP + PLOT_HEIGHT;
	struct scale x = {.axis = plot->x, .from = LEFT, .to = WIDTH - RIGHT};
	struct scale y = {.axis = plot->y, .from = bottom, .to = TOP};
	size_t columns = legend_columns(plot);
	size_t rows = (plot->series_count + columns - 1) / columns;
	double *base = calloc(area_points(plot) + 1, sizeof(*base));

	if (!base || !plot->series_count)
		goto out;
	choose_ranges(plot, &x, &y, base);
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" role=\"img\">\n"
		"<title>",
		WIDTH, (size_t)bottom + BELOW + rows * LEGEND_LINE + 8);
	html_text(out, plot->title);
	fprintf(out, "</title>\n");
	draw_x_axis(out, &x, &y);
	draw_y_axis(out, &x, &y);
	/* Lines are drawn over all areas. */
	for (size_t i = 0; i < plot->series_count; i++)
		if (plot->series[i].style == PLOT_AREA)
			draw_area(out, &plot->series[i], &x, &y, base);
	for (size_t i = 0; i < plot->series_count; i++)
		if (plot->series[i].style != PLOT_AREA)
			draw_curve(out, &plot->series[i], &x, &y);
	draw_legend(out, plot, bottom + BELOW + 10);
	fprintf(out, "</svg>\n");
out:
	free(base);
}

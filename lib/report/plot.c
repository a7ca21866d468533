/* SPDX-License-Identifier: Apache-2.0 */
/* Plots of a report; part of zero_files.so. */
#include <stdlib.h>

#include "report/plot.h"
#include "report/words.h"

enum { WIDTH = 720, LEFT = 76, RIGHT = 16, TOP = 12, HEIGHT = 240, BELOW = 44, LINE = 18 };

/* Distinct for readers who see few colours, on white and on black; the legend is in the order of
   the areas. */
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
	"svg .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\n"
	"svg .dashed{stroke-dasharray:5 3}\n"
	"svg .area{fill-opacity:.75}\n"
	"svg .f0{fill:var(--c0)}svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}"
	"svg .f3{fill:var(--c3)}svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}"
	"svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}svg .f8{fill:var(--c8)}\n"
	"svg .s0{stroke:var(--c0)}svg .s1{stroke:var(--c1)}svg .s2{stroke:var(--c2)}"
	"svg .s3{stroke:var(--c3)}svg .s4{stroke:var(--c4)}svg .s5{stroke:var(--c5)}"
	"svg .s6{stroke:var(--c6)}svg .s7{stroke:var(--c7)}svg .s8{stroke:var(--c8)}\n";

/* Values low .. high of an axis lie at pixels from .. to. */
struct scale {
	double low, high, from, to;
};

static double place(const struct scale *scale, double value)
{
	double part = (value - scale->low) / (scale->high - scale->low);

	return scale->from + part * (scale->to - scale->from);
}

/* 1, 2 or 5 of some decade, so that there are about five. */
static double tick_step(double range)
{
	static const double factors[] = {2, 2.5, 2};
	double step = 1;
	size_t i = 0;

	while (step > range / 6)
		step /= 10;
	while (range / step > 6)
		step *= factors[i++ % 3];
	return step;
}

static double most_of(const struct plot *plot)
{
	double most = 0;

	for (size_t i = 0; i < plot->count; i++) {
		double stacked = 0;

		for (size_t s = 0; s < plot->series_count; s++) {
			double value = plot->series[s].values[i];

			stacked += plot->series[s].area ? value : 0;
			most = value > most ? value : most;
		}
		most = stacked > most ? stacked : most;
	}
	return most > 0 ? most : 1;
}

static struct words label(double value, bool bytes)
{
	return bytes ? words_bytes(value) : words_seconds(value);
}

static void draw_axes(FILE *out, const struct plot *plot, const struct scale *x,
		      const struct scale *y)
{
	double step = tick_step(y->high);

	for (int i = 0; i * step <= y->high; i++)
		fprintf(out,
			"<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
			"<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			LEFT, WIDTH - RIGHT, place(y, i * step), place(y, i * step), LEFT - 7,
			place(y, i * step) + 4, label(i * step, plot->bytes).text);
	step = tick_step(x->high - x->low);
	for (double tick = (double)(long)(x->low / step) * step; tick <= x->high; tick += step)
		if (tick >= x->low)
			fprintf(out,
				"<line class=\"grid\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
				"<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
				place(x, tick), place(x, tick), TOP, TOP + HEIGHT, place(x, tick),
				TOP + HEIGHT + 17, words_seconds(tick).text);
	fprintf(out,
		"<path class=\"axis\" fill=\"none\" d=\"M%d %dV%dH%d\"/>"
		"<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">time since the job was "
		"opened</text>\n",
		LEFT, TOP, TOP + HEIGHT, WIDTH - RIGHT, (LEFT + WIDTH - RIGHT) / 2,
		TOP + HEIGHT + 36);
}

/* Steps along the edges, from left to right or back. */
static void draw_edge(FILE *out, const struct plot *plot, const struct scale *x,
		      const struct scale *y, const double *values, bool back)
{
	for (size_t n = 0; n < plot->count; n++) {
		size_t i = back ? plot->count - 1 - n : n;
		double first = place(x, plot->edges[back ? i + 1 : i]);
		double second = place(x, plot->edges[back ? i : i + 1]);
		double height = place(y, values[i]);

		fprintf(out, "%.1f,%.1f %.1f,%.1f ", first, height, second, height);
	}
}

/* `below` is what the areas before it came to, and then this one too. */
static void draw_area(FILE *out, const struct plot *plot, const struct plot_series *series,
		      const struct scale *x, const struct scale *y, double *below, double *top)
{
	for (size_t i = 0; i < plot->count; i++)
		top[i] = below[i] + series->values[i];
	fprintf(out, "<polygon class=\"area f%d\" points=\"", series->colour);
	draw_edge(out, plot, x, y, top, false);
	draw_edge(out, plot, x, y, below, true);
	fprintf(out, "\"/>\n");
	for (size_t i = 0; i < plot->count; i++)
		below[i] = top[i];
}

static void draw_line(FILE *out, const struct plot *plot, const struct plot_series *series,
		      const struct scale *x, const struct scale *y)
{
	fprintf(out, "<polyline class=\"line s%d%s\" points=\"", series->colour,
		series->dashed ? " dashed" : "");
	draw_edge(out, plot, x, y, series->values, false);
	fprintf(out, "\"/>\n");
}

static void draw_legend(FILE *out, const struct plot *plot)
{
	for (size_t s = 0; s < plot->series_count; s++) {
		const struct plot_series *series = &plot->series[s];
		int column = (int)s % 3, row = (int)s / 3;
		int left = LEFT + column * 210, y = TOP + HEIGHT + BELOW + row * LINE + 10;

		if (series->area)
			fprintf(out,
				"<rect class=\"area f%d\" x=\"%d\" y=\"%d\" width=\"22\" "
				"height=\"10\"/>",
				series->colour, left, y - 9);
		else
			fprintf(out, "<path class=\"line s%d%s\" d=\"M%d %dh22\"/>", series->colour,
				series->dashed ? " dashed" : "", left, y - 4);
		fprintf(out, "<text x=\"%d\" y=\"%d\">", left + 28, y);
		words_escape(out, series->name);
		fprintf(out, "</text>\n");
	}
}

void plot_draw(FILE *out, const struct plot *plot)
{
	struct scale x = {.from = LEFT, .to = WIDTH - RIGHT, .high = 1};
	struct scale y = {.from = TOP + HEIGHT, .to = TOP, .high = most_of(plot) * 1.05};
	double *below = calloc(plot->count + 1, sizeof(double));
	double *top = calloc(plot->count + 1, sizeof(double));
	size_t rows = (plot->series_count + 2) / 3;

	if (!below || !top || !plot->count)
		goto out;
	x.low = plot->edges[0];
	x.high = plot->edges[plot->count];
	if (!(x.high > x.low))
		x.high = x.low + 1;
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" "
		"role=\"img\"><title>",
		WIDTH, TOP + HEIGHT + BELOW + rows * LINE + 6);
	words_escape(out, plot->title);
	fprintf(out, "</title>\n");
	draw_axes(out, plot, &x, &y);
	for (size_t s = 0; s < plot->series_count; s++)
		if (plot->series[s].area)
			draw_area(out, plot, &plot->series[s], &x, &y, below, top);
	for (size_t s = 0; s < plot->series_count; s++)
		if (!plot->series[s].area)
			draw_line(out, plot, &plot->series[s], &x, &y);
	draw_legend(out, plot);
	fprintf(out, "</svg>\n");
out:
	free(below);
	free(top);
}

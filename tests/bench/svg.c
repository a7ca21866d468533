/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "svg.h"

enum {
	WIDTH = 560,
	LEFT = 82,
	RIGHT = 30,
	TOP = 12,
	PLOT_HEIGHT = 250,
	BELOW = 46, /* tick labels and the axis's title */
	LEGEND_LINE = 18,
	MOST_TICKS = 32,
	COLOURS = 6,
	MOST_MARKED = 20, /* points of a series that still get markers */
	TEXT = 64,
};

/* Distinct for readers who see few colours, on white and on black; dashes and marks say it too. */
const char svg_style[] =
	":root{--s0:#0060b0;--s1:#c44e00;--s2:#00795a;--s3:#a83279;--s4:#8a6d00;--s5:#4b5563;"
	"--floor:#6b7280;--grid:#e3e6ea;--axis:#6b7280}\n"
	"@media(prefers-color-scheme:dark){:root{--s0:#5eb1ff;--s1:#ff9d5c;--s2:#4fd1a5;"
	"--s3:#f08fc6;--s4:#e6c84f;--s5:#b6bfcc;--floor:#a3adba;--grid:#2f3640;--axis:#a3adba}}\n"
	"svg{width:100%;height:auto;font:12px system-ui,sans-serif}\n"
	"svg text{fill:currentColor}\n"
	"svg .grid{stroke:var(--grid)}\n"
	"svg .axis{stroke:var(--axis)}\n"
	"svg .line{fill:none;stroke-width:2;stroke-linejoin:round}\n"
	"svg .second{stroke-dasharray:2 3}\n"
	"svg .floor{stroke:var(--floor);stroke-dasharray:8 4}\n"
	"svg .s0{stroke:var(--s0)}svg .s1{stroke:var(--s1)}svg .s2{stroke:var(--s2)}"
	"svg .s3{stroke:var(--s3)}svg .s4{stroke:var(--s4)}svg .s5{stroke:var(--s5)}\n"
	"svg .mark.s0{fill:var(--s0)}svg .mark.s1{fill:var(--s1)}svg .mark.s2{fill:var(--s2)}"
	"svg .mark.s3{fill:var(--s3)}svg .mark.s4{fill:var(--s4)}svg .mark.s5{fill:var(--s5)}\n";

void svg_text(FILE *out, const char *text)
{
	static const char *const names[] = {
		['<'] = "&lt;", ['>'] = "&gt;", ['&'] = "&amp;", ['"'] = "&quot;"};

	for (; *text; text++) {
		size_t c = (unsigned char)*text;

		if (c < sizeof(names) / sizeof(*names) && names[c])
			fputs(names[c], out);
		else
			putc(*text, out);
	}
}

void svg_quantity(char *text, size_t size, double value, enum axis_unit unit)
{
	static const struct {
		double factor;
		const char *prefix;
	} steps[] = {{1e12, "T"}, {1e9, "G"},  {1e6, "M"},  {1e3, "k"},
		     {1, ""},     {1e-3, "m"}, {1e-6, "µ"}, {1e-9, "n"}};
	static const char *const names[] = {[AXIS_SECONDS] = "s", [AXIS_BYTES] = "B"};
	const char *name = unit == AXIS_SECONDS || unit == AXIS_BYTES ? names[unit] : "";
	size_t i = 0;

	if (unit == AXIS_RANKS || value == 0) {
		snprintf(text, size, "%.4g", value);
		return;
	}
	while (i + 1 < sizeof(steps) / sizeof(*steps) && fabs(value) < steps[i].factor * 0.9999)
		i++;
	/* Seconds beyond a thousand are still seconds. */
	if (unit == AXIS_SECONDS && i < 4)
		i = 4;
	snprintf(text, size, "%.3g%s%s%s", value / steps[i].factor,
		 *name || *steps[i].prefix ? " " : "", steps[i].prefix, name);
}

/* ---- axes ------------------------------------------------------------------------------------ */

/* Values low .. high of an axis lie at pixels from .. to. */
struct scale {
	const struct axis *axis;
	double low, high, from, to;
	double ticks[MOST_TICKS];
	int tick_count;
};

static double place(const struct scale *s, double value)
{
	double part = s->axis->log ? log(value / s->low) / log(s->high / s->low)
				   : (value - s->low) / (s->high - s->low);

	return s->from + part * (s->to - s->from);
}

static bool can_be_drawn(const struct axis *axis, double value)
{
	return isfinite(value) && (!axis->log || value > 0);
}

static void add_tick(struct scale *s, double value)
{
	const double slack = 1e-9 * fabs(s->high);

	if (value >= s->low - slack && value <= s->high + slack && s->tick_count < MOST_TICKS)
		s->ticks[s->tick_count++] = value;
}

/* 1, 2 and 5 of each decade, or 1 alone where there are many; ranks are powers of two. */
static void log_ticks(struct scale *s)
{
	double decades = log10(s->high / s->low);

	if (s->axis->unit == AXIS_RANKS) {
		for (double tick = 1; tick <= s->high; tick *= 2)
			add_tick(s, tick);
		return;
	}
	for (double ten = pow(10, floor(log10(s->low))); ten <= s->high; ten *= 10) {
		add_tick(s, ten);
		if (decades <= 3) {
			add_tick(s, 2 * ten);
			add_tick(s, 5 * ten);
		}
	}
}

static void linear_ticks(struct scale *s)
{
	double step = pow(10, floor(log10(s->high / 4)));

	while (s->high / step > 6)
		step *= s->high / step > 12 ? 5 : 2;
	for (int i = 0; i * step <= s->high * 1.0001; i++)
		add_tick(s, i * step);
}

static void choose_range(struct scale *s, double least, double most)
{
	if (!(least <= most)) /* no values at all */
		least = most = 1;
	if (s->axis->log) {
		double room = most > least ? pow(most / least, 0.04) : 2;

		s->low = least / room;
		s->high = most * room;
		log_ticks(s);
	} else {
		s->low = 0;
		s->high = most > 0 ? most * 1.06 : 1;
		linear_ticks(s);
	}
}

/* A floor of a single point is a level, and has a place on the y axis alone. */
static bool is_floor(const struct series *s)
{
	return !strncmp(s->label, "floor: ", 7);
}

static bool is_level(const struct series *s)
{
	return is_floor(s) && s->count == 1;
}

static void find_ranges(struct scale *x, struct scale *y, const struct series *const *series,
			size_t count)
{
	double low[2] = {INFINITY, INFINITY}, high[2] = {-INFINITY, -INFINITY};

	for (size_t i = 0; i < count; i++)
		for (size_t p = 0; p < series[i]->count; p++) {
			struct point point = series[i]->points[p];

			if (can_be_drawn(x->axis, point.x) && !is_level(series[i])) {
				low[0] = fmin(low[0], point.x);
				high[0] = fmax(high[0], point.x);
			}
			if (can_be_drawn(y->axis, point.y)) {
				low[1] = fmin(low[1], point.y);
				high[1] = fmax(high[1], point.y);
			}
		}
	choose_range(x, low[0], high[0]);
	choose_range(y, low[1], high[1]);
}

static void draw_line(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
	fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
		class, x1, y1, x2, y2);
}

static void draw_text(FILE *out, double x, double y, const char *anchor, const char *text)
{
	fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
	svg_text(out, text);
	fprintf(out, "</text>\n");
}

static void draw_x_axis(FILE *out, const struct scale *x, const struct scale *y)
{
	double last = -INFINITY;
	char text[TEXT];

	for (int i = 0; i < x->tick_count; i++) {
		double at = place(x, x->ticks[i]);

		draw_line(out, "grid", at, y->to, at, y->from);
		/* Labels keep their distance; the line says where the tick is. */
		if (at - last < 42)
			continue;
		svg_quantity(text, sizeof(text), x->ticks[i], x->axis->unit);
		draw_text(out, at, y->from + 17, "middle", text);
		last = at;
	}
	draw_line(out, "axis", x->from, y->from, x->to, y->from);
	draw_text(out, (x->from + x->to) / 2, y->from + 37, "middle", x->axis->title);
}

static void draw_y_axis(FILE *out, const struct scale *x, const struct scale *y)
{
	double middle = (y->from + y->to) / 2, last = INFINITY;
	char text[TEXT];

	for (int i = 0; i < y->tick_count; i++) {
		double at = place(y, y->ticks[i]);

		draw_line(out, "grid", x->from, at, x->to, at);
		if (last - at < 15)
			continue;
		svg_quantity(text, sizeof(text), y->ticks[i], y->axis->unit);
		draw_text(out, x->from - 8, at + 4, "end", text);
		last = at;
	}
	draw_line(out, "axis", x->from, y->from, x->from, y->to);
	fprintf(out, "<g transform=\"rotate(-90 14 %.1f)\">", middle);
	draw_text(out, 14, middle, "middle", y->axis->title);
	fprintf(out, "</g>\n");
}

/* ---- series ---------------------------------------------------------------------------------- */

/* How a series looks. Those that differ in the rank alone have one colour and other dashes. */
struct look {
	int colour;
	bool second, floor;
};

static size_t name_length(const struct series *s)
{
	const char *rank = strstr(s->label, ", rank ");

	return rank ? (size_t)(rank - s->label) : strlen(s->label);
}

static bool same_name(const struct series *a, const struct series *b)
{
	size_t length = name_length(a);

	return length == name_length(b) && !strncmp(a->label, b->label, length);
}

static struct look look_of(const struct series *const *series, size_t which)
{
	struct look look = {.floor = is_floor(series[which])};
	size_t first = 0;

	while (!same_name(series[first], series[which]))
		first++;
	look.second = first < which;
	for (size_t i = 0; i < first; i++) {
		size_t before = 0;

		while (!same_name(series[before], series[i]))
			before++;
		look.colour += before == i && !is_floor(series[i]);
	}
	look.colour %= COLOURS;
	return look;
}

static void write_class(FILE *out, struct look look)
{
	if (look.floor)
		fprintf(out, "class=\"line floor\"");
	else
		fprintf(out, "class=\"line s%d%s\"", look.colour, look.second ? " second" : "");
}

static void draw_mark(FILE *out, struct look look, double x, double y)
{
	static const char *const shapes[COLOURS] = {"M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
						    "M-3.5 -3.5h7v7h-7z",
						    "M0 -5L5 0L0 5L-5 0z",
						    "M0 -5L5 4H-5z",
						    "M0 5L5 -4H-5z",
						    "M-4 -1.5h8v3h-8z"};

	fprintf(out, "<path class=\"mark s%d\" transform=\"translate(%.1f %.1f)\" d=\"%s\">",
		look.colour, x, y, shapes[look.colour]);
}

/* A pointer that rests on a mark reads its values. */
static void draw_marks(FILE *out, const struct series *s, struct look look, const struct scale *x,
		       const struct scale *y)
{
	char at[TEXT], value[TEXT];

	for (size_t p = 0; p < s->count; p++) {
		struct point point = s->points[p];

		if (!can_be_drawn(x->axis, point.x) || !can_be_drawn(y->axis, point.y))
			continue;
		svg_quantity(at, sizeof(at), point.x, x->axis->unit);
		svg_quantity(value, sizeof(value), point.y, y->axis->unit);
		draw_mark(out, look, place(x, point.x), place(y, point.y));
		fprintf(out, "<title>");
		svg_text(out, s->label);
		fprintf(out, ": %s at %s</title></path>\n", value, at);
	}
}

static void draw_series(FILE *out, const struct series *s, struct look look, const struct scale *x,
			const struct scale *y)
{
	fprintf(out, "<polyline ");
	write_class(out, look);
	fprintf(out, " points=\"");
	if (is_level(s) && can_be_drawn(y->axis, s->points[0].y)) {
		double at = place(y, s->points[0].y);

		fprintf(out, "%.1f,%.1f %.1f,%.1f", x->from, at, x->to, at);
	}
	for (size_t p = 0; p < s->count && !is_level(s); p++)
		if (can_be_drawn(x->axis, s->points[p].x) && can_be_drawn(y->axis, s->points[p].y))
			fprintf(out, "%.1f,%.1f ", place(x, s->points[p].x),
				place(y, s->points[p].y));
	fprintf(out, "\"/>\n");
	if (!look.floor && s->count <= MOST_MARKED)
		draw_marks(out, s, look, x, y);
}

static void draw_legend(FILE *out, const struct series *const *series, size_t count, double top)
{
	for (size_t i = 0; i < count; i++) {
		double y = top + (double)i * LEGEND_LINE;
		struct look look = look_of(series, i);

		fprintf(out, "<polyline ");
		write_class(out, look);
		fprintf(out, " points=\"%d,%.1f %d,%.1f\"/>\n", LEFT, y, LEFT + 34, y);
		if (!look.floor && series[i]->count <= MOST_MARKED) {
			draw_mark(out, look, LEFT + 17, y);
			fprintf(out, "</path>\n");
		}
		draw_text(out, LEFT + 42, y + 4, "start", series[i]->label);
	}
}

void svg_chart(FILE *out, const char *title, const struct axis *x_axis, const struct axis *y_axis,
	       const struct series *const *series, size_t count)
{
	const double bottom = TOP + PLOT_HEIGHT;
	struct scale x = {.axis = x_axis, .from = LEFT, .to = WIDTH - RIGHT};
	struct scale y = {.axis = y_axis, .from = bottom, .to = TOP};

	find_ranges(&x, &y, series, count);
	fprintf(out,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %zu\" role=\"img\">\n"
		"<title>",
		WIDTH, (size_t)bottom + BELOW + count * LEGEND_LINE + 8);
	svg_text(out, title);
	fprintf(out, "</title>\n");
	draw_x_axis(out, &x, &y);
	draw_y_axis(out, &x, &y);
	for (size_t i = 0; i < count; i++)
		draw_series(out, series[i], look_of(series, i), &x, &y);
	draw_legend(out, series, count, bottom + BELOW + 10);
	fprintf(out, "</svg>\n");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record as one page that needs nothing but itself: no scripts, no other files, and markup that
 * is XML too. A section is a line of one table, a plot a line of another.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "record.h"
#include "svg.h"

enum { MOST_SERIES = 16 };

static const struct section {
	const char *id, *title, *text;
	const char *subjects; /* whose rows without a goal are listed here */
} sections[] = {
	{"partition", "Stream partition",
	 "A parameter of 2.03 GB becomes shards. Where one rank has it, every other rank is sent "
	 "its own slice, from the tensor into the shard; the naive ways send all of it to all. "
	 "What a file holds is read by the rank that owns it. Published elsewhere: 3.05 GB down to "
	 "1.10 GB at two ranks, by broadcast of 40 MB chunks.",
	 "partition sources load"},
	{"flatten", "Flatten",
	 "Tensors that exist on every rank become views of one flat buffer. Where the ranks of a "
	 "node all copy all of a model, they share the memory's bandwidth.",
	 "flatten"},
	{"gather", "Gather",
	 "An all-gather of the shards into the buffer that parameters are read from. Within a "
	 "node ranks read each other's memory; between nodes it is MPI_Allgather. DeepSpeed 0.19.8 "
	 "takes 9.1 s and 4.96 GB for the parameter of 2.03 GB on two other server cores.",
	 "gather small"},
	{"downcast", "Fused downcast and gather",
	 "Masters of f32 are wanted as bf16: each rank casts its own part into its place in the "
	 "output, so that half the bytes travel and nothing is held in f32.",
	 "downcast"},
	{"reduce", "Reduce",
	 "Each rank gets the sums of its own part of a gradient, added in the order of ranks.",
	 "reduce"},
	{"step", "Step",
	 "AdamW over what a rank owns, with a bf16 copy written in the same pass over memory.",
	 "adamw step gpt"},
	{"save", "Checkpoints",
	 "Each rank writes what it owns, values and moments, straight from where they are, and "
	 "reads what it needs of what others wrote; 4 GB in all, to a folder in memory. dd writes "
	 "zeros.",
	 "save restore"},
};

#define SECTIONS (sizeof(sections) / sizeof(*sections))

enum { SIZE, ELEMENTS, RANKS, TIME, CLOCK, SENT, HELD };

static const struct axis axes[] = {
	[SIZE] = {"size of the parameter", AXIS_BYTES, true},
	[ELEMENTS] = {"elements of a rank", AXIS_ELEMENTS, true},
	[RANKS] = {"ranks", AXIS_RANKS, true},
	[TIME] = {"time", AXIS_SECONDS, true},
	[CLOCK] = {"time", AXIS_SECONDS, false},
	[SENT] = {"bytes sent by all ranks", AXIS_BYTES, false},
	[HELD] = {"memory beyond that at first", AXIS_BYTES, false},
};

/* clang-format off */
static const struct plot {
	const char *section, *id, *title;
	int x, y; /* of axes */
} plots[] = {
	{"partition", "partition-size", "Time against size, 2 ranks", SIZE, TIME},
	{"partition", "partition-ranks", "Time against ranks, a quarter of the size", RANKS, TIME},
	{"partition", "partition-sent", "Bytes on the wire, a quarter of the size", RANKS, SENT},
	{"partition", "partition-memory", "Memory over time, 2 ranks", CLOCK, HELD},
	{"partition", "file-size", "From a shared file: time against size, 2 ranks", SIZE, TIME},
	{"partition", "load-size", "Sharded checkpoint: time against size, 4 ranks", SIZE, TIME},
	{"flatten", "flatten-size", "Time against size, 2 ranks", SIZE, TIME},
	{"flatten", "flatten-ranks", "Time against ranks, a quarter of the size", RANKS, TIME},
	{"flatten", "flatten-memory", "Memory over time, ranks of the node together", CLOCK, HELD},
	{"gather", "gather-size", "Time against size, 2 ranks", SIZE, TIME},
	{"gather", "gather-ranks", "Time against ranks, a quarter of the size", RANKS, TIME},
	{"gather", "gather-sent", "Bytes on the wire, a quarter of the size", RANKS, SENT},
	{"gather", "gather-memory", "Memory over time, ranks of the node together", CLOCK, HELD},
	{"downcast", "downcast-size", "Time against size in f32, 2 ranks", SIZE, TIME},
	{"downcast", "downcast-ranks", "Time against ranks, a quarter of the size", RANKS, TIME},
	{"downcast", "downcast-sent", "Bytes on the wire, a quarter of the size", RANKS, SENT},
	{"downcast", "downcast-memory", "Memory over time, ranks of the node together", CLOCK, HELD},
	{"reduce", "reduce-size", "Time against size, 2 ranks", SIZE, TIME},
	{"reduce", "reduce-ranks", "Time against ranks, a quarter of the size", RANKS, TIME},
	{"reduce", "reduce-sent", "Bytes on the wire, a quarter of the size", RANKS, SENT},
	{"reduce", "reduce-memory", "Memory over time, ranks of the node together", CLOCK, HELD},
	{"step", "adamw-size", "AdamW's kernel: time against elements, one thread", ELEMENTS, TIME},
	{"step", "step-size", "A step: time against elements, 2 ranks", ELEMENTS, TIME},
};
/* clang-format on */

#define PLOTS (sizeof(plots) / sizeof(*plots))

static const char style[] =
	":root{color-scheme:light dark}\n"
	"body{font:16px/1.5 system-ui,sans-serif;max-width:1180px;margin:2em auto;padding:0 1em}\n"
	"table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\n"
	"td,th{padding:.2em .7em;text-align:left;border-bottom:1px solid var(--grid)}\n"
	"td.n{text-align:right;white-space:nowrap}\n"
	"th[colspan]{padding-top:1em}\n"
	".wide{overflow-x:auto}\n"
	".miss{font-weight:bold}\n"
	".quiet{color:var(--axis)}\n"
	".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));"
	"gap:1.5em}\n"
	"figure{margin:0}\n"
	"figcaption{font-weight:600}\n"
	"details{font-size:13px}\n";

/* ---- rows ------------------------------------------------------------------------------------ */

static void put_cell(FILE *out, const char *class, const char *text)
{
	fprintf(out, "<td class=\"%s\">", class);
	svg_text(out, text);
	fprintf(out, "</td>");
}

/* The figure, and what it was made of; `row` is NULL where nothing was measured. */
static void put_figures(FILE *out, const struct recorded_row *row)
{
	char figure[64] = "", ours[64] = "", bare[192] = "";

	if (row)
		snprintf(figure, sizeof(figure), "%.*f %s", strcmp(row->unit, "MB") ? 3 : 1,
			 row->figure, row->unit);
	if (row && isfinite(row->ours))
		snprintf(ours, sizeof(ours), "%.4g %s", row->ours, row->in);
	if (row && isfinite(row->bare))
		snprintf(bare, sizeof(bare), "%.4g %s %s", row->bare, row->in, row->bare_name);
	put_cell(out, "n", figure);
	put_cell(out, "n", ours);
	put_cell(out, "", bare);
}

static void put_goal(FILE *out, const struct goal *goal, const struct recorded_row *row)
{
	char ranks[16];

	snprintf(ranks, sizeof(ranks), "%d", goal->ranks);
	fprintf(out, "<tr>");
	put_cell(out, "", goal->what);
	put_cell(out, "n", ranks);
	put_cell(out, "n", goal->text);
	if (!row)
		put_cell(out, "quiet", "not measured");
	else if (goal_met(goal, row->figure))
		put_cell(out, "", "met");
	else
		put_cell(out, "miss", "MISS");
	put_figures(out, row);
	fprintf(out, "</tr>\n");
}

static void write_goals(FILE *out, const struct record *record)
{
	const char *operation = "";

	fprintf(out, "<h2>Goals</h2>\n"
		     "<p>Memory is what an operation holds beyond its inputs and outputs, by the "
		     "kernel's count (VmHWM) or the library's own; bytes sent are those of all "
		     "ranks, as a part of the whole tensor; time is beside the bare operation, "
		     "both measured in the same run. All ran on one machine: \"between nodes\" is "
		     "with ranks that share no memory (ZERO_SHARE=1) and talk by MPI.</p>\n"
		     "<div class=\"wide\"><table>\n"
		     "<tr><th>what</th><th>ranks</th><th>goal</th><th></th><th>figure</th>"
		     "<th>ours</th><th>beside</th></tr>\n");
	for (const struct goal *goal = goals; goal->operation; goal++) {
		if (strcmp(goal->operation, operation)) {
			operation = goal->operation;
			fprintf(out, "<tr><th colspan=\"7\">");
			svg_text(out, operation);
			fprintf(out, "</th></tr>\n");
		}
		put_goal(out, goal, record_find(record, goal->what, goal->ranks));
	}
	fprintf(out, "</table></div>\n");
}

static bool is_word_of(const char *words, const char *word)
{
	size_t length = strlen(word);

	for (const char *at = words; (at = strstr(at, word)); at += length)
		if ((at == words || at[-1] == ' ') && (!at[length] || at[length] == ' '))
			return true;
	return false;
}

/* Rows that no goal asks for. */
static void write_others(FILE *out, const struct record *record, const struct section *section)
{
	bool begun = false;
	char ranks[16];

	for (size_t i = 0; i < record->row_count; i++) {
		const struct recorded_row *row = &record->rows[i];

		if (!is_word_of(section->subjects, row->subject) ||
		    goal_of(row->what, row->ranks) ||
		    record_find(record, row->what, row->ranks) != row)
			continue;
		if (!begun)
			fprintf(out,
				"<div class=\"wide\"><table>\n<tr><th>also measured</th>"
				"<th>ranks</th><th>figure</th><th>ours</th><th>beside</th></tr>\n");
		begun = true;
		snprintf(ranks, sizeof(ranks), "%d", row->ranks);
		fprintf(out, "<tr>");
		put_cell(out, "", row->what);
		put_cell(out, "n", ranks);
		put_figures(out, row);
		fprintf(out, "</tr>\n");
	}
	if (begun)
		fprintf(out, "</table></div>\n");
}

/* ---- plots ----------------------------------------------------------------------------------- */

/* For those who want the numbers. A series over time has too many to read. */
static void write_numbers(FILE *out, const struct plot *plot, const struct series *const *series,
			  size_t count)
{
	char x[64], y[64];

	if (plot->x == CLOCK)
		return;
	fprintf(out, "<details><summary>numbers</summary><table>\n");
	for (size_t i = 0; i < count; i++) {
		fprintf(out, "<tr>");
		put_cell(out, "", series[i]->label);
		for (size_t p = 0; p < series[i]->count; p++) {
			svg_quantity(x, sizeof(x), series[i]->points[p].x, axes[plot->x].unit);
			svg_quantity(y, sizeof(y), series[i]->points[p].y, axes[plot->y].unit);
			fprintf(out, "<td class=\"n\">%s: %s</td>", x, y);
		}
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></details>\n");
}

/* The library's lines come first, so that their colours are the same in every plot; floors last. */
static int order_of(const struct series *s)
{
	return !strncmp(s->label, "slurm-zero", 10) ? 0 : !strncmp(s->label, "floor", 5) ? 2 : 1;
}

static void write_plot(FILE *out, const struct record *record, const struct plot *plot)
{
	const struct series *series[MOST_SERIES];
	size_t count = 0;

	for (int order = 0; order <= 2; order++)
		for (size_t i = 0; i < record->series_count && count < MOST_SERIES; i++)
			if (!strcmp(record->series[i].plot, plot->id) &&
			    order_of(&record->series[i]) == order)
				series[count++] = &record->series[i];
	if (!count)
		return;
	fprintf(out, "<figure><figcaption>");
	svg_text(out, plot->title);
	fprintf(out, "</figcaption>\n");
	svg_chart(out, plot->title, &axes[plot->x], &axes[plot->y], series, count);
	write_numbers(out, plot, series, count);
	fprintf(out, "</figure>\n");
}

static void write_section(FILE *out, const struct record *record, const struct section *section)
{
	fprintf(out, "<h2 id=\"%s\">%s</h2>\n<p>", section->id, section->title);
	svg_text(out, section->text);
	fprintf(out, "</p>\n<div class=\"plots\">\n");
	for (size_t i = 0; i < PLOTS; i++)
		if (!strcmp(plots[i].section, section->id))
			write_plot(out, record, &plots[i]);
	fprintf(out, "</div>\n");
	write_others(out, record, section);
}

/* ---- misses ---------------------------------------------------------------------------------- */

/* The reason for a row in the file of misses; false if it has none. */
static bool find_reason(const char *path, const char *what, char *reason, size_t size)
{
	FILE *file = fopen(path, "re");
	size_t length = strlen(what);
	bool found = false;
	char line[2048];

	while (file && !found && fgets(line, sizeof(line), file)) {
		found = !strncmp(line, what, length) && line[length] == '\t';
		if (found)
			snprintf(reason, size, "%.*s", (int)strcspn(line + length + 1, "\n"),
				 line + length + 1);
	}
	if (file)
		fclose(file);
	return found;
}

static void write_misses(FILE *out, const struct record *record, const char *misses)
{
	char reason[2048];
	int count = 0;

	fprintf(out, "<h2>Misses</h2>\n<dl>\n");
	for (const struct goal *goal = goals; goal->operation; goal++) {
		const struct recorded_row *row = record_find(record, goal->what, goal->ranks);

		if (!row || goal_met(goal, row->figure))
			continue;
		if (!find_reason(misses, goal->what, reason, sizeof(reason)))
			snprintf(reason, sizeof(reason), "No reason has been found yet.");
		fprintf(out, "<dt>");
		svg_text(out, goal->what);
		fprintf(out, ", ranks: %d. %.3f %s, goal ", goal->ranks, row->figure, row->unit);
		svg_text(out, goal->text);
		fprintf(out, "</dt><dd>");
		svg_text(out, reason);
		fprintf(out, "</dd>\n");
		count++;
	}
	fprintf(out, "</dl>\n");
	if (!count)
		fprintf(out, "<p>Every goal that was measured is met.</p>\n");
}

/* ---- the page -------------------------------------------------------------------------------- */

static void write_head(FILE *out, const char *note)
{
	const struct machine machine = machine_now();

	fprintf(out,
		"<!DOCTYPE html>\n"
		"<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
		"<meta charset=\"utf-8\"/>\n"
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
		"<title>slurm-zero: what it costs, beside the bare operations</title>\n"
		"<style>\n%s%s</style>\n</head>\n<body>\n"
		"<h1>slurm-zero: what it costs, beside the bare operations</h1>\n<p>",
		svg_style, style);
	svg_text(out, machine.cpu);
	fprintf(out, ", %ld cores, %s of memory; ", machine.cores, machine.memory);
	svg_text(out, machine.kernel);
	fprintf(out, "; ");
	svg_text(out, machine.mpi);
	fprintf(out, "; %s.</p>\n<p>", machine.date);
	svg_text(out, note);
	fprintf(out, " <code>make bench</code> in a build folder measures it again; "
		     "<code>bench.json</code> beside this page has every number.</p>\n");
}

int write_page(const char *path, const char *html, const char *misses, const char *note)
{
	struct record record = record_read(path);
	FILE *out = fopen(html, "we");

	must_be(out, "the page cannot be written");
	write_head(out, note);
	write_goals(out, &record);
	for (size_t i = 0; i < SECTIONS; i++)
		write_section(out, &record, &sections[i]);
	write_misses(out, &record, misses);
	fprintf(out, "</body>\n</html>\n");
	record_free(&record);
	return fclose(out) ? EXIT_FAILURE : EXIT_SUCCESS;
}

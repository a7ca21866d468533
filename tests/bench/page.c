/* SPDX-License-Identifier: Apache-2.0 */
/* The record as a page: each section is a row of one table, each plot a row of another. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "launcher/page/plot.h"
#include "record.h"

enum { MOST_SERIES = 16, MOST_MARKED = 20, COLOURS = 6 };

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

static const struct plot_axis axes[] = {
	[SIZE] = {"size of the parameter", UNIT_BYTES, true},
	[ELEMENTS] = {"elements of a rank", UNIT_ELEMENTS, true},
	[RANKS] = {"ranks", UNIT_RANKS, true},
	[TIME] = {"time", UNIT_SECONDS, true},
	[CLOCK] = {"time", UNIT_SECONDS, false},
	[SENT] = {"bytes sent by all ranks", UNIT_BYTES, false},
	[HELD] = {"memory beyond that at first", UNIT_BYTES, false},
};

/* clang-format off */
static const struct figure {
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
	"th[colspan]{padding-top:1em}\n"
	".miss{font-weight:bold}\n"
	".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));"
	"gap:1.5em}\n"
	"figure{margin:0}\n"
	"details{font-size:13px}\n";

/* ---- rows ------------------------------------------------------------------------------------ */

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
	html_cell(out, "n", figure);
	html_cell(out, "n", ours);
	html_cell(out, "", bare);
}

static void put_goal(FILE *out, const struct goal *goal, const struct recorded_row *row)
{
	char ranks[16];

	snprintf(ranks, sizeof(ranks), "%d", goal->ranks);
	fprintf(out, "<tr>");
	html_cell(out, "", goal->what);
	html_cell(out, "n", ranks);
	html_cell(out, "n", goal->text);
	if (!row)
		html_cell(out, "quiet", "not measured");
	else if (goal_met(goal, row->figure))
		html_cell(out, "", "met");
	else
		html_cell(out, "miss", "MISS");
	put_figures(out, row);
	fprintf(out, "</tr>\n");
}

static void write_goals(FILE *out, const struct record *record)
{
	const char *operation = "";

	fprintf(out,
		"<h2>Goals</h2>\n"
		"<p>Memory is what an operation uses beyond its inputs and outputs, by the "
		"kernel's count (VmHWM) or the library's own; bytes sent are those of all "
		"ranks, as a part of the whole tensor; time is compared with the bare operation, "
		"both measured in the same run. All ran on one machine: \"between nodes\" is "
		"with ranks that share no memory (ZERO_SHARE=1) and communicate by MPI.</p>\n"
		"<div class=\"wide\"><table>\n"
		"<tr><th>what</th><th>ranks</th><th>goal</th><th></th><th>figure</th>"
		"<th>ours</th><th>baseline</th></tr>\n");
	for (const struct goal *goal = goals; goal->operation; goal++) {
		if (strcmp(goal->operation, operation)) {
			operation = goal->operation;
			fprintf(out, "<tr><th colspan=\"7\">");
			html_text(out, operation);
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
			fprintf(out, "<div class=\"wide\"><table>\n<tr><th>also measured</th>"
				     "<th>ranks</th><th>figure</th><th>ours</th><th>baseline</th></"
				     "tr>\n");
		begun = true;
		snprintf(ranks, sizeof(ranks), "%d", row->ranks);
		fprintf(out, "<tr>");
		html_cell(out, "", row->what);
		html_cell(out, "n", ranks);
		put_figures(out, row);
		fprintf(out, "</tr>\n");
	}
	if (begun)
		fprintf(out, "</table></div>\n");
}

/* ---- plots ----------------------------------------------------------------------------------- */

/* The points as a table, unless they are samples over time, which are too many to read. */
static void write_numbers(FILE *out, const struct figure *figure, const struct plot *plot)
{
	if (figure->x == CLOCK)
		return;
	fprintf(out, "<details><summary>numbers</summary><table>\n");
	for (size_t i = 0; i < plot->series_count; i++) {
		const struct plot_series *series = &plot->series[i];

		fprintf(out, "<tr>");
		html_cell(out, "", series->label);
		for (size_t p = 0; p < series->count; p++) {
			fprintf(out, "<td class=\"n\">%s: ",
				quantity_text(series->points[p].x, plot->x->unit).text);
			fprintf(out, "%s</td>",
				quantity_text(series->points[p].y, plot->y->unit).text);
		}
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></details>\n");
}

static bool is_floor(const struct series *s)
{
	return !strncmp(s->label, "floor: ", 7);
}

/* The library's lines come first, so that their colours are the same in every plot; floors last. */
static int order_of(const struct series *s)
{
	return !strncmp(s->label, "slurm-zero", 10) ? 0 : is_floor(s) ? 2 : 1;
}

static size_t name_length(const char *label)
{
	const char *rank = strstr(label, ", rank ");

	return rank ? (size_t)(rank - label) : strlen(label);
}

static bool same_name(const char *a, const char *b)
{
	size_t length = name_length(a);

	return length == name_length(b) && !strncmp(a, b, length);
}

/* Adds a line. Lines that differ in the rank alone have one colour and other dashes. */
static void add_series(struct plot_series *all, size_t *count, int *colours, const struct series *s)
{
	struct plot_series added = {.label = s->label,
				    .points = s->points,
				    .count = s->count,
				    .marks = s->count <= MOST_MARKED && !is_floor(s)};

	for (size_t i = *count; i-- && !added.style;)
		if (same_name(all[i].label, s->label)) {
			added.colour = all[i].colour;
			added.style = PLOT_DASHED;
		}
	if (is_floor(s))
		added.style = PLOT_FLOOR;
	else if (!added.style)
		added.colour = (*colours)++ % COLOURS;
	all[(*count)++] = added;
}

static void write_plot(FILE *out, const struct record *record, const struct figure *figure)
{
	struct plot_series series[MOST_SERIES];
	struct plot plot = {.title = figure->title,
			    .x = &axes[figure->x],
			    .y = &axes[figure->y],
			    .series = series};
	int colours = 0;

	for (int order = 0; order <= 2; order++)
		for (size_t i = 0; i < record->series_count && plot.series_count < MOST_SERIES; i++)
			if (!strcmp(record->series[i].plot, figure->id) &&
			    order_of(&record->series[i]) == order)
				add_series(series, &plot.series_count, &colours,
					   &record->series[i]);
	if (!plot.series_count)
		return;
	fprintf(out, "<figure><figcaption>");
	html_text(out, plot.title);
	fprintf(out, "</figcaption>\n");
	plot_draw(out, &plot);
	write_numbers(out, figure, &plot);
	fprintf(out, "</figure>\n");
}

static void write_section(FILE *out, const struct record *record, const struct section *section)
{
	fprintf(out, "<h2 id=\"%s\">%s</h2>\n<p>", section->id, section->title);
	html_text(out, section->text);
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
		html_text(out, goal->what);
		fprintf(out, ", ranks: %d. %.3f %s, goal ", goal->ranks, row->figure, row->unit);
		html_text(out, goal->text);
		fprintf(out, "</dt><dd>");
		html_text(out, reason);
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

	html_head(out, "slurm-zero: its cost, compared with the bare operations", style);
	fprintf(out, "<p>");
	html_text(out, machine.cpu);
	fprintf(out, ", %ld cores, %s of memory; ", machine.cores, machine.memory);
	html_text(out, machine.kernel);
	fprintf(out, "; ");
	html_text(out, machine.mpi);
	fprintf(out, "; %s.</p>\n<p>", machine.date);
	html_text(out, note);
	fprintf(out, " <code>make bench</code> in a build folder measures it again; "
		     "<code>bench.json</code> beside this page has every number. In plots K, M and "
		     "G of bytes are powers of 1024; MB and GB are powers of 1000.</p>\n");
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
	html_tail(out);
	record_free(&record);
	return fclose(out) ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "launcher/page/members.h"
#include "launcher/page/plot.h"
#include "launcher/page/sections.h"

enum { MOST_ROWS = 40, MOST_RANKS = 16 };

/* The kinds of memory, in the order in which areas are stacked; each has its own colour. */
static const struct {
	const char *name;
	bool on_device;
} memory_kinds[] = {
	{"shards", true},    {"gathered", true}, {"gradients", true},
	{"optimizer", true}, {"staging", true},  {"caller", true},
	{"pinned", false},   {"offload", false}, {"checkpoint", false},
};

enum { KINDS = sizeof(memory_kinds) / sizeof(*memory_kinds) };

static const struct plot_axis time_axis = {"time since the job was opened", UNIT_SECONDS};
static const struct plot_axis memory_axis = {"memory", UNIT_BYTES};
static const struct plot_axis step_axis = {"time of a step", UNIT_SECONDS};

/* ---- cells ----------------------------------------------------------------------------------- */

struct count_text count_text(uint64_t count)
{
	char digits[24];
	struct count_text spaced;
	size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, count), at = 0;

	for (size_t i = 0; i < length; i++) {
		if (i && (length - i) % 3 == 0)
			spaced.text[at++] = ' ';
		spaced.text[at++] = digits[i];
	}
	spaced.text[at] = '\0';
	return spaced;
}

void put_seconds(FILE *out, double seconds)
{
	html_cell(out, "n", quantity_text(seconds, UNIT_SECONDS).text);
}

void put_bytes(FILE *out, double bytes)
{
	html_cell(out, "n", quantity_text(bytes, UNIT_BYTES).text);
}

void put_count(FILE *out, uint64_t count)
{
	html_cell(out, "n", count_text(count).text);
}

/* ---- plots over time ------------------------------------------------------------------------- */

enum { MOST_SERIES = KINDS + 1 };

/* A plot whose values hold from the end of one sample to the end of the next. */
struct history {
	struct plot plot;
	struct plot_series series[MOST_SERIES];
	struct plot_point *points; /* of all series, 2 for each sample */
	const double *edges;       /* [samples + 1] */
	size_t samples;
};

/* False: no memory. */
static bool history_init(struct history *history, const char *title, const struct plot_axis *axis,
			 const double *edges, size_t samples)
{
	*history = (struct history){
		.plot = {.title = title, .x = &time_axis, .y = axis},
		.points = calloc(MOST_SERIES * 2 * samples + 1, sizeof(struct plot_point)),
		.edges = edges,
		.samples = samples,
	};
	return history->points;
}

static void history_add(struct history *history, const struct plot_series *look,
			const json_t *values)
{
	size_t which = history->plot.series_count++, samples = history->samples;
	struct plot_point *points = history->points + which * 2 * samples;

	for (size_t i = 0; i < 2 * samples; i++)
		points[i] =
			(struct plot_point){history->edges[(i + 1) / 2], item_at(values, i / 2)};
	history->series[which] = *look;
	history->series[which].points = points;
	history->series[which].count = 2 * samples;
}

static void history_draw(FILE *out, struct history *history)
{
	history->plot.series = history->series;
	fprintf(out, "<figure><figcaption>");
	html_text(out, history->plot.title);
	fprintf(out, "</figcaption>\n");
	if (history->samples)
		plot_draw(out, &history->plot);
	fprintf(out, "</figure>\n");
	free(history->points);
}

/* The ends of samples, with the start of the first before them. malloc'ed; NULL: no memory. */
static double *edges_of(const json_t *at_seconds, double start)
{
	size_t samples = json_array_size(at_seconds);
	double *edges = calloc(samples + 1, sizeof(*edges));

	if (!edges)
		return NULL;
	edges[0] = start;
	for (size_t i = 0; i < samples; i++)
		edges[i + 1] = item_at(at_seconds, i);
	return edges;
}

static const json_t *series_of(const json_t *report, const json_t *rank)
{
	const json_t *all = member(report, "series"), *series;
	size_t i;

	json_array_foreach((json_t *)all, i, series) if (count_at(series, "rank") ==
							 count_at(rank, "rank")) return series;
	return NULL;
}

/* ---- memory ---------------------------------------------------------------------------------- */

const json_t *highest_rank(const json_t *report)
{
	const json_t *ranks = member(report, "ranks"), *most = json_array_get(ranks, 0), *rank;
	size_t i;

	json_array_foreach((json_t *)ranks, i, rank) if (number_at(rank, "memory.total.peak") >
							 number_at(most, "memory.total.peak"))
		most = rank;
	return most;
}

static bool was_used(const json_t *peaks)
{
	for (size_t i = 0; i < json_array_size(peaks); i++)
		if (item_at(peaks, i) > 0)
			return true;
	return false;
}

static void plot_kinds(FILE *out, const json_t *report, const json_t *rank)
{
	const json_t *series = series_of(report, rank), *at = member(series, "at_seconds");
	double *edges = edges_of(at, 0);
	struct history history;
	char title[96];

	snprintf(title, sizeof(title), "Memory by kind when it was highest, rank %" PRIu64,
		 count_at(rank, "rank"));
	if (!edges || !history_init(&history, title, &memory_axis, edges, json_array_size(at)))
		goto out;
	for (int kind = 0; kind < KINDS; kind++) {
		const json_t *peaks =
			json_object_get(member(series, "peak_bytes"), memory_kinds[kind].name);

		if (was_used(peaks))
			history_add(&history,
				    &(struct plot_series){.label = memory_kinds[kind].name,
							  .colour = kind,
							  .style = memory_kinds[kind].on_device
									   ? PLOT_AREA
									   : PLOT_DASHED},
				    peaks);
	}
	history_add(&history, &(struct plot_series){.label = "total between steps", .colour = 5},
		    member(series, "end_bytes"));
	history_draw(out, &history);
out:
	free(edges);
}

static void plot_spread(FILE *out, const json_t *report)
{
	const json_t *at = member(report, "spread.at_seconds");
	double *edges = edges_of(at, 0);
	struct history history;

	if (!edges || !history_init(&history, "Memory when it was highest, over the ranks",
				    &memory_axis, edges, json_array_size(at)))
		goto out;
	history_add(&history, &(struct plot_series){.label = "the rank with most", .colour = 1},
		    member(report, "spread.most_bytes"));
	history_add(&history,
		    &(struct plot_series){.label = "the rank with least", .style = PLOT_DASHED},
		    member(report, "spread.least_bytes"));
	history_draw(out, &history);
out:
	free(edges);
}

static void put_peaks(FILE *out, const json_t *report, const json_t *most, const char *kind)
{
	const json_t *ranks = member(report, "ranks"), *rank;
	double least, highest;
	char path[64];
	size_t i;

	snprintf(path, sizeof(path), "memory.%s.peak", kind);
	least = highest = number_at(most, path);
	json_array_foreach((json_t *)ranks, i, rank)
	{
		double peak = number_at(rank, path);

		least = peak < least ? peak : least;
		highest = peak > highest ? peak : highest;
	}
	fprintf(out, "<tr>");
	html_cell(out, "", kind);
	put_bytes(out, number_at(most, path));
	put_bytes(out, least);
	put_bytes(out, highest);
	fprintf(out, "</tr>\n");
}

void section_memory(FILE *out, const json_t *report)
{
	const json_t *most = highest_rank(report);

	fprintf(out,
		"<h2 id=\"memory\">Memory</h2>\n<p>Rank %" PRIu64
		" used the most memory. Within each step, "
		"the kinds are those of the moment when the total was highest. The total does not "
		"count pinned, offload and checkpoint, which are in host memory.</p>\n",
		count_at(most, "rank"));
	plot_kinds(out, report, most);
	if (json_array_size(member(report, "ranks")) > 1)
		plot_spread(out, report);
	fprintf(out,
		"<div class=\"wide\"><table>\n<tr><th>peak of</th><th>rank %" PRIu64 "</th>"
		"<th>least of the ranks</th><th>most</th></tr>\n",
		count_at(most, "rank"));
	for (int kind = 0; kind < KINDS; kind++)
		put_peaks(out, report, most, memory_kinds[kind].name);
	put_peaks(out, report, most, "total");
	fprintf(out, "</table></div>\n");
}

/* ---- steps ----------------------------------------------------------------------------------- */

/* The samples of a rank in which steps were measured. */
struct measured {
	json_t *at, *mean, *longest;
	double start;
	bool several; /* some sample has more steps than one */
};

static void read_measured(const json_t *series, struct measured *measured)
{
	const json_t *at = member(series, "at_seconds");

	*measured = (struct measured){json_array(), json_array(), json_array(), 0, false};
	for (size_t i = 0; i < json_array_size(at); i++) {
		double steps = item_at(member(series, "steps"), i), end = item_at(at, i);
		double sum = item_at(member(series, "step_seconds"), i);

		if (!(steps > 0))
			continue;
		if (!json_array_size(measured->at))
			measured->start = end - sum;
		measured->several = measured->several || steps > 1;
		json_array_append_new(measured->at, json_real(end));
		json_array_append_new(measured->mean, json_real(sum / steps));
		json_array_append_new(measured->longest,
				      json_real(item_at(member(series, "max_step_seconds"), i)));
	}
}

static void plot_steps(FILE *out, const json_t *series)
{
	struct history history;
	struct measured measured;
	double *edges;

	read_measured(series, &measured);
	edges = edges_of(measured.at, measured.start);
	if (!edges || !history_init(&history, "Time of a step", &step_axis, edges,
				    json_array_size(measured.at)))
		goto out;
	history_add(&history, &(struct plot_series){.label = "mean"}, measured.mean);
	if (measured.several)
		history_add(&history,
			    &(struct plot_series){
				    .label = "longest", .colour = 1, .style = PLOT_DASHED},
			    measured.longest);
	history_draw(out, &history);
out:
	json_decref(measured.at);
	json_decref(measured.mean);
	json_decref(measured.longest);
	free(edges);
}

void section_steps(FILE *out, const json_t *report)
{
	const json_t *rank = json_array_get(member(report, "ranks"), 0);
	const json_t *steps = member(rank, "steps");

	fprintf(out, "<h2 id=\"steps\">Steps</h2>\n");
	if (!count_at(steps, "measured")) {
		fprintf(out, "<p>No step followed another.</p>\n");
		return;
	}
	fprintf(out,
		"<p>From the end of one step to the end of the next: median %s, 95 of 100 within ",
		quantity_text(number_at(steps, "median_seconds"), UNIT_SECONDS).text);
	fprintf(out, "%s, ", quantity_text(number_at(steps, "p95_seconds"), UNIT_SECONDS).text);
	fprintf(out, "longest %s; %s were measured, on rank %" PRIu64 ".</p>\n",
		quantity_text(number_at(steps, "max_seconds"), UNIT_SECONDS).text,
		count_text(count_at(steps, "measured")).text, count_at(rank, "rank"));
	plot_steps(out, series_of(report, rank));
}

/* ---- collectives ----------------------------------------------------------------------------- */

struct sum {
	uint64_t count, failed;
	double bytes, own, wait, run;
};

static void add_sum(struct sum *sum, const json_t *row)
{
	sum->count += count_at(row, "count");
	sum->failed += count_at(row, "failed");
	sum->bytes += number_at(row, "bytes_sent");
	sum->own += number_at(row, "own_seconds");
	sum->wait += number_at(row, "wait_seconds");
	sum->run += number_at(row, "run_seconds");
}

static void put_sum(FILE *out, const struct sum *sum)
{
	put_count(out, sum->count);
	put_bytes(out, sum->bytes);
	put_seconds(out, sum->wait);
	put_seconds(out, sum->run);
	put_seconds(out, sum->own);
	put_count(out, sum->failed);
}

static void put_kinds(FILE *out, const json_t *report)
{
	static const char *const kinds[] = {"gather",  "reduce",     "update",  "step", "load",
					    "flatten", "checkpoint", "program", "other"};

	fprintf(out, "<div class=\"wide\"><table>\n<tr><th>kind, of all ranks</th><th>count</th>"
		     "<th>bytes sent</th><th>waited</th><th>ran</th><th>idle before</th>"
		     "<th>failed</th></tr>\n");
	for (size_t kind = 0; kind < sizeof(kinds) / sizeof(*kinds); kind++) {
		const json_t *ranks = member(report, "ranks"), *rank;
		struct sum sum = {0};
		size_t i;

		json_array_foreach((json_t *)ranks, i, rank)
			add_sum(&sum, json_object_get(member(rank, "collectives"), kinds[kind]));
		if (!sum.count)
			continue;
		fprintf(out, "<tr>");
		html_cell(out, "", kinds[kind]);
		put_sum(out, &sum);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n");
}

static double time_of(const json_t *row)
{
	return number_at(row, "wait_seconds") + number_at(row, "run_seconds");
}

static int by_time(const void *a, const void *b)
{
	const json_t *const *x = a, *const *y = b;
	double first = time_of(*x), second = time_of(*y);

	return first < second ? 1 : first > second ? -1 : 0;
}

static void put_groups(FILE *out, const json_t *report)
{
	const json_t *all = member(report, "collectives"), *row;
	const json_t **rows = calloc(json_array_size(all) + 1, sizeof(json_t *));
	size_t count = 0, i;

	json_array_foreach((json_t *)all, i, row) if (rows && *string_at(row, "group"))
		rows[count++] = row;
	if (!count)
		goto out;
	qsort(rows, count, sizeof(json_t *), by_time);
	fprintf(out,
		"<div class=\"wide\"><table>\n<tr><th>group, rank %" PRIu64 "</th><th>kind</th>"
		"<th>count</th><th>bytes sent</th><th>waited</th><th>ran</th>"
		"<th>idle before</th><th>failed</th></tr>\n",
		count_at(json_array_get(member(report, "ranks"), 0), "rank"));
	for (i = 0; i < count && i < MOST_ROWS; i++) {
		struct sum sum = {0};

		add_sum(&sum, rows[i]);
		fprintf(out, "<tr>");
		html_cell(out, "name", string_at(rows[i], "group"));
		html_cell(out, "", string_at(rows[i], "kind"));
		put_sum(out, &sum);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n");
	if (count > MOST_ROWS)
		fprintf(out, "<p>%zu more rows are in the JSON file.</p>\n", count - MOST_ROWS);
out:
	free(rows);
}

void section_collectives(FILE *out, const json_t *report)
{
	bool device = !strcmp(string_at(report, "job.backend"), "cuda");

	fprintf(out,
		"<h2 id=\"collectives\">Collectives</h2>\n<p>Waited: until all ranks had agreed to "
		"begin. Ran: %s. Idle before: since the collective before, on the rank's queue of "
		"communication.</p>\n",
		device ? "until the work was queued on the GPU, which may not have finished it"
		       : "until the data were there");
	put_kinds(out, report);
	put_groups(out, report);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int by_wait(const void *a, const void *b)
{
	const json_t *const *x = a, *const *y = b;
	double first = number_at(*x, "waited_seconds"), second = number_at(*y, "waited_seconds");

	if (first != second)
		return first < second ? -1 : 1;
	return number_at(*x, "rank") < number_at(*y, "rank") ? -1 : 1;
}

static void put_rank(FILE *out, const json_t *rank)
{
	fprintf(out, "<tr><td class=\"n\">%" PRIu64 "</td>", count_at(rank, "rank"));
	html_cell(out, "name", string_at(rank, "node.name"));
	put_seconds(out, number_at(rank, "waited_seconds"));
	put_seconds(out, number_at(rank, "own_seconds"));
	put_seconds(out, number_at(rank, "longest_own.seconds"));
	put_seconds(out, number_at(rank, "longest_own.at_seconds"));
	html_cell(out, "name", string_at(rank, "longest_own.before"));
	put_bytes(out, number_at(rank, "memory.total.peak"));
	put_bytes(out, number_at(rank, "traffic.bytes_sent"));
	put_bytes(out, number_at(rank, "traffic.bytes_read"));
	fprintf(out, "</tr>\n");
}

static void put_saves(FILE *out, const json_t *rank)
{
	const json_t *saves = member(rank, "checkpoints");
	uint64_t saved = count_at(saves, "saved"), failed = count_at(saves, "failed");

	if (!saved && !failed)
		return;
	fprintf(out, "<p>Rank %" PRIu64 " saved %s of %s checkpoints: ", count_at(rank, "rank"),
		count_text(saved).text, count_text(saved + failed).text);
	fprintf(out, "%s in %s.</p>\n", quantity_text(number_at(saves, "bytes"), UNIT_BYTES).text,
		quantity_text(number_at(saves, "seconds"), UNIT_SECONDS).text);
}

void section_ranks(FILE *out, const json_t *report)
{
	const json_t *all = member(report, "ranks");
	size_t count = json_array_size(all);
	const json_t **ranks = calloc(count + 1, sizeof(json_t *));

	if (!ranks)
		return;
	for (size_t i = 0; i < count; i++)
		ranks[i] = json_array_get(all, i);
	qsort(ranks, count, sizeof(json_t *), by_wait);
	fprintf(out, "<h2 id=\"ranks\">Slowest ranks</h2>\n<p>The rank that the others wait for is "
		     "the one that waits least itself: it is the first here. Only gathers, "
		     "reduces, updates and steps count.</p>\n"
		     "<div class=\"wide\"><table>\n<tr><th>rank</th><th>node</th><th>waited</th>"
		     "<th>idle</th><th>longest idle</th><th>at</th><th>before</th>"
		     "<th>most memory</th><th>sent</th><th>read from files</th></tr>\n");
	for (size_t i = 0; i < count && i < MOST_RANKS; i++)
		put_rank(out, ranks[i]);
	fprintf(out, "</table></div>\n");
	if (count > MOST_RANKS)
		fprintf(out, "<p>%zu more ranks are in the JSON file.</p>\n", count - MOST_RANKS);
	put_saves(out, json_array_get(all, 0));
	free(ranks);
}

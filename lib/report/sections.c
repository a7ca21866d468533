/* SPDX-License-Identifier: Apache-2.0 */
/* The sections of a report's page; part of zero_files.so. */
#include "report/sections.h"

#include <stdlib.h>

#include "report/plot.h"
#include "report/words.h"

enum { MOST_ROWS = 40, MOST_RANKS = 16 };

static double nanoseconds(uint64_t value)
{
	return (double)value * 1e-9;
}

static void put_seconds(FILE *out, double seconds)
{
	page_cell(out, "n", words_seconds(seconds).text);
}

static void put_bytes(FILE *out, double bytes)
{
	page_cell(out, "n", words_bytes(bytes).text);
}

static void put_count(FILE *out, uint64_t count)
{
	page_cell(out, "n", words_count(count).text);
}

static void put_plot(FILE *out, const struct plot *plot)
{
	fprintf(out, "<figure><figcaption>");
	words_escape(out, plot->title);
	fprintf(out, "</figcaption>\n");
	plot_draw(out, plot);
	fprintf(out, "</figure>\n");
}

/* The times between which samples hold: a sample that has no time of its own holds a moment. */
static void edges_of(const struct zero_report_rank *rank, double edges[ZERO_REPORT_SAMPLES + 1])
{
	edges[0] = 0;
	for (uint32_t i = 0; i < rank->sample_count; i++)
		edges[i + 1] = (double)rank->samples[i].seconds;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool was_used(const struct zero_report_rank *rank, int kind)
{
	for (uint32_t i = 0; i < rank->sample_count; i++)
		if (rank->samples[i].peak[kind] > 0)
			return true;
	return false;
}

static void plot_kinds(FILE *out, const struct zero_report_rank *rank)
{
	double values[ZERO_MEM_KINDS + 1][ZERO_REPORT_SAMPLES], edges[ZERO_REPORT_SAMPLES + 1];
	struct plot_series series[ZERO_MEM_KINDS + 1];
	struct plot plot = {.edges = edges, .count = rank->sample_count, .bytes = true};
	char title[96];

	snprintf(title, sizeof(title), "Memory by kind when it was highest, rank %d", rank->rank);
	plot.title = title;
	plot.series = series;
	edges_of(rank, edges);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++) {
		if (!was_used(rank, kind))
			continue;
		for (uint32_t i = 0; i < rank->sample_count; i++)
			values[kind][i] = (double)rank->samples[i].peak[kind];
		series[plot.series_count++] = (struct plot_series){
			.name = words_memory((enum zero_memory_kind)kind),
			.values = values[kind],
			.colour = kind,
			.area = zero_on_device((enum zero_memory_kind)kind),
			.dashed = true,
		};
	}
	for (uint32_t i = 0; i < rank->sample_count; i++)
		values[ZERO_MEM_KINDS][i] = (double)rank->samples[i].end;
	series[plot.series_count++] = (struct plot_series){
		.name = "total between steps", .values = values[ZERO_MEM_KINDS], .colour = 5};
	put_plot(out, &plot);
}

/* All ranks step together: sample i is of the same steps on each of them. */
static void plot_spread(FILE *out, const struct zero_report *report)
{
	double least[ZERO_REPORT_SAMPLES], most[ZERO_REPORT_SAMPLES];
	double edges[ZERO_REPORT_SAMPLES + 1];
	const struct plot_series series[] = {
		{.name = "the rank with most", .values = most, .colour = 1},
		{.name = "the rank with least", .values = least, .colour = 0, .dashed = true},
	};
	struct plot plot = {.title = "Memory when it was highest, over the ranks",
			    .edges = edges,
			    .count = report->ranks[0].sample_count,
			    .bytes = true,
			    .series = series,
			    .series_count = 2};

	edges_of(&report->ranks[0], edges);
	for (size_t r = 0; r < report->rank_count; r++) {
		const struct zero_report_rank *rank = &report->ranks[r];

		plot.count = rank->sample_count < plot.count ? rank->sample_count : plot.count;
		for (size_t i = 0; i < plot.count; i++) {
			double total = words_total(&rank->samples[i]);

			most[i] = r == 0 || total > most[i] ? total : most[i];
			least[i] = r == 0 || total < least[i] ? total : least[i];
		}
	}
	put_plot(out, &plot);
}

static const zero_bytes *kind_bytes(const zero_memory *memory, int kind)
{
	const zero_bytes *const kinds[ZERO_MEM_KINDS + 1] = {
		[ZERO_MEM_SHARDS] = &memory->shards,
		[ZERO_MEM_GATHERED] = &memory->gathered,
		[ZERO_MEM_GRADIENTS] = &memory->gradients,
		[ZERO_MEM_OPTIMIZER] = &memory->optimizer,
		[ZERO_MEM_STAGING] = &memory->staging,
		[ZERO_MEM_CALLER] = &memory->caller,
		[ZERO_MEM_PINNED] = &memory->pinned,
		[ZERO_MEM_OFFLOAD] = &memory->offload,
		[ZERO_MEM_CHECKPOINT] = &memory->checkpoint,
		[ZERO_MEM_KINDS] = &memory->total,
	};

	return kinds[kind];
}

static void put_peaks(FILE *out, const struct zero_report *report,
		      const struct zero_report_rank *most)
{
	fprintf(out,
		"<div class=\"wide\"><table>\n<tr><th>peak of</th><th>rank %d</th>"
		"<th>least of the ranks</th><th>most</th></tr>\n",
		most->rank);
	for (int kind = 0; kind <= ZERO_MEM_KINDS; kind++) {
		size_t low = kind_bytes(&most->memory, kind)->peak, high = low;

		for (size_t i = 0; i < report->rank_count; i++) {
			size_t peak = kind_bytes(&report->ranks[i].memory, kind)->peak;

			low = peak < low ? peak : low;
			high = peak > high ? peak : high;
		}
		fprintf(out, "<tr>");
		page_cell(out, "",
			  kind < ZERO_MEM_KINDS ? words_memory((enum zero_memory_kind)kind)
						: "total");
		put_bytes(out, (double)kind_bytes(&most->memory, kind)->peak);
		put_bytes(out, (double)low);
		put_bytes(out, (double)high);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n");
}

void page_memory(FILE *out, const struct zero_report *report)
{
	const struct zero_report_rank *most = words_highest(report);

	fprintf(out,
		"<h2 id=\"memory\">Memory</h2>\n<p>Rank %d held most. Within each step the "
		"kinds are those of the moment when the total was highest; the total is "
		"without pinned, offload and checkpoint, which are in host memory.</p>\n",
		most->rank);
	plot_kinds(out, most);
	if (report->rank_count > 1)
		plot_spread(out, report);
	put_peaks(out, report, most);
}

/* ---- steps ----------------------------------------------------------------------------------- */

void page_steps(FILE *out, const struct zero_report *report)
{
	const struct zero_report_rank *rank = report->ranks;
	double mean[ZERO_REPORT_SAMPLES], worst[ZERO_REPORT_SAMPLES];
	double edges[ZERO_REPORT_SAMPLES + 1];
	const struct plot_series series[] = {
		{.name = "mean", .values = mean, .colour = 0},
		{.name = "longest", .values = worst, .colour = 1, .dashed = true},
	};
	struct plot plot = {.title = "Time of a step",
			    .edges = edges,
			    .series = series,
			    .series_count = rank->every > 1 ? 2 : 1};

	fprintf(out, "<h2 id=\"steps\">Steps</h2>\n");
	if (!rank->steps.count) {
		fprintf(out, "<p>No step followed another.</p>\n");
		return;
	}
	for (uint32_t i = 0; i < rank->sample_count; i++) {
		if (!rank->samples[i].steps)
			continue;
		if (!plot.count)
			edges[0] = (double)(rank->samples[i].seconds - rank->samples[i].step);
		worst[plot.count] = (double)rank->samples[i].worst;
		mean[plot.count] = (double)rank->samples[i].step / rank->samples[i].steps;
		edges[++plot.count] = (double)rank->samples[i].seconds;
	}
	fprintf(out,
		"<p>From the end of one step to the end of the next: median %s, 95 of 100 within ",
		words_seconds(rank->steps.median).text);
	fprintf(out, "%s, longest ", words_seconds(rank->steps.p95).text);
	fprintf(out, "%s; %s were measured, on rank %d.</p>\n",
		words_seconds(rank->steps.worst).text, words_count(rank->steps.count).text,
		rank->rank);
	put_plot(out, &plot);
}

/* ---- collectives ----------------------------------------------------------------------------- */

static void put_sum(FILE *out, const struct zero_report_sum *sum)
{
	put_count(out, sum->count);
	put_bytes(out, (double)sum->bytes);
	put_seconds(out, nanoseconds(sum->wait));
	put_seconds(out, nanoseconds(sum->run));
	put_seconds(out, nanoseconds(sum->own));
	put_count(out, sum->failed);
}

static void put_kinds(FILE *out, const struct zero_report *report)
{
	fprintf(out, "<div class=\"wide\"><table>\n<tr><th>kind, of all ranks</th><th>count</th>"
		     "<th>bytes sent</th><th>waited</th><th>ran</th><th>idle before</th>"
		     "<th>failed</th></tr>\n");
	for (int kind = 0; kind < ZERO_REPORT_KINDS; kind++) {
		struct zero_report_sum sum = {0};

		for (size_t i = 0; i < report->rank_count; i++) {
			const struct zero_report_sum *one = &report->ranks[i].kinds[kind];

			sum.count += one->count;
			sum.failed += one->failed;
			sum.bytes += one->bytes;
			sum.own += one->own;
			sum.wait += one->wait;
			sum.run += one->run;
		}
		if (!sum.count)
			continue;
		fprintf(out, "<tr>");
		page_cell(out, "", zero_report_kind_name((enum zero_report_kind)kind));
		put_sum(out, &sum);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n");
}

static uint64_t time_of(const struct zero_report_op *op)
{
	return op->sum.wait + op->sum.run;
}

static int by_time(const void *a, const void *b)
{
	const struct zero_report_op *const *x = a, *const *y = b;

	if (time_of(*x) != time_of(*y))
		return time_of(*x) < time_of(*y) ? 1 : -1;
	return *x < *y ? -1 : *x > *y;
}

static void put_groups(FILE *out, const struct zero_report *report)
{
	const struct zero_report_op *rows[ZERO_REPORT_OPS];
	size_t count = 0;

	for (size_t i = 0; i < report->op_count; i++)
		if (*report->ops[i].group)
			rows[count++] = &report->ops[i];
	if (!count)
		return;
	qsort(rows, count, sizeof(struct zero_report_op *), by_time);
	fprintf(out,
		"<div class=\"wide\"><table>\n<tr><th>group, rank %d</th><th>kind</th>"
		"<th>count</th><th>bytes sent</th><th>waited</th><th>ran</th>"
		"<th>idle before</th><th>failed</th></tr>\n",
		report->ranks[0].rank);
	for (size_t i = 0; i < count && i < MOST_ROWS; i++) {
		fprintf(out, "<tr>");
		page_cell(out, "name", rows[i]->group);
		page_cell(out, "", zero_report_kind_name(rows[i]->kind));
		put_sum(out, &rows[i]->sum);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n");
	if (count > MOST_ROWS)
		fprintf(out, "<p>%zu more rows are in the JSON file.</p>\n", count - MOST_ROWS);
}

void page_collectives(FILE *out, const struct zero_report *report)
{
	bool device = report->backend[0] == 'c';

	fprintf(out,
		"<h2 id=\"collectives\">Collectives</h2>\n<p>Waited: until all ranks had agreed to "
		"begin. Ran: %s. Idle before: since the collective before, on the rank's queue of "
		"communication.</p>\n",
		device ? "until the GPU was told, which may still be at it"
		       : "until the data were there");
	put_kinds(out, report);
	put_groups(out, report);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int by_wait(const void *a, const void *b)
{
	const struct zero_report_rank *const *x = a, *const *y = b;
	uint64_t first = words_waited(*x), second = words_waited(*y);

	if (first != second)
		return first < second ? -1 : 1;
	return (*x)->rank - (*y)->rank;
}

static void put_rank(FILE *out, const struct zero_report_rank *rank)
{
	char number[16];

	snprintf(number, sizeof(number), "%d", rank->rank);
	fprintf(out, "<tr>");
	page_cell(out, "n", number);
	page_cell(out, "name", rank->node);
	put_seconds(out, nanoseconds(words_waited(rank)));
	put_seconds(out, nanoseconds(words_own(rank)));
	put_seconds(out, nanoseconds(rank->longest));
	put_seconds(out, rank->longest_at);
	page_cell(out, "name", rank->longest_before);
	put_bytes(out, (double)rank->memory.total.peak);
	put_bytes(out, (double)rank->traffic.bytes_sent);
	put_bytes(out, (double)rank->traffic.bytes_read);
	fprintf(out, "</tr>\n");
}

static void put_saves(FILE *out, const struct zero_report_rank *rank)
{
	if (!rank->saves.count && !rank->saves.failed)
		return;
	fprintf(out, "<p>Rank %d saved %s of %s checkpoints: ", rank->rank,
		words_count(rank->saves.count).text,
		words_count(rank->saves.count + rank->saves.failed).text);
	fprintf(out, "%s in ", words_bytes((double)rank->saves.bytes).text);
	fprintf(out, "%s.</p>\n", words_seconds(rank->saves.seconds).text);
}

void page_ranks(FILE *out, const struct zero_report *report)
{
	const struct zero_report_rank **ranks;
	size_t count = report->rank_count;

	ranks = malloc(count * sizeof(struct zero_report_rank *));
	if (!ranks)
		return;
	for (size_t i = 0; i < count; i++)
		ranks[i] = &report->ranks[i];
	qsort(ranks, count, sizeof(struct zero_report_rank *), by_wait);
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
	put_saves(out, &report->ranks[0]);
	free(ranks);
}

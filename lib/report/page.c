/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's report as one page that needs nothing but itself: no scripts, no other files, and markup
 * that is XML too. Every name in it was somebody else's and is escaped. Part of zero_files.so.
 */
#include <stdlib.h>
#include <string.h>

#include "files/file.h"
#include "report/plot.h"
#include "report/sections.h"
#include "report/words.h"

static const char style[] =
	":root{color-scheme:light dark}\n"
	"body{font:16px/1.5 system-ui,sans-serif;max-width:1080px;margin:2em auto;padding:0 1em}\n"
	"table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\n"
	"td,th{padding:.2em .7em;text-align:left;border-bottom:1px solid var(--grid)}\n"
	"td.n{text-align:right;white-space:nowrap}\n"
	"td.name{max-width:24em;overflow-wrap:anywhere}\n"
	".wide{overflow-x:auto}\n"
	".quiet{color:var(--axis)}\n"
	".notice{border-left:4px solid var(--c1);padding:.3em 1em}\n"
	"dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9em,1fr));gap:.5em}\n"
	"dl.facts div{border:1px solid var(--grid);border-radius:6px;padding:.4em .8em}\n"
	"dt{font-size:13px;color:var(--axis)}dd{margin:0;font-weight:600;"
	"overflow-wrap:anywhere}\n"
	"figure{margin:1em 0;max-width:760px}\n"
	"figcaption{font-weight:600}\n";

void page_cell(FILE *out, const char *class, const char *text)
{
	fprintf(out, "<td class=\"%s\">", class);
	words_escape(out, text);
	fprintf(out, "</td>");
}

static void put_fact(FILE *out, const char *name, const char *value)
{
	fprintf(out, "<div><dt>%s</dt><dd>", name);
	words_escape(out, value);
	fprintf(out, "</dd></div>\n");
}

static void put_number(FILE *out, const char *name, uint64_t value)
{
	put_fact(out, name, words_count(value).text);
}

static void put_facts(FILE *out, const struct zero_report *report)
{
	const struct zero_report_rank *first = report->ranks;
	const struct zero_report_rank *most = words_highest(report);

	fprintf(out, "<dl class=\"facts\">\n");
	put_fact(out, "began", words_time(report->started).text);
	put_fact(out, "lasted", words_seconds(report->seconds).text);
	put_number(out, "ranks", (uint64_t)report->world);
	put_number(out, "stage", (uint64_t)report->stage);
	put_fact(out, "backend", report->backend);
	put_number(out, "steps", report->steps);
	if (first->steps.count)
		put_fact(out, "median step", words_seconds(first->steps.median).text);
	put_fact(out, "most memory, a rank", words_bytes((double)most->memory.total.peak).text);
	put_number(out, "restarts", (uint64_t)report->restarts);
	put_number(out, "checkpoints saved", first->saves.count);
	fprintf(out, "</dl>\n");
}

static void put_head(FILE *out, const struct zero_report *report)
{
	fprintf(out, "<!DOCTYPE html>\n"
		     "<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n"
		     "<meta charset=\"utf-8\"/>\n"
		     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
		     "<title>");
	words_escape(out, report->program);
	fprintf(out, ", job ");
	words_escape(out, report->id);
	fprintf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<h1>", plot_style, style);
	words_escape(out, report->program);
	fprintf(out, ", job ");
	words_escape(out, report->id);
	fprintf(out, "</h1>\n");
	if (report->why) {
		fprintf(out, "<p class=\"notice\">");
		words_escape(out, report->why);
		fprintf(out, " All figures are those of rank %d alone.</p>\n",
			report->ranks[0].rank);
	}
	put_facts(out, report);
}

static void put_options(FILE *out, const struct zero_report *report)
{
	fprintf(out, "<h2 id=\"options\">Options</h2>\n<div class=\"wide\"><table>\n"
		     "<tr><th>name</th><th>value</th><th>said by</th><th>compiled "
		     "default</th></tr>\n");
	for (size_t i = 0; i < report->option_count; i++) {
		const struct zero_report_option *option = &report->options[i];

		fprintf(out, "<tr>");
		page_cell(out, "", option->name);
		page_cell(out, "name", option->value);
		page_cell(out, strcmp(option->origin, "default") ? "name" : "quiet",
			  option->origin);
		page_cell(out, "quiet", option->default_text);
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n"
		     "<p>Sizes that depend on memory are the least of all ranks'.</p>\n");
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool first_of_node(const struct zero_report *report, size_t which)
{
	for (size_t i = 0; i < which; i++)
		if (!strcmp(report->ranks[i].node, report->ranks[which].node))
			return false;
	return true;
}

/* The ranks of a node as ranges: "0-3, 8". */
static void put_members(FILE *out, const struct zero_report *report, const char *node)
{
	size_t first, last = 0;
	bool begun = false;

	for (size_t i = 0; i < report->rank_count; i = last + 1) {
		first = last = i;
		if (strcmp(report->ranks[i].node, node))
			continue;
		while (last + 1 < report->rank_count && !strcmp(report->ranks[last + 1].node, node))
			last++;
		fprintf(out, "%s%d", begun ? ", " : "", report->ranks[first].rank);
		if (last > first)
			fprintf(out, "-%d", report->ranks[last].rank);
		begun = true;
	}
}

/* The least of its ranks' sizes. */
static struct zero_report_rank least_of_node(const struct zero_report *report, size_t which)
{
	struct zero_report_rank least = report->ranks[which];

	for (size_t i = which + 1; i < report->rank_count; i++) {
		const struct zero_report_rank *rank = &report->ranks[i];

		if (strcmp(rank->node, least.node))
			continue;
		least.budget = rank->budget < least.budget ? rank->budget : least.budget;
		least.chunk = rank->chunk < least.chunk ? rank->chunk : least.chunk;
		least.threshold =
			rank->threshold < least.threshold ? rank->threshold : least.threshold;
		least.gather_limit = rank->gather_limit < least.gather_limit ? rank->gather_limit
									     : least.gather_limit;
		least.memory_free = rank->memory_free < least.memory_free ? rank->memory_free
									  : least.memory_free;
		least.vram_free =
			rank->vram_free < least.vram_free ? rank->vram_free : least.vram_free;
	}
	return least;
}

static void put_node(FILE *out, const struct zero_report *report, size_t which)
{
	struct zero_report_rank least = least_of_node(report, which);
	bool told = strcmp(words_source(least.source), "unknown") != 0;

	fprintf(out, "<tr>");
	page_cell(out, "name", least.node);
	fprintf(out, "<td>");
	put_members(out, report, least.node);
	fprintf(out, "</td>");
	page_cell(out, "", report->backend);
	page_cell(out, "name", *least.gpu ? least.gpu : "none known");
	page_cell(out, "n", words_bytes((double)(told ? least.vram_free : least.memory_free)).text);
	page_cell(out, "", told ? words_source(least.source) : "the library");
	page_cell(out, "n", words_bytes((double)least.budget).text);
	page_cell(out, "n", words_size(least.chunk).text);
	page_cell(out, "n", words_size(least.threshold).text);
	page_cell(out, "n", words_size(least.gather_limit).text);
	page_cell(out, "", report->tier ? report->tier : "none");
	fprintf(out, "</tr>\n");
}

static void put_nodes(FILE *out, const struct zero_report *report)
{
	enum { MOST = 64 };
	size_t nodes = 0;

	fprintf(out,
		"<h2 id=\"nodes\">Nodes</h2>\n<div class=\"wide\"><table>\n"
		"<tr><th>node</th><th>ranks</th><th>backend</th><th>GPU</th><th>free memory</th>"
		"<th>said by</th><th>budget</th><th>chunk</th><th>threshold</th>"
		"<th>gather limit</th><th>flatten tier</th></tr>\n");
	for (size_t i = 0; i < report->rank_count; i++)
		if (first_of_node(report, i) && nodes++ < MOST)
			put_node(out, report, i);
	fprintf(out, "</table></div>\n<p>What each node would have taken alone, a rank; the job "
		     "takes the least of all nodes, as the options say.");
	if (nodes > MOST)
		fprintf(out, " %zu more nodes are in the JSON file.", nodes - MOST);
	fprintf(out, "</p>\n");
}

zero_status zero_report_page(const struct zero_report *report, char **text, size_t *bytes)
{
	FILE *out;

	*text = NULL;
	out = open_memstream(text, bytes);
	if (!out)
		return files_core()->fail(ZERO_E_MEMORY, "no memory for the report");
	put_head(out, report);
	page_steps(out, report);
	page_memory(out, report);
	page_collectives(out, report);
	page_ranks(out, report);
	put_nodes(out, report);
	put_options(out, report);
	fprintf(out, "<p class=\"quiet\">slurm-zero %d.%d. zero-", ZERO_VERSION_MAJOR,
		ZERO_VERSION_MINOR);
	words_escape(out, report->id);
	fprintf(out, ".json beside this page has every number.</p>\n</body>\n</html>\n");
	if (!fclose(out))
		return ZERO_OK;
	free(*text);
	*text = NULL;
	return files_core()->fail(ZERO_E_MEMORY, "no memory for the report");
}

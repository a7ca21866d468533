/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/page/report_page.h"

#include <stdlib.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "launcher/text.h"

#ifdef HAVE_FILES

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/page/html.h"
#include "launcher/page/members.h"
#include "launcher/page/sections.h"

enum { REPORT_VERSION = 1 }; /* of the JSON */

static const char style[] =
	"td.name{max-width:24em;overflow-wrap:anywhere}\n"
	".notice{border-left:4px solid var(--c1);padding:.3em 1em}\n"
	"dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9em,1fr));gap:.5em}\n"
	"dl.facts div{border:1px solid var(--grid);border-radius:6px;padding:.4em .8em}\n"
	"dt{font-size:13px;color:var(--axis)}dd{margin:0;font-weight:600;"
	"overflow-wrap:anywhere}\n"
	"figure{margin:1em 0;max-width:700px}\n";

static const json_t *first_rank(const json_t *report)
{
	return json_array_get(member(report, "ranks"), 0);
}

/* ---- head ------------------------------------------------------------------------------------ */

static void put_fact(FILE *out, const char *name, const char *value)
{
	fprintf(out, "<div><dt>%s</dt><dd>", name);
	html_text(out, value);
	fprintf(out, "</dd></div>\n");
}

static void put_number(FILE *out, const char *name, uint64_t value)
{
	put_fact(out, name, count_text(value).text);
}

static void put_facts(FILE *out, const json_t *report)
{
	const json_t *job = member(report, "job"), *first = first_rank(report);

	fprintf(out, "<dl class=\"facts\">\n");
	put_fact(out, "started", string_at(job, "started"));
	put_fact(out, "lasted", quantity_text(number_at(job, "seconds"), UNIT_SECONDS).text);
	put_number(out, "ranks", count_at(job, "world"));
	put_number(out, "stage", count_at(job, "stage"));
	put_fact(out, "backend", string_at(job, "backend"));
	put_number(out, "steps", count_at(job, "steps"));
	if (count_at(first, "steps.measured"))
		put_fact(
			out, "median step",
			quantity_text(number_at(first, "steps.median_seconds"), UNIT_SECONDS).text);
	put_fact(out, "most memory, a rank",
		 quantity_text(number_at(highest_rank(report), "memory.total.peak"), UNIT_BYTES)
			 .text);
	put_number(out, "restarts", count_at(job, "restarts"));
	put_number(out, "checkpoints saved", count_at(first, "checkpoints.saved"));
	fprintf(out, "</dl>\n");
}

static void put_head(FILE *out, const json_t *report)
{
	char *title = format_text("%s, job %s", string_at(report, "job.program"),
				  string_at(report, "job.id"));
	const char *why = string_at(report, "why");

	html_head(out, title, style);
	free(title);
	if (*why) {
		fprintf(out, "<p class=\"notice\">");
		html_text(out, why);
		fprintf(out, " All figures are those of rank %" PRIu64 " alone.</p>\n",
			count_at(first_rank(report), "rank"));
	}
	put_facts(out, report);
}

/* ---- options --------------------------------------------------------------------------------- */

static void put_options(FILE *out, const json_t *report)
{
	const json_t *options = member(report, "options"), *option;
	size_t i;

	fprintf(out, "<h2 id=\"options\">Options</h2>\n<div class=\"wide\"><table>\n"
		     "<tr><th>name</th><th>value</th><th>set by</th><th>compiled "
		     "default</th></tr>\n");
	json_array_foreach((json_t *)options, i, option)
	{
		const char *origin = string_at(option, "origin");

		fprintf(out, "<tr>");
		html_cell(out, "", string_at(option, "name"));
		html_cell(out, "name", string_at(option, "value"));
		html_cell(out, strcmp(origin, "default") ? "name" : "quiet", origin);
		html_cell(out, "quiet", string_at(option, "default"));
		fprintf(out, "</tr>\n");
	}
	fprintf(out, "</table></div>\n"
		     "<p>Sizes that depend on memory are the least of all ranks'.</p>\n");
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static const char *node_of(const json_t *ranks, size_t i)
{
	return string_at(json_array_get(ranks, i), "node.name");
}

static bool first_of_node(const json_t *ranks, size_t which)
{
	const char *node = node_of(ranks, which);

	/* Most ranks are on the node of the rank before. */
	if (which && !strcmp(node_of(ranks, which - 1), node))
		return false;
	for (size_t i = 0; i < which; i++)
		if (!strcmp(node_of(ranks, i), node))
			return false;
	return true;
}

/* The ranks of a node as ranges: "0-3, 8". */
static void put_members(FILE *out, const json_t *ranks, const char *node)
{
	size_t count = json_array_size(ranks), last;
	const char *comma = "";

	for (size_t first = 0; first < count; first = last + 1) {
		last = first;
		if (strcmp(node_of(ranks, first), node))
			continue;
		while (last + 1 < count && !strcmp(node_of(ranks, last + 1), node))
			last++;
		fprintf(out, "%s%" PRIu64, comma, count_at(json_array_get(ranks, first), "rank"));
		if (last > first)
			fprintf(out, "-%" PRIu64, count_at(json_array_get(ranks, last), "rank"));
		comma = ", ";
	}
}

/* The least that a rank of the node has of something. */
static void put_least(FILE *out, const json_t *ranks, const char *node, const char *path)
{
	double least = -1;

	for (size_t i = 0; i < json_array_size(ranks); i++) {
		double value = number_at(json_array_get(ranks, i), path);

		if (!strcmp(node_of(ranks, i), node) && (least < 0 || value < least))
			least = value;
	}
	put_bytes(out, least);
}

static void put_node(FILE *out, const json_t *report, size_t which)
{
	const json_t *ranks = member(report, "ranks"), *rank = json_array_get(ranks, which);
	const char *node = node_of(ranks, which), *gpu = string_at(rank, "node.gpu");
	const char *source = string_at(rank, "node.vram_source"), *tier;
	bool known = strcmp(source, "unknown") != 0;

	fprintf(out, "<tr>");
	html_cell(out, "name", node);
	fprintf(out, "<td>");
	put_members(out, ranks, node);
	fprintf(out, "</td>");
	html_cell(out, "", string_at(rank, "node.backend"));
	html_cell(out, "name", *gpu ? gpu : "none known");
	put_least(out, ranks, node, known ? "node.vram_free" : "node.memory_free");
	html_cell(out, "", known ? source : "the library");
	put_least(out, ranks, node, "node.memory_free");
	put_least(out, ranks, node, "node.budget");
	put_least(out, ranks, node, "node.stream_chunk");
	put_least(out, ranks, node, "node.stream_threshold");
	put_least(out, ranks, node, "node.gather_limit");
	tier = string_at(rank, "node.flatten");
	html_cell(out, "", *tier ? tier : "none");
	fprintf(out, "</tr>\n");
}

static void put_nodes(FILE *out, const json_t *report)
{
	enum { MOST = 64 };
	const json_t *ranks = member(report, "ranks");
	size_t nodes = 0;

	fprintf(out,
		"<h2 id=\"nodes\">Nodes</h2>\n<div class=\"wide\"><table>\n"
		"<tr><th>node</th><th>ranks</th><th>backend</th><th>GPU</th><th>free memory</th>"
		"<th>read from</th><th>free at zero_open</th><th>budget</th><th>chunk</th>"
		"<th>threshold</th><th>gather limit</th><th>flatten tier</th></tr>\n");
	for (size_t i = 0; i < json_array_size(ranks); i++)
		if (first_of_node(ranks, i) && nodes++ < MOST)
			put_node(out, report, i);
	fprintf(out, "</table></div>\n<p>Sizes are those that a rank of the node would have chosen "
		     "alone; the job takes the least of all nodes, as the options show.");
	if (nodes > MOST)
		fprintf(out, " %zu more nodes are in the JSON file.", nodes - MOST);
	fprintf(out, "</p>\n");
}

/* ---- the page -------------------------------------------------------------------------------- */

static void put_page(FILE *out, const json_t *report)
{
	put_head(out, report);
	section_steps(out, report);
	section_memory(out, report);
	section_collectives(out, report);
	section_ranks(out, report);
	put_nodes(out, report);
	put_options(out, report);
	fprintf(out, "<p class=\"quiet\">slurm-zero ");
	html_text(out, string_at(report, "library"));
	fprintf(out, ". zero-");
	html_text(out, string_at(report, "job.id"));
	fprintf(out, ".json beside this page has every number.</p>\n");
	html_tail(out);
}

/* NULL after an error. */
static json_t *read_report(const char *path)
{
	json_error_t error;
	json_t *report = json_load_file(path, 0, &error);
	const char *problem = NULL;

	if (!report && error.line > 0)
		print_error("%s:%d: %s", path, error.line, error.text);
	else if (!report)
		print_error("%s", error.text);
	if (!report)
		return NULL;
	if (strcmp(string_at(report, "format"), "slurm-zero report"))
		problem = "is not a report of a job";
	else if (count_at(report, "version") != REPORT_VERSION)
		problem = "was written by another version of the library: use the zerorun that was "
			  "installed with it";
	else if (!json_is_object(first_rank(report)))
		problem = "has no ranks";
	if (!problem)
		return report;
	print_error("%s %s", path, problem);
	json_decref(report);
	return NULL;
}

/* Writes a hidden file and renames it, so that nobody reads a part of a page. */
static int write_page(const json_t *report, const char *page)
{
	const char *slash = strrchr(page, '/'), *name = slash ? slash + 1 : page;
	char *hidden = format_text("%.*s.%s.XXXXXX", (int)(name - page), page, name);
	int fd = mkstemp(hidden), error = errno;
	FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
	mode_t mask = umask(0);

	umask(mask);
	if (!out)
		goto failed;
	put_page(out, report);
	if (fchmod(fd, 0666 & ~mask) || ferror(out))
		error = errno ? errno : EIO;
	else
		error = 0;
	if (fclose(out) && !error)
		error = errno;
	if (!error && rename(hidden, page))
		error = errno;
	if (!error) {
		free(hidden);
		return 0;
	}
failed:
	print_error("%s cannot be written: %s", page, strerror(error));
	if (fd >= 0)
		unlink(hidden);
	free(hidden);
	return EXIT_FAILURE;
}

int report_page(const char *path, const char *page)
{
	json_t *report = read_report(path);
	size_t length = strlen(path);
	char *beside;
	int status;

	if (!report)
		return EXIT_FAILURE;
	if (length > 5 && !strcmp(path + length - 5, ".json"))
		length -= 5;
	beside = format_text("%.*s.html", (int)length, path);
	status = write_page(report, page ? page : beside);
	free(beside);
	json_decref(report);
	return status;
}

#else

int report_page(const char *path, const char *page)
{
	(void)page;
	print_error("%s cannot be read: zerorun was built without Jansson, which reports need",
		    path);
	return EXIT_FAILURE;
}

#endif

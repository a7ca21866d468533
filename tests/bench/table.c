/* SPDX-License-Identifier: Apache-2.0 */
/* The record as a table to read and as JSON to keep. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "record.h"

static void print_line(const struct recorded_row *row)
{
	const struct goal *goal = goal_of(row->what, row->ranks);
	char figure[32], ours[32] = "", bare[160] = "";

	snprintf(figure, sizeof(figure), "%.*f %s", strcmp(row->unit, "x") ? 1 : 2, row->figure,
		 row->unit);
	if (isfinite(row->ours))
		snprintf(ours, sizeof(ours), "%.4g %s", row->ours, row->in);
	if (isfinite(row->bare))
		snprintf(bare, sizeof(bare), "%.4g %s %s", row->bare, row->in, row->bare_name);
	printf("%-72s %5d %10s  %-9s %-5s %12s   %s\n", row->what, row->ranks, figure,
	       goal ? goal->text : "",
	       !goal                         ? ""
	       : goal_met(goal, row->figure) ? "met"
					     : "MISS",
	       ours, bare);
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

static void print_misses(const struct record *record, const char *path)
{
	char reason[2048];

	for (const struct goal *goal = goals; goal->operation; goal++) {
		const struct recorded_row *row = record_find(record, goal->what, goal->ranks);

		if (!row || goal_met(goal, row->figure))
			continue;
		if (!find_reason(path, goal->what, reason, sizeof(reason)))
			snprintf(reason, sizeof(reason), "No reason has been found yet.");
		printf("\nMISS: %s, ranks: %d. %s\n", goal->what, goal->ranks, reason);
	}
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_string(FILE *out, const char *text)
{
	putc('"', out);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c < ' ')
			fprintf(out, "\\u%04x", c);
		else
			fprintf(out, "%s%c", c == '"' || c == '\\' ? "\\" : "", c);
	}
	putc('"', out);
}

/* JSON has no infinities, and no number for what was not measured. */
static void put_number(FILE *out, const char *key, double value)
{
	if (isfinite(value))
		fprintf(out, ", \"%s\": %.6g", key, value);
}

static void put_text(FILE *out, const char *key, const char *text)
{
	if (!strcmp(text, "-"))
		return;
	fprintf(out, ", \"%s\": ", key);
	put_string(out, text);
}

static void put_row(FILE *out, const struct recorded_row *row)
{
	const struct goal *goal = goal_of(row->what, row->ranks);

	fprintf(out, "{\"what\": ");
	put_string(out, row->what);
	fprintf(out, ", \"ranks\": %d", row->ranks);
	put_number(out, "figure", row->figure);
	put_text(out, "unit", row->unit);
	if (goal) {
		put_text(out, "goal", goal->text);
		fprintf(out, ", \"met\": %s", goal_met(goal, row->figure) ? "true" : "false");
	}
	put_number(out, "ours", row->ours);
	put_number(out, "bare", row->bare);
	put_text(out, "in", row->in);
	put_text(out, "bare_name", row->bare_name);
	fprintf(out, "}");
}

static void put_series(FILE *out, const struct series *s)
{
	fprintf(out, "{\"plot\": ");
	put_string(out, s->plot);
	put_text(out, "label", s->label);
	fprintf(out, ", \"points\": [");
	for (size_t i = 0; i < s->count; i++)
		fprintf(out, "%s[%.6g, %.6g]", i ? ", " : "", s->points[i].x, s->points[i].y);
	fprintf(out, "]}");
}

static void put_unmeasured(FILE *out, const struct record *record)
{
	const char *comma = "";

	for (const struct goal *goal = goals; goal->operation; goal++) {
		if (record_find(record, goal->what, goal->ranks))
			continue;
		fprintf(out, "%s\n\t{\"what\": ", comma);
		put_string(out, goal->what);
		fprintf(out, ", \"ranks\": %d, \"goal\": ", goal->ranks);
		put_string(out, goal->text);
		fprintf(out, "}");
		comma = ",";
	}
}

static void put_json(FILE *out, const struct record *record, const char *note)
{
	const struct machine machine = machine_now();

	fprintf(out, "{\"note\": ");
	put_string(out, note);
	fprintf(out, ",\n\"machine\": {\"cores\": %ld", machine.cores);
	put_text(out, "cpu", machine.cpu);
	put_text(out, "memory", machine.memory);
	put_text(out, "kernel", machine.kernel);
	put_text(out, "mpi", machine.mpi);
	put_text(out, "date", machine.date);
	fprintf(out, "},\n\"rows\": [");
	for (size_t i = 0; i < record->row_count; i++) {
		fprintf(out, "%s\n\t", i ? "," : "");
		put_row(out, &record->rows[i]);
	}
	fprintf(out, "\n],\n\"not_measured\": [");
	put_unmeasured(out, record);
	fprintf(out, "\n],\n\"series\": [");
	for (size_t i = 0; i < record->series_count; i++) {
		fprintf(out, "%s\n\t", i ? "," : "");
		put_series(out, &record->series[i]);
	}
	fprintf(out, "\n]}\n");
}

int print_table(const char *path, const char *json, const char *misses, const char *note)
{
	struct record record = record_read(path);
	FILE *out = fopen(json, "we");

	must_be(out, "the JSON cannot be written");
	printf("%s\n\n%-72s %5s %10s  %-9s %-5s %12s   %s\n", note, "what", "ranks", "figure",
	       "goal", "", "ours", "baseline");
	for (size_t i = 0; i < record.row_count; i++)
		print_line(&record.rows[i]);
	print_misses(&record, misses);
	put_json(out, &record, note);
	record_free(&record);
	return fclose(out) ? EXIT_FAILURE : EXIT_SUCCESS;
}

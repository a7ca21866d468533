/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of all subjects, as a table to read and as JSON to keep. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

enum { WHAT, RANKS, FIGURE, UNIT, GOAL, OURS, BARE, IN, BARE_NAME, FIELDS };

static bool split(char *line, char *fields[FIELDS])
{
	line[strcspn(line, "\n")] = '\0';
	for (int i = 0; i < FIELDS; i++) {
		fields[i] = strsep(&line, "\t");
		if (!fields[i])
			return false;
	}
	return !line;
}

static bool is_number(const char *text)
{
	return isfinite(atof(text));
}

static void print_line(char *fields[FIELDS])
{
	char figure[32], ours[32] = "", bare[160] = "";

	snprintf(figure, sizeof(figure), "%.*f %s", strcmp(fields[UNIT], "x") ? 1 : 2,
		 atof(fields[FIGURE]), fields[UNIT]);
	if (is_number(fields[OURS]))
		snprintf(ours, sizeof(ours), "%.4g %s", atof(fields[OURS]), fields[IN]);
	if (is_number(fields[BARE]))
		snprintf(bare, sizeof(bare), "%.4g %s %s", atof(fields[BARE]), fields[IN],
			 fields[BARE_NAME]);
	printf("%-62s %5s %10s  %-9s %12s   %s\n", fields[WHAT], fields[RANKS], figure,
	       strcmp(fields[GOAL], "-") ? fields[GOAL] : "", ours, bare);
}

static void print_number(FILE *out, const char *key, const char *text)
{
	if (is_number(text))
		fprintf(out, ", \"%s\": %s", key, text);
}

static void print_text(FILE *out, const char *key, const char *text)
{
	if (strcmp(text, "-"))
		fprintf(out, ", \"%s\": \"%s\"", key, text);
}

static void print_json(FILE *out, char *fields[FIELDS], bool first)
{
	fprintf(out, "%s\n\t{\"what\": \"%s\", \"ranks\": %s", first ? "" : ",", fields[WHAT],
		fields[RANKS]);
	print_number(out, "figure", fields[FIGURE]);
	print_text(out, "unit", fields[UNIT]);
	print_text(out, "goal", fields[GOAL]);
	print_number(out, "ours", fields[OURS]);
	print_number(out, "bare", fields[BARE]);
	print_text(out, "in", fields[IN]);
	print_text(out, "bare_name", fields[BARE_NAME]);
	fprintf(out, "}");
}

int print_table(const char *path, const char *json, const char *note)
{
	FILE *in = fopen(path, "re"), *out = fopen(json, "we");
	char line[1024], *fields[FIELDS];
	bool first = true;

	must_be(in && out, "the rows cannot be read, or the JSON cannot be written");
	printf("%s\n\n%-62s %5s %10s  %-9s %12s   %s\n", note, "what", "ranks", "figure", "goal",
	       "ours", "beside");
	fprintf(out, "{\"note\": \"%s\", \"rows\": [", note);
	while (fgets(line, sizeof(line), in)) {
		if (!split(line, fields))
			continue;
		print_line(fields);
		print_json(out, fields, first);
		first = false;
	}
	fprintf(out, "\n]}\n");
	fclose(in);
	return fclose(out) ? EXIT_FAILURE : EXIT_SUCCESS;
}

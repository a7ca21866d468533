/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record is a text file, to which each run of a subject adds lines of fields between tabs:
 *
 *	row	SUBJECT	WHAT	RANKS	FIGURE	UNIT	OURS	BARE	IN	BARE_NAME
 *	point	PLOT	LABEL	X	Y
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "record.h"

enum { MOST_FIELDS = 10 };

static void *grown(void *array, size_t count, size_t size)
{
	/* Room is a power of two: it is full when the count is one. */
	if (!(count & (count - 1)))
		array = realloc(array, (count ? 2 * count : 1) * size);
	must_be(array, "no memory for the record");
	return array;
}

static int split(char *line, char *fields[MOST_FIELDS])
{
	int count = 0;

	line[strcspn(line, "\n")] = '\0';
	while (line && count < MOST_FIELDS)
		fields[count++] = strsep(&line, "\t");
	return line ? MOST_FIELDS + 1 : count;
}

static void add_row(struct record *record, char **fields)
{
	record->rows = grown(record->rows, record->row_count, sizeof(*record->rows));
	record->rows[record->row_count++] = (struct recorded_row){.subject = fields[1],
								  .what = fields[2],
								  .ranks = atoi(fields[3]),
								  .figure = atof(fields[4]),
								  .unit = fields[5],
								  .ours = atof(fields[6]),
								  .bare = atof(fields[7]),
								  .in = fields[8],
								  .bare_name = fields[9]};
}

static struct series *series_of(struct record *record, const char *plot, const char *label)
{
	struct series *s = record->series;

	for (size_t i = 0; i < record->series_count; i++)
		if (!strcmp(s[i].plot, plot) && !strcmp(s[i].label, label))
			return &s[i];
	s = record->series = grown(s, record->series_count, sizeof(*s));
	s += record->series_count++;
	*s = (struct series){.plot = plot, .label = label};
	return s;
}

static void add_point(struct record *record, char **fields)
{
	struct series *s = series_of(record, fields[1], fields[2]);
	struct point point = {atof(fields[3]), atof(fields[4])};
	size_t at;

	/* A baseline is measured once for each way of the library: the last one counts. */
	for (at = 0; at < s->count; at++)
		if (s->points[at].x == point.x) {
			s->points[at] = point;
			return;
		}
	s->points = grown(s->points, s->count, sizeof(*s->points));
	for (at = s->count++; at && s->points[at - 1].x > point.x; at--)
		s->points[at] = s->points[at - 1];
	s->points[at] = point;
}

struct record record_read(const char *path)
{
	struct record record = {0};
	FILE *file = fopen(path, "re");
	char *line = NULL, *fields[MOST_FIELDS];
	size_t room = 0;

	must_be(file, "the record cannot be read");
	while (getline(&line, &room, file) > 0) {
		int count = split(line, fields);

		record.lines = grown(record.lines, record.line_count, sizeof(*record.lines));
		record.lines[record.line_count++] = line;
		if (count == 10 && !strcmp(fields[0], "row"))
			add_row(&record, fields);
		else if (count == 5 && !strcmp(fields[0], "point"))
			add_point(&record, fields);
		else
			must_be(false, "the record has a line that is neither a row nor a point");
		line = NULL;
		room = 0;
	}
	free(line);
	fclose(file);
	return record;
}

void record_free(struct record *record)
{
	for (size_t i = 0; i < record->series_count; i++)
		free(record->series[i].points);
	for (size_t i = 0; i < record->line_count; i++)
		free(record->lines[i]);
	free(record->series);
	free(record->lines);
	free(record->rows);
}

const struct recorded_row *record_find(const struct record *record, const char *what, int ranks)
{
	for (size_t i = record->row_count; i--;)
		if (record->rows[i].ranks == ranks && !strcmp(record->rows[i].what, what))
			return &record->rows[i];
	return NULL;
}

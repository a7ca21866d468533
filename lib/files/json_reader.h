/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a JSON object one member at a time. A header may have 100 MB of JSON, whose tree of values
 * could take a hundred times as much memory. So only one member's value is a tree at any time, and
 * its size is bounded.
 */
#ifndef ZERO_FILES_JSON_READER_H
#define ZERO_FILES_JSON_READER_H

#include "files/input.h"

#include <jansson.h>

struct json_reader_name {
	char *text;
	size_t at; /* byte of the text */
};

struct json_reader {
	const char *path; /* for messages */
	const char *text;
	size_t bytes;
	size_t at;                      /* the next byte of text */
	uint64_t base;                  /* byte of the file where text begins */
	struct json_reader_name *names; /* of the members so far, owned */
	size_t count;
};

/* An error that names the file, and byte `at` of the text with its line and column. */
zero_status json_reader_fail(const struct json_reader *reader, size_t at, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Expects an object at reader->at. */
zero_status json_reader_object(struct json_reader *reader);
/*
 * Moves reader->at to the next member's value. *name is owned by the reader, and NULL after the
 * last member. A name that came twice is an error then.
 */
zero_status json_reader_member(struct json_reader *reader, const char **name);
/* Reads the value at reader->at as a tree; the caller calls json_decref. */
zero_status json_reader_value(struct json_reader *reader, json_t **value);
/* Expects an array at reader->at. */
zero_status json_reader_array(struct json_reader *reader);
/* Moves reader->at to item `i` of the array; *more is false after the last item. */
zero_status json_reader_item(struct json_reader *reader, size_t i, bool *more);
/* Reads the object at outer->at with a reader of its own; json_reader_leave ends it. */
zero_status json_reader_enter(const struct json_reader *outer, struct json_reader *inner);
void json_reader_leave(struct json_reader *outer, struct json_reader *inner);
/* After the outermost object: only white space may follow. */
zero_status json_reader_end(const struct json_reader *reader);
void json_reader_free(struct json_reader *reader);

#endif

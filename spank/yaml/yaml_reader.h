/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a YAML file as a stream of checked events. The file must be one document without anchors,
 * aliases and tags, and no map may have a key twice. Nothing is built in memory, and callbacks nest
 * only as deep as the format of the file, however deep the file itself is.
 */
#ifndef ZERO_YAML_READER_H
#define ZERO_YAML_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "core/text.h"

enum { ZERO_READER_KEYS = 1024 }; /* the most keys of one map, and entries of one list */

struct zero_reader {
	const char *path; /* as messages name it */
	yaml_parser_t parser;
	yaml_event_t event; /* the current event: the last one that the parser returned */
	char *why;          /* receives the sentence of the first error */
	size_t size;
};

/* A place in the file; both count from 1. */
struct zero_place {
	size_t line, column;
};

/* A key of a map or an entry of a list. The text lives until the map or list has been read. */
struct zero_key {
	char *text;
	struct zero_place place;
};

/* The text must outlive the reader. Returns false without memory. */
bool zero_reader_init(struct zero_reader *reader, const char *path, const char *text, size_t length,
		      char *why, size_t size);
void zero_reader_clear(struct zero_reader *reader);

/* Returns where the current event starts. */
struct zero_place zero_reader_place(const struct zero_reader *reader);
/* These write the error and return false, so that a failing function can return their result. */
__attribute__((format(printf, 3, 4))) bool
zero_reader_error(struct zero_reader *reader, struct zero_place place, const char *format, ...);
bool zero_reader_no_memory(struct zero_reader *reader);
/* Quotes a NUL-terminated text for a message. */
struct zero_quoted zero_reader_quote(const void *text);

/* Returns the text of the current scalar, which lives until the next event; NULL after an error. */
const char *zero_reader_scalar(struct zero_reader *reader, const char *what);

/*
 * Called for each entry. For a map, the current event is the first one of the value of the key; the
 * handler must leave the last one of that value as the current event. For a list, it is the entry.
 */
typedef bool (*zero_reader_handler)(struct zero_reader *reader, const struct zero_key *key,
				    void *context);

/* Read a map or a list whose first event is the current one; an empty value has no entries. */
bool zero_reader_map(struct zero_reader *reader, const char *what, zero_reader_handler each,
		     void *context);
bool zero_reader_list(struct zero_reader *reader, const char *what, zero_reader_handler each,
		      void *context);
/* Reads the whole file, which must be one map. */
bool zero_reader_file(struct zero_reader *reader, zero_reader_handler each, void *context);

/*
 * Returns an array with space for one more element of `bytes` bytes: the same array, or one of
 * twice the size. Returns NULL without memory; the array is unchanged then.
 */
void *zero_grow(void *array, size_t count, size_t *capacity, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A YAML file as a stream of checked events: one document without anchors, aliases and tags, maps
 * without a key that is there twice. Nothing is kept of it, and what reads it is never deeper than
 * the file's own format, however deep the file is.
 */
#ifndef ZERO_READER_H
#define ZERO_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <yaml.h>

#include "core/options.h"

/*
 * All bytes of a file, malloc'ed; `path` is its name for messages. A trusted one must belong to
 * root or the reader and not be writable by group or others. NULL: *why is one sentence.
 */
char *zero_read_text(const char *name, const char *path, bool trusted, size_t *length, char *why,
		     size_t size);

enum { ZERO_READER_KEYS = 1024 }; /* of one map, and words of one list */

struct zero_reader {
	const char *path; /* as messages name it */
	yaml_parser_t parser;
	yaml_event_t event; /* at hand: the last that was taken from the parser */
	size_t long_line;   /* where a text is that is too long for a key, 0: nowhere */
	char *why;          /* the sentence if something is refused */
	size_t size;
};

/* A place in the file, from 1. */
struct zero_place {
	size_t line, column;
};

/* A key of a map or a word of a list; the text lives as long as the map is being read. */
struct zero_key {
	char *text;
	struct zero_place place;
};

/* False: no memory. The text must outlive the reader. */
bool zero_reader_init(struct zero_reader *reader, const char *path, const char *text, size_t length,
		      char *why, size_t size);
void zero_reader_clear(struct zero_reader *reader);

/* Where the event at hand begins. */
struct zero_place zero_reader_here(const struct zero_reader *reader);
/* Both make the sentence and return false, so that a failing function can end with them. */
__attribute__((format(printf, 3, 4))) bool
zero_reader_refuse(struct zero_reader *reader, struct zero_place place, const char *format, ...);
bool zero_reader_no_memory(struct zero_reader *reader);
/* All of a text, for a message. */
struct zero_quoted zero_reader_quote(const void *text);

/* The text of the scalar at hand, which lives until the next event; NULL: it was refused. */
const char *zero_reader_text(struct zero_reader *reader, const char *what);

/*
 * Reads what belongs to a key: the first event of the value is at hand, and has to be the last one
 * of it afterwards. For a list's word it is the word itself.
 */
typedef bool (*zero_read)(struct zero_reader *reader, const struct zero_key *key, void *context);

/* A map, a list of words, or nothing at all, whose first event is at hand. */
bool zero_reader_map(struct zero_reader *reader, const char *what, zero_read each, void *context);
bool zero_reader_list(struct zero_reader *reader, const char *what, zero_read each, void *context);
/* The whole file, which must be one map. */
bool zero_reader_file(struct zero_reader *reader, zero_read each, void *context);

/*
 * The array with room for one more element of `bytes`: itself, or one of twice the room that has
 * taken its place. NULL: no memory, and the array is as it was.
 */
void *zero_grow(void *array, size_t count, size_t *room, size_t bytes);

#endif

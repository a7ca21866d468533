/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/options.h"
#include "yaml_reader.h"

enum {
	FILE_BYTES = 1 << 20,
	KEY_CHARACTERS = 1024 /* quotes and all: longer ones YAML takes in the form "? key" alone */
};

/* Always NULL, so that a failing function can end with it. */
__attribute__((format(printf, 3, 4))) static char *no_text(char *why, size_t size,
							   const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return NULL;
}

/* One byte more than is allowed is enough to know that the file is too large, should it grow. */
static char *read_bytes(int file, const char *path, size_t *length, char *why, size_t size)
{
	char *text = malloc(FILE_BYTES + 1);

	if (!text)
		return no_text(why, size, "%s: no memory", path);
	*length = 0;
	while (*length <= FILE_BYTES) {
		ssize_t got = read(file, text + *length, FILE_BYTES + 1 - *length);

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0) {
			free(text);
			return no_text(why, size, "%s: cannot be read: %s", path, strerror(errno));
		}
		if (got == 0)
			return text;
		*length += (size_t)got;
	}
	free(text);
	return no_text(why, size, "%s: is too large: at most 1M is allowed", path);
}

/* What is in /proc/self of a task is slurmstepd's: until its program begins, the task is a copy. */
static bool is_in_proc(int file)
{
	struct statfs where;

	return fstatfs(file, &where) == 0 && where.f_type == PROC_SUPER_MAGIC;
}

char *zero_read_text(const char *name, const char *path, bool trusted, size_t *length, char *why,
		     size_t size)
{
	/* not to wait for whoever writes a pipe, nor to make a terminal our own */
	int file = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
	char *text = NULL;
	struct stat status;

	if (file < 0 || fstat(file, &status) != 0)
		no_text(why, size, "%s: cannot be opened: %s", path, strerror(errno));
	else if (!S_ISREG(status.st_mode))
		no_text(why, size, "%s: is not a regular file", path);
	else if (is_in_proc(file))
		no_text(why, size, "%s: is the kernel's, and no file of options", path);
	else if (trusted && status.st_uid != 0 && status.st_uid != geteuid())
		no_text(why, size, "%s: belongs to user %u: chown root", path,
			(unsigned)status.st_uid);
	else if (trusted && status.st_mode & (S_IWGRP | S_IWOTH))
		no_text(why, size, "%s: others than its owner may write it (mode %04o): chmod go-w",
			path, (unsigned)status.st_mode & 07777);
	else if (trusted && !(status.st_mode & S_IROTH))
		no_text(why, size, "%s: users cannot read it (mode %04o): chmod a+r", path,
			(unsigned)status.st_mode & 07777);
	else
		text = read_bytes(file, path, length, why, size);
	if (file >= 0)
		close(file);
	return text;
}

static struct zero_place place_of(yaml_mark_t mark)
{
	return (struct zero_place){.line = mark.line + 1, .column = mark.column + 1};
}

struct zero_place zero_reader_here(const struct zero_reader *reader)
{
	return place_of(reader->event.start_mark);
}

bool zero_reader_refuse(struct zero_reader *reader, struct zero_place place, const char *format,
			...)
{
	va_list arguments;
	int length;

	length = snprintf(reader->why, reader->size, "%s:%zu:%zu: ", reader->path, place.line,
			  place.column);
	if (length < 0 || (size_t)length >= reader->size)
		return false;
	va_start(arguments, format);
	vsnprintf(reader->why + length, reader->size - (size_t)length, format, arguments);
	va_end(arguments);
	return false;
}

bool zero_reader_no_memory(struct zero_reader *reader)
{
	snprintf(reader->why, reader->size, "%s: no memory", reader->path);
	return false;
}

void *zero_grow(void *array, size_t count, size_t *room, size_t bytes)
{
	size_t more = *room ? 2 * *room : 8;
	void *larger;

	if (count < *room)
		return array;
	larger = realloc(array, more * bytes);
	if (larger)
		*room = more;
	return larger;
}

struct zero_quoted zero_reader_quote(const void *text)
{
	return zero_quote(text, strlen(text));
}

bool zero_reader_init(struct zero_reader *reader, const char *path, const char *text, size_t length,
		      char *why, size_t size)
{
	*reader = (struct zero_reader){.path = path, .why = why, .size = size};
	if (!yaml_parser_initialize(&reader->parser))
		return zero_reader_no_memory(reader);
	/* else two bytes at the start could make it UTF-16 */
	yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&reader->parser, (const unsigned char *)text, length);
	return true;
}

void zero_reader_clear(struct zero_reader *reader)
{
	yaml_event_delete(&reader->event);
	yaml_parser_delete(&reader->parser);
}

/* The parser says no line and column of bytes that are not even text. */
static struct zero_place place_of_byte(const unsigned char *text, size_t offset)
{
	struct zero_place place = {1, 1};

	for (size_t i = 0; i < offset; i++) {
		if (text[i] == '\n')
			place = (struct zero_place){place.line + 1, 1};
		else if ((text[i] & 0xc0) != 0x80)
			place.column++;
	}
	return place;
}

/* The parser takes a key that is too long for a value, and complains of what follows it. */
static const char *key_hint(const struct zero_reader *reader, size_t line)
{
	return line == reader->long_line ? "; a key of more than 1024 characters needs '? ' before "
					   "it, and its value ': ' in a line below"
					 : "";
}

static void note_long_text(struct zero_reader *reader, yaml_mark_t start, yaml_mark_t end)
{
	if (start.line == end.line && end.index - start.index > KEY_CHARACTERS)
		reader->long_line = start.line + 1;
}

static bool refuse_syntax(struct zero_reader *reader)
{
	const yaml_parser_t *parser = &reader->parser;

	if (parser->error == YAML_MEMORY_ERROR)
		return zero_reader_no_memory(reader);
	if (parser->error == YAML_READER_ERROR)
		return zero_reader_refuse(
			reader, place_of_byte(parser->input.string.start, parser->problem_offset),
			"this is no text: %s", parser->problem);
	if (parser->context) {
		if (strcmp(parser->context, "while scanning a simple key") == 0)
			note_long_text(reader, parser->context_mark, parser->problem_mark);
		return zero_reader_refuse(reader, place_of(parser->problem_mark),
					  "%s, %s that began in line %zu%s", parser->problem,
					  parser->context, parser->context_mark.line + 1,
					  key_hint(reader, parser->problem_mark.line + 1));
	}
	return zero_reader_refuse(reader, place_of(parser->problem_mark), "%s",
				  parser->problem ? parser->problem : "this is not YAML");
}

/* Anchors are how a small file becomes a huge one, and tags how a text becomes something else. */
static bool refuse_magic(struct zero_reader *reader)
{
	const yaml_event_t *event = &reader->event;
	const yaml_char_t *anchor = NULL, *tag = NULL;

	switch (event->type) {
	case YAML_ALIAS_EVENT:
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "the alias %s is not allowed: write it out",
					  zero_reader_quote(event->data.alias.anchor).text);
	case YAML_SCALAR_EVENT:
		anchor = event->data.scalar.anchor;
		tag = event->data.scalar.tag;
		break;
	case YAML_SEQUENCE_START_EVENT:
		anchor = event->data.sequence_start.anchor;
		tag = event->data.sequence_start.tag;
		break;
	case YAML_MAPPING_START_EVENT:
		anchor = event->data.mapping_start.anchor;
		tag = event->data.mapping_start.tag;
		break;
	default:
		break;
	}
	if (anchor)
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "the anchor %s is not allowed",
					  zero_reader_quote(anchor).text);
	if (tag)
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "the tag %s is not allowed", zero_reader_quote(tag).text);
	return true;
}

/* Takes the next event; the one at hand is gone. */
static bool next(struct zero_reader *reader)
{
	yaml_event_delete(&reader->event);
	if (!yaml_parser_parse(&reader->parser, &reader->event))
		return refuse_syntax(reader);
	if (reader->event.type == YAML_SCALAR_EVENT)
		note_long_text(reader, reader->event.start_mark, reader->event.end_mark);
	return refuse_magic(reader);
}

static const char *event_name(const yaml_event_t *event)
{
	switch (event->type) {
	case YAML_SCALAR_EVENT:
		return "a single value";
	case YAML_SEQUENCE_START_EVENT:
		return "a list";
	case YAML_MAPPING_START_EVENT:
		return "a map";
	default:
		return "something else";
	}
}

const char *zero_reader_text(struct zero_reader *reader, const char *what)
{
	const yaml_event_t *event = &reader->event;
	const char *text;

	if (event->type != YAML_SCALAR_EVENT) {
		zero_reader_refuse(reader, zero_reader_here(reader),
				   "%s must be a single value, not %s", what, event_name(event));
		return NULL;
	}
	text = (const char *)event->data.scalar.value;
	if (strlen(text) != event->data.scalar.length) {
		zero_reader_refuse(reader, zero_reader_here(reader), "%s has a NUL byte in it",
				   what);
		return NULL;
	}
	return text;
}

struct keys {
	struct zero_key *keys;
	size_t count, room;
};

static void clear_keys(struct keys *keys)
{
	for (size_t i = 0; i < keys->count; i++)
		free(keys->keys[i].text);
	free(keys->keys);
}

/* Adds the scalar at hand; NULL: it was refused. */
static const struct zero_key *add_key(struct zero_reader *reader, struct keys *keys,
				      const char *what)
{
	const char *text = zero_reader_text(reader, what);
	struct zero_place place = zero_reader_here(reader);
	struct zero_key *larger, *key;

	if (!text)
		return NULL;
	for (size_t i = 0; i < keys->count; i++) {
		if (strcmp(keys->keys[i].text, text) != 0)
			continue;
		zero_reader_refuse(reader, place, "%s is there twice: line %zu has it too",
				   zero_reader_quote(text).text, keys->keys[i].place.line);
		return NULL;
	}
	if (keys->count == ZERO_READER_KEYS) {
		zero_reader_refuse(reader, place, "there are too many here: at most %d are allowed",
				   ZERO_READER_KEYS);
		return NULL;
	}
	larger = zero_grow(keys->keys, keys->count, &keys->room, sizeof *keys->keys);
	if (!larger) {
		zero_reader_no_memory(reader);
		return NULL;
	}
	keys->keys = larger;
	key = &keys->keys[keys->count];
	*key = (struct zero_key){.text = strdup(text), .place = place};
	if (!key->text) {
		zero_reader_no_memory(reader);
		return NULL;
	}
	keys->count++;
	return key;
}

/* "defaults:" and nothing behind it, as when all lines below are comments. */
static bool is_nothing(const yaml_event_t *event)
{
	return event->type == YAML_SCALAR_EVENT && !event->data.scalar.length &&
	       event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* A map or a list from its first event to its last. */
static bool read_all(struct zero_reader *reader, bool is_map, zero_read each, void *context)
{
	const yaml_event_type_t end = is_map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
	struct keys keys = {0};
	bool ok = false;

	while (next(reader)) {
		const struct zero_key *key;

		if (reader->event.type == end) {
			ok = true;
			break;
		}
		key = add_key(reader, &keys, is_map ? "a key" : "a word of a list");
		if (!key || (is_map && !next(reader)) || !each(reader, key, context))
			break;
	}
	clear_keys(&keys);
	return ok;
}

bool zero_reader_map(struct zero_reader *reader, const char *what, zero_read each, void *context)
{
	if (is_nothing(&reader->event))
		return true;
	if (reader->event.type != YAML_MAPPING_START_EVENT)
		return zero_reader_refuse(
			reader, zero_reader_here(reader),
			"%s must be a map with lines such as 'key: value', not %s%s", what,
			event_name(&reader->event),
			key_hint(reader, zero_reader_here(reader).line));
	return read_all(reader, true, each, context);
}

bool zero_reader_list(struct zero_reader *reader, const char *what, zero_read each, void *context)
{
	if (is_nothing(&reader->event))
		return true;
	if (reader->event.type != YAML_SEQUENCE_START_EVENT)
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "%s must be a list such as [one, two], not %s", what,
					  event_name(&reader->event));
	return read_all(reader, false, each, context);
}

bool zero_reader_file(struct zero_reader *reader, zero_read each, void *context)
{
	if (!next(reader) || !next(reader)) /* the stream's start */
		return false;
	if (reader->event.type == YAML_STREAM_END_EVENT)
		return zero_reader_refuse(reader, (struct zero_place){1, 1},
					  "the file says nothing: it needs version: 1");
	if (!next(reader) || !zero_reader_map(reader, "the file", each, context))
		return false;
	if (!next(reader) || !next(reader)) /* the document's end */
		return false;
	if (reader->event.type != YAML_STREAM_END_EVENT)
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "a second document begins: only one is allowed");
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Reads YAML by events, with line and column of each value, within limits of size and depth. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yaml_reader.h"

/* libyaml takes a longer key, quotes included, in the form "? key" only. */
enum { KEY_CHARACTERS = 1024 };

static struct zero_place place_of(yaml_mark_t mark)
{
	return (struct zero_place){.line = mark.line + 1, .column = mark.column + 1};
}

struct zero_place zero_reader_place(const struct zero_reader *reader)
{
	return place_of(reader->event.start_mark);
}

bool zero_reader_error(struct zero_reader *reader, struct zero_place place, const char *format, ...)
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
	snprintf(reader->why, reader->size, "%s: out of memory", reader->path);
	return false;
}

void *zero_grow(void *array, size_t count, size_t *capacity, size_t bytes)
{
	size_t more = *capacity ? 2 * *capacity : 8;
	void *larger;

	if (count < *capacity)
		return array;
	larger = realloc(array, more * bytes);
	if (larger)
		*capacity = more;
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
	/* otherwise a byte order mark would switch the parser to UTF-16 */
	yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING);
	yaml_parser_set_input_string(&reader->parser, (const unsigned char *)text, length);
	return true;
}

void zero_reader_clear(struct zero_reader *reader)
{
	yaml_event_delete(&reader->event);
	yaml_parser_delete(&reader->parser);
}

/* For bytes that are not UTF-8, the parser gives an offset but no line and column. */
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

/* The parser reads a key that is too long as a value, and its error names what follows. */
static const char *long_key_hint(const struct zero_reader *reader, yaml_mark_t mark)
{
	const unsigned char *at = reader->parser.input.string.start;
	const unsigned char *end = reader->parser.input.string.end;

	for (size_t line = 0; at && line < mark.line; line++) {
		at = memchr(at, '\n', (size_t)(end - at));
		if (at)
			at++;
	}
	return !at || end - at <= KEY_CHARACTERS || memchr(at, '\n', KEY_CHARACTERS)
		       ? ""
		       : "; a key of more than 1024 characters must be written as "
			 "'? KEY', and its value as ': VALUE' on the next line";
}

static bool refuse_syntax(struct zero_reader *reader)
{
	const yaml_parser_t *parser = &reader->parser;

	if (parser->error == YAML_MEMORY_ERROR)
		return zero_reader_no_memory(reader);
	if (parser->error == YAML_READER_ERROR)
		return zero_reader_error(
			reader, place_of_byte(parser->input.string.start, parser->problem_offset),
			"this is not valid UTF-8 text: %s", parser->problem);
	if (parser->context)
		return zero_reader_error(reader, place_of(parser->problem_mark),
					 "%s, %s that starts in line %zu%s", parser->problem,
					 parser->context, parser->context_mark.line + 1,
					 long_key_hint(reader, parser->problem_mark));
	return zero_reader_error(reader, place_of(parser->problem_mark), "%s%s",
				 parser->problem ? parser->problem : "this is not YAML",
				 long_key_hint(reader, parser->problem_mark));
}

/* Aliases could expand a small file to a huge one, and tags could change the type of a value. */
static bool refuse_anchors_and_tags(struct zero_reader *reader)
{
	const yaml_event_t *event = &reader->event;
	const yaml_char_t *anchor = NULL, *tag = NULL;

	switch (event->type) {
	case YAML_ALIAS_EVENT:
		return zero_reader_error(reader, zero_reader_place(reader),
					 "the alias %s is not allowed: write out its value",
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
		return zero_reader_error(reader, zero_reader_place(reader),
					 "the anchor %s is not allowed",
					 zero_reader_quote(anchor).text);
	if (tag)
		return zero_reader_error(reader, zero_reader_place(reader),
					 "the tag %s is not allowed", zero_reader_quote(tag).text);
	return true;
}

/* Replaces the current event by the next one. */
static bool next_event(struct zero_reader *reader)
{
	yaml_event_delete(&reader->event);
	if (!yaml_parser_parse(&reader->parser, &reader->event))
		return refuse_syntax(reader);
	return refuse_anchors_and_tags(reader);
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

const char *zero_reader_scalar(struct zero_reader *reader, const char *what)
{
	const yaml_event_t *event = &reader->event;
	const char *text;

	if (event->type != YAML_SCALAR_EVENT) {
		zero_reader_error(reader, zero_reader_place(reader),
				  "%s must be a single value, not %s", what, event_name(event));
		return NULL;
	}
	text = (const char *)event->data.scalar.value;
	if (strlen(text) != event->data.scalar.length) {
		zero_reader_error(reader, zero_reader_place(reader), "%s contains a NUL byte",
				  what);
		return NULL;
	}
	return text;
}

struct keys {
	struct zero_key *keys;
	size_t count, capacity;
};

static void clear_keys(struct keys *keys)
{
	for (size_t i = 0; i < keys->count; i++)
		free(keys->keys[i].text);
	free(keys->keys);
}

/* Adds the current scalar. Returns NULL after an error. */
static const struct zero_key *add_key(struct zero_reader *reader, struct keys *keys,
				      const char *what)
{
	const char *text = zero_reader_scalar(reader, what);
	struct zero_place place = zero_reader_place(reader);
	struct zero_key *larger, *key;

	if (!text)
		return NULL;
	for (size_t i = 0; i < keys->count; i++) {
		if (strcmp(keys->keys[i].text, text) != 0)
			continue;
		zero_reader_error(reader, place, "%s appears twice: line %zu has it too",
				  zero_reader_quote(text).text, keys->keys[i].place.line);
		return NULL;
	}
	if (keys->count == ZERO_READER_KEYS) {
		zero_reader_error(reader, place,
				  "there are too many entries: at most %d are allowed",
				  ZERO_READER_KEYS);
		return NULL;
	}
	larger = zero_grow(keys->keys, keys->count, &keys->capacity, sizeof *keys->keys);
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

/* True for "defaults:" without a value, as when all lines below it are comments. */
static bool is_empty_value(const yaml_event_t *event)
{
	return event->type == YAML_SCALAR_EVENT && !event->data.scalar.length &&
	       event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
}

/* Reads a map or a list from its first event to its last. */
static bool read_entries(struct zero_reader *reader, bool is_map, zero_reader_handler each,
			 void *context)
{
	const yaml_event_type_t end = is_map ? YAML_MAPPING_END_EVENT : YAML_SEQUENCE_END_EVENT;
	struct keys keys = {0};
	bool ok = false;

	while (next_event(reader)) {
		const struct zero_key *key;

		if (reader->event.type == end) {
			ok = true;
			break;
		}
		key = add_key(reader, &keys, is_map ? "a key" : "a list entry");
		if (!key || (is_map && !next_event(reader)) || !each(reader, key, context))
			break;
	}
	clear_keys(&keys);
	return ok;
}

bool zero_reader_map(struct zero_reader *reader, const char *what, zero_reader_handler each,
		     void *context)
{
	if (is_empty_value(&reader->event))
		return true;
	if (reader->event.type != YAML_MAPPING_START_EVENT)
		return zero_reader_error(
			reader, zero_reader_place(reader),
			"%s must be a map with lines such as 'key: value', not %s%s", what,
			event_name(&reader->event),
			reader->event.type == YAML_SCALAR_EVENT
				? long_key_hint(reader, reader->event.start_mark)
				: "");
	return read_entries(reader, true, each, context);
}

bool zero_reader_list(struct zero_reader *reader, const char *what, zero_reader_handler each,
		      void *context)
{
	if (is_empty_value(&reader->event))
		return true;
	if (reader->event.type != YAML_SEQUENCE_START_EVENT)
		return zero_reader_error(reader, zero_reader_place(reader),
					 "%s must be a list such as [one, two], not %s", what,
					 event_name(&reader->event));
	return read_entries(reader, false, each, context);
}

bool zero_reader_file(struct zero_reader *reader, zero_reader_handler each, void *context)
{
	if (!next_event(reader) || !next_event(reader)) /* the start of the stream */
		return false;
	if (reader->event.type == YAML_STREAM_END_EVENT)
		return zero_reader_error(reader, (struct zero_place){1, 1},
					 "the file is empty: it must contain version: 1");
	if (!next_event(reader) || !zero_reader_map(reader, "the file", each, context))
		return false;
	if (!next_event(reader) || !next_event(reader)) /* the end of the document */
		return false;
	if (reader->event.type != YAML_STREAM_END_EVENT)
		return zero_reader_error(reader, zero_reader_place(reader),
					 "a second document starts here: only one is allowed");
	return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "files/json_reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A member's value that is not a string may take so many bytes of text: far beyond honest ones. */
static const size_t value_max = 1 << 20;

zero_status walk_fail(const struct walk *walk, size_t at, const char *format, ...)
{
	size_t line = 1, column = 1;
	char reason[512];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	for (size_t i = 0; i < at && i < walk->bytes; i++) {
		column++;
		if (walk->text[i] == '\n') {
			line++;
			column = 1;
		}
	}
	return files_core()->fail(ZERO_E_FORMAT,
				  "%s: byte %" PRIu64 " (line %zu, column %zu of the JSON): %s",
				  walk->path, walk->base + at, line, column, reason);
}

/* The next byte that is no white space; -1 at the end. */
static int next_byte(struct walk *walk)
{
	while (walk->at < walk->bytes) {
		char c = walk->text[walk->at];

		if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
			return (unsigned char)c;
		walk->at++;
	}
	return -1;
}

static zero_status expect(struct walk *walk, char wanted)
{
	int c = next_byte(walk);

	if (c == wanted) {
		walk->at++;
		return ZERO_OK;
	}
	if (c < 0)
		return walk_fail(walk, walk->at, "the JSON ends where '%c' is expected", wanted);
	if (c < 0x20 || c > 0x7e)
		return walk_fail(walk, walk->at, "byte 0x%02x where '%c' is expected", c, wanted);
	return walk_fail(walk, walk->at, "'%c' where '%c' is expected", c, wanted);
}

zero_status walk_begin(struct walk *walk)
{
	return expect(walk, '{');
}

zero_status walk_value(struct walk *walk, json_t **value)
{
	/* A string is no tree, and may be as long as the text: a name, or a page of metadata. */
	bool is_string = next_byte(walk) == '"';
	size_t rest = walk->bytes - walk->at;
	size_t bytes = !is_string && rest > value_max ? value_max : rest;
	json_error_t error;

	*value = json_loadb(walk->text + walk->at, bytes,
			    JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK,
			    &error);
	if (*value) {
		walk->at += (size_t)error.position;
		return ZERO_OK;
	}
	switch (json_error_code(&error)) {
	case json_error_out_of_memory:
		return files_no_memory(walk->path);
	case json_error_premature_end_of_input:
		if (bytes < rest)
			return walk_fail(walk, walk->at,
					 "a value of more than %zu bytes; what is expected here is "
					 "far shorter",
					 value_max);
		break;
	default:
		break;
	}
	return walk_fail(walk, walk->at + (size_t)error.position, "not valid JSON: %s",
			 files_words(error.text).text);
}

static zero_status keep_name(struct walk *walk, const char *text, size_t at)
{
	char *copy;

	if (walk->count == walk->room) {
		size_t room = walk->room ? 2 * walk->room : 16;
		struct walk_name *names = realloc(walk->names, room * sizeof(*names));

		if (!names)
			return files_no_memory(walk->path);
		walk->names = names;
		walk->room = room;
	}
	copy = strdup(text);
	if (!copy)
		return files_no_memory(walk->path);
	walk->names[walk->count++] = (struct walk_name){.text = copy, .at = at};
	return ZERO_OK;
}

static int compare_names(const void *a, const void *b)
{
	const struct walk_name *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : (x->at > y->at) - (x->at < y->at);
}

static zero_status refuse_duplicates(struct walk *walk)
{
	if (!walk->count)
		return ZERO_OK;
	qsort(walk->names, walk->count, sizeof(*walk->names), compare_names);
	for (size_t i = 1; i < walk->count; i++)
		if (strcmp(walk->names[i - 1].text, walk->names[i].text) == 0)
			return walk_fail(walk, walk->names[i].at,
					 "the name \"%s\" is there for the second time; each may "
					 "be there once",
					 files_words(walk->names[i].text).text);
	return ZERO_OK;
}

zero_status walk_next(struct walk *walk, const char **name)
{
	zero_status status;
	json_t *text;
	size_t at;

	*name = NULL;
	if (next_byte(walk) == '}') {
		walk->at++;
		return refuse_duplicates(walk);
	}
	if (walk->count) {
		status = expect(walk, ',');
		if (status)
			return status;
	}
	if (next_byte(walk) != '"')
		return expect(walk, '"');
	at = walk->at;
	status = walk_value(walk, &text);
	if (status)
		return status;
	status = keep_name(walk, json_string_value(text), at);
	json_decref(text);
	if (!status)
		status = expect(walk, ':');
	if (status)
		return status;
	next_byte(walk);
	*name = walk->names[walk->count - 1].text;
	return ZERO_OK;
}

zero_status walk_array(struct walk *walk)
{
	return expect(walk, '[');
}

zero_status walk_item(struct walk *walk, size_t i, bool *more)
{
	zero_status status = ZERO_OK;

	*more = next_byte(walk) != ']';
	if (!*more)
		walk->at++;
	else if (i)
		status = expect(walk, ',');
	if (!status && *more)
		next_byte(walk);
	return status;
}

zero_status walk_into(const struct walk *outer, struct walk *inner)
{
	*inner = *outer;
	inner->names = NULL;
	inner->count = inner->room = 0;
	return walk_begin(inner);
}

void walk_out(struct walk *outer, struct walk *inner)
{
	outer->at = inner->at;
	walk_free(inner);
}

zero_status walk_end(const struct walk *walk)
{
	struct walk rest = *walk;

	if (next_byte(&rest) < 0)
		return ZERO_OK;
	return walk_fail(walk, rest.at, "something follows the end of the JSON object");
}

void walk_free(struct walk *walk)
{
	for (size_t i = 0; i < walk->count; i++)
		free(walk->names[i].text);
	free(walk->names);
	walk->names = NULL;
	walk->count = walk->room = 0;
}

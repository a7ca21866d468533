/* SPDX-License-Identifier: Apache-2.0 */
#include "files/json_reader.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A value that is not a string may take this many bytes of text, far more than valid files need. */
static const size_t value_max = 1 << 20;

zero_status json_reader_fail(const struct json_reader *reader, size_t at, const char *format, ...)
{
	size_t line = 1, column = 1;
	char reason[512];
	va_list args;

	va_start(args, format);
	vsnprintf(reason, sizeof(reason), format, args);
	va_end(args);
	for (size_t i = 0; i < at && i < reader->bytes; i++) {
		column++;
		if (reader->text[i] == '\n') {
			line++;
			column = 1;
		}
	}
	return zero_core->fail(ZERO_E_FORMAT,
			       "%s: byte %" PRIu64 " (line %zu, column %zu of the JSON): %s",
			       reader->path, reader->base + at, line, column, reason);
}

/* Skips white space and returns the next byte; -1 at the end. */
static int next_byte(struct json_reader *reader)
{
	while (reader->at < reader->bytes) {
		char c = reader->text[reader->at];

		if (c != ' ' && c != '\t' && c != '\n' && c != '\r')
			return (unsigned char)c;
		reader->at++;
	}
	return -1;
}

static zero_status expect(struct json_reader *reader, char wanted)
{
	int c = next_byte(reader);

	if (c == wanted) {
		reader->at++;
		return ZERO_OK;
	}
	if (c < 0)
		return json_reader_fail(reader, reader->at, "the JSON ends where '%c' is expected",
					wanted);
	if (c < 0x20 || c > 0x7e)
		return json_reader_fail(reader, reader->at,
					"found byte 0x%02x where '%c' is expected", c, wanted);
	return json_reader_fail(reader, reader->at, "found '%c' where '%c' is expected", c, wanted);
}

zero_status json_reader_object(struct json_reader *reader)
{
	return expect(reader, '{');
}

zero_status json_reader_value(struct json_reader *reader, json_t **value)
{
	/* A string takes no more memory than its text, so its length is not bounded. */
	bool is_string = next_byte(reader) == '"';
	size_t rest = reader->bytes - reader->at;
	size_t bytes = !is_string && rest > value_max ? value_max : rest;
	json_error_t error;

	*value = json_loadb(reader->text + reader->at, bytes,
			    JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK,
			    &error);
	if (*value) {
		reader->at += (size_t)error.position;
		return ZERO_OK;
	}
	switch (json_error_code(&error)) {
	case json_error_out_of_memory:
		return files_no_memory(reader->path);
	case json_error_premature_end_of_input:
		if (bytes < rest)
			return json_reader_fail(
				reader, reader->at,
				"the value has more than %zu bytes; it must be shorter", value_max);
		break;
	default:
		break;
	}
	return json_reader_fail(reader, reader->at + (size_t)error.position,
				"the text is not valid JSON: %s", files_printable(error.text).text);
}

static zero_status add_name(struct json_reader *reader, const char *text, size_t at)
{
	struct json_reader_name *names;
	char *copy;

	names = files_grow(reader->names, reader->count, sizeof(*names));
	if (!names)
		return files_no_memory(reader->path);
	reader->names = names;
	copy = strdup(text);
	if (!copy)
		return files_no_memory(reader->path);
	reader->names[reader->count++] = (struct json_reader_name){.text = copy, .at = at};
	return ZERO_OK;
}

static int compare_names(const void *a, const void *b)
{
	const struct json_reader_name *x = a, *y = b;
	int order = strcmp(x->text, y->text);

	return order ? order : (x->at > y->at) - (x->at < y->at);
}

static zero_status refuse_duplicates(struct json_reader *reader)
{
	if (!reader->count)
		return ZERO_OK;
	qsort(reader->names, reader->count, sizeof(*reader->names), compare_names);
	for (size_t i = 1; i < reader->count; i++)
		if (strcmp(reader->names[i - 1].text, reader->names[i].text) == 0)
			return json_reader_fail(
				reader, reader->names[i].at,
				"the name \"%s\" occurs for the second time; it may "
				"occur once only",
				files_printable(reader->names[i].text).text);
	return ZERO_OK;
}

zero_status json_reader_member(struct json_reader *reader, const char **name)
{
	zero_status status;
	json_t *text;
	size_t at;

	*name = NULL;
	if (next_byte(reader) == '}') {
		reader->at++;
		return refuse_duplicates(reader);
	}
	if (reader->count) {
		status = expect(reader, ',');
		if (status)
			return status;
	}
	if (next_byte(reader) != '"')
		return expect(reader, '"');
	at = reader->at;
	status = json_reader_value(reader, &text);
	if (status)
		return status;
	status = add_name(reader, json_string_value(text), at);
	json_decref(text);
	if (!status)
		status = expect(reader, ':');
	if (status)
		return status;
	next_byte(reader);
	*name = reader->names[reader->count - 1].text;
	return ZERO_OK;
}

zero_status json_reader_array(struct json_reader *reader)
{
	return expect(reader, '[');
}

zero_status json_reader_item(struct json_reader *reader, size_t i, bool *more)
{
	zero_status status = ZERO_OK;

	*more = next_byte(reader) != ']';
	if (!*more)
		reader->at++;
	else if (i)
		status = expect(reader, ',');
	if (!status && *more)
		next_byte(reader);
	return status;
}

zero_status json_reader_enter(const struct json_reader *outer, struct json_reader *inner)
{
	*inner = *outer;
	inner->names = NULL;
	inner->count = 0;
	return json_reader_object(inner);
}

void json_reader_leave(struct json_reader *outer, struct json_reader *inner)
{
	outer->at = inner->at;
	json_reader_free(inner);
}

zero_status json_reader_end(const struct json_reader *reader)
{
	struct json_reader rest = *reader;

	if (next_byte(&rest) < 0)
		return ZERO_OK;
	return json_reader_fail(reader, rest.at, "text follows the end of the JSON object");
}

void json_reader_free(struct json_reader *reader)
{
	for (size_t i = 0; i < reader->count; i++)
		free(reader->names[i].text);
	free(reader->names);
	reader->names = NULL;
	reader->count = 0;
}

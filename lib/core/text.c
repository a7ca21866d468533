/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 32 }; /* longer names are never suggested */

bool zero_refuse(char *why, size_t size, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(why, size, format, arguments);
	va_end(arguments);
	return false;
}

size_t zero_append(char *text, size_t size, size_t length, const char *format, ...)
{
	va_list arguments;
	int added;

	if (length >= size)
		return length;
	va_start(arguments, format);
	added = vsnprintf(text + length, size - length, format, arguments);
	va_end(arguments);
	return added > 0 ? length + (size_t)added : length;
}

struct zero_quoted zero_quote(const char *text, size_t length)
{
	const size_t most = 60;
	struct zero_quoted quoted;
	size_t shown = length, at = 0;

	if (length > most) {
		shown = most;
		/* never cut a UTF-8 character */
		while (shown > most - 4 && ((unsigned char)text[shown] & 0xc0) == 0x80)
			shown--;
	}
	quoted.text[at++] = '\'';
	for (size_t i = 0; i < shown; i++) {
		unsigned char byte = (unsigned char)text[i];

		/* U+0080 to U+009F are control characters too */
		if (byte == 0xc2 && i + 1 < shown && ((unsigned char)text[i + 1] & 0xe0) == 0x80)
			byte = (unsigned char)text[++i] & 0x1f;
		quoted.text[at++] = byte < 0x20 || byte == 0x7f ? '?' : (char)byte;
	}
	memcpy(quoted.text + at, shown < length ? "...'" : "'", shown < length ? 5 : 2);
	return quoted;
}

size_t zero_append_names(char *text, size_t size, size_t length, const char *const *names,
			 size_t count)
{
	const size_t shown = count <= ZERO_NAMES_SHOWN ? count : ZERO_NAMES_SHOWN - 1;

	for (size_t i = 0; i < shown; i++)
		length = zero_append(text, size, length, "%s%s", i ? ", " : " (",
				     zero_quote(names[i], strlen(names[i])).text);
	if (shown < count)
		length = zero_append(text, size, length, " and %zu more", count - shown);
	return zero_append(text, size, length, ")");
}

int zero_size_format(uint64_t bytes, char *text, size_t size)
{
	unsigned unit = 0;

	while (unit < 4 && bytes && bytes % 1024 == 0) {
		bytes /= 1024;
		unit++;
	}
	return snprintf(text, size, "%llu%.*s", (unsigned long long)bytes, unit > 0,
			&"KMGT"[unit - (unit > 0)]);
}

struct zero_size zero_size_text(uint64_t bytes)
{
	static const char units[] = " KMGTPE";
	struct zero_size size;
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.95 && units[unit + 1]; unit++)
		value /= 1024;
	if (unit)
		snprintf(size.text, sizeof size.text, "%.1f%c", value, units[unit]);
	else
		snprintf(size.text, sizeof size.text, "%.0f", value);
	return size;
}

void zero_name_ranks(char *text, size_t size, const int *ranks, size_t count)
{
	size_t length = zero_append(text, size, 0, count == 1 ? "rank" : "ranks");

	for (size_t i = 0, last; i < count; i = last + 1) {
		if (length + sizeof(", 1234567890 to 1234567890 and others") > size) {
			zero_append(text, size, length, " and others");
			return;
		}
		last = i;
		while (last + 1 < count && ranks[last + 1] == ranks[last] + 1)
			last++;
		length = zero_append(text, size, length, "%s %d", i ? "," : "", ranks[i]);
		if (last > i)
			length = zero_append(text, size, length, " to %d", ranks[last]);
	}
}

const char *zero_shape_text(char *text, size_t size, int ndim, const size_t *shape)
{
	size_t at = zero_append(text, size, 0, "[");

	for (int i = 0; i < ndim; i++)
		at = zero_append(text, size, at, "%s%zu", i ? ", " : "", shape[i]);
	zero_append(text, size, at, "]");
	return text;
}

/* Insertions, deletions and replacements between two names; `length` is at most MAX_NAME. */
static size_t edit_distance(const char *name, size_t length, const char *other)
{
	size_t row[MAX_NAME + 1];

	for (size_t i = 0; i <= length; i++)
		row[i] = i;
	for (size_t j = 1; other[j - 1]; j++) {
		size_t diagonal = row[0];

		row[0] = j;
		for (size_t i = 1; i <= length; i++) {
			size_t best = diagonal + (name[i - 1] != other[j - 1]);

			diagonal = row[i];
			if (row[i] + 1 < best)
				best = row[i] + 1;
			if (row[i - 1] + 1 < best)
				best = row[i - 1] + 1;
			row[i] = best;
		}
	}
	return row[length];
}

bool zero_name_near(const char *name, size_t length, const char *other)
{
	char wanted[MAX_NAME + 1] = "";

	if (length < 3 || length > MAX_NAME)
		return false;
	memcpy(wanted, name, length);
	return strstr(other, wanted) || edit_distance(wanted, length, other) <= 2;
}

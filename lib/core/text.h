/* SPDX-License-Identifier: Apache-2.0 */
/* Builds messages that quote user input. */
#ifndef ZERO_TEXT_H
#define ZERO_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Writes *why. Returns false, so that a failing function can end with it. */
bool zero_refuse(char *why, size_t size, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Appends to a text of `length` bytes, cutting it at `size`; returns the length that it would have.
   */
size_t zero_append(char *text, size_t size, size_t length, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

struct zero_quoted {
	char text[72];
};
/* User input for a message: in quotes, without control characters, cut if it is long. */
struct zero_quoted zero_quote(const char *text, size_t length);
/* "64K" for 65536: the largest unit that leaves a whole number. Returns as snprintf does. */
int zero_size_format(uint64_t bytes, char *text, size_t size);
struct zero_size {
	char text[16];
};
/* "39.2G": the size rounded for reading, in powers of 1024 as in options. */
struct zero_size zero_size_text(uint64_t bytes);
enum { ZERO_NAMES_SHOWN = 4 };
/* Appends " ('a', 'b', 'c' and 4 more)". Only the first ZERO_NAMES_SHOWN of the names are read. */
size_t zero_append_names(char *text, size_t size, size_t length, const char *const *names,
			 size_t count);
/* "rank 3" or "ranks 0, 2 to 5", of ascending ranks; "and others" ends one that has no room. */
void zero_name_ranks(char *text, size_t size, const int *ranks, size_t count);
/* "[2, 3]"; returns `text`. */
const char *zero_shape_text(char *text, size_t size, int ndim, const size_t *shape);
/* Whether `name` may be a misspelling of `other`: a part of it, or at most two edits away. */
bool zero_name_near(const char *name, size_t length, const char *other);

/* Replaces what a terminal may obey by '?': control characters, U+0080 to U+009F too. */
static inline void zero_clean(char *text)
{
	for (unsigned char *at = (unsigned char *)text; *at; at++) {
		if (*at == 0xc2 && (at[1] & 0xe0) == 0x80)
			*at++ = '?';
		else if (*at >= 0x20 && *at != 0x7f)
			continue;
		*at = '?';
	}
}

static inline bool zero_begins_with(const char *text, const char *start)
{
	return strncmp(text, start, strlen(start)) == 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What all files of zerorun use: its errors, its strings, and how it prints them. */
#ifndef ZERORUN_TEXT_H
#define ZERORUN_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "core/options.h"

/* Exit statuses of zerorun itself, as shells use them. */
enum {
	EXIT_USAGE = 2,
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};

/* A list of owned strings; `item` is NULL or ends with a NULL. */
struct strings {
	char **item;
	size_t count;
};

/* Prints "zerorun: ..." as one line on stderr, without what a terminal may obey. */
__attribute__((format(printf, 1, 2))) void print_error(const char *format, ...);
/* Ends zerorun with an error. */
__attribute__((noreturn)) void exit_no_memory(void);
/* As asprintf, but ends zerorun if there is no memory: no rank runs yet that it could hurt. */
__attribute__((format(printf, 1, 2))) char *format_text(const char *format, ...);
/* Appends a string, which the list owns from then on. */
void strings_add(struct strings *strings, char *string);
void strings_clear(struct strings *strings);

/* Prints text without what a terminal may obey, see zero_clean. At least `width` wide. */
void print_in_line(FILE *out, const char *text, int width);
/* An option's value; malloc'ed. */
char *setting_text(const struct zero_settings *settings, int id);
/* Prints an option, its value and where that came from, as a line of a table. */
void print_setting(FILE *out, const struct zero_settings *settings, int id);

#endif

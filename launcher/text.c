/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/text.h"

#include <stdarg.h>
#include <stdlib.h>

#include "core/text.h"

void print_error(const char *format, ...)
{
	va_list arguments;
	char *text;

	fflush(stdout);
	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		text = NULL;
	va_end(arguments);
	/* it may quote what another user has written: a name of a file, a part of a manifest */
	if (text)
		zero_clean(text);
	fprintf(stderr, "zerorun: %s\n", text ? text : "no memory");
	free(text);
}

void exit_no_memory(void)
{
	print_error("no memory");
	exit(EXIT_FAILURE);
}

char *format_text(const char *format, ...)
{
	va_list arguments;
	char *text;

	va_start(arguments, format);
	if (vasprintf(&text, format, arguments) < 0)
		exit_no_memory();
	va_end(arguments);
	return text;
}

void strings_add(struct strings *strings, char *string)
{
	char **item = realloc(strings->item, (strings->count + 2) * sizeof *item);

	if (!item)
		exit_no_memory();
	item[strings->count] = string;
	item[strings->count + 1] = NULL;
	strings->item = item;
	strings->count++;
}

void strings_clear(struct strings *strings)
{
	for (size_t i = 0; i < strings->count; i++)
		free(strings->item[i]);
	free(strings->item);
	*strings = (struct strings){0};
}

char *setting_text(const struct zero_settings *settings, int id)
{
	char *text = zero_value_text(&zero_option_table[id], &settings->value[id]);

	if (!text)
		exit_no_memory();
	return text;
}

void print_in_line(FILE *out, const char *text, int width)
{
	char *clean = format_text("%s", text);

	zero_clean(clean);
	fprintf(out, "%-*s", width, clean);
	free(clean);
}

void print_setting(FILE *out, const struct zero_settings *settings, int id)
{
	char *text = setting_text(settings, id);

	fprintf(out, "%-17s ", zero_option_table[id].name);
	print_in_line(out, *text ? text : "-", 13);
	fputc(' ', out);
	print_in_line(out, settings->origin[id], 0);
	fputc('\n', out);
	free(text);
}

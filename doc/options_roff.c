/* SPDX-License-Identifier: Apache-2.0 */
/* Prints one list of a man page from the table of options, as roff: see `lists` below. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/options.h"

/* `length` bytes of text, with what roff would take for its own escaped. */
static void print_part(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (text[i] == '\\')
			fputs("\\e", stdout);
		else if (text[i] == '-')
			fputs("\\-", stdout);
		else
			putchar(text[i]);
	}
}

static void print_text(const char *text)
{
	print_part(text, strlen(text));
}

/* The item that a list explains: the name bold, what stands for a value in italics. */
static void print_item(const char *name, const char *between, const char *argument)
{
	fputs(".TP\n\\fB", stdout);
	print_text(name);
	fputs(between, stdout);
	fputs("\\fI", stdout);
	print_text(argument);
	fputs("\\fR\n", stdout);
}

static void print_size(uint64_t bytes)
{
	char text[32];

	zero_size_format(bytes, text, sizeof text);
	print_text(text);
}

/* What the option is for, as a sentence at the beginning of a line. */
static void print_help(const struct zero_option *option)
{
	char first = option->help[0];

	/* a name such as libzero.so keeps its small letter */
	if (first >= 'a' && first <= 'z' && strncmp(option->help, "libzero", 7) != 0)
		first = (char)(first - 'a' + 'A');
	fputs("\\&", stdout);
	print_part(&first, 1);
	print_text(option->help + 1);
	fputs(".\n", stdout);
}

static void print_range(const struct zero_option *option)
{
	switch (option->type) {
	case ZERO_TYPE_SIZE:
	case ZERO_TYPE_SIZE_OR_AUTO:
	case ZERO_TYPE_SIZE_OR_PERCENT:
		fputs("From ", stdout);
		print_size(option->min);
		fputs(" to ", stdout);
		print_size(option->max);
		fputs(option->type == ZERO_TYPE_SIZE_OR_PERCENT ? ", or 0% to 100%.\n" : ".\n",
		      stdout);
		break;
	case ZERO_TYPE_INTEGER:
	case ZERO_TYPE_CHOICE:
	case ZERO_TYPE_CHOICE_OR_INTEGER:
	case ZERO_TYPE_PATH:
	case ZERO_TYPE_TEXT:
		break;
	}
}

static void print_default(const struct zero_option *option)
{
	if (!option->default_text[0])
		return;
	fputs("Default: ", stdout);
	print_text(option->default_text);
	fputs(".\n", stdout);
}

static void print_flag(const struct zero_option *option)
{
	print_item(option->flag, "=", option->argument);
	print_help(option);
	print_range(option);
	print_default(option);
}

static void print_variable(const struct zero_option *option)
{
	print_item(option->env, "=", option->argument);
	if (option->flag) {
		fputs("As\n.BR ", stdout);
		print_text(option->flag);
		fputs(" .\n", stdout);
		return;
	}
	print_help(option);
	print_default(option);
	if (option->where & ZERO_OF_SITE)
		fputs("Under Slurm only\n.BR zero.yaml (5)\nsets it.\n", stdout);
}

static void print_key(const struct zero_option *option)
{
	print_item(option->name, ": ", option->argument);
	print_help(option);
	print_range(option);
	print_default(option);
}

static void print_fact(const struct zero_option *option)
{
	print_item(option->name, "=", option->argument);
	print_help(option);
}

static const struct {
	const char *name;
	unsigned where; /* the options it lists: with one of these bits */
	unsigned but;   /* and none of these */
	void (*print)(const struct zero_option *option);
} lists[] = {
	{"flags", ZERO_IN_FLAG, 0, print_flag},
	{"environment", ZERO_IN_ENVIRONMENT, 0, print_variable},
	{"yaml", ZERO_IN_YAML, 0, print_key},
	{"facts", ZERO_IN_RESOLVED, ZERO_IN_FLAG | ZERO_IN_ENVIRONMENT | ZERO_IN_YAML, print_fact},
};

int main(int argc, char **argv)
{
	for (size_t list = 0; argc == 2 && list < sizeof lists / sizeof lists[0]; list++) {
		if (strcmp(argv[1], lists[list].name) != 0)
			continue;
		for (size_t i = 0; i < ZERO_OPTIONS; i++) {
			const struct zero_option *option = &zero_option_table[i];

			if ((option->where & lists[list].where) &&
			    !(option->where & lists[list].but))
				lists[list].print(option);
		}
		return fflush(stdout) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
	}
	fputs("usage: options_roff flags|environment|yaml|facts\n", stderr);
	return EXIT_FAILURE;
}

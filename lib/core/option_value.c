/* SPDX-License-Identifier: Apache-2.0 */
/* Parses and formats one option's value. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The shift of the suffix K, M, G or T; 0 for any other byte. */
static unsigned unit_shift(char c)
{
	static const char units[] = "KMGTkmgt";
	const char *unit = c ? strchr(units, c) : NULL;

	return unit ? 10 * ((unsigned)(unit - units) % 4 + 1) : 0;
}

static bool refuse_range(const struct zero_option *option, const char *text, char *why, size_t size)
{
	char low[32], high[32];

	if (option->type == ZERO_TYPE_INTEGER || option->type == ZERO_TYPE_CHOICE_OR_INTEGER)
		return zero_refuse(why, size, "%s is out of range: %llu to %llu is allowed",
				   zero_quote(text, strlen(text)).text,
				   (unsigned long long)option->min,
				   (unsigned long long)option->max);
	zero_size_format(option->min, low, sizeof low);
	zero_size_format(option->max, high, sizeof high);
	return zero_refuse(why, size, "%s is out of range: %s to %s is allowed",
			   zero_quote(text, strlen(text)).text, low, high);
}

/* Reads the digits at the start of text; *end is what follows them. False: there are none. */
static bool read_digits(const char *text, uint64_t *number, bool *overflow, const char **end)
{
	*number = 0;
	*overflow = false;
	for (*end = text; is_digit(**end); ++*end) {
		if (__builtin_mul_overflow(*number, UINT64_C(10), number) ||
		    __builtin_add_overflow(*number, (uint64_t)(**end - '0'), number))
			*overflow = true;
	}
	return *end != text;
}

static bool parse_integer(const struct zero_option *option, const char *text,
			  struct zero_value *value, char *why, size_t size)
{
	uint64_t number;
	const char *end;
	bool overflow;

	if (!read_digits(text, &number, &overflow, &end) || *end)
		return zero_refuse(why, size, "%s is not a whole number from %llu to %llu",
				   zero_quote(text, strlen(text)).text,
				   (unsigned long long)option->min,
				   (unsigned long long)option->max);
	if (overflow || number < option->min || number > option->max)
		return refuse_range(option, text, why, size);
	*value = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = number};
	return true;
}

/* Finds the whole number that "1.5G" stands for, 1536M, if the next smaller unit has one. */
static bool suggest_whole(const char *text, char whole[32])
{
	uint64_t number, scale = 1;
	const char *end;
	bool overflow;
	unsigned shift;

	if (!read_digits(text, &number, &overflow, &end) || *end != '.' || !is_digit(end[1]))
		return false;
	for (end++; is_digit(*end); end++) {
		if (scale > 100000 || number > 1000000000)
			return false;
		number = number * 10 + (uint64_t)(*end - '0');
		scale *= 10;
	}
	shift = unit_shift(*end);
	if (overflow || !shift || end[1] || number * 1024 % scale)
		return false;
	snprintf(whole, 32, "%llu%.*s", (unsigned long long)(number * 1024 / scale), shift > 10,
		 &"KKMG"[shift / 10 - 1]);
	return true;
}

static bool parse_size(const struct zero_option *option, const char *text, struct zero_value *value,
		       char *why, size_t size)
{
	static const char allowed[] = "a whole number with K, M, G or T, such as 40M";
	static const char *const also[] = {
		[ZERO_TYPE_SIZE_OR_AUTO] = ", or auto",
		[ZERO_TYPE_SIZE_OR_PERCENT] = ", or a percentage, such as 5%",
		[ZERO_TYPE_TEXT] = NULL,
	};
	const char *more = also[option->type] ? also[option->type] : "";
	struct zero_quoted quoted = zero_quote(text, strlen(text));
	uint64_t number;
	const char *end;
	char whole[32];
	bool overflow;
	unsigned shift;

	if (option->type == ZERO_TYPE_SIZE_OR_AUTO && strcmp(text, "auto") == 0) {
		*value = (struct zero_value){.kind = ZERO_VALUE_AUTO};
		return true;
	}
	if (suggest_whole(text, whole))
		return zero_refuse(why, size, "%s is not a whole number: write %s", quoted.text,
				   whole);
	if (!read_digits(text, &number, &overflow, &end))
		return zero_refuse(why, size, "%s is not a size: %s%s", quoted.text, allowed, more);
	if (option->type == ZERO_TYPE_SIZE_OR_PERCENT && strcmp(end, "%") == 0) {
		if (overflow || number > 100)
			return zero_refuse(why, size, "%s is out of range: 0%% to 100%% is allowed",
					   quoted.text);
		*value = (struct zero_value){.kind = ZERO_VALUE_PERCENT, .number = number};
		return true;
	}
	/* a reserve of 5 bytes is hardly ever meant */
	if (option->type == ZERO_TYPE_SIZE_OR_PERCENT && !*end && number && number <= 100)
		return zero_refuse(why, size, "%s has no unit: write %s%% or %sM", quoted.text,
				   text, text);
	shift = unit_shift(*end);
	if (end[shift > 0])
		return zero_refuse(why, size, "%s is not a size: %s%s", quoted.text, allowed, more);
	if (overflow || number > UINT64_MAX >> shift || number << shift < option->min ||
	    number << shift > option->max)
		return refuse_range(option, text, why, size);
	*value = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = number << shift};
	return true;
}

static bool parse_choice(const struct zero_option *option, const char *text,
			 struct zero_value *value, char *why, size_t size)
{
	bool or_integer = option->type == ZERO_TYPE_CHOICE_OR_INTEGER;
	char list[160] = "";
	size_t length = 0;

	if (or_integer && is_digit(*text))
		return parse_integer(option, text, value, why, size);
	for (size_t i = 0; option->choices[i]; i++) {
		if (strcmp(option->choices[i], text) == 0) {
			*value =
				(struct zero_value){.kind = ZERO_VALUE_NUMBER,
						    .number = or_integer ? option->max + 1 + i : i};
			return true;
		}
		length = zero_append(list, sizeof list, length, "%s%s", i ? ", " : "",
				     option->choices[i]);
	}
	if (or_integer)
		zero_append(list, sizeof list, length, ", or a whole number from %llu",
			    (unsigned long long)option->min);
	return zero_refuse(why, size, "%s is not one of %s", zero_quote(text, strlen(text)).text,
			   list);
}

static bool parse_text(const struct zero_option *option, const char *text, struct zero_value *value,
		       char *why, size_t size)
{
	size_t length = strlen(text);
	char *copy;

	if (length > option->max)
		return zero_refuse(why, size, "%s is %zu bytes long: at most %llu are allowed",
				   zero_quote(text, length).text, length,
				   (unsigned long long)option->max);
	if (option->absolute && *text && *text != '/')
		return zero_refuse(why, size, "%s is not an absolute path",
				   zero_quote(text, length).text);
	copy = strdup(text);
	if (!copy)
		return zero_refuse(why, size, "no memory for a text of %zu bytes", length);
	*value = (struct zero_value){.kind = ZERO_VALUE_TEXT, .text = copy};
	return true;
}

bool zero_option_parse(const struct zero_option *option, const char *text, struct zero_value *value,
		       char *why, size_t size)
{
	switch (option->type) {
	case ZERO_TYPE_INTEGER:
		return parse_integer(option, text, value, why, size);
	case ZERO_TYPE_SIZE:
	case ZERO_TYPE_SIZE_OR_AUTO:
	case ZERO_TYPE_SIZE_OR_PERCENT:
		return parse_size(option, text, value, why, size);
	case ZERO_TYPE_CHOICE:
	case ZERO_TYPE_CHOICE_OR_INTEGER:
		return parse_choice(option, text, value, why, size);
	case ZERO_TYPE_PATH:
	case ZERO_TYPE_TEXT:
		return parse_text(option, text, value, why, size);
	}
	return zero_refuse(why, size, "option %s has no known type", option->name);
}

int zero_value_format(const struct zero_option *option, const struct zero_value *value, char *text,
		      size_t size)
{
	switch (value->kind) {
	case ZERO_VALUE_AUTO:
		return snprintf(text, size, "auto");
	case ZERO_VALUE_PERCENT:
		return snprintf(text, size, "%llu%%", (unsigned long long)value->number);
	case ZERO_VALUE_TEXT:
		return snprintf(text, size, "%s", value->text);
	case ZERO_VALUE_NUMBER:
		break;
	}
	if (option->type == ZERO_TYPE_CHOICE)
		return snprintf(text, size, "%s", option->choices[value->number]);
	if (option->type == ZERO_TYPE_CHOICE_OR_INTEGER && value->number > option->max)
		return snprintf(text, size, "%s", option->choices[value->number - option->max - 1]);
	return snprintf(text, size, "%llu", (unsigned long long)value->number);
}

char *zero_value_text(const struct zero_option *option, const struct zero_value *value)
{
	size_t size = (size_t)zero_value_format(option, value, NULL, 0) + 1;
	char *text = malloc(size);

	if (text)
		zero_value_format(option, value, text, size);
	return text;
}

void zero_value_clear(struct zero_value *value)
{
	free(value->text);
	*value = (struct zero_value){.kind = ZERO_VALUE_NUMBER};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "options_table.h"

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static int hex_digit(char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* The shift that K, M, G or T stands for; 0 for any other byte. */
static unsigned unit_shift(char c)
{
	static const char units[] = "KMGTkmgt";
	const char *unit = c ? strchr(units, c) : NULL;

	return unit ? 10 * ((unsigned)(unit - units) % 4 + 1) : 0;
}

static bool refuse_range(const struct zero_option *option, const char *text, char *why, size_t size)
{
	char low[32], high[32];

	if (option->type == ZERO_TYPE_INTEGER)
		return zero_refuse(why, size, "%s is out of range: %llu to %llu is allowed",
				   zero_quote(text, strlen(text)).text,
				   (unsigned long long)option->min,
				   (unsigned long long)option->max);
	zero_size_format(option->min, low, sizeof low);
	zero_size_format(option->max, high, sizeof high);
	return zero_refuse(why, size, "%s is out of range: %s to %s is allowed",
			   zero_quote(text, strlen(text)).text, low, high);
}

/* Digits at the start of text; *end is what follows them. False: there are none. */
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

/* For "1.5G" the whole number that was meant, 1536M, if there is one in the next smaller unit. */
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
	/* "5" of a GPU is hardly ever five bytes */
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
	char list[160] = "";
	size_t length = 0;

	for (size_t i = 0; option->choices[i]; i++) {
		if (strcmp(option->choices[i], text) == 0) {
			*value = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = i};
			return true;
		}
		length = zero_append(list, sizeof list, length, "%s%s", i ? ", " : "",
				     option->choices[i]);
	}
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

const struct zero_option *zero_option_find(const char *name, size_t length)
{
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (strlen(option->name) == length && memcmp(option->name, name, length) == 0)
			return option;
	}
	return NULL;
}

static const char *name_in(const struct zero_option *option, unsigned where)
{
	return where == ZERO_IN_FLAG ? option->flag : option->name;
}

void zero_option_near(const char *name, size_t length, unsigned where, char *text, size_t size)
{
	size_t near = 0, written = 0;

	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (!(option->where & where))
			continue;
		if (zero_name_near(name, length, option->name))
			written = zero_append(text, size, written, "%s%s",
					      near++ ? " or " : "did you mean ",
					      name_in(option, where));
	}
	if (near) {
		zero_append(text, size, written, "?");
		return;
	}
	written = zero_append(text, size, 0, "the options are");
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		if (zero_option_table[i].where & where)
			written = zero_append(text, size, written, "%s %s", near++ ? "," : "",
					      name_in(&zero_option_table[i], where));
	}
}

static bool is_own_origin(const struct zero_option *option, const char *origin)
{
	return (option->flag && strcmp(option->flag, origin) == 0) ||
	       (option->env && strcmp(option->env, origin) == 0);
}

/* Parses as zero_option_parse does; the message is a sentence that begins with the origin. */
static bool parse_from(const struct zero_option *option, const char *text, const char *origin,
		       struct zero_value *value, char *why, size_t size)
{
	char clause[256];

	if (zero_option_parse(option, text, value, clause, sizeof clause))
		return true;
	if (is_own_origin(option, origin))
		return zero_refuse(why, size, "%s: %s", origin, clause);
	return zero_refuse(why, size, "%s: %s: %s", origin, option->name, clause);
}

bool zero_settings_set(struct zero_settings *settings, enum zero_option_id id, const char *text,
		       const char *origin, char *why, size_t size)
{
	struct zero_value value;
	char *copy;

	if (!parse_from(&zero_option_table[id], text, origin, &value, why, size))
		return false;
	copy = strdup(origin);
	if (!copy) {
		zero_value_clear(&value);
		return zero_refuse(why, size, "%s: no memory", origin);
	}
	zero_value_clear(&settings->value[id]);
	free(settings->origin[id]);
	settings->value[id] = value;
	settings->origin[id] = copy;
	return true;
}

bool zero_settings_init(struct zero_settings *settings)
{
	char why[256];

	*settings = (struct zero_settings){0};
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (!zero_settings_set(settings, (enum zero_option_id)i,
				       zero_option_table[i].fallback, "default", why, sizeof why)) {
			zero_settings_clear(settings);
			return false;
		}
	}
	return true;
}

void zero_settings_clear(struct zero_settings *settings)
{
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		zero_value_clear(&settings->value[i]);
		free(settings->origin[i]);
		settings->origin[i] = NULL;
	}
}

/* Takes %XX back, in place. */
static bool unescape(char *text, const char *origin, const char *name, char *why, size_t size)
{
	char *to = text;

	for (const char *from = text; *from; from++) {
		int high, low;

		if (from[0] != '%' || !from[1]) {
			*to++ = *from;
			continue;
		}
		high = hex_digit(from[1]);
		low = high < 0 ? -1 : hex_digit(from[2]);
		if (low < 0 || (high == 0 && low == 0))
			return zero_refuse(
				why, size,
				"%s: %s: %s is not allowed: write %%25 for a percent sign, "
				"%%20 for a space",
				origin, name, zero_quote(from, strnlen(from, 3)).text);
		*to++ = (char)(high << 4 | low);
		from += 2;
	}
	*to = '\0';
	return true;
}

/* One "name=value" of a settings text into `into`, where a NULL origin marks what is not yet
   said. */
static bool parse_word(struct zero_settings *into, const char *word, size_t length,
		       const char *origin, char *why, size_t size)
{
	const char *equals = memchr(word, '=', length);
	const struct zero_option *option;
	char *text;
	bool ok;
	size_t name;

	if (!equals)
		return zero_refuse(why, size, "%s: %s is not of the form name=value", origin,
				   zero_quote(word, length).text);
	name = (size_t)(equals - word);
	option = zero_option_find(word, name);
	if (!option || !(option->where & ZERO_IN_RESOLVED)) {
		char near[400];

		zero_option_near(word, name, ZERO_IN_RESOLVED, near, sizeof near);
		return zero_refuse(why, size, "%s: there is no option %s: %s", origin,
				   zero_quote(word, name).text, near);
	}
	if (into->origin[option - zero_option_table])
		return zero_refuse(why, size, "%s: %s is there twice", origin, option->name);
	text = strndup(equals + 1, length - name - 1);
	if (!text)
		return zero_refuse(why, size, "%s: no memory", origin);
	ok = unescape(text, origin, option->name, why, size) &&
	     zero_settings_set(into, (enum zero_option_id)(option - zero_option_table), text,
			       origin, why, size);
	free(text);
	return ok;
}

bool zero_settings_parse(struct zero_settings *settings, const char *text, const char *origin,
			 char *why, size_t size)
{
	static const char blanks[] = " \t\n";
	struct zero_settings said = {0};

	for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
		size_t length = strcspn(text, blanks);

		if (!parse_word(&said, text, length, origin, why, size)) {
			zero_settings_clear(&said);
			return false;
		}
		text += length;
	}
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		if (!said.origin[i])
			continue;
		zero_value_clear(&settings->value[i]);
		free(settings->origin[i]);
		settings->value[i] = said.value[i];
		settings->origin[i] = said.origin[i];
	}
	return true;
}

bool zero_settings_environment(struct zero_settings *settings, char *why, size_t size)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const char *name = zero_option_table[i].env;
		const char *text = name ? getenv(name) : NULL;

		if (text &&
		    !zero_settings_set(settings, (enum zero_option_id)i, text, name, why, size))
			return false;
	}
	return true;
}

/* ---- origins ------------------------------------------------------------------------------- */

/* Bytes of one; all of them together stay below the option's bound, and that below the other. */
enum { ORIGIN_MOST = 80, ROOM = 8192 };

/* Whether users say it, and not a launcher that found it out. */
static bool is_said(const struct zero_option *option)
{
	return (option->where & ~(unsigned)ZERO_IN_RESOLVED) != 0;
}

/* What `origins` says of an option, and its length; NULL: nothing. */
static const char *handed_on(const char *origins, const char *name, size_t *length)
{
	size_t size = strlen(name);

	for (const char *at = origins; *at; at += strspn(at, ";")) {
		*length = strcspn(at, ";");
		if (*length > size && at[size] == ':' && memcmp(at, name, size) == 0) {
			*length -= size + 1;
			return at + size + 1;
		}
		at += *length;
	}
	return NULL;
}

char *zero_settings_origin(const struct zero_settings *settings, enum zero_option_id id)
{
	const char *name = zero_option_table[id].name, *origin = settings->origin[id], *handed;
	size_t length;

	if (!origin)
		return strdup("default");
	/* What came with the option tells of it. */
	if (!settings->origin[ZERO_OPT_ORIGINS] || !is_said(&zero_option_table[id]) ||
	    strcmp(origin, settings->origin[ZERO_OPT_ORIGINS]) != 0)
		return strdup(origin);
	handed = handed_on(settings->value[ZERO_OPT_ORIGINS].text, name, &length);
	return handed ? strndup(handed, length) : strdup("default");
}

/* In place: files without their folders, which would make every task's environment long, and
   nothing that ends an entry of the list. */
static void shorten(char *origin)
{
	char *to = origin;

	for (char *from = origin; *from; from++) {
		size_t word = strcspn(from, " ");

		if (*from == '/' && (from == origin || from[-1] == ' '))
			from = memrchr(from, '/', word);
		else
			*to++ = (char)(*from == ';' ? ',' : *from);
	}
	*to = '\0';
}

/* The value of `origins` for those who get the settings next; malloc'ed, NULL: no memory. */
static char *list_origins(const struct zero_settings *settings)
{
	char *text = NULL, *origin;
	bool well = true;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	for (int i = 0; out && well && i < ZERO_OPTIONS; i++) {
		if (!is_said(&zero_option_table[i]))
			continue;
		origin = zero_settings_origin(settings, (enum zero_option_id)i);
		well = origin != NULL;
		if (well)
			shorten(origin);
		if (well && strcmp(origin, "default") != 0)
			fprintf(out, "%s%s:%.*s", ftell(out) ? ";" : "", zero_option_table[i].name,
				ORIGIN_MOST, origin);
		free(origin);
	}
	if (out && (fclose(out) || !well)) {
		free(text);
		text = NULL;
	}
	return text;
}

static bool needs_escape(unsigned char byte)
{
	return byte <= ' ' || byte == '%' || byte == 0x7f;
}

char *zero_settings_format(const struct zero_settings *settings)
{
	const size_t room = ROOM;
	char *value = malloc(room), *origins = list_origins(settings), *text = NULL;
	size_t size;
	FILE *out = NULL;

	if (!value || !origins)
		goto out;
	out = open_memstream(&text, &size);
	if (!out)
		goto out;
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (!(option->where & ZERO_IN_RESOLVED))
			continue;
		zero_value_format(option, &settings->value[i], value, room);
		if (i == ZERO_OPT_ORIGINS)
			snprintf(value, room, "%s", origins);
		fprintf(out, "%s%s=", ftell(out) ? " " : "", option->name);
		for (const char *byte = value; *byte; byte++)
			fprintf(out, needs_escape((unsigned char)*byte) ? "%%%02X" : "%c",
				(unsigned char)*byte);
	}
	if (fclose(out)) {
		free(text);
		text = NULL;
	}
out:
	free(origins);
	free(value);
	return text;
}

bool zero_settings_budget_known(const struct zero_settings *settings)
{
	return settings->value[ZERO_OPT_BUDGET].number ||
	       settings->value[ZERO_OPT_VRAM_SOURCE].number != ZERO_VRAM_UNKNOWN;
}

void zero_options_help(FILE *out)
{
	const int column = 30;

	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];
		int width;

		if (!(option->where & ZERO_IN_FLAG))
			continue;
		width = fprintf(out, "      %s=%s", option->flag, option->argument);
		/* as Slurm does it: a long flag has a line of its own */
		if (width > column - 2) {
			fputc('\n', out);
			width = 0;
		}
		fprintf(out, "%*s%s", column - width, "", option->help);
		if (option->fallback[0])
			fprintf(out, " (%s)", option->fallback);
		fputc('\n', out);
	}
}

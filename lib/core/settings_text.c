/* SPDX-License-Identifier: Apache-2.0 */
/* All settings as one text, "name=value name=value": the format of ZERO_RESOLVED. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Decodes %XX, in place. */
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

/* Parses one "name=value" into `into`, where a NULL origin marks options that have not been set. */
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
		return zero_refuse(why, size, "%s: %s occurs twice", origin, option->name);
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
	struct zero_settings parsed = {0};

	for (text += strspn(text, blanks); *text; text += strspn(text, blanks)) {
		size_t length = strcspn(text, blanks);

		if (!parse_word(&parsed, text, length, origin, why, size)) {
			zero_settings_clear(&parsed);
			return false;
		}
		text += length;
	}
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		if (!parsed.origin[i])
			continue;
		zero_value_clear(&settings->value[i]);
		free(settings->origin[i]);
		settings->value[i] = parsed.value[i];
		settings->origin[i] = parsed.origin[i];
	}
	return true;
}

/* ---- origins --------------------------------------------------------------------------------- */

/* Bytes of one origin. All origins together fit into the option's bound, and that into CAPACITY. */
enum { MAX_ORIGIN = 80, CAPACITY = 8192 };

/* Whether users set the option. Others are facts that a launcher finds out. */
static bool is_user_option(const struct zero_option *option)
{
	return (option->where & ~(unsigned)ZERO_IN_RESOLVED) != 0;
}

/* Finds an option's entry in `origins`, and its length; NULL: none. */
static const char *find_origin(const char *origins, const char *name, size_t *length)
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
	const char *name = zero_option_table[id].name, *origin = settings->origin[id], *found;
	size_t length;

	if (!origin)
		return strdup("default");
	/* Options that came in ZERO_RESOLVED have their origins in `origins`. */
	if (!settings->origin[ZERO_OPT_ORIGINS] || !is_user_option(&zero_option_table[id]) ||
	    strcmp(origin, settings->origin[ZERO_OPT_ORIGINS]) != 0)
		return strdup(origin);
	found = find_origin(settings->value[ZERO_OPT_ORIGINS].text, name, &length);
	return found ? strndup(found, length) : strdup("default");
}

/* Removes, in place, the folders of file names, which would make every task's environment long, and
   the character that ends an entry of the list. */
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

/* Whether an option has an entry in `origins`: if it is no default, or if the site rules it. */
static bool has_entry(const struct zero_settings *settings, int id, const char *origin)
{
	const char *origins = settings->value[ZERO_OPT_ORIGINS].text;
	size_t length;

	return strcmp(origin, "default") != 0 || settings->ruled[id] ||
	       (origins && find_origin(origins, zero_option_table[id].name, &length));
}

/* The value of the option `origins`; malloc'ed, NULL: no memory. */
static char *list_origins(const struct zero_settings *settings)
{
	char *text = NULL, *origin;
	bool ok = true;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	for (int i = 0; out && ok && i < ZERO_OPTIONS; i++) {
		if (!is_user_option(&zero_option_table[i]))
			continue;
		origin = zero_settings_origin(settings, (enum zero_option_id)i);
		ok = origin != NULL;
		if (ok)
			shorten(origin);
		if (ok && has_entry(settings, i, origin))
			fprintf(out, "%s%s:%.*s", ftell(out) ? ";" : "", zero_option_table[i].name,
				MAX_ORIGIN, origin);
		free(origin);
	}
	if (out && (fclose(out) || !ok)) {
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
	char *value = malloc(CAPACITY), *origins = list_origins(settings), *text = NULL;
	size_t size;
	FILE *out = NULL;

	if (!value || !origins)
		goto out;
	out = open_memstream(&text, &size);
	if (!out)
		goto out;
	for (size_t i = 0; i < ZERO_OPTIONS; i++) {
		const struct zero_option *option = &zero_option_table[i];

		if (!(option->where & ZERO_IN_RESOLVED) ||
		    (!settings->origin[i] && i != ZERO_OPT_ORIGINS))
			continue;
		if (i == ZERO_OPT_ORIGINS)
			snprintf(value, CAPACITY, "%s", origins);
		else
			zero_value_format(option, &settings->value[i], value, CAPACITY);
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

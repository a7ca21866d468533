/* SPDX-License-Identifier: Apache-2.0 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "options.h"
#include "options_table.h"

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

/* As zero_option_parse, with a whole sentence that begins with the origin. */
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
				       zero_option_table[i].default_text, "default", why,
				       sizeof why)) {
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

bool zero_settings_environment(struct zero_settings *settings, char *why, size_t size)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const char *name = zero_option_table[i].env;
		const char *text = name ? getenv(name) : NULL;

		if (!text || (settings->origin[i] && strcmp(settings->origin[i], "default") != 0) ||
		    zero_settings_set(settings, (enum zero_option_id)i, text, name, why, size))
			continue;
		zero_append(why, size, strlen(why),
			    "; if the variable is another program's, unset it");
		return false;
	}
	return true;
}

bool zero_settings_budget_known(const struct zero_settings *settings)
{
	return settings->value[ZERO_OPT_BUDGET].number ||
	       settings->value[ZERO_OPT_VRAM_SOURCE].number != ZERO_VRAM_UNKNOWN;
}

uint64_t zero_auto_stream_threshold(uint64_t chunk, uint64_t budget)
{
	return chunk > budget / 64 ? chunk : budget / 64;
}

static void set_if_auto(struct zero_value *value, uint64_t number)
{
	if (value->kind == ZERO_VALUE_AUTO)
		*value = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = number};
}

void zero_settings_set_sizes(struct zero_settings *settings)
{
	uint64_t budget = settings->value[ZERO_OPT_BUDGET].number;
	uint64_t chunk = settings->value[ZERO_OPT_STREAM_CHUNK].number;

	set_if_auto(&settings->value[ZERO_OPT_STREAM_THRESHOLD],
		    zero_auto_stream_threshold(chunk, budget));
	set_if_auto(&settings->value[ZERO_OPT_GATHER_LIMIT], budget / 4);
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
		/* as in Slurm's help, a long flag has a line of its own */
		if (width > column - 2) {
			fputc('\n', out);
			width = 0;
		}
		fprintf(out, "%*s%s", column - width, "", option->help);
		if (option->default_text[0])
			fprintf(out, " (%s)", option->default_text);
		fputc('\n', out);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yaml_statement.h"

enum { VARIABLE_BYTES = 32 << 10 }; /* the longest value; execve takes 128K */

void zero_statement_clear(struct statement *statement)
{
	zero_value_clear(&statement->value);
	free(statement->name);
}

/* Takes ownership of the memory of the statement, also on error. */
static bool add_statement(struct zero_reader *reader, struct zero_config_parser *parser,
			  struct zero_place place, struct statement statement)
{
	struct section *section = &parser->config->sections[parser->section];
	struct statement *larger =
		zero_grow(section->statements, section->count, &section->capacity, sizeof *larger);

	if (!larger) {
		zero_statement_clear(&statement);
		return zero_reader_no_memory(reader);
	}
	statement.line = place.line;
	section->statements = larger;
	section->statements[section->count++] = statement;
	return true;
}

/* Returns NULL after an error. */
static const struct zero_option *find_option(struct zero_reader *reader, const char *name,
					     struct zero_place place)
{
	const struct zero_option *option = zero_option_find(name, strlen(name));
	char near[400];

	if (option && option->where & ZERO_IN_YAML)
		return option;
	if (option && option->env) {
		zero_reader_error(reader, place, "%s cannot be set in a file: use %s", option->name,
				  option->flag ? option->flag : option->env);
		return NULL;
	}
	zero_option_near(name, strlen(name), ZERO_IN_YAML, near, sizeof near);
	zero_reader_error(reader, place, "there is no option %s: %s", zero_reader_quote(name).text,
			  near);
	return NULL;
}

static enum zero_option_id id_of(const struct zero_option *option)
{
	return (enum zero_option_id)(option - zero_option_table);
}

/* Parses a value of the option; messages call it `what`. */
static bool read_option(struct zero_reader *reader, const struct zero_option *option,
			const char *what, struct zero_value *value)
{
	const char *text = zero_reader_scalar(reader, what);
	char clause[256];

	if (!text)
		return false;
	if (!zero_option_parse(option, text, value, clause, sizeof clause))
		return zero_reader_error(reader, zero_reader_place(reader), "%s: %s", what, clause);
	return true;
}

bool zero_statement_default(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	const struct zero_option *option = find_option(reader, key->text, key->place);
	struct statement statement = {.kind = STATEMENT_DEFAULT};

	if (!option || !read_option(reader, option, option->name, &statement.value))
		return false;
	statement.id = id_of(option);
	return add_statement(reader, context, zero_reader_place(reader), statement);
}

struct limit {
	const struct zero_option *option;
	struct zero_value bound[2]; /* min and max */
	struct zero_place place[2]; /* line 0 if that bound is missing */
};

static bool read_bound(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct limit *limit = context;
	bool is_max = strcmp(key->text, "max") == 0;
	char what[64];

	if (!is_max && strcmp(key->text, "min") != 0)
		return zero_reader_error(reader, key->place,
					 "%s is not allowed in a limit: the keys are min and max",
					 zero_reader_quote(key->text).text);
	snprintf(what, sizeof what, "%s of %s", key->text, limit->option->name);
	if (!read_option(reader, limit->option, what, &limit->bound[is_max]))
		return false;
	limit->place[is_max] = zero_reader_place(reader);
	if (limit->bound[is_max].kind == ZERO_VALUE_AUTO)
		return zero_reader_error(reader, limit->place[is_max],
					 "%s must be a size, not auto", what);
	return true;
}

bool zero_statement_limit(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct limit limit = {.option = find_option(reader, key->text, key->place)};
	const struct zero_option *option = limit.option;

	if (!option)
		return false;
	if (option->type == ZERO_TYPE_CHOICE || option->type == ZERO_TYPE_CHOICE_OR_INTEGER ||
	    option->type == ZERO_TYPE_PATH || option->type == ZERO_TYPE_TEXT)
		return zero_reader_error(
			reader, key->place,
			"%s is not a number and cannot have limits: use locked instead",
			option->name);
	if (!zero_reader_map(reader, "a limit", read_bound, &limit))
		return false;
	if (!limit.place[0].line && !limit.place[1].line)
		return zero_reader_error(reader, key->place,
					 "the limit of %s needs min, max or both", option->name);
	for (size_t i = 0; i < 2; i++) {
		struct statement statement = {.kind = i ? STATEMENT_MAX : STATEMENT_MIN,
					      .id = id_of(option),
					      .value = limit.bound[i]};

		if (limit.place[i].line &&
		    !add_statement(reader, context, limit.place[i], statement))
			return false;
	}
	return true;
}

bool zero_statement_lock(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	const struct zero_option *option = find_option(reader, key->text, key->place);

	return option &&
	       add_statement(reader, context, key->place,
			     (struct statement){.kind = STATEMENT_LOCK, .id = id_of(option)});
}

static bool is_variable(const char *name)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";

	if (!name[0] || !strchr(letters, name[0]))
		return false;
	for (const char *c = name; *c; c++) {
		if (!strchr(letters, *c) && !(*c >= '0' && *c <= '9'))
			return false;
	}
	return true;
}

/* Returns why the file may not set that variable, NULL if it may. */
static const char *reserved_reason(const char *name)
{
	static const char *const by_plugin[] = {
		"LD_PRELOAD",       "RANK",        "WORLD_SIZE",  "LOCAL_RANK",
		"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
	};

	for (size_t i = 0; i < sizeof by_plugin / sizeof by_plugin[0]; i++) {
		if (strcmp(name, by_plugin[i]) == 0)
			return "the plugin sets it for each task";
	}
	if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0)
		return "Slurm sets it, and the plugin sizes tasks for those GPUs";
	if (strncmp(name, "ZERO_", 5) == 0)
		return "set options under defaults";
	if (strncmp(name, "SLURM_", 6) == 0 || strncmp(name, "SPANK_", 6) == 0)
		return "Slurm sets it";
	return NULL;
}

bool zero_statement_variable(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct statement statement = {.kind = STATEMENT_VARIABLE};
	const char *reserved = reserved_reason(key->text), *text;
	struct zero_config_parser *parser = context;

	if (!is_variable(key->text))
		return zero_reader_error(reader, key->place,
					 "%s is not a name of a variable: letters, digits and _ "
					 "are allowed, but no digit first",
					 zero_reader_quote(key->text).text);
	if (reserved)
		return zero_reader_error(reader, key->place, "%s cannot be set here: %s",
					 zero_reader_quote(key->text).text, reserved);
	text = zero_reader_scalar(reader, "the value of a variable");
	if (!text)
		return false;
	if (strlen(text) > VARIABLE_BYTES)
		return zero_reader_error(reader, zero_reader_place(reader),
					 "%s is %zu bytes long: at most %d are allowed",
					 zero_reader_quote(key->text).text, strlen(text),
					 VARIABLE_BYTES);
	if (++parser->variables > ZERO_CONFIG_VARIABLES)
		return zero_reader_error(reader, key->place,
					 "there are too many variables: at most %d are allowed",
					 ZERO_CONFIG_VARIABLES);
	statement.name = strdup(key->text);
	statement.value = (struct zero_value){.kind = ZERO_VALUE_TEXT, .text = strdup(text)};
	if (!statement.name || !statement.value.text) {
		zero_statement_clear(&statement);
		return zero_reader_no_memory(reader);
	}
	return add_statement(reader, parser, zero_reader_place(reader), statement);
}

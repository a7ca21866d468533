/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yaml_statement.h"

enum { VARIABLE_BYTES = 32 << 10 }; /* of a value; execve takes 128K */

void zero_statement_clear(struct statement *statement)
{
	zero_value_clear(&statement->value);
	free(statement->name);
}

/* Takes over what the statement owns, also when it fails. */
static bool add_statement(struct zero_reader *reader, struct zero_draft *draft,
			  struct zero_place place, struct statement statement)
{
	struct section *section = &draft->config->sections[draft->section];
	struct statement *larger =
		zero_grow(section->statements, section->count, &section->room, sizeof *larger);

	if (!larger) {
		zero_statement_clear(&statement);
		return zero_reader_no_memory(reader);
	}
	statement.line = place.line;
	statement.column = place.column;
	section->statements = larger;
	section->statements[section->count++] = statement;
	return true;
}

/* NULL: it was refused. */
static const struct zero_option *find_option(struct zero_reader *reader, const char *name,
					     struct zero_place place)
{
	const struct zero_option *option = zero_option_find(name, strlen(name));
	char near[400];

	if (option && option->where & ZERO_IN_YAML)
		return option;
	if (option && option->env) {
		zero_reader_refuse(reader, place, "%s cannot be said in a file: say it as %s",
				   option->name, option->flag ? option->flag : option->env);
		return NULL;
	}
	zero_option_near(name, strlen(name), ZERO_IN_YAML, near, sizeof near);
	zero_reader_refuse(reader, place, "there is no option %s: %s", zero_reader_quote(name).text,
			   near);
	return NULL;
}

static enum zero_option_id id_of(const struct zero_option *option)
{
	return (enum zero_option_id)(option - zero_option_table);
}

/* The scalar at hand as a value of the option; in messages it is that of `what`. */
static bool read_option(struct zero_reader *reader, const struct zero_option *option,
			const char *what, struct zero_value *value)
{
	const char *text = zero_reader_text(reader, what);
	char clause[256];

	if (!text)
		return false;
	if (!zero_option_parse(option, text, value, clause, sizeof clause))
		return zero_reader_refuse(reader, zero_reader_here(reader), "%s: %s", what, clause);
	return true;
}

bool zero_statement_default(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	const struct zero_option *option = find_option(reader, key->text, key->place);
	struct statement statement = {.kind = STATEMENT_DEFAULT};

	if (!option || !read_option(reader, option, option->name, &statement.value))
		return false;
	statement.id = id_of(option);
	return add_statement(reader, context, zero_reader_here(reader), statement);
}

struct limit {
	const struct zero_option *option;
	struct zero_value bound[2]; /* min and max */
	struct zero_place place[2]; /* line 0: not said */
};

static bool read_bound(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct limit *limit = context;
	bool is_max = strcmp(key->text, "max") == 0;
	char what[64];

	if (!is_max && strcmp(key->text, "min") != 0)
		return zero_reader_refuse(reader, key->place, "a limit has min and max, not %s",
					  zero_reader_quote(key->text).text);
	snprintf(what, sizeof what, "%s of %s", key->text, limit->option->name);
	if (!read_option(reader, limit->option, what, &limit->bound[is_max]))
		return false;
	limit->place[is_max] = zero_reader_here(reader);
	if (limit->bound[is_max].kind == ZERO_VALUE_AUTO)
		return zero_reader_refuse(reader, limit->place[is_max],
					  "%s must be a size, not auto", what);
	return true;
}

bool zero_statement_limit(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct limit limit = {.option = find_option(reader, key->text, key->place)};
	const struct zero_option *option = limit.option;
	int order;

	if (!option)
		return false;
	if (option->type == ZERO_TYPE_CHOICE || option->type == ZERO_TYPE_PATH ||
	    option->type == ZERO_TYPE_TEXT)
		return zero_reader_refuse(reader, key->place,
					  "%s is no number and has no limits: lock it instead",
					  option->name);
	if (!zero_reader_map(reader, "a limit", read_bound, &limit))
		return false;
	if (!limit.place[0].line && !limit.place[1].line)
		return zero_reader_refuse(reader, key->place,
					  "the limit of %s needs min, max or both", option->name);
	if (limit.place[0].line && limit.place[1].line &&
	    zero_value_compare(&limit.bound[0], &limit.bound[1], 0, &order) && order > 0)
		return zero_reader_refuse(
			reader, limit.place[1], "max of %s is %s, which is less than its min, %s",
			option->name, zero_value_show(option, &limit.bound[1]).text,
			zero_value_show(option, &limit.bound[0]).text);
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

/* Why the file may not set that variable; NULL if it may. */
static const char *taken_by(const char *name)
{
	static const char *const of_plugin[] = {
		"LD_PRELOAD",       "RANK",        "WORLD_SIZE",  "LOCAL_RANK",
		"LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
	};

	for (size_t i = 0; i < sizeof of_plugin / sizeof of_plugin[0]; i++) {
		if (strcmp(name, of_plugin[i]) == 0)
			return "the plugin sets it for each task";
	}
	if (strcmp(name, "CUDA_VISIBLE_DEVICES") == 0)
		return "tasks are sized for the GPUs that Slurm gives them";
	if (strncmp(name, "ZERO_", 5) == 0)
		return "say options under defaults";
	if (strncmp(name, "SLURM_", 6) == 0 || strncmp(name, "SPANK_", 6) == 0)
		return "it is Slurm's own";
	return NULL;
}

bool zero_statement_variable(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct statement statement = {.kind = STATEMENT_VARIABLE};
	const char *taken = taken_by(key->text), *text;
	struct zero_draft *draft = context;

	if (!is_variable(key->text))
		return zero_reader_refuse(reader, key->place,
					  "%s is no name of a variable: letters, digits and _ are "
					  "allowed, and no digit first",
					  zero_reader_quote(key->text).text);
	if (taken)
		return zero_reader_refuse(reader, key->place, "%s cannot be set here: %s",
					  zero_reader_quote(key->text).text, taken);
	text = zero_reader_text(reader, "the value of a variable");
	if (!text)
		return false;
	if (strlen(text) > VARIABLE_BYTES)
		return zero_reader_refuse(reader, zero_reader_here(reader),
					  "%s is %zu bytes long: at most %d are allowed",
					  zero_reader_quote(key->text).text, strlen(text),
					  VARIABLE_BYTES);
	if (++draft->variables > ZERO_CONFIG_VARIABLES)
		return zero_reader_refuse(reader, key->place,
					  "there are too many variables: at most %d are allowed",
					  ZERO_CONFIG_VARIABLES);
	statement.name = strdup(key->text);
	statement.value = (struct zero_value){.kind = ZERO_VALUE_TEXT, .text = strdup(text)};
	if (!statement.name || !statement.value.text) {
		zero_statement_clear(&statement);
		return zero_reader_no_memory(reader);
	}
	return add_statement(reader, draft, zero_reader_here(reader), statement);
}

/* Whether the bound leaves a value to one of the top's, which holds wherever the bound does. */
static bool check_bound(struct zero_reader *reader, const struct section *top,
			const struct statement *said)
{
	const bool is_max = said->kind == STATEMENT_MAX;

	for (size_t i = 0; i < top->count; i++) {
		const struct statement *bound = &top->statements[i];
		const struct zero_option *option = &zero_option_table[said->id];

		/* a max below the min, or a min above the max */
		if (bound->kind != (is_max ? STATEMENT_MIN : STATEMENT_MAX) ||
		    !zero_statement_forbids(bound, said->id, &said->value, 0))
			continue;
		return zero_reader_refuse(
			reader, (struct zero_place){said->line, said->column},
			"%s of %s is %s, which is %s than the %s of line %zu, %s, which holds "
			"here too",
			is_max ? "max" : "min", option->name,
			zero_value_show(option, &said->value).text, is_max ? "less" : "more",
			is_max ? "min" : "max", bound->line,
			zero_value_show(option, &bound->value).text);
	}
	return true;
}

/* What a default says beyond a limit of another section, but for the top, is held to it instead. */
static bool check_default(struct zero_reader *reader, const struct section *limits,
			  const struct statement *said)
{
	for (size_t i = 0; i < limits->count; i++) {
		const struct statement *bound = &limits->statements[i];
		const struct zero_option *option = &zero_option_table[said->id];

		if (!zero_statement_forbids(bound, said->id, &said->value, 0))
			continue;
		return zero_reader_refuse(reader, (struct zero_place){said->line, said->column},
					  "%s: %s is %s than %s, the %s of line %zu", option->name,
					  zero_value_show(option, &said->value).text,
					  bound->kind == STATEMENT_MAX ? "more" : "less",
					  zero_value_show(option, &bound->value).text,
					  bound->kind == STATEMENT_MAX ? "max" : "min",
					  bound->line);
	}
	return true;
}

static bool check_statement(struct zero_reader *reader, const struct section *top,
			    const struct section *section, const struct statement *said)
{
	switch (said->kind) {
	case STATEMENT_DEFAULT:
		return check_default(reader, section, said) && check_default(reader, top, said);
	case STATEMENT_MIN:
	case STATEMENT_MAX:
		return check_bound(reader, top, said);
	case STATEMENT_LOCK:
	case STATEMENT_VARIABLE:
		break;
	}
	return true;
}

bool zero_statements_check(struct zero_reader *reader, const struct zero_config *config)
{
	for (size_t s = 0; s < config->count; s++) {
		const struct section *section = &config->sections[s];

		for (size_t i = 0; i < section->count; i++) {
			if (!check_statement(reader, &config->sections[0], section,
					     &section->statements[i]))
				return false;
		}
	}
	return true;
}

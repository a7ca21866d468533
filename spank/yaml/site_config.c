/* SPDX-License-Identifier: Apache-2.0 */
/* Parses zero.yaml, or a user's file, into sections of statements, which resolve.c applies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hostlist.h"
#include "site_config_private.h"
#include "yaml_reader.h"

enum { PATTERN_BYTES = 255 };
enum { VARIABLE_BYTES = 32 << 10 }; /* the longest value; execve takes 128K */

/* The state of reading one file. */
struct zero_config_parser {
	struct zero_config *config;
	size_t section;         /* the section that statements are added to */
	enum section_kind kind; /* of the enclosing map of sections; TOP outside of them */
	size_t variables;       /* how many there are in all sections */
	bool has_version;
};

/* ---- the statements of a section: a default, a limit, a lock, a variable --------------------- */

static void clear_statement(struct statement *statement)
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
		clear_statement(&statement);
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

static bool read_default(struct zero_reader *reader, const struct zero_key *key, void *context)
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

static bool read_limit(struct zero_reader *reader, const struct zero_key *key, void *context)
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

static bool read_lock(struct zero_reader *reader, const struct zero_key *key, void *context)
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

static bool read_variable(struct zero_reader *reader, const struct zero_key *key, void *context)
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
		clear_statement(&statement);
		return zero_reader_no_memory(reader);
	}
	return add_statement(reader, parser, zero_reader_place(reader), statement);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static bool add_section(struct zero_config *config, enum section_kind kind, const char *pattern)
{
	struct section *larger =
		zero_grow(config->sections, config->count, &config->capacity, sizeof *larger);
	struct section section = {.kind = kind};

	if (!larger)
		return false;
	config->sections = larger;
	if (pattern) {
		section.pattern = strdup(pattern);
		if (!section.pattern)
			return false;
	}
	config->sections[config->count++] = section;
	return true;
}

static bool read_version(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	const char *text = zero_reader_scalar(reader, key->text);
	struct zero_config_parser *parser = context;

	if (!text)
		return false;
	parser->has_version = true;
	return strcmp(text, "1") == 0 || zero_reader_error(reader, zero_reader_place(reader),
							   "version %s is not supported: only 1 is",
							   zero_reader_quote(text).text);
}

static bool read_enabled(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	static const char *const names[] = {
		[ZERO_ENABLED_OFF] = "off",
		[ZERO_ENABLED_OPT_IN] = "opt-in",
		[ZERO_ENABLED_ON] = "on",
	};
	const char *text = zero_reader_scalar(reader, key->text);
	struct zero_config_parser *parser = context;
	struct section *section = &parser->config->sections[parser->section];

	if (!text)
		return false;
	for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
		if (strcmp(text, names[i]) != 0)
			continue;
		/* whether srun starts a step with PMIx is decided before its nodes are known */
		if (i == ZERO_ENABLED_ON && section->kind == SECTION_NODES)
			return zero_reader_error(reader, zero_reader_place(reader),
						 "enabled: on is not allowed under nodes, where it "
						 "is off or opt-in");
		section->enabled = (enum zero_enabled)i;
		if (asprintf(&section->enabled_origin, "%s:%zu", parser->config->path,
			     zero_reader_place(reader).line) >= 0)
			return true;
		section->enabled_origin = NULL;
		return zero_reader_no_memory(reader);
	}
	return zero_reader_error(reader, zero_reader_place(reader),
				 "enabled: %s is not one of off, opt-in, on",
				 zero_reader_quote(text).text);
}

static bool read_telemetry(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	const char *text = zero_reader_scalar(reader, key->text);
	struct zero_config *config = ((struct zero_config_parser *)context)->config;

	if (!text)
		return false;
	if (strcmp(text, "off") == 0)
		return true;
	if (strcmp(text, "syslog") != 0 && text[0] != '/')
		return zero_reader_error(reader, zero_reader_place(reader),
					 "telemetry: %s is not off, syslog or the absolute path of "
					 "a file",
					 zero_reader_quote(text).text);
	config->telemetry = strdup(text);
	return config->telemetry || zero_reader_no_memory(reader);
}

static bool read_section(struct zero_reader *reader, const struct zero_key *key, void *context);

/* The places where a key is allowed. */
enum {
	IN_TOP = 1,
	IN_GPUS = 2,
	IN_OTHERS = 4, /* sections that are not by GPU */
	IN_SECTION = IN_GPUS | IN_OTHERS,
	IN_USER = 8,
};

static const struct known_key {
	const char *name;
	unsigned where;
	enum { SCALAR, LIST, MAP } shape;
	zero_reader_handler read; /* its value, or each entry of it */
	enum section_kind kind;   /* of the sections that are the entries */
} known_keys[] = {
	{"version", IN_TOP | IN_USER, SCALAR, read_version, SECTION_TOP},
	{"enabled", IN_TOP | IN_OTHERS, SCALAR, read_enabled, SECTION_TOP},
	{"telemetry", IN_TOP, SCALAR, read_telemetry, SECTION_TOP},
	{"defaults", IN_TOP | IN_SECTION | IN_USER, MAP, read_default, SECTION_TOP},
	{"limits", IN_TOP | IN_SECTION, MAP, read_limit, SECTION_TOP},
	{"locked", IN_TOP | IN_SECTION, LIST, read_lock, SECTION_TOP},
	{"env", IN_TOP | IN_SECTION, MAP, read_variable, SECTION_TOP},
	{"gpus", IN_TOP, MAP, read_section, SECTION_GPUS},
	{"partitions", IN_TOP, MAP, read_section, SECTION_PARTITIONS},
	{"accounts", IN_TOP, MAP, read_section, SECTION_ACCOUNTS},
	{"qos", IN_TOP, MAP, read_section, SECTION_QOS},
	{"nodes", IN_TOP, MAP, read_section, SECTION_NODES},
};

enum { KNOWN_KEYS = sizeof known_keys / sizeof known_keys[0] };

static bool refuse_key(struct zero_reader *reader, const struct zero_key *key, unsigned where)
{
	const struct zero_option *option = zero_option_find(key->text, strlen(key->text));
	size_t length = 0;
	char list[160] = "";

	if (option && option->where & ZERO_IN_YAML)
		return zero_reader_error(reader, key->place, "%s belongs under defaults",
					 option->name);
	for (size_t i = 0; i < KNOWN_KEYS; i++) {
		if (known_keys[i].where & where &&
		    zero_name_near(key->text, strlen(key->text), known_keys[i].name))
			return zero_reader_error(
				reader, key->place, "there is no key %s here: did you mean %s?",
				zero_reader_quote(key->text).text, known_keys[i].name);
		if (known_keys[i].where & where)
			length = zero_append(list, sizeof list, length, "%s%s", length ? ", " : "",
					     known_keys[i].name);
	}
	return zero_reader_error(reader, key->place, "there is no key %s here: the keys are %s",
				 zero_reader_quote(key->text).text, list);
}

static bool refuse_place(struct zero_reader *reader, const struct zero_key *key,
			 const struct known_key *known, unsigned where)
{
	if (where == IN_USER)
		return zero_reader_error(reader, key->place,
					 "only the site's file may have %s: a user's may have "
					 "version and defaults",
					 known->name);
	if (known->where & IN_OTHERS)
		return zero_reader_error(reader, key->place,
					 "%s is not allowed under gpus: it is decided before a "
					 "task has a GPU",
					 known->name);
	return zero_reader_error(reader, key->place,
				 "%s applies to the whole file and is not allowed in a section",
				 known->name);
}

/* Reads a key of the top level, or of a section. */
static bool read_key(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct zero_config_parser *parser = context;
	const struct known_key *known = known_keys;
	unsigned where = parser->kind == SECTION_GPUS ? IN_GPUS : IN_OTHERS;
	bool ok;

	if (!parser->kind)
		where = parser->config->kind == ZERO_CONFIG_USER ? IN_USER : IN_TOP;
	while (known < known_keys + KNOWN_KEYS && strcmp(key->text, known->name) != 0)
		known++;
	if (known == known_keys + KNOWN_KEYS)
		return refuse_key(reader, key, where);
	if (!(known->where & where))
		return refuse_place(reader, key, known, where);
	if (known->shape == SCALAR)
		return known->read(reader, key, parser);
	if (known->shape == LIST)
		return zero_reader_list(reader, key->text, known->read, parser);
	if (!known->kind)
		return zero_reader_map(reader, key->text, known->read, parser);
	parser->kind = known->kind;
	ok = zero_reader_map(reader, key->text, known->read, parser);
	parser->kind = SECTION_TOP;
	return ok;
}

static bool read_section(struct zero_reader *reader, const struct zero_key *key, void *context)
{
	struct zero_config_parser *parser = context;
	char clause[256];
	bool ok;

	if (!key->text[0])
		return zero_reader_error(reader, key->place, "the name of a section is empty");
	if (parser->kind == SECTION_NODES && !zero_hostlist_check(key->text, clause, sizeof clause))
		return zero_reader_error(reader, key->place, "%s", clause);
	if (parser->kind == SECTION_GPUS && strlen(key->text) > PATTERN_BYTES)
		return zero_reader_error(
			reader, key->place, "%s is %zu bytes long: at most %d are allowed",
			zero_reader_quote(key->text).text, strlen(key->text), PATTERN_BYTES);
	if (!add_section(parser->config, parser->kind, key->text))
		return zero_reader_no_memory(reader);
	parser->section = parser->config->count - 1;
	ok = zero_reader_map(reader, zero_reader_quote(key->text).text, read_key, parser);
	parser->section = 0;
	return ok;
}

static bool read_yaml(struct zero_config *config, const char *text, size_t length, char *why,
		      size_t size)
{
	struct zero_config_parser parser = {.config = config};
	struct zero_reader reader;
	bool ok = false;

	if (!zero_reader_init(&reader, config->path, text, length, why, size))
		return false;
	if (!add_section(config, SECTION_TOP, NULL))
		zero_reader_no_memory(&reader);
	else if (zero_reader_file(&reader, read_key, &parser))
		ok = parser.has_version
			     ? zero_config_check(config, why, size)
			     : zero_reader_error(&reader, (struct zero_place){1, 1},
						 "the key version is missing: add version: 1");
	zero_reader_clear(&reader);
	return ok;
}

struct zero_config *zero_config_read(const char *path, enum zero_config_kind kind, char *why,
				     size_t size)
{
	struct zero_config *config = calloc(1, sizeof *config);
	char *text = NULL;
	size_t length;
	bool ok = false;

	if (config)
		config->path = strdup(path);
	if (!config || !config->path) {
		snprintf(why, size, "%s: out of memory", path);
		goto out;
	}
	zero_clean(config->path);
	config->kind = kind;
	text = zero_config_file_text(path, config->path, kind == ZERO_CONFIG_SITE, &length, why,
				     size);
	ok = text && read_yaml(config, text, length, why, size);
out:
	free(text);
	if (ok)
		return config;
	zero_config_free(config);
	return NULL;
}

void zero_config_free(struct zero_config *config)
{
	if (!config)
		return;
	for (size_t s = 0; s < config->count; s++) {
		struct section *section = &config->sections[s];

		for (size_t i = 0; i < section->count; i++)
			clear_statement(&section->statements[i]);
		free(section->statements);
		free(section->enabled_origin);
		free(section->pattern);
	}
	free(config->sections);
	free(config->telemetry);
	free(config->path);
	free(config);
}

const char *zero_config_telemetry(const struct zero_config *config)
{
	return config ? config->telemetry : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the value of each option, and the environment variables, for one place. */
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostlist.h"
#include "site_config_private.h"

/* ---- values and their bounds ----------------------------------------------------------------- */

struct value_text {
	char text[72];
};

/* Formats a value for a message: sizes with K, M, G or T, texts in quotes. */
static struct value_text value_for_message(const struct zero_option *option,
					   const struct zero_value *value)
{
	struct value_text result = {""};

	if (value->kind == ZERO_VALUE_TEXT) {
		memcpy(result.text, zero_quote(value->text, strlen(value->text)).text,
		       sizeof result.text);
		return result;
	}
	if (value->kind != ZERO_VALUE_NUMBER || option->type == ZERO_TYPE_INTEGER ||
	    option->type == ZERO_TYPE_CHOICE || option->type == ZERO_TYPE_CHOICE_OR_INTEGER)
		zero_value_format(option, value, result.text, sizeof result.text);
	else
		zero_size_format(value->number, result.text, sizeof result.text);
	return result;
}

/* Converts a size or a percentage to bytes. */
static uint64_t bytes_of(const struct zero_value *value, uint64_t vram_total)
{
	if (value->kind == ZERO_VALUE_NUMBER)
		return value->number;
	return vram_total / 100 * value->number + vram_total % 100 * value->number / 100;
}

static bool is_amount(const struct zero_value *value)
{
	return value->kind == ZERO_VALUE_NUMBER || value->kind == ZERO_VALUE_PERCENT;
}

/*
 * Sets *order to -1, 0 or 1 as `a` is less than, equal to or greater than `b`. Returns false if the
 * two cannot be compared: one is auto, or they are a percentage and a size and vram_total is 0.
 */
static bool compare_values(const struct zero_value *a, const struct zero_value *b,
			   uint64_t vram_total, int *order)
{
	uint64_t left = a->number, right = b->number;

	if (!is_amount(a) || !is_amount(b))
		return false;
	if (a->kind != b->kind) {
		if (!vram_total)
			return false;
		left = bytes_of(a, vram_total);
		right = bytes_of(b, vram_total);
	}
	*order = (left > right) - (left < right);
	return true;
}

bool zero_statement_forbids(const struct statement *bound, enum zero_option_id id,
			    const struct zero_value *value, uint64_t vram_total)
{
	int order;

	if ((bound->kind != STATEMENT_MIN && bound->kind != STATEMENT_MAX) || bound->id != id)
		return false;
	if (!compare_values(value, &bound->value, vram_total, &order))
		return false;
	return bound->kind == STATEMENT_MAX ? order > 0 : order < 0;
}

/* ---- what applies ---------------------------------------------------------------------------- */

static bool applies(const struct section *section, const struct zero_where *where)
{
	switch (section->kind) {
	case SECTION_TOP:
		return true;
	case SECTION_GPUS:
		return where->gpu && fnmatch(section->pattern, where->gpu, 0) == 0;
	case SECTION_PARTITIONS:
		return where->partition && strcmp(section->pattern, where->partition) == 0;
	case SECTION_ACCOUNTS:
		return where->account && strcmp(section->pattern, where->account) == 0;
	case SECTION_QOS:
		return where->qos && strcmp(section->pattern, where->qos) == 0;
	case SECTION_NODES:
		return where->node && zero_hostlist_has(section->pattern, where->node);
	case SECTION_KINDS:
		break;
	}
	return false;
}

/* Returns whether the place leaves open if the section applies. */
static bool may_apply(const struct section *section, const struct zero_where *where)
{
	return (section->kind == SECTION_PARTITIONS && !where->partition) ||
	       (section->kind == SECTION_ACCOUNTS && !where->account) ||
	       (section->kind == SECTION_QOS && !where->qos) ||
	       (section->kind == SECTION_NODES && !where->node);
}

enum zero_enabled zero_config_enabled(const struct zero_config *config,
				      const struct zero_where *where, const char **origin)
{
	const struct section *last = NULL;

	for (size_t s = 0; config && s < config->count; s++) {
		const struct section *section = &config->sections[s];

		if (section->enabled_origin && applies(section, where) &&
		    (!last || section->kind >= last->kind))
			last = section;
	}
	if (origin)
		*origin = last ? last->enabled_origin : "default";
	return last ? last->enabled : ZERO_ENABLED_OPT_IN;
}

bool zero_config_may_be_enabled(const struct zero_config *config, const struct zero_where *where)
{
	for (size_t s = 0; config && s < config->count; s++) {
		const struct section *section = &config->sections[s];

		if (section->enabled_origin && section->enabled != ZERO_ENABLED_OFF &&
		    may_apply(section, where))
			return true;
	}
	return zero_config_enabled(config, where, NULL) != ZERO_ENABLED_OFF;
}

/* Visits all statements that apply, in ascending precedence. */
static void each_statement(const struct zero_config *site, const struct zero_where *where,
			   void (*each)(void *context, const struct statement *statement),
			   void *context)
{
	if (!site)
		return;
	for (int kind = SECTION_TOP; kind < SECTION_KINDS; kind++) {
		for (size_t s = 0; s < site->count; s++) {
			const struct section *section = &site->sections[s];

			if ((int)section->kind != kind || !applies(section, where))
				continue;
			for (size_t i = 0; i < section->count; i++)
				each(context, &section->statements[i]);
		}
	}
}

/* What the site's file has for one option; NULL where it has nothing. */
struct rule {
	const struct statement *default_value, *lock;
	/* the narrowest: [0] as a size or number, [1] as a percentage, which may not compare */
	const struct statement *min[2], *max[2];
};

struct rules {
	struct rule of[ZERO_OPTIONS];
};

static void add_rule(void *context, const struct statement *statement)
{
	struct rule *rule = &((struct rules *)context)->of[statement->id];
	bool percent = statement->value.kind == ZERO_VALUE_PERCENT;

	switch (statement->kind) {
	case STATEMENT_DEFAULT:
		rule->default_value = statement;
		break;
	case STATEMENT_LOCK:
		rule->lock = statement;
		break;
	case STATEMENT_MIN:
		if (!rule->min[percent] ||
		    statement->value.number > rule->min[percent]->value.number)
			rule->min[percent] = statement;
		break;
	case STATEMENT_MAX:
		if (!rule->max[percent] ||
		    statement->value.number < rule->max[percent]->value.number)
			rule->max[percent] = statement;
		break;
	case STATEMENT_VARIABLE:
		break;
	}
}

static struct rules find_rules(const struct zero_config *site, const struct zero_where *where)
{
	struct rules rules = {0};

	each_statement(site, where, add_rule, &rules);
	return rules;
}

/* Returns a bound that the value is beyond, or NULL. */
static const struct statement *violated_bound(const struct rule *rule, enum zero_option_id id,
					      const struct zero_value *value, uint64_t vram_total)
{
	const struct statement *const bounds[] = {rule->max[0], rule->max[1], rule->min[0],
						  rule->min[1]};

	for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
		if (bounds[i] && zero_statement_forbids(bounds[i], id, value, vram_total))
			return bounds[i];
	}
	return NULL;
}

/* Moves the value within the bounds. Returns the bound that it was moved to, or NULL. */
static const struct statement *clamp(const struct rule *rule, enum zero_option_id id,
				     struct zero_value *value, uint64_t vram_total)
{
	const struct statement *limit = NULL;

	/* two rounds suffice: one bound as a size and one as a percentage, which do not conflict */
	for (size_t i = 0; i < 2; i++) {
		const struct statement *bound = violated_bound(rule, id, value, vram_total);

		if (!bound)
			break;
		*value = bound->value;
		limit = bound;
	}
	return limit;
}

/* Returns false without memory; nothing has changed then. */
static bool set_value(struct zero_settings *settings, enum zero_option_id id,
		      const struct zero_value *value, const char *origin)
{
	struct zero_value copy = *value;
	char *origin_copy = strdup(origin);

	if (value->text)
		copy.text = strdup(value->text);
	if (!origin_copy || (value->text && !copy.text)) {
		free(origin_copy);
		if (value->text)
			free(copy.text);
		return false;
	}
	zero_value_clear(&settings->value[id]);
	free(settings->origin[id]);
	settings->value[id] = copy;
	settings->origin[id] = origin_copy;
	return true;
}

static bool set_from_statement(struct zero_settings *settings, const struct zero_config *config,
			       const struct statement *statement)
{
	char *origin;
	bool ok;

	if (asprintf(&origin, "%s:%zu", config->path, statement->line) < 0)
		return false;
	ok = set_value(settings, statement->id, &statement->value, origin);
	free(origin);
	return ok;
}

struct resolve_context {
	const struct zero_config *site;
	struct rules rules;
	uint64_t vram_total;
	char *why;
	size_t size;
};

static bool no_memory(const struct resolve_context *context)
{
	snprintf(context->why, context->size, "out of memory");
	return false;
}

/* Checks that the limits leave a value. */
static bool check_bounds(const struct resolve_context *context, enum zero_option_id id)
{
	const struct zero_option *option = &zero_option_table[id];
	const struct rule *rule = &context->rules.of[id];

	for (size_t i = 0; i < 4; i++) {
		const struct statement *min = rule->min[i / 2], *max = rule->max[i % 2];
		int order;

		if (!min || !max ||
		    !compare_values(&min->value, &max->value, context->vram_total, &order) ||
		    order <= 0)
			continue;
		snprintf(context->why, context->size,
			 "%s:%zu: %s must be at least %s here, but at most %s by line %zu: no "
			 "value satisfies both",
			 context->site->path, min->line, option->name,
			 value_for_message(option, &min->value).text,
			 value_for_message(option, &max->value).text, max->line);
		return false;
	}
	return true;
}

/* Checks a section together with the top level, which always applies. */
static bool check_section(const struct resolve_context *whole, const struct section *section)
{
	const struct section *top = whole->site->sections;
	struct resolve_context context = *whole;

	for (size_t i = 0; i < top->count; i++)
		add_rule(&context.rules, &top->statements[i]);
	for (size_t i = 0; i < section->count; i++)
		add_rule(&context.rules, &section->statements[i]);
	for (int id = 0; id < ZERO_OPTIONS; id++) {
		if (!check_bounds(&context, (enum zero_option_id)id))
			return false;
	}
	/* a default beyond a limit of another section is no error: it is clamped to that limit */
	for (size_t i = 0; i < section->count; i++) {
		const struct statement *own = &section->statements[i], *beyond;
		const struct zero_option *option = &zero_option_table[own->id];

		if (own->kind != STATEMENT_DEFAULT)
			continue;
		beyond = violated_bound(&context.rules.of[own->id], own->id, &own->value, 0);
		if (beyond)
			return zero_refuse(context.why, context.size,
					   "%s:%zu: %s: %s is %s than %s, the %s of line %zu",
					   context.site->path, own->line, option->name,
					   value_for_message(option, &own->value).text,
					   beyond->kind == STATEMENT_MAX ? "more" : "less",
					   value_for_message(option, &beyond->value).text,
					   beyond->kind == STATEMENT_MAX ? "max" : "min",
					   beyond->line);
	}
	return true;
}

bool zero_config_check(const struct zero_config *config, char *why, size_t size)
{
	const struct resolve_context context = {.site = config, .why = why, .size = size};

	for (size_t s = 0; s < config->count; s++) {
		if (!check_section(&context, &config->sections[s]))
			return false;
	}
	return true;
}

/* Clamps a setting to the limits, and appends the limit to its origin. Returns false without
   memory. */
static bool clamp_setting(const struct resolve_context *context, enum zero_option_id id,
			  struct zero_settings *settings)
{
	struct zero_value value = settings->value[id];
	const struct statement *limit =
		clamp(&context->rules.of[id], id, &value, context->vram_total);
	char *origin;
	bool ok;

	if (!limit)
		return true;
	if (asprintf(&origin, "%s, at %s %s by %s:%zu", settings->origin[id],
		     limit->kind == STATEMENT_MAX ? "most" : "least",
		     value_for_message(&zero_option_table[id], &limit->value).text,
		     context->site->path, limit->line) < 0)
		return false;
	ok = set_value(settings, id, &value, origin);
	free(origin);
	return ok;
}

static bool is_same(const struct zero_value *one, const struct zero_value *other)
{
	return one->kind == other->kind && one->number == other->number &&
	       (!one->text || strcmp(one->text, other->text) == 0);
}

/* Checks the user's value against locks and limits; `resolved` has the site's value. */
static bool check_user(const struct resolve_context *context, enum zero_option_id id,
		       const struct zero_settings *user, const struct zero_settings *resolved)
{
	const struct zero_option *option = &zero_option_table[id];
	const struct rule *rule = &context->rules.of[id];
	const struct statement *beyond =
		violated_bound(rule, id, &user->value[id], context->vram_total);
	struct value_text value = value_for_message(option, &user->value[id]);

	if (rule->lock && !is_same(&user->value[id], &resolved->value[id])) {
		snprintf(context->why, context->size,
			 "%s: %s is not allowed: %s is locked at %s (%s) by %s:%zu",
			 user->origin[id], value.text, option->name,
			 value_for_message(option, &resolved->value[id]).text, resolved->origin[id],
			 context->site->path, rule->lock->line);
		return false;
	}
	if (option->where & ZERO_OF_SITE && !is_same(&user->value[id], &resolved->value[id])) {
		snprintf(context->why, context->size,
			 "%s: %s is not allowed: %s is %s (%s), and only the site's zero.yaml "
			 "sets it",
			 user->origin[id], value.text, option->name,
			 value_for_message(option, &resolved->value[id]).text,
			 resolved->origin[id]);
		return false;
	}
	if (beyond) {
		snprintf(context->why, context->size,
			 "%s: %s is not allowed: %s must be at %s %s by %s:%zu", user->origin[id],
			 value.text, option->name, beyond->kind == STATEMENT_MAX ? "most" : "least",
			 value_for_message(option, &beyond->value).text, context->site->path,
			 beyond->line);
		return false;
	}
	return true;
}

/* `resolved` has the compiled default. `user` has the user's value, NULL if there is none. */
static bool resolve_option(const struct resolve_context *context, enum zero_option_id id,
			   const struct zero_settings *user, struct zero_settings *resolved)
{
	const struct rule *rule = &context->rules.of[id];

	if (!check_bounds(context, id))
		return false;
	resolved->ruled[id] =
		rule->lock || rule->min[0] || rule->min[1] || rule->max[0] || rule->max[1];
	if (rule->default_value &&
	    !set_from_statement(resolved, context->site, rule->default_value))
		return no_memory(context);
	if (!clamp_setting(context, id, resolved))
		return no_memory(context);
	if (!user)
		return true;
	if (!check_user(context, id, user, resolved))
		return false;
	return set_value(resolved, id, &user->value[id], user->origin[id]) || no_memory(context);
}

bool zero_config_add_file(struct zero_settings *settings, char *why, size_t size)
{
	const char *path = settings->value[ZERO_OPT_CONFIG].text;
	struct zero_config *file;
	char folder[PATH_MAX];
	bool ok = true;

	if (!path || !*path)
		return true;
	file = zero_config_read(path, ZERO_CONFIG_USER, why, size);
	if (!file) {
		if (*path != '/' && getcwd(folder, sizeof folder))
			zero_append(why, size, strlen(why), " (in %s)", folder);
		return false;
	}
	for (size_t i = 0; ok && i < file->sections->count; i++) {
		const struct statement *statement = &file->sections->statements[i];

		if (!settings->origin[statement->id])
			ok = set_from_statement(settings, file, statement);
	}
	zero_config_free(file);
	return ok || zero_refuse(why, size, "out of memory for %s", path);
}

bool zero_config_resolve(const struct zero_config *site, const struct zero_settings *user,
			 const struct zero_where *where, struct zero_settings *resolved, char *why,
			 size_t size)
{
	const struct resolve_context context = {
		.site = site,
		.rules = find_rules(site, where),
		.vram_total = where->vram_total,
		.why = why,
		.size = size,
	};

	if (!zero_settings_init(resolved))
		return no_memory(&context);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (resolve_option(&context, (enum zero_option_id)i, user->origin[i] ? user : NULL,
				   resolved))
			continue;
		zero_settings_clear(resolved);
		return false;
	}
	return true;
}

bool zero_config_clamp(const struct zero_config *site, const struct zero_where *where,
		       enum zero_option_id id, uint64_t number, struct zero_settings *resolved)
{
	const struct resolve_context context = {
		.site = site,
		.rules = find_rules(site, where),
		.vram_total = where->vram_total,
	};

	zero_value_clear(&resolved->value[id]);
	resolved->value[id] = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = number};
	return clamp_setting(&context, id, resolved);
}

struct variables {
	const struct statement *list[ZERO_CONFIG_VARIABLES];
	size_t count;
};

static void add_variable(void *context, const struct statement *statement)
{
	struct variables *variables = context;

	if (statement->kind == STATEMENT_VARIABLE && variables->count < ZERO_CONFIG_VARIABLES)
		variables->list[variables->count++] = statement;
}

static bool is_last(const struct variables *variables, size_t at)
{
	for (size_t i = at + 1; i < variables->count; i++) {
		if (strcmp(variables->list[i]->name, variables->list[at]->name) == 0)
			return false;
	}
	return true;
}

void zero_config_texts(const struct zero_config *site, enum zero_option_id id,
		       void (*each)(void *context, const char *text), void *context)
{
	for (size_t i = 0; i < site->count; i++) {
		const struct section *section = &site->sections[i];

		for (size_t j = 0; j < section->count; j++) {
			const struct statement *statement = &section->statements[j];

			if (statement->kind == STATEMENT_DEFAULT && statement->id == id)
				each(context, statement->value.text);
		}
	}
}

bool zero_config_env(const struct zero_config *site, const struct zero_where *where,
		     zero_config_variable each, void *context)
{
	struct variables variables = {.count = 0};

	each_statement(site, where, add_variable, &variables);
	for (size_t i = 0; i < variables.count; i++) {
		const struct statement *variable = variables.list[i];

		if (is_last(&variables, i) && !each(context, variable->name, variable->value.text))
			return false;
	}
	return true;
}

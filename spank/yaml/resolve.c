/* SPDX-License-Identifier: Apache-2.0 */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "site_config_private.h"
#include "hostlist.h"

struct shown zero_value_show(const struct zero_option *option, const struct zero_value *value)
{
	struct shown shown = {""};

	if (value->kind == ZERO_VALUE_TEXT) {
		memcpy(shown.text, zero_quote(value->text, strlen(value->text)).text,
		       sizeof shown.text);
		return shown;
	}
	if (value->kind != ZERO_VALUE_NUMBER || option->type == ZERO_TYPE_INTEGER ||
	    option->type == ZERO_TYPE_CHOICE)
		zero_value_format(option, value, shown.text, sizeof shown.text);
	else
		zero_size_format(value->number, shown.text, sizeof shown.text);
	return shown;
}

/* Bytes, where `vram_total` is known. */
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

bool zero_value_compare(const struct zero_value *a, const struct zero_value *b, uint64_t vram_total,
			int *order)
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
	if (!zero_value_compare(value, &bound->value, vram_total, &order))
		return false;
	return bound->kind == STATEMENT_MAX ? order > 0 : order < 0;
}

static bool applies(const struct section *section, const struct zero_where *where)
{
	switch (section->kind) {
	case SECTION_TOP:
		return true;
	case SECTION_GPUS:
		return where->gpu && fnmatch(section->pattern, where->gpu, 0) == 0;
	case SECTION_PARTITIONS:
		return where->partition && strcmp(section->pattern, where->partition) == 0;
	case SECTION_NODES:
		return where->node && zero_hostlist_has(section->pattern, where->node);
	case SECTION_KINDS:
		break;
	}
	return false;
}

/* Gives all statements that apply, the most general first. */
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

/* What the site says of one option; NULL where it says nothing. */
struct rule {
	const struct statement *default_value, *lock;
	/* the narrowest: a size or number, and a percentage, as those cannot always be compared */
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

/* The bound that the value is beyond; NULL if none. */
static const struct statement *bound_beyond(const struct rule *rule, enum zero_option_id id,
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

/* Holds the value to the bounds; returns the one that counted, NULL if none. */
static const struct statement *hold(const struct rule *rule, enum zero_option_id id,
				    struct zero_value *value, uint64_t vram_total)
{
	const struct statement *held = NULL;

	/* the bounds do not contradict each other, so that no more than these can be needed */
	for (size_t i = 0; i < 2; i++) {
		const struct statement *bound = bound_beyond(rule, id, value, vram_total);

		if (!bound)
			break;
		*value = bound->value;
		held = bound;
	}
	return held;
}

/* False: no memory, and nothing has changed. */
static bool put(struct zero_settings *settings, enum zero_option_id id,
		const struct zero_value *value, const char *origin)
{
	struct zero_value copy = *value;
	char *said_by = strdup(origin);

	if (value->text)
		copy.text = strdup(value->text);
	if (!said_by || (value->text && !copy.text)) {
		free(said_by);
		if (value->text)
			free(copy.text);
		return false;
	}
	zero_value_clear(&settings->value[id]);
	free(settings->origin[id]);
	settings->value[id] = copy;
	settings->origin[id] = said_by;
	return true;
}

/* The same for what a file says. */
static bool put_statement(struct zero_settings *settings, const struct zero_config *config,
			  const struct statement *statement)
{
	char *origin;
	bool ok;

	if (asprintf(&origin, "%s:%zu", config->path, statement->line) < 0)
		return false;
	ok = put(settings, statement->id, &statement->value, origin);
	free(origin);
	return ok;
}

/* What all options are resolved with. */
struct resolving {
	const struct zero_config *site;
	struct rules rules;
	uint64_t vram_total;
	char *why;
	size_t size;
};

static bool no_memory(const struct resolving *resolving)
{
	snprintf(resolving->why, resolving->size, "no memory for the options");
	return false;
}

/* Whether any value can satisfy all limits. */
static bool check_bounds(const struct resolving *resolving, enum zero_option_id id)
{
	const struct zero_option *option = &zero_option_table[id];
	const struct rule *rule = &resolving->rules.of[id];

	for (size_t i = 0; i < 4; i++) {
		const struct statement *min = rule->min[i / 2], *max = rule->max[i % 2];
		int order;

		if (!min || !max ||
		    !zero_value_compare(&min->value, &max->value, resolving->vram_total, &order) ||
		    order <= 0)
			continue;
		snprintf(resolving->why, resolving->size,
			 "%s:%zu: %s is at least %s here, but at most %s by %s:%zu: no value is "
			 "both",
			 resolving->site->path, min->line, option->name,
			 zero_value_show(option, &min->value).text,
			 zero_value_show(option, &max->value).text, resolving->site->path,
			 max->line);
		return false;
	}
	return true;
}

/* Holds a setting to the limits, and says so in its origin. False: no memory. */
static bool hold_setting(const struct resolving *resolving, enum zero_option_id id,
			 struct zero_settings *settings)
{
	struct zero_value value = settings->value[id];
	const struct statement *held =
		hold(&resolving->rules.of[id], id, &value, resolving->vram_total);
	char *origin, text[32];
	bool ok;

	if (!held)
		return true;
	zero_value_format(&zero_option_table[id], &held->value, text, sizeof text);
	if (asprintf(&origin, "%s, at %s %s by %s:%zu", settings->origin[id],
		     held->kind == STATEMENT_MAX ? "most" : "least", text, resolving->site->path,
		     held->line) < 0)
		return false;
	ok = put(settings, id, &value, origin);
	free(origin);
	return ok;
}

/* Whether a user may say that; `resolved` has what holds otherwise. */
static bool check_user(const struct resolving *resolving, enum zero_option_id id,
		       const struct zero_settings *user, const struct zero_settings *resolved)
{
	const struct zero_option *option = &zero_option_table[id];
	const struct rule *rule = &resolving->rules.of[id];
	const struct statement *beyond =
		bound_beyond(rule, id, &user->value[id], resolving->vram_total);
	struct shown shown = zero_value_show(option, &user->value[id]);

	if (rule->lock) {
		snprintf(resolving->why, resolving->size,
			 "%s: %s is not allowed: %s is locked at %s (%s) by %s:%zu",
			 user->origin[id], shown.text, option->name,
			 zero_value_show(option, &resolved->value[id]).text, resolved->origin[id],
			 resolving->site->path, rule->lock->line);
		return false;
	}
	if (beyond) {
		snprintf(resolving->why, resolving->size,
			 "%s: %s is not allowed: %s is at %s %s by %s:%zu", user->origin[id],
			 shown.text, option->name, beyond->kind == STATEMENT_MAX ? "most" : "least",
			 zero_value_show(option, &beyond->value).text, resolving->site->path,
			 beyond->line);
		return false;
	}
	return true;
}

/* `resolved` has the compiled default; `user` what the user says last of it, or NULL. */
static bool resolve_option(const struct resolving *resolving, enum zero_option_id id,
			   const struct zero_settings *user, struct zero_settings *resolved)
{
	const struct rule *rule = &resolving->rules.of[id];

	if (!check_bounds(resolving, id))
		return false;
	if (rule->default_value && !put_statement(resolved, resolving->site, rule->default_value))
		return no_memory(resolving);
	if (!hold_setting(resolving, id, resolved))
		return no_memory(resolving);
	if (!user)
		return true;
	if (!check_user(resolving, id, user, resolved))
		return false;
	return put(resolved, id, &user->value[id], user->origin[id]) || no_memory(resolving);
}

/* What a user's file says; the origin of what it does not say is NULL. False: no memory. */
static bool settings_of_file(const struct zero_config *user, struct zero_settings *settings)
{
	const struct section *section = user ? user->sections : NULL;

	*settings = (struct zero_settings){0};
	for (size_t i = 0; section && i < section->count; i++) {
		if (section->statements[i].kind == STATEMENT_DEFAULT &&
		    !put_statement(settings, user, &section->statements[i])) {
			zero_settings_clear(settings);
			return false;
		}
	}
	return true;
}

bool zero_config_resolve(const struct zero_config *site, const struct zero_config *user,
			 const struct zero_settings *said, const struct zero_where *where,
			 struct zero_settings *resolved, char *why, size_t size)
{
	const struct resolving resolving = {
		.site = site,
		.rules = find_rules(site, where),
		.vram_total = where->vram_total,
		.why = why,
		.size = size,
	};
	struct zero_settings file;
	bool ok = true;

	if (!settings_of_file(user, &file))
		return no_memory(&resolving);
	if (!zero_settings_init(resolved)) {
		zero_settings_clear(&file);
		return no_memory(&resolving);
	}
	for (int i = 0; ok && i < ZERO_OPTIONS; i++) {
		const struct zero_settings *last = file.origin[i] ? &file : NULL;

		if (said->origin[i])
			last = said;
		ok = resolve_option(&resolving, (enum zero_option_id)i, last, resolved);
	}
	zero_settings_clear(&file);
	if (!ok)
		zero_settings_clear(resolved);
	return ok;
}

bool zero_config_hold(const struct zero_config *site, const struct zero_where *where,
		      enum zero_option_id id, uint64_t number, struct zero_settings *resolved)
{
	const struct resolving resolving = {
		.site = site,
		.rules = find_rules(site, where),
		.vram_total = where->vram_total,
	};

	zero_value_clear(&resolved->value[id]);
	resolved->value[id] = (struct zero_value){.kind = ZERO_VALUE_NUMBER, .number = number};
	return hold_setting(&resolving, id, resolved);
}

enum zero_enabled zero_config_enabled(const struct zero_config *config, const char **origin)
{
	bool said = config && config->enabled_origin;

	if (origin)
		*origin = said ? config->enabled_origin : "default";
	return said ? config->enabled : ZERO_ENABLED_OPT_IN;
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

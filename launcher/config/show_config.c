/* SPDX-License-Identifier: Apache-2.0 */
/* --check-config and --show-config: whether a zero.yaml is valid, and what it resolves to. */
#include "launcher/config/show_config.h"

#include <stdlib.h>
#include <string.h>

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif
#include "launcher/text.h"
#include "spank/yaml/site_config.h"

#ifdef HAVE_YAML

static const char *enabled_name(enum zero_enabled enabled)
{
	switch (enabled) {
	case ZERO_ENABLED_OFF:
		return "off";
	case ZERO_ENABLED_OPT_IN:
		return "opt-in";
	case ZERO_ENABLED_ON:
		return "on";
	}
	return "";
}

/* NULL after an error. */
static struct zero_config *read_site(const char *path)
{
	char why[1024];
	struct zero_config *site = zero_config_read(path, ZERO_CONFIG_SITE, why, sizeof why);

	if (!site)
		print_error("%s", why);
	return site;
}

static bool resolve(const struct zero_config *site, struct zero_settings *user_settings,
		    const struct zero_where *where, struct zero_settings *resolved)
{
	char why[1024];

	if (zero_config_add_file(user_settings, why, sizeof why) &&
	    zero_config_resolve(site, user_settings, where, resolved, why, sizeof why))
		return true;
	print_error("%s", why);
	return false;
}

/* The options of a job on a node that no section names. */
static void print_summary(FILE *out, enum zero_enabled enabled,
			  const struct zero_settings *resolved)
{
	size_t count = 0;

	fprintf(out, "zero is %s; ", enabled_name(enabled));
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (strcmp(resolved->origin[i], "default") != 0)
			fprintf(out, "%s%s",
				count++ ? ", " : "for all nodes: ", zero_option_table[i].name);
	}
	fputs(count ? "\n" : "for all nodes: the compiled defaults\n", out);
}

int config_check(FILE *out, const char *path)
{
	struct zero_settings user_settings = {0}, resolved;
	struct zero_where where = {0};
	struct zero_config *site = read_site(path);
	int status = EXIT_FAILURE;

	if (!site)
		return EXIT_FAILURE;
	if (resolve(site, &user_settings, &where, &resolved)) {
		fprintf(out, "%s: valid\n", path);
		print_summary(out, zero_config_enabled(site, &where, NULL), &resolved);
		zero_settings_clear(&resolved);
		status = EXIT_SUCCESS;
	}
	zero_config_free(site);
	return status;
}

struct variables {
	FILE *out;
	size_t count;
};

static bool print_variable(void *context, const char *name, const char *value)
{
	struct variables *variables = context;

	if (!variables->count++)
		fputs("variables for tasks:\n", variables->out);
	fprintf(variables->out, "%s=", name);
	print_in_line(variables->out, value, 0);
	fputc('\n', variables->out);
	return true;
}

static void print_resolved(FILE *out, const struct zero_config *site,
			   const struct zero_where *where, const struct zero_settings *resolved)
{
	const char *origin = NULL;
	enum zero_enabled enabled = zero_config_enabled(site, where, &origin);
	struct variables variables = {.out = out};

	fputs("option            value         from\n", out);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		if (zero_option_table[i].where != ZERO_IN_RESOLVED)
			print_setting(out, resolved, i);
	}
	fprintf(out, "\nenabled: %s, from %s\n", enabled_name(enabled),
		origin ? origin : "default");
	zero_config_env(site, where, print_variable, &variables);
}

int config_show(FILE *out, const struct config_query *query, struct zero_settings *user_settings)
{
	struct zero_where where = {
		.node = query->node,
		.partition = query->partition,
		.account = query->account,
		.qos = query->qos,
		.gpu = query->gpu,
	};
	struct zero_config *site = read_site(query->show);
	struct zero_settings resolved;
	int status = EXIT_FAILURE;

	if (!site)
		return EXIT_FAILURE;
	if (resolve(site, user_settings, &where, &resolved)) {
		print_resolved(out, site, &where, &resolved);
		zero_settings_clear(&resolved);
		status = EXIT_SUCCESS;
	}
	zero_config_free(site);
	return status;
}

#else

static int refuse_without_yaml(const char *flag)
{
	print_error("%s: this zerorun was built without libyaml", flag);
	return EXIT_FAILURE;
}

int config_check(FILE *out, const char *path)
{
	(void)out;
	(void)path;
	return refuse_without_yaml("--check-config");
}

int config_show(FILE *out, const struct config_query *query, struct zero_settings *user_settings)
{
	(void)out;
	(void)query;
	(void)user_settings;
	return refuse_without_yaml("--show-config");
}

#endif

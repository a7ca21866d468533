/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sbatch, salloc and srun: what the user said is checked, so that they hear of a mistake at once,
 * and what srun must know is put into its environment. The node does the rest, and checks again.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "yaml/site_config.h"
#include "plugin.h"
#include "srun_env.h"

/* An error return would be ignored where the plugin is optional. Nothing was submitted yet. */
__attribute__((noreturn)) static void refuse(const char *why)
{
	char plain[PATH_MAX + 512];

	snprintf(plain, sizeof plain, "%s", why);
	zero_clean(plain);
	slurm_error(PLUGIN_NAME ": %s", plain);
	exit(EXIT_FAILURE);
}

static bool own_variable(void *context, const char *name, char *text, size_t size)
{
	const char *value = getenv(name);

	(void)context;
	if (!value)
		return false;
	snprintf(text, size, "%s", value);
	return true;
}

/* The partition, once it is known: srun's in a job. Of a new job's there is no trace. */
static const char *known_partition(void)
{
	bool in_job = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");

	return in_job ? getenv("SLURM_JOB_PARTITION") : NULL;
}

/* The user's own file, opened as the user, who runs this command. */
static struct zero_config *read_user_file(const struct zero_settings *said)
{
	const char *path = said->value[ZERO_OPT_CONFIG].text;
	struct zero_config *user;
	char why[PATH_MAX + 512];

	if (!path || !*path)
		return NULL;
	user = zero_config_read(path, ZERO_CONFIG_USER, why, sizeof why);
	if (!user)
		refuse(why);
	return user;
}

static void check(const struct zero_config *site)
{
	struct zero_where where = {.partition = known_partition()};
	struct zero_settings said, resolved;
	struct zero_config *user;
	char why[PATH_MAX + 512];

	if (!said_settings(own_variable, NULL, &said, why, sizeof why))
		refuse(why);
	user = read_user_file(&said);
	if (!zero_config_resolve(site, user, &said, &where, &resolved, why, sizeof why))
		refuse(why);
	zero_settings_clear(&resolved);
	zero_settings_clear(&said);
	zero_config_free(user);
}

/* What is to be, once the site's file is read. */
static enum wireup_zero decide(const struct zero_config *site, enum said_switch wanted)
{
	const char *origin;
	enum zero_enabled enabled = zero_config_enabled(site, &origin);
	char why[PATH_MAX + 64];

	if (enabled == ZERO_ENABLED_OFF && wanted == SAID_ON) {
		snprintf(why, sizeof why, "zero is switched off on this cluster (%s)", origin);
		refuse(why);
	}
	if (wanted == SAID_ON)
		return WIREUP_ON;
	if (enabled != ZERO_ENABLED_OFF && wireup_job_is_on())
		return WIREUP_ON;
	return enabled == ZERO_ENABLED_ON ? WIREUP_SITE : WIREUP_NONE;
}

int submit_post_opt(const struct plugin_arguments *arguments)
{
	enum wireup_zero zero = WIREUP_NONE;
	enum said_switch wanted;
	struct zero_config *site;
	char why[PATH_MAX + 512];

	if (!said_switch(own_variable, NULL, &wanted, why, sizeof why))
		refuse(why);
	if (wanted == SAID_OFF) {
		wireup(WIREUP_OFF);
		return ESPANK_SUCCESS;
	}
	if (arguments->why[0] && wanted == SAID_ON)
		refuse(arguments->why);
	site = zero_config_read(arguments->config, ZERO_CONFIG_SITE, why, sizeof why);
	if (!site && wanted == SAID_ON)
		refuse(why);
	if (site)
		zero = decide(site, wanted);
	else
		/* a broken file is no reason to stop other people's jobs */
		slurm_debug(PLUGIN_NAME ": %s", why);
	if (zero != WIREUP_NONE)
		check(site);
	zero_config_free(site);
	wireup(zero);
	return ESPANK_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in sbatch, salloc and srun. Checks the user's options, so that a mistake is reported before
 * anything is submitted, and sets the environment that srun reads. The node checks all of it again.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "plugin.h"
#include "srun_env.h"
#include "user_request.h"

/* Ends the command. Slurm would ignore an error that the callback of an optional plugin returns. */
__attribute__((noreturn)) static void refuse(const char *why)
{
	char line[PATH_MAX + 512];

	snprintf(line, sizeof line, "%s", why);
	zero_clean(line);
	slurm_error(PLUGIN_NAME ": %s", line);
	exit(EXIT_FAILURE);
}

static bool read_variable(void *context, const char *name, char *text, size_t size)
{
	const char *value = getenv(name);

	(void)context;
	if (!value)
		return false;
	snprintf(text, size, "%s", value);
	return true;
}

/* Returns what is known of the place: only an srun within a job knows the job's partition. */
static struct zero_where known_place(void)
{
	bool in_job = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");

	return (struct zero_where){
		.partition = in_job ? getenv("SLURM_JOB_PARTITION") : NULL,
		.account = in_job ? getenv("SLURM_JOB_ACCOUNT") : NULL,
		.qos = in_job ? getenv("SLURM_JOB_QOS") : NULL,
	};
}

static void check_options(const struct zero_config *site)
{
	struct zero_where where = known_place();
	struct user_request request;
	struct zero_settings resolved;
	char why[PATH_MAX + 512];

	if (!user_request_read(read_variable, NULL, &request, why, sizeof why) ||
	    !user_request_resolve(&request, site, &where, &resolved, why, sizeof why))
		refuse(why);
	zero_settings_clear(&resolved);
	user_request_clear(&request);
}

static enum zero_state decide(const struct zero_config *site, enum user_choice choice)
{
	struct zero_where where = known_place();
	const char *origin;
	enum zero_enabled enabled = zero_config_enabled(site, &where, &origin);
	/* where it is off in some places only, the node refuses */
	bool allowed = zero_config_may_be_enabled(site, &where);
	char why[PATH_MAX + 64];

	if (!allowed && choice == ZERO_REQUESTED) {
		snprintf(why, sizeof why, "zero is switched off on this cluster (%s)", origin);
		refuse(why);
	}
	if (choice == ZERO_REQUESTED)
		return ZERO_ON_BY_USER;
	if (allowed && srun_env_job_has_zero())
		return ZERO_ON_BY_USER;
	return enabled == ZERO_ENABLED_ON ? ZERO_ON_BY_SITE : ZERO_NOT_ON;
}

int submit_init_post_opt(const struct plugin_arguments *arguments)
{
	enum zero_state state = ZERO_NOT_ON;
	enum user_choice choice;
	struct zero_config *site;
	char why[PATH_MAX + 512];

	if (!user_choice(read_variable, NULL, &choice, why, sizeof why))
		refuse(why);
	if (choice == ZERO_DECLINED) {
		srun_env_set(ZERO_OFF_BY_USER);
		return ESPANK_SUCCESS;
	}
	if (arguments->why[0] && choice == ZERO_REQUESTED)
		refuse(arguments->why);
	site = zero_config_read(arguments->config, ZERO_CONFIG_SITE, why, sizeof why);
	if (!site && choice == ZERO_REQUESTED)
		refuse(why);
	if (site)
		state = decide(site, choice);
	else
		/* a broken file must not stop jobs without zero */
		slurm_debug(PLUGIN_NAME ": %s", why);
	if (state != ZERO_NOT_ON)
		check_options(site);
	zero_config_free(site);
	srun_env_set(state);
	return ESPANK_SUCCESS;
}

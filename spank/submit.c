/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in sbatch, salloc and srun. Checks the user's options, so that a mistake is reported before
 * anything is submitted, and sets the environment that srun reads. The node checks all of it again.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static bool is_srun(void)
{
	return spank_context() == S_CTX_LOCAL;
}

/* Returns what is known of the place: only an srun within a job knows the job's partition. */
static struct zero_where known_place(void)
{
	bool in_job = is_srun() && getenv("SLURM_JOB_ID");

	return (struct zero_where){
		.partition = in_job ? getenv("SLURM_JOB_PARTITION") : NULL,
		.account = in_job ? getenv("SLURM_JOB_ACCOUNT") : NULL,
		.qos = in_job ? getenv("SLURM_JOB_QOS") : NULL,
	};
}

/* Reads, checks and passes on what the user asked for. */
static void request_options(const struct zero_config *site)
{
	struct zero_where where = known_place();
	struct user_request request;
	struct zero_settings resolved;
	char why[PATH_MAX + 512];

	if (!user_request_make(&request, why, sizeof why) ||
	    !user_request_resolve(&request, site, &where, &resolved, why, sizeof why))
		refuse(why);
	zero_settings_clear(&resolved);
	if (!user_request_pass_on(&request, is_srun()))
		refuse("out of memory for the options");
	user_request_clear(&request);
}

static enum zero_state decide(const struct zero_config *site, enum user_choice choice)
{
	struct zero_where where = known_place();
	const char *origin;
	enum zero_enabled enabled = zero_config_enabled(site, &where, &origin);
	char why[PATH_MAX + 64];

	if (choice != ZERO_REQUESTED)
		return enabled == ZERO_ENABLED_ON ? ZERO_ON_BY_SITE : ZERO_NOT_ON;
	/* where it is off in some places only, the node refuses */
	if (zero_config_may_be_enabled(site, &where))
		return ZERO_ON_BY_USER;
	snprintf(why, sizeof why, "zero is switched off (%s)", origin);
	refuse(why);
}

/* Returns whether a file that cannot be used may say `enabled: on`, in a section too. */
static bool may_be_on(const char *path)
{
	FILE *file = fopen(path, "re");
	char line[256], value[8];
	bool on = !file && errno != ENOENT;

	while (file && !on && fgets(line, sizeof line, file))
		on = sscanf(line, " enabled : %7[a-z-]", value) == 1 && strcmp(value, "on") == 0;
	if (file)
		fclose(file);
	return on;
}

/* A broken file must not stop jobs without zero. Those that the site wants it for are told. */
static void report_broken(const char *path, char *why)
{
	if (!may_be_on(path)) {
		slurm_debug(PLUGIN_NAME ": %s", why);
		return;
	}
	zero_clean(why);
	slurm_error(PLUGIN_NAME ": zero is not on, since the site's file cannot be used: %s", why);
}

static enum zero_state find_state(const struct plugin_arguments *arguments, enum user_choice choice)
{
	enum zero_state state = ZERO_NOT_ON;
	struct zero_config *site;
	char why[PATH_MAX + 512];

	if (choice == ZERO_DECLINED)
		return ZERO_OFF_BY_USER;
	if (arguments->why[0] && choice == ZERO_REQUESTED)
		refuse(arguments->why);
	site = zero_config_read(arguments->config, ZERO_CONFIG_SITE, why, sizeof why);
	if (!site && choice == ZERO_REQUESTED)
		refuse(why);
	if (site)
		state = decide(site, choice);
	else
		report_broken(arguments->config, why);
	if (state != ZERO_NOT_ON)
		request_options(site);
	zero_config_free(site);
	return state;
}

int submit_init_post_opt(const struct plugin_arguments *arguments)
{
	enum zero_state state;
	enum user_choice choice;
	char why[PATH_MAX + 512];

	if (!user_choice(&choice, why, sizeof why))
		refuse(why);
	if (choice == ZERO_UNSPECIFIED)
		choice = srun_env_job_choice();
	state = find_state(arguments, choice);
	if (state == ZERO_NOT_ON || state == ZERO_OFF_BY_USER)
		user_request_forget(is_srun());
	if (!is_srun())
		user_variable_is_seen("ZERO_ENABLED", true);
	srun_env_set(state);
	return ESPANK_SUCCESS;
}

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

/* Ends the command. Slurm would ignore an error that the callback of an optional plugin returns. */
__attribute__((noreturn)) static void refuse(const char *why)
{
	char line[PATH_MAX + 512];

	snprintf(line, sizeof line, "%s", why);
	zero_clean(line);
	slurm_error(PLUGIN_NAME ": %s", line);
	exit(EXIT_FAILURE);
}

/* Reads, checks and passes on what the user asked for, in the variable `name`. */
static void request_options(const struct zero_config *site, const struct zero_where *where,
			    const char *name)
{
	struct zero_settings request, resolved;
	char why[PATH_MAX + 512];

	if (!user_request_make(&request, why, sizeof why) ||
	    !zero_config_resolve(site, &request, where, &resolved, why, sizeof why))
		refuse(why);
	zero_settings_clear(&resolved);
	if (!user_request_pass_on(&request, name))
		refuse("out of memory for the options");
	zero_settings_clear(&request);
}

static enum zero_state decide(const struct zero_config *site, const struct zero_where *where,
			      enum user_choice choice)
{
	const char *origin;
	enum zero_enabled enabled = zero_config_enabled(site, where, &origin);
	char why[PATH_MAX + 64];

	if (choice != ZERO_REQUESTED)
		return enabled == ZERO_ENABLED_ON ? ZERO_ON_BY_SITE : ZERO_NOT_ON;
	/* where it is off in some places only, the node refuses */
	if (zero_config_may_be_enabled(site, where))
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

static enum zero_state find_state(const struct plugin_arguments *arguments,
				  const struct zero_where *where, const char *name)
{
	enum zero_state state = ZERO_NOT_ON;
	enum user_choice choice;
	struct zero_config *site;
	char why[PATH_MAX + 512];

	if (!user_choice(&choice, why, sizeof why))
		refuse(why);
	if (choice == ZERO_UNSPECIFIED)
		choice = srun_env_job_choice();
	if (choice == ZERO_DECLINED)
		return ZERO_OFF_BY_USER;
	if (arguments->why[0] && choice == ZERO_REQUESTED)
		refuse(arguments->why);
	site = zero_config_read(arguments->config, ZERO_CONFIG_SITE, why, sizeof why);
	if (!site && choice == ZERO_REQUESTED)
		refuse(why);
	if (site)
		state = decide(site, where, choice);
	else
		report_broken(arguments->config, why);
	if (state != ZERO_NOT_ON)
		request_options(site, where, name);
	zero_config_free(site);
	return state;
}

/*
 * Slurm gives these variables to prolog and epilog of the job as SPANK_ZERO and SPANK_ZERO_OPTIONS,
 * and to job_submit plugins. An srun in a job inherits them from sbatch or salloc.
 */
static void tell_prolog(spank_t spank)
{
	const char *decision = getenv(DECISION), *options = user_request_text();

	if (!decision || zero_begins_with(decision, DECISION_OFF)) {
		spank_job_control_unsetenv(spank, "ZERO");
		spank_job_control_unsetenv(spank, "ZERO_OPTIONS");
		return;
	}
	spank_job_control_setenv(spank, "ZERO",
				 zero_begins_with(decision, DECISION_SITE) ? "site" : "user", 1);
	spank_job_control_setenv(spank, "ZERO_OPTIONS", options ? options : "", 1);
}

static bool is_on(enum zero_state state)
{
	return state == ZERO_ON_BY_USER || state == ZERO_ON_BY_SITE;
}

void job_init_post_opt(spank_t spank, const struct plugin_arguments *arguments)
{
	struct zero_where nowhere = {0};
	enum zero_state state;

	unsetenv(USER_REQUEST_OF_STEP);
	state = find_state(arguments, &nowhere, USER_REQUEST_OF_JOB);
	if (!is_on(state))
		unsetenv(USER_REQUEST_OF_JOB);
	user_variables_are_seen(is_on(state));
	job_env_set(state);
	tell_prolog(spank);
}

/* Only an srun within a job knows the job's partition. */
void srun_init_post_opt(spank_t spank, const struct plugin_arguments *arguments)
{
	bool in_job = getenv("SLURM_JOB_ID");
	struct zero_where where = {
		.partition = in_job ? getenv("SLURM_JOB_PARTITION") : NULL,
		.account = in_job ? getenv("SLURM_JOB_ACCOUNT") : NULL,
		.qos = in_job ? getenv("SLURM_JOB_QOS") : NULL,
	};
	enum zero_state state = find_state(arguments, &where, USER_REQUEST_OF_STEP);

	/* what the job was told stays */
	if (!is_on(state))
		unsetenv(USER_REQUEST_OF_STEP);
	srun_env_set(state);
	tell_prolog(spank);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SPANK plugin. Slurm finds the callbacks at the end of this file by name, and each calls the
 * function of its context:
 *
 *	sbatch, salloc, srun     submit.c, srun_env.c, reexec.c
 *	slurmstepd               step_node.c
 *	slurmstepd, each task    task.c, task_preload.c, task_budget.c
 *	the last two             telemetry.c, nested_step.c, step.c
 *	the end of a job         epilog.c
 *	all of them              user_request.c, user_options.c
 *
 * A file calls only files to its right and below. The rooms yaml/, which reads the site's file and
 * the user's, and gpu/, which reads how much memory there is, do not depend on Slurm. The version
 * script hides all other functions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"
#include "srun_env.h"
#include "user_request.h"

SPANK_PLUGIN(zero, 1)

static struct plugin_arguments arguments = {.config = ZERO_SITE_CONFIG, .nvml_seconds = 10};

/* Returns what follows "name=" if it is an absolute path. A relative one would be looked up in the
   working folder, which is the user's. */
static const char *absolute_path(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return strncmp(argument, name, length) == 0 && argument[length] == '/' ? argument + length
									       : NULL;
}

/* Reads "nvml_timeout=SECONDS": a whole number from 1 to 600. */
static bool read_timeout(const char *argument, double *seconds)
{
	static const char name[] = "nvml_timeout=";
	const char *text = argument + sizeof name - 1;
	unsigned long number;
	char *end;

	if (!zero_begins_with(argument, name) || *text < '0' || *text > '9')
		return false;
	number = strtoul(text, &end, 10);
	if (*end || number < 1 || number > 600)
		return false;
	*seconds = (double)number;
	return true;
}

/* A wrong argument must not stop jobs without zero, but zero jobs would run without limits. */
static void read_arguments(int count, char **argument)
{
	for (int i = 0; i < count; i++) {
		const char *config = absolute_path(argument[i], "config=");
		const char *nvml = absolute_path(argument[i], "nvml=");

		if (config)
			arguments.config = config;
		else if (nvml)
			arguments.nvml = nvml;
		else if (!read_timeout(argument[i], &arguments.nvml_seconds))
			snprintf(arguments.why, sizeof arguments.why,
				 "plugstack.conf: '%s' is not config=PATH or nvml=PATH with an "
				 "absolute path, nor nvml_timeout=SECONDS from 1 to 600",
				 argument[i]);
	}
}

/*
 * If plugstack.conf and a file that it includes both name the plugin, Slurm loads it twice and
 * calls everything twice. Each callback counts its calls and acts on the first of each round.
 */
enum callback { POST_OPT, USER_INIT, TASK_INIT, TASK_EXIT, CALLBACKS };

static unsigned loaded; /* how often slurm_spank_init was called */

static bool is_first(enum callback callback)
{
	static unsigned calls[CALLBACKS];

	return loaded && calls[callback]++ % loaded == 0;
}

/* No callback returns an error: it would drain a node whose plugstack.conf has the plugin as
   required. */
int slurm_spank_init(spank_t spank, int count, char **argument)
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
	case S_CTX_REMOTE:
		if (loaded++)
			break;
		read_arguments(count, argument);
		if (spank_context() == S_CTX_LOCAL)
			srun_env_init();
		if (user_options_register(spank) != ESPANK_SUCCESS)
			slurm_error(PLUGIN_NAME ": Slurm refused to register the --zero flags");
		break;
	default:
		break;
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	if (!is_first(POST_OPT))
		return ESPANK_SUCCESS;
	switch (spank_context()) {
	case S_CTX_LOCAL:
		srun_init_post_opt(spank, &arguments);
		break;
	case S_CTX_ALLOCATOR:
		job_init_post_opt(spank, &arguments);
		break;
	default:
		step_node_init_post_opt(spank, &arguments);
		break;
	}
	return ESPANK_SUCCESS;
}

/* Slurm calls this and the following ones in slurmstepd and its tasks only, but for the last two.
 */
int slurm_spank_user_init(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	if (is_first(USER_INIT))
		step_node_user_init(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	if (is_first(TASK_INIT))
		task_init(spank, step_node_state());
	return ESPANK_SUCCESS;
}

int slurm_spank_task_exit(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	if (is_first(TASK_EXIT))
		step_node_task_exit(spank);
	return ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int count, char **argument)
{
	(void)spank;
	(void)count;
	(void)argument;
	if (loaded && spank_context() == S_CTX_REMOTE)
		step_node_exit();
	return ESPANK_SUCCESS;
}

/* Slurm has not called slurm_spank_init in this process. */
int slurm_spank_job_epilog(spank_t spank, int count, char **argument)
{
	read_arguments(count, argument);
	job_epilog(spank, &arguments);
	return ESPANK_SUCCESS;
}

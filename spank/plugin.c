/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The SPANK plugin: each callback goes to the file of its context. Slurm finds these functions by
 * name; the version script hides everything else.
 */
#include <stdio.h>
#include <string.h>

#include "plugin.h"
#include "srun_env.h"

SPANK_PLUGIN(zero, 1)

static struct plugin_arguments arguments = {.config = ZERO_SITE_CONFIG};

/* What follows "name=" if that is an absolute path; in another, files would be found in a user's
   folder. */
static const char *path_of(const char *argument, const char *name)
{
	size_t length = strlen(name);

	return strncmp(argument, name, length) == 0 && argument[length] == '/' ? argument + length
									       : NULL;
}

/* A wrong argument is no reason to stop other people's jobs, but zero jobs would miss the
   limits. */
static void read_arguments(int count, char **argument)
{
	for (int i = 0; i < count; i++) {
		const char *config = path_of(argument[i], "config=");
		const char *nvml = path_of(argument[i], "nvml=");

		if (config)
			arguments.config = config;
		else if (nvml)
			arguments.nvml = nvml;
		else
			snprintf(arguments.why, sizeof arguments.why,
				 "plugstack.conf: '%s' is not config=PATH or nvml=PATH with an "
				 "absolute path",
				 argument[i]);
	}
}

static bool is_submit(void)
{
	spank_context_t context = spank_context();

	return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

/*
 * plugstack.conf may name the plugin twice, by a line of its own and by one that it includes: Slurm
 * then calls everything as often. Each callback counts its calls and heeds the first of each turn.
 */
enum callback { POST_OPT, USER_INIT, TASK_INIT, TASK_EXIT, CALLBACKS };

static unsigned loaded; /* times that the plugin was initialised */

static bool is_first(enum callback callback)
{
	static unsigned calls[CALLBACKS];

	return loaded && calls[callback]++ % loaded == 0;
}

int slurm_spank_init(spank_t spank, int count, char **argument)
{
	spank_context_t context = spank_context();

	if (!is_submit() && context != S_CTX_REMOTE)
		return ESPANK_SUCCESS;
	if (loaded++)
		return ESPANK_SUCCESS;
	read_arguments(count, argument);
	if (is_submit())
		wireup_begin();
	if (said_register(spank) != ESPANK_SUCCESS)
		slurm_error(PLUGIN_NAME ": Slurm does not take the --zero flags");
	return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	if (!is_first(POST_OPT))
		return ESPANK_SUCCESS;
	return is_submit() ? submit_post_opt(&arguments) : node_post_opt(spank, &arguments);
}

int slurm_spank_user_init(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	return is_first(USER_INIT) ? node_user_init(spank) : ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	return is_first(TASK_INIT) ? node_task_init(spank) : ESPANK_SUCCESS;
}

int slurm_spank_task_exit(spank_t spank, int count, char **argument)
{
	(void)count;
	(void)argument;
	return is_first(TASK_EXIT) ? node_task_exit(spank) : ESPANK_SUCCESS;
}

int slurm_spank_exit(spank_t spank, int count, char **argument)
{
	(void)spank;
	(void)count;
	(void)argument;
	return loaded && spank_context() == S_CTX_REMOTE ? node_exit() : ESPANK_SUCCESS;
}

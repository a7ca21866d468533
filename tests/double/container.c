/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stand-in for the plugins that run a task in a container, such as pyxis: a SPANK plugin that
 * makes the folder that ZERO_TEST_ROOT names the root of each task, and has a flag without a value,
 * which does nothing. To be named before spank_zero.so in plugstack.conf, and used as root.
 */
#include <slurm/spank.h>
#include <unistd.h>

SPANK_PLUGIN(container, 1)

static int ignore_flag(int value, const char *text, int remote)
{
	(void)value;
	(void)text;
	(void)remote;
	return ESPANK_SUCCESS;
}

int slurm_spank_init(spank_t spank, int count, char **argument)
{
	struct spank_option flag = {
		.name = (char *)"container-mount-home",
		.usage = (char *)"does nothing",
		.cb = ignore_flag,
	};

	(void)count;
	(void)argument;
	if (spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_REMOTE)
		spank_option_register(spank, &flag);
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int count, char **argument)
{
	char root[4096];

	(void)count;
	(void)argument;
	if (spank_getenv(spank, "ZERO_TEST_ROOT", root, sizeof root) != ESPANK_SUCCESS)
		return ESPANK_SUCCESS;
	if (chroot(root) || chdir("/")) {
		slurm_error("container: %s cannot be the root: %m", root);
		_exit(1);
	}
	return ESPANK_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What a step is, and what its environment has: for the callbacks in slurmstepd and in tasks. */
#include <slurm/slurm.h>
#include <stdlib.h>
#include <string.h>

#include "plugin.h"

static bool is_name(const char *path, const char *const *names)
{
	const char *slash = strrchr(path, '/');

	for (; *names; names++) {
		if (strcmp(slash ? slash + 1 : path, *names) == 0)
			return true;
	}
	return false;
}

enum task_kind step_task_kind(spank_t spank)
{
	/* mpirun lets srun start one of these on each node, which then starts the ranks */
	static const char *const daemons[] = {"orted", "prted", "hydra_pmi_proxy",
					      "hydra_bstrap_proxy", NULL};
	uint32_t step = 0;
	char **argument = NULL;
	int count = 0;

	if (spank_get_item(spank, S_JOB_STEPID, &step) || step == SLURM_EXTERN_CONT)
		return TASK_NONE;
	if (step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP)
		return TASK_LAUNCHER;
	if (spank_get_item(spank, S_JOB_ARGV, &count, &argument) == ESPANK_SUCCESS && count > 0 &&
	    argument && argument[0] && is_name(argument[0], daemons))
		return TASK_LAUNCHER;
	return TASK_RANK;
}

char *step_variable(spank_t spank, const char *name)
{
	for (size_t size = 4096; size <= 1 << 20; size *= 4) {
		char *text = malloc(size);
		spank_err_t status =
			text ? spank_getenv(spank, name, text, (int)size) : ESPANK_ERROR;

		if (status == ESPANK_SUCCESS)
			return text;
		free(text);
		if (status != ESPANK_NOSPACE)
			return NULL;
	}
	return NULL;
}

struct zero_where step_where(const struct step_node *node, const struct zero_gpu *gpu)
{
	return (struct zero_where){
		.node = node->name,
		.partition = node->partition[0] ? node->partition : NULL,
		.account = node->account[0] ? node->account : NULL,
		.qos = node->qos[0] ? node->qos : NULL,
		.gpu = gpu ? gpu->model : NULL,
		.vram_total = gpu ? gpu->total : 0,
	};
}

bool step_is_first(const struct step_node *node, enum notice notice)
{
	return !node->printed || !atomic_flag_test_and_set(&node->printed[notice]);
}

void log_once(const struct step_node *node, enum notice notice, char *sentence)
{
	zero_clean(sentence);
	if (step_is_first(node, notice))
		slurm_spank_log(PLUGIN_NAME ": node %s: %s", node->name, sentence);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slurmstepd: one for each step on each node, and one process of it for each task. An error here is
 * kept until a task begins, which tells it and ends: earlier ones would drain the node or be lost.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "step_node.h"
#include "plugin.h"

/* Seconds after which a driver that does not answer is left alone. */
#define NVML_SECONDS 2.0

static struct node node;
static const struct plugin_arguments *arguments;

char *node_variable(spank_t spank, const char *name)
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

bool node_said_variable(void *spank, const char *name, char *text, size_t size)
{
	spank_err_t status = spank_getenv(spank, name, text, (int)size);

	return status == ESPANK_SUCCESS || status == ESPANK_NOSPACE;
}

/* ---- the step -------------------------------------------------------------------------------- */

static bool is_name(const char *path, const char *const *names)
{
	const char *slash = strrchr(path, '/');

	for (; *names; names++) {
		if (strcmp(slash ? slash + 1 : path, *names) == 0)
			return true;
	}
	return false;
}

static enum node_task task_kind(spank_t spank)
{
	/* what mpirun lets srun start on each node, to start the ranks itself */
	static const char *const proxies[] = {"orted", "prted", "hydra_pmi_proxy",
					      "hydra_bstrap_proxy", NULL};
	uint32_t step = 0;
	char **argument = NULL;
	int count = 0;

	if (spank_get_item(spank, S_JOB_STEPID, &step) || step == SLURM_EXTERN_CONT)
		return NODE_TASK_NONE;
	if (step == SLURM_BATCH_SCRIPT || step == SLURM_INTERACTIVE_STEP)
		return NODE_TASK_SCRIPT;
	if (spank_get_item(spank, S_JOB_ARGV, &count, &argument) == ESPANK_SUCCESS && count > 0 &&
	    argument && argument[0] && is_name(argument[0], proxies))
		return NODE_TASK_SCRIPT;
	return NODE_TASK_RANK;
}

/* The node's name in Slurm. slurmd's own variable is true; the job's could be the user's. */
static void read_node_name(void)
{
	const char *name = getenv("SLURMD_NODENAME");

	if (name)
		snprintf(node.name, sizeof node.name, "%s", name);
	else if (gethostname(node.name, sizeof node.name - 1))
		snprintf(node.name, sizeof node.name, "?");
}

int node_post_opt(spank_t spank, const struct plugin_arguments *given)
{
	char decision[128] = "", *partition;
	const char *origin;
	bool by_site;

	arguments = given;
	/* A job without zero ends here, with no file opened. */
	if (spank_getenv(spank, DECISION, decision, sizeof decision))
		return ESPANK_SUCCESS;
	by_site = zero_begins_with(decision, DECISION_SITE);
	node.on = by_site || zero_begins_with(decision, DECISION_ON) ||
		  zero_begins_with(decision, DECISION_STEP);
	node.clean = !node.on;
	if (!node.on || task_kind(spank) == NODE_TASK_NONE)
		return ESPANK_SUCCESS;
	read_node_name();
	partition = node_variable(spank, "SLURM_JOB_PARTITION");
	snprintf(node.partition, sizeof node.partition, "%s", partition ? partition : "");
	free(partition);
	if (arguments->why[0]) {
		memcpy(node.why, arguments->why, sizeof arguments->why);
		return ESPANK_SUCCESS;
	}
	node.site =
		zero_config_read(arguments->config, ZERO_CONFIG_SITE, node.why, sizeof node.why);
	if (!node.site || zero_config_enabled(node.site, &origin) != ZERO_ENABLED_OFF)
		return ESPANK_SUCCESS;
	/* a job that was submitted while it was on for all goes on without */
	node.on = !by_site;
	node.clean = by_site;
	snprintf(node.why, sizeof node.why, "zero is switched off here (%s)", origin);
	return ESPANK_SUCCESS;
}

/*
 * Whether what the step may use is a question for NVML. The user's own file, which may name another
 * backend, is not opened here: it could lie on a folder that hangs, which is a matter for tasks.
 */
static bool wants_vram(spank_t spank)
{
	struct zero_settings resolved;
	struct words words = {.user = NULL};
	uint64_t backend = ZERO_BACKEND_AUTO;
	char why[sizeof node.why];
	const char *file;

	/* an error is found again, and told, when a task begins */
	if (!said_settings(node_said_variable, spank, &words.said, why, sizeof why))
		return false;
	file = words.said.value[ZERO_OPT_CONFIG].text;
	if ((!file || !*file) && words_resolve(&words, &node, NULL, &resolved, why, sizeof why)) {
		backend = resolved.value[ZERO_OPT_BACKEND].number;
		zero_settings_clear(&resolved);
	}
	words_clear(&words);
	return backend == ZERO_BACKEND_CUDA ||
	       (backend == ZERO_BACKEND_AUTO && node.visible && *node.visible);
}

/* Memory that tasks share with slurmstepd, which forks them. */
static void share_said(void)
{
	void *memory = mmap(NULL, NODE_SAID * sizeof(atomic_flag), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	node.said = memory == MAP_FAILED ? NULL : memory;
}

int node_user_init(spank_t spank)
{
	if (node.on || node.clean)
		inherit_clean_step(spank);
	if (!node.on || task_kind(spank) == NODE_TASK_NONE)
		return ESPANK_SUCCESS;
	share_said();
	if (stat("/", &node.root))
		memset(&node.root, 0, sizeof node.root);
	node.visible = node_variable(spank, "CUDA_VISIBLE_DEVICES");
	node.gpus = node_variable(spank, "SLURM_STEP_GPUS");
	if (!node.gpus)
		node.gpus = node_variable(spank, "SLURM_JOB_GPUS");
	if (node.why[0] || task_kind(spank) != NODE_TASK_RANK || !wants_vram(spank))
		return ESPANK_SUCCESS;
	zero_vram_read(arguments->nvml, NVML_SECONDS, &node.vram);
	if (node.vram.why[0])
		slurm_spank_log(PLUGIN_NAME ": node %s: %s", node.name, node.vram.why);
	return ESPANK_SUCCESS;
}

int node_exit(void)
{
	zero_config_free(node.site);
	zero_vram_clear(&node.vram);
	free(node.visible);
	free(node.gpus);
	if (node.said)
		munmap(node.said, NODE_SAID * sizeof(atomic_flag));
	node = (struct node){.on = false};
	return ESPANK_SUCCESS;
}

/* ---- a task ---------------------------------------------------------------------------------- */

static bool is_first(const struct node *of, enum node_said what)
{
	return !of->said || !atomic_flag_test_and_set(&of->said[what]);
}

void node_say_once(const struct node *of, enum node_said what, char *sentence)
{
	zero_clean(sentence);
	if (is_first(of, what))
		slurm_spank_log(PLUGIN_NAME ": node %s: %s", of->name, sentence);
}

/* Ends this task, and with it the step, since srun was told to kill it on a bad exit. */
__attribute__((noreturn)) static void end_task(const char *why)
{
	/* a task that ends while its peers are being launched leaves them waiting for KillWait */
	static const struct timespec while_launching = {.tv_nsec = 700000000};

	if (is_first(&node, NODE_SAID_ERROR))
		slurm_error(PLUGIN_NAME ": node %s: %s", node.name, why);
	nanosleep(&while_launching, NULL);
	_exit(EXIT_FAILURE);
}

int node_task_init(spank_t spank)
{
	enum node_task kind = node.on ? task_kind(spank) : NODE_TASK_NONE;
	char why[sizeof node.why] = "";

	if (node.clean) {
		inherit_clean_task(spank);
		spank_unsetenv(spank, DECISION);
	}
	if (kind == NODE_TASK_NONE)
		return ESPANK_SUCCESS;
	if (node.why[0])
		memcpy(why, node.why, sizeof why);
	else if (task_prepare(spank, &node, kind, why, sizeof why))
		return ESPANK_SUCCESS;
	/* it may name what the user named, and root's log has it too */
	zero_clean(why);
	if (kind == NODE_TASK_RANK)
		end_task(why);
	/* a script is not failed for what concerns its sruns alone */
	slurm_error(PLUGIN_NAME ": node %s: %s", node.name, why);
	return ESPANK_SUCCESS;
}

/*
 * Names the first task on the node that died of a signal, or whose shell did. Those that Slurm then
 * ends with SIGTERM and SIGKILL are not named, here nor on other nodes; of a task that the kernel
 * killed for its memory Slurm itself says so.
 */
int node_task_exit(spank_t spank)
{
	static bool named;
	uint32_t rank = 0;
	int status = 0, number = 0;
	char *components;

	if (!node.on || named || task_kind(spank) != NODE_TASK_RANK ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &status))
		return ESPANK_SUCCESS;
	if (WIFSIGNALED(status))
		number = WTERMSIG(status);
	else if (WIFEXITED(status) && WEXITSTATUS(status) > 128)
		number = WEXITSTATUS(status) - 128;
	if (number <= 0 || number >= NSIG || number == SIGTERM || number == SIGKILL)
		return ESPANK_SUCCESS;
	named = true;
	spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
	/* in a heterogeneous step, Slurm counts each component's tasks from 0 here */
	components = node_variable(spank, "SLURM_HET_SIZE");
	slurm_error(PLUGIN_NAME ": rank %u%s on node %s died of signal %d (%s)", rank,
		    components ? " of its component" : "", node.name, number, strsignal(number));
	free(components);
	return ESPANK_SUCCESS;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in slurmstepd, once for each step and node, as root. Reads the node's own zero.yaml and
 * queries its GPUs. An error is stored in node.why until a task starts, which reports it and ends:
 * an earlier error return would drain the node, or Slurm would ignore it. A job that has zero only
 * because the site wants it does not end so: it continues without zero.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin.h"
#include "user_request.h"

static struct step_node node;
static const struct plugin_arguments *arguments;

const struct step_node *step_node_state(void)
{
	return &node;
}

/* Reads the name from slurmd's environment; the variables of the job could be the user's. */
static void read_node_name(void)
{
	const char *name = getenv("SLURMD_NODENAME");

	if (name)
		snprintf(node.name, sizeof node.name, "%s", name);
	else if (gethostname(node.name, sizeof node.name - 1))
		snprintf(node.name, sizeof node.name, "?");
}

/*
 * The job's credential has its partition and account, and since release 26.05 its QOS, but no item
 * of spank_get_item() returns them (slurm/spank.h). The variables do, which slurmctld sets for a
 * batch script, and srun for other steps (src/common/env.c and _set_env_vars2() of srun's
 * srun_job.c).
 */
static void read_job(spank_t spank)
{
	const struct {
		const char *name;
		char *text;
	} wanted[] = {
		{"SLURM_JOB_PARTITION", node.partition},
		{"SLURM_JOB_ACCOUNT", node.account},
		{"SLURM_JOB_QOS", node.qos},
	};

	for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
		if (spank_getenv(spank, wanted[i].name, wanted[i].text, sizeof node.partition))
			wanted[i].text[0] = '\0';
	}
}

/* Reads the site's file. Returns whether zero may be on here; if not, node.why says why. */
static bool is_on_here(void)
{
	struct zero_where where = step_where(&node, NULL);
	enum zero_enabled enabled;
	const char *origin;

	if (arguments->why[0]) {
		memcpy(node.why, arguments->why, sizeof arguments->why);
		return false;
	}
	node.site =
		zero_config_read(arguments->config, ZERO_CONFIG_SITE, node.why, sizeof node.why);
	if (!node.site)
		return false;
	enabled = zero_config_enabled(node.site, &where, &origin);
	if (node.by_site ? enabled == ZERO_ENABLED_ON : enabled != ZERO_ENABLED_OFF)
		return true;
	snprintf(node.why, sizeof node.why, "zero is switched off on this node (%s)", origin);
	return false;
}

void step_node_init_post_opt(spank_t spank, const struct plugin_arguments *given)
{
	char decision[128] = "";

	arguments = given;
	/* a job without zero ends here: no file is opened */
	if (spank_getenv(spank, DECISION, decision, sizeof decision))
		return;
	node.by_site = zero_begins_with(decision, DECISION_SITE);
	node.on = node.by_site || zero_begins_with(decision, DECISION_ON) ||
		  zero_begins_with(decision, DECISION_STEP);
	node.clean = !node.on;
	if (!node.on || step_task_kind(spank) == TASK_NONE)
		return;
	read_node_name();
	read_job(spank);
	/* a job that did not ask for zero continues without it */
	if (!is_on_here() && node.by_site) {
		node.on = false;
		node.clean = true;
	}
}

/* Resolves the options without a GPU. A task finds the same error again, and reports it. */
static bool resolve(spank_t spank, struct zero_settings *resolved, char *why, size_t size)
{
	struct zero_where where = step_where(&node, NULL);
	struct zero_settings request;
	bool ok;

	if (node.why[0])
		return zero_refuse(why, size, "%s", node.why);
	if (!user_request_read(spank, &request, why, size))
		return false;
	ok = zero_config_resolve(node.site, &request, &where, resolved, why, size);
	zero_settings_clear(&request);
	return ok;
}

/* Returns whether tasks may use GPUs. */
static bool wants_vram(const struct zero_settings *resolved)
{
	uint64_t backend = resolved->value[ZERO_OPT_BACKEND].number;

	return backend == ZERO_BACKEND_CUDA ||
	       (backend == ZERO_BACKEND_AUTO && node.visible && *node.visible);
}

/* What only ranks need: the line of telemetry, and the query of the GPUs. */
static void prepare_ranks(spank_t spank)
{
	struct zero_settings resolved;
	char why[sizeof node.why];

	if (!resolve(spank, &resolved, why, sizeof why)) {
		telemetry_begin(spank, &node, NULL, why);
		return;
	}
	telemetry_begin(spank, &node, &resolved, "");
	if (wants_vram(&resolved))
		zero_vram_ask(arguments->nvml, arguments->nvml_seconds, &node.query);
	zero_settings_clear(&resolved);
}

void step_node_user_init(spank_t spank)
{
	enum task_kind kind = step_task_kind(spank);
	void *shared;

	if (node.on || node.clean)
		nested_step_remove_pmix(spank);
	/* where the file turns it off there is nothing to tell; here it cannot be used */
	if (!node.on && node.why[0] && !node.site) {
		zero_clean(node.why);
		slurm_error(PLUGIN_NAME ": node %s: zero is not on: %s", node.name, node.why);
	}
	if (!node.on || kind == TASK_NONE)
		return;
	shared = mmap(NULL, NOTICES * sizeof(atomic_flag), PROT_READ | PROT_WRITE,
		      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	node.printed = shared == MAP_FAILED ? NULL : shared;
	if (stat("/", &node.root))
		memset(&node.root, 0, sizeof node.root);
	node.visible = step_variable(spank, "CUDA_VISIBLE_DEVICES");
	node.gpus = step_variable(spank, "SLURM_STEP_GPUS");
	if (!node.gpus)
		node.gpus = step_variable(spank, "SLURM_JOB_GPUS");
	if (kind == TASK_RANK)
		prepare_ranks(spank);
}

/*
 * Names the first task on the node that died of a signal, or whose shell reports that. SIGTERM and
 * SIGKILL are not named, since Slurm ends the other tasks with them, nor is SIGPIPE: a rank may die
 * of it when another one, which has died, no longer reads. Slurm itself names a task that the
 * kernel killed for its memory.
 */
void step_node_task_exit(spank_t spank)
{
	static bool named;
	uint32_t rank = 0;
	int status = 0, number = 0;
	char *components;

	if (!node.on || step_task_kind(spank) != TASK_RANK ||
	    spank_get_item(spank, S_TASK_EXIT_STATUS, &status))
		return;
	telemetry_task(status);
	if (named)
		return;
	if (WIFSIGNALED(status))
		number = WTERMSIG(status);
	else if (WIFEXITED(status) && WEXITSTATUS(status) > 128)
		number = WEXITSTATUS(status) - 128;
	if (number <= 0 || number >= NSIG || number == SIGTERM || number == SIGKILL ||
	    number == SIGPIPE)
		return;
	named = true;
	spank_get_item(spank, S_TASK_GLOBAL_ID, &rank);
	/* in a heterogeneous step, Slurm numbers the tasks of each component from 0 here */
	components = step_variable(spank, "SLURM_HET_SIZE");
	slurm_error(PLUGIN_NAME ": rank %u%s on node %s died of signal %d (%s)", rank,
		    components ? " of its component" : "", node.name, number, strsignal(number));
	free(components);
}

void step_node_exit(void)
{
	telemetry_end(&node);
	zero_config_free(node.site);
	zero_vram_forget(&node.query);
	free(node.visible);
	free(node.gpus);
	if (node.printed)
		munmap(node.printed, NOTICES * sizeof(atomic_flag));
	node = (struct step_node){.on = false};
}

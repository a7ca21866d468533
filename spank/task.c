/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs in the copy of slurmstepd that becomes a task, as the user, before the program starts. Sets
 * the task's variables: its options, LD_PRELOAD, PYTHONPATH, and those by which ranks find each
 * other.
 */
#include <slurm/slurm.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "plugin.h"
#include "user_request.h"

/* Returns the port of the step: the same on all nodes, below the ports that the kernel assigns. */
static unsigned master_port(spank_t spank)
{
	static const char *const names[] = {"SLURM_HET_JOB_ID", "SLURM_JOB_ID"};
	const unsigned first = 16384, count = 16384;
	uint32_t job = 0, step = 0;
	char text[32];

	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if (spank_getenv(spank, names[i], text, sizeof text) == ESPANK_SUCCESS) {
			job = (uint32_t)strtoul(text, NULL, 10);
			break;
		}
	}
	/* Knuth's multiplicative hash gives consecutive jobs on a node different ports */
	return first + ((job * UINT32_C(2654435761) >> 8) + step) % count;
}

/*
 * Returns where rank 0's node is among the step's nodes, which are sorted, while ranks may begin at
 * any of them: under --distribution=arbitrary, in heterogeneous steps, and as topology plugins
 * like. srun's PMIx plugin tells its counterpart on the nodes, as blocks of (node, nodes, tasks on
 * each) in the order of ranks: "(vector,(2,1,1),(0,2,1))" (src/plugins/mpi/pmix/mapping.c). Under
 * another --mpi it is taken to be the first.
 */
static uint64_t first_index(spank_t spank)
{
	char *mapping = step_variable(spank, "SLURM_PMIX_MAPPING_SERV");
	unsigned long index = 0;

	if (mapping && sscanf(mapping, "(vector,(%lu,", &index) != 1)
		index = 0;
	free(mapping);
	return index;
}

static bool first_node(spank_t spank, char *host, size_t size)
{
	char *list = step_variable(spank, "SLURM_STEP_NODELIST"), *name = NULL;
	/* its type has another name in other releases of Slurm */
	void *hosts = list ? slurm_hostlist_create(list) : NULL;
	uint64_t index = first_index(spank);
	bool found;

	if (hosts && index >= (uint64_t)slurm_hostlist_count(hosts))
		index = 0;
	for (uint64_t i = 0; hosts && i <= index; i++) {
		free(name);
		name = slurm_hostlist_shift(hosts);
	}
	found = name && (size_t)snprintf(host, size, "%s", name) < size;
	if (hosts)
		slurm_hostlist_destroy(hosts);
	free(list);
	free(name);
	return found;
}

/* Sets the address of rank 0's node, at which torch.distributed and others connect. */
static bool set_master(spank_t spank, struct zero_settings *resolved, char *why, size_t size)
{
	char host[256], port[16], master[sizeof host + sizeof port];

	if (!first_node(spank, host, sizeof host))
		return true;
	snprintf(port, sizeof port, "%u", master_port(spank));
	snprintf(master, sizeof master, "%s:%s", host, port);
	spank_setenv(spank, "MASTER_ADDR", host, 0);
	spank_setenv(spank, "MASTER_PORT", port, 0);
	return task_budget_set_fact(resolved, ZERO_OPT_MASTER, master, why, size);
}

static void copy_variable(spank_t spank, const char *to, const char *from)
{
	char *text = step_variable(spank, from);

	if (text)
		spank_setenv(spank, to, text, 1);
	free(text);
}

/* Slurm's variables count all ranks of a heterogeneous step; SPANK's items those of a component. */
static bool set_ranks(spank_t spank, struct zero_settings *resolved, char *why, size_t size)
{
	char *tasks = step_variable(spank, "SLURM_NTASKS");
	uint32_t local = 0;
	char text[32];
	bool ok = !tasks || task_budget_set_fact(resolved, ZERO_OPT_TASKS, tasks, why, size);

	free(tasks);
	copy_variable(spank, "RANK", "SLURM_PROCID");
	copy_variable(spank, "WORLD_SIZE", "SLURM_NTASKS");
	copy_variable(spank, "LOCAL_RANK", "SLURM_LOCALID");
	if (!spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &local)) {
		snprintf(text, sizeof text, "%u", local);
		spank_setenv(spank, "LOCAL_WORLD_SIZE", text, 1);
	}
	return ok;
}

static bool set_variable(void *spank, const char *name, const char *value)
{
	spank_setenv(spank, name, value, 0);
	return true;
}

static void set_site_variables(spank_t spank, const struct step_node *node,
			       const struct zero_budget *budget)
{
	struct zero_where where = step_where(node, budget->gpu);

	zero_config_env(node->site, &where, set_variable, spank);
	/* CUDA must number GPUs as Slurm and NVML do */
	if (budget->gpus)
		spank_setenv(spank, "CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
}

static bool set_resolved(spank_t spank, const struct zero_settings *resolved, char *why,
			 size_t size)
{
	char *text = zero_settings_format(resolved);

	if (!text || spank_setenv(spank, "ZERO_RESOLVED", text, 1)) {
		free(text);
		snprintf(why, size, "ZERO_RESOLVED cannot be set in the environment of the task");
		return false;
	}
	free(text);
	return true;
}

static bool prepare_rank(spank_t spank, const struct step_node *node,
			 const struct zero_settings *request, struct zero_settings *resolved,
			 char *why, size_t size)
{
	struct zero_vram vram = {.count = 0};
	struct zero_budget budget;
	bool ok = task_budget_resolve(spank, node, request, resolved, &vram, &budget, why, size);

	if (ok &&
	    !(task_preload_set(spank, node, resolved, why, size) &&
	      task_python_set(spank, node, resolved, why, size) &&
	      set_ranks(spank, resolved, why, size) && set_master(spank, resolved, why, size))) {
		zero_settings_clear(resolved);
		ok = false;
	}
	if (ok)
		set_site_variables(spank, node, &budget);
	zero_vram_clear(&vram);
	return ok;
}

static bool prepare(spank_t spank, const struct step_node *node, enum task_kind kind, char *why,
		    size_t size)
{
	struct zero_where where = step_where(node, NULL);
	struct zero_settings request, resolved;
	bool ok;

	nested_step_remove_variables(spank);
	if (!user_request_read(spank, &request, why, size))
		return false;
	if (kind == TASK_RANK)
		ok = prepare_rank(spank, node, &request, &resolved, why, size);
	else
		ok = zero_config_resolve(node->site, &request, &where, &resolved, why, size);
	zero_settings_clear(&request);
	if (!ok)
		return false;
	if (kind == TASK_RANK)
		log_options(spank, node, &resolved);
	ok = set_resolved(spank, &resolved, why, size);
	zero_settings_clear(&resolved);
	/* an srun within this task is told by its job */
	spank_unsetenv(spank, USER_REQUEST_OF_STEP);
	return ok;
}

/* scrontab splits the line at blanks, quotes or not (src/scrontab/parse.c). */
static void pass_on_line(spank_t spank, char *line)
{
	static const char blanks[] = " \t\n";
	char *rest, *word = strtok_r(line, blanks, &rest);

	for (; word; word = strtok_r(NULL, blanks, &rest)) {
		char *value = strchr(word, '=');
		struct user_variable_name name;
		bool has_value;

		if (value)
			*value++ = '\0';
		if (!user_flag_find(word, &name, &has_value))
			continue;
		if (!value && has_value)
			value = strtok_r(NULL, blanks, &rest);
		spank_setenv(spank, name.text, value ? value : "", 1);
	}
}

/*
 * In a batch script: makes the flags of its #SCRON lines flags of the job, which its sruns check
 * and apply. scrontab has a plugin read these flags, but calls no slurm_spank_init_post_opt and
 * passes on nothing that a plugin sets (src/scrontab/scrontab.c). The lines themselves reach the
 * node.
 */
static void pass_on_scron_flags(spank_t spank)
{
	char **argument = NULL, line[8192], user_environment[8];
	uint32_t step = 0;
	FILE *script;
	int count = 0;

	/* the program of any other step is a file of the user's */
	if (spank_get_item(spank, S_JOB_STEPID, &step) || step != SLURM_BATCH_SCRIPT)
		return;
	/* scrontab alone sets it always, sbatch for --get-user-env */
	if (spank_getenv(spank, "SLURM_GET_USER_ENV", user_environment, sizeof user_environment) ||
	    spank_get_item(spank, S_JOB_ARGV, &count, &argument) || count < 1 || !argument ||
	    argument[0][0] != '/')
		return;
	script = fopen(argument[0], "re");
	if (!script)
		return;
	while (fgets(line, sizeof line, script) && line[0] == '#') {
		if (zero_begins_with(line, "#SCRON"))
			pass_on_line(spank, line + strlen("#SCRON"));
	}
	fclose(script);
}

/* Ends this task. srun then ends the step, because of SLURM_KILL_BAD_EXIT. */
__attribute__((noreturn)) static void end_task(const struct step_node *node, const char *why)
{
	/* a task that ends while others are being launched would leave them waiting for KillWait */
	static const struct timespec while_launching = {.tv_nsec = 700000000};

	if (step_is_first(node, NOTICE_ERROR))
		slurm_error(PLUGIN_NAME ": node %s: %s", node->name, why);
	nanosleep(&while_launching, NULL);
	_exit(EXIT_FAILURE);
}

void task_init(spank_t spank, const struct step_node *node)
{
	enum task_kind kind = node->on ? step_task_kind(spank) : TASK_NONE;
	char why[sizeof node->why] = "";

	if (node->clean) {
		nested_step_remove_variables(spank);
		/* the sruns of a batch script are told by it that the user turned zero off */
		if (step_task_kind(spank) == TASK_RANK || node->by_site)
			spank_unsetenv(spank, DECISION);
	}
	if (!node->on && !node->clean)
		pass_on_scron_flags(spank);
	if (kind == TASK_NONE)
		return;
	if (node->why[0])
		memcpy(why, node->why, sizeof why);
	else if (prepare(spank, node, kind, why, sizeof why))
		return;
	/* it may quote the user, and is also written to root's log */
	zero_clean(why);
	if (kind == TASK_RANK)
		end_task(node, why);
	/* a script must not fail because of an error that concerns its sruns only */
	slurm_error(PLUGIN_NAME ": node %s: %s", node->name, why);
}

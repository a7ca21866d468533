/* SPDX-License-Identifier: Apache-2.0 */
/* What a task is given: its options, the library, and how it finds the others. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "yaml/hostlist.h"
#include "step_node.h"
#include "plugin.h"

/* A port for the step: the same on all nodes, below those that the kernel and Slurm hand out. */
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
	/* spread, so that neighbours in time on one node do not meet: Knuth's multiplicative
	   hash */
	return first + ((job * UINT32_C(2654435761) >> 8) + step) % count;
}

/* Where torch.distributed and its like meet: the node of rank 0. */
static bool set_master(spank_t spank, struct zero_settings *resolved, char *why, size_t size)
{
	char *list = node_variable(spank, "SLURM_STEP_NODELIST");
	char host[256], port[16], master[sizeof host + sizeof port];
	bool found = list && zero_hostlist_first(list, host, sizeof host);

	free(list);
	if (!found)
		return true;
	snprintf(port, sizeof port, "%u", master_port(spank));
	snprintf(master, sizeof master, "%s:%s", host, port);
	spank_setenv(spank, "MASTER_ADDR", host, 0);
	spank_setenv(spank, "MASTER_PORT", port, 0);
	return set_fact(resolved, ZERO_OPT_MASTER, master, why, size);
}

static void copy_variable(spank_t spank, const char *to, const char *from)
{
	char *text = node_variable(spank, from);

	if (text)
		spank_setenv(spank, to, text, 1);
	free(text);
}

/* Slurm's names for them are right in every kind of step; those of the items are a component's own
   in a heterogeneous one. */
static bool set_ranks(spank_t spank, struct zero_settings *resolved, char *why, size_t size)
{
	char *tasks = node_variable(spank, "SLURM_NTASKS");
	uint32_t local = 0;
	char text[32];
	bool ok = !tasks || set_fact(resolved, ZERO_OPT_TASKS, tasks, why, size);

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

static bool in_container(const struct node *node)
{
	struct stat root;

	return !stat("/", &root) &&
	       (root.st_dev != node->root.st_dev || root.st_ino != node->root.st_ino);
}

/* The option preload_path becomes what is preloaded: a task within this one can tell it from its
   own. */
static bool prepend_library(spank_t spank, struct zero_settings *resolved, const char *path,
			    char *why, size_t size)
{
	char *before = node_variable(spank, "LD_PRELOAD"), *both;
	bool more = before && *before;
	int length = asprintf(&both, "%s%s%s", path, more ? ":" : "", more ? before : "");
	bool ok = length >= 0 && !spank_setenv(spank, "LD_PRELOAD", both, 1);

	if (length >= 0)
		free(both);
	free(before);
	if (ok)
		return set_fact(resolved, ZERO_OPT_PRELOAD_PATH, path, why, size);
	snprintf(why, size, "LD_PRELOAD cannot be set");
	return false;
}

static bool set_preload(spank_t spank, const struct node *node, struct zero_settings *resolved,
			char *why, size_t size)
{
	const char *said = resolved->value[ZERO_OPT_PRELOAD_PATH].text;
	bool wanted = resolved->value[ZERO_OPT_PRELOAD].number == ZERO_PRELOAD_YES, ok;
	int error;
	char *path = strdup(*said ? said : ZERO_LIBRARY);

	if (!path) {
		snprintf(why, size, "no memory for LD_PRELOAD");
		return false;
	}
	error = wanted && access(path, R_OK) ? errno : 0;
	/* where the loader cuts the variable */
	if (wanted && strpbrk(path, ": "))
		error = EINVAL;
	if (wanted && !error) {
		ok = prepend_library(spank, resolved, path, why, size);
	} else if (!wanted || in_container(node)) {
		ok = set_fact(resolved, ZERO_OPT_PRELOAD_PATH, "", why, size);
		/* the loader would complain in each process */
		snprintf(why, size,
			 "nothing is preloaded, since the container has no %s: mount it, set "
			 "preload_path, or say --zero-preload=no",
			 path);
		if (wanted)
			node_say_once(node, NODE_SAID_CONTAINER, why);
	} else {
		snprintf(why, size, "%s cannot be preloaded: %s; %s%s, or say --zero-preload=no",
			 path, strerror(error),
			 *said ? "correct preload_path, from " : "install the package on this node",
			 *said ? resolved->origin[ZERO_OPT_PRELOAD_PATH] : "");
		ok = false;
	}
	free(path);
	return ok;
}

static bool set_variable(void *spank, const char *name, const char *value)
{
	spank_setenv(spank, name, value, 0);
	return true;
}

static void set_site_variables(spank_t spank, const struct node *node,
			       const struct zero_budget *budget)
{
	struct zero_where where = node_where(node, budget->gpu);

	zero_config_env(node->site, &where, set_variable, spank);
	/* Slurm and NVML number GPUs by their place on the bus; so shall CUDA */
	if (budget->gpus)
		spank_setenv(spank, "CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);
}

static bool set_resolved(spank_t spank, const struct zero_settings *resolved, char *why,
			 size_t size)
{
	char *text = zero_settings_format(resolved);

	if (!text || spank_setenv(spank, "ZERO_RESOLVED", text, 1)) {
		free(text);
		snprintf(why, size, "ZERO_RESOLVED cannot be set");
		return false;
	}
	free(text);
	return true;
}

static bool prepare_rank(spank_t spank, const struct node *node, const struct words *words,
			 struct zero_settings *resolved, char *why, size_t size)
{
	struct zero_budget budget;

	if (!size_task(spank, node, words, resolved, &budget, why, size))
		return false;
	if (!set_preload(spank, node, resolved, why, size) ||
	    !set_ranks(spank, resolved, why, size) || !set_master(spank, resolved, why, size)) {
		zero_settings_clear(resolved);
		return false;
	}
	set_site_variables(spank, node, &budget);
	return true;
}

bool task_prepare(spank_t spank, const struct node *node, enum node_task kind, char *why,
		  size_t size)
{
	struct zero_settings resolved;
	struct words words;
	bool ok;

	inherit_clean_task(spank);
	/* this process has the user's rights and folder by now */
	if (!words_read(spank, &words, why, size))
		return false;
	if (kind == NODE_TASK_RANK)
		ok = prepare_rank(spank, node, &words, &resolved, why, size);
	else
		ok = words_resolve(&words, node, NULL, &resolved, why, size);
	words_clear(&words);
	if (!ok)
		return false;
	ok = set_resolved(spank, &resolved, why, size);
	zero_settings_clear(&resolved);
	return ok;
}

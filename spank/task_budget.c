/* SPDX-License-Identifier: Apache-2.0 */
/* A task's options on its node: what the user said, and what the node's GPUs or memory make of
   it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "step_node.h"
#include "plugin.h"
#include "model/sizing.h"

struct zero_where node_where(const struct node *node, const struct zero_gpu *gpu)
{
	return (struct zero_where){
		.node = node->name,
		.partition = node->partition[0] ? node->partition : NULL,
		.gpu = gpu ? gpu->model : NULL,
		.vram_total = gpu ? gpu->total : 0,
	};
}

/* The step's folder may not be the one in which the file was named. */
static void name_folder(const char *path, char *why, size_t size)
{
	size_t length = strlen(why);
	char folder[PATH_MAX];

	if (*path != '/' && getcwd(folder, sizeof folder))
		snprintf(why + length, size - length, " (in %s)", folder);
}

bool words_read(spank_t spank, struct words *words, char *why, size_t size)
{
	const char *path;

	words->user = NULL;
	if (!said_settings(node_said_variable, spank, &words->said, why, size))
		return false;
	path = words->said.value[ZERO_OPT_CONFIG].text;
	if (!path || !*path)
		return true;
	words->user = zero_config_read(path, ZERO_CONFIG_USER, why, size);
	if (words->user)
		return true;
	name_folder(path, why, size);
	zero_settings_clear(&words->said);
	return false;
}

void words_clear(struct words *words)
{
	zero_config_free(words->user);
	zero_settings_clear(&words->said);
}

bool words_resolve(const struct words *words, const struct node *node, const struct zero_gpu *gpu,
		   struct zero_settings *resolved, char *why, size_t size)
{
	struct zero_where where = node_where(node, gpu);

	return zero_config_resolve(node->site, words->user, &words->said, &where, resolved, why,
				   size);
}

/* ---- what it may use ------------------------------------------------------------------------- */

/* Slurm's numbers are MB, 0 for no limit. */
static uint64_t memory_limit(spank_t spank, spank_item_t item)
{
	uint64_t megabytes = 0;

	return spank_get_item(spank, item, &megabytes) ? 0 : megabytes << 20;
}

static unsigned local_tasks(spank_t spank)
{
	uint32_t tasks = 0;

	return spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) || !tasks ? 1 : tasks;
}

static void use_backend(struct zero_budget_input *task, const struct zero_settings *resolved)
{
	uint64_t backend = resolved->value[ZERO_OPT_BACKEND].number;

	task->all_by_default = backend == ZERO_BACKEND_CUDA;
	if (backend == ZERO_BACKEND_HOST)
		task->visible = "";
}

static void use_reserve(struct zero_budget_input *task, const struct zero_settings *resolved)
{
	const struct zero_value *reserve = &resolved->value[ZERO_OPT_VRAM_RESERVE];

	task->reserve = reserve->number;
	task->reserve_is_percent = reserve->kind == ZERO_VALUE_PERCENT;
}

/*
 * Options may depend on the GPU's model, and the budget on options (the reserve): the options as
 * they are without a GPU find it, and then both are right.
 */
static bool find_budget(spank_t spank, const struct node *node, const struct words *words,
			struct zero_settings *resolved, struct zero_budget *budget, char *why,
			size_t size)
{
	char *visible = node_variable(spank, "CUDA_VISIBLE_DEVICES");
	struct zero_budget_input task = {
		.visible = visible,
		.step_visible = node->visible,
		.step_gpus = node->gpus,
		.tasks = local_tasks(spank),
		.step_memory = memory_limit(spank, S_STEP_ALLOC_MEM),
		.job_memory = memory_limit(spank, S_JOB_ALLOC_MEM),
	};
	bool ok = words_resolve(words, node, NULL, resolved, why, size);

	if (ok) {
		use_backend(&task, resolved);
		zero_budget_compute(&node->vram, &task, budget);
	}
	if (ok && budget->gpu) {
		zero_settings_clear(resolved);
		ok = words_resolve(words, node, budget->gpu, resolved, why, size);
	}
	if (ok) {
		use_reserve(&task, resolved);
		zero_budget_compute(&node->vram, &task, budget);
	}
	free(visible);
	return ok;
}

/* ---- facts ----------------------------------------------------------------------------------- */

bool set_fact(struct zero_settings *resolved, enum zero_option_id id, const char *text, char *why,
	      size_t size)
{
	return zero_settings_set(resolved, id, text, PLUGIN_NAME, why, size);
}

static bool set_number(struct zero_settings *resolved, enum zero_option_id id, uint64_t number,
		       char *why, size_t size)
{
	char text[32];

	snprintf(text, sizeof text, "%llu", (unsigned long long)number);
	return set_fact(resolved, id, text, why, size);
}

static bool add_facts(const struct zero_budget *budget, struct zero_settings *resolved, char *why,
		      size_t size)
{
	const struct zero_option *source = &zero_option_table[ZERO_OPT_VRAM_SOURCE];

	return set_number(resolved, ZERO_OPT_BUDGET, budget->budget, why, size) &&
	       set_number(resolved, ZERO_OPT_VRAM_FREE, budget->free, why, size) &&
	       set_number(resolved, ZERO_OPT_VRAM_TOTAL, budget->total, why, size) &&
	       set_fact(resolved, ZERO_OPT_VRAM_SOURCE, source->choices[budget->source], why,
			size) &&
	       set_number(resolved, ZERO_OPT_GPUS, budget->gpus, why, size) &&
	       set_fact(resolved, ZERO_OPT_GPU, budget->gpu ? budget->gpu->model : "", why, size);
}

/* The threshold that is right here; the ranks then take the least of theirs. */
static bool find_threshold(const struct node *node, const struct zero_budget *budget,
			   struct zero_settings *resolved, char *why, size_t size)
{
	uint64_t chunk = resolved->value[ZERO_OPT_STREAM_CHUNK].number;
	struct zero_where where = node_where(node, budget->gpu);

	if (resolved->value[ZERO_OPT_STREAM_THRESHOLD].kind != ZERO_VALUE_AUTO ||
	    budget->source == ZERO_VRAM_UNKNOWN ||
	    zero_config_clamp(node->site, &where, ZERO_OPT_STREAM_THRESHOLD,
			      zero_sizing_threshold(chunk, budget->budget), resolved))
		return true;
	snprintf(why, size, "no memory for the options");
	return false;
}

bool size_task(spank_t spank, const struct node *node, const struct words *words,
	       struct zero_settings *resolved, struct zero_budget *budget, char *why, size_t size)
{
	if (!find_budget(spank, node, words, resolved, budget, why, size))
		return false;
	/* what NVML did not answer was said when it was asked */
	if (budget->why[0] && !node->vram.why[0])
		node_say_once(node, NODE_SAID_BUDGET, budget->why);
	if (add_facts(budget, resolved, why, size) &&
	    find_threshold(node, budget, resolved, why, size))
		return true;
	zero_settings_clear(resolved);
	return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an admin asks about: a task's budget, which is the free memory of its GPUs, or of the node,
 * less vram_reserve and divided by the tasks that share it; and the stream threshold from it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "model/sizing.h"
#include "plugin.h"

/* Returns a limit in bytes, 0 for no limit. Slurm counts in MB. */
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

/*
 * Waits for the answer to the step's query of NVML, and leaves the task's own GPUs. The first task
 * reports what is wrong.
 */
static void find_gpus(const struct step_node *node, struct zero_vram *vram)
{
	zero_vram_answer(&node->query, vram);
	if (vram->why[0])
		log_once(node, NOTICE_NVML, vram->why);
	zero_vram_keep_own(vram);
}

/*
 * Options may depend on the model of the GPU, and the budget on options such as the reserve. So the
 * options without a GPU are used to find the GPU, and then both are computed again.
 */
static bool find_budget(spank_t spank, const struct step_node *node,
			const struct zero_settings *request, struct zero_settings *resolved,
			struct zero_vram *vram, struct zero_budget *budget, char *why, size_t size)
{
	char *visible = step_variable(spank, "CUDA_VISIBLE_DEVICES");
	struct zero_where where = step_where(node, NULL);
	const struct zero_value *value = resolved->value;
	struct zero_budget_input input = {
		.visible = visible,
		.step_visible = node->visible,
		.step_gpus = node->gpus,
		.tasks = local_tasks(spank),
		.step_memory = memory_limit(spank, S_STEP_ALLOC_MEM),
		.job_memory = memory_limit(spank, S_JOB_ALLOC_MEM),
	};
	bool ok = zero_config_resolve(node->site, request, &where, resolved, why, size);

	if (ok) {
		input.all_by_default = value[ZERO_OPT_BACKEND].number == ZERO_BACKEND_CUDA;
		if (value[ZERO_OPT_BACKEND].number == ZERO_BACKEND_HOST)
			input.visible = "";
		else
			find_gpus(node, vram);
		zero_budget_compute(vram, &input, budget);
	}
	if (ok && budget->gpu) {
		zero_settings_clear(resolved);
		where = step_where(node, budget->gpu);
		ok = zero_config_resolve(node->site, request, &where, resolved, why, size);
	}
	if (ok) {
		input.reserve = value[ZERO_OPT_VRAM_RESERVE].number;
		input.reserve_is_percent = value[ZERO_OPT_VRAM_RESERVE].kind == ZERO_VALUE_PERCENT;
		zero_budget_compute(vram, &input, budget);
	}
	free(visible);
	return ok;
}

bool task_budget_set_fact(struct zero_settings *resolved, enum zero_option_id id, const char *text,
			  char *why, size_t size)
{
	return zero_settings_set(resolved, id, text, PLUGIN_NAME, why, size);
}

static bool set_number(struct zero_settings *resolved, enum zero_option_id id, uint64_t number,
		       char *why, size_t size)
{
	char text[32];

	snprintf(text, sizeof text, "%llu", (unsigned long long)number);
	return task_budget_set_fact(resolved, id, text, why, size);
}

static bool add_facts(const struct zero_budget *budget, struct zero_settings *resolved, char *why,
		      size_t size)
{
	const struct zero_option *source = &zero_option_table[ZERO_OPT_VRAM_SOURCE];

	return set_number(resolved, ZERO_OPT_BUDGET, budget->budget, why, size) &&
	       set_number(resolved, ZERO_OPT_VRAM_FREE, budget->free, why, size) &&
	       set_number(resolved, ZERO_OPT_VRAM_TOTAL, budget->total, why, size) &&
	       task_budget_set_fact(resolved, ZERO_OPT_VRAM_SOURCE, source->choices[budget->source],
				    why, size) &&
	       set_number(resolved, ZERO_OPT_GPUS, budget->gpus, why, size) &&
	       task_budget_set_fact(resolved, ZERO_OPT_GPU, budget->gpu ? budget->gpu->model : "",
				    why, size);
}

/* Computes an automatic threshold. The library then uses the least of all ranks. */
static bool find_threshold(const struct step_node *node, const struct zero_budget *budget,
			   struct zero_settings *resolved, char *why, size_t size)
{
	uint64_t chunk = resolved->value[ZERO_OPT_STREAM_CHUNK].number;
	struct zero_where where = step_where(node, budget->gpu);

	if (resolved->value[ZERO_OPT_STREAM_THRESHOLD].kind != ZERO_VALUE_AUTO ||
	    budget->source == ZERO_VRAM_UNKNOWN ||
	    zero_config_clamp(node->site, &where, ZERO_OPT_STREAM_THRESHOLD,
			      zero_auto_stream_threshold(chunk, budget->budget), resolved))
		return true;
	snprintf(why, size, "out of memory for the options");
	return false;
}

bool task_budget_resolve(spank_t spank, const struct step_node *node,
			 const struct zero_settings *request, struct zero_settings *resolved,
			 struct zero_vram *vram, struct zero_budget *budget, char *why, size_t size)
{
	if (!find_budget(spank, node, request, resolved, vram, budget, why, size))
		return false;
	/* find_gpus has said what NVML failed to do */
	if (budget->why[0] && !vram->why[0])
		log_once(node, NOTICE_BUDGET, budget->why);
	if (add_facts(budget, resolved, why, size) &&
	    find_threshold(node, budget, resolved, why, size))
		return true;
	zero_settings_clear(resolved);
	return false;
}

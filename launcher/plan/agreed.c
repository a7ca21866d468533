/* SPDX-License-Identifier: Apache-2.0 */
#include "core/auto_sizes.h"
#include "launcher/plan/agreed.h"

#include <stdlib.h>

#include "core/available_memory.h"
#include "model/sizing.h"

/* The library shares memory among up to `setting` ranks of a node, in order of rank; 0: all. */
static struct share_set sharing_of(size_t ranks, uint64_t setting)
{
	size_t most = !setting || setting > ranks ? ranks : (size_t)setting;

	return (struct share_set){.least = ranks % most ? ranks % most : most, .most = most};
}

bool has_gpus(const struct request *request, const struct zero_settings *node_settings)
{
	uint64_t backend = request->settings.value[ZERO_OPT_BACKEND].number;
	bool gpus = node_settings &&
		    node_settings->value[ZERO_OPT_VRAM_SOURCE].number == ZERO_VRAM_NVML;

	return backend == ZERO_BACKEND_CUDA || (backend == ZERO_BACKEND_AUTO && gpus);
}

static uint64_t share_setting(const struct request *request,
			      const struct zero_settings *node_settings)
{
	return has_gpus(request, node_settings) ? 1
						: request->settings.value[ZERO_OPT_SHARE].number;
}

static uint64_t surveyed_share(const struct request *request, const struct survey *survey)
{
	struct zero_settings node_settings;
	uint64_t share;

	survey_settings(&survey->node[0], &node_settings);
	share = share_setting(request, &node_settings);
	zero_settings_clear(&node_settings);
	return share;
}

struct agreed agree_on_nodes(const struct request *request, const struct survey *survey)
{
	uint64_t share = surveyed_share(request, survey);
	const struct survey_node *node = survey->node;
	struct agreed agreed = {.world = survey->tasks,
				.nodes = survey->count,
				.node = node->name,
				.budget = node->budget,
				.budget_known = node->budget_known,
				.chunk = node->chunk,
				.threshold = node->threshold,
				.limit = node->limit,
				.limit_known = node->limit_known,
				.sharing = sharing_of(node->tasks, share)};

	agreed.node_ranks = calloc(survey->count, sizeof(size_t));
	if (!agreed.node_ranks)
		exit_no_memory();
	for (size_t i = 0; i < survey->count; i++)
		agreed.node_ranks[i] = survey->node[i].tasks;
	for (size_t i = 1; i < survey->count; i++) {
		struct share_set sharing;

		node = &survey->node[i];
		sharing = sharing_of(node->tasks, share);
		if (sharing.least < agreed.sharing.least)
			agreed.sharing.least = sharing.least;
		if (sharing.most > agreed.sharing.most)
			agreed.sharing.most = sharing.most;
		if (node->budget < agreed.budget) {
			agreed.budget = node->budget;
			agreed.node = node->name;
		}
		if (node->chunk < agreed.chunk)
			agreed.chunk = node->chunk;
		if (node->threshold < agreed.threshold)
			agreed.threshold = node->threshold;
		if (node->limit < agreed.limit)
			agreed.limit = node->limit;
		agreed.limit_known = agreed.limit_known && node->limit_known;
		agreed.budget_known = agreed.budget_known && node->budget_known;
	}
	return agreed;
}

/* srun decides where ranks run: each node is taken to have as many, or sharing is not known. */
static struct share_set sharing_here(const struct plan *plan, const struct request *request,
				     struct agreed *agreed)
{
	const char *allocated = plan->is_srun ? getenv("SLURM_NNODES") : NULL;
	uint64_t setting = share_setting(request, NULL);
	struct share_set sharing = {1, 1, SHARING_UNKNOWN};

	agreed->nodes = plan->is_srun ? request->nodes : 1;
	if (!agreed->nodes && allocated)
		agreed->nodes = (size_t)strtoul(allocated, NULL, 10);
	if (agreed->nodes > agreed->world)
		agreed->nodes = agreed->world;
	if (agreed->nodes && agreed->world % agreed->nodes == 0) {
		agreed->node_ranks = calloc(agreed->nodes, sizeof(size_t));
		if (!agreed->node_ranks)
			exit_no_memory();
		for (size_t i = 0; i < agreed->nodes; i++)
			agreed->node_ranks[i] = agreed->world / agreed->nodes;
	}
	if (setting != 1 && (!agreed->nodes || agreed->world % agreed->nodes))
		return sharing;
	if (setting == 1)
		sharing = sharing_of(1, setting);
	else
		sharing = sharing_of(agreed->world / agreed->nodes, setting);
	if (agreed->nodes > 1 && sharing.most > 1)
		sharing.how = SHARING_IF_EVEN;
	return sharing;
}

struct agreed agree_here(const struct plan *plan, const struct request *request)
{
	const struct zero_value *threshold = &request->settings.value[ZERO_OPT_STREAM_THRESHOLD];
	const struct zero_value *limit = &request->settings.value[ZERO_OPT_GATHER_LIMIT];
	const char *tasks = plan->is_srun ? getenv("SLURM_NTASKS") : NULL;
	struct agreed agreed = {.node = "this machine",
				.world = request->tasks,
				.chunk = request->settings.value[ZERO_OPT_STREAM_CHUNK].number};

	if (!agreed.world && tasks)
		agreed.world = (size_t)strtoul(tasks, NULL, 10);
	/* srun's default */
	if (!agreed.world)
		agreed.world = request->nodes ? request->nodes : 1;
	agreed.budget_known = !plan->is_srun;
	if (agreed.budget_known)
		agreed.budget = zero_memory_available() / agreed.world;
	if (threshold->kind != ZERO_VALUE_AUTO)
		agreed.threshold = threshold->number;
	else if (agreed.budget_known)
		agreed.threshold = zero_auto_stream_threshold(agreed.chunk, agreed.budget);
	if (limit->kind != ZERO_VALUE_AUTO)
		agreed.limit = limit->number;
	else
		agreed.limit = zero_auto_gather_limit(agreed.budget);
	agreed.limit_known = limit->kind != ZERO_VALUE_AUTO || agreed.budget_known;
	agreed.sharing = sharing_here(plan, request, &agreed);
	return agreed;
}

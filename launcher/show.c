/* SPDX-License-Identifier: Apache-2.0 */
/* --plan: what the nodes say, what the ranks will agree on, and whether a model fits. */
#include <stdlib.h>
#include <string.h>

#include "core/available_memory.h"
#include "model.h"
#include "survey.h"

/* How many ranks share memory at a time, in the smallest set of them and in the largest. */
struct sharing {
	size_t least, most;
	enum { SHARING_KNOWN, SHARING_IF_EVEN, SHARING_UNKNOWN } how;
};

/* What all ranks come to; a threshold of 0 is not known. */
struct agreed {
	const char *node; /* that with the least budget */
	size_t world, nodes;
	uint64_t budget, chunk, threshold, limit;
	bool budget_known, limit_known;
	struct sharing sharing;
};

struct size_text {
	char text[16];
};

/* "39.2G" */
static struct size_text size_text(uint64_t bytes)
{
	static const char units[] = " KMGTPE";
	struct size_text size;
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.95 && units[unit + 1]; unit++)
		value /= 1024;
	if (unit)
		snprintf(size.text, sizeof size.text, "%.1f%c", value, units[unit]);
	else
		snprintf(size.text, sizeof size.text, "%.0f", value);
	return size;
}

static struct size_text known_size(uint64_t bytes, bool known)
{
	return known ? size_text(bytes) : (struct size_text){"-"};
}

/* ---- settings that the nodes have decided ---------------------------------------------------- */

static void set(struct zero_settings *settings, int id, const char *text, const char *origin)
{
	char why[256];

	if (zero_settings_set(settings, (enum zero_option_id)id, text, origin, why, sizeof why))
		return;
	complain("%s", why);
	exit(EXIT_FAILURE);
}

/* What a node's YAML or limits have made of an option; what they left alone keeps its origin. */
static void take_told(struct zero_settings *settings, const struct zero_settings *told,
		      const char *node)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *mine, *theirs, *origin;

		/* sizes of memory are each node's own */
		if (!told->origin[i] || zero_option_table[i].where == ZERO_IN_RESOLVED ||
		    i == ZERO_OPT_STREAM_CHUNK || i == ZERO_OPT_STREAM_THRESHOLD ||
		    i == ZERO_OPT_GATHER_LIMIT)
			continue;
		mine = setting_text(settings, i);
		theirs = setting_text(told, i);
		origin = text_of("ZERO_RESOLVED of %s", node);
		if (strcmp(mine, theirs) != 0)
			set(settings, i, theirs, origin);
		free(origin);
		free(theirs);
		free(mine);
	}
}

/* The least of the nodes, if that is known and not what was asked for. */
static void take_least(struct zero_settings *settings, int id, uint64_t least)
{
	char *text = text_of("%llu", (unsigned long long)least);

	if (settings->value[id].kind == ZERO_VALUE_AUTO || settings->value[id].number != least)
		set(settings, id, text, "least of the nodes");
	free(text);
}

/* Options that ranks must be given alike: zero_open fails otherwise. */
static void warn_unlike(FILE *out, const struct survey *survey)
{
	static const int alike[] = {ZERO_OPT_STAGE,        ZERO_OPT_ALLGATHER, ZERO_OPT_BUCKET,
				    ZERO_OPT_GATHER_DTYPE, ZERO_OPT_OFFLOAD,   ZERO_OPT_FLATTEN,
				    ZERO_OPT_SHARE,        ZERO_OPT_REDUCE,    ZERO_OPT_CHECK};
	struct zero_settings first, other;

	survey_told(&survey->node[0], &first);
	for (size_t n = 1; n < survey->count; n++) {
		survey_told(&survey->node[n], &other);
		for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++) {
			char *one = setting_text(&first, alike[i]);
			char *two = setting_text(&other, alike[i]);

			if (strcmp(one, two) != 0)
				fprintf(out,
					"# %s is %s on %s, but %s on %s: the job will be refused\n",
					zero_option_table[alike[i]].name, one, survey->node[0].name,
					two, survey->node[n].name);
			free(one);
			free(two);
		}
		zero_settings_clear(&other);
	}
	zero_settings_clear(&first);
}

/* ---- what the ranks will agree on ------------------------------------------------------------ */

/* The library shares among so many ranks of a node at a time, in the order of their ranks. */
static struct sharing sharing_of(size_t ranks, uint64_t setting)
{
	size_t most = !setting || setting > ranks ? ranks : (size_t)setting;

	return (struct sharing){.least = ranks % most ? ranks % most : most, .most = most};
}

/* Ranks with GPUs share nothing. Of `auto` only a node knows what comes of it: `told` is what the
   first one said, or NULL. */
static bool has_gpus(const struct request *request, const struct zero_settings *told)
{
	uint64_t backend = request->settings.value[ZERO_OPT_BACKEND].number;
	bool gpus = told && told->value[ZERO_OPT_VRAM_SOURCE].number == ZERO_VRAM_NVML;

	return backend == ZERO_BACKEND_CUDA || (backend == ZERO_BACKEND_AUTO && gpus);
}

static uint64_t share_setting(const struct request *request, const struct zero_settings *told)
{
	return has_gpus(request, told) ? 1 : request->settings.value[ZERO_OPT_SHARE].number;
}

static uint64_t surveyed_share(const struct request *request, const struct survey *survey)
{
	struct zero_settings told;
	uint64_t share;

	survey_told(&survey->node[0], &told);
	share = share_setting(request, &told);
	zero_settings_clear(&told);
	return share;
}

static struct agreed agree_on_nodes(const struct survey *survey, uint64_t share)
{
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

	for (size_t i = 1; i < survey->count; i++) {
		struct sharing sharing;

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

/* Where srun puts ranks is its own affair: with as many on each node, or nobody knows. */
static struct sharing sharing_here(const struct plan *plan, const struct request *request,
				   struct agreed *agreed)
{
	const char *allocated = plan->is_srun ? getenv("SLURM_NNODES") : NULL;
	uint64_t setting = share_setting(request, NULL);
	struct sharing sharing = {1, 1, SHARING_UNKNOWN};

	agreed->nodes = plan->is_srun ? request->nodes : 1;
	if (!agreed->nodes && allocated)
		agreed->nodes = (size_t)strtoul(allocated, NULL, 10);
	if (agreed->nodes > agreed->world)
		agreed->nodes = agreed->world;
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

/* Without a survey: this machine's memory, if the ranks are to run here. */
static struct agreed agree_here(const struct plan *plan, const struct request *request)
{
	const struct zero_value *threshold = &request->settings.value[ZERO_OPT_STREAM_THRESHOLD];
	const struct zero_value *limit = &request->settings.value[ZERO_OPT_GATHER_LIMIT];
	const char *tasks = plan->is_srun ? getenv("SLURM_NTASKS") : NULL;
	struct agreed agreed = {.node = "this machine",
				.world = request->tasks,
				.chunk = request->settings.value[ZERO_OPT_STREAM_CHUNK].number};

	if (!agreed.world && tasks)
		agreed.world = (size_t)strtoul(tasks, NULL, 10);
	/* what srun takes if nothing is said */
	if (!agreed.world)
		agreed.world = request->nodes ? request->nodes : 1;
	agreed.budget_known = !plan->is_srun;
	if (agreed.budget_known)
		agreed.budget = zero_memory_available() / agreed.world;
	if (threshold->kind != ZERO_VALUE_AUTO)
		agreed.threshold = threshold->number;
	else if (agreed.budget_known)
		agreed.threshold = zero_sizing_threshold(agreed.chunk, agreed.budget);
	if (limit->kind != ZERO_VALUE_AUTO)
		agreed.limit = limit->number;
	else
		agreed.limit = zero_sizing_gather_limit(agreed.budget);
	agreed.limit_known = limit->kind != ZERO_VALUE_AUTO || agreed.budget_known;
	agreed.sharing = sharing_here(plan, request, &agreed);
	return agreed;
}

/* The tier at a budget. At stage 3, where nothing is flattened, and before a model is known it is
   what was asked for. */
static const char *tier_name(const struct zero_settings *settings, const struct model *model,
			     uint64_t budget, bool budget_known, uint64_t chunk)
{
	uint64_t setting = settings->value[ZERO_OPT_FLATTEN].number;

	if (!model || !budget_known || settings->value[ZERO_OPT_STAGE].number == 3)
		return zero_option_table[ZERO_OPT_FLATTEN].choices[setting];
	return zero_tier_name(zero_sizing_device_tier(&model->sizing, setting, budget, chunk));
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void print_node(FILE *out, const struct survey_node *node, const char *tier, int width)
{
	struct zero_settings told;
	const struct zero_option *source = &zero_option_table[ZERO_OPT_VRAM_SOURCE];
	uint64_t gpus;

	survey_told(node, &told);
	gpus = told.value[ZERO_OPT_GPUS].number;
	fputs("# ", out);
	print_in_line(out, node->name, width);
	fprintf(out, " %6u %8s %8s  %-13s %9s  %-11s  ", node->tasks,
		known_size(node->free, node->budget_known).text,
		known_size(node->budget, node->budget_known).text,
		source->choices[told.value[ZERO_OPT_VRAM_SOURCE].number],
		node->threshold ? size_text(node->threshold).text : "auto", tier);
	if (gpus && told.origin[ZERO_OPT_GPU] && *told.value[ZERO_OPT_GPU].text) {
		fprintf(out, "%llu x ", (unsigned long long)gpus);
		print_in_line(out, told.value[ZERO_OPT_GPU].text, 0);
	} else {
		fprintf(out, "%llu", (unsigned long long)gpus);
	}
	fputc('\n', out);
	zero_settings_clear(&told);
}

static void print_nodes(FILE *out, const struct survey *survey,
			const struct zero_settings *settings, const struct model *model)
{
	int width = 4;

	for (size_t i = 0; i < survey->count; i++) {
		int length = (int)strlen(survey->node[i].name);

		width = length > width ? length : width;
	}
	fprintf(out, "#\n# %-*s  tasks     free   budget  %-13s threshold  %-11s  GPUs of a task\n",
		width, "node", "from", "flatten");
	for (size_t i = 0; i < survey->count; i++) {
		const struct survey_node *node = &survey->node[i];

		print_node(
			out, node,
			tier_name(settings, model, node->budget, node->budget_known, node->chunk),
			width);
	}
	warn_unlike(out, survey);
}

static void print_sharing(FILE *out, const struct agreed *agreed)
{
	const struct sharing *sharing = &agreed->sharing;

	fputs("# shared memory: ", out);
	if (sharing->how == SHARING_UNKNOWN)
		fputs("taken for none, since the tasks of each node are not known", out);
	else if (sharing->least < sharing->most)
		fprintf(out, "by %zu to %zu ranks at a time; bytes are those where fewest share",
			sharing->least, sharing->most);
	else if (sharing->most == 1)
		fputs("none", out);
	else if (sharing->most == agreed->world)
		fprintf(out, "by all %zu ranks", sharing->most);
	else
		fprintf(out, "by %zu ranks at a time", sharing->most);
	if (sharing->how == SHARING_IF_EVEN)
		fprintf(out, ", if each of %zu nodes has as many", agreed->nodes);
	fputc('\n', out);
}

static void print_agreed(FILE *out, const struct agreed *agreed, const char *tier)
{
	fprintf(out, "# all %zu ranks: budget ", agreed->world);
	if (agreed->budget_known)
		fprintf(out, "%llu", (unsigned long long)agreed->budget);
	else
		fputs("not known", out);
	fputs(", stream_threshold ", out);
	if (agreed->threshold)
		fprintf(out, "%llu", (unsigned long long)agreed->threshold);
	else
		fputs("auto", out);
	fputs(", gather_limit ", out);
	if (agreed->limit_known)
		fprintf(out, "%llu", (unsigned long long)agreed->limit);
	else
		fputs("auto", out);
	fprintf(out, ", flatten %s\n", tier);
	print_sharing(out, agreed);
}

static void print_kind(FILE *out, const char *kind, uint64_t bytes)
{
	fprintf(out, "# %-12s %8s  %llu\n", kind, size_text(bytes).text, (unsigned long long)bytes);
}

static void print_model(FILE *out, const struct model *model, const struct agreed *agreed,
			uint64_t gather_dtype)
{
	static const char *const kinds[ZERO_MEM_KINDS] = {
		[ZERO_MEM_SHARDS] = "shards",       [ZERO_MEM_GATHERED] = "gathered",
		[ZERO_MEM_GRADIENTS] = "gradients", [ZERO_MEM_OPTIMIZER] = "optimizer",
		[ZERO_MEM_STAGING] = "staging",
	};
	uint64_t bytes[ZERO_MEM_KINDS], total = zero_sizing_total(&model->sizing);

	fprintf(out,
		"#\n# the model: %zu tensors in %zu groups, %llu elements, %s\n"
		"# at stage %d each of %zu ranks holds at most, activations aside\n",
		model->tensors, model->groups, (unsigned long long)model->elements,
		size_text(model->bytes).text, model->sizing.stage, model->sizing.world);
	zero_sizing_bytes(&model->sizing, bytes);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (kinds[kind])
			print_kind(out, kinds[kind], bytes[kind]);
	print_kind(out, "total", total);
	if (model->sizing.offload)
		print_kind(out, "host memory", bytes[ZERO_MEM_OFFLOAD]);
	if (gather_dtype != ZERO_GATHER_PARAM)
		fprintf(out, "# gathered is for parameters as they are stored, not as %s\n",
			zero_option_table[ZERO_OPT_GATHER_DTYPE].choices[gather_dtype]);
	if (!agreed->budget_known) {
		fputs("# whether it fits is not known: no node has said its budget\n", out);
		return;
	}
	print_kind(out, "budget", agreed->budget);
	if (total <= agreed->budget)
		fprintf(out, "# fits: %s less than the budget of %s\n",
			size_text(agreed->budget - total).text, agreed->node);
	else
		fprintf(out, "# does not fit: %s more than the budget of %s\n",
			size_text(total - agreed->budget).text, agreed->node);
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* The option's choices are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

static int read_model(const struct request *request, const struct agreed *agreed,
		      struct model *model)
{
	const struct zero_settings *settings = &request->settings;
	struct model_layout layout = {
		.world = agreed->world,
		.share = agreed->sharing.least,
		.stage = (int)settings->value[ZERO_OPT_STAGE].number,
		.mode = (enum zero_layout_mode)settings->value[ZERO_OPT_ALLGATHER].number,
		.bucket = settings->value[ZERO_OPT_BUCKET].number,
		.device = has_gpus(request, NULL),
		.offload = settings->value[ZERO_OPT_OFFLOAD].number == ZERO_OFFLOAD_OPTIMIZER,
	};

	if (!model_read(request->model, &layout, model))
		return 0;
	complain("--model: %s", zero_last_error());
	return EXIT_FAILURE;
}

int show_plan(FILE *out, const struct plan *plan, struct request *request)
{
	const char *job = getenv("SLURM_JOB_ID");
	bool asks = plan->has_plugin && job && *job;
	struct survey survey = {0};
	struct model model, *known = NULL;
	struct agreed agreed;
	int status = asks ? survey_take(&survey, plan) : 0;

	if (status)
		goto out;
	if (asks) {
		struct zero_settings told;

		survey_told(&survey.node[0], &told);
		take_told(&request->settings, &told, survey.node[0].name);
		zero_settings_clear(&told);
	}
	if (asks)
		agreed = agree_on_nodes(&survey, surveyed_share(request, &survey));
	else
		agreed = agree_here(plan, request);
	if (asks) {
		take_least(&request->settings, ZERO_OPT_STREAM_CHUNK, agreed.chunk);
		if (agreed.threshold)
			take_least(&request->settings, ZERO_OPT_STREAM_THRESHOLD, agreed.threshold);
		if (agreed.limit_known)
			take_least(&request->settings, ZERO_OPT_GATHER_LIMIT, agreed.limit);
	}
	if (request->model) {
		known = &model;
		status = read_model(request, &agreed, known);
		if (status)
			goto out;
	}
	plan_print_options(out, &request->settings);
	if (asks)
		print_nodes(out, &survey, &request->settings, known);
	if (asks || known)
		print_agreed(out, &agreed,
			     tier_name(&request->settings, known, agreed.budget,
				       agreed.budget_known, agreed.chunk));
	if (known)
		print_model(out, known, &agreed,
			    request->settings.value[ZERO_OPT_GATHER_DTYPE].number);
	plan_print_script(out, plan);
out:
	survey_clear(&survey);
	return status;
}

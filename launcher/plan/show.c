/* SPDX-License-Identifier: Apache-2.0 */
/* --plan: what the nodes report, what the ranks will agree on, and whether a model fits. */
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "launcher/plan/agreed.h"
#include "launcher/plan/model.h"
#include "model/flatten_tier.h"

static struct zero_size known_size(uint64_t bytes, bool known)
{
	return known ? zero_size_text(bytes) : (struct zero_size){"-"};
}

/* ---- settings that the nodes have decided ---------------------------------------------------- */

static void set(struct zero_settings *settings, int id, const char *text, const char *origin)
{
	char why[256];

	if (zero_settings_set(settings, (enum zero_option_id)id, text, origin, why, sizeof why))
		return;
	print_error("%s", why);
	exit(EXIT_FAILURE);
}

/* Takes options that a node's YAML or limits have changed; others keep their origin. */
static void take_node_settings(struct zero_settings *settings,
			       const struct zero_settings *node_settings, const char *node)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *mine, *theirs, *origin;

		/* each node has its own sizes of memory */
		if (!node_settings->origin[i] || zero_option_table[i].where == ZERO_IN_RESOLVED ||
		    i == ZERO_OPT_STREAM_CHUNK || i == ZERO_OPT_STREAM_THRESHOLD ||
		    i == ZERO_OPT_GATHER_LIMIT)
			continue;
		mine = setting_text(settings, i);
		theirs = setting_text(node_settings, i);
		origin = format_text("ZERO_RESOLVED of %s", node);
		if (strcmp(mine, theirs) != 0)
			set(settings, i, theirs, origin);
		free(origin);
		free(theirs);
		free(mine);
	}
}

/* Takes the least of the nodes, if it is known and not the value that the user set. */
static void take_least(struct zero_settings *settings, int id, uint64_t least)
{
	char *text = format_text("%llu", (unsigned long long)least);

	if (settings->value[id].kind == ZERO_VALUE_AUTO || settings->value[id].number != least)
		set(settings, id, text, "least of the nodes");
	free(text);
}

/* zero_open fails if these options differ between ranks. */
static void warn_unlike(FILE *out, const struct survey *survey)
{
	static const int alike[] = {ZERO_OPT_STAGE,        ZERO_OPT_ALLGATHER, ZERO_OPT_BUCKET,
				    ZERO_OPT_GATHER_DTYPE, ZERO_OPT_OFFLOAD,   ZERO_OPT_STATES,
				    ZERO_OPT_FLATTEN,      ZERO_OPT_SHARE,     ZERO_OPT_REDUCE,
				    ZERO_OPT_CHECK,        ZERO_OPT_SHARD};
	struct zero_settings first, other;

	survey_settings(&survey->node[0], &first);
	for (size_t n = 1; n < survey->count; n++) {
		survey_settings(&survey->node[n], &other);
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

/* The flatten tier at a budget; the setting, where no model is given or, as at stage 3, nothing is
   flattened. */
static const char *tier_name(const struct zero_settings *settings, const struct model *model,
			     uint64_t budget, bool budget_known, uint64_t chunk)
{
	uint64_t setting = settings->value[ZERO_OPT_FLATTEN].number;

	if (!model || !budget_known || settings->value[ZERO_OPT_STAGE].number == 3)
		return zero_option_table[ZERO_OPT_FLATTEN].choices[setting];
	return zero_tier_name(zero_tier_forecast(&model->sizing, setting, budget, chunk));
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void print_node(FILE *out, const struct survey_node *node, const char *tier, int width)
{
	struct zero_settings node_settings;
	const struct zero_option *source = &zero_option_table[ZERO_OPT_VRAM_SOURCE];
	uint64_t gpus;

	survey_settings(node, &node_settings);
	gpus = node_settings.value[ZERO_OPT_GPUS].number;
	fputs("# ", out);
	print_in_line(out, node->name, width);
	fprintf(out, " %6u %8s %8s  %-13s %9s  %-11s  ", node->tasks,
		known_size(node->free, node->budget_known).text,
		known_size(node->budget, node->budget_known).text,
		source->choices[node_settings.value[ZERO_OPT_VRAM_SOURCE].number],
		node->threshold ? zero_size_text(node->threshold).text : "auto", tier);
	if (gpus && node_settings.origin[ZERO_OPT_GPU] && *node_settings.value[ZERO_OPT_GPU].text) {
		fprintf(out, "%llu x ", (unsigned long long)gpus);
		print_in_line(out, node_settings.value[ZERO_OPT_GPU].text, 0);
	} else {
		fprintf(out, "%llu", (unsigned long long)gpus);
	}
	fputc('\n', out);
	zero_settings_clear(&node_settings);
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
	const struct share_set *sharing = &agreed->sharing;

	fputs("# shared memory: ", out);
	if (sharing->how == SHARING_UNKNOWN)
		fputs("assumed to be none, since the number of tasks of each node is not known",
		      out);
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

/* What each rank needs, by how many of them store a copy. */
struct shard_sizes {
	struct {
		size_t ranks;
		uint64_t bytes;
	} * size;
	size_t count;
};

static void shard_sizes_add(struct shard_sizes *sizes, size_t ranks, uint64_t bytes)
{
	sizes->size = realloc(sizes->size, (sizes->count + 1) * sizeof(*sizes->size));
	if (!sizes->size)
		exit_no_memory();
	sizes->size[sizes->count].ranks = ranks;
	sizes->size[sizes->count++].bytes = bytes;
}

static void print_kind(FILE *out, const char *kind, uint64_t bytes)
{
	fprintf(out, "# %-12s %8s  %llu\n", kind, zero_size_text(bytes).text,
		(unsigned long long)bytes);
}

/* What a rank needs with each size of teams; the one that is taken is marked. */
static void print_shard_sizes(FILE *out, const struct shard_sizes *sizes, size_t taken,
			      bool is_auto)
{
	if (!sizes->count) {
		if (is_auto)
			fputs("# shard auto: what is taken is not known, since the ranks of each "
			      "node or their budget are not; below it is all\n",
			      out);
		return;
	}
	fputs("#\n# shard auto: ranks that store a copy, and what each rank then needs\n", out);
	for (size_t i = 0; i < sizes->count; i++)
		fprintf(out, "# %-12zu %8s  %llu%s\n", sizes->size[i].ranks,
			zero_size_text(sizes->size[i].bytes).text,
			(unsigned long long)sizes->size[i].bytes,
			sizes->size[i].ranks == taken ? "  <-" : "");
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
		"# at stage %d each of %zu ranks needs at most, without activations\n",
		model->tensors, model->groups, (unsigned long long)model->elements,
		zero_size_text(model->bytes).text, model->sizing.stage, model->sizing.world);
	if (model->sizing.team)
		fprintf(out, "# of which each %zu store a copy between them\n", model->sizing.team);
	zero_sizing_bytes(&model->sizing, bytes);
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++)
		if (kinds[kind])
			print_kind(out, kinds[kind], bytes[kind]);
	print_kind(out, "total", total);
	if (model->sizing.offload)
		print_kind(out, "host memory", bytes[ZERO_MEM_OFFLOAD]);
	if (model->matrices)
		fprintf(out,
			"# Muon, if it steps the %zu matrices of layers: the busiest rank has "
			"%.2f of the mean\n",
			model->matrices, model->balance);
	if (gather_dtype != ZERO_GATHER_PARAM)
		fprintf(out, "# gathered is for parameters as they are stored, not as %s\n",
			zero_option_table[ZERO_OPT_GATHER_DTYPE].choices[gather_dtype]);
	if (!agreed->budget_known) {
		fputs("# whether it fits is not known: no node has reported its budget\n", out);
		return;
	}
	print_kind(out, "budget", agreed->budget);
	if (total <= agreed->budget)
		fprintf(out, "# fits: %s less than the budget of %s\n",
			zero_size_text(agreed->budget - total).text, agreed->node);
	else
		fprintf(out, "# does not fit: %s more than the budget of %s\n",
			zero_size_text(total - agreed->budget).text, agreed->node);
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* The option's choices are the layout's modes. */
_Static_assert((int)ZERO_ALLGATHER_SINGLE == (int)ZERO_LAYOUT_SINGLE &&
		       (int)ZERO_ALLGATHER_GROUPED == (int)ZERO_LAYOUT_GROUPED,
	       "choices of the option allgather");

static int read_with(const struct request *request, const struct model_layout *layout,
		     struct model *model)
{
	if (!model_read(request->model, layout, model))
		return 0;
	print_error("--model: %s", zero_last_error());
	return EXIT_FAILURE;
}

/* The ranks that store a copy by the setting; 0 for `auto`, if what it needs is known. */
static size_t shard_setting(const struct request *request, const struct agreed *agreed)
{
	uint64_t setting = request->settings.value[ZERO_OPT_SHARD].number;

	if (setting < ZERO_SHARD_ALL)
		return setting;
	if (setting == ZERO_SHARD_NODE && agreed->node_ranks)
		return agreed->node_ranks[0];
	return setting == ZERO_SHARD_AUTO && agreed->node_ranks && agreed->budget_known
		       ? 0
		       : agreed->world;
}

/* Sizes the model for all teams that `auto` chooses from, and takes the first that fits, as the ranks
   will; or that of the setting. */
static int read_sharded(const struct request *request, const struct agreed *agreed,
			struct model_layout *layout, struct model *model, struct shard_sizes *sizes)
{
	size_t taken = shard_setting(request, agreed), fits = 0, ranks = 0;
	int status = 0;

	if (taken && agreed->world % taken) {
		print_error("shard is %zu, which does not divide the %zu ranks of the job", taken,
			    agreed->world);
		return EXIT_FAILURE;
	}
	while (!status && !taken && ranks < agreed->world) {
		uint64_t bytes;

		ranks = zero_grid_size_above(agreed->node_ranks, agreed->nodes, ranks);
		layout->team = ranks;
		status = read_with(request, layout, model);
		bytes = zero_sizing_total(&model->sizing);
		shard_sizes_add(sizes, ranks, bytes);
		if (!fits && bytes <= agreed->budget)
			fits = ranks;
	}
	layout->team = taken ? taken : fits ? fits : agreed->world;
	return status ? status : read_with(request, layout, model);
}

static int read_model(const struct request *request, const struct agreed *agreed,
		      struct model *model, struct shard_sizes *sizes)
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
		.states_8bit = settings->value[ZERO_OPT_STATES].number == ZERO_STATES_8BIT,
	};

	return layout.stage == 3 ? read_sharded(request, agreed, &layout, model, sizes)
				 : read_with(request, &layout, model);
}

int show_plan(FILE *out, const struct plan *plan, struct request *request)
{
	const char *job = getenv("SLURM_JOB_ID");
	bool has_survey = plan->has_plugin && job && *job;
	struct survey survey = {0};
	struct model model, *known = NULL;
	struct shard_sizes sizes = {0};
	struct agreed agreed = {0};
	int status = has_survey ? survey_run(&survey, plan) : 0;

	if (status)
		goto out;
	if (has_survey) {
		struct zero_settings node_settings;

		survey_settings(&survey.node[0], &node_settings);
		take_node_settings(&request->settings, &node_settings, survey.node[0].name);
		zero_settings_clear(&node_settings);
	}
	if (has_survey)
		agreed = agree_on_nodes(request, &survey);
	else
		agreed = agree_here(plan, request);
	if (has_survey) {
		take_least(&request->settings, ZERO_OPT_STREAM_CHUNK, agreed.chunk);
		if (agreed.threshold)
			take_least(&request->settings, ZERO_OPT_STREAM_THRESHOLD, agreed.threshold);
		if (agreed.limit_known)
			take_least(&request->settings, ZERO_OPT_GATHER_LIMIT, agreed.limit);
	}
	if (request->model) {
		known = &model;
		status = read_model(request, &agreed, known, &sizes);
		if (status)
			goto out;
	}
	plan_print_options(out, &request->settings);
	if (has_survey)
		print_nodes(out, &survey, &request->settings, known);
	if (has_survey || known)
		print_agreed(out, &agreed,
			     tier_name(&request->settings, known, agreed.budget,
				       agreed.budget_known, agreed.chunk));
	if (known) {
		print_shard_sizes(
			out, &sizes, known->sizing.team ? known->sizing.team : agreed.world,
			known->sizing.stage == 3 &&
				request->settings.value[ZERO_OPT_SHARD].number == ZERO_SHARD_AUTO);
		print_model(out, known, &agreed,
			    request->settings.value[ZERO_OPT_GATHER_DTYPE].number);
	}
	plan_print_script(out, plan);
out:
	free(sizes.size);
	free(agreed.node_ranks);
	survey_clear(&survey);
	return status;
}

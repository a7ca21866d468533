/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --plan: what the nodes report, what the ranks will agree on, and whether a model fits. What they
 * come to is computed by libzero, for a job that is never opened.
 */
#include <stdlib.h>
#include <string.h>

#include "core/available_memory.h"
#include "launcher/plan/model.h"
#include "launcher/plan/survey.h"
#include "train/train.h"

/* How many ranks share memory at a time, in the smallest set of them and in the largest. */
struct sharing {
	size_t least, most;
	bool known;
};

struct forecast {
	struct survey survey;
	struct zero_settings *settings; /* what all ranks will agree on; the request's */
	struct sharing sharing;
	struct model model;
	struct zero_sizing sizing; /* of the model */
	bool has_model;
};

static struct zero_size known_size(uint64_t bytes, bool known)
{
	return known ? zero_size_text(bytes) : (struct zero_size){"-"};
}

/* Those of a node share memory, up to ZERO_SHARE of them in order of rank, or all for 0. */
static struct sharing find_sharing(const struct survey *survey,
				   const struct zero_settings *settings)
{
	const struct zero_value *value = settings->value;
	uint64_t backend = value[ZERO_OPT_BACKEND].number, setting = value[ZERO_OPT_SHARE].number;
	struct sharing sharing = {.least = 1, .most = 1};

	/* ranks with GPUs share none; what backend=auto becomes is known to a node alone */
	if (backend == ZERO_BACKEND_CUDA ||
	    (backend == ZERO_BACKEND_AUTO && value[ZERO_OPT_VRAM_SOURCE].number == ZERO_VRAM_NVML))
		setting = 1;
	sharing.known = survey->count || setting == 1;
	for (size_t i = 0; i < survey->count; i++) {
		size_t ranks = survey->ranks[i];
		size_t most = !setting || setting > ranks ? ranks : (size_t)setting;
		size_t least = ranks % most ? ranks % most : most;

		sharing.least = i && sharing.least < least ? sharing.least : least;
		sharing.most = i && sharing.most > most ? sharing.most : most;
	}
	return sharing;
}

static struct zero_nodes nodes_of(const struct survey *survey)
{
	return (struct zero_nodes){.count = survey->count, .ranks = survey->ranks};
}

/* Whether `auto` chooses how many ranks store a copy, and whether it is known what that comes
   to. */
static bool shard_is_auto(const struct forecast *forecast)
{
	const struct zero_value *value = forecast->settings->value;

	return value[ZERO_OPT_STAGE].number == 3 && value[ZERO_OPT_SHARD].number == ZERO_SHARD_AUTO;
}

static bool shard_is_known(const struct forecast *forecast)
{
	return forecast->survey.count && zero_settings_budget_known(forecast->settings);
}

/* 0, or the exit status after an error. */
static int size_model(struct forecast *forecast, const char *path)
{
	struct model *model = &forecast->model;
	struct zero_nodes nodes = nodes_of(&forecast->survey);
	size_t size = forecast->survey.world;
	zero_status status;

	forecast->has_model = true;
	zero_planned_begin(&model->of, forecast->settings, size, forecast->sharing.least);
	status = model_read(model, path);
	if (!status && shard_is_auto(forecast) && shard_is_known(forecast))
		status = zero_grid_fit(&model->of.job, &nodes, &size);
	else if (!status && model->of.job.stage == 3)
		status = zero_grid_setting(&model->of.job, &nodes, &size);
	if (!status)
		status = zero_grid_measure(&model->of.job, size, &forecast->sizing);
	if (status)
		print_error("--model: %s", zero_last_error());
	return status ? EXIT_FAILURE : 0;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* zero_open fails if these options differ between ranks. */
static void warn_unlike(FILE *out, const struct survey_node *first, const struct survey_node *other)
{
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *one, *two;

		if (zero_option_agreement((enum zero_option_id)i) != ZERO_AGREE_EQUAL ||
		    first->settings.value[i].number == other->settings.value[i].number)
			continue;
		one = setting_text(&first->settings, i);
		two = setting_text(&other->settings, i);
		fprintf(out, "# %s is %s on %s, but %s on %s: the job will be refused\n",
			zero_option_table[i].name, one, first->name, two, other->name);
		free(one);
		free(two);
	}
}

/* The flatten tier at the settings' budget; the option, where no model is given or, as at stage 3,
   nothing is flattened. */
static const char *tier_name(const struct forecast *forecast, const struct zero_settings *settings)
{
	uint64_t setting = forecast->settings->value[ZERO_OPT_FLATTEN].number;

	if (!forecast->has_model || !zero_settings_budget_known(settings) ||
	    forecast->sizing.stage == 3)
		return zero_option_table[ZERO_OPT_FLATTEN].choices[setting];
	return zero_tier_name(zero_tier_forecast(&forecast->sizing, setting,
						 settings->value[ZERO_OPT_BUDGET].number,
						 settings->value[ZERO_OPT_STREAM_CHUNK].number));
}

static void print_node(FILE *out, const struct forecast *forecast, size_t i, int width)
{
	const struct survey_node *node = &forecast->survey.node[i];
	const struct zero_value *value = node->settings.value;
	bool known = zero_settings_budget_known(&node->settings);
	const struct zero_value *threshold = &value[ZERO_OPT_STREAM_THRESHOLD];

	fputs("# ", out);
	print_in_line(out, node->name, width);
	fprintf(out, " %6zu %8s %8s  %-13s %9s  %-11s  ", forecast->survey.ranks[i],
		known_size(value[ZERO_OPT_VRAM_FREE].number, known).text,
		known_size(value[ZERO_OPT_BUDGET].number, known).text,
		zero_option_table[ZERO_OPT_VRAM_SOURCE].choices[value[ZERO_OPT_VRAM_SOURCE].number],
		threshold->kind == ZERO_VALUE_AUTO ? "auto"
						   : zero_size_text(threshold->number).text,
		tier_name(forecast, &node->settings));
	fprintf(out, "%llu", (unsigned long long)value[ZERO_OPT_GPUS].number);
	if (value[ZERO_OPT_GPUS].number && value[ZERO_OPT_GPU].text && *value[ZERO_OPT_GPU].text) {
		fputs(" x ", out);
		print_in_line(out, value[ZERO_OPT_GPU].text, 0);
	}
	fputc('\n', out);
}

static void print_nodes(FILE *out, const struct forecast *forecast)
{
	const struct survey *survey = &forecast->survey;
	int width = 4;

	for (size_t i = 0; i < survey->count; i++) {
		int length = (int)strlen(survey->node[i].name);

		width = length > width ? length : width;
	}
	fprintf(out, "#\n# %-*s  tasks     free   budget  %-13s threshold  %-11s  GPUs of a task\n",
		width, "node", "from", "flatten");
	for (size_t i = 0; i < survey->count; i++)
		print_node(out, forecast, i, width);
	for (size_t i = 1; i < survey->count; i++)
		warn_unlike(out, survey->node, &survey->node[i]);
}

static void print_sharing(FILE *out, const struct forecast *forecast)
{
	const struct sharing *sharing = &forecast->sharing;
	const struct survey *survey = &forecast->survey;

	fputs("# shared memory: ", out);
	if (!sharing->known)
		fputs("assumed to be none, since the number of tasks of each node is not known",
		      out);
	else if (sharing->least < sharing->most)
		fprintf(out, "by %zu to %zu ranks at a time; bytes are those where fewest share",
			sharing->least, sharing->most);
	else if (sharing->most == 1)
		fputs("none", out);
	else if (sharing->most == survey->world)
		fprintf(out, "by all %zu ranks", sharing->most);
	else
		fprintf(out, "by %zu ranks at a time", sharing->most);
	if (!survey->node && survey->count > 1 && sharing->most > 1)
		fprintf(out, ", if each of %zu nodes has as many", survey->count);
	fputc('\n', out);
}

static void print_agreed(FILE *out, const struct forecast *forecast)
{
	const struct zero_settings *settings = forecast->settings;
	char *budget = setting_text(settings, ZERO_OPT_BUDGET);
	char *threshold = setting_text(settings, ZERO_OPT_STREAM_THRESHOLD);
	char *limit = setting_text(settings, ZERO_OPT_GATHER_LIMIT);

	fprintf(out,
		"# all %zu ranks: budget %s, stream_threshold %s, gather_limit %s, flatten %s\n",
		forecast->survey.world, zero_settings_budget_known(settings) ? budget : "not known",
		threshold, limit, tier_name(forecast, settings));
	free(limit);
	free(threshold);
	free(budget);
	print_sharing(out, forecast);
}

static void print_kind(FILE *out, const char *kind, uint64_t bytes)
{
	fprintf(out, "# %-12s %8s  %llu\n", kind, zero_size_text(bytes).text,
		(unsigned long long)bytes);
}

/* What a rank needs with each size of teams; the one that is taken is marked. */
static zero_status print_shard_sizes(FILE *out, const struct forecast *forecast)
{
	const struct zero_job *job = &forecast->model.of.job;
	size_t world = forecast->survey.world, size = 0;
	size_t taken = forecast->sizing.team ? forecast->sizing.team : world;
	struct zero_nodes nodes = nodes_of(&forecast->survey);
	zero_status status = ZERO_OK;

	if (!shard_is_known(forecast)) {
		fputs("# shard auto: what is taken is not known, since the ranks of each node or "
		      "their budget are not; below it is all\n",
		      out);
		return ZERO_OK;
	}
	fputs("#\n# shard auto: ranks that store a copy, and what each rank then needs\n", out);
	while (!status && size < world) {
		struct zero_sizing sizing;
		uint64_t bytes;

		size = zero_grid_size_above(nodes.ranks, nodes.count, size);
		status = zero_grid_measure(job, size, &sizing);
		bytes = zero_sizing_total(&sizing);
		fprintf(out, "# %-12zu %8s  %llu%s\n", size, zero_size_text(bytes).text,
			(unsigned long long)bytes, size == taken ? "  <-" : "");
	}
	return status;
}

/* How evenly Muon's matrices would be dealt out. */
static zero_status print_muon(FILE *out, struct forecast *forecast)
{
	size_t matrices;
	double balance;
	zero_status status = zero_muon_balance(&forecast->model.of.job, &matrices, &balance);

	if (!status && matrices)
		fprintf(out,
			"# Muon, if it steps the %zu matrices of layers: the busiest rank has "
			"%.2f of the mean\n",
			matrices, balance);
	return status;
}

/* Two protections of each rank of the node that has most, and those of as many partners. */
static void print_protected(FILE *out, const struct forecast *forecast)
{
	const struct survey *survey = &forecast->survey;
	uint64_t bytes = 0, files = survey->count > 1 ? 4 : 2;

	for (size_t i = 0; i < survey->count; i++)
		if (files * survey->ranks[i] * forecast->sizing.saved > bytes)
			bytes = files * survey->ranks[i] * forecast->sizing.saved;
	if (!bytes || forecast->settings->value[ZERO_OPT_PROTECT].number == ZERO_PROTECT_NO)
		return;
	print_kind(out, "protected", bytes);
	fputs("# protected is memory of a node, if the program protects: it counts against the "
	      "job's limit\n",
	      out);
}

static void print_fit(FILE *out, const struct forecast *forecast, uint64_t total)
{
	uint64_t budget = forecast->settings->value[ZERO_OPT_BUDGET].number;
	const struct survey *survey = &forecast->survey;
	const char *node =
		survey->node ? survey_least(survey, ZERO_OPT_BUDGET)->name : "this machine";

	if (!zero_settings_budget_known(forecast->settings)) {
		fputs("# whether it fits is not known: no node has reported its budget\n", out);
		return;
	}
	print_kind(out, "budget", budget);
	if (total <= budget)
		fprintf(out, "# fits: %s less than the budget of %s\n",
			zero_size_text(budget - total).text, node);
	else
		fprintf(out, "# does not fit: %s more than the budget of %s\n",
			zero_size_text(total - budget).text, node);
}

static zero_status print_model(FILE *out, struct forecast *forecast)
{
	const struct model *model = &forecast->model;
	const struct zero_sizing *sizing = &forecast->sizing;
	uint64_t gather_dtype = forecast->settings->value[ZERO_OPT_GATHER_DTYPE].number;
	uint64_t bytes[ZERO_MEM_KINDS], total = zero_sizing_total(sizing);
	zero_status status;

	fprintf(out,
		"#\n# the model: %zu tensors in %zu groups, %llu elements, %s\n"
		"# at stage %d each of %zu ranks needs at most, without activations\n",
		model->tensors, sizing->groups, (unsigned long long)model->elements,
		zero_size_text(model->bytes).text, sizing->stage, sizing->world);
	if (sizing->streamed.count) {
		fprintf(out, "# streamed parameters: %zu, the largest ", sizing->streamed.count);
		print_in_line(out, sizing->streamed.largest, 0);
		fprintf(out, " of %s in %llu slices of %s\n",
			zero_size_text(sizing->streamed.bytes).text,
			(unsigned long long)sizing->streamed.slices,
			zero_size_text(sizing->streamed.slice_bytes).text);
	}
	if (sizing->team)
		fprintf(out, "# of which each %zu store a copy between them\n", sizing->team);
	zero_sizing_bytes(sizing, bytes);
	for (enum zero_memory_kind kind = ZERO_MEM_SHARDS; kind <= ZERO_MEM_STAGING; kind++)
		print_kind(out, zero_memory_kind_short(kind), bytes[kind]);
	print_kind(out, "total", total);
	if (sizing->offload)
		print_kind(out, "host memory", bytes[ZERO_MEM_OFFLOAD]);
	status = print_muon(out, forecast);
	if (gather_dtype != ZERO_GATHER_PARAM)
		fprintf(out, "# gathered is for parameters as they are stored, not as %s\n",
			zero_option_table[ZERO_OPT_GATHER_DTYPE].choices[gather_dtype]);
	print_fit(out, forecast, total);
	print_protected(out, forecast);
	return status;
}

/* ---- the plan -------------------------------------------------------------------------------- */

/* Of mpirun, whose ranks are to run here. */
static void measure_here(struct zero_settings *settings, size_t world)
{
	static const char origin[] = "this machine";
	char *budget = format_text("%llu", (unsigned long long)zero_memory_available() / world);
	char why[256];

	if (!zero_settings_set(settings, ZERO_OPT_BUDGET, budget, origin, why, sizeof why) ||
	    !zero_settings_set(settings, ZERO_OPT_VRAM_SOURCE, "mem_available", origin, why,
			       sizeof why))
		exit_no_memory();
	free(budget);
	zero_settings_set_sizes(settings);
}

int show_plan(FILE *out, const struct plan *plan, struct request *request)
{
	const char *job = getenv("SLURM_JOB_ID");
	bool asks = plan->has_plugin && job && *job;
	struct forecast forecast = {.settings = &request->settings};
	struct survey *survey = &forecast.survey;
	int status = asks ? survey_run(survey, plan) : 0;

	if (status)
		goto out;
	if (asks)
		survey_agree(survey, &request->settings);
	else
		survey_guess(survey, plan, request);
	if (request->model && !plan->is_srun)
		measure_here(&request->settings, survey->world);
	forecast.sharing = find_sharing(survey, &request->settings);
	if (request->model)
		status = size_model(&forecast, request->model);
	if (status)
		goto out;
	plan_print_options(out, &request->settings);
	if (asks)
		print_nodes(out, &forecast);
	if (asks || request->model)
		print_agreed(out, &forecast);
	if ((request->model && shard_is_auto(&forecast) && print_shard_sizes(out, &forecast)) ||
	    (request->model && print_model(out, &forecast))) {
		print_error("--model: %s", zero_last_error());
		status = EXIT_FAILURE;
		goto out;
	}
	plan_print_script(out, plan);
out:
	zero_planned_end(&forecast.model.of);
	survey_clear(survey);
	return status;
}

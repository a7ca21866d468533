/* SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/survey.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/job.h"

/* A task's line begins so; a site's scripts may print others. */
static const char marker[] = "zerorun-node-report ";

/* ---- a task of the step ---------------------------------------------------------------------- */

int survey_report(FILE *out)
{
	const char *node = getenv("SLURMD_NODENAME"), *resolved = getenv("ZERO_RESOLVED");

	if (!node || !resolved) {
		print_error(
			"node %s: ZERO_RESOLVED is not set: Slurm's plugin did not run for this "
			"task",
			node ? node : "?");
		return EXIT_FAILURE;
	}
	/* in one write, so that tasks' lines do not mix */
	fprintf(out, "%s%s %s\n", marker, node, resolved);
	return fflush(out) == 0 ? 0 : EXIT_FAILURE;
}

/* ---- what the tasks reported ----------------------------------------------------------------- */

/* Parses one line, in place. False after an error. */
static bool read_report(struct survey_node *task, char *line)
{
	char *space = strchr(line, ' '), why[512];

	if (!space) {
		print_error("node '%.100s' reported nothing", line);
		return false;
	}
	*space = '\0';
	*task = (struct survey_node){.name = line};
	if (!zero_settings_parse(&task->settings, space + 1, "ZERO_RESOLVED", why, sizeof why)) {
		print_error("node %s: %s", task->name, why);
		return false;
	}
	/* of an unknown budget, sizes stay `auto` */
	if (zero_settings_budget_known(&task->settings))
		zero_settings_set_sizes(&task->settings);
	return true;
}

/* Whether the least of an option counts: 0, too, for what is not known. */
static bool is_least(int id)
{
	return zero_option_agreement((enum zero_option_id)id) == ZERO_AGREE_LEAST ||
	       id == ZERO_OPT_VRAM_FREE || id == ZERO_OPT_VRAM_SOURCE;
}

/* "n2" comes before "n10". */
static int by_name(const void *left, const void *right)
{
	const struct survey_node *a = left, *b = right;

	return strverscmp(a->name, b->name);
}

/* Tasks of one node become one entry. */
static void merge(struct survey *survey)
{
	struct survey_node *node = survey->node;
	size_t count = 0;

	qsort(node, survey->world, sizeof *node, by_name);
	for (size_t task = 0; task < survey->world; task++) {
		if (!count || strcmp(node[task].name, node[count - 1].name) != 0) {
			node[count] = node[task];
			survey->ranks[count++] = 1;
			continue;
		}
		survey->ranks[count - 1]++;
		for (int i = 0; i < ZERO_OPTIONS; i++) {
			struct zero_value *least = &node[count - 1].settings.value[i];

			if (is_least(i) && node[task].settings.value[i].number < least->number)
				*least = node[task].settings.value[i];
		}
		zero_settings_clear(&node[task].settings);
	}
	survey->count = count;
}

/* Parses what the tasks printed. */
static int read_reports(struct survey *survey)
{
	size_t lines = 1;

	for (const char *c = survey->text; *c; c++)
		lines += *c == '\n';
	survey->node = calloc(lines, sizeof *survey->node);
	survey->ranks = calloc(lines, sizeof *survey->ranks);
	if (!survey->node || !survey->ranks)
		exit_no_memory();
	for (char *line = survey->text, *end; line; line = end) {
		end = strchr(line, '\n');
		if (end)
			*end++ = '\0';
		/* srun may have put a label before it */
		line = strstr(line, marker);
		if (!line)
			continue;
		if (!read_report(&survey->node[survey->world], line + strlen(marker)))
			return EXIT_FAILURE;
		survey->world++;
	}
	merge(survey);
	if (survey->count)
		return 0;
	print_error("no node has reported its options");
	return EXIT_FAILURE;
}

void survey_clear(struct survey *survey)
{
	for (size_t i = 0; survey->node && i < survey->count; i++)
		zero_settings_clear(&survey->node[i].settings);
	free(survey->node);
	free(survey->ranks);
	free(survey->text);
	*survey = (struct survey){0};
}

const struct survey_node *survey_least(const struct survey *survey, int id)
{
	const struct survey_node *least = survey->node;

	for (size_t i = 1; i < survey->count; i++)
		if (survey->node[i].settings.value[id].number < least->settings.value[id].number)
			least = &survey->node[i];
	return least;
}

void survey_agree(const struct survey *survey, struct zero_settings *settings)
{
	char why[256];

	for (int i = 0; i < ZERO_OPTIONS; i++) {
		const struct survey_node *node =
			is_least(i) ? survey_least(survey, i) : survey->node;
		char *mine, *theirs, *from, *origin;

		/* other facts are each node's own */
		if (!node->settings.origin[i] ||
		    (zero_option_table[i].where == ZERO_IN_RESOLVED && !is_least(i)))
			continue;
		mine = setting_text(settings, i);
		theirs = setting_text(&node->settings, i);
		from = zero_settings_origin(&node->settings, (enum zero_option_id)i);
		origin = format_text("%s of %s", from ? from : "", node->name);
		if (strcmp(mine, theirs) != 0 &&
		    !zero_settings_set(settings, (enum zero_option_id)i, theirs, origin, why,
				       sizeof why)) {
			print_error("%s", why);
			exit(EXIT_FAILURE);
		}
		free(origin);
		free(from);
		free(theirs);
		free(mine);
	}
}

/* ---- without the step ------------------------------------------------------------------------ */

static size_t number_of(const char *variable, const struct plan *plan)
{
	const char *text = plan->is_srun ? getenv(variable) : NULL;

	return text ? (size_t)strtoul(text, NULL, 10) : 0;
}

void survey_guess(struct survey *survey, const struct plan *plan, const struct request *request)
{
	size_t nodes = plan->is_srun ? request->nodes : 1;

	survey->world = request->tasks ? request->tasks : number_of("SLURM_NTASKS", plan);
	/* srun's default */
	if (!survey->world)
		survey->world = request->nodes ? request->nodes : 1;
	if (!nodes)
		nodes = number_of("SLURM_NNODES", plan);
	if (nodes > survey->world)
		nodes = survey->world;
	if (!nodes || survey->world % nodes)
		return;
	survey->ranks = calloc(nodes, sizeof *survey->ranks);
	if (!survey->ranks)
		exit_no_memory();
	for (survey->count = 0; survey->count < nodes; survey->count++)
		survey->ranks[survey->count] = survey->world / nodes;
}

/* ---- the step -------------------------------------------------------------------------------- */

int survey_run(struct survey *survey, const struct plan *plan)
{
	char self[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	struct strings argv = {0};
	int status;

	self[length > 0 ? length : 0] = '\0';
	for (size_t i = 0; i < plan->program; i++)
		strings_add(&argv, format_text("%s", plan->argv.item[i]));
	/* another step may run already, and the user may have redirected the ranks' output */
	strings_add(&argv, format_text("--overlap"));
	strings_add(&argv, format_text("--output=all"));
	strings_add(&argv, format_text("%s", self));
	strings_add(&argv, format_text("%s", SURVEY_FLAG));
	survey->text = run_program(argv.item, false, &status);
	strings_clear(&argv);
	if (!status)
		return read_reports(survey);
	print_error("no plan: the step that asks the nodes for their options ended with status %d",
		    status);
	return status;
}

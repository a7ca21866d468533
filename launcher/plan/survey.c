/* SPDX-License-Identifier: Apache-2.0 */
#include "core/auto_sizes.h"
#include "launcher/plan/survey.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/plan/find.h"
#include "model/sizing.h"

/* A task's line begins so; a site's scripts may print others. */
static const char marker[] = "zerorun-node-report ";

/* ---- a task of the step ---------------------------------------------------------------------- */

int survey_report(FILE *out)
{
	const char *node = getenv("SLURMD_NODENAME"), *resolved = getenv("ZERO_RESOLVED");
	struct zero_settings settings = {0};
	char host[HOST_NAME_MAX + 1] = "", why[512];

	gethostname(host, sizeof host - 1);
	node = node && *node ? node : host;
	if (!resolved) {
		print_error(
			"node %s: ZERO_RESOLVED is not set: Slurm's plugin did not run for this "
			"task",
			node);
		return EXIT_FAILURE;
	}
	if (!zero_settings_parse(&settings, resolved, "ZERO_RESOLVED", why, sizeof why)) {
		print_error("node %s: %s", node, why);
		return EXIT_FAILURE;
	}
	zero_settings_clear(&settings);
	/* in one write, so that tasks' lines do not mix */
	fprintf(out, "%s%s %s\n", marker, node, resolved);
	return fflush(out) == 0 ? 0 : EXIT_FAILURE;
}

/* ---- what the tasks reported ----------------------------------------------------------------- */

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

void survey_settings(const struct survey_node *node, struct zero_settings *settings)
{
	char why[512];

	*settings = (struct zero_settings){0};
	if (zero_settings_parse(settings, node->resolved, node->name, why, sizeof why))
		return;
	print_error("%s", why);
	exit(EXIT_FAILURE);
}

/* Parses one line, in place. False after an error. */
static bool read_report(struct survey_node *node, char *line)
{
	const struct zero_value *threshold, *limit;
	bool limited;
	struct zero_settings settings = {0};
	char *space = strchr(line, ' '), why[512];

	if (!space) {
		print_error("node '%.100s' reported nothing", line);
		return false;
	}
	*space = '\0';
	*node = (struct survey_node){.name = line, .resolved = space + 1, .tasks = 1};
	if (!zero_settings_parse(&settings, node->resolved, "ZERO_RESOLVED", why, sizeof why)) {
		print_error("node %s: %s", node->name, why);
		return false;
	}
	node->free = settings.value[ZERO_OPT_VRAM_FREE].number;
	node->budget = settings.value[ZERO_OPT_BUDGET].number;
	node->chunk = settings.value[ZERO_OPT_STREAM_CHUNK].number;
	threshold = &settings.value[ZERO_OPT_STREAM_THRESHOLD];
	node->budget_known = zero_settings_budget_known(&settings);
	if (threshold->kind != ZERO_VALUE_AUTO)
		node->threshold = threshold->number;
	else if (node->budget_known)
		node->threshold = zero_auto_stream_threshold(node->chunk, node->budget);
	limit = &settings.value[ZERO_OPT_GATHER_LIMIT];
	limited = settings.origin[ZERO_OPT_GATHER_LIMIT] && limit->kind != ZERO_VALUE_AUTO;
	node->limit = limited ? limit->number : zero_auto_gather_limit(node->budget);
	node->limit_known = limited || node->budget_known;
	zero_settings_clear(&settings);
	return true;
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
	size_t kept = 0;

	qsort(survey->node, survey->count, sizeof *survey->node, by_name);
	for (size_t i = 1; i < survey->count; i++) {
		const struct survey_node *task = &survey->node[i];
		struct survey_node *node = &survey->node[kept];

		if (strcmp(task->name, node->name) != 0) {
			survey->node[++kept] = *task;
			continue;
		}
		node->tasks++;
		node->free = least(node->free, task->free);
		node->budget = least(node->budget, task->budget);
		node->chunk = least(node->chunk, task->chunk);
		node->threshold = least(node->threshold, task->threshold);
		node->limit = least(node->limit, task->limit);
		node->limit_known = node->limit_known && task->limit_known;
		node->budget_known = node->budget_known && task->budget_known;
	}
	survey->count = survey->count ? kept + 1 : 0;
}

int survey_read(struct survey *survey, char *text)
{
	size_t lines = 1;

	*survey = (struct survey){.text = text};
	for (const char *c = text; *c; c++)
		lines += *c == '\n';
	survey->node = calloc(lines, sizeof *survey->node);
	if (!survey->node)
		exit_no_memory();
	for (char *line = text, *end; line; line = end) {
		end = strchr(line, '\n');
		if (end)
			*end++ = '\0';
		/* srun may have put a label before it */
		line = strstr(line, marker);
		if (!line)
			continue;
		if (!read_report(&survey->node[survey->count++], line + strlen(marker)))
			return EXIT_FAILURE;
	}
	survey->tasks = (unsigned)survey->count;
	merge(survey);
	if (survey->count)
		return 0;
	print_error("no node has reported its options");
	return EXIT_FAILURE;
}

void survey_clear(struct survey *survey)
{
	free(survey->node);
	free(survey->text);
	*survey = (struct survey){0};
}

/* ---- the step -------------------------------------------------------------------------------- */

int survey_run(struct survey *survey, const struct plan *plan)
{
	char self[PATH_MAX], *text;
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	struct strings argv = {0};
	int error, status = 0;

	self[length > 0 ? length : 0] = '\0';
	for (size_t i = 0; i < plan->program; i++)
		strings_add(&argv, format_text("%s", plan->argv.item[i]));
	/* another step may run already, and the user may have redirected the ranks' output */
	strings_add(&argv, format_text("--overlap"));
	strings_add(&argv, format_text("--output=all"));
	strings_add(&argv, format_text("%s", self));
	strings_add(&argv, format_text("%s", SURVEY_FLAG));
	error = run_program(argv.item, false, &text, &status);
	strings_clear(&argv);
	if (error) {
		print_error("%s cannot be run: %s", plan->path, strerror(error));
		return EXIT_NOT_EXECUTABLE;
	}
	if (!status)
		return survey_read(survey, text);
	print_error("no plan: the step that asks the nodes for their options ended with status %d",
		    status);
	free(text);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "plugin.h"

/* Returns whether somebody has set the option: it is not at its default, nor found out by the
   plugin. */
static bool is_set(const struct zero_settings *resolved, int option)
{
	const char *origin = resolved->origin[option];

	return zero_option_table[option].where != ZERO_IN_RESOLVED &&
	       strcmp(origin, "default") != 0 && strcmp(origin, PLUGIN_NAME) != 0;
}

/* ---- the line of srun -v --------------------------------------------------------------------- */

/* Returns whether srun has -v, which does not raise slurmstepd's own level (see srun(1)). */
static bool is_srun_verbose(spank_t spank)
{
	enum { LOG_LEVEL_INFO = 3 }; /* of slurm/src/common/log.h */
	char level[16];

	return !spank_getenv(spank, "SRUN_DEBUG", level, sizeof level) &&
	       strtol(level, NULL, 10) > LOG_LEVEL_INFO;
}

static char *describe_options(const struct step_node *node, const struct zero_settings *resolved)
{
	char *text = NULL;
	size_t length, count = 0;
	double seconds = zero_vram_seconds(&node->query);
	FILE *out = open_memstream(&text, &length);

	if (!out)
		return NULL;
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *value;

		if (!is_set(resolved, i))
			continue;
		value = zero_value_text(&zero_option_table[i], &resolved->value[i]);
		fprintf(out, "%s%s=%s from %s", count++ ? ", " : "", zero_option_table[i].name,
			value ? value : "?", resolved->origin[i]);
		free(value);
	}
	fputs(count ? "; other options have their defaults" : "all options have their defaults",
	      out);
	if (seconds > 0)
		fprintf(out, "; NVML took %.0f ms", 1e3 * seconds);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

void log_options(spank_t spank, const struct step_node *node, const struct zero_settings *resolved)
{
	char *text;

	if (!step_is_first(node, NOTICE_OPTIONS))
		return;
	text = describe_options(node, resolved);
	if (!text)
		return;
	zero_clean(text);
	if (is_srun_verbose(spank))
		slurm_spank_log(PLUGIN_NAME ": node %s: %s", node->name, text);
	else
		slurm_verbose(PLUGIN_NAME ": node %s: %s", node->name, text);
	free(text);
}

/* ---- telemetry ------------------------------------------------------------------------------- */

/* The line of this step on this node; `facts` is NULL if it writes none. */
static struct {
	char *facts; /* members, each with a comma after it */
	double start;
	unsigned failed;
} line;

/* Prints "NAME":"text". What is not printable ASCII becomes '?', so that the line is one line and
   valid, whatever a user has written; and little of it is kept, for the sake of root's disk. */
static void put_pair(FILE *out, const char *name, const char *text)
{
	size_t left = 200;

	fprintf(out, "\"%s\":\"", name);
	for (; *text && left; text++, left--) {
		if (*text == '"' || *text == '\\')
			putc('\\', out);
		putc(*text >= ' ' && *text <= '~' ? *text : '?', out);
	}
	fputs(*text ? "...\"" : "\"", out);
}

static void put_known(FILE *out, const char *name, const char *text)
{
	if (!*text)
		return;
	put_pair(out, name, text);
	putc(',', out);
}

static void put_item(FILE *out, spank_t spank, const char *name, spank_item_t item)
{
	uint32_t number;

	if (!spank_get_item(spank, item, &number))
		fprintf(out, "\"%s\":%u,", name, number);
}

/* Prints the options that somebody has set, or where each came from. */
static void put_options(FILE *out, const struct zero_settings *resolved, bool origins)
{
	const char *comma = "";

	fputs(origins ? "\"from\":{" : "\"options\":{", out);
	for (int i = 0; i < ZERO_OPTIONS; i++) {
		char *value;

		if (!is_set(resolved, i))
			continue;
		value = origins ? NULL
				: zero_value_text(&zero_option_table[i], &resolved->value[i]);
		fputs(comma, out);
		put_pair(out, zero_option_table[i].name,
			 origins ? resolved->origin[i]
			 : value ? value
				 : "");
		comma = ",";
		free(value);
	}
	fputs("},", out);
}

void telemetry_begin(spank_t spank, const struct step_node *node,
		     const struct zero_settings *resolved, const char *why)
{
	uint32_t id = 0;
	size_t length;
	FILE *out;

	if (!zero_config_telemetry(node->site) || line.facts ||
	    spank_get_item(spank, S_JOB_NODEID, &id) || id != 0)
		return;
	out = open_memstream(&line.facts, &length);
	if (!out)
		return;
	put_item(out, spank, "job", S_JOB_ID);
	put_item(out, spank, "step", S_JOB_STEPID);
	put_item(out, spank, "uid", S_JOB_UID);
	put_known(out, "node", node->name);
	put_known(out, "partition", node->partition);
	put_known(out, "account", node->account);
	put_known(out, "qos", node->qos);
	put_item(out, spank, "nodes", S_JOB_NNODES);
	put_item(out, spank, "tasks", S_JOB_TOTAL_TASK_COUNT);
	put_known(out, "by", node->by_site ? "site" : "user");
	if (resolved) {
		put_options(out, resolved, false);
		put_options(out, resolved, true);
	} else {
		put_known(out, "error", why);
	}
	if (fclose(out) != 0) {
		free(line.facts);
		line.facts = NULL;
	}
	line.start = zero_seconds();
}

void telemetry_task(int status)
{
	line.failed += status != 0;
}

/* Returns the whole line, with its end; NULL without memory. */
static char *finish_line(const struct step_node *node)
{
	char now[32] = "", *text = NULL;
	double nvml = zero_vram_seconds(&node->query);
	time_t seconds = time(NULL);
	struct tm parts;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	if (!out)
		return NULL;
	if (gmtime_r(&seconds, &parts))
		strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", &parts);
	putc('{', out);
	put_known(out, "time", now);
	fputs(line.facts, out);
	if (nvml > 0)
		fprintf(out, "\"nvml_ms\":%.0f,", 1e3 * nvml);
	fprintf(out, "\"failed\":%u,\"seconds\":%.1f}\n", line.failed, zero_seconds() - line.start);
	if (fclose(out) == 0)
		return text;
	free(text);
	return NULL;
}

/*
 * Appends by one write, so that lines of several steps do not mix. Root writes only to its own
 * regular file, not to a link or a pipe that another may have put in the place.
 */
static bool append(const char *path, const char *text, char *why, size_t size)
{
	size_t length = strlen(text);
	struct stat status;
	bool ok = false;
	int file =
		open(path,
		     O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC,
		     S_IRUSR | S_IWUSR);

	if (file < 0 || fstat(file, &status) != 0)
		snprintf(why, size, "cannot be opened: %s", strerror(errno));
	else if (!S_ISREG(status.st_mode) || status.st_uid != geteuid() || status.st_nlink != 1)
		snprintf(why, size, "is not a regular file of user %u with one name",
			 (unsigned)geteuid());
	else if (write(file, text, length) != (ssize_t)length)
		snprintf(why, size, "cannot be written: %s", strerror(errno));
	else
		ok = true;
	if (file >= 0)
		close(file);
	return ok;
}

void telemetry_end(const struct step_node *node)
{
	const char *target = zero_config_telemetry(node->site);
	char why[256], *text = target && line.facts ? finish_line(node) : NULL;

	free(line.facts);
	line.facts = NULL;
	if (!text)
		return;
	if (strcmp(target, "syslog") == 0)
		syslog(LOG_DAEMON | LOG_INFO, PLUGIN_NAME ": %.*s", (int)strcspn(text, "\n"), text);
	else if (!append(target, text, why, sizeof why))
		slurm_info(PLUGIN_NAME ": telemetry: %s %s", target, why);
	free(text);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* A job's report as JSON; part of zero_files.so. Without memory for a value all of it is NULL. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "files/file.h"
#include "report/words.h"

enum { ALL_SERIES = 16 }; /* ranks whose series are all written */

static json_t *text_of(const char *text)
{
	char *clean = words_clean(text);
	json_t *json = clean ? json_string(clean) : NULL;

	free(clean);
	return json;
}

static json_t *text_or_null(const char *text)
{
	return text ? text_of(text) : json_null();
}

/* Beyond what JSON's readers hold as integers it is a real. */
static json_t *number(uint64_t value)
{
	return value <= INT64_MAX ? json_integer((json_int_t)value) : json_real((double)value);
}

static json_t *real(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *seconds(uint64_t nanoseconds)
{
	return real((double)nanoseconds * 1e-9);
}

/* Appends, and gives up all if it cannot. */
static void append(json_t **array, json_t *item)
{
	if (*array && json_array_append_new(*array, item)) {
		json_decref(*array);
		*array = NULL;
	} else if (!*array) {
		json_decref(item);
	}
}

static json_t *sum_of(const struct zero_report_sum *sum)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "count", number(sum->count), "failed",
			 number(sum->failed), "bytes_sent", number(sum->bytes), "own_seconds",
			 seconds(sum->own), "wait_seconds", seconds(sum->wait), "run_seconds",
			 seconds(sum->run));
}

static json_t *bytes_of(const zero_bytes *bytes)
{
	return json_pack("{s:o, s:o}", "now", number(bytes->now), "peak", number(bytes->peak));
}

static json_t *memory_of(const zero_memory *memory)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "shards",
			 bytes_of(&memory->shards), "gathered", bytes_of(&memory->gathered),
			 "gradients", bytes_of(&memory->gradients), "optimizer",
			 bytes_of(&memory->optimizer), "staging", bytes_of(&memory->staging),
			 "caller", bytes_of(&memory->caller), "pinned", bytes_of(&memory->pinned),
			 "offload", bytes_of(&memory->offload), "checkpoint",
			 bytes_of(&memory->checkpoint), "total", bytes_of(&memory->total));
}

static json_t *kinds_of(const struct zero_report_rank *rank)
{
	json_t *kinds = json_object();

	for (int kind = 0; kind < ZERO_REPORT_KINDS; kind++)
		if (rank->kinds[kind].count)
			json_object_set_new(kinds,
					    zero_report_kind_name((enum zero_report_kind)kind),
					    sum_of(&rank->kinds[kind]));
	return kinds;
}

/* What each rank found on its node, and what it would have taken alone. */
static json_t *place_of(const struct zero_report *report, const struct zero_report_rank *rank)
{
	return json_pack(
		"{s:o, s:s, s:o, s:i, s:i, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "name",
		text_of(rank->node), "backend", report->backend, "gpu", text_of(rank->gpu), "gpus",
		rank->gpus, "share", rank->share, "memory_free", number(rank->memory_free),
		"vram_free", number(rank->vram_free), "vram_total", number(rank->vram_total),
		"vram_source", words_source(rank->source), "budget", number(rank->budget),
		"stream_chunk", number(rank->chunk), "stream_threshold", number(rank->threshold),
		"gather_limit", number(rank->gather_limit), "flatten", text_or_null(report->tier));
}

static json_t *steps_of(const struct zero_report_steps *steps)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "measured", number(steps->count),
			 "total_seconds", real(steps->total), "median_seconds", real(steps->median),
			 "p95_seconds", real(steps->p95), "max_seconds", real(steps->worst));
}

static json_t *rank_of(const struct zero_report *report, const struct zero_report_rank *rank)
{
	json_t *longest =
		json_pack("{s:o, s:o, s:o}", "seconds", seconds(rank->longest), "at_seconds",
			  real(rank->longest_at), "before", text_of(rank->longest_before));
	json_t *traffic = json_pack(
		"{s:o, s:o, s:o}", "bytes_sent", number(rank->traffic.bytes_sent), "collectives",
		number(rank->traffic.collectives), "bytes_read", number(rank->traffic.bytes_read));
	json_t *saves = json_pack("{s:o, s:o, s:o, s:o}", "saved", number(rank->saves.count),
				  "failed", number(rank->saves.failed), "bytes",
				  number(rank->saves.bytes), "seconds", real(rank->saves.seconds));

	return json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "rank",
			 rank->rank, "local_rank", rank->local_rank, "pid", rank->pid, "node",
			 place_of(report, rank), "memory", memory_of(&rank->memory), "traffic",
			 traffic, "steps", steps_of(&rank->steps), "collectives", kinds_of(rank),
			 "waited_seconds", seconds(words_waited(rank)), "own_seconds",
			 seconds(words_own(rank)), "longest_own", longest, "checkpoints", saves);
}

/* Columns, one value a sample. */
static json_t *samples_of(const struct zero_report_rank *rank)
{
	json_t *at = json_array(), *steps = json_array(), *sum = json_array();
	json_t *worst = json_array(), *end = json_array(), *peak = json_object(), *one;

	for (uint32_t i = 0; i < rank->sample_count; i++) {
		append(&at, real((double)rank->samples[i].seconds));
		append(&steps, number(rank->samples[i].steps));
		append(&sum, real((double)rank->samples[i].step));
		append(&worst, real((double)rank->samples[i].worst));
		append(&end, real((double)rank->samples[i].end));
	}
	for (int kind = 0; kind < ZERO_MEM_KINDS; kind++) {
		one = json_array();
		for (uint32_t i = 0; i < rank->sample_count; i++)
			append(&one, real((double)rank->samples[i].peak[kind]));
		json_object_set_new(peak, words_memory((enum zero_memory_kind)kind), one);
	}
	return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o}", "rank", rank->rank, "at_seconds",
			 at, "steps", steps, "step_seconds", sum, "max_step_seconds", worst,
			 "end_bytes", end, "peak_bytes", peak);
}

static json_t *options_of(const struct zero_report *report)
{
	json_t *options = json_array();

	for (size_t i = 0; i < report->option_count; i++)
		append(&options,
		       json_pack("{s:o, s:o, s:o, s:o}", "name", text_of(report->options[i].name),
				 "value", text_of(report->options[i].value), "origin",
				 text_of(report->options[i].origin), "default",
				 text_of(report->options[i].default_text)));
	return options;
}

static json_t *rows_of(const struct zero_report *report)
{
	json_t *rows = json_array(), *row;

	for (size_t i = 0; i < report->op_count; i++) {
		row = sum_of(&report->ops[i].sum);
		json_object_set_new(row, "kind",
				    json_string(zero_report_kind_name(report->ops[i].kind)));
		json_object_set_new(row, "group", text_of(report->ops[i].group));
		append(&rows, row);
	}
	return rows;
}

static json_t *ranks_of(const struct zero_report *report)
{
	json_t *ranks = json_array();

	for (size_t i = 0; i < report->rank_count; i++)
		append(&ranks, rank_of(report, &report->ranks[i]));
	return ranks;
}

static json_t *series_of(const struct zero_report *report)
{
	json_t *series = json_array();

	const struct zero_report_rank *most = words_highest(report);

	/* Of many ranks the two that the page shows. */
	for (size_t i = 0; i < report->rank_count; i++)
		if (report->rank_count <= ALL_SERIES || i == 0 || &report->ranks[i] == most)
			append(&series, samples_of(&report->ranks[i]));
	return series;
}

static json_t *job_of(const struct zero_report *report)
{
	return json_pack("{s:o, s:o, s:o, s:s, s:o, s:i, s:i, s:s, s:i, s:o}", "id",
			 text_of(report->id), "program", text_of(report->program), "host",
			 text_of(report->host), "started", words_time(report->started).text,
			 "seconds", real(report->seconds), "world", report->world, "stage",
			 report->stage, "backend", report->backend, "restarts", report->restarts,
			 "steps", number(report->steps));
}

zero_status zero_report_json(const struct zero_report *report, char **text, size_t *bytes)
{
	char version[16];
	json_t *json;

	snprintf(version, sizeof(version), "%d.%d", ZERO_VERSION_MAJOR, ZERO_VERSION_MINOR);
	json = json_pack("{s:s, s:i, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "format",
			 "slurm-zero report", "version", 1, "library", version, "complete",
			 !report->why, "why", text_or_null(report->why), "job", job_of(report),
			 "options", options_of(report), "ranks", ranks_of(report), "collectives",
			 rows_of(report), "series", series_of(report));
	*text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(json);
	if (!*text)
		return files_core()->fail(ZERO_E_MEMORY, "no memory for the report");
	*bytes = strlen(*text);
	return ZERO_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job's report as JSON; part of zero_files.so. Each function returns NULL without memory, which
 * json_pack passes on, so that the text is complete or there is none.
 */
/* PACKAGE_VERSION */
#include "config.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/options.h"
#include "files/files.h"
#include "files/report_values.h"

/* ---- names ----------------------------------------------------------------------------------- */

static const char *kind_name(enum zero_work_kind kind)
{
	static const char *const names[ZERO_WORK_KINDS] = {
		[ZERO_WORK_GATHER] = "gather",
		[ZERO_WORK_REDUCE] = "reduce",
		[ZERO_WORK_UPDATE] = "update",
		[ZERO_WORK_STEP] = "step",
		[ZERO_WORK_LOAD] = "load",
		[ZERO_WORK_FLATTEN] = "flatten",
		[ZERO_WORK_CHECKPOINT] = "checkpoint",
		[ZERO_WORK_PROGRAM] = "program",
		[ZERO_WORK_OTHER] = "other",
	};

	return names[kind];
}

static const char *source_name(int source)
{
	switch (source) {
	case ZERO_VRAM_NVML:
		return "nvml";
	case ZERO_VRAM_STEP_MEMORY:
		return "step_memory";
	case ZERO_VRAM_JOB_MEMORY:
		return "job_memory";
	case ZERO_VRAM_MEM_AVAILABLE:
		return "mem_available";
	default:
		return "unknown";
	}
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Bytes of the UTF-8 character at `text`; 0 if there is none, or a control character. */
static size_t character_at(const unsigned char *text)
{
	uint32_t code;
	size_t length;

	if (text[0] < 0x80)
		return text[0] >= ' ' && text[0] != 0x7f;
	length = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
	if (text[0] < 0xc2 || text[0] > 0xf4)
		return 0;
	code = text[0] & (0x7fu >> length);
	for (size_t i = 1; i < length; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (text[i] & 0x3f);
	}
	/* Overlong forms, surrogates, control characters and noncharacters. */
	if ((length == 3 && code < 0x800) || (length == 4 && code < 0x10000) || code > 0x10ffff ||
	    (code >= 0xd800 && code <= 0xdfff) || code < 0xa0 || (code & 0xfffe) == 0xfffe)
		return 0;
	return length;
}

/* A copy of a text that is UTF-8 without control characters: others become '?'. malloc'ed; NULL:
   no memory. */
static char *clean_copy(const char *text)
{
	const unsigned char *from = (const unsigned char *)(text ? text : "");
	char *clean = malloc(strlen((const char *)from) + 1), *to = clean;
	size_t length;

	if (!clean)
		return NULL;
	while (*from) {
		length = character_at(from);
		if (length)
			memcpy(to, from, length);
		else
			*to = '?';
		length = length ? length : 1;
		to += length;
		from += length;
	}
	*to = '\0';
	return clean;
}

static json_t *text_of(const char *text)
{
	char *clean = clean_copy(text);
	json_t *json = clean ? json_string(clean) : NULL;

	free(clean);
	return json;
}

static json_t *text_or_null(const char *text)
{
	return text ? text_of(text) : json_null();
}

static json_t *seconds(uint64_t nanoseconds)
{
	return real((double)nanoseconds * 1e-9);
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

	for (int kind = 0; kind < ZERO_WORK_KINDS; kind++)
		if (rank->kinds[kind].count)
			json_object_set_new(kinds, kind_name((enum zero_work_kind)kind),
					    sum_of(&rank->kinds[kind]));
	return kinds;
}

/* What a rank found on its node, and the sizes that it would have chosen alone. */
static json_t *place_of(const struct zero_report *report, const struct zero_report_rank *rank)
{
	return json_pack(
		"{s:o, s:s, s:o, s:i, s:i, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "name",
		text_of(rank->node), "backend", report->backend, "gpu", text_of(rank->gpu), "gpus",
		rank->gpus, "share", rank->share, "memory_free", number(rank->memory_free),
		"vram_free", number(rank->vram_free), "vram_total", number(rank->vram_total),
		"vram_source", source_name(rank->source), "budget", number(rank->budget),
		"stream_chunk", number(rank->chunk), "stream_threshold", number(rank->threshold),
		"gather_limit", number(rank->gather_limit), "flatten", text_or_null(report->tier));
}

static json_t *steps_of(const struct zero_report_steps *steps)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "measured", number(steps->count),
			 "total_seconds", real(steps->total), "median_seconds", real(steps->median),
			 "p95_seconds", real(steps->p95), "max_seconds", real(steps->worst));
}

static uint64_t waited(const struct zero_report_rank *rank)
{
	uint64_t sum = 0;

	for (int kind = 0; kind < ZERO_WORK_KINDS; kind++)
		if (zero_report_trains((enum zero_work_kind)kind))
			sum += rank->kinds[kind].wait;
	return sum;
}

static uint64_t idle(const struct zero_report_rank *rank)
{
	uint64_t sum = 0;

	for (int kind = 0; kind < ZERO_WORK_KINDS; kind++)
		if (zero_report_trains((enum zero_work_kind)kind))
			sum += rank->kinds[kind].own;
	return sum;
}

static json_t *saves_of(const struct zero_report_saves *saves)
{
	return json_pack("{s:o, s:o, s:o, s:o}", "saved", number(saves->count), "failed",
			 number(saves->failed), "bytes", number(saves->bytes), "seconds",
			 real(saves->seconds));
}

static json_t *rank_of(const struct zero_report *report, const struct zero_report_rank *rank)
{
	json_t *longest =
		json_pack("{s:o, s:o, s:o}", "seconds", seconds(rank->longest), "at_seconds",
			  real(rank->longest_at), "before", text_of(rank->longest_before));
	json_t *traffic = json_pack(
		"{s:o, s:o, s:o, s:o}", "bytes_sent", number(rank->traffic.bytes_sent),
		"collectives", number(rank->traffic.collectives), "agreements",
		number(rank->traffic.agreements), "bytes_read", number(rank->traffic.bytes_read));

	return json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}",
			 "rank", rank->rank, "local_rank", rank->local_rank, "pid", rank->pid,
			 "node", place_of(report, rank), "memory", memory_of(&rank->memory),
			 "traffic", traffic, "steps", steps_of(&rank->steps), "collectives",
			 kinds_of(rank), "waited_seconds", seconds(waited(rank)), "own_seconds",
			 seconds(idle(rank)), "longest_own", longest, "checkpoints",
			 saves_of(&rank->saves), "protections", saves_of(&rank->protections));
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
		json_object_set_new(row, "kind", json_string(kind_name(report->ops[i].kind)));
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

static json_t *streamed_of(const struct zero_streamed *streamed)
{
	return json_pack("{s:o, s:o, s:o, s:o, s:o}", "parameters", number(streamed->count),
			 "largest", text_or_null(streamed->largest), "bytes",
			 number(streamed->bytes), "slices", number(streamed->slices), "slice_bytes",
			 number(streamed->slice_bytes));
}

static json_t *slow_of(const struct zero_report *report)
{
	json_t *all = json_array(), *ranks;

	for (size_t i = 0; i < report->slow_count; i++) {
		const struct zero_report_slow *one = &report->slow[i];

		ranks = json_array();
		for (size_t r = 0; r < one->rank_count && r < ZERO_REPORT_SLOW; r++)
			append(&ranks, json_integer(one->ranks[r]));
		append(&all,
		       json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "who",
				 text_of(one->who), "ranks", ranks, "count",
				 number(one->rank_count), "from_step", number(one->first_step),
				 "from_seconds", real(one->at), "until_step",
				 one->end_step ? number(one->end_step) : json_null(),
				 "until_seconds", one->end_step ? real(one->end) : json_null(),
				 "waited_seconds", real(one->waited)));
	}
	return all;
}

static json_t *job_of(const struct zero_report *report)
{
	time_t time = (time_t)report->started;
	char started[32] = "";
	struct tm parts;

	if (gmtime_r(&time, &parts))
		strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", &parts);
	return json_pack("{s:o, s:o, s:o, s:s, s:o, s:i, s:i, s:s, s:o, s:o, s:i, s:o}", "id",
			 text_of(report->id), "program", text_of(report->program), "host",
			 text_of(report->host), "started", started, "seconds",
			 real(report->seconds), "world", report->world, "stage", report->stage,
			 "backend", report->backend, "gathers", text_or_null(report->gathers),
			 "streamed", streamed_of(&report->streamed), "restarts", report->restarts,
			 "steps", number(report->steps));
}

zero_status zero_report_json(const struct zero_report *report, char **text)
{
	json_t *json;

	json = json_pack("{s:s, s:i, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "format",
			 "slurm-zero report", "version", 1, "library", PACKAGE_VERSION, "complete",
			 !report->why, "why", text_or_null(report->why), "job", job_of(report),
			 "options", options_of(report), "ranks", ranks_of(report), "collectives",
			 rows_of(report), "series", zero_report_series(report), "spread",
			 zero_report_spread(report), "slow", slow_of(report));
	*text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
	json_decref(json);
	if (!*text)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for the report");
	return ZERO_OK;
}

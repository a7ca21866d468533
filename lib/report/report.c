/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report of a job. Each rank counts for itself while the job runs. When all ranks close the job
 * together, each sends its record to all, and rank 0 writes the report. If they do not, rank 0
 * writes a report of itself alone. It does so now and then while the job runs, too, so that a job
 * that is killed leaves a report.
 */
#include <ctype.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/meter.h"
#include "load/load.h"
#include "train/train.h"
#include "report/folder.h"
#include "report/job_report.h"
#include "report/record.h"
#include "report/slow.h"

/* Nanoseconds between two reports of a job that runs. */
#define REFRESH (UINT64_C(60) * 1000000000u)

struct zero_job_report {
	struct zero_record *record;
	char *path, *id;
	int folder;    /* of rank 0; else -1 */
	bool together; /* all ranks have opened the job with a report */
	int64_t started;
	uint64_t refreshed;
	int restarts;
	struct zero_report_op ops[ZERO_REPORT_OPS];
	struct zero_report_option options[ZERO_OPTIONS];
	char *origins[ZERO_OPTIONS];
};

/* ---- start ----------------------------------------------------------------------------------- */

static bool is_number(const char *text)
{
	size_t length = text ? strspn(text, "0123456789") : 0;

	return length && length < 12 && !text[length];
}

static int number_of(const char *variable)
{
	const char *text = getenv(variable);

	return is_number(text) ? atoi(text) : 0;
}

/* "1234.0" in a step of Slurm, else "1234-pid" or "host-pid". A restarted job and a further job of
   this process get a suffix, so that they do not replace the report. */
static char *make_id(int restarts)
{
	static atomic_int jobs;
	const char *job = getenv("SLURM_JOB_ID"), *step = getenv("SLURM_STEP_ID");
	char host[64] = "", restart[32] = "", again[32] = "", *id;
	int number = atomic_fetch_add(&jobs, 1) + 1, length;

	gethostname(host, sizeof(host) - 1);
	host[strcspn(host, ".")] = '\0';
	for (char *c = host; *c; c++)
		if (!isalnum((unsigned char)*c) && *c != '-')
			*c = '_';
	if (restarts)
		snprintf(restart, sizeof(restart), "-restart-%d", restarts);
	if (number > 1)
		snprintf(again, sizeof(again), "-job-%d", number);
	if (is_number(job) && is_number(step))
		length = asprintf(&id, "%s.%s%s%s", job, step, restart, again);
	else
		length = asprintf(&id, "%s-%d%s%s", is_number(job) ? job : host, (int)getpid(),
				  restart, again);
	return length < 0 ? NULL : id;
}

zero_status zero_report_begin(zero_job *job)
{
	struct zero_value *value = &job->settings.value[ZERO_OPT_REPORT];
	struct zero_job_report *report;

	/* A job that moves no tensors has nothing to tell. */
	if (!*value->text || job->settings.value[ZERO_OPT_BACKEND].number == ZERO_BACKEND_NONE)
		return ZERO_OK;
	report = calloc(1, sizeof(*report));
	if (!report)
		goto no_memory;
	job->report = report;
	report->folder = -1;
	report->started = time(NULL);
	report->restarts = number_of("ZERO_RESTART") + number_of("SLURM_RESTART_COUNT");
	report->record = zero_record_new();
	report->path = strdup(value->text);
	report->id = make_id(report->restarts);
	/* What ranks compare: whether there is to be one. */
	value->number = 1;
	if (report->record && report->path && report->id)
		return ZERO_OK;
no_memory:
	return zero_fail(ZERO_E_MEMORY, "no memory for the report");
}

const struct zero_meter *zero_report_meter(const zero_job *job)
{
	return job->report && job->report->record ? &job->report->record->meter : NULL;
}

void zero_report_sizes(zero_job *job)
{
	const struct zero_value *value = job->settings.value;
	struct zero_report_rank *rank;

	if (!job->report)
		return;
	rank = &job->report->record->rank;
	rank->budget = value[ZERO_OPT_BUDGET].number;
	rank->chunk = value[ZERO_OPT_STREAM_CHUNK].number;
	rank->threshold = value[ZERO_OPT_STREAM_THRESHOLD].number;
	rank->gather_limit = value[ZERO_OPT_GATHER_LIMIT].number;
	rank->vram_free = value[ZERO_OPT_VRAM_FREE].number;
	rank->vram_total = value[ZERO_OPT_VRAM_TOTAL].number;
	rank->source = (int)value[ZERO_OPT_VRAM_SOURCE].number;
	rank->gpus = (int)value[ZERO_OPT_GPUS].number;
	rank->memory_free = job->memory_free;
	snprintf(rank->gpu, sizeof(rank->gpu), "%.*s", (int)sizeof(rank->gpu) - 1,
		 value[ZERO_OPT_GPU].text);
}

zero_status zero_report_open(zero_job *job)
{
	struct zero_job_report *report = job->report;
	const struct zero_files_ops *files;
	struct zero_report_rank *rank;
	zero_status status;

	if (!report)
		return ZERO_OK;
	rank = &report->record->rank;
	rank->rank = job->place.rank;
	rank->local_rank = job->place.local_rank;
	rank->share = job->place.shm_world;
	rank->pid = (int)getpid();
	memcpy(rank->node, job->place.node, sizeof(rank->node));
	if (job->place.rank)
		return ZERO_OK;
	status = zero_files_open(&files);
	if (status)
		return status;
	return zero_report_folder(report->path, job->settings.origin[ZERO_OPT_REPORT],
				  &report->folder);
}

void zero_report_opened(zero_job *job)
{
	if (job->report)
		job->report->together = true;
}

/* ---- content --------------------------------------------------------------------------------- */

static size_t list_options(zero_job *job)
{
	struct zero_job_report *report = job->report;
	size_t count = 0;

	for (size_t id = 0; id < ZERO_OPTIONS; id++) {
		const struct zero_option *option = &zero_option_table[id];

		/* Facts are in the report of each rank. */
		if (!(option->where & ~(unsigned)ZERO_IN_RESOLVED))
			continue;
		if (!report->origins[id])
			report->origins[id] =
				zero_settings_origin(&job->settings, (enum zero_option_id)id);
		report->options[count++] = (struct zero_report_option){
			.name = option->name,
			.value = zero_setting(job, option->name),
			.origin = report->origins[id] ? report->origins[id] : "",
			.default_text = option->default_text,
		};
	}
	return count;
}

/* Reads what this rank has recorded; returns the number of its rows. */
static size_t read_rank(zero_job *job, struct zero_report_rank *rank)
{
	struct zero_record *record = job->report->record;
	size_t high[ZERO_MEM_KINDS], count;
	zero_memory memory;

	zero_job_memory(job, &memory, high);
	count = zero_record_read(record, zero_meter_now(&record->meter), high, memory.total.now,
				 rank, job->report->ops);
	rank->memory = memory;
	zero_traffic_now(job, &rank->traffic);
	return count;
}

static struct zero_report describe(zero_job *job, const struct zero_report_rank *ranks,
				   size_t rank_count, size_t op_count, const char *why)
{
	struct zero_job_report *report = job->report;
	uint64_t now = zero_meter_now(&report->record->meter);
	size_t slow_count;
	const struct zero_report_slow *slow = zero_slow_found(job, &slow_count);

	return (struct zero_report){
		.id = report->id,
		.program = program_invocation_short_name,
		.host = job->place.node,
		.backend = job->ops->name,
		.tier = job->flatten_tier,
		.gathers = job->comm->ops->gathers ? job->comm->ops->gathers(job->comm) : NULL,
		.streamed = job->model->sizing.streamed,
		.why = why,
		.started = report->started,
		.seconds = (double)(now - report->record->opened) * 1e-9,
		.world = job->place.world,
		.stage = job->stage,
		.restarts = report->restarts,
		.steps = job->trainer->steps + job->trainer->own_steps,
		.options = report->options,
		.option_count = list_options(job),
		.ranks = ranks,
		.rank_count = rank_count,
		.ops = report->ops,
		.op_count = op_count,
		.slow = slow,
		.slow_count = slow_count,
	};
}

static zero_status write_report(const struct zero_job_report *report,
				const struct zero_report *content)
{
	const struct zero_files_ops *files;
	char *json = NULL;
	zero_status status;

	status = zero_files_open(&files);
	if (!status)
		status = files->report_json(content, &json);
	if (!status)
		status = zero_report_put(report->folder, report->path, report->id, json);
	free(json);
	return status;
}

static zero_status write_own(zero_job *job, const char *why)
{
	struct zero_report_rank *rank = malloc(sizeof(*rank));
	struct zero_report content;
	zero_status status;

	if (!rank)
		return zero_fail(ZERO_E_MEMORY, "no memory for the report");
	content = describe(job, rank, 1, read_rank(job, rank), why);
	status = write_report(job->report, &content);
	free(rank);
	return status;
}

/* ---- while the job runs ---------------------------------------------------------------------- */

/* An error here is not reported: the report at the end fails too, if its cause lasts. */
static void refresh(zero_job *job, uint64_t now)
{
	struct zero_job_report *report = job->report;
	struct zero_saved_error before;

	if (report->folder < 0 || (report->refreshed && now - report->refreshed < REFRESH))
		return;
	report->refreshed = now;
	zero_error_save(&before);
	if (write_own(job, "The job had not been closed when this was written."))
		zero_error_restore(&before);
}

static void after_step(zero_job *job)
{
	size_t high[ZERO_MEM_KINDS];
	zero_memory memory;
	uint64_t now;

	if (!job->report)
		return;
	zero_job_memory(job, &memory, high);
	now = zero_meter_now(&job->report->record->meter);
	zero_record_step(job->report->record, now, high, memory.total.now);
	refresh(job, now);
}

static void after_save(zero_job *job, bool protection, double seconds, uint64_t bytes, bool well)
{
	struct zero_record *record = job->report ? job->report->record : NULL;
	struct zero_report_saves *saves;

	if (!record)
		return;
	saves = protection ? &record->rank.protections : &record->rank.saves;
	pthread_mutex_lock(&record->lock);
	saves->count += well;
	saves->failed += !well;
	saves->seconds += seconds;
	saves->bytes += bytes;
	pthread_mutex_unlock(&record->lock);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* COLLECTIVE. Gathers the records of all ranks, [world], on each rank. */
static zero_status exchange(zero_job *job, struct zero_report_rank *mine,
			    struct zero_report_rank **all)
{
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .count = sizeof(*mine)};
	zero_status status = ZERO_OK;

	*all = calloc((size_t)job->place.world, sizeof(**all));
	if (!*all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the report of %d ranks",
				   job->place.world);
	op.recv = *all;
	return zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_PROGRAM, "zero_close: report");
}

/* Rank 0 writes what it has recorded itself; the thread's last error is the reason. */
static zero_status write_alone(zero_job *job)
{
	zero_status status;
	char *why;

	if (asprintf(&why, "The ranks did not close the job together: %s", zero_last_error()) < 0)
		return zero_fail(ZERO_E_MEMORY, "no memory for the report");
	status = write_own(job, why);
	free(why);
	return status;
}

static zero_status write_together(zero_job *job)
{
	struct zero_report_rank *mine = malloc(sizeof(*mine)), *all = NULL;
	struct zero_report content;
	zero_status status;
	size_t op_count = 0;

	if (mine)
		op_count = read_rank(job, mine);
	/* A rank without memory still has to come to the exchange. */
	status = exchange(job, mine ? mine : &job->report->record->rank, &all);
	if (job->report->folder >= 0 && !status) {
		content = describe(job, all, (size_t)job->place.world, op_count, NULL);
		status = write_report(job->report, &content);
	}
	free(mine);
	free(all);
	return status;
}

static void before_close(zero_job *job, bool together)
{
	struct zero_job_report *report = job->report;
	struct zero_saved_error before;
	zero_status status = ZERO_OK;

	if (!report || !report->together)
		return;
	zero_error_save(&before);
	if (together)
		status = write_together(job);
	/* Ranks that did not get here together cannot exchange records. */
	together = together && status != ZERO_E_ORDER && status != ZERO_E_COMM;
	if (!together && report->folder >= 0)
		write_alone(job);
	/* The error that ended the job matters more than one of its report. */
	if (!together && *before.text)
		zero_error_restore(&before);
}

static void closed(zero_job *job)
{
	struct zero_job_report *report = job->report;

	if (!report)
		return;
	if (report->folder >= 0)
		close(report->folder);
	for (size_t id = 0; id < ZERO_OPTIONS; id++)
		free(report->origins[id]);
	zero_record_free(report->record);
	free(report->path);
	free(report->id);
	free(report);
	job->report = NULL;
}

const struct zero_hooks zero_report_hooks = {
	.after_step = after_step,
	.after_save = after_save,
	.before_close = before_close,
	.closed = closed,
};

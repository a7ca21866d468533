/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_protect: after a step each rank writes its shard to its node's memory and a copy to its
 * partner's, while training goes on. That all ranks have both is known with a later step's own
 * exchange. The slot of the protection before the last complete one is written next, so that one is
 * complete at any moment.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "protect/protect.h"
#include "protect/protect_internal.h"

/* Of the time that it has, what a paced push takes. */
#define PACE 0.7

/* Bytes a second. Slower would spare the job nothing, and a receiver waits for seconds only. */
enum { LEAST_RATE = 16 << 20 };

enum { MOST_SKIPPED = 1024 };

/* ---- when ------------------------------------------------------------------------------------ */

/* K; 0: as often as the one before is complete; -1: never. */
static int64_t interval(const zero_job *job, uint64_t every)
{
	uint64_t setting = job->settings.value[ZERO_OPT_PROTECT].number;

	if (setting == ZERO_PROTECT_NO)
		return -1;
	if (setting == ZERO_PROTECT_AUTO)
		return 0;
	return (int64_t)(setting == ZERO_PROTECT_PROGRAM ? every : setting);
}

bool zero_protect_due(const zero_job *job, uint64_t every, uint64_t step)
{
	const struct zero_protect *protect = job->protect;
	int64_t steps = interval(job, every);

	if (steps < 0 || (protect && (protect->off || protect->seen < protect->skip_until)))
		return false;
	return steps ? step % (uint64_t)steps == 0 : !protect || !protect->save;
}

/* ---- what a failure costs -------------------------------------------------------------------- */

/* The last error, of any rank, costs the protection. It is tried again after twice as many steps
   as the time before. */
static void give_up(struct zero_protect *protect, uint64_t step)
{
	uint64_t skip = protect->failures < 10 ? UINT64_C(1) << protect->failures : MOST_SKIPPED;
	int rank = protect->job->place.rank;

	protect->skip_until = protect->seen + 1 + skip;
	if (rank == 0 && !protect->failures)
		fprintf(stderr,
			"zero: step %llu is not protected: %s; the job goes on, and protects "
			"again when it can\n",
			(unsigned long long)step, zero_last_error());
	protect->failures++;
}

/* Ranks that are lost, or do not call the same, are no matter of the protection alone. */
static bool is_of_job(zero_status status)
{
	return status == ZERO_E_COMM || status == ZERO_E_ORDER;
}

/* ---- the thread ------------------------------------------------------------------------------ */

static zero_status seal_and_push(struct zero_save *save)
{
	struct zero_protect *protect = save->context;
	struct zero_protect_record *record = protect->record;
	struct zero_protect_name name = protect->name;
	int partner = protect->partners[save->job->place.rank], shard = -1;
	uint64_t bytes;
	zero_status status;

	record->shard = zero_save_summarize(save);
	zero_protect_seal(protect->files, record);
	bytes = zero_protect_record_bytes(record);
	name.record = 1;
	status = zero_protect_file_put(&protect->folder, &name, record, bytes);
	if (status || partner < 0)
		return status;
	status = zero_protect_file_open(&protect->folder, &protect->name, false, &shard);
	if (!status)
		status = zero_protect_put(&protect->ask, partner, &protect->name, record, bytes,
					  shard, record->shard.bytes, protect->rate);
	if (shard >= 0)
		close(shard);
	return status;
}

static zero_status after_write(struct zero_save *save)
{
	zero_status status = seal_and_push(save);

	zero_hooks_after_save(save->job, true, zero_seconds() - save->start_time, save->out.bytes,
			      !status);
	return status;
}

/* ---- one protection -------------------------------------------------------------------------- */

/* What a rank takes of its node and of its partner's in one protection, and what its node may
   give. */
struct share {
	uint64_t bytes, limit;
};

/* Whether each node holds two protections of its ranks, and of those whose partners are there. All
   ranks come to the same. needed[nodes] is 0. */
static zero_status check_sizes(const struct zero_protect *protect, const struct share *all,
			       uint64_t *needed)
{
	size_t world = (size_t)protect->job->place.world;

	for (size_t rank = 0; rank < world; rank++) {
		needed[protect->nodes.of[rank]] += 2 * all[rank].bytes;
		if (protect->partners[rank] >= 0)
			needed[protect->nodes.of[protect->partners[rank]]] += 2 * all[rank].bytes;
	}
	for (size_t rank = 0; rank < world; rank++)
		if (needed[protect->nodes.of[rank]] > all[rank].limit)
			return zero_fail(
				ZERO_E_MEMORY,
				"it takes %llu bytes of the memory of node %s, and protect_max "
				"allows %llu",
				(unsigned long long)needed[protect->nodes.of[rank]],
				protect->addresses[rank].node, (unsigned long long)all[rank].limit);
	return ZERO_OK;
}

/* COLLECTIVE. `status` is that of preparing it. */
static zero_status agree_sizes(const struct zero_protect *protect, zero_status status,
			       uint64_t step)
{
	const struct zero_value *most = &protect->job->settings.value[ZERO_OPT_PROTECT_MAX];
	zero_job *job = protect->job;
	struct share mine = {.limit = most->kind == ZERO_VALUE_AUTO ? protect->memory / 2
								    : most->number};
	struct share *all = calloc((size_t)job->place.world, sizeof(*all));
	uint64_t *needed = calloc(protect->nodes.count, sizeof(*needed));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .recv = all, .count = sizeof(mine)};

	if ((!all || !needed) && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the sizes of all ranks");
	if (!status)
		mine.bytes = protect->save->out.bytes + zero_protect_record_bytes(protect->record);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_CHECKPOINT,
				  "begin of the protection of step %llu", (unsigned long long)step);
	if (!status)
		status = check_sizes(protect, all, needed);
	free(needed);
	free(all);
	return status;
}

/* The record, but for what is known once the shard is written. Rank 0's has the manifest. */
static zero_status make_record(struct zero_protect *protect, const zero_protect_options *options)
{
	struct zero_save *save = protect->save;
	const zero_job *job = protect->job;
	struct zero_protect_record head = {.token = protect->token,
					   .step = save->step,
					   .own_bytes = options->own ? options->own_bytes : 0,
					   .rank = job->place.rank,
					   .world = job->place.world,
					   .attempt = protect->attempt,
					   .turn = protect->turn};
	zero_status status = ZERO_OK;
	char *manifest = NULL, *at;
	size_t bytes = 0;

	if (job->place.rank == 0) {
		head.user_bytes = options->user ? options->user_bytes : 0;
		save->has_user = options->user;
		save->user_bytes = head.user_bytes;
		save->user_checksum = protect->files->checksum(options->user, head.user_bytes);
		status = zero_save_describe(save);
		if (!status)
			status = zero_save_make_manifest(save, &manifest, &bytes);
		if (status)
			return status;
		head.manifest_bytes = bytes;
	}
	if (zero_protect_record_bytes(&head) > ZERO_PROTECT_RECORD_MAX)
		status = zero_fail(ZERO_E_INVALID,
				   "the program has %llu bytes of its own, and less than %llu are "
				   "allowed",
				   (unsigned long long)(head.user_bytes + head.own_bytes),
				   (unsigned long long)ZERO_PROTECT_RECORD_MAX);
	else if (!(protect->record = malloc(zero_protect_record_bytes(&head))))
		status = zero_fail(ZERO_E_MEMORY, "no memory for a record");
	if (status) {
		free(manifest);
		return status;
	}
	*protect->record = head;
	at = (char *)(protect->record + 1);
	if (head.user_bytes)
		memcpy(at, options->user, head.user_bytes);
	if (head.own_bytes)
		memcpy(at + head.user_bytes, options->own, head.own_bytes);
	if (manifest)
		memcpy(at + head.user_bytes + head.own_bytes, manifest, bytes);
	free(manifest);
	return ZERO_OK;
}

/* Makes the shard's file ready to be written; what was there is no protection any more. */
static zero_status make_file(struct zero_protect *protect)
{
	struct zero_save *save = protect->save;
	struct zero_protect_name record = protect->name;
	zero_status status;

	record.record = 1;
	zero_protect_file_remove(&protect->folder, &record);
	status = zero_protect_file_open(&protect->folder, &protect->name, true, &save->out.fd);
	if (!status && ftruncate(save->out.fd, (off_t)save->out.bytes))
		status = zero_file_error("set the size of", save->file);
	return status;
}

static zero_status prepare(struct zero_protect *protect, const zero_protect_options *options,
			   uint64_t step)
{
	zero_job *job = protect->job;
	zero_status status = zero_save_new(job, protect->folder.path, step, &protect->save);
	struct zero_save *save = protect->save;

	protect->name = (struct zero_protect_name){
		.token = protect->token, .rank = job->place.rank, .slot = protect->turn & 1};
	if (!status &&
	    asprintf(&save->path, "the protection of step %llu", (unsigned long long)step) < 0)
		save->path = NULL;
	if (!status && (!save->path ||
			asprintf(&save->file, "%s in %s", save->path, protect->folder.path) < 0))
		save->file = NULL;
	if (!status && !save->file)
		status = zero_fail(ZERO_E_MEMORY, "no memory to protect");
	if (status)
		return status;
	save->out.path = save->file;
	save->after_write = after_write;
	save->context = protect;
	status = zero_save_plan(save);
	if (!status)
		status = make_record(protect, options);
	return status ? status : make_file(protect);
}

static void drop_save(struct zero_protect *protect, zero_status status)
{
	if (protect->save && status)
		zero_save_close(protect->save, status);
	zero_save_free(protect->save);
	free(protect->record);
	protect->save = NULL;
	protect->record = NULL;
}

static bool stays(const void *context, const struct zero_protect_name *name)
{
	const struct zero_protect *protect = context;

	return name->token == protect->token || zero_protect_is_found(protect, name);
}

static bool is_ours(const void *context, const struct zero_protect_name *name)
{
	return name->token == ((const struct zero_protect *)context)->token;
}

/* COLLECTIVE. All ranks have written, or failed to. The status is that of communication. */
static zero_status end_protection(struct zero_protect *protect)
{
	zero_job *job = protect->job;
	uint64_t step = protect->save->step;
	zero_status status = zero_save_join(protect->save);

	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				  "the protection of step %llu", (unsigned long long)step);
	if (status && !is_of_job(status))
		give_up(protect, step);
	if (!status) {
		/* What an attempt before has left is needed no more. */
		if (!protect->turn++)
			zero_protect_folder_clean(&protect->folder, is_ours, protect);
		protect->failures = 0;
		zero_protect_forget(protect);
	}
	drop_save(protect, ZERO_OK);
	return is_of_job(status) ? status : ZERO_OK;
}

static void complete(zero_job *job)
{
	if (job->protect && job->protect->save)
		end_protection(job->protect);
}

/* The push takes a part of the time of a step, or of those until the next one where it is as often
   as it goes. A pause of the program, as for an evaluation, is forgotten soon. */
static void set_pace(struct zero_protect *protect, bool as_often)
{
	uint64_t steps = protect->seen - protect->begun_seen;
	uint64_t bytes = protect->save->out.bytes + zero_protect_record_bytes(protect->record);
	double now = zero_seconds(), passed = now - protect->begun;

	if (steps && !as_often)
		passed /= (double)steps;
	if (protect->begun > 0 && (!(protect->shortest > 0) || passed < 2 * protect->shortest))
		protect->shortest = passed;
	protect->rate = 0;
	if (protect->shortest > 0) {
		protect->rate = (uint64_t)((double)bytes / (PACE * protect->shortest));
		protect->rate = protect->rate > LEAST_RATE ? protect->rate : LEAST_RATE;
	}
	protect->begun = now;
	protect->begun_seen = protect->seen;
}

/* COLLECTIVE. */
static zero_status begin(struct zero_protect *protect, const zero_protect_options *options,
			 uint64_t step)
{
	zero_status status;

	/* Before any rank of the node writes: what is found partly written is nobody's. */
	if (!protect->turn)
		zero_protect_folder_clean(&protect->folder, stays, protect);
	status = agree_sizes(protect, prepare(protect, options, step), step);
	if (status) {
		if (!is_of_job(status))
			give_up(protect, step);
		drop_save(protect, status);
		return is_of_job(status) ? status : ZERO_OK;
	}
	set_pace(protect, !interval(protect->job, options->every));
	zero_save_start(protect->save);
	return ZERO_OK;
}

/* COLLECTIVE. Every K-th step: the one before has to be complete. */
static zero_status wait_for_last(struct zero_protect *protect)
{
	int partner = protect->partners[protect->job->place.rank];

	if (!protect->save)
		return ZERO_OK;
	if (partner >= 0)
		zero_protect_hurry(&protect->ask, partner);
	return end_protection(protect);
}

static zero_status protect_now(zero_job *job, const zero_protect_options *options)
{
	zero_status status = zero_save_check(job, "zero_protect");
	uint64_t step = options->step ? options->step : job->trainer->steps;

	if (job->protect && !options->due && !zero_protect_due(job, options->every, step))
		return status;
	/* An error of one rank is one of all. */
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT, "zero_protect");
	if (!status && !job->protect)
		status = zero_protect_open(job);
	if (status || job->protect->off ||
	    (!options->due && !zero_protect_due(job, options->every, step)))
		return status;
	status = wait_for_last(job->protect);
	/* It may have failed just now. */
	if (!status && job->protect->seen >= job->protect->skip_until)
		status = begin(job->protect, options, step);
	return status;
}

zero_status zero_protect(zero_job *job, const zero_protect_options *options)
{
	static const zero_protect_options defaults;
	const char *before = zero_set_current_call(job, "zero_protect");
	zero_status status = ZERO_OK;

	options = options ? options : &defaults;
	if (interval(job, options->every) >= 0)
		status = protect_now(job, options);
	zero_set_current_call(job, before);
	return status;
}

/* ---- in the life of a job -------------------------------------------------------------------- */

static void before_change(zero_job *job, zero_group *group, bool step)
{
	if (job->protect)
		zero_save_snapshot(job->protect->save, group, step);
}

static bool is_writing(const zero_job *job)
{
	return job->protect && job->protect->save && !job->protect->save->written;
}

static void after_step(zero_job *job)
{
	if (job->protect)
		job->protect->seen++;
}

static void before_close(zero_job *job, bool together)
{
	struct zero_protect *protect = job->protect;
	struct zero_saved_error before;

	if (!protect)
		return;
	zero_error_save(&before);
	if (protect->save && !together) {
		zero_save_cancel(protect->save);
		zero_protect_ask_cancel(&protect->ask);
	}
	if (protect->save)
		zero_save_join(protect->save);
	drop_save(protect, ZERO_OK);
	/* No rank's server may end while another pushes. */
	if (together)
		together = !zero_submit_wait(&job->all, ZERO_OK, NULL, 0, ZERO_WORK_CHECKPOINT,
					     "end of the protection");
	zero_protect_close(job, together);
	zero_error_restore(&before);
}

const struct zero_hooks zero_protect_hooks = {
	.after_step = after_step,
	.before_change = before_change,
	.busy = is_writing,
	.all_idle = complete,
	.before_close = before_close,
};

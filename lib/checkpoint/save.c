/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_save: what the ranks do together. Each rank writes its own file into a folder that rank 0
 * has created. Once all have written, rank 0 renames the folder. In the background, each zero_step
 * finds out whether all ranks have written, so that no collective of its own is needed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"

/* ---- one save -------------------------------------------------------------------------------- */

/* Page-locked memory that a save used is the system's again until the next one. */
static void give_back(zero_job *job)
{
	zero_staging_close(job);
	if (!job->ops->host_memory)
		job->ops->trim(job->backend);
}

static void free_plan(struct zero_save *save)
{
	zero_save_free_copies(save);
	free(save->header);
	free(save->slices);
	free(save->first_slice);
	free(save->checksums);
	save->header = NULL;
	save->slices = NULL;
	save->first_slice = NULL;
	save->checksums = NULL;
}

void zero_save_free(struct zero_save *save)
{
	if (!save)
		return;
	free_plan(save);
	zero_save_free_manifest(save);
	pthread_mutex_destroy(&save->lock);
	pthread_cond_destroy(&save->wrote);
	free(save->summaries);
	free(save->error);
	free(save->file);
	free(save->partial);
	free(save->path);
	free(save->dir);
	free(save);
}

static void free_save(struct zero_save *save)
{
	if (save)
		give_back(save->job);
	zero_save_free(save);
}

/* The number of steps in the checkpoint's name. */
static uint64_t step_of(const zero_job *job, const zero_save_options *options)
{
	return options->step ? options->step : job->trainer->steps;
}

zero_status zero_save_new(zero_job *job, const char *dir, uint64_t step, struct zero_save **result)
{
	struct zero_save *save = calloc(1, sizeof(*save));

	*result = save;
	if (!save)
		return zero_fail(ZERO_E_MEMORY, "no memory to save to %s", dir);
	pthread_mutex_init(&save->lock, NULL);
	pthread_cond_init(&save->wrote, NULL);
	save->job = job;
	save->start_time = zero_seconds();
	save->out.fd = -1;
	save->step = step;
	for (size_t g = 0; g < job->model->group_count; g++)
		save->has_states = save->has_states || job->model->groups[g]->steps;
	save->group_count = job->model->group_count;
	save->dir = strdup(dir);
	/* Slashes at the end are dropped. */
	for (size_t end = save->dir ? strlen(dir) : 0; end > 1 && dir[end - 1] == '/'; end--)
		save->dir[end - 1] = 0;
	save->summaries = calloc((size_t)job->place.world, sizeof(*save->summaries));
	if (!save->dir || !save->summaries)
		return zero_fail(ZERO_E_MEMORY, "no memory to save to %s", dir);
	return zero_files_open(&save->files);
}

static zero_status make_names(struct zero_save *save, uint64_t token)
{
	const struct zero_rank_info *place = &save->job->place;

	save->path = zero_checkpoint_step_path(save->dir, save->step);
	save->partial = save->path ? zero_partial_path(save->path, token) : NULL;
	if (save->partial && asprintf(&save->file, "%s/" ZERO_SHARD_FILE, save->partial,
				      place->rank, place->world) < 0)
		save->file = NULL;
	save->out.path = save->file;
	return save->file ? ZERO_OK
			  : zero_fail(ZERO_E_MEMORY, "no memory to save to %s", save->dir);
}

/* ---- the start ------------------------------------------------------------------------------- */

zero_status zero_save_check(zero_job *job, const char *call)
{
	zero_status status = ZERO_OK;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "%s must be called after zero_layout", call);
	for (size_t g = 0; g < job->model->group_count; g++)
		if (zero_group_is_gathered(job->model->groups[g]))
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is gathered; release it before %s",
					 job->model->groups[g]->name, call);
	for (size_t g = 0; !status && g < job->model->group_count; g++)
		status = zero_wait_post_step_gather(job->model->groups[g]);
	if (!status)
		status = zero_require_state(job, ZERO_IDLE, call);
	if (!status)
		status = zero_step_state_read(job);
	if (!status)
		status = zero_group_steps_read(job);
	return status;
}

static zero_status check_save(zero_job *job, const char *dir, const zero_save_options *options)
{
	if (!dir || !*dir)
		return zero_fail(ZERO_E_INVALID,
				 "zero_save needs the name of a folder; it was given none");
	if (options->keep_last < 0)
		return zero_fail(
			ZERO_E_INVALID,
			"keep_last is %d in the options of zero_save; it must be 0 (all) or "
			"more",
			options->keep_last);
	return zero_save_check(job, "zero_save");
}

/* COLLECTIVE. All that must be the same on all ranks is in the label. */
static zero_status agree_start(zero_job *job, zero_status status, const char *dir,
			       const zero_save_options *options, uint64_t *token)
{
	char *label = NULL;
	size_t states;
	uint64_t hash = zero_named_states_hash(job, &states);

	if (asprintf(&label,
		     "save of step %llu%s, keep_last %d, %zu named states (%016llx), "
		     "to %s",
		     (unsigned long long)step_of(job, options),
		     options->background ? " in the background" : "", options->keep_last, states,
		     (unsigned long long)hash, dir ? dir : "") < 0)
		label = NULL;
	if (!label && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to save to %s", dir);
	status = zero_agree_token(job, status, label ? label : "save", token);
	free(label);
	return status;
}

/* COLLECTIVE. Creates the folder and the files, with the space for all. */
static zero_status make_files(struct zero_save *save, const zero_save_options *options)
{
	zero_status status = ZERO_OK;
	bool root = save->job->place.rank == 0;

	if (root)
		status = zero_save_make_folder(save);
	if (!status && root && options->user)
		status = zero_save_write_user(save, options->user, options->user_bytes);
	if (!status && root)
		status = zero_save_describe(save);
	status = zero_submit_wait(&save->job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				  "save: folder of %s", save->path);
	if (status)
		return status;
	status = zero_save_plan(save);
	if (!status)
		status = zero_save_create(save);
	/* In the background the thread does it, so that the caller does not wait for it. */
	if (!status && !options->background)
		status = zero_save_reserve(save);
	return zero_submit_wait(&save->job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				"save: space for %s", save->path);
}

struct zero_save_summary zero_save_summarize(const struct zero_save *save)
{
	return (struct zero_save_summary){
		.bytes = save->out.bytes,
		.header = save->files->checksum(save->header, save->header_bytes),
		.checksums = save->files->checksum(save->checksums,
						   save->checksum_count * sizeof(*save->checksums)),
	};
}

/* COLLECTIVE. Sends the sizes and checksums of all files to all ranks; rank 0 needs them. */
static zero_status exchange_summaries(struct zero_save *save, zero_status status)
{
	struct zero_save_summary mine = {0};
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES,
			     .send = &mine,
			     .recv = save->summaries,
			     .count = sizeof(mine)};

	if (!status)
		mine = zero_save_summarize(save);
	status = zero_submit_wait(&save->job->all, status, &op, 1, ZERO_WORK_CHECKPOINT,
				  "save: files of %s", save->path);
	zero_hooks_after_save(save->job, false, zero_seconds() - save->start_time, save->out.bytes,
			      !status);
	return status;
}

static zero_status write_file(struct zero_save *save)
{
	zero_status status = ZERO_OK;

	for (size_t i = 0; !status && i < save->slice_count; i++)
		status = zero_save_write_slice(save, &save->slices[i]);
	return zero_save_close(save, status);
}

/* COLLECTIVE. Writes and publishes in the foreground. */
static zero_status write_foreground(struct zero_save *save)
{
	zero_status status = exchange_summaries(save, write_file(save));
	bool root = save->job->place.rank == 0;

	if (status)
		return status;
	if (root)
		status = zero_save_publish(save);
	return zero_submit_wait(&save->job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				"save: end of %s", save->path);
}

static zero_status start_save(zero_job *job, const char *dir, const zero_save_options *options)
{
	struct zero_save *save = NULL;
	zero_status status = check_save(job, dir, options);
	uint64_t token;

	if (!status)
		status = zero_save_new(job, dir, step_of(job, options), &save);
	if (!status)
		save->keep_last = options->keep_last;
	status = agree_start(job, status, dir, options, &token);
	if (!status)
		/* Other agreements name the path, which a rank without memory does not have. */
		status = zero_submit_wait(&job->all, make_names(save, token), NULL, 0,
					  ZERO_WORK_CHECKPOINT, "save: names of %s", dir);
	if (!status)
		status = make_files(save, options);
	if (!status && options->background) {
		job->save = save;
		zero_save_start(save);
		return ZERO_OK;
	}
	if (!status)
		status = write_foreground(save);
	if (status && save) {
		zero_save_close(save, status);
		zero_save_discard(save);
	}
	free_save(save);
	return status;
}

/* ---- the end of a background save ------------------------------------------------------------ */

static bool is_written(const zero_job *job)
{
	return !job->save || job->save->state != ZERO_SAVE_WRITING || job->save->written;
}

static void *publish(void *context)
{
	struct zero_save *save = context;

	zero_save_set_error(save, zero_save_publish(save));
	return NULL;
}

static void complete(zero_job *job)
{
	struct zero_save *save = job->save;
	zero_status status;

	if (!save || save->state != ZERO_SAVE_WRITING)
		return;
	status = exchange_summaries(save, zero_save_join(save));
	zero_save_set_error(save, status);
	free_plan(save);
	give_back(job);
	save->state = status ? ZERO_SAVE_ENDED : ZERO_SAVE_PUBLISHING;
	if (status)
		zero_save_discard(save);
	else if (job->place.rank == 0)
		zero_save_start_thread(save, publish);
}

/* COLLECTIVE. Either all ranks have a save, or none has. */
static zero_status wait_for(zero_job *job)
{
	struct zero_save *save = job->save;
	zero_status status;

	if (!save)
		return ZERO_OK;
	complete(job);
	if (save->state == ZERO_SAVE_PUBLISHING) {
		status = zero_save_join(save);
		status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
					  "save: end of %s", save->path);
	} else {
		status = zero_fail_on(save->error_rank, save->status,
				      save->error ? save->error : "no memory");
	}
	job->save = NULL;
	free_save(save);
	return status;
}

zero_status zero_save_wait(zero_job *job)
{
	const char *before = zero_set_current_call(job, "zero_save_wait");
	zero_status status = wait_for(job);

	zero_set_current_call(job, before);
	return status;
}

static zero_status end_save(struct zero_save *save, bool together)
{
	if (save->state == ZERO_SAVE_WRITING && together) {
		complete(save->job);
	} else if (save->state == ZERO_SAVE_WRITING) {
		zero_save_cancel(save);
		zero_save_join(save);
		zero_save_discard(save);
	}
	return zero_save_join(save);
}

static void before_close(zero_job *job, bool together)
{
	struct zero_save *save = job->save;
	struct zero_saved_error before;

	if (!save)
		return;
	zero_error_save(&before);
	/* An earlier error of this thread matters more than that the last checkpoint failed. */
	if (!end_save(save, together) || *before.text)
		zero_error_restore(&before);
	job->save = NULL;
	free_save(save);
}

zero_status zero_save(zero_job *job, const char *dir, const zero_save_options *options)
{
	static const zero_save_options defaults;
	const char *call = zero_set_current_call(job, "zero_save");
	zero_status before = wait_for(job), status;
	struct zero_saved_error earlier;

	zero_error_save(&earlier);
	status = start_save(job, dir, options ? options : &defaults);
	/* The error of an earlier save is returned, but this one is made all the same. */
	if (!status && before) {
		zero_error_restore(&earlier);
		status = before;
	}
	zero_set_current_call(job, call);
	return status;
}

static void before_change(zero_job *job, zero_group *group, bool step)
{
	zero_save_snapshot(job->save, group, step);
}

static bool is_writing(const zero_job *job)
{
	return !is_written(job);
}

const struct zero_hooks zero_checkpoint_hooks = {
	.before_change = before_change,
	.busy = is_writing,
	.all_idle = complete,
	.before_close = before_close,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_restore: rank 0 finds the checkpoint and tells the others its name. Each rank reads the
 * manifest, from which it knows the ranges of the files that it needs. It reads them and verifies
 * each byte by the checksums. No values are sent between ranks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/restore.h"

/* The checkpoint that rank 0 found. */
struct found {
	bool exists;
	char name[31]; /* in the folder that the caller gave; "": it is that folder */
};

static zero_status check_restore(zero_job *job)
{
	zero_status status = zero_require_state(job, ZERO_IDLE | ZERO_INCONSISTENT, "zero_restore");

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_restore must be called after zero_layout");
	for (size_t g = 0; !status && g < job->model->group_count; g++) {
		if (zero_group_is_gathered(job->model->groups[g]))
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is gathered; release it before zero_restore",
					 job->model->groups[g]->name);
		status = zero_wait_post_step_gather(job->model->groups[g]);
	}
	return status;
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* Called on rank 0. If `optional`, it is no error that there is none. */
static zero_status find(const char *path, bool optional, struct found *found)
{
	zero_status status;
	char *folder;

	status = zero_checkpoint_find(path, &folder);
	if (!status && !folder && !optional)
		status = zero_fail(ZERO_E_FILE,
				   "%s: there is no checkpoint; a checkpoint is a folder with a "
				   "manifest.json",
				   path);
	found->exists = !status && folder;
	if (found->exists && strcmp(folder, path) != 0)
		snprintf(found->name, sizeof(found->name), "%s", strrchr(folder, '/') + 1);
	free(folder);
	return status;
}

/* COLLECTIVE. Sends what rank 0 found to all ranks. */
static zero_status agree_found(const struct zero_restore *restore, zero_status status,
			       struct found *found)
{
	zero_job *job = restore->job;
	struct found *all = calloc((size_t)job->place.world, sizeof(*all));
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES,
			     .send = found,
			     .recv = all,
			     .count = sizeof(*found)};
	size_t states;
	uint64_t hash = zero_named_states_hash(job, &states);

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", restore->path);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_CHECKPOINT,
				  "restore of %zu named states (%016llx) from %s", states,
				  (unsigned long long)hash, restore->path);
	if (!status)
		*found = all[0];
	free(all);
	return status;
}

static zero_status read_manifest(struct zero_restore *restore, const char *name)
{
	zero_status status;
	char *path;

	if (restore->source) {
		restore->manifest = restore->source->manifest;
		restore->folder = strdup(restore->path);
		return restore->folder ? ZERO_OK
				       : zero_fail(ZERO_E_MEMORY, "no memory to restore from %s",
						   restore->path);
	}
	restore->folder = *name ? zero_checkpoint_path(restore->path, name) : strdup(restore->path);
	path = restore->folder ? zero_checkpoint_path(restore->folder, "manifest.json") : NULL;
	status = path ? restore->files->manifest_read(path, &restore->manifest)
		      : zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", restore->path);
	free(path);
	return status;
}

/* COLLECTIVE. A checkpoint that is replaced while ranks read the manifest is an error. */
static zero_status agree_manifest(const struct zero_restore *restore, zero_status status)
{
	zero_job *job = restore->job;
	int world = job->place.world;
	uint64_t seal = status ? 0 : restore->manifest->seal;
	uint64_t *all = calloc((size_t)world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &seal, .recv = all, .count = sizeof(seal)};

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", restore->path);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_CHECKPOINT,
				  "restore: manifest of %s", restore->path);
	for (int rank = 1; !status && rank < world; rank++)
		if (all[rank] != all[0])
			status = zero_fail(ZERO_E_FILE,
					   "%s: rank %d has read another manifest than rank 0; was "
					   "the checkpoint replaced meanwhile?",
					   restore->folder, rank);
	free(all);
	return status;
}

static zero_status describe_checkpoint(const struct zero_restore *restore,
				       zero_checkpoint_info *checkpoint)
{
	const struct zero_manifest *manifest = restore->manifest;

	checkpoint->step = manifest->step;
	checkpoint->world = manifest->world;
	checkpoint->stage = manifest->stage;
	checkpoint->path = strdup(restore->folder);
	if (!checkpoint->path)
		return zero_fail(ZERO_E_MEMORY, "no memory for the name of %s", restore->folder);
	if (!manifest->has_user)
		return ZERO_OK;
	checkpoint->user_bytes = manifest->user_bytes;
	if (restore->source) {
		checkpoint->user = malloc(manifest->user_bytes + 1);
		if (!checkpoint->user)
			return zero_fail(ZERO_E_MEMORY, "no memory for the program's own bytes");
		memcpy(checkpoint->user, restore->source->user, manifest->user_bytes);
		return ZERO_OK;
	}
	return zero_checkpoint_user(restore->files, manifest, restore->folder, &checkpoint->user);
}

void zero_checkpoint_info_free(zero_checkpoint_info *checkpoint)
{
	free(checkpoint->path);
	free(checkpoint->user);
	*checkpoint = (zero_checkpoint_info){0};
}

/* ---- states ---------------------------------------------------------------------------------- */

/* Allocates the states that the checkpoint has. */
static zero_status alloc_states(const struct zero_restore *restore)
{
	struct zero_model *model = restore->job->model;
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < model->group_count; g++)
		if (restore->steps[g])
			status = zero_states_alloc(model->groups[g]);
	return status;
}

/* States that the checkpoint does not have are freed, as before the first step, which creates
   them. */
static void restore_groups(const struct zero_restore *restore)
{
	struct zero_model *model = restore->job->model;

	for (size_t g = 0; g < model->group_count; g++) {
		zero_group_steps_set(model->groups[g], restore->steps[g]);
		if (!restore->steps[g])
			zero_states_free(model->groups[g], true);
	}
}

/* Sets the number of steps and the settings of the last step. */
static void restore_step(zero_job *job, const struct zero_manifest *manifest)
{
	/* A program that takes its own steps counts them itself. */
	zero_steps_set(job, manifest->states ? manifest->step : 0);
	job->trainer->has_adamw = manifest->has_adamw;
	if (manifest->has_adamw)
		job->trainer->adamw = (zero_adamw){.lr = (float)manifest->lr,
						   .beta1 = (float)manifest->beta1,
						   .beta2 = (float)manifest->beta2,
						   .eps = (float)manifest->eps,
						   .weight_decay = (float)manifest->weight_decay,
						   .clip = (float)manifest->clip};
}

/* COLLECTIVE. All ranks have the manifest. */
static zero_status restore_all(struct zero_restore *restore, zero_status status)
{
	zero_job *job = restore->job;
	const struct zero_manifest *manifest = restore->manifest;

	if (!status)
		status = zero_restore_match(restore);
	/* Values change from here: a save in the background needs a snapshot first. */
	if (!status)
		zero_hooks_before_change(job, NULL, false);
	if (!status)
		status = alloc_states(restore);
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_CHECKPOINT,
				  "restore: plan for %s", restore->path);
	if (status)
		return status;
	status = zero_submit_wait(&job->all, zero_restore_reshard(restore), NULL, 0,
				  ZERO_WORK_CHECKPOINT, "restore: bytes of %s", restore->path);
	if (status)
		return status;
	restore_groups(restore);
	restore_step(job, manifest);
	job->model->inconsistent = false;
	return ZERO_OK;
}

/* Whether it is what zero_protect_find found in memory. */
static bool is_source(const zero_job *job, const char *path)
{
	return job->source && !strcmp(path, job->source->path);
}

zero_status zero_restore(zero_job *job, const char *path, zero_checkpoint_info *checkpoint)
{
	struct zero_restore restore = {.job = job, .path = path ? path : ""};
	const char *before = zero_set_current_call(job, "zero_restore");
	struct found found = {.exists = false};
	zero_status status = check_restore(job);

	if (checkpoint)
		*checkpoint = (zero_checkpoint_info){0};
	if (!status)
		status = zero_files_open(&restore.files);
	if (!status && is_source(job, restore.path)) {
		restore.source = job->source;
		found.exists = true;
	} else if (!status && job->place.rank == 0) {
		status = find(restore.path, checkpoint, &found);
	}
	status = agree_found(&restore, status, &found);
	if (status || !found.exists)
		goto out;
	status = agree_manifest(&restore, read_manifest(&restore, found.name));
	if (status)
		goto out;
	if (checkpoint)
		status = describe_checkpoint(&restore, checkpoint);
	status = restore_all(&restore, status);
out:
	if (restore.manifest && !restore.source)
		restore.files->manifest_free(restore.manifest);
	free(restore.params);
	free(restore.steps);
	free(restore.folder);
	zero_set_current_call(job, before);
	return status;
}

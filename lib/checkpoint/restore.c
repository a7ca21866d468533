/* SPDX-License-Identifier: Apache-2.0 */
/*
 * zero_restore: rank 0 finds the checkpoint, verifies its manifest and broadcasts it. From the
 * manifest each rank knows the ranges of the files that it needs. It reads them and verifies each
 * byte by the checksums. Only the manifest and the program's own bytes are sent between ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/restore.h"

/* What rank 0 found, and what the other ranks need of it. */
struct found {
	uint64_t folder;     /* bytes of its name with the zero; 0: there is no checkpoint */
	uint64_t manifest;   /* bytes */
	uint64_t needs_user; /* a rank asked for the program's own bytes */
};

struct restoring {
	struct zero_restore plan;
	zero_checkpoint_info *checkpoint;
	char *text; /* of the manifest */
	void *user;
	struct found found; /* the same on all ranks after agree_found */
};

static zero_status check_restore(zero_job *job)
{
	zero_status status = zero_require_no_own_step(job, "zero_restore");

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_restore must be called after zero_layout");
	for (size_t g = 0; !status && g < job->model->group_count; g++) {
		if (job->model->groups[g]->gather)
			return zero_fail(ZERO_E_STATE,
					 "group '%s' is gathered; release it before zero_restore",
					 job->model->groups[g]->name);
		status = zero_wait_post_step_gather(job->model->groups[g]);
	}
	return status;
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

/* Called on rank 0. */
static zero_status find(struct restoring *r)
{
	struct zero_restore *plan = &r->plan;
	zero_status status = zero_checkpoint_find(plan->path, &plan->folder);
	size_t bytes = 0;
	char *path;

	if (status)
		return status;
	if (!plan->folder && r->checkpoint)
		return ZERO_OK;
	if (!plan->folder)
		return zero_fail(ZERO_E_FILE,
				 "%s: there is no checkpoint; a checkpoint is a folder with a "
				 "manifest.json",
				 plan->path);
	path = zero_checkpoint_path(plan->folder, "manifest.json");
	if (!path)
		return zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", plan->folder);
	status = plan->files->manifest_load(path, &r->text, &bytes);
	if (!status)
		status = plan->files->manifest_parse(path, r->text, bytes, &plan->manifest);
	free(path);
	if (!status && plan->manifest->has_user)
		status = zero_checkpoint_user(plan->files, plan->manifest, plan->folder, &r->user);
	r->found.folder = strlen(plan->folder) + 1;
	r->found.manifest = bytes;
	return status;
}

/* COLLECTIVE. Sends what rank 0 found to all ranks. */
static zero_status agree_found(struct restoring *r, zero_status status)
{
	zero_job *job = r->plan.job;
	size_t world = (size_t)job->place.world;
	struct found *all = calloc(world, sizeof(*all));
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE,
			     .send = &r->found,
			     .recv = all,
			     .count = sizeof(r->found)};
	size_t states;
	uint64_t hash = zero_named_states_hash(job, &states);

	r->found.needs_user = r->checkpoint != NULL;
	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory to restore from %s", r->plan.path);
	status = zero_submit_wait(&job->all, status, &op, 1,
				  "restore of %zu named states (%016llx) from %s", states,
				  (unsigned long long)hash, r->plan.path);
	if (!status) {
		r->found = all[0];
		for (size_t rank = 1; rank < world; rank++)
			r->found.needs_user |= all[rank].needs_user;
	}
	free(all);
	return status;
}

/* ---- broadcasts ------------------------------------------------------------------------------ */

/* COLLECTIVE. Broadcasts bytes of rank 0 between host memories, in pieces, through staging in device
   memory where the backend needs that. */
static zero_status broadcast(const struct restoring *r, zero_status status, char *data,
			     size_t bytes, const char *what)
{
	zero_job *job = r->plan.job;
	bool staged = !job->ops->host_memory, root = job->place.rank == 0;
	size_t piece = bytes < job->stream_chunk ? bytes : job->stream_chunk;
	void *staging = NULL;

	if (job->place.world == 1 || !bytes)
		return zero_submit_wait(&job->all, status, NULL, 0, "restore: %s of %s", what,
					r->plan.path);
	if (!status && staged)
		status = job->ops->alloc(job->backend, ZERO_MEM_STAGING, piece, false, &staging);
	for (size_t at = 0, now; at < bytes; at += now) {
		struct zero_op op = {
			.kind = ZERO_OP_BROADCAST, .from = ZERO_U8, .to = ZERO_U8, .piece = piece};

		op.count = now = bytes - at < piece ? bytes - at : piece;
		op.send = op.recv = staged || status ? staging : data + at;
		if (!status && staged && root) {
			job->ops->copy(job->backend, staging, data + at, now);
			status = zero_device_sync(job);
		}
		status = zero_submit_wait(&job->all, status, &op, 1, "restore: %s of %s", what,
					  r->plan.path);
		if (!status && staged && !root) {
			job->ops->copy(job->backend, data + at, staging, now);
			status = zero_device_sync(job);
		}
		/* An error that only this rank knows is shared with the next piece, or by the caller. */
		if (status && zero_last_error_shared())
			break;
	}
	job->ops->free(job->backend, staging);
	return status;
}

/* COLLECTIVE. Broadcasts the checkpoint's name and its manifest, which the other ranks then parse. */
static zero_status broadcast_manifest(struct restoring *r)
{
	struct zero_restore *plan = &r->plan;
	size_t bytes = r->found.folder + r->found.manifest;
	bool root = plan->job->place.rank == 0;
	char *both = malloc(bytes);
	zero_status status = ZERO_OK;

	if (!both)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the manifest of %s", plan->path);
	if (!status && root) {
		memcpy(both, plan->folder, r->found.folder);
		memcpy(both + r->found.folder, r->text, r->found.manifest);
	}
	status = broadcast(r, status, both, bytes, "manifest");
	if (!status && !root) {
		plan->folder = strdup(both);
		if (!plan->folder)
			status = zero_fail(ZERO_E_MEMORY, "no memory to restore from %s",
					   plan->path);
		else
			status = plan->files->manifest_parse(plan->folder, both + r->found.folder,
							     r->found.manifest, &plan->manifest);
	}
	free(both);
	return status;
}

/* COLLECTIVE. Broadcasts the program's own bytes. */
static zero_status broadcast_user(struct restoring *r, zero_status status)
{
	const struct zero_manifest *manifest = r->plan.manifest;
	size_t bytes;

	/* If a rank could not parse the manifest, no rank may go on to the program's bytes. */
	status = zero_submit_wait(&r->plan.job->all, status, NULL, 0,
				  "restore: manifest of %s, read", r->plan.path);
	if (status || !manifest->has_user || !r->found.needs_user)
		return status;
	bytes = manifest->user_bytes;
	if (!r->user)
		r->user = malloc(bytes ? bytes : 1);
	if (!r->user)
		status =
			zero_fail(ZERO_E_MEMORY, "no memory for the %zu bytes of the program in %s",
				  bytes, r->plan.folder);
	return broadcast(r, status, r->user, bytes, "the program's bytes");
}

static zero_status describe_checkpoint(struct restoring *r)
{
	zero_checkpoint_info *checkpoint = r->checkpoint;
	const struct zero_manifest *manifest = r->plan.manifest;

	if (!checkpoint)
		return ZERO_OK;
	checkpoint->step = manifest->step;
	checkpoint->world = manifest->world;
	checkpoint->stage = manifest->stage;
	checkpoint->path = strdup(r->plan.folder);
	if (!checkpoint->path)
		return zero_fail(ZERO_E_MEMORY, "no memory for the name of %s", r->plan.folder);
	if (manifest->has_user) {
		checkpoint->user = r->user;
		checkpoint->user_bytes = manifest->user_bytes;
		r->user = NULL;
	}
	return ZERO_OK;
}

void zero_checkpoint_info_free(zero_checkpoint_info *checkpoint)
{
	free(checkpoint->path);
	free(checkpoint->user);
	*checkpoint = (zero_checkpoint_info){0};
}

/* ---- states ---------------------------------------------------------------------------------- */

/* Allocates the states that the checkpoint has. */
static zero_status alloc_states(zero_job *job)
{
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < job->model->group_count; g++)
		if (job->model->groups[g]->steps)
			status = zero_states_alloc(job->model->groups[g]);
	return status;
}

/* States that the checkpoint does not have are freed, as before the first step, which creates them. */
static void restore_groups(zero_job *job)
{
	for (size_t g = 0; g < job->model->group_count; g++) {
		zero_group *group = job->model->groups[g];

		zero_group_steps_set(group, group->steps);
		if (!group->steps)
			zero_states_free(group, true);
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
static zero_status restore_all(struct restoring *r, zero_status status)
{
	zero_job *job = r->plan.job;
	const struct zero_manifest *manifest = r->plan.manifest;

	if (!status)
		status = zero_restore_plan(&r->plan);
	/* Values change from here: a save in the background needs a snapshot first. */
	if (!status)
		zero_hooks_before_change(job, NULL, false);
	if (!status)
		status = alloc_states(job);
	status = zero_restore_fill(&r->plan, status);
	if (status)
		return status;
	restore_groups(job);
	restore_step(job, manifest);
	job->model->torn = false;
	return ZERO_OK;
}

zero_status zero_restore(zero_job *job, const char *path, zero_checkpoint_info *checkpoint)
{
	struct restoring r = {.plan = {.job = job, .path = path ? path : ""},
			      .checkpoint = checkpoint};
	const char *before = zero_set_current_call(job, "zero_restore");
	zero_status status = check_restore(job);

	if (checkpoint)
		*checkpoint = (zero_checkpoint_info){0};
	if (!status)
		status = zero_files_open(&r.plan.files);
	if (!status && job->place.rank == 0)
		status = find(&r);
	status = agree_found(&r, status);
	if (status || !r.found.folder)
		goto out;
	status = broadcast_manifest(&r);
	status = broadcast_user(&r, status);
	if (status && (zero_last_error_shared() || !r.plan.manifest))
		goto out;
	if (!status)
		status = describe_checkpoint(&r);
	status = restore_all(&r, status);
out:
	if (r.plan.manifest)
		r.plan.files->manifest_free(r.plan.manifest);
	free(r.plan.params);
	free(r.plan.folder);
	free(r.text);
	free(r.user);
	zero_set_current_call(job, before);
	return status;
}

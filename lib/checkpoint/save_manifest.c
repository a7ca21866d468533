/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a checkpoint: the job's layout, and the files of all ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "checkpoint/save.h"

enum { NAME_CAPACITY = 48 };

/* The place of a group's ranks among the teams: those of a grid are the last. -1: all, in order. */
static int team_index(const zero_group *group)
{
	int index = 0;

	for (const zero_team *one = group->job->teams; one; one = one->next, index++)
		if (one == group->team)
			return index;
	return group->replica_team ? index : -1;
}

static size_t count_params(const zero_job *job)
{
	size_t count = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		count += job->model->groups[g]->param_count;
	return count;
}

static size_t count_names(const zero_job *job)
{
	size_t bytes = 0;

	for (size_t g = 0; g < job->model->group_count; g++) {
		const zero_group *group = job->model->groups[g];

		bytes += strlen(group->name) + 1;
		for (size_t p = 0; p < group->param_count; p++)
			bytes += strlen(group->params[p]->name) + 1;
	}
	return bytes;
}

static char *keep_name(char **room, const char *name)
{
	size_t bytes = strlen(name) + 1;
	char *kept = memcpy(*room, name, bytes);

	*room += bytes;
	return kept;
}

static size_t count_teams(const zero_job *job)
{
	size_t count = 0;

	for (const zero_team *team = job->teams; team; team = team->next)
		count++;
	return count + (job->grid != NULL);
}

static void list_teams(const zero_job *job, struct zero_manifest *manifest)
{
	for (const zero_team *team = job->teams; team; team = team->next)
		manifest->teams[manifest->team_count++] = (struct zero_manifest_team){
			.ranks = team->ranks, .count = team->place.world};
	if (job->grid)
		manifest->teams[manifest->team_count++] = (struct zero_manifest_team){
			.ranks = job->grid->owners, .count = job->place.world};
}

/* Copies the named states of a parameter to `states`, which has the capacity. */
static void list_states(const zero_param *param, struct zero_manifest_state *states)
{
	for (size_t s = 0; s < param->state_count; s++) {
		states[s].dtype = param->states[s].dtype;
		states[s].block = param->states[s].block;
		memcpy(states[s].name, param->states[s].name, sizeof(states[s].name));
	}
}

static void list_tensors(const struct zero_save *save, struct zero_manifest *manifest,
			 struct zero_manifest_state *states)
{
	const zero_job *job = save->job;
	char *room = save->manifest_names;

	for (size_t g = 0; g < job->model->group_count; g++) {
		char *group_name = keep_name(&room, job->model->groups[g]->name);

		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_param *param = job->model->groups[g]->params[p];
			struct zero_manifest_tensor *tensor =
				&manifest->tensors[manifest->tensor_count];

			if (param->alias_of)
				continue;
			*tensor = (struct zero_manifest_tensor){
				.name = keep_name(&room, param->name),
				.group = group_name,
				.states = states,
				.state_count = param->state_count,
				.first = param->first,
				.shard = param->flat->segments[param->segment].shard,
				.dtype = param->dtype,
				.ndim = param->ndim,
				.team = team_index(job->model->groups[g]),
				.trainable = param->trainable,
				.has_steps = save->has_states && param->trainable &&
					     param->group->steps != save->step,
				.steps = param->group->steps,
			};
			memcpy(tensor->shape, param->shape, sizeof(tensor->shape));
			list_states(param, states);
			states += param->state_count;
			manifest->tensor_count++;
		}
	}
}

static void list_settings(const struct zero_save *save, struct zero_manifest *manifest)
{
	const struct zero_settings *settings = &save->job->settings;
	const struct zero_value *allgather = &settings->value[ZERO_OPT_ALLGATHER];
	const zero_adamw *adamw = &save->job->trainer->adamw;
	static char version[] = PACKAGE_VERSION;

	manifest->library = version;
	manifest->allgather =
		(char *)(uintptr_t)zero_option_table[ZERO_OPT_ALLGATHER].choices[allgather->number];
	manifest->bucket = settings->value[ZERO_OPT_BUCKET].number;
	manifest->step = save->step;
	manifest->world = save->job->place.world;
	manifest->stage = save->job->stage;
	manifest->states = save->has_states;
	manifest->has_user = save->has_user;
	manifest->user_bytes = save->user_bytes;
	manifest->user_checksum = save->user_checksum;
	manifest->has_adamw = save->job->trainer->has_adamw;
	manifest->lr = (double)adamw->lr;
	manifest->beta1 = (double)adamw->beta1;
	manifest->beta2 = (double)adamw->beta2;
	manifest->eps = (double)adamw->eps;
	manifest->weight_decay = (double)adamw->weight_decay;
	manifest->clip = (double)adamw->clip;
}

zero_status zero_save_describe(struct zero_save *save)
{
	const zero_job *job = save->job;
	struct zero_manifest *manifest = &save->manifest;
	struct zero_manifest_state *states;
	size_t state_count;

	zero_named_states_hash(job, &state_count);
	manifest->teams = calloc(count_teams(job) + 1, sizeof(*manifest->teams));
	manifest->tensors = calloc(count_params(job) + 1, sizeof(*manifest->tensors));
	states = save->manifest_states = calloc(state_count + 1, sizeof(*states));
	save->manifest_names = malloc(count_names(job) + 1);
	if (!manifest->teams || !manifest->tensors || !states || !save->manifest_names)
		return zero_fail(ZERO_E_MEMORY, "no memory for the manifest of %s", save->path);
	list_settings(save, manifest);
	list_teams(job, manifest);
	list_tensors(save, manifest, states);
	return ZERO_OK;
}

void zero_save_free_manifest(struct zero_save *save)
{
	free(save->manifest.teams);
	free(save->manifest.tensors);
	free(save->manifest_states);
	free(save->manifest_names);
}

/* ---- the files of all ranks ------------------------------------------------------------------ */

static void list_files(const struct zero_save *save, struct zero_manifest_file *files, char *names)
{
	int world = save->job->place.world;

	for (int rank = 0; rank < world; rank++, names += NAME_CAPACITY) {
		const struct zero_save_summary *summary = &save->summaries[rank];

		snprintf(names, NAME_CAPACITY, ZERO_SHARD_FILE, rank, world);
		files[rank] = (struct zero_manifest_file){
			.name = names,
			.bytes = summary->bytes,
			.header = summary->header,
			.checksums = summary->checksums,
		};
	}
}

zero_status zero_save_make_manifest(struct zero_save *save, char **text, size_t *bytes)
{
	size_t world = (size_t)save->job->place.world;
	char *names = calloc(world, NAME_CAPACITY);
	struct zero_manifest_file *files = calloc(world, sizeof(*files));
	zero_status status;

	if (names && files) {
		list_files(save, files, names);
		save->manifest.files = files;
		status = save->files->manifest_format(&save->manifest, text, bytes);
		save->manifest.files = NULL;
	} else {
		status = zero_fail(ZERO_E_MEMORY, "no memory for the manifest of %s", save->path);
	}
	free(files);
	free(names);
	return status;
}

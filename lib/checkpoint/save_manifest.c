/* SPDX-License-Identifier: Apache-2.0 */
/* The manifest of a checkpoint: the job's layout, and the files of all ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "checkpoint/save.h"

enum { NAME_ROOM = 48 };

static int team_index(const zero_job *job, const zero_team *team)
{
	int index = 0;

	for (const zero_team *one = job->teams; one; one = one->next, index++)
		if (one == team)
			return index;
	return -1;
}

static size_t count_params(const zero_job *job)
{
	size_t count = 0;

	for (size_t g = 0; g < job->model->group_count; g++)
		count += job->model->groups[g]->param_count;
	return count;
}

static size_t count_teams(const zero_job *job)
{
	size_t count = 0;

	for (const zero_team *team = job->teams; team; team = team->next)
		count++;
	return count;
}

static void list_teams(const zero_job *job, struct zero_manifest *manifest)
{
	for (const zero_team *team = job->teams; team; team = team->next)
		manifest->teams[manifest->team_count++] = (struct zero_manifest_team){
			.ranks = team->ranks, .count = team->place.world};
}

static void list_tensors(const zero_job *job, struct zero_manifest *manifest)
{
	for (size_t g = 0; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_param *param = job->model->groups[g]->params[p];
			struct zero_manifest_tensor *tensor =
				&manifest->tensors[manifest->tensor_count];

			if (param->alias_of)
				continue;
			*tensor = (struct zero_manifest_tensor){
				.name = param->name,
				.group = job->model->groups[g]->name,
				.first = param->first,
				.shard = param->flat->segments[param->segment].shard,
				.dtype = param->dtype,
				.ndim = param->ndim,
				.team = team_index(job, job->model->groups[g]->team),
				.trainable = param->trainable,
			};
			memcpy(tensor->shape, param->shape, sizeof(tensor->shape));
			manifest->tensor_count++;
		}
}

static void list_files(const struct zero_save *save, struct zero_manifest *manifest, char *names)
{
	int world = save->job->place.world;

	for (int rank = 0; rank < world; rank++, names += NAME_ROOM) {
		const struct zero_save_summary *summary = &save->summaries[rank];

		snprintf(names, NAME_ROOM, ZERO_SHARD_FILE, rank, world);
		manifest->files[rank] = (struct zero_manifest_file){
			.name = names,
			.bytes = summary->bytes,
			.header = summary->header,
			.checksums = summary->checksums,
		};
	}
}

static void fill(const struct zero_save *save, struct zero_manifest *manifest)
{
	const struct zero_settings *settings = &save->job->settings;
	const struct zero_value *allgather = &settings->value[ZERO_OPT_ALLGATHER];
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
	manifest->has_adamw = save->has_adamw;
	manifest->lr = (double)save->adamw.lr;
	manifest->beta1 = (double)save->adamw.beta1;
	manifest->beta2 = (double)save->adamw.beta2;
	manifest->eps = (double)save->adamw.eps;
	manifest->weight_decay = (double)save->adamw.weight_decay;
	manifest->clip = (double)save->adamw.clip;
}

zero_status zero_save_make_manifest(const struct zero_save *save, char **text, size_t *bytes)
{
	const zero_job *job = save->job;
	size_t world = (size_t)job->place.world;
	struct zero_manifest manifest = {0};
	char *names = calloc(world, NAME_ROOM);
	zero_status status;

	manifest.teams = calloc(count_teams(job) + 1, sizeof(*manifest.teams));
	manifest.tensors = calloc(count_params(job) + 1, sizeof(*manifest.tensors));
	manifest.files = calloc(world, sizeof(*manifest.files));
	if (names && manifest.teams && manifest.tensors && manifest.files) {
		fill(save, &manifest);
		list_teams(job, &manifest);
		list_tensors(job, &manifest);
		list_files(save, &manifest, names);
		status = save->files->manifest_format(&manifest, text, bytes);
	} else {
		status = zero_fail(ZERO_E_MEMORY, "no memory for the manifest of %s", save->path);
	}
	free(manifest.teams);
	free(manifest.tensors);
	free(manifest.files);
	free(names);
	return status;
}

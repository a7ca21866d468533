/* SPDX-License-Identifier: Apache-2.0 */
/* A job's settings: where they are read, and how all ranks come to equal ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"

enum zero_agreement zero_option_agreement(enum zero_option_id id)
{
	switch (id) {
	case ZERO_OPT_STAGE:
	case ZERO_OPT_SHARD:
	case ZERO_OPT_ALLGATHER:
	case ZERO_OPT_BUCKET:
	case ZERO_OPT_GATHER_DTYPE:
	case ZERO_OPT_OFFLOAD:
	case ZERO_OPT_STATES:
	case ZERO_OPT_STREAM:
	case ZERO_OPT_FLATTEN:
	case ZERO_OPT_REDUCE:
	case ZERO_OPT_NCCL_CTA:
	case ZERO_OPT_SHARE:
	case ZERO_OPT_CHECK:
	case ZERO_OPT_WATCH_SECONDS:
	case ZERO_OPT_STALL_SECONDS:
	case ZERO_OPT_ON_FAULT:
	case ZERO_OPT_PROTECT:
	case ZERO_OPT_SLOW:
	case ZERO_OPT_REPORT: /* only whether there is one */
		return ZERO_AGREE_EQUAL;
	case ZERO_OPT_STREAM_CHUNK:
	case ZERO_OPT_STREAM_THRESHOLD:
	case ZERO_OPT_BUDGET:
	case ZERO_OPT_GATHER_LIMIT:
		return ZERO_AGREE_LEAST;
	default:
		return ZERO_AGREE_OWN;
	}
}

/* A file that nobody reads is refused, not ignored. */
static zero_status check_config(const zero_job *job)
{
	const char *config = job->settings.value[ZERO_OPT_CONFIG].text;

	/* whoever wrote ZERO_RESOLVED has read the file */
	if (*config && strcmp(job->settings.origin[ZERO_OPT_CONFIG], "ZERO_RESOLVED") != 0)
		return zero_fail(ZERO_E_UNSUPPORTED,
				 "config is %s (from %s), a file that Slurm's plugin alone reads",
				 config, job->settings.origin[ZERO_OPT_CONFIG]);
	return ZERO_OK;
}

/*
 * A task of a step for which Slurm's plugin has turned zero on has ZERO_RESOLVED, unless its node
 * has no plugin, or that of another release. It would run with other settings than its peers.
 */
static bool check_plugin(const char *resolved, char *why, size_t size)
{
	const char *decision = getenv("SLURM_ZERO"), *node = getenv("SLURMD_NODENAME");

	/* the shell of salloc is no task: it is on no node */
	if (resolved || !decision || !node || zero_begins_with(decision, "off"))
		return true;
	return zero_refuse(why, size,
			   "zero is on for this job, but node %s has set no ZERO_RESOLVED: is "
			   "slurm-zero's plugin, of the same release, installed there and in its "
			   "plugstack.conf?",
			   zero_quote(node, strlen(node)).text);
}

/*
 * A launcher such as torchrun, started as a task of a zero step, starts several processes. They
 * inherit what makes the task a rank, and each would take itself for that rank. The plugin sets
 * WORLD_SIZE to the number of tasks: another value is the launcher's.
 */
zero_status zero_job_check_launcher(const zero_job *job)
{
	uint64_t tasks = job->settings.value[ZERO_OPT_TASKS].number;
	const char *world = getenv("WORLD_SIZE"), *local = getenv("LOCAL_WORLD_SIZE");
	const char *rank = getenv("SLURM_PROCID");
	bool torch = getenv("TORCHELASTIC_RUN_ID") != NULL;

	if (!getenv("SLURM_ZERO") || !tasks || !rank || !world ||
	    strtoull(world, NULL, 10) == tasks)
		return ZERO_OK;
	return zero_fail(ZERO_E_UNSUPPORTED,
			 "%s has started this process within task %.10s of the step, which Slurm "
			 "counts as one rank of %llu, but WORLD_SIZE is %.10s: let srun start each "
			 "rank, with --ntasks-per-node=%.10s and without the launcher (see WHAT A "
			 "PYTORCH JOB GETS in man spank_zero)",
			 torch ? "torchrun, or accelerate launch," : "another launcher", rank,
			 (unsigned long long)tasks, world, local ? local : "COUNT");
}

zero_status zero_job_read_settings(zero_job *job, const zero_options *options)
{
	const char *resolved = getenv("ZERO_RESOLVED");
	char why[512];

	if (!check_plugin(resolved, why, sizeof(why)))
		return zero_fail(ZERO_E_INVALID, "%s", why);
	if (resolved &&
	    !zero_settings_parse(&job->settings, resolved, "ZERO_RESOLVED", why, sizeof(why)))
		return zero_fail(ZERO_E_INVALID,
				 "%s. zerorun, or slurm-zero's plugin, has set this variable: is "
				 "it of another release than the program's libzero, which is %s?",
				 why, zero_version());
	/* the variables last: one that is overridden may be another program's */
	if ((options && options->settings &&
	     !zero_settings_parse(&job->settings, options->settings, "zero_open", why,
				  sizeof(why))) ||
	    !zero_settings_environment(&job->settings, why, sizeof(why)))
		return zero_fail(ZERO_E_INVALID, "%s", why);
	return check_config(job);
}

/* Settles one value for all ranks, from `all`: [world][ZERO_OPTIONS] numbers. */
static zero_status fold_settings(zero_job *job, const uint64_t *all)
{
	for (size_t id = 0; id < ZERO_OPTIONS; id++) {
		enum zero_agreement agreement = zero_option_agreement((enum zero_option_id)id);
		uint64_t least = all[id];

		for (int rank = 1; rank < job->place.world; rank++) {
			uint64_t value = all[(size_t)rank * ZERO_OPTIONS + id];

			if (agreement == ZERO_AGREE_EQUAL && value != all[id])
				return zero_fail(ZERO_E_INVALID,
						 "%s is not the same on ranks 0 and %d (here %s, "
						 "from %s): give all ranks one value",
						 zero_option_table[id].name, rank,
						 job->setting_text[id], job->settings.origin[id]);
			least = value < least ? value : least;
		}
		if (agreement == ZERO_AGREE_LEAST)
			job->settings.value[id].number = least;
	}
	return ZERO_OK;
}

static zero_status format_settings(zero_job *job)
{
	for (size_t id = 0; id < ZERO_OPTIONS; id++) {
		char *text = zero_value_text(&zero_option_table[id], &job->settings.value[id]);

		if (!text)
			return zero_fail(ZERO_E_MEMORY, "no memory for the options");
		free(job->setting_text[id]);
		job->setting_text[id] = text;
	}
	return ZERO_OK;
}

/* Takes back a threshold that the launcher computed from a budget which does not count. */
static zero_status forget_threshold(zero_job *job)
{
	char *origin = zero_settings_origin(&job->settings, ZERO_OPT_STREAM_THRESHOLD);

	if (!origin)
		return zero_fail(ZERO_E_MEMORY, "no memory for the options");
	if (strcmp(origin, "default") == 0)
		job->settings.value[ZERO_OPT_STREAM_THRESHOLD] =
			(struct zero_value){.kind = ZERO_VALUE_AUTO};
	free(origin);
	return ZERO_OK;
}

/*
 * Measures the memory, and finds the budget of this rank. What a launcher measured on the host says
 * nothing about a device; of a device it may be another one, or fuller by now, so that the smaller
 * number counts.
 */
static zero_status find_budget(zero_job *job)
{
	struct zero_value *value = job->settings.value, *budget = &value[ZERO_OPT_BUDGET];
	uint64_t source = value[ZERO_OPT_VRAM_SOURCE].number;
	bool on_device = !job->ops->host_memory;

	job->memory_free = job->ops->watch_only ? 0 : job->ops->memory_free(job->backend);
	job->memory_free += job->held;
	if (on_device && source != ZERO_VRAM_NVML && source != ZERO_VRAM_UNKNOWN) {
		budget->number = value[ZERO_OPT_VRAM_FREE].number = 0;
		value[ZERO_OPT_VRAM_TOTAL].number = 0;
		value[ZERO_OPT_VRAM_SOURCE].number = ZERO_VRAM_UNKNOWN;
	} else if (zero_settings_budget_known(&job->settings) &&
		   (!on_device || budget->number <= job->memory_free)) {
		return ZERO_OK;
	}
	budget->number = job->memory_free;
	return forget_threshold(job);
}

zero_status zero_job_resolve_sizes(zero_job *job)
{
	zero_status status = find_budget(job);

	if (status)
		return status;
	zero_settings_set_sizes(&job->settings);
	return format_settings(job);
}

zero_status zero_job_exchange_settings(zero_job *job, zero_status status, zero_status *unequal)
{
	size_t world = (size_t)job->place.world;
	uint64_t mine[ZERO_OPTIONS], *all = calloc(world * ZERO_OPTIONS, sizeof(uint64_t));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .recv = all, .count = sizeof(mine)};

	if (!all && !status)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the options of %zu ranks", world);
	for (size_t id = 0; id < ZERO_OPTIONS; id++)
		mine[id] = job->settings.value[id].number;
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_OTHER, "zero_open");
	if (status)
		goto out;
	*unequal = fold_settings(job, all);
	/* The number of ranks that in fact share memory. */
	job->settings.value[ZERO_OPT_SHARE].number = (uint64_t)job->place.shm_world;
	if (!*unequal)
		*unequal = format_settings(job);
out:
	free(all);
	return status;
}

void zero_job_apply_settings(zero_job *job)
{
	job->stage = (int)job->settings.value[ZERO_OPT_STAGE].number;
	job->stream_chunk = job->settings.value[ZERO_OPT_STREAM_CHUNK].number;
	job->stream_threshold = job->settings.value[ZERO_OPT_STREAM_THRESHOLD].number;
	job->gather_limit = job->settings.value[ZERO_OPT_GATHER_LIMIT].number;
}

zero_status zero_set_shard(zero_job *job, int ranks)
{
	char text[24], why[256];

	if (job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_set_shard must be called before zero_layout");
	snprintf(text, sizeof(text), "%d", ranks);
	if (!zero_settings_set(&job->settings, ZERO_OPT_SHARD, text, "zero_set_shard", why,
			       sizeof(why)))
		return zero_fail(ZERO_E_INVALID, "%s", why);
	return format_settings(job);
}

const char *zero_setting(const zero_job *job, const char *name)
{
	const struct zero_option *option = zero_option_find(name, strlen(name));

	if (!option)
		return NULL;
	if (option == &zero_option_table[ZERO_OPT_FLATTEN] && job->flatten_tier)
		return job->flatten_tier;
	if (option == &zero_option_table[ZERO_OPT_SHARD] && *job->shard_ranks)
		return job->shard_ranks;
	return job->setting_text[option - zero_option_table];
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tier in which all ranks flatten what was adopted: the first whose memory all of them have.
 * DeepSpeed's flattening needs memory for two copies of a model on the device, or every rank copies
 * all of it through the host.
 */
#include <stdlib.h>

#include "load.h"

/* Bytes of a flat buffer that this rank counts. */
static size_t flat_counted(const struct zero_flat *flat)
{
	size_t ranks = (size_t)flat->group->team->place.shm_world;

	if (flat->group->replicated)
		return flat->stored_bytes;
	return zero_round_to_pages(flat->stored_bytes / ranks + (flat->stored_bytes % ranks != 0));
}

/* Bytes that this rank packs into staging in the tier distributed; 0 if it packs in place. */
static size_t flat_packed(const struct zero_flat *flat)
{
	size_t bytes = 0;

	if (!zero_is_member(flat->group) || !flat->group->replicated ||
	    flat->group->team->place.world == 1)
		return 0;
	for (size_t r = 0; r < flat->segment_count; r++)
		bytes += zero_round_to_pages(flat->segments[r].shard *
					     zero_dtype_size(flat->segments[r].dtype));
	return bytes;
}

static size_t param_bytes(const zero_param *param)
{
	return param->count * zero_dtype_size(param->dtype);
}

/* Device memory that the flat buffer's tensors release. What the program has from elsewhere counts
   if it says what it holds. */
static size_t released_bytes(const struct zero_flat *flat)
{
	const zero_group *group = flat->group;
	const zero_job *job = group->job;
	size_t total = 0, bytes;

	for (size_t p = 0; p < group->param_count; p++) {
		const zero_adopt_spec *spec = group->params[p]->adopted;

		if (spec && spec->release && spec->data && group->params[p]->flat == flat &&
		    job->ops->caller_block(job->backend, spec->data, &bytes))
			total += bytes || !job->held ? bytes : param_bytes(group->params[p]);
	}
	return total;
}

/* What each rank needs; all ranks exchange it. */
struct needs {
	uint64_t most[ZERO_TIERS];    /* bytes of the device at the worst moment */
	uint64_t in_use, to_allocate; /* of these, in use now and allocated later */
	uint64_t on_host, on_device, own_values, sent, budget_known, local_world;
};

static void note_locations(const zero_job *job, struct needs *needs)
{
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++)
		for (size_t p = 0; p < job->model->groups[g]->param_count; p++) {
			const zero_adopt_spec *spec = job->model->groups[g]->params[p]->adopted;

			if (!spec)
				continue;
			*(spec->location == ZERO_ON_HOST ? &needs->on_host : &needs->on_device) = 1;
			needs->own_values |= spec->values == ZERO_VALUES_OWN;
			needs->sent |= spec->values == ZERO_VALUES_OF_RANK;
		}
}

static uint64_t later(uint64_t bytes, zero_bytes in_use)
{
	return bytes > in_use.now ? bytes - in_use.now : 0;
}

static void measure_memory(zero_job *job, struct needs *needs)
{
	struct zero_packing packing = {.chunk = job->stream_chunk, .on_host = needs->on_host};
	uint64_t bytes[ZERO_MEM_KINDS];
	zero_memory memory;

	job->ops->memory(job->backend, &memory, NULL);
	zero_sizing_bytes(&job->model->sizing, bytes);
	needs->in_use = memory.total.now;
	/* groups that were laid out before have some of it already */
	needs->to_allocate = later(bytes[ZERO_MEM_GRADIENTS], memory.gradients) +
			     later(bytes[ZERO_MEM_OPTIMIZER], memory.optimizer) +
			     later(bytes[ZERO_MEM_GATHERED], memory.gathered);
	for (int tier = 0; tier < ZERO_TIERS; tier++)
		packing.held[tier] = packing.most[tier] = needs->in_use;
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++) {
		const zero_group *group = job->model->groups[g];

		for (size_t f = 0; group->adopts && f < group->flat_count; f++)
			zero_packing_add(&packing, flat_counted(&group->flats[f]),
					 flat_packed(&group->flats[f]),
					 released_bytes(&group->flats[f]));
	}
	for (int tier = 0; tier < ZERO_TIERS; tier++)
		needs->most[tier] = packing.most[tier] + needs->to_allocate;
}

/* An error that names the flags that help. */
static zero_status no_room(const zero_job *job, const struct needs *needs)
{
	uint64_t most = needs->most[job->model->tier];
	const char *flag =
		job->model->tier == ZERO_TIER_HOST ? ", a smaller --zero-stream-chunk" : "";

	if (job->model->tier != ZERO_TIER_HOST)
		flag = ", --zero-flatten=host";
	return zero_fail(ZERO_E_MEMORY,
			 "to flatten the model (tier %s) takes %llu bytes on the device: %llu in "
			 "use, %llu to pack the tensors, and %llu later for gradients, optimizer "
			 "states and gathered groups; the budget is %llu. What helps: a higher "
			 "--zero-stage, --zero-offload=optimizer, a smaller --zero-vram-reserve%s",
			 zero_tier_name(job->model->tier), (unsigned long long)most,
			 (unsigned long long)needs->in_use,
			 (unsigned long long)(most - needs->in_use - needs->to_allocate),
			 (unsigned long long)needs->to_allocate,
			 (unsigned long long)job->settings.value[ZERO_OPT_BUDGET].number, flag);
}

/* The largest needs of all ranks. */
static struct needs fold_needs(const struct needs *all, size_t world)
{
	struct needs needs = all[0];

	for (size_t rank = 1; rank < world; rank++) {
		if (all[rank].most[ZERO_TIER_DEVICE] > needs.most[ZERO_TIER_DEVICE]) {
			needs.in_use = all[rank].in_use;
			needs.to_allocate = all[rank].to_allocate;
		}
		for (int tier = 0; tier < ZERO_TIERS; tier++)
			if (all[rank].most[tier] > needs.most[tier])
				needs.most[tier] = all[rank].most[tier];
		needs.budget_known |= all[rank].budget_known;
		if (all[rank].local_world < needs.local_world)
			needs.local_world = all[rank].local_world;
	}
	return needs;
}

/* All ranks choose alike; only the rank in the error differs. */
static zero_status choose_tier(zero_job *job, const struct needs *needs)
{
	const struct zero_value *setting = &job->settings.value[ZERO_OPT_FLATTEN];
	uint64_t budget = job->settings.value[ZERO_OPT_BUDGET].number;
	/* Without a device, a rank that has the values copies all of them sooner than it gathers
	   what others have copied. */
	bool alone = job->ops->host_memory && !needs->sent;
	struct zero_flatten flatten = {
		.setting = setting->number,
		.capacity = budget,
		.world = (size_t)job->place.world,
		.local_world = alone ? 1 : needs->local_world,
		.on_host = needs->on_host,
		.equal = !needs->own_values,
	};

	job->model->tier = zero_tier_choose(&flatten, needs->most);
	if (job->model->tier == ZERO_TIER_DISTRIBUTED && needs->own_values)
		return zero_fail(ZERO_E_INVALID,
				 "flatten is distributed (from %s), but tensors were adopted with "
				 "each rank's own values: they are equal, or those of one rank",
				 job->settings.origin[ZERO_OPT_FLATTEN]);
	if (!needs->budget_known)
		return ZERO_OK;
	job->ops->limit(job->backend, budget < SIZE_MAX ? budget : SIZE_MAX);
	return needs->most[job->model->tier] > budget ? no_room(job, needs) : ZERO_OK;
}

static zero_status check_adopted(const zero_job *job, const struct needs *needs)
{
	if (job->model->released_tensors)
		return zero_fail(ZERO_E_STATE,
				 "tensors were released in a zero_layout that failed: this job can "
				 "only be closed");
	if (needs->on_host && needs->on_device)
		return zero_fail(ZERO_E_INVALID,
				 "some of the adopted tensors are on the device and some on the "
				 "host: all must have one location");
	return ZERO_OK;
}

/* ---- ZERO_CHECK=1 ---------------------------------------------------------------------------- */

static bool is_compared(const zero_param *param)
{
	return param->adopted && param->adopted->values == ZERO_VALUES_EQUAL && param->count;
}

/* Hashes a tensor that may be on the device, through a piece of host memory. */
static zero_status checksum(const zero_param *param, char *piece, size_t piece_bytes,
			    uint64_t *hash)
{
	zero_job *job = param->group->job;
	size_t bytes = param->count * zero_dtype_size(param->dtype);
	zero_status status = ZERO_OK;

	*hash = 0;
	for (size_t at = 0, now; !status && at < bytes; at += now) {
		now = bytes - at < piece_bytes ? bytes - at : piece_bytes;
		job->ops->copy(job->backend, piece, (const char *)param->adopted->data + at, now);
		status = zero_device_sync(job);
		*hash = zero_hash(piece, now, *hash);
	}
	return status;
}

static zero_status find_difference(const zero_group *group, const uint64_t *all, size_t count)
{
	const zero_team *team = group->team;
	size_t at = 0;

	for (size_t p = 0; p < group->param_count; p++) {
		if (!is_compared(group->params[p]))
			continue;
		for (int rank = 1; rank < team->place.world; rank++)
			if (all[(size_t)rank * count + at] != all[at])
				return zero_fail(ZERO_E_INVALID,
						 "parameter '%s' adopts tensors that are declared "
						 "equal, but those of ranks %d and %d differ",
						 group->params[p]->name,
						 team->ranks ? team->ranks[0] : 0,
						 team->ranks ? team->ranks[rank] : rank);
		at++;
	}
	return ZERO_OK;
}

/* COLLECTIVE over the team, also after an error, so that no rank waits for one that has left. */
static zero_status compare(zero_group *group, zero_status status)
{
	enum { PIECE = 1 << 20 };
	size_t world = (size_t)group->team->place.world, count = 0, at = 0;
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES};
	uint64_t *mine, *all;
	char *piece = malloc(PIECE);

	for (size_t p = 0; p < group->param_count; p++)
		count += is_compared(group->params[p]);
	mine = calloc(count + 1, sizeof(*mine));
	all = calloc(world * count + 1, sizeof(*all));
	if (!status && (!piece || !mine || !all))
		status = zero_fail(ZERO_E_MEMORY, "no memory to compare group '%s'", group->name);
	for (size_t p = 0; !status && p < group->param_count; p++)
		if (is_compared(group->params[p]))
			status = checksum(group->params[p], piece, PIECE, &mine[at++]);
	op.send = mine;
	op.recv = all;
	op.count = count * sizeof(*mine);
	status = zero_submit_wait(group->team, status, &op, 1, ZERO_WORK_FLATTEN,
				  "comparison of the tensors of group '%s'", group->name);
	if (!status)
		status = find_difference(group, all, count);
	free(piece);
	free(mine);
	free(all);
	return status;
}

static zero_status compare_all(zero_job *job, zero_status status)
{
	for (size_t g = job->model->layout_first; g < job->model->group_count; g++)
		if (job->model->groups[g]->adopts && zero_is_member(job->model->groups[g]))
			status = compare(job->model->groups[g], status);
	return status;
}

zero_status zero_tier_agree(zero_job *job)
{
	size_t world = (size_t)job->place.world;
	struct needs needs = {.budget_known = zero_settings_budget_known(&job->settings),
			      .local_world = (uint64_t)job->place.local_world};
	struct needs *all = calloc(world, sizeof(*all));
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES, .count = sizeof(needs)};
	zero_status status;

	note_locations(job, &needs);
	measure_memory(job, &needs);
	status = check_adopted(job, &needs);
	if (!status && !all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the needs of %zu ranks", world);
	op.send = &needs;
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_FLATTEN,
				  "what flattening needs");
	if (!status) {
		needs = fold_needs(all, world);
		status = choose_tier(job, &needs);
	}
	free(all);
	if (job->settings.value[ZERO_OPT_CHECK].number)
		status = compare_all(job, status);
	return zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_FLATTEN,
				"start of flattening");
}

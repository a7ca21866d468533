/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that exist before the layout: taking note of them, and the tier in which all ranks make
 * flat buffers of them. The tiers are the answer to DeepSpeed's flattening, where a device must
 * hold a model twice, or every rank copies all of it through the host.
 */
#include <stdlib.h>

#include "job/internal.h"

/*
 * The device's memory ends where the budget does. Only for jobs that flatten: a budget that was
 * measured before a job began is no more than an estimate of what plain training may use.
 */
static void limit_device(zero_job *job)
{
	uint64_t budget = job->settings.value[ZERO_OPT_BUDGET].number;

	if (zero_settings_budget_known(&job->settings))
		job->ops->limit(job->backend, budget < SIZE_MAX ? budget : SIZE_MAX);
}

zero_status zero_device_alloc(zero_job *job, size_t bytes, void **data)
{
	*data = NULL;
	limit_device(job);
	return bytes ? job->ops->alloc(job->backend, ZERO_MEM_CALLER, bytes, false, data) : ZERO_OK;
}

void zero_device_free(zero_job *job, void *data)
{
	job->ops->free(job->backend, data);
}

/* ---- taking note ----------------------------------------------------------------------------- */

static zero_status check_data(const zero_param *param, const zero_adopt_spec *given)
{
	const zero_job *job = param->group->job;
	size_t bytes;

	/* A rank that is not in the team has nothing of it to give. */
	if (!given->data && param->count && zero_is_member(param->group) &&
	    (given->values != ZERO_VALUES_OF_RANK || given->rank == job->place.rank))
		return zero_fail(ZERO_E_INVALID, "parameter '%s' adopts no data", param->name);
	if (!given->data)
		return ZERO_OK;
	if (job->ops->caller_block(job->backend, given->data, &bytes) !=
	    (given->location == ZERO_ON_DEVICE))
		return zero_fail(
			ZERO_E_INVALID, "parameter '%s' adopts a tensor on the %s that is %s",
			param->name, given->location == ZERO_ON_DEVICE ? "device" : "host",
			given->location == ZERO_ON_DEVICE ? "not in its memory (zero_device_alloc)"
							  : "in the device's memory");
	return ZERO_OK;
}

static zero_status check_given(const zero_param *param, const zero_adopt_spec *given)
{
	const zero_group *group = param->group;

	if (group->job->stage > 2)
		return zero_fail(ZERO_E_STATE,
				 "parameter '%s' cannot adopt a tensor at stage 3, where no rank "
				 "has whole ones: use zero_load",
				 param->name);
	if (group->job->laid_out)
		return zero_fail(ZERO_E_STATE, "parameter '%s' adopts a tensor after zero_layout",
				 param->name);
	if (param->alias_of)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' is tied to '%s': adopt that",
				 param->name, param->alias_of->name);
	if (param->adopted)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has adopted a tensor already",
				 param->name);
	if ((given->location != ZERO_ON_HOST && given->location != ZERO_ON_DEVICE) ||
	    given->values < ZERO_VALUES_EQUAL || given->values > ZERO_VALUES_OWN)
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' adopts a tensor with location %d and values %d, "
				 "which are not both constants of zero.h",
				 param->name, (int)given->location, (int)given->values);
	if (given->values == ZERO_VALUES_OF_RANK &&
	    (given->rank < 0 || given->rank >= group->job->place.world ||
	     zero_team_rank_of(group->team, given->rank) < 0))
		return zero_fail(ZERO_E_INVALID,
				 "parameter '%s' is to have the values of rank %d, which is not in "
				 "the team of group '%s'",
				 param->name, given->rank, group->name);
	return check_data(param, given);
}

zero_status zero_adopt(zero_param *param, const zero_adopt_spec *given)
{
	zero_group *group = param->group;
	zero_status status = check_given(param, given);
	zero_adopt_spec *kept;

	if (status)
		return status;
	kept = malloc(sizeof(*kept));
	if (!kept)
		return zero_fail(ZERO_E_MEMORY, "no memory to adopt parameter '%s'", param->name);
	*kept = *given;
	/* So that ranks which adopt the same say the same. */
	if (kept->values != ZERO_VALUES_OF_RANK)
		kept->rank = 0;
	param->adopted = kept;
	group->adopts = true;
	group->job->adopts = true;
	limit_device(group->job);
	return ZERO_OK;
}

void *zero_view(zero_param *param)
{
	const zero_group *group = param->group;
	const struct zero_segment *segment;

	if (!group->job->laid_out || group->job->stage > 2) {
		zero_fail(ZERO_E_STATE, "parameter '%s' has no view %s", param->name,
			  group->job->laid_out ? "at stage 3" : "before zero_layout");
		return NULL;
	}
	if (zero_require_member(group, "viewed") || zero_wait_post_step_gather(param->group) ||
	    !param->count)
		return NULL;
	segment = &param->flat->segments[param->segment];
	return param->flat->stored + segment->first_at +
	       param->first * zero_dtype_size(segment->dtype);
}

/* ---- which tier ------------------------------------------------------------------------------ */

size_t zero_flat_counted(const struct zero_flat *flat)
{
	size_t ranks = (size_t)flat->group->team->place.shm_world;

	if (flat->group->replicated)
		return flat->stored_bytes;
	return zero_round_to_pages(flat->stored_bytes / ranks + (flat->stored_bytes % ranks != 0));
}

size_t zero_flat_packed(const struct zero_flat *flat)
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

/* Bytes of the device that the flat's tensors give back. */
static size_t released_bytes(const struct zero_flat *flat)
{
	const zero_group *group = flat->group;
	const zero_job *job = group->job;
	size_t total = 0, bytes;

	for (size_t p = 0; p < group->param_count; p++) {
		const zero_adopt_spec *given = group->params[p]->adopted;

		if (given && given->release && given->data && group->params[p]->flat == flat &&
		    job->ops->caller_block(job->backend, given->data, &bytes))
			total += bytes;
	}
	return total;
}

/* All that the ranks tell each other of their needs. */
struct plan {
	uint64_t most[ZERO_TIERS]; /* on the device */
	uint64_t now, later;       /* of that */
	uint64_t on_host, on_device, own, known, local_world;
};

static void look_at_given(const zero_job *job, struct plan *plan)
{
	for (size_t g = 0; g < job->group_count; g++)
		for (size_t p = 0; p < job->groups[g]->param_count; p++) {
			const zero_adopt_spec *given = job->groups[g]->params[p]->adopted;

			if (!given)
				continue;
			*(given->location == ZERO_ON_HOST ? &plan->on_host : &plan->on_device) = 1;
			plan->own |= given->values == ZERO_VALUES_OWN;
		}
}

static void look_at_memory(zero_job *job, struct plan *plan)
{
	struct zero_laying laying = {.chunk = job->chunk, .on_host = plan->on_host};
	uint64_t bytes[ZERO_MEM_KINDS];
	zero_memory memory;

	job->ops->memory(job->backend, &memory);
	zero_sizing_bytes(&job->sizing, bytes);
	plan->now = memory.total.now;
	plan->later =
		bytes[ZERO_MEM_GRADIENTS] + bytes[ZERO_MEM_OPTIMIZER] + bytes[ZERO_MEM_GATHERED];
	for (int tier = 0; tier < ZERO_TIERS; tier++)
		laying.held[tier] = laying.most[tier] = plan->now;
	for (size_t g = 0; g < job->group_count; g++) {
		const zero_group *group = job->groups[g];

		for (size_t f = 0; group->adopts && f < group->flat_count; f++)
			zero_laying_add(&laying, zero_flat_counted(&group->flats[f]),
					zero_flat_packed(&group->flats[f]),
					released_bytes(&group->flats[f]));
	}
	for (int tier = 0; tier < ZERO_TIERS; tier++)
		plan->most[tier] = laying.most[tier] + plan->later;
}

/* What flags help, by what stands in the way. */
static zero_status no_room(const zero_job *job, const struct plan *plan)
{
	uint64_t most = plan->most[job->tier];
	const char *flag = job->tier == ZERO_TIER_HOST ? ", a smaller --zero-stream-chunk" : "";

	if (job->tier != ZERO_TIER_HOST)
		flag = ", --zero-flatten=host";
	return zero_fail(ZERO_E_MEMORY,
			 "to flatten the model (tier %s) takes %llu bytes on the device: %llu in "
			 "use, %llu to lay the tensors, and %llu later for gradients, optimizer "
			 "states and gathered groups; the budget is %llu. What helps: a higher "
			 "--zero-stage, --zero-offload=optimizer, a smaller --zero-vram-reserve%s",
			 zero_tier_name(job->tier), (unsigned long long)most,
			 (unsigned long long)plan->now,
			 (unsigned long long)(most - plan->now - plan->later),
			 (unsigned long long)plan->later,
			 (unsigned long long)job->settings.value[ZERO_OPT_BUDGET].number, flag);
}

/* What all ranks agree on: the largest needs. */
static struct plan fold(const struct plan *all, size_t world)
{
	struct plan plan = all[0];

	for (size_t rank = 1; rank < world; rank++) {
		if (all[rank].most[ZERO_TIER_DEVICE] > plan.most[ZERO_TIER_DEVICE]) {
			plan.now = all[rank].now;
			plan.later = all[rank].later;
		}
		for (int tier = 0; tier < ZERO_TIERS; tier++)
			if (all[rank].most[tier] > plan.most[tier])
				plan.most[tier] = all[rank].most[tier];
		plan.known |= all[rank].known;
		if (all[rank].local_world < plan.local_world)
			plan.local_world = all[rank].local_world;
	}
	return plan;
}

/* The same on all ranks, but for the sentence's rank. */
static zero_status choose(zero_job *job, const struct plan *plan)
{
	const struct zero_value *setting = &job->settings.value[ZERO_OPT_FLATTEN];
	uint64_t budget = job->settings.value[ZERO_OPT_BUDGET].number;
	struct zero_flatten flatten = {
		.setting = setting->number,
		.room = budget,
		.world = (size_t)job->place.world,
		.local_world = plan->local_world,
		.on_host = plan->on_host,
		.equal = !plan->own,
	};

	job->tier = zero_tier_choose(&flatten, plan->most);
	if (job->tier == ZERO_TIER_DISTRIBUTED && plan->own)
		return zero_fail(ZERO_E_INVALID,
				 "flatten is distributed (from %s), but tensors were adopted with "
				 "each rank's own values: they are equal, or those of one rank",
				 job->settings.origin[ZERO_OPT_FLATTEN]);
	if (!plan->known)
		return ZERO_OK;
	job->ops->limit(job->backend, budget < SIZE_MAX ? budget : SIZE_MAX);
	return plan->most[job->tier] > budget ? no_room(job, plan) : ZERO_OK;
}

static zero_status check_all(const zero_job *job, const struct plan *plan)
{
	if (job->released_tensors)
		return zero_fail(ZERO_E_STATE,
				 "tensors were released in a zero_layout that failed: this job can "
				 "only be closed");
	if (plan->on_host && plan->on_device)
		return zero_fail(ZERO_E_INVALID,
				 "some of the adopted tensors are on the device and some on the "
				 "host: give all of them in one place");
	return ZERO_OK;
}

/* ---- ZERO_CHECK=1 ---------------------------------------------------------------------------- */

static bool is_compared(const zero_param *param)
{
	return param->adopted && param->adopted->values == ZERO_VALUES_EQUAL && param->count;
}

/* Of data that may be on the device, through a piece of host memory. */
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

/* COLLECTIVE over the team, also after an error elsewhere, for which the others must not wait. */
static zero_status compare(zero_group *group, zero_status status)
{
	enum { PIECE = 1 << 20 };
	size_t world = (size_t)group->team->place.world, count = 0, at = 0;
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE};
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
	status = zero_submit_wait(group->team, status, &op, 1,
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
	for (size_t g = 0; g < job->group_count; g++)
		if (job->groups[g]->adopts && zero_is_member(job->groups[g]))
			status = compare(job->groups[g], status);
	return status;
}

zero_status zero_flatten_plan(zero_job *job)
{
	size_t world = (size_t)job->place.world;
	struct plan plan = {.known = zero_settings_budget_known(&job->settings),
			    .local_world = (uint64_t)job->place.local_world};
	struct plan *all = calloc(world, sizeof(*all));
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE, .count = sizeof(plan)};
	zero_status status;

	look_at_given(job, &plan);
	look_at_memory(job, &plan);
	status = check_all(job, &plan);
	if (!status && !all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the needs of %zu ranks", world);
	op.send = &plan;
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, "what flattening needs");
	if (!status) {
		plan = fold(all, world);
		status = choose(job, &plan);
	}
	free(all);
	if (job->settings.value[ZERO_OPT_CHECK].number)
		status = compare_all(job, status);
	return zero_submit_wait(&job->all, status, NULL, 0, "begin of flattening");
}

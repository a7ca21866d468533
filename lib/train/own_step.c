/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the program's own: the reduced gradients of what this rank owns, and the time between
 * zero_step_begin and zero_step_end in which the program writes new values. What a rank owns is
 * the same at every stage, its shard: at stage 0 the ranks share the work of a step.
 */
#include <stdlib.h>

#include "train.h"

/* ---- what a rank owns ------------------------------------------------------------------------ */

zero_status zero_param_cuts(const zero_param *param, size_t *cuts)
{
	const struct zero_segment *segment;

	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has no cuts before zero_layout",
				 param->name);
	segment = &param->flat->segments[param->segment];
	for (int shard = 0; shard <= param->group->team->place.world; shard++) {
		size_t at = segment->shard * (size_t)shard;
		size_t element = at > param->first ? at - param->first : 0;

		cuts[shard] = element < param->count ? element : param->count;
	}
	return ZERO_OK;
}

/* Where element `first` of the parameter is in an array of the flat buffer's [state_count]. */
static float *state_at(const zero_param *param, float *states, size_t first)
{
	const struct zero_segment *segment = &param->flat->segments[param->segment];
	size_t stepped, count;

	zero_stepped_part(param->group, segment, &stepped, &count);
	return states + segment->state_at + (param->first + first - stepped);
}

static zero_status check_trainable(const zero_param *param, const char *what)
{
	if (!param->flat)
		return zero_fail(ZERO_E_STATE, "parameter '%s' has no %s before zero_layout",
				 param->name, what);
	if (!param->trainable)
		return zero_fail(ZERO_E_INVALID, "parameter '%s' is not trainable, so it has no %s",
				 param->name, what);
	return ZERO_OK;
}

zero_status zero_gradient_shard(zero_param *param, float **data, size_t *first, size_t *count)
{
	zero_job *job = param->group->job;
	zero_status status = check_trainable(param, "gradient");

	*data = NULL;
	*first = *count = 0;
	if (status)
		return status;
	pthread_mutex_lock(&job->lock);
	/* Its error is for each parameter of the group, and for the step. */
	status = zero_reduce_wait(param->group);
	pthread_mutex_unlock(&job->lock);
	if (status)
		return status;
	if (param->group->team_reduced)
		return zero_fail(ZERO_E_STATE,
				 "the gradients of group '%s' are summed over %d ranks of %d: call "
				 "zero_reduce_replicas or zero_step_begin first",
				 param->group->name, param->group->shard_team->place.world,
				 job->place.world);
	zero_param_shard_part(param, first, count);
	if (*count && param->group->reduced) {
		*data = state_at(param, param->flat->reduced, *first);
		param->group->sums_exposed = job->stage == 0;
	}
	return ZERO_OK;
}

/* ---- begin ----------------------------------------------------------------------------------- */

static zero_status check_begin(const zero_job *job, zero_group **groups, size_t count)
{
	zero_status status;

	if (!job->laid_out)
		return zero_fail(ZERO_E_STATE, "zero_step_begin must be called after zero_layout");
	status = zero_step_check_groups(groups, count);
	return status ? status : zero_require_state(job, ZERO_IDLE, "zero_step_begin");
}

zero_status zero_step_begin(zero_job *job, zero_group **groups, size_t count)
{
	bool told = job->trainer->told;
	zero_status status = ZERO_OK, waited;
	struct zero_work *work;

	/* First of all, as in zero_step. */
	if (job->laid_out) {
		status = zero_sum_replicas(job, groups, count, ZERO_OK);
		waited = zero_step_wait_groups(job, groups, count);
		status = status ? status : waited;
	}
	if (!status)
		status = check_begin(job, groups, count);
	status = zero_submit(&job->all, status, NULL, 0, !told, !told, &work, ZERO_WORK_STEP, NULL,
			     "zero_step_begin of %zu groups (%016llx)", count,
			     (unsigned long long)zero_groups_hash(groups, count));
	if (!status)
		status = zero_work_wait(job, &work);
	/* As in zero_step. Within a step the program may be reading them. */
	if (status && !job->model->stepping)
		zero_step_free_gradients(groups, count, true);
	if (status)
		return status;
	for (size_t g = 0; g < count; g++) {
		zero_hooks_before_change(job, groups[g], true);
		groups[g]->state = ZERO_STEPPING;
	}
	job->model->stepping = true;
	return ZERO_OK;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Ends the step of one group, on all ranks alike. */
static zero_status end_group(zero_group *group, struct zero_op *ops)
{
	zero_status status = ZERO_OK;

	group->state = ZERO_IDLE;
	zero_step_free_gradients(&group, 1, false);
	if (!zero_is_member(group) || !group->trainable)
		return ZERO_OK;
	for (size_t p = 0; p < group->param_count; p++)
		if (!group->params[p]->alias_of)
			zero_param_update_masters(group->params[p]);
	if (group->job->stage < 3 || group->replica_team)
		status = zero_send_stepped(group, ops);
	return status;
}

/* `ops` has room for the operations of any group. */
static zero_status end_groups(zero_job *job, struct zero_op *ops)
{
	zero_status status = ZERO_OK;

	for (size_t g = 0; !status && g < job->model->group_count; g++)
		if (job->model->groups[g]->state == ZERO_STEPPING)
			status = end_group(job->model->groups[g], ops);
	job->model->stepping = false;
	return status ? zero_mark_inconsistent(job, status) : ZERO_OK;
}

bool zero_stopping(const zero_job *job)
{
	return job->trainer->stopping;
}

zero_status zero_step_end(zero_job *job, bool *stop)
{
	struct zero_op *ops = calloc(zero_most_step_ops(job) + 1, sizeof(*ops));
	struct zero_step_agreed agreed;
	zero_status status = ZERO_OK;

	if (!job->model->stepping)
		status = zero_fail(ZERO_E_STATE, "zero_step_end is called without zero_step_begin");
	else if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory for zero_step_end");
	status = zero_step_agree_end(job, status, &agreed);
	if (!status)
		zero_hooks_all_idle(job, agreed.busy);
	if (!status)
		status = end_groups(job, ops);
	free(ops);
	if (status)
		return status;
	job->trainer->stopping = agreed.stop;
	if (stop)
		*stop = agreed.stop;
	job->trainer->own_steps++;
	zero_hooks_after_step(job);
	return ZERO_OK;
}

/* ---- after an exception ---------------------------------------------------------------------- */

/* Whatever was begun ends; its errors are what the program resets. */
static void reset_group(zero_group *group)
{
	zero_job *job = group->job;

	pthread_mutex_lock(&job->lock);
	zero_gather_wait(group);
	zero_reduce_end(group);
	zero_gather_free(group);
	pthread_mutex_unlock(&job->lock);
	zero_step_free_gradients(&group, 1, true);
}

zero_status zero_group_drop(zero_group *group)
{
	zero_job *job = group->job;
	zero_status status = zero_require_state(job, ZERO_IDLE | ZERO_INCONSISTENT,
						"zero_group_drop"),
		    waited = zero_wait_post_step_gather(group);

	if (!status && !group->flats)
		status = zero_fail(ZERO_E_STATE, "group '%s' is dropped before zero_layout",
				   group->name);
	if (group->flats)
		reset_group(group);
	/* From here on no rank reads what another one is about to free. */
	status = zero_submit_wait(&job->all, status ? status : waited, NULL, 0, ZERO_WORK_PROGRAM,
				  "zero_group_drop of group '%s'", group->name);
	if (status)
		return status;
	zero_hooks_before_change(job, group, false);
	/* It stays as an empty group: others are known by their place, and may be of its layout. */
	zero_storage_free(group);
	zero_group_empty(group);
	return ZERO_OK;
}

zero_status zero_reset(zero_job *job)
{
	struct zero_op *ops = calloc(zero_most_step_ops(job) + 1, sizeof(*ops));
	zero_status status = ZERO_OK;

	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory for zero_reset");
	job->trainer->told = false;
	/* All ranks are at one place in one order of operations, or learn that they are not. */
	status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_PROGRAM, "zero_reset");
	for (zero_team *team = job->teams; !status && team; team = team->next)
		if (team->place.rank >= 0)
			status = zero_submit_wait(team, ZERO_OK, NULL, 0, ZERO_WORK_PROGRAM,
						  "zero_reset");
	if (!status && job->grid)
		status = zero_submit_wait(job->grid->shard_team, ZERO_OK, NULL, 0,
					  ZERO_WORK_PROGRAM, "zero_reset");
	if (!status && job->grid)
		status = zero_submit_wait(job->grid->replica_team, ZERO_OK, NULL, 0,
					  ZERO_WORK_PROGRAM, "zero_reset");
	for (size_t g = 0; !status && g < job->model->group_count; g++)
		reset_group(job->model->groups[g]);
	if (!status)
		status = end_groups(job, ops);
	for (size_t g = 0; !status && g < job->model->group_count; g++)
		if (job->model->groups[g]->state == ZERO_WRITING)
			status = zero_write_end(job->model->groups[g]);
	free(ops);
	return status;
}

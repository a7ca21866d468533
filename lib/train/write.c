/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes of the program to the shards of a group outside of a step, as when it loads values. What
 * other ranks store of them, and the f32 masters, follow when the writes end.
 */
#include <stdlib.h>

#include "train.h"

static zero_status agree(zero_group *group, zero_status status, const char *call)
{
	return zero_submit_wait(group->team, status, NULL, 0, ZERO_WORK_PROGRAM, "%s of group '%s'",
				call, group->name);
}

static zero_status check_begin(const zero_group *group)
{
	zero_status status;

	if (!group->flats)
		return zero_fail(ZERO_E_STATE,
				 "group '%s' is written before zero_layout has laid it out",
				 group->name);
	if (zero_group_is_gathered(group))
		return zero_fail(ZERO_E_STATE,
				 "group '%s' is gathered: release it before it is written",
				 group->name);
	status = zero_require_group_state(group, ZERO_IDLE, "written");
	return status ? status
		      : zero_require_state(group->job, ZERO_IDLE | ZERO_WRITING | ZERO_INCONSISTENT,
					   "zero_write_begin");
}

zero_status zero_write_begin(zero_group *group)
{
	zero_status status = zero_require_member(group, "written"), waited;

	if (status)
		return status;
	status = check_begin(group);
	waited = zero_wait_post_step_gather(group);
	/* From here on nobody reads what is about to change. */
	status = agree(group, status ? status : waited, "zero_write_begin");
	if (status)
		return status;
	zero_hooks_before_change(group->job, group, false);
	group->state = ZERO_WRITING;
	return ZERO_OK;
}

/* COLLECTIVE. Ranks that share memory have one place for what they write. */
static zero_status send(zero_group *group)
{
	struct zero_op *ops = NULL;
	size_t count = 0;
	zero_status status = ZERO_OK;

	if (!group->replicated && !group->replica_team)
		return ZERO_OK;
	ops = calloc(zero_most_step_ops(group->job) + 1, sizeof(*ops));
	if (!ops)
		status = zero_fail(ZERO_E_MEMORY, "no memory for zero_write_end");
	for (size_t f = 0; ops && f < group->flat_count; f++)
		for (size_t r = 0; r < group->flats[f].segment_count; r++)
			ops[count++] = zero_gather_stored_op(&group->flats[f],
							     &group->flats[f].segments[r]);
	status = zero_submit_wait(group->replica_team ? group->replica_team : group->team, status,
				  ops, count, ZERO_WORK_OTHER, "values of group '%s'", group->name);
	free(ops);
	return status;
}

zero_status zero_write_end(zero_group *group)
{
	zero_status status = zero_require_member(group, "written");

	if (status)
		return status;
	if (group->state != ZERO_WRITING)
		status =
			zero_fail(ZERO_E_STATE,
				  "zero_write_end of group '%s' is called without zero_write_begin",
				  group->name);
	status = agree(group, status, "zero_write_end");
	if (status)
		return status;
	status = send(group);
	for (size_t p = 0; !status && p < group->param_count; p++)
		if (!group->params[p]->alias_of)
			zero_param_update_masters(group->params[p]);
	/* In a grid a rank's error is known to those who store the same alone. */
	status = agree(group, status, "end of zero_write_end");
	if (status)
		return status;
	group->state = ZERO_IDLE;
	return ZERO_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: subsets of a job's ranks over which groups are sharded. */
#include <stdlib.h>
#include <string.h>

#include "job.h"

static zero_status check_ranks(const zero_job *job, const int *ranks, size_t count)
{
	if (job->ops->watch_only)
		return zero_job_check_memory(job, "zero_team_new");
	if (!count || count > (size_t)job->place.world)
		return zero_fail(ZERO_E_INVALID, "a team has %zu ranks, not 1 to %d", count,
				 job->place.world);
	for (size_t i = 0; i < count; i++)
		if (ranks[i] < 0 || ranks[i] >= job->place.world || (i && ranks[i] <= ranks[i - 1]))
			return zero_fail(ZERO_E_INVALID,
					 "a team has rank %d at place %zu: ranks are 0 to %d, "
					 "each once and ascending",
					 ranks[i], i, job->place.world - 1);
	return ZERO_OK;
}

void zero_team_free(zero_team *team)
{
	if (team)
		free(team->ranks);
	free(team);
}

zero_status zero_team_make(zero_job *job, zero_status status, const int *ranks, size_t count,
			   int index, zero_team **team)
{
	zero_team *made = calloc(1, sizeof(*made));
	struct zero_op op = {.kind = ZERO_OP_TEAM_COMM,
			     .count = count,
			     .divides = index >= 0,
			     .root = index >= 0 ? index : 0};

	if (made)
		made->ranks = calloc(count + 1, sizeof(int));
	if (!status && (!made || !made->ranks))
		status = zero_fail(ZERO_E_MEMORY, "no memory for a team of %zu ranks", count);
	if (!status) {
		memcpy(made->ranks, ranks, count * sizeof(int));
		made->job = job;
		op.members = made->ranks;
		op.team_comm = &made->team_comm;
	}
	status = zero_submit_wait(&job->all, status, &op, status ? 0 : 1, ZERO_WORK_OTHER,
				  "a team of %zu ranks", count);
	if (status) {
		zero_team_free(made);
		return status;
	}
	made->place = made->team_comm->place;
	*team = made;
	return ZERO_OK;
}

zero_status zero_team_new(zero_job *job, const int *ranks, size_t count, zero_team **team)
{
	zero_status status = check_ranks(job, ranks, count);
	zero_team **last = &job->teams;

	*team = NULL;
	status = zero_team_make(job, status, ranks, count, -1, team);
	if (status)
		return status;
	while (*last)
		last = &(*last)->next;
	*last = *team;
	return ZERO_OK;
}

void zero_teams_free(zero_job *job)
{
	while (job->teams) {
		zero_team *team = job->teams;

		job->teams = team->next;
		zero_team_free(team);
	}
}

int zero_team_rank(const zero_team *team)
{
	return team->place.rank;
}

zero_status zero_team_allgather_bytes(zero_team *team, const void *mine, size_t bytes, void *all)
{
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = mine, .recv = all, .count = bytes};

	if (team->place.rank < 0)
		return zero_fail(ZERO_E_INVALID,
				 "zero_team_allgather_bytes is called by rank %d, which is not in "
				 "the team",
				 team->job->place.rank);
	return zero_submit_wait(team, ZERO_OK, &op, 1, ZERO_WORK_PROGRAM,
				"zero_team_allgather_bytes of %zu bytes", bytes);
}

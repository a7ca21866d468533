/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of teams. The job's communicator keeps a list of them until it is closed. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

static bool is_member(const struct zero_op *op, int rank)
{
	for (size_t i = 0; i < op->count; i++)
		if (op->members[i] == rank)
			return true;
	return false;
}

/* Ranks outside of the team know its size alone. */
static void set_place(struct zero_team_comm *team_comm, const struct zero_comm *comm,
		      const struct zero_op *op)
{
	team_comm->place = team_comm->comm ? team_comm->comm->place : comm->place;
	if (!team_comm->comm) {
		team_comm->place.rank = -1;
		team_comm->place.shm_rank = 0;
		team_comm->place.shm_world = team_comm->place.shm_world_min = 1;
	}
	team_comm->place.world = (int)op->count;
}

/* Makes room for one team more. */
static bool grow_leaving(struct zero_comm *comm)
{
	struct zero_net_team **net_teams;
	struct zero_comm **comms;
	size_t count = 2;

	for (const struct zero_team_comm *made = comm->team_comms; made; made = made->next)
		count++;
	comms = realloc(comm->leaving, count * sizeof(struct zero_comm *));
	if (comms)
		comm->leaving = comms;
	net_teams = realloc(comm->net_leaving, count * sizeof(struct zero_net_team *));
	if (net_teams)
		comm->net_leaving = net_teams;
	return comms && net_teams;
}

zero_status zero_team_comm_new(struct zero_comm *comm, const struct zero_op *op,
			       zero_status (*open)(struct zero_comm *comm, const struct zero_op *op,
						   bool member, struct zero_comm **team))
{
	struct zero_team_comm *team_comm = calloc(1, sizeof(*team_comm));
	struct zero_comm *team = NULL;
	zero_status status = open(comm, op, is_member(op, comm->place.rank), &team);

	if (!grow_leaving(comm)) {
		free(team_comm);
		team_comm = NULL;
	}
	if (!status && !team_comm)
		status = zero_core->fail(ZERO_E_COMM, "no memory for a team");
	if (team && team != comm) {
		team->job = comm;
		team->team = 1 + (op->divides ? (uint32_t)op->root : 0);
		for (const struct zero_team_comm *made = comm->team_comms; made; made = made->next)
			team->team += made->teams;
	}
	if (team_comm) {
		team_comm->comm = team;
		team_comm->teams =
			op->divides ? (uint32_t)comm->place.world / (uint32_t)op->count : 1;
		set_place(team_comm, comm, op);
		team_comm->next = comm->team_comms;
		comm->team_comms = team_comm;
	} else if (team && team != comm) {
		team->ops->close(team);
	}
	*op->team_comm = team_comm;
	return status;
}

void zero_team_comms_close(struct zero_comm *comm)
{
	while (comm->team_comms) {
		struct zero_team_comm *team_comm = comm->team_comms;

		comm->team_comms = team_comm->next;
		if (team_comm->comm && team_comm->comm != comm)
			team_comm->comm->ops->close(team_comm->comm);
		free(team_comm);
	}
	free(comm->leaving);
	free(comm->net_leaving);
	comm->leaving = NULL;
	comm->net_leaving = NULL;
}

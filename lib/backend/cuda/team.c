/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: communicators that are split from the one of all ranks. */
#include <stdlib.h>
#include <string.h>

#include "gpu_comm.h"

void zero_cuda_team_close(struct zero_comm *comm)
{
	struct zero_cuda_comm *cuda = zero_cuda_of(comm);

	bool failed = comm->broken || cuda->first->comm.broken;

	zero_nccl_watchdog_remove(cuda->watchdog, &cuda->near);
	zero_nccl_watchdog_remove(cuda->watchdog, &cuda->far);
	zero_nccl_watchdog_remove(cuda->watchdog, &cuda->nccl);
	zero_cuda_free_pinned(cuda);
	zero_cuda_close_reduces(cuda, failed);
	zero_slots_delete(cuda->slots);
	zero_nccl_close(&cuda->nccl, failed);
	free(comm->members);
	free(comm->intents);
	free(cuda);
}

/* Fills the team's place, from what every rank knows of all ranks. */
static void place_team(struct zero_cuda_comm *team, const struct zero_op *op)
{
	const struct zero_cuda_comm *first = team->first;
	struct zero_rank_info *place = &team->comm.place;

	*place = first->comm.place;
	place->world = place->shm_groups = (int)op->count;
	place->local_world = place->local_rank = 0;
	for (int i = 0; i < place->world; i++) {
		int rank = op->members[i];

		if (rank == first->comm.place.rank) {
			place->rank = i;
			place->local_rank = place->local_world;
		}
		if (first->nodes[rank] == first->nodes[first->comm.place.rank])
			place->local_world++;
	}
}

static zero_status fill_team(struct zero_cuda_comm *team, struct zero_cuda_comm *first,
			     const struct zero_op *op)
{
	zero_status status;

	team->comm.ops = first->comm.ops;
	team->comm.agree_status = first->comm.agree_status;
	team->comm.in_order = true;
	team->device = first->device;
	team->memory = first->memory;
	team->net = first->net;
	team->watchdog = first->watchdog;
	team->first = first;
	team->open_seconds = first->open_seconds;
	team->comm.members = calloc(op->count, sizeof(int));
	team->comm.intents = calloc(op->count, sizeof(*team->comm.intents));
	if (!team->comm.members || !team->comm.intents)
		return zero_core->fail(ZERO_E_COMM, "no memory for a team of %zu ranks", op->count);
	memcpy(team->comm.members, op->members, op->count * sizeof(int));
	place_team(team, op);
	status = zero_net->team_new(first->net, op->members, op->count, &team->comm.net_team);
	return status ? status : zero_reduce_grid_new(team);
}

/* The other ranks may wait in NCCL for this one. */
static zero_status tell_all(struct zero_cuda_comm *first, zero_status status)
{
	zero_net->fail_all(first->net, ZERO_E_COMM, first->comm.place.rank,
			   zero_core->last_error());
	return status;
}

/* COLLECTIVE over all ranks, members or not. */
static zero_status make_team(struct zero_comm *comm, const struct zero_op *op, bool member,
			     struct zero_comm **made)
{
	struct zero_cuda_comm *first = zero_cuda_of(comm), *team = NULL;
	zero_status status, split;

	/* With one rank the team's communicator is the first one. */
	if (comm->place.world == 1) {
		*made = comm;
		return ZERO_OK;
	}
	team = member ? calloc(1, sizeof(*team)) : NULL;
	split = zero_nccl_split(&first->parent,
				!member       ? -1
				: op->divides ? op->root
					      : 0,
				comm->place.rank, first->open_seconds, first->copy_engines,
				team ? &team->nccl : first->not_member);
	/* NCCL may still write to `team`, which is not freed then. The job is over. */
	if (split)
		return tell_all(first, split);
	status = team ? fill_team(team, first, op) : ZERO_OK;
	if (member && !team)
		status = zero_core->fail(ZERO_E_COMM, "no memory for a team");
	split = zero_cuda_split_reduces(first, status ? NULL : team);
	if (split)
		return tell_all(first, split);
	if (team)
		*made = &team->comm;
	if (team && !status)
		status = zero_cuda_prepare_reduces(team);
	status = first->comm.agree_status(&first->comm, status);
	if (!team)
		return status;
	zero_nccl_watchdog_add(team->watchdog, &team->nccl);
	zero_nccl_watchdog_add(team->watchdog, &team->near);
	zero_nccl_watchdog_add(team->watchdog, &team->far);
	if (status)
		return status;
	status = zero_cuda_register_reduces(team);
	if (status)
		return tell_all(first, status);
	return zero_slots_new(&team->nccl, team->device, team->memory, first->symmetric,
			      &team->slots);
}

zero_status zero_cuda_team_comm(struct zero_cuda_comm *cuda, const struct zero_op *op)
{
	return zero_team_comm_new(&cuda->comm, op, make_team);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: communicators that are cut out of the first one, which keeps them until it is closed. */
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

/* What the ranks of a team know of it, and the others. */
static void set_place(struct zero_channel *channel, const struct zero_comm *comm,
		      const struct zero_op *op)
{
	channel->place = channel->comm ? channel->comm->place : comm->place;
	if (!channel->comm) {
		channel->place.rank = -1;
		channel->place.share_rank = 0;
		channel->place.share_world = channel->place.share_least = 1;
	}
	channel->place.world = (int)op->count;
}

zero_status zero_channel_new(struct zero_comm *comm, const struct zero_op *op,
			     zero_status (*open)(struct zero_comm *comm, const struct zero_op *op,
						 bool member, struct zero_comm **team))
{
	struct zero_channel *channel = calloc(1, sizeof(*channel));
	struct zero_comm *team = NULL;
	zero_status status = open(comm, op, is_member(op, comm->place.rank), &team);

	if (!status && !channel)
		status = zero_core->fail(ZERO_E_COMM, "no memory for a team");
	if (channel) {
		channel->comm = team;
		set_place(channel, comm, op);
		channel->next = comm->channels;
		comm->channels = channel;
	} else if (team && team != comm) {
		team->ops->close(team);
	}
	*op->channel = channel;
	return status;
}

void zero_channels_close(struct zero_comm *comm)
{
	while (comm->channels) {
		struct zero_channel *channel = comm->channels;

		comm->channels = channel->next;
		if (channel->comm && channel->comm != comm)
			channel->comm->ops->close(channel->comm);
		free(channel);
	}
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks find out, before any data moves, that they are about to do the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

/* All ranks know that they differ: who does what? */
static zero_status explain_order(struct zero_comm *comm, const struct zero_intent *intent,
				 char *text, size_t size, int *rank)
{
	size_t world = (size_t)comm->place.world, other = 1;
	struct zero_intent_summary mine = {.hash = intent->hash}, *all = comm->intents;
	zero_status status;

	snprintf(mine.label, sizeof(mine.label), "%s", intent->label);
	status = comm->ops->exchange(comm, &mine, all, sizeof(mine));
	if (status)
		return status;
	while (other < world - 1 && all[other].hash == all[0].hash)
		other++;
	*rank = zero_comm_job_rank(comm, (int)other);
	if (!strcmp(all[0].label, all[other].label))
		snprintf(text, size,
			 "rank %d and rank %d both began '%s', but with other sizes, types or "
			 "values: all "
			 "ranks must make the same groups and parameters and call the same "
			 "functions in the same order",
			 zero_comm_job_rank(comm, 0), *rank, all[0].label);
	else
		snprintf(text, size,
			 "rank %d began '%s' while rank %d began '%s': all ranks must begin the "
			 "same operations in the same order",
			 zero_comm_job_rank(comm, 0), all[0].label, *rank, all[other].label);
	return ZERO_E_ORDER;
}

/* The lowest rank with an error, `from`, tells it to all; *rank is where it arose. */
static zero_status share_error(struct zero_comm *comm, const struct zero_intent *intent, int from,
			       int *rank, zero_status status, char *text, size_t size)
{
	struct {
		int rank;
		char text[1024];
	} told = {.rank = zero_comm_job_rank(comm, from)};
	zero_status heard;

	if (comm->place.rank == from && intent->error_rank >= 0) {
		told.rank = intent->error_rank;
		snprintf(told.text, sizeof(told.text), "%s", intent->error);
	} else if (comm->place.rank == from) {
		snprintf(told.text, sizeof(told.text), "rank %d (%s): %s", told.rank,
			 comm->place.node, intent->error);
	}
	heard = comm->ops->broadcast(comm, &told, sizeof(told), from);
	if (heard)
		return heard;
	*rank = told.rank;
	snprintf(text, size, "%s", told.text);
	return status;
}

/* Maxima: hashes are equal if the largest is the smallest; the lowest rank's error wins. */
static zero_status begin(struct zero_comm *comm, const struct zero_intent *intent)
{
	const struct zero_place *place = &comm->place;
	uint64_t *mine = comm->agreement.mine;

	mine[ZERO_AGREE_HASH] = intent->hash;
	mine[ZERO_AGREE_HASH_COMPLEMENT] = ~intent->hash;
	mine[ZERO_AGREE_ERROR] = 0;
	mine[ZERO_AGREE_CHOICE] = comm->choice;
	mine[ZERO_AGREE_CHOICE_COMPLEMENT] = ~comm->choice;
	if (intent->status)
		mine[ZERO_AGREE_ERROR] = (uint64_t)(place->world - place->rank) << 8 |
					 ((uint64_t)intent->status & 0xff);
	return comm->ops->begin_max(comm);
}

static zero_status end(struct zero_comm *comm, const struct zero_intent *intent, zero_status status,
		       char *text, size_t size, int *rank)
{
	const uint64_t *all = comm->agreement.all;

	comm->choices_equal = all[ZERO_AGREE_CHOICE] == ~all[ZERO_AGREE_CHOICE_COMPLEMENT];
	if (!status && all[ZERO_AGREE_ERROR])
		return share_error(comm, intent,
				   comm->place.world - (int)(all[ZERO_AGREE_ERROR] >> 8), rank,
				   (zero_status)(all[ZERO_AGREE_ERROR] & 0xff), text, size);
	if (!status && all[ZERO_AGREE_HASH] != ~all[ZERO_AGREE_HASH_COMPLEMENT])
		return explain_order(comm, intent, text, size, rank);
	if (status)
		snprintf(text, size, "%s: %s", intent->label, zero_core->last_error());
	return status;
}

/* One rank agrees with itself. */
static zero_status agree_alone(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			       size_t size, int *rank)
{
	*rank = 0;
	comm->choices_equal = true;
	if (intent->status)
		snprintf(text, size, "%s", intent->error);
	return intent->status;
}

zero_status zero_agree_on(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			  size_t size, int *rank)
{
	zero_status status;
	int index;

	if (!comm->ops->begin_max)
		return agree_alone(comm, intent, text, size, rank);
	status = begin(comm, intent);
	if (!status)
		status = comm->ops->finish_max(&comm, 1, &index);
	return end(comm, intent, status, text, size, rank);
}

/* Communicators of which this rank is, the first one and its teams', that are not broken. */
static int list_comms(struct zero_comm *first, struct zero_comm **comms)
{
	int count = 0;

	for (struct zero_team_comm *team_comm = first->team_comms; team_comm;
	     team_comm = team_comm->next)
		if (team_comm->comm && team_comm->comm != first && !team_comm->comm->broken) {
			if (comms)
				comms[count] = team_comm->comm;
			count++;
		}
	if (first->broken)
		return count;
	if (comms)
		comms[count] = first;
	return count + 1;
}

/*
 * Peers may wait in an operation of any team, or of all ranks: this rank tells all of them at once
 * that it leaves, and each hears it wherever it is.
 */
zero_status zero_agree_leave(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank)
{
	int count = list_comms(comm, NULL), begun = 0, index = 0;
	struct zero_comm **comms;
	zero_status status = ZERO_OK, one;

	if (!comm->ops->begin_max)
		return agree_alone(comm, intent, text, size, rank);
	comms = calloc((size_t)count + 1, sizeof(struct zero_comm *));
	if (!comms)
		return ZERO_OK; /* its process is about to end for want of memory */
	list_comms(comm, comms);
	for (int i = 0; i < count; i++)
		if (!begin(comms[i], intent))
			comms[begun++] = comms[i];
	while (begun && !comm->ops->finish_max(comms, begun, &index) && index >= 0) {
		one = end(comms[index], intent, ZERO_OK, text, size, rank);
		comms[index]->broken |= one != ZERO_OK;
		status = status ? status : one;
		comms[index] = comms[--begun];
	}
	free(comms);
	return status;
}

zero_status zero_agree_status(struct zero_comm *comm, zero_status status)
{
	struct zero_intent intent = {
		.label = "an agreement",
		.status = status,
		.error = status ? zero_core->last_error() : "",
		.error_rank = -1,
	};
	int rank = comm->place.rank;
	char text[1024] = "";

	status = zero_agree_on(comm, &intent, text, sizeof(text), &rank);
	return status && *text ? zero_core->fail_on(rank, status, text) : status;
}

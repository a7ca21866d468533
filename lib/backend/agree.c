/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks agree, before data moves, that they are about to do the same: see zero_agreed_values. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "core/clock.h"
#include "core/error.h"

/* The error of a rank that ends a deadlock. */
#define DEADLOCK UINT64_MAX

static bool is_equal(const struct zero_intent_summary *a, const struct zero_intent_summary *b)
{
	return a->hash == b->hash && a->sequence == b->sequence;
}

/* The intents or the sequences before them differ. Exchanges them, and names the first rank that
   differs from rank 0. */
static zero_status explain_mismatch(struct zero_comm *comm, const struct zero_intent *intent,
				    char *text, size_t size, int *rank)
{
	size_t world = (size_t)comm->place.world, other = 1;
	struct zero_intent_summary *all = comm->intents, mine = {
								 .hash = intent->hash,
								 .sequence = comm->sequence.hash,
								 .count = comm->sequence.count,
							 };
	zero_status status;

	snprintf(mine.label, sizeof(mine.label), "%s", intent->label);
	snprintf(mine.before, sizeof(mine.before), "%s", comm->sequence.last);
	status = comm->ops->allgather(comm, &mine, all, sizeof(mine));
	if (status)
		return status;
	while (other < world - 1 && is_equal(&all[0], &all[other]))
		other++;
	*rank = zero_comm_job_rank(comm, (int)other);
	if (all[other].sequence != all[0].sequence)
		snprintf(text, size,
			 "rank %d began '%s' after %llu gathers and reduces, the last '%s', while "
			 "rank %d began '%s' after %llu, the last '%s': all ranks must begin the "
			 "same operations in the same order; ZERO_CHECK=1 finds the first that "
			 "differs",
			 zero_comm_job_rank(comm, 0), all[0].label,
			 (unsigned long long)all[0].count, all[0].before, *rank, all[other].label,
			 (unsigned long long)all[other].count, all[other].before);
	else if (!strcmp(all[0].label, all[other].label))
		snprintf(text, size,
			 "rank %d and rank %d both began '%s', but with other sizes, types or "
			 "values: all ranks must make the same groups and parameters and call the "
			 "same "
			 "functions in the same order",
			 zero_comm_job_rank(comm, 0), *rank, all[0].label);
	else
		snprintf(text, size,
			 "rank %d began '%s' while rank %d began '%s': all ranks must begin the "
			 "same operations in the same order",
			 zero_comm_job_rank(comm, 0), all[0].label, *rank, all[other].label);
	return ZERO_E_ORDER;
}

/* Broadcasts the error of rank `from`; *rank becomes the rank where it arose. */
static zero_status broadcast_error(struct zero_comm *comm, const struct zero_intent *intent,
				   int from, int *rank, zero_status status, char *text, size_t size)
{
	struct {
		int rank;
		char text[1024];
	} message = {.rank = zero_comm_job_rank(comm, from)};
	zero_status sent;

	if (comm->place.rank == from && intent->error_rank >= 0) {
		message.rank = intent->error_rank;
		snprintf(message.text, sizeof(message.text), "%s", intent->error);
	} else if (comm->place.rank == from) {
		snprintf(message.text, sizeof(message.text), "rank %d (%s): %s", message.rank,
			 comm->place.node, intent->error);
	}
	sent = comm->ops->broadcast(comm, &message, sizeof(message), from);
	if (sent)
		return sent;
	*rank = message.rank;
	snprintf(text, size, "%s", message.text);
	return status;
}

static zero_status start_agreement(struct zero_comm *comm, const struct zero_intent *intent)
{
	const struct zero_rank_info *place = &comm->place;
	uint64_t *mine = comm->agreement.mine;

	mine[ZERO_AGREE_HASH] = intent->hash;
	mine[ZERO_AGREE_HASH_COMPLEMENT] = ~intent->hash;
	mine[ZERO_AGREE_ERROR] = 0;
	mine[ZERO_AGREE_CHOICE] = comm->choice;
	mine[ZERO_AGREE_CHOICE_COMPLEMENT] = ~comm->choice;
	mine[ZERO_AGREE_SEQUENCE] = comm->sequence.hash;
	mine[ZERO_AGREE_SEQUENCE_COMPLEMENT] = ~comm->sequence.hash;
	if (zero_comm_of_job(comm)->deadlock.ending)
		mine[ZERO_AGREE_ERROR] = DEADLOCK;
	else if (intent->status)
		mine[ZERO_AGREE_ERROR] = (uint64_t)(place->world - place->rank) << 8 |
					 ((uint64_t)intent->status & 0xff);
	return comm->ops->begin_max(comm);
}

/* ---- deadlocks ------------------------------------------------------------------------------- */

void zero_agree_end_deadlock(struct zero_comm *comm, int rank, const char *text)
{
	struct zero_deadlock *deadlock = &zero_comm_of_job(comm)->deadlock;

	if (atomic_load(&deadlock->found))
		return;
	deadlock->rank = rank;
	snprintf(deadlock->text, sizeof(deadlock->text), "%s", text);
	atomic_store(&deadlock->found, true);
}

/* Another rank may have been told before this one. */
static void wait_for_report(const struct zero_deadlock *deadlock)
{
	double until = zero_seconds() + 5;

	while (!atomic_load(&deadlock->found) && zero_seconds() < until)
		usleep(1000);
}

/* Lists the communicators that this rank is in and that are not broken: the job's and its teams'.
   Returns how many. */
static int list_comms(struct zero_comm *first, struct zero_comm **comms)
{
	int count = 0;

	for (struct zero_team_comm *team_comm = first->team_comms; team_comm;
	     team_comm = team_comm->next)
		if (team_comm->comm && team_comm->comm != first && !team_comm->comm->broken)
			comms[count++] = team_comm->comm;
	if (!first->broken)
		comms[count++] = first;
	return count;
}

/*
 * All ranks wait, each in an agreement that others do not come to. Each now joins the agreements of
 * all its communicators with an error, so that all of them end. `finished`: that of comm has.
 */
static zero_status leave_deadlock(struct zero_comm *comm, bool finished, char *text, size_t size,
				  int *rank)
{
	struct zero_comm *job = zero_comm_of_job(comm), *only = NULL;
	struct zero_comm **comms = job->leaving ? job->leaving : &only;
	const struct zero_intent nothing = {.label = ""};
	int count = list_comms(job, comms), index;

	wait_for_report(&job->deadlock);
	*rank = job->deadlock.rank;
	snprintf(text, size, "%s", job->deadlock.text);
	job->deadlock.ending = true;
	for (int i = 0; i < count; i++)
		if (comms[i] != comm)
			comms[i]->broken = start_agreement(comms[i], &nothing) != ZERO_OK;
	for (int i = 0; i < count; i++) {
		if (!comms[i]->broken && (comms[i] != comm || !finished))
			comm->ops->finish_max(&comms[i], 1, &index);
		comms[i]->broken = true;
	}
	return ZERO_E_ORDER;
}

static zero_status finish_agreement(struct zero_comm *comm, const struct zero_intent *intent,
				    zero_status status, char *text, size_t size, int *rank)
{
	const uint64_t *all = comm->agreement.all;
	bool in_step, equal = all[ZERO_AGREE_HASH] == ~all[ZERO_AGREE_HASH_COMPLEMENT];

	comm->choices_equal = all[ZERO_AGREE_CHOICE] == ~all[ZERO_AGREE_CHOICE_COMPLEMENT];
	in_step = all[ZERO_AGREE_SEQUENCE] == ~all[ZERO_AGREE_SEQUENCE_COMPLEMENT];
	if (!status && all[ZERO_AGREE_ERROR] == DEADLOCK)
		return leave_deadlock(comm, true, text, size, rank);
	comm->diverged |= !status && !in_step;
	/* A rank that left out an operation because of its error has diverged from the others. */
	if (!status && all[ZERO_AGREE_ERROR])
		return broadcast_error(
			comm, intent, comm->place.world - (int)(all[ZERO_AGREE_ERROR] >> 8), rank,
			in_step ? (zero_status)(all[ZERO_AGREE_ERROR] & 0xff) : ZERO_E_ORDER, text,
			size);
	/* Ranks that all close the job may do so in several teams, and wait in none for more. */
	if (!status && !in_step && equal && intent->leaving) {
		snprintf(text, size,
			 "the ranks began different gathers and reduces before %s; ZERO_CHECK=1 "
			 "finds the first that differs",
			 intent->label);
		return ZERO_E_ORDER;
	}
	if (!status && (!in_step || !equal))
		return explain_mismatch(comm, intent, text, size, rank);
	if (status) {
		snprintf(text, size, "%s: %s", intent->label, zero_last_error());
		*rank = zero_last_error_rank();
	}
	return status;
}

/* A communicator of one rank. */
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
	int index = 0;

	if (!comm->ops->begin_max)
		return agree_alone(comm, intent, text, size, rank);
	status = start_agreement(comm, intent);
	if (!status)
		status = comm->ops->finish_max(&comm, 1, &index);
	if (!status && index < 0)
		return leave_deadlock(comm, false, text, size, rank);
	return finish_agreement(comm, intent, status, text, size, rank);
}

/*
 * Peers may wait in an operation of the job or of any team. The agreements of all of them are begun
 * at once, so that each peer learns of the error in the one where it waits.
 */
zero_status zero_agree_leave(struct zero_comm *comm, const struct zero_intent *intent, char *text,
			     size_t size, int *rank)
{
	struct zero_comm *only = NULL, **comms = comm->leaving ? comm->leaving : &only;
	int count = list_comms(comm, comms), begun = 0, index = 0;
	zero_status status = ZERO_OK, one;

	if (!comm->ops->begin_max)
		return agree_alone(comm, intent, text, size, rank);
	for (int i = 0; i < count; i++)
		if (!start_agreement(comms[i], intent))
			comms[begun++] = comms[i];
	while (begun && !comm->ops->finish_max(comms, begun, &index) && index >= 0) {
		one = finish_agreement(comms[index], intent, ZERO_OK, text, size, rank);
		comms[index]->broken |= one != ZERO_OK;
		status = status ? status : one;
		comms[index] = comms[--begun];
	}
	/* It chooses nothing, and an earlier choice must not be agreed on once more. */
	comm->choices_equal = true;
	return status;
}

zero_status zero_agree_status(struct zero_comm *comm, zero_status status)
{
	struct zero_intent intent = {
		.label = "an agreement",
		.status = status,
		.error = status ? zero_last_error() : "",
		.error_rank = -1,
	};
	int rank = comm->place.rank;
	char text[1024] = "";

	status = zero_agree_on(comm, &intent, text, sizeof(text), &rank);
	return status && *text ? zero_fail_on(rank, status, text) : status;
}

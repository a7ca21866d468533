/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence, and who is missing from it. Before a fence each rank puts the key of that fence; after
 * the deadline the servers of the other ranks are asked for it. A server that knows nothing of its
 * rank yet does not answer until it does.
 */
#include <stdio.h>

#include "pmix.h"

/* How long servers may take to say who is here, after the deadline. */
#define ROLL_CALL_SECONDS 2
/* So many ranks or ranges of ranks are named. */
#define MOST_NAMED 8

/* A fence that was given up, but PMIx goes on with it: there cannot be another one beside it. */
static struct zero_pmix_calls *late;

static void presence_key(char *key, size_t size)
{
	snprintf(key, size, "zero.%u.%u", zero_pmix.opens, zero_pmix.fences);
}

enum state { HERE, ABSENT, UNHEARD };

static enum state state_of(struct zero_pmix_calls *roll, int rank)
{
	switch (zero_pmix_call_status(roll, (size_t)rank)) {
	case PMIX_SUCCESS:
		return HERE;
	case PMIX_ERR_WOULD_BLOCK:
		return UNHEARD;
	default:
		return ABSENT;
	}
}

static void ask_some(struct zero_pmix_calls *roll, bool local)
{
	for (int rank = 0; rank < zero_pmix.place.world; rank++)
		if (zero_pmix_is_local(rank) == local)
			zero_pmix_begin_get(roll, (size_t)rank, rank, local);
}

/* Who has come to this fence; NULL: no memory. */
static struct zero_pmix_calls *call_roll(void)
{
	struct zero_pmix_calls *roll;
	char key[64];

	presence_key(key, sizeof(key));
	roll = zero_pmix_calls_new((size_t)zero_pmix.place.world, key);
	if (!roll)
		return NULL;
	/* This node's first: trying to reach a node that is gone keeps its server busy. */
	ask_some(roll, true);
	ask_some(roll, false);
	zero_pmix_wait(roll, zero_seconds() + ROLL_CALL_SECONDS);
	return roll;
}

/* "rank 3", "ranks 3, 5 to 7": those in that state; how many. */
static int name_ranks(struct zero_pmix_calls *roll, enum state state, char *text, size_t size)
{
	int world = zero_pmix.place.world, count = 0, named = 0, parts = 0;
	char list[256] = "";
	size_t length = 0;

	for (int rank = 0, end; rank < world; rank = end + 1) {
		end = rank;
		if (state_of(roll, rank) != state)
			continue;
		while (end + 1 < world && state_of(roll, end + 1) == state)
			end++;
		if (end == rank + 1)
			end = rank;
		count += end - rank + 1;
		if (parts == MOST_NAMED)
			continue;
		length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%d",
					   parts ? ", " : "", rank);
		if (end > rank)
			length += (size_t)snprintf(list + length, sizeof(list) - length, " to %d",
						   end);
		named += end - rank + 1;
		parts++;
	}
	if (count > named)
		snprintf(list + length, sizeof(list) - length, " and %d more", count - named);
	snprintf(text, size, "%s %s", count > 1 ? "ranks" : "rank", list);
	return count;
}

/* " (the first on node n2)", if PMIx says where it is. */
static void name_node(struct zero_pmix_calls *roll, enum state state, int count, char *text,
		      size_t size)
{
	pmix_value_t *value;
	int first = 0;

	text[0] = '\0';
	while (first < zero_pmix.place.world && state_of(roll, first) != state)
		first++;
	if (zero_pmix_get_cached((pmix_rank_t)first, PMIX_HOSTNAME, &value) != PMIX_SUCCESS)
		return;
	if (value->type == PMIX_STRING && value->data.string)
		snprintf(text, size, " (%snode %s)", count > 1 ? "the first on " : "",
			 value->data.string);
	PMIX_VALUE_RELEASE(value);
}

static zero_status fail_absent(struct zero_pmix_calls *roll, double seconds)
{
	char absent[300], unheard[300], node[128];
	int absences = name_ranks(roll, ABSENT, absent, sizeof(absent));
	int unheards = name_ranks(roll, UNHEARD, unheard, sizeof(unheard));
	int world = zero_pmix.place.world;

	if (absences + unheards == 0)
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "all %d ranks came, but PMIx did not end the fence "
					    "within %g s",
					    world, seconds);
	if (!absences) {
		name_node(roll, UNHEARD, unheards, node, sizeof(node));
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "nothing was heard of %s of %d%s within %g s: not "
					    "begun, or a node that is gone",
					    unheard, world, node, seconds);
	}
	name_node(roll, ABSENT, absences, node, sizeof(node));
	return zero_pmix_core->fail(ZERO_E_COMM, "%s of %d%s did not come within %g s%s%s", absent,
				    world, node, seconds,
				    unheards ? ", and nothing was heard of " : "",
				    unheards ? unheard : ": see what was written there last");
}

/* The deadline is over; the fence itself goes on in the background. */
static zero_status give_up(struct zero_pmix_calls *fence, double seconds)
{
	struct zero_pmix_calls *roll = call_roll();
	zero_status status;

	/* The last ones may have come meanwhile. */
	if (zero_pmix_call_status(fence, 0) == PMIX_SUCCESS)
		status = ZERO_OK;
	else if (!roll)
		status = zero_pmix_core->fail(ZERO_E_COMM,
					      "ranks did not come within %g s, and there is no "
					      "memory to find out which",
					      seconds);
	else
		status = fail_absent(roll, seconds);
	zero_pmix_calls_release(roll);
	return status;
}

/* A rank of another node, whose data come only by the fence; -1: there is none. */
static int far_rank(void)
{
	for (int rank = 0; rank < zero_pmix.place.world; rank++)
		if (rank >= zero_pmix.place.local_world || zero_pmix.peers[rank] != rank)
			return zero_pmix_is_local(rank) ? -1 : rank;
	return -1;
}

static zero_status fail_ended(struct zero_pmix_calls *roll)
{
	char ranks[300];

	if (!name_ranks(roll, ABSENT, ranks, sizeof(ranks)) &&
	    !name_ranks(roll, UNHEARD, ranks, sizeof(ranks)))
		return ZERO_OK;
	return zero_pmix_core->fail(ZERO_E_COMM,
				    "the launcher's PMIx ended a fence to which %s of %d had not "
				    "come: SLURM_PMIX_FENCE=tree makes Slurm 22.05 do so",
				    ranks, zero_pmix.place.world);
}

/*
 * A server's fence may end on each node by itself; it has brought nothing then, and all are asked
 * whether they are here. One that waits and brings nothing is good enough.
 */
static zero_status confirm(void)
{
	struct zero_pmix_calls *roll;
	pmix_value_t *value;
	int far = far_rank();
	zero_status status;
	char key[64];

	if (far < 0)
		return ZERO_OK;
	presence_key(key, sizeof(key));
	if (zero_pmix_get_cached((pmix_rank_t)far, key, &value) == PMIX_SUCCESS) {
		PMIX_VALUE_RELEASE(value);
		return ZERO_OK;
	}
	roll = call_roll();
	if (!roll)
		return zero_pmix_core->fail(ZERO_E_MEMORY, "no memory to ask %d ranks",
					    zero_pmix.place.world);
	status = fail_ended(roll);
	zero_pmix_calls_release(roll);
	return status;
}

zero_status zero_pmix_announce(void)
{
	pmix_value_t value;
	pmix_status_t status;
	bool yes = true;
	char key[64];

	presence_key(key, sizeof(key));
	PMIX_VALUE_LOAD(&value, &yes, PMIX_BOOL);
	status = PMIx_Put(PMIX_GLOBAL, key, &value);
	if (status != PMIX_SUCCESS)
		return zero_pmix_status(status, "PMIx_Put");
	return zero_pmix_status(PMIx_Commit(), "PMIx_Commit");
}

/* True while PMIx still waits for ranks of a fence that was given up. */
static bool is_late(void)
{
	if (late && zero_pmix_call_status(late, 0) != PMIX_ERR_WOULD_BLOCK) {
		zero_pmix_calls_release(late);
		late = NULL;
	}
	return late;
}

zero_status zero_pmix_fence(double seconds)
{
	/* A timespec holds no infinity. */
	double until = zero_seconds() + (seconds < 1e9 ? seconds : 1e9);
	struct zero_pmix_calls *fence;
	zero_status status;

	if (is_late())
		return zero_pmix_core->fail(ZERO_E_STATE,
					    "ranks that did not come to an earlier fence have not "
					    "come yet");
	zero_pmix.fences++;
	status = zero_pmix_announce();
	if (status)
		return status;
	fence = zero_pmix_calls_new(1, "");
	if (!fence)
		return zero_pmix_core->fail(ZERO_E_MEMORY, "no memory for a fence");
	zero_pmix_begin_fence(fence);
	if (!zero_pmix_wait(fence, until)) {
		status = give_up(fence, seconds);
		late = fence;
		is_late();
		return status;
	}
	status = zero_pmix_status(zero_pmix_call_status(fence, 0), "PMIx_Fence_nb");
	zero_pmix_calls_release(fence);
	return status ? status : confirm();
}

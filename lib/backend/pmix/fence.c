/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fence, and which ranks are missing from it. Before a fence each rank puts a key of that
 * fence. If the fence does not end in time, the servers of all ranks are asked for the key: PRESENT
 * if it is there, ABSENT if the server says that it is not, UNKNOWN if the server does not reply.
 */
#include <stdio.h>

#include "pmix.h"

/* How long servers may take to reply, after the deadline of the fence. */
#define PRESENCE_SECONDS 2
/* A message names at most so many ranks or ranges of ranks. */
#define MOST_NAMED 8

/* A fence that PMIx still works on after its deadline. PMIx allows no second one beside it. */
static struct zero_pmix_calls *late;

static void presence_key(char *key, size_t size)
{
	snprintf(key, size, "zero.%u.%u", zero_pmix.opens, zero_pmix.fences);
}

enum state { PRESENT, ABSENT, UNKNOWN };

static enum state state_of(struct zero_pmix_calls *presence, int rank)
{
	switch (zero_pmix_call_status(presence, (size_t)rank)) {
	case PMIX_SUCCESS:
		return PRESENT;
	case PMIX_ERR_WOULD_BLOCK:
		return UNKNOWN;
	default:
		return ABSENT;
	}
}

static void begin_gets(struct zero_pmix_calls *presence, bool local)
{
	for (int rank = 0; rank < zero_pmix.place.world; rank++)
		if (zero_pmix_is_local(rank) == local)
			zero_pmix_begin_get(presence, (size_t)rank, rank, local);
}

/* Asks which ranks have come to this fence. NULL: no memory. */
static struct zero_pmix_calls *check_presence(void)
{
	struct zero_pmix_calls *presence;
	char key[64];

	presence_key(key, sizeof(key));
	presence = zero_pmix_calls_new((size_t)zero_pmix.place.world, key);
	if (!presence)
		return NULL;
	/* This node's first: a server that tries to reach a lost node is busy. */
	begin_gets(presence, true);
	begin_gets(presence, false);
	zero_pmix_wait(presence, zero_seconds() + PRESENCE_SECONDS);
	return presence;
}

/* Lists the ranks in that state, "rank 3" or "ranks 3, 5 to 7". Returns how many there are. */
static int name_ranks(struct zero_pmix_calls *presence, enum state state, char *text, size_t size)
{
	int world = zero_pmix.place.world, count = 0, named = 0, parts = 0;
	char list[256] = "";
	size_t length = 0;

	for (int rank = 0, end; rank < world; rank = end + 1) {
		end = rank;
		if (state_of(presence, rank) != state)
			continue;
		while (end + 1 < world && state_of(presence, end + 1) == state)
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

/* " (the first on node n2)", or "" if PMIx does not know the node. */
static void name_node(struct zero_pmix_calls *presence, enum state state, int count, char *text,
		      size_t size)
{
	pmix_value_t *value;
	int first = 0;

	text[0] = '\0';
	while (first < zero_pmix.place.world && state_of(presence, first) != state)
		first++;
	if (zero_pmix_get_cached((pmix_rank_t)first, PMIX_HOSTNAME, &value) != PMIX_SUCCESS)
		return;
	if (value->type == PMIX_STRING && value->data.string)
		snprintf(text, size, " (%snode %s)", count > 1 ? "the first on " : "",
			 value->data.string);
	PMIX_VALUE_RELEASE(value);
}

static zero_status fail_absent(struct zero_pmix_calls *presence, double seconds)
{
	char absent[300], unknown[300], node[128];
	int absences = name_ranks(presence, ABSENT, absent, sizeof(absent));
	int unknowns = name_ranks(presence, UNKNOWN, unknown, sizeof(unknown));
	int world = zero_pmix.place.world;

	if (absences + unknowns == 0)
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "all %d ranks came, but PMIx did not end the fence "
					    "within %g s",
					    world, seconds);
	if (!absences) {
		name_node(presence, UNKNOWN, unknowns, node, sizeof(node));
		return zero_pmix_core->fail(ZERO_E_COMM,
					    "there was no reply about %s of %d%s within %g s: "
					    "they have not started, or their node is down",
					    unknown, world, node, seconds);
	}
	name_node(presence, ABSENT, absences, node, sizeof(node));
	return zero_pmix_core->fail(ZERO_E_COMM, "%s of %d%s did not come within %g s%s%s", absent,
				    world, node, seconds,
				    unknowns ? ", and there was no reply about " : "",
				    unknowns ? unknown : ": see what was written there last");
}

/* The deadline has passed. */
static zero_status give_up(struct zero_pmix_calls *fence, double seconds)
{
	struct zero_pmix_calls *presence = check_presence();
	zero_status status;

	/* The missing ranks may have come meanwhile. */
	if (zero_pmix_call_status(fence, 0) == PMIX_SUCCESS)
		status = ZERO_OK;
	else if (!presence)
		status = zero_pmix_core->fail(ZERO_E_COMM,
					      "ranks did not come within %g s, and there is no "
					      "memory to find out which",
					      seconds);
	else
		status = fail_absent(presence, seconds);
	zero_pmix_calls_release(presence);
	return status;
}

/* A rank of another node; -1 if there is none. */
static int remote_rank(void)
{
	for (int rank = 0; rank < zero_pmix.place.world; rank++)
		if (rank >= zero_pmix.place.local_world || zero_pmix.local_ranks[rank] != rank)
			return zero_pmix_is_local(rank) ? -1 : rank;
	return -1;
}

static zero_status fail_ended(struct zero_pmix_calls *presence)
{
	char ranks[300];

	if (!name_ranks(presence, ABSENT, ranks, sizeof(ranks)) &&
	    !name_ranks(presence, UNKNOWN, ranks, sizeof(ranks)))
		return ZERO_OK;
	return zero_pmix_core->fail(ZERO_E_COMM,
				    "the launcher's PMIx ended a fence to which %s of %d had not "
				    "come: SLURM_PMIX_FENCE=tree makes Slurm 22.05 do so",
				    ranks, zero_pmix.place.world);
}

/*
 * Some servers end a fence on each node by itself. Such a fence has brought no data of other nodes,
 * so all ranks are asked whether they have come. (A server may also wait and bring no data: then
 * all have.)
 */
static zero_status confirm(void)
{
	struct zero_pmix_calls *presence;
	pmix_value_t *value;
	int remote = remote_rank();
	zero_status status;
	char key[64];

	if (remote < 0)
		return ZERO_OK;
	presence_key(key, sizeof(key));
	if (zero_pmix_get_cached((pmix_rank_t)remote, key, &value) == PMIX_SUCCESS) {
		PMIX_VALUE_RELEASE(value);
		return ZERO_OK;
	}
	presence = check_presence();
	if (!presence)
		return zero_pmix_core->fail(ZERO_E_MEMORY, "no memory to ask %d ranks",
					    zero_pmix.place.world);
	status = fail_ended(presence);
	zero_pmix_calls_release(presence);
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

/* Whether PMIx still works on a fence after its deadline. */
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

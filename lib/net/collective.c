/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives of a team: maximum, exchange (all-gather), broadcast. Each rank sends the part of its
 * subtree up, and the root sends the result down. The thread passes parts on as they come, whatever
 * the rank is doing.
 */
#include <stdlib.h>
#include <string.h>

#include "net_internal.h"

static const char *name_of(uint32_t kind)
{
	if (kind == ZERO_MAX)
		return "a maximum";
	return kind == ZERO_ALLGATHER ? "an allgather" : "a broadcast";
}

/* ---- parts, called with the lock held -------------------------------------------------------- */

/* The part of the result that comes from the ranks [first, end). Returns its size. */
static size_t part(const struct zero_net_team *team, size_t first, size_t end, uint8_t **data)
{
	size_t bytes = team->now.bytes;

	*data = team->now.data;
	if (team->now.kind != ZERO_ALLGATHER || !bytes)
		return bytes;
	*data += first * bytes;
	return (end - first) * bytes;
}

static void merge(struct zero_net_team *team, uint8_t *to, const struct zero_frame *frame)
{
	uint64_t *all = (uint64_t *)(void *)to;
	const uint64_t *values = (const uint64_t *)(const void *)frame->data;

	if (frame->header.kind == ZERO_FRAME_DOWN || team->now.kind != ZERO_MAX) {
		if (frame->header.bytes)
			memcpy(to, frame->data, frame->header.bytes);
		return;
	}
	for (size_t i = 0; i < frame->header.bytes / sizeof(*all); i++)
		if (values[i] > all[i])
			all[i] = values[i];
}

static void send_part(struct zero_net_team *team, struct zero_link *link, uint32_t kind,
		      size_t first, size_t end)
{
	struct zero_frame_header header = {.kind = kind,
					   .collective = team->now.kind,
					   .team = team->id,
					   .sequence = team->sequence,
					   .size = team->now.bytes};
	uint8_t *data;

	header.bytes = part(team, first, end, &data);
	zero_link_send(link, &header, data);
}

/* Ranks in different operations would wait for each other for ever. */
static void fail_mismatch(struct zero_net_team *team, const struct zero_link *link,
			  const struct zero_frame_header *theirs)
{
	int rank = team->net->config.rank;

	zero_net_fail_locked(team->net, ZERO_E_COMM, rank, NULL,
			     "ranks %d and %d are in different operations: %s of %zu bytes, "
			     "number %llu of their team, and %s of %zu bytes, number %llu",
			     rank, link->rank, name_of(team->now.kind), team->now.bytes,
			     (unsigned long long)team->sequence, name_of(theirs->collective),
			     (size_t)theirs->size, (unsigned long long)theirs->sequence);
}

/* Returns whether the part of the ranks [first, end) has come, and takes it into the result. */
static bool receive_part(struct zero_net_team *team, struct zero_link *link, uint32_t kind,
			 size_t first, size_t end)
{
	struct zero_frame **at = zero_link_frame(link, kind, team->id), *frame;
	uint8_t *to;
	bool same;

	if (!at)
		return false;
	frame = *at;
	*at = frame->next;
	same = frame->header.collective == team->now.kind &&
	       frame->header.sequence == team->sequence && frame->header.size == team->now.bytes &&
	       frame->header.bytes == part(team, first, end, &to);
	if (same)
		merge(team, to, frame);
	else
		fail_mismatch(team, link, &frame->header);
	free(frame);
	return same;
}

/* Of a broadcast only the root's part goes up, so that its root waits for nobody. */
static bool sends_up(const struct zero_net_team *team, size_t first, size_t end)
{
	return team->now.kind != ZERO_BROADCAST ||
	       (team->now.root >= first && team->now.root < end);
}

static bool receive_children(struct zero_net_team *team)
{
	bool all = true;

	for (size_t i = 0; i < team->child_count; i++) {
		if (!team->child[i].received)
			team->child[i].received =
				!sends_up(team, team->child[i].first, team->child[i].end) ||
				receive_part(team, team->child[i].link, ZERO_FRAME_UP,
					     team->child[i].first, team->child[i].end);
		all &= team->child[i].received;
	}
	return all;
}

void zero_net_advance(struct zero_net_team *team)
{
	if (!team->now.begun || team->now.done || !receive_children(team))
		return;
	if (team->parent && !team->now.sent_up && sends_up(team, team->self, team->end)) {
		send_part(team, team->parent, ZERO_FRAME_UP, team->self, team->end);
		team->now.sent_up = true;
	}
	if (team->parent && !receive_part(team, team->parent, ZERO_FRAME_DOWN, 0, team->count))
		return;
	for (size_t i = 0; i < team->child_count; i++)
		send_part(team, team->child[i].link, ZERO_FRAME_DOWN, 0, team->count);
	team->now.done = true;
	zero_net_notify(team->net);
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* Called with the lock held. Numbers a new operation, or returns why it cannot complete. */
static zero_status begin_locked(struct zero_net_team *team, enum zero_collective kind,
				const void *mine, size_t bytes, size_t root)
{
	size_t all = bytes;
	uint8_t *to;

	if (atomic_load(&team->net->failed))
		return zero_net_failure(team->net);
	if (team->now.begun)
		return zero_fail(ZERO_E_STATE, "the team's previous operation is not finished");
	if (kind == ZERO_ALLGATHER && __builtin_mul_overflow(team->count, bytes, &all))
		return zero_fail(ZERO_E_INVALID, "%zu bytes from each of %zu ranks are too many",
				 bytes, team->count);
	if (all > team->now.data_bytes) {
		free(team->now.data);
		team->now.data = malloc(all);
		team->now.data_bytes = team->now.data ? all : 0;
	}
	team->sequence++;
	team->now.begun = true;
	team->now.sent_up = team->now.done = false;
	team->now.kind = kind;
	team->now.bytes = bytes;
	team->now.root = root;
	for (size_t i = 0; i < team->child_count; i++)
		team->child[i].received = false;
	if (all && !team->now.data) {
		zero_net_fail_locked(team->net, ZERO_E_COMM, team->net->config.rank, NULL,
				     "rank %d has no memory for %zu bytes of its team",
				     team->net->config.rank, all);
		return zero_net_failure(team->net);
	}
	bytes = part(team, team->self, team->self + 1, &to);
	if (bytes && (kind != ZERO_BROADCAST || root == team->self))
		memcpy(to, mine, bytes);
	zero_net_advance(team);
	return ZERO_OK;
}

static zero_status begin(struct zero_net_team *team, enum zero_collective kind, const void *mine,
			 size_t bytes, size_t root)
{
	zero_status status;

	pthread_mutex_lock(&team->net->lock);
	status = begin_locked(team, kind, mine, bytes, root);
	pthread_mutex_unlock(&team->net->lock);
	return status;
}

/* ---- finishing ------------------------------------------------------------------------------- */

/* Called with the lock held. A neighbour that has closed its job, so that what this rank waits for
   does not come; all that it sent before has been received. NULL: there is none. */
static const struct zero_link *departed(const struct zero_net_team *team)
{
	for (size_t i = 0; i < team->child_count; i++)
		if (!team->child[i].received && team->child[i].link->goodbye)
			return team->child[i].link;
	return team->parent && team->parent->goodbye ? team->parent : NULL;
}

/* Called with the lock held. Returns whether an operation is complete, or *status is an error. What
   is complete has succeeded, also if communication has failed since: another rank has gone on. */
static bool poll_teams(struct zero_net_team *const *teams, size_t count, size_t *which,
		       zero_status *status)
{
	struct zero_net *net = teams[0]->net;
	const struct zero_link *gone = NULL;
	bool may_complete = false;

	*status = ZERO_OK;
	for (size_t i = 0; i < count; i++) {
		if (teams[i]->now.begun && teams[i]->now.done) {
			*which = i;
			return true;
		}
		gone = departed(teams[i]);
		may_complete |= !gone;
	}
	if (!may_complete && gone)
		zero_net_fail_locked(net, ZERO_E_COMM, gone->rank, NULL,
				     "rank %d has closed its job while rank %d waits for it",
				     gone->rank, net->config.rank);
	if (atomic_load(&net->failed))
		*status = zero_net_failure(net);
	return *status != ZERO_OK;
}

static zero_status finish(struct zero_net_team *const *teams, size_t count, size_t *which,
			  void *result)
{
	struct zero_net *net = teams[0]->net;
	struct zero_net_team *team;
	zero_status status;
	uint8_t *data;
	size_t bytes;

	pthread_mutex_lock(&net->lock);
	while (!poll_teams(teams, count, which, &status))
		zero_net_wait(net, 0);
	if (!status) {
		team = teams[*which];
		bytes = part(team, 0, team->count, &data);
		if (bytes)
			memcpy(result, data, bytes);
		team->now.begun = false;
	}
	pthread_mutex_unlock(&net->lock);
	return status;
}

static zero_status finish_one(struct zero_net_team *team, void *result)
{
	size_t which;

	return finish(&team, 1, &which, result);
}

/* ---- the interface --------------------------------------------------------------------------- */

zero_status zero_net_begin_max(struct zero_net_team *team, const uint64_t *mine, size_t count)
{
	if (count > ZERO_NET_VALUES)
		return zero_fail(ZERO_E_INVALID, "a maximum has at most %d values, not %zu",
				 ZERO_NET_VALUES, count);
	return begin(team, ZERO_MAX, mine, count * sizeof(*mine), 0);
}

zero_status zero_net_finish_max(struct zero_net_team *const *teams, size_t count, size_t *which,
				uint64_t *all)
{
	if (!count)
		return zero_fail(ZERO_E_INVALID, "there is no maximum to finish");
	return finish(teams, count, which, all);
}

zero_status zero_net_allgather(struct zero_net_team *team, const void *send, void *recv,
			       size_t bytes)
{
	zero_status status = begin(team, ZERO_ALLGATHER, send, bytes, 0);

	return status ? status : finish_one(team, recv);
}

zero_status zero_net_broadcast(struct zero_net_team *team, void *data, size_t bytes, int root)
{
	zero_status status;

	if (root < 0 || (size_t)root >= team->count)
		return zero_fail(ZERO_E_INVALID, "root %d is not an index into a team of %zu ranks",
				 root, team->count);
	status = begin(team, ZERO_BROADCAST, data, bytes, (size_t)root);
	return status ? status : finish_one(team, data);
}

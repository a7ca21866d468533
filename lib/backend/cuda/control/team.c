/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: a tree of connections over some of the ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

/* ---- the tree -------------------------------------------------------------------------------- */

/* Child i of the subtree of indices [begin, end): a part of what follows its root. */
static bool child_range(size_t begin, size_t end, size_t i, size_t *first, size_t *stop)
{
	size_t rest = end - begin - 1;
	size_t parts = rest < ZERO_CONTROL_FANOUT ? rest : ZERO_CONTROL_FANOUT;

	if (i >= parts)
		return false;
	*first = begin + 1 + rest * i / parts;
	*stop = begin + 1 + rest * (i + 1) / parts;
	return true;
}

static void plant(struct zero_control_team *team)
{
	size_t begin = 0, end = team->count, first = 0, stop = 0;

	while (begin != team->self) {
		for (size_t i = 0; child_range(begin, end, i, &first, &stop); i++)
			if (team->self < stop)
				break;
		team->parent_index = begin;
		begin = first;
		end = stop;
	}
	team->end = end;
	while (child_range(begin, end, team->child_count, &first, &stop)) {
		team->child[team->child_count].first = first;
		team->child[team->child_count++].end = stop;
	}
}

/* ---- connecting it --------------------------------------------------------------------------- */

/* "rank 3", or "ranks 3, 9 to 12", ascending. */
static void name_ranks(char *text, size_t size, const int *ranks, size_t count)
{
	size_t at = (size_t)snprintf(text, size, "rank%s", count > 1 ? "s" : "");

	for (size_t i = 0, last; i < count && at < size; i = last + 1) {
		for (last = i; last + 1 < count && ranks[last + 1] == ranks[last] + 1;)
			last++;
		at += (size_t)snprintf(text + at, size - at, "%s %d", i ? "," : "", ranks[i]);
		if (last > i && at < size)
			at += (size_t)snprintf(text + at, size - at, " to %d", ranks[last]);
	}
}

/* With the lock. Children without a connection, of which it finds those that have come. */
static size_t find_children(struct zero_control_team *team, int *missing)
{
	size_t count = 0;

	for (size_t i = 0; i < team->child_count; i++) {
		int rank = team->ranks[team->child[i].first];

		team->child[i].link = zero_link_find(team->control, rank);
		if (!team->child[i].link)
			missing[count++] = rank;
	}
	return count;
}

static zero_status await_children(struct zero_control_team *team, double deadline)
{
	struct zero_control *control = team->control;
	int missing[ZERO_CONTROL_FANOUT];
	bool in_time = true, broken;
	char names[256];
	size_t count;

	pthread_mutex_lock(&control->lock);
	while ((count = find_children(team, missing)) && in_time && !atomic_load(&control->broken))
		in_time = zero_control_wait(control, deadline);
	broken = atomic_load(&control->broken);
	pthread_mutex_unlock(&control->lock);
	if (broken)
		return zero_control_fail_broken(control);
	if (!count)
		return ZERO_OK;
	name_ranks(names, sizeof(names), missing, count);
	return zero_control_give_up(
		control, missing[0], "%s did not come within %g s to rank %d (node %s)", names,
		control->config.seconds, control->config.rank, control->own.node);
}

/* Each pair of ranks has one connection, which teams share. The higher rank makes it. */
static zero_status connect_team(struct zero_control_team *team)
{
	struct zero_control *control = team->control;
	double deadline = zero_seconds() + control->config.seconds;
	int parent = team->ranks[team->parent_index];
	zero_status status = ZERO_OK;

	if (team->self) {
		pthread_mutex_lock(&control->lock);
		team->parent = zero_link_find(control, parent);
		pthread_mutex_unlock(&control->lock);
		if (!team->parent)
			status = zero_control_connect(control, parent, deadline, &team->parent);
	}
	return status ? status : await_children(team, deadline);
}

/* ---- a team's life --------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 32;
}

/* Members agree on it without a word: their ranks, and how often they have made such a team. */
static uint64_t team_id(const struct zero_control *control, const int *ranks, size_t count)
{
	const struct zero_control_team *team = control->teams;
	uint64_t before = 0, hash;

	for (; team; team = team->next)
		before +=
			team->count == count && !memcmp(team->ranks, ranks, count * sizeof(*ranks));
	/* Not from a small number, which others of these could take back. */
	hash = mix(mix(UINT64_C(0x9e3779b97f4a7c15), count), before);
	for (size_t i = 0; i < count; i++)
		hash = mix(hash, (uint64_t)ranks[i]);
	return hash;
}

struct zero_control_team *zero_control_team_find(struct zero_control *control, uint64_t id)
{
	struct zero_control_team *team = control->teams;

	while (team && team->id != id)
		team = team->next;
	return team;
}

void zero_control_left(struct zero_control_team *team, const struct zero_left *left,
		       const struct zero_link *said)
{
	struct zero_frame_header header = {.team = team->id, .kind = ZERO_FRAME_LEFT};
	struct zero_payload *payload;

	/* Another rank may miss it earlier: then it is told once more. */
	if (left->from >= team->left_from)
		return;
	team->left = left->rank;
	team->waiter = left->waiter;
	team->left_from = left->from;
	payload = zero_payload_new(left, sizeof(*left));
	if (!payload) {
		zero_control_fall_apart(team->control, left->rank, "a rank has closed its job",
					NULL);
		return;
	}
	if (team->parent && team->parent != said)
		zero_link_post(team->parent, &header, payload);
	for (size_t i = 0; i < team->child_count; i++)
		if (team->child[i].link != said)
			zero_link_post(team->child[i].link, &header, payload);
	zero_payload_put(payload);
	zero_control_changed(team->control);
}

void zero_control_missed(struct zero_control_team *team, const struct zero_link *link,
			 uint64_t sequence)
{
	struct zero_left left = {
		.rank = link->rank, .waiter = team->control->config.rank, .from = sequence};

	zero_control_left(team, &left, NULL);
}

zero_status zero_control_fail_left(const struct zero_control_team *team)
{
	char text[128];

	snprintf(text, sizeof(text), "rank %d has closed its job while rank %d waits for it",
		 team->left, team->waiter);
	return zero_core->fail_on(team->left, ZERO_E_COMM, text);
}

/* With the lock. What neighbours may have said of the team before it was made here. */
static void hear_left(struct zero_control_team *team, struct zero_link *link)
{
	struct zero_frame *frame;
	struct zero_left left;

	while ((frame = zero_link_take(link, team->id, ZERO_LANE_LEFT))) {
		if (frame->header.bytes == sizeof(left)) {
			memcpy(&left, frame->payload->data, sizeof(left));
			zero_control_left(team, &left, link);
		}
		zero_frame_free(frame);
	}
}

static void enter(struct zero_control_team *team)
{
	struct zero_control *control = team->control;

	pthread_mutex_lock(&control->lock);
	team->next = control->teams;
	control->teams = team;
	if (team->parent)
		hear_left(team, team->parent);
	for (size_t i = 0; i < team->child_count; i++)
		hear_left(team, team->child[i].link);
	pthread_mutex_unlock(&control->lock);
}

void zero_control_free_team(struct zero_control_team *team)
{
	if (team)
		free(team->ranks);
	free(team);
}

static zero_status check_ranks(const struct zero_control *control, const int *ranks, size_t count)
{
	bool member = false;

	for (size_t i = 0; i < count; i++) {
		if (ranks[i] < 0 || ranks[i] >= control->config.world ||
		    (i && ranks[i] <= ranks[i - 1]))
			return zero_core->fail(ZERO_E_INVALID,
					       "rank %d of a team is not above the one before it "
					       "and below %d",
					       ranks[i], control->config.world);
		member |= ranks[i] == control->config.rank;
	}
	if (!member)
		return zero_core->fail(ZERO_E_INVALID, "rank %d is not of the team that it makes",
				       control->config.rank);
	return ZERO_OK;
}

static struct zero_control_team *new_team(struct zero_control *control, const int *ranks,
					  size_t count)
{
	struct zero_control_team *team = calloc(1, sizeof(*team));

	if (!team)
		return NULL;
	team->ranks = malloc(count * sizeof(*ranks));
	if (!team->ranks) {
		free(team);
		return NULL;
	}
	memcpy(team->ranks, ranks, count * sizeof(*ranks));
	team->control = control;
	team->count = count;
	team->left_from = UINT64_MAX;
	team->id = team_id(control, ranks, count);
	while (ranks[team->self] != control->config.rank)
		team->self++;
	plant(team);
	return team;
}

zero_status zero_control_team_new(struct zero_control *control, const int *ranks, size_t count,
				  struct zero_control_team **team)
{
	struct zero_control_team *made;
	uint64_t nothing = 0;
	zero_status status;
	size_t which;

	if (atomic_load(&control->broken))
		return zero_control_fail_broken(control);
	if (!control->joined)
		return zero_core->fail(ZERO_E_STATE, "a team is made before its ranks have joined");
	status = check_ranks(control, ranks, count);
	if (status)
		return status;
	made = new_team(control, ranks, count);
	if (!made)
		return zero_control_give_up(control, control->config.rank,
					    "rank %d has no memory for a team of %zu ranks",
					    control->config.rank, count);
	status = connect_team(made);
	if (status) {
		zero_control_free_team(made);
		return status;
	}
	enter(made);
	/* It is there on all or on none: one that does not come is told to all who wait here. */
	status = zero_control_begin_max(made, &nothing, 1);
	if (!status)
		status = zero_control_finish_max(&made, 1, &which, &nothing);
	if (!status)
		*team = made;
	return status;
}

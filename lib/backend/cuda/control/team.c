/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: a tree of connections over some of the ranks. Teams share connections. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "private.h"

/* ---- the tree -------------------------------------------------------------------------------- */

/* Child i of the subtree of indices [begin, end): a part of the range that follows the root. */
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

static void build_tree(struct zero_control_team *team)
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

/* ---- its connections ------------------------------------------------------------------------- */

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

/* Called with the lock held. Finds the children's links. Returns how many are missing, and their
   ranks. */
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

static zero_status wait_for_children(struct zero_control_team *team, double deadline)
{
	struct zero_control *control = team->control;
	int missing[ZERO_CONTROL_FANOUT];
	bool in_time = true, broken;
	char names[256];
	size_t count;

	pthread_mutex_lock(&control->lock);
	while ((count = find_children(team, missing)) && in_time && !atomic_load(&control->failed))
		in_time = zero_control_wait(control, deadline);
	broken = atomic_load(&control->failed);
	pthread_mutex_unlock(&control->lock);
	if (broken)
		return zero_control_failure(control);
	if (!count)
		return ZERO_OK;
	name_ranks(names, sizeof(names), missing, count);
	return zero_control_fail_all_printf(
		control, missing[0], "%s did not come within %g s to rank %d (node %s)", names,
		control->config.seconds, control->config.rank, control->own.node);
}

/* Each pair of ranks has one connection, which the higher rank makes. */
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
	return status ? status : wait_for_children(team, deadline);
}

/* ---- creation -------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 32;
}

/* Members compute the same id without a message: from their ranks, and from how many such teams
   they have created before. */
static uint64_t team_id(const struct zero_control *control, const int *ranks, size_t count)
{
	const struct zero_control_team *team = control->teams;
	uint64_t before = 0, hash;

	for (; team; team = team->next)
		before +=
			team->count == count && !memcmp(team->ranks, ranks, count * sizeof(*ranks));
	/* A small start value could cancel with the values mixed in. */
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

/* Called with the lock held. Departures may be reported before this rank creates the team. */
static void read_departures(struct zero_control_team *team, struct zero_link *link)
{
	struct zero_frame *frame;

	while ((frame = zero_link_pop(link, team->id, ZERO_LANE_DEPARTURE)))
		zero_control_receive_departure(team, link, frame);
}

static void register_team(struct zero_control_team *team)
{
	struct zero_control *control = team->control;

	pthread_mutex_lock(&control->lock);
	team->next = control->teams;
	control->teams = team;
	if (team->parent)
		read_departures(team, team->parent);
	for (size_t i = 0; i < team->child_count; i++)
		read_departures(team, team->child[i].link);
	pthread_mutex_unlock(&control->lock);
}

void zero_control_team_free(struct zero_control_team *team)
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
		return zero_core->fail(ZERO_E_INVALID,
				       "rank %d is not a member of the team that it creates",
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
	team->departed_from = UINT64_MAX;
	team->id = team_id(control, ranks, count);
	while (ranks[team->self] != control->config.rank)
		team->self++;
	build_tree(team);
	return team;
}

zero_status zero_control_team_new(struct zero_control *control, const int *ranks, size_t count,
				  struct zero_control_team **team)
{
	struct zero_control_team *made;
	uint64_t nothing = 0;
	zero_status status;
	size_t which;

	if (atomic_load(&control->failed))
		return zero_control_failure(control);
	if (!control->joined)
		return zero_core->fail(ZERO_E_STATE,
				       "a team is created before the ranks have joined");
	status = check_ranks(control, ranks, count);
	if (status)
		return status;
	made = new_team(control, ranks, count);
	if (!made)
		return zero_control_fail_all_printf(control, control->config.rank,
						    "rank %d has no memory for a team of %zu ranks",
						    control->config.rank, count);
	status = connect_team(made);
	if (status) {
		zero_control_team_free(made);
		return status;
	}
	register_team(made);
	/* The team exists on all members or on none: all wait here, and learn of a missing one. */
	status = zero_control_begin_max(made, &nothing, 1);
	if (!status)
		status = zero_control_finish_max(&made, 1, &which, &nothing);
	if (!status)
		*team = made;
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Teams: a tree of connections over some of the ranks. Teams share connections. */
#include <stdlib.h>
#include <string.h>

#include "net_internal.h"

/* ---- the tree -------------------------------------------------------------------------------- */

/* Child i of the subtree of indices [begin, end): a part of the range that follows the root. */
static bool child_range(size_t begin, size_t end, size_t i, size_t *first, size_t *stop)
{
	size_t rest = end - begin - 1;
	size_t parts = rest < ZERO_NET_FANOUT ? rest : ZERO_NET_FANOUT;

	if (i >= parts)
		return false;
	*first = begin + 1 + rest * i / parts;
	*stop = begin + 1 + rest * (i + 1) / parts;
	return true;
}

static void build_tree(struct zero_net_team *team)
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

static zero_status connect_team(struct zero_net_team *team)
{
	struct zero_link *links[1 + ZERO_NET_FANOUT];
	size_t above = team->self ? 1 : 0;
	int ranks[1 + ZERO_NET_FANOUT];
	zero_status status;

	ranks[0] = team->ranks[team->parent_index];
	for (size_t i = 0; i < team->child_count; i++)
		ranks[above + i] = team->ranks[team->child[i].first];
	status = zero_net_connect(team->net, ranks, above + team->child_count, links);
	if (status)
		return status;
	team->parent = above ? links[0] : NULL;
	for (size_t i = 0; i < team->child_count; i++)
		team->child[i].link = links[above + i];
	return ZERO_OK;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* Members compute the same id without a message: from their ranks, and from how many such teams
   they have created before. */
static uint64_t team_id(const struct zero_net *net, const int *ranks, size_t count)
{
	const struct zero_net_team *team = net->teams;
	uint64_t before = 0;

	for (; team; team = team->next)
		before +=
			team->count == count && !memcmp(team->ranks, ranks, count * sizeof(*ranks));
	return zero_hash(ranks, count * sizeof(*ranks), zero_hash(&before, sizeof(before), 0));
}

struct zero_net_team *zero_net_team_find(struct zero_net *net, uint64_t id)
{
	struct zero_net_team *team = net->teams;

	while (team && team->id != id)
		team = team->next;
	return team;
}

void zero_net_team_free(struct zero_net_team *team)
{
	if (team) {
		free(team->now.data);
		free(team->ranks);
	}
	free(team);
}

static zero_status check_ranks(const struct zero_net *net, const int *ranks, size_t count)
{
	bool member = !ranks;

	for (size_t i = 0; ranks && i < count; i++) {
		if (ranks[i] < 0 || ranks[i] >= net->config.world ||
		    (i && ranks[i] <= ranks[i - 1]))
			return zero_fail(ZERO_E_INVALID,
					 "rank %d of a team is not above the one before it and "
					 "below %d",
					 ranks[i], net->config.world);
		member |= ranks[i] == net->config.rank;
	}
	if (!member)
		return zero_fail(ZERO_E_INVALID,
				 "rank %d is not a member of the team that it creates",
				 net->config.rank);
	return ZERO_OK;
}

static struct zero_net_team *new_team(struct zero_net *net, const int *ranks, size_t count)
{
	struct zero_net_team *team = calloc(1, sizeof(*team));

	if (!team)
		return NULL;
	team->ranks = malloc(count * sizeof(*ranks));
	if (!team->ranks) {
		free(team);
		return NULL;
	}
	for (size_t i = 0; i < count; i++)
		team->ranks[i] = ranks ? ranks[i] : (int)i;
	team->net = net;
	team->count = count;
	team->id = team_id(net, team->ranks, count);
	while (team->ranks[team->self] != net->config.rank)
		team->self++;
	build_tree(team);
	return team;
}

zero_status zero_net_team_new(struct zero_net *net, const int *ranks, size_t count,
			      struct zero_net_team **team)
{
	struct zero_net_team *made;
	uint64_t nothing = 0;
	zero_status status;
	size_t which;

	if (atomic_load(&net->failed))
		return zero_net_failure(net);
	status = check_ranks(net, ranks, count);
	if (status)
		return status;
	made = new_team(net, ranks, ranks ? count : (size_t)net->config.world);
	if (!made)
		return zero_net_fail_all(net, net->config.rank,
					 "rank %d has no memory for a team of %zu ranks",
					 net->config.rank, count);
	status = connect_team(made);
	if (status) {
		zero_net_team_free(made);
		return status;
	}
	pthread_mutex_lock(&net->lock);
	made->next = net->teams;
	net->teams = made;
	pthread_mutex_unlock(&net->lock);
	/* The team exists on all members or on none: all wait here, and learn of a missing one. */
	status = zero_net_begin_max(made, &nothing, 1);
	if (!status)
		status = zero_net_finish_max(&made, 1, &which, &nothing);
	if (!status)
		*team = made;
	return status;
}

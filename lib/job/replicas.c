/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grid: the ranks are divided into teams, each of which stores one copy of what is sharded, as in
 * hybrid sharding (Zhao et al. 2023, FSDP's HYBRID_SHARD). A team is made of ranks of a node, or of
 * whole nodes, where these numbers allow it. The step is divided over all ranks: a rank owns one
 * shard of each segment, and those that store the same own neighbouring ones.
 */
#include <stdlib.h>
#include <string.h>

#include "job.h"

/* ---- nodes ----------------------------------------------------------------------------------- */

zero_status zero_nodes_number(const struct zero_rank_node *ranks, size_t world,
			      struct zero_nodes *nodes)
{
	size_t *turns = calloc(world, sizeof(*turns));

	*nodes = (struct zero_nodes){.of = calloc(world, sizeof(size_t)),
				     .ranks = calloc(world, sizeof(size_t))};
	if (!turns || !nodes->of || !nodes->ranks) {
		free(turns);
		return zero_fail(ZERO_E_MEMORY, "no memory for the nodes of %zu ranks", world);
	}
	for (size_t rank = 0; rank < world; rank++) {
		size_t first = rank;

		for (size_t other = 0; other < rank; other++)
			turns[rank] += ranks[other].name == ranks[rank].name &&
				       ranks[other].local_rank == ranks[rank].local_rank;
		for (size_t other = 0; first == rank && other < rank; other++)
			if (ranks[other].name == ranks[rank].name && turns[other] == turns[rank])
				first = other;
		nodes->of[rank] = first == rank ? nodes->count++ : nodes->of[first];
		nodes->ranks[nodes->of[rank]]++;
	}
	free(turns);
	return ZERO_OK;
}

zero_status zero_nodes_find(zero_job *job, struct zero_nodes *nodes)
{
	size_t world = (size_t)job->place.world;
	struct zero_rank_node mine = {
		.name = zero_hash(job->place.node, strlen(job->place.node), 0),
		.local_rank = (uint64_t)job->place.local_rank};
	struct zero_rank_node *all = calloc(world, sizeof(*all));
	struct zero_op op = {
		.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .recv = all, .count = sizeof(mine)};
	zero_status status = ZERO_OK;

	*nodes = (struct zero_nodes){0};
	if (!all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for the nodes of %zu ranks", world);
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_OTHER, "the ranks' nodes");
	if (!status) {
		status = zero_nodes_number(all, world, nodes);
		status = zero_submit_wait(&job->all, status, NULL, 0, ZERO_WORK_OTHER,
					  "the numbers of the nodes");
	}
	free(all);
	return status;
}

void zero_nodes_free(struct zero_nodes *nodes)
{
	free(nodes->of);
	free(nodes->ranks);
	*nodes = (struct zero_nodes){0};
}

/* ---- teams ----------------------------------------------------------------------------------- */

static int by_rank(const void *a, const void *b)
{
	return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b);
}

/* Deals the ranks, node by node, into teams of `size`, each of which ascends: [world]. */
static void deal_into_teams(const struct zero_nodes *nodes, size_t world, size_t size, int *teams)
{
	size_t at = 0;

	for (size_t node = 0; node < nodes->count; node++)
		for (size_t rank = 0; rank < world; rank++)
			if (nodes->of[rank] == node)
				teams[at++] = (int)rank;
	for (size_t team = 0; team < world; team += size)
		qsort(teams + team, size, sizeof(*teams), by_rank);
}

/* The ranks that own the shards: those in place 0 of the teams, then those in place 1, and so
   on. */
static void list_owners(const int *teams, size_t world, size_t size, int *owners)
{
	size_t replicas = world / size;

	for (size_t place = 0; place < size; place++) {
		int *same = owners + place * replicas;

		for (size_t team = 0; team < replicas; team++)
			same[team] = teams[team * size + place];
		qsort(same, replicas, sizeof(*same), by_rank);
	}
}

static size_t find(const int *ranks, int rank)
{
	size_t at = 0;

	while (ranks[at] != rank)
		at++;
	return at;
}

static void free_grid(struct zero_grid *grid)
{
	if (!grid)
		return;
	zero_team_free(grid->shard_team);
	zero_team_free(grid->replica_team);
	free(grid->owners);
	free(grid->teams);
	free(grid);
}

/* NULL: no memory. It has no communicators yet. */
static struct zero_grid *plan_grid(const struct zero_nodes *nodes,
				   const struct zero_rank_info *place, size_t size)
{
	size_t world = (size_t)place->world;
	struct zero_grid *grid = calloc(1, sizeof(*grid));

	if (!grid)
		return NULL;
	grid->owners = calloc(world, sizeof(int));
	grid->teams = calloc(world, sizeof(int));
	if (!grid->owners || !grid->teams) {
		free_grid(grid);
		return NULL;
	}
	deal_into_teams(nodes, world, size, grid->teams);
	list_owners(grid->teams, world, size, grid->owners);
	grid->own_shard = find(grid->owners, place->rank);
	return grid;
}

zero_status zero_grid_new(zero_job *job, const struct zero_nodes *nodes, size_t size)
{
	size_t world = (size_t)job->place.world, replicas = world / size, team, same;
	struct zero_grid *grid = plan_grid(nodes, &job->place, size);
	zero_status status;

	/* The other ranks learn of it. */
	if (!grid)
		return zero_team_make(
			job, zero_fail(ZERO_E_MEMORY, "no memory for a grid of %zu ranks", world),
			NULL, size, 0, NULL);
	team = find(grid->teams, job->place.rank) / size;
	same = grid->own_shard / replicas;
	status = zero_team_make(job, ZERO_OK, grid->teams + team * size, size, (int)team,
				&grid->shard_team);
	if (!status)
		status = zero_team_make(job, ZERO_OK, grid->owners + same * replicas, replicas,
					(int)same, &grid->replica_team);
	if (status)
		free_grid(grid);
	else
		job->grid = grid;
	return status;
}

int zero_grid_replica(const struct zero_grid *grid, int rank)
{
	size_t size = (size_t)grid->shard_team->place.world;
	size_t place = grid->own_shard / (size_t)grid->replica_team->place.world;

	return grid->teams[find(grid->teams, rank) / size * size + place];
}

void zero_grid_free(zero_job *job)
{
	free_grid(job->grid);
	job->grid = NULL;
}

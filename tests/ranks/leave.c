/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank closes a job with teams early, or begins another operation. Every rank that waits gets an
 * error, in an operation of a team or of all ranks, and so do ranks outside the team. Afterwards
 * another job can be opened.
 */
#include "ranks.h"

static int world, rank;

struct model {
	zero_job *job;
	zero_team *team; /* ranks 0 and 1 */
	zero_group *all, *pair, *other;
};

static struct model open_model(void)
{
	struct model m = {.job = open_job("stage=3")};
	const int ranks[] = {0, 1};

	ok(zero_team_new(m.job, ranks, 2, &m.team));
	m.all = new_group(m.job, "all");
	new_param(m.all, "a", ZERO_F32, 1000, true);
	ok(zero_group_new(m.job, "pair", m.team, &m.pair));
	new_param(m.pair, "p", ZERO_F32, 1000, true);
	ok(zero_group_new(m.job, "other", m.team, &m.other));
	new_param(m.other, "o", ZERO_F32, 1000, true);
	ok(zero_layout(m.job));
	return m;
}

static void wait_for_all(const struct model *m)
{
	double value = 1;

	fails(zero_mean(m->job, &value, 1, 1), ZERO_E_ORDER, "rank");
}

/* Rank 1 closes the job while rank 0 is in an operation of their team, and the others in one of all
   ranks. */
static void leaves_team(void)
{
	struct model m = open_model();

	if (rank == 0)
		fails(zero_gather(m.pair, ZERO_BF16), ZERO_E_ORDER, "zero_close");
	else if (rank > 1)
		wait_for_all(&m);
	ok(zero_close(m.job));
}

/* Rank 1 closes the job while the others are in an operation of all ranks. */
static void leaves_all(void)
{
	struct model m = open_model();

	if (rank != 1)
		wait_for_all(&m);
	ok(zero_close(m.job));
}

/* The members of the team gather in different orders. The other ranks get the error too, instead of
   waiting for ever. */
static void parts_in_team(bool closes)
{
	struct model m = open_model();

	if (rank < 2) {
		fails(zero_gather(rank ? m.pair : m.other, ZERO_BF16), ZERO_E_ORDER, "rank 1");
		fails(zero_gather(m.pair, ZERO_BF16), ZERO_E_ORDER, "rank 1");
	}
	if (!closes || rank > 1)
		wait_for_all(&m);
	ok(zero_close(m.job));
}

/* An error in a team names ranks of the job, not of the team. */
static void names_job_ranks(void)
{
	const int ranks[] = {world - 2, world - 1};
	zero_job *job = open_job("stage=3");
	zero_source source = zero_from_constant(rank);
	zero_group *group;
	zero_team *team;
	zero_param *param;

	ok(zero_team_new(job, ranks, 2, &team));
	ok(zero_group_new(job, "g", team, &group));
	param = new_param(group, "p", ZERO_F32, 1000, true);
	ok(zero_layout(job));
	if (zero_team_rank(team) >= 0) {
		char words[32];

		snprintf(words, sizeof(words), "while rank %d", world - 1);
		fails(zero_load(param, &source), ZERO_E_ORDER, words);
		check(zero_last_error_rank() == world - 1, "rank %d", zero_last_error_rank());
	}
	ok(zero_close(job));
}

int main(void)
{
	zero_job *job = open_job("stage=3");

	world = zero_world(job);
	rank = zero_rank(job);
	ok(zero_close(job));
	if (world < 2)
		return 0;
	for (int i = 0; i < 3; i++) {
		leaves_team();
		leaves_all();
		parts_in_team(true);
		parts_in_team(false);
		names_job_ranks();
	}
	return 0;
}

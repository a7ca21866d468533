/* SPDX-License-Identifier: Apache-2.0 */
/* How communication ends: a rank is killed, closes its job, never joins, runs a different
   operation, or reports a failure. All other ranks learn of it, with one sentence that names the
   right rank. */
#include <pthread.h>

#include "control_ranks.h"

/* ---- lost ranks ------------------------------------------------------------------------------ */

/* Runs maxima until one fails. */
static void run_until_failure(struct zero_net_team *team)
{
	uint64_t value = 1;
	size_t which;

	while (!zero_net_ops.begin_max(team, &value, 1) &&
	       !zero_net_ops.finish_max(&team, 1, &which, &value))
		continue;
}

static void check_failure(struct zero_net *net, int rank, const char *sentence)
{
	struct zero_net_team *team = world_team, *made;
	char text[1024] = "";
	uint64_t value = 0;
	int about = -1;

	check(!strncmp(zero_last_error(), sentence, strlen(sentence)), "%s", zero_last_error());
	check(zero_last_error_rank() == rank, "rank %d: %s", zero_last_error_rank(),
	      zero_last_error());
	check(zero_net_ops.has_failed(net, text, sizeof(text), &about),
	      "communication has not failed");
	check(about == rank && !strcmp(text, zero_last_error()), "rank %d: %s", about, text);
	zero_net_ops.fail_all(net, ZERO_E_COMM, 0, "too late");
	check(zero_net_ops.allgather(team, &value, &value, 0) == ZERO_E_COMM, "no error");
	check(!strcmp(text, zero_last_error()), "%s", zero_last_error());
	check(zero_net_ops.broadcast(team, &value, 8, 0) == ZERO_E_COMM, "no error");
	check(zero_net_ops.begin_max(team, &value, 1) == ZERO_E_COMM, "no error");
	check(zero_net_ops.team_new(net, &own_rank, 1, &made) == ZERO_E_COMM, "no error");
	check(!strcmp(text, zero_last_error()), "%s", zero_last_error());
}

/* Forks a process that holds the rank's descriptors until all other ranks know of the rank's
   end. */
static void leave_child_process(struct zero_net *net, const struct trial *trial)
{
	if (fork())
		return;
	alarm(2 * HANG);
	check(zero_net_ops.has_failed(net, NULL, 0, NULL), "a forked process can communicate");
	while (atomic_load(&shared->done) < trial->world - 1)
		sleep_for(0.001);
	zero_net_close(net);
	_exit(0);
}

static void rank_is_killed(struct zero_net *net, const struct trial *trial)
{
	uint64_t value = 0;
	char sentence[64];
	size_t which;

	if (trial->rank == trial->odd) {
		struct zero_net_team *all = world_team;

		for (int i = 0; i < 20; i++)
			if (zero_net_ops.begin_max(all, &value, 1) ||
			    zero_net_ops.finish_max(&all, 1, &which, &value))
				check(false, "%s", zero_last_error());
		if (trial->variant)
			leave_child_process(net, trial);
		kill(getpid(), SIGKILL);
	}
	run_until_failure(world_team);
	atomic_fetch_add(&shared->done, 1);
	snprintf(sentence, sizeof(sentence), "rank %d (node ", trial->odd);
	check_failure(net, trial->odd, sentence);
	check(strstr(zero_last_error(), ") is gone: "), "%s", zero_last_error());
}

START_TEST(a_rank_is_killed)
{
	static const int worlds[] = {2, 5, 14, RANKS};
	struct trial trial = {.program = rank_is_killed,
			      .world = worlds[_i % 4],
			      .variant = _i >= 4,
			      .seconds = HANG};
	uint64_t state = seed + (uint64_t)_i;

	trial.odd = (int)random_below(&state, (size_t)trial.world);
	run(&trial, trial.odd);
}
END_TEST

/* One rank closes its job while the others go on. What it sent before still arrives. */
static void rank_closes(struct zero_net *net, const struct trial *trial)
{
	size_t which, bytes = trial->world == 2 ? 12 << 20 : 1 << 20;
	char sentence[64], *data = calloc(1, bytes);
	struct zero_net_team *all = world_team;
	uint64_t value = 1;

	if (trial->rank == trial->odd)
		memset(data, 'x', bytes);
	check(!zero_net_ops.broadcast(all, data, bytes, trial->odd), "%s", zero_last_error());
	check(data[0] == 'x' && data[bytes - 1] == 'x', "other data");
	free(data);
	if (trial->rank == trial->odd)
		return;
	atomic_fetch_add(&shared->done, 1);
	while (atomic_load(&shared->done) < trial->world - 1)
		sleep_for(0.001);
	snprintf(sentence, sizeof(sentence), "rank %d has closed its job while rank ", trial->odd);
	for (int i = 0; i < 2; i++) {
		check((trial->variant ? zero_net_ops.allgather(all, &value, &value, 0)
				      : zero_net_ops.begin_max(all, &value, 1)) ||
			      zero_net_ops.finish_max(&all, 1, &which, &value),
		      "no error");
		check(!strncmp(zero_last_error(), sentence, strlen(sentence)), "%s",
		      zero_last_error());
		check(zero_last_error_rank() == trial->odd, "%d", zero_last_error_rank());
	}
	check(zero_net_ops.has_failed(net, NULL, 0, NULL), "communication has not failed");
}

START_TEST(a_rank_closes)
{
	static const int worlds[] = {2, 5, 14};
	struct trial trial = {.program = rank_closes,
			      .world = worlds[_i / 2 % 3],
			      .variant = _i & 1,
			      .seconds = HANG};
	uint64_t state = seed + (uint64_t)_i;

	trial.odd = (int)random_below(&state, (size_t)trial.world);
	/* First an inner rank of the tree, and one below it. */
	if (_i < 6 && trial.world == 14)
		trial.odd = 4 + _i % 2;
	run(&trial, -1);
}
END_TEST

static void rank_never_joins(struct zero_net *net, const struct trial *trial)
{
	char one[64], within[64];

	(void)net;
	if (trial->rank == trial->odd) {
		/* Its kernel accepts connections, but the rank never answers. */
		while (atomic_load(&shared->done) < trial->world - 1)
			sleep_for(0.01);
		return;
	}
	snprintf(one, sizeof(one), "rank %d ", trial->odd);
	snprintf(within, sizeof(within), "within %g s", trial->seconds);
	check(!strncmp(zero_last_error(), one, strlen(one)), "%s", zero_last_error());
	check(strstr(zero_last_error(), within), "%s", zero_last_error());
	check(strstr(zero_last_error(), "did not answer") ||
		      strstr(zero_last_error(), "did not come"),
	      "%s", zero_last_error());
	check(zero_last_error_rank() == trial->odd, "rank %d: %s", zero_last_error_rank(),
	      zero_last_error());
	check(!world_team, "there is a team");
	atomic_fetch_add(&shared->done, 1);
}

/* The limit is one that no machine reaches. */
START_TEST(a_rank_never_joins)
{
	static const struct trial trials[] = {{.world = 2, .odd = 0, .neighbours = 1},
					      {.world = 5, .odd = 4, .neighbours = 1},
					      {.world = 14, .odd = 0, .neighbours = 10},
					      {.world = RANKS, .odd = 4, .neighbours = 3}};
	struct trial trial = trials[_i];

	trial.program = rank_never_joins;
	trial.fails = true;
	trial.seconds = 1000;
	run(&trial, -1);
}
END_TEST

/* ---- reported failures ----------------------------------------------------------------------- */

static void *fail_thread(void *context)
{
	zero_net_ops.fail_all(context, ZERO_E_COMM, 1, "the device of rank 1 is on fire");
	return NULL;
}

static void rank_fails(struct zero_net *net, const struct trial *trial)
{
	pthread_t threads[2];

	if (trial->rank == trial->odd) {
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, fail_thread, net);
		run_until_failure(world_team);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	} else {
		run_until_failure(world_team);
	}
	check_failure(net, 1, "the device of rank 1 is on fire");
}

START_TEST(a_thread_fails)
{
	static const int worlds[] = {1, 2, 14, RANKS};
	struct trial trial = {.program = rank_fails, .world = worlds[_i], .seconds = HANG};
	uint64_t state = seed + (uint64_t)_i;

	trial.odd = (int)random_below(&state, (size_t)trial.world);
	run(&trial, -1);
}
END_TEST

static void rank_is_told(struct zero_net *net, const struct trial *trial)
{
	(void)net;
	/* Rank 0 stays until it has come. */
	if (trial->rank == trial->odd)
		atomic_store(&shared->done, 2);
	while (!trial->rank && atomic_load(&shared->done) < 2)
		sleep_for(0.001);
	check(!world_team, "there is a team");
	check(!strcmp(zero_last_error(), "the device of rank 1 is on fire"), "%s",
	      zero_last_error());
	check(zero_last_error_rank() == 1, "rank %d", zero_last_error_rank());
}

/* A rank that comes when another has failed learns why. */
START_TEST(a_late_rank_is_told)
{
	struct trial trial = {.program = rank_is_told,
			      .world = 3 + _i,
			      .odd = 2,
			      .seconds = HANG,
			      .fails = true,
			      .late = true};

	run(&trial, -1);
}
END_TEST

/* One rank uses another size or another operation. */
static void rank_differs(struct zero_net *net, const struct trial *trial)
{
	struct zero_net_team *all = world_team;
	bool odd = trial->rank == trial->odd;
	uint8_t *recv = malloc((size_t)trial->world * 24), send[24] = {0};
	uint64_t values[2] = {1, 2};
	size_t which;

	(void)net;
	switch (trial->variant) {
	case 0:
		zero_net_ops.allgather(all, send, recv, odd ? 24 : 16);
		break;
	case 1:
		if (odd)
			zero_net_ops.broadcast(all, send, 8, trial->odd);
		else
			zero_net_ops.allgather(all, send, recv, 8);
		break;
	case 2:
	case 5:
		if (odd == (trial->variant == 5))
			zero_net_ops.allgather(all, send, recv, 8);
		else if (!zero_net_ops.begin_max(all, values, 1))
			zero_net_ops.finish_max(&all, 1, &which, values);
		break;
	case 3:
		if (!zero_net_ops.begin_max(all, values, odd ? 2 : 1))
			zero_net_ops.finish_max(&all, 1, &which, values);
		break;
	case 4:
		zero_net_ops.broadcast(all, send, odd ? 8 : 24, 0);
		break;
	}
	run_until_failure(all);
	check(strstr(zero_last_error(), " are in different operations: "), "%s", zero_last_error());
	check(zero_last_error_rank() >= 0, "%s", zero_last_error());
	free(recv);
}

START_TEST(a_rank_differs)
{
	struct trial trial = {.program = rank_differs,
			      .world = _i % 2 ? 14 : 3,
			      .odd = _i % 2 ? 1 : 2,
			      .variant = _i / 2,
			      .seconds = HANG};

	run(&trial, -1);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("control_ends");

	tcase_add_loop_test(tcase, a_rank_is_killed, 0, 8);
	tcase_add_loop_test(tcase, a_rank_closes, 0, 12);
	tcase_add_loop_test(tcase, a_rank_never_joins, 0, 4);
	tcase_add_loop_test(tcase, a_late_rank_is_told, 0, 3);
	tcase_add_loop_test(tcase, a_thread_fails, 0, 4);
	tcase_add_loop_test(tcase, a_rank_differs, 0, 12);
	return run_all(tcase);
}

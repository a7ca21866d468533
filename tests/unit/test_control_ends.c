/* SPDX-License-Identifier: Apache-2.0 */
/* How communication ends: a rank is killed, closes its job, never joins, runs a different operation,
   or reports a failure. All other ranks learn of it, with one sentence that names the right rank. */
#include <pthread.h>

#include "control_ranks.h"

/* ---- lost ranks ------------------------------------------------------------------------------ */

/* Runs maxima until one fails. */
static void run_until_failure(struct zero_control_team *team)
{
	uint64_t value = 1;
	size_t which;

	while (!zero_control_begin_max(team, &value, 1) &&
	       !zero_control_finish_max(&team, 1, &which, &value))
		continue;
}

static void check_failure(struct zero_control *control, int rank, const char *sentence)
{
	struct zero_control_team *team = zero_control_world_team(control), *made;
	char text[1024] = "";
	uint64_t value = 0;
	int about = -1;

	check(!strncmp(last_error, sentence, strlen(sentence)), "%s", last_error);
	check(last_rank == rank, "rank %d: %s", last_rank, last_error);
	check(zero_control_has_failed(control, text, sizeof(text), &about),
	      "communication has not failed");
	check(about == rank && !strcmp(text, last_error), "rank %d: %s", about, text);
	while (!atomic_load(&shared->calls[own_rank]))
		sleep_for(0.001);
	check(atomic_load(&shared->calls[own_rank]) == 1, "on_failure was called %d times",
	      atomic_load(&shared->calls[own_rank]));
	zero_control_fail_all(control, ZERO_E_COMM, 0, "too late");
	check(zero_control_exchange(team, &value, &value, 0) == ZERO_E_COMM, "no error");
	check(!strcmp(text, last_error), "%s", last_error);
	check(zero_control_broadcast(team, &value, 8, 0) == ZERO_E_COMM, "no error");
	check(zero_control_begin_max(team, &value, 1) == ZERO_E_COMM, "no error");
	check(zero_control_team_new(control, &own_rank, 1, &made) == ZERO_E_COMM, "no error");
	check(!strcmp(text, last_error), "%s", last_error);
}

/* Forks a process that holds the rank's descriptors until all other ranks know of the rank's end. */
static void leave_child_process(struct zero_control *control, const struct trial *trial)
{
	if (fork())
		return;
	alarm(2 * HANG);
	check(zero_control_has_failed(control, NULL, 0, NULL), "a forked process can communicate");
	while (atomic_load(&shared->done) < trial->world - 1)
		sleep_for(0.001);
	zero_control_close(control);
	_exit(0);
}

static void rank_is_killed(struct zero_control *control, const struct trial *trial)
{
	uint64_t value = 0;
	char sentence[64];
	size_t which;

	if (trial->rank == trial->odd) {
		struct zero_control_team *all = zero_control_world_team(control);

		for (int i = 0; i < 20; i++)
			if (zero_control_begin_max(all, &value, 1) ||
			    zero_control_finish_max(&all, 1, &which, &value))
				check(false, "%s", last_error);
		if (trial->variant)
			leave_child_process(control, trial);
		kill(getpid(), SIGKILL);
	}
	run_until_failure(zero_control_world_team(control));
	atomic_fetch_add(&shared->done, 1);
	snprintf(sentence, sizeof(sentence), "rank %d (node ", trial->odd);
	check_failure(control, trial->odd, sentence);
	check(strstr(last_error, ") is gone: "), "%s", last_error);
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

/* One rank closes its job while the others continue. */
static void rank_closes(struct zero_control *control, const struct trial *trial)
{
	struct zero_control_team *rest, *all = zero_control_world_team(control);
	int ranks[RANKS], count = 0;
	size_t which, bytes = trial->world == 2 ? 12 << 20 : 1 << 20;
	uint64_t value = 1;
	char sentence[64], *data = calloc(1, bytes);

	for (int rank = 0; rank < trial->world; rank++)
		if (rank != trial->odd)
			ranks[count++] = rank;
	if (trial->rank == trial->odd)
		memset(data, 'x', bytes);
	else
		check(!zero_control_team_new(control, ranks, (size_t)count, &rest), "%s",
		      last_error);
	/* What it sent before it closed still arrives, at late ranks too. */
	while (trial->rank == (trial->odd + 1) % trial->world && !atomic_load(&shared->done))
		sleep_for(0.001);
	check(!zero_control_broadcast(all, data, bytes, trial->odd), "%s", last_error);
	if (trial->rank == trial->odd)
		atomic_store(&shared->done, 1);
	check(data[0] == 'x' && data[bytes - 1] == 'x', "other data");
	free(data);
	if (trial->rank == trial->odd)
		return;
	snprintf(sentence, sizeof(sentence), "rank %d has closed its job while rank ", trial->odd);
	if (trial->variant) {
		/* A late rank learns of it at once. */
		check(zero_control_begin_max(all, &value, 1) ||
			      zero_control_finish_max(&all, 1, &which, &value),
		      "no error");
	} else {
		check(zero_control_exchange(all, NULL, ranks, 0) == ZERO_E_COMM, "no error");
	}
	check(!strncmp(last_error, sentence, strlen(sentence)), "%s", last_error);
	check(last_rank == trial->odd, "%d", last_rank);
	check(zero_control_begin_max(all, &value, 1) == ZERO_E_COMM, "no error");
	check(!strncmp(last_error, sentence, strlen(sentence)), "%s", last_error);
	/* A team without that rank still works. */
	value = (uint64_t)trial->rank;
	check(!zero_control_begin_max(rest, &value, 1), "%s", last_error);
	check(!zero_control_finish_max(&rest, 1, &which, &value), "%s", last_error);
	check(value == (uint64_t)ranks[count - 1], "%d", (int)value);
	check(!zero_control_has_failed(control, NULL, 0, NULL), "communication has failed");
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

static void rank_never_joins(struct zero_control *control, const struct trial *trial)
{
	char one[64], within[64];

	if (trial->rank == trial->odd) {
		/* Its kernel accepts connections, but the rank never answers. */
		while (atomic_load(&shared->done) < trial->world - 1)
			sleep_for(0.01);
		return;
	}
	snprintf(one, sizeof(one), "rank %d ", trial->odd);
	snprintf(within, sizeof(within), "within %g s", trial->seconds);
	check(!strncmp(last_error, one, strlen(one)), "%s", last_error);
	check(strstr(last_error, within), "%s", last_error);
	check(strstr(last_error, "did not answer") || strstr(last_error, "did not come"), "%s",
	      last_error);
	check(last_rank == trial->odd, "rank %d: %s", last_rank, last_error);
	check(!zero_control_world_team(control), "there is a team");
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
	zero_control_fail_all(context, ZERO_E_COMM, 1, "the device of rank 1 is on fire");
	return NULL;
}

static void rank_fails(struct zero_control *control, const struct trial *trial)
{
	pthread_t threads[2];

	if (trial->rank == trial->odd) {
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, fail_thread, control);
		run_until_failure(zero_control_world_team(control));
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
	} else {
		run_until_failure(zero_control_world_team(control));
	}
	check_failure(control, 1, "the device of rank 1 is on fire");
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

static void rank_is_told(struct zero_control *control, const struct trial *trial)
{
	/* Rank 0 stays until it has come. */
	if (trial->rank == trial->odd)
		atomic_store(&shared->done, 2);
	while (!trial->rank && atomic_load(&shared->done) < 2)
		sleep_for(0.001);
	check(!zero_control_world_team(control), "there is a team");
	check(!strcmp(last_error, "the device of rank 1 is on fire"), "%s", last_error);
	check(last_rank == 1, "rank %d", last_rank);
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
static void rank_differs(struct zero_control *control, const struct trial *trial)
{
	struct zero_control_team *all = zero_control_world_team(control);
	bool odd = trial->rank == trial->odd;
	uint8_t *recv = malloc((size_t)trial->world * 24), send[24] = {0};
	uint64_t values[2] = {1, 2};
	size_t which;

	switch (trial->variant) {
	case 0:
		zero_control_exchange(all, send, recv, odd ? 24 : 16);
		break;
	case 1:
		if (odd)
			zero_control_broadcast(all, send, 8, trial->odd);
		else
			zero_control_exchange(all, send, recv, 8);
		break;
	case 2:
	case 5:
		if (odd == (trial->variant == 5))
			zero_control_exchange(all, send, recv, 8);
		else if (!zero_control_begin_max(all, values, 1))
			zero_control_finish_max(&all, 1, &which, values);
		break;
	case 3:
		if (!zero_control_begin_max(all, values, odd ? 2 : 1))
			zero_control_finish_max(&all, 1, &which, values);
		break;
	case 4:
		zero_control_broadcast(all, send, odd ? 8 : 24, 0);
		break;
	}
	run_until_failure(all);
	check(strstr(last_error, " are in different operations: "), "%s", last_error);
	check(last_rank >= 0, "%s", last_error);
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

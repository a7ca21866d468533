/* SPDX-License-Identifier: Apache-2.0 */
/* The watchdog: ranks are killed, stop, exit or are slow, and one rank prints one line about it, at
   the right moment. Its clock is the test's. */
#define LEAVES_FILES 1
#include "watch_ring.h"

/* How a rank is lost: what its process has become, the notice that it sent before, and the line. */
static const struct {
	int process, notice, value;
	double after;
	const char *here, *elsewhere;
} losses[] = {
	{SIGKILL, 0, 0, 0,
	 " was killed by SIGKILL, last seen (1.0 s before) in gather of group 'g'",
	 " was killed by SIGKILL, perhaps because memory ran out, or called _exit, last"},
	{SIGABRT, 0, 0, 0, " died of signal 6 (Aborted), ", " was killed by SIGKILL, perhaps "},
	{0, 0, 0, 0, " called _exit(3), ", " was killed by SIGKILL, perhaps "},
	{SIGSEGV, ZERO_RING_SIGNAL_NOTICE, SIGSEGV, 0, " died of signal 11 (Segmentation fault), ",
	 " died of signal 11 (Segmentation fault), "},
	{0, ZERO_RING_EXIT_NOTICE, 3, 1, " called exit(3) without zero_close, ",
	 " called exit(3) without zero_close, "},
	{SIGTERM, ZERO_RING_SIGNAL_NOTICE, SIGTERM, 2, " died of signal 15 (Terminated), ",
	 " died of signal 15 (Terminated), "},
};

START_TEST(one_line_names_a_lost_rank)
{
	static const int worlds[] = {2, 3, 4, 9, 30};
	struct trial trial = {.world = _i < 60 ? worlds[_i / 12] : MOST, .elsewhere = _i % 2};
	int i = _i % 12 / 2;
	/* Where both neighbours see it in one turn, the one that is asked may wait for the
	   victim. */
	double most = losses[i].after + (trial.world == 3 ? 1.1 : 0.1);

	trial.victim = rand() % trial.world;
	be_process(losses[i].process);
	begin(&trial);
	if (losses[i].notice)
		zero_ring_send_exit_notice(ranks[trial.victim].ring,
					   (enum zero_ring_frame_kind)losses[i].notice,
					   losses[i].value);
	end_process(&ranks[trial.victim]);
	expect(&trial, losses[i].after, most,
	       trial.elsewhere ? losses[i].elsewhere : losses[i].here);
}
END_TEST

static void stop(int rank, double seconds)
{
	ranks[rank].held_until = zero_seconds() + seconds;
}

START_TEST(a_stopped_rank_is_silent)
{
	static const int worlds[] = {2, 3, 9, 30};
	struct trial trial = {.world = worlds[_i % 4], .victim = 1, .elsewhere = _i >= 4};
	char words[64];
	pid_t child;

	trial.timeout = _i % 2 ? 1 : 5;
	snprintf(words, sizeof(words),
		 trial.elsewhere ? " has sent no heartbeat for %g s: it is stopped, or its node is"
				 : " is stopped (SIGSTOP) and has sent no heartbeat for %g s",
		 trial.timeout);
	be_process(SIGSTOP);
	child = stand_in;
	begin(&trial);
	stop(1, FOREVER);
	expect(&trial, trial.timeout - 1, trial.timeout + 1.3, words);
	/* A launcher's SIGTERM does not reach it. */
	ck_assert_int_eq(killed, trial.elsewhere ? 0 : child);
	if (trial.world == 2)
		return;
	/* The rank after it is stopped too, and cannot find it. */
	be_process(SIGSTOP);
	begin(&trial);
	stop(1, FOREVER);
	stop(2, FOREVER);
	trial.victim = trial.elsewhere ? 2 : 1;
	expect(&trial, trial.timeout - 1, trial.timeout + 3,
	       trial.elsewhere ? "; no reply from rank 1; ending"
			       : "; no reply from rank 2; ending");
}
END_TEST

/* The pid of a rank that has ended is another process's by now. */
START_TEST(a_stranger_is_not_killed)
{
	struct trial trial = {.world = 3, .victim = 1};

	be_process(SIGSTOP);
	begin(&trial);
	for (int rank = 0; rank < 3; rank++)
		ranks[rank].ring->all[1].start_time--;
	stop(1, FOREVER);
	expect(&trial, 4, 6, " has ended without notice");
	ck_assert_int_eq(killed, 0);
}
END_TEST

/* A process of this node that runs, but that gets no time, has that of a stalled operation. */
START_TEST(a_starved_rank_is_awaited)
{
	struct trial trial = {.world = 4, .victim = 1};

	be_process(SIGCONT);
	begin(&trial);
	stop(1, 200);
	ranks[0].activity.operation = 8;
	ranks[2].activity.operation = 9;
	pass(150);
	/* The sockets take some of the heartbeats. */
	ck_assert_uint_gt(ranks[0].ring->link[ZERO_NEXT].to->out_bytes, 10000);
	pass(60);
	for (int i = 0; i < 2; i++) {
		ck_assert_uint_eq(ranks[2 * i].ring->link[!i].to->out_bytes, 0);
		ck_assert_uint_eq(ranks[1].ring->link[i].activity.operation, (unsigned)(8 + i));
	}
	expect_nothing(&trial, 10, 3);
	be_process(SIGCONT);
	trial.victim = 1;
	trial.stall = 20;
	begin(&trial);
	for (int rank = 0; rank < 4; rank++)
		ranks[rank].activity.running = 0;
	stop(1, FOREVER);
	expect(&trial, 19, 20.3, " has sent no heartbeat for 20 s (its process is in state S)");
}
END_TEST

/* ---- no rank is lost ------------------------------------------------------------------------- */

START_TEST(all_are_suspended)
{
	struct trial trial = {.world = 6, .timeout = _i ? 1 : 5, .stall = 12, .elsewhere = true};

	begin(&trial);
	advance_clock(60);
	expect_nothing(&trial, 6, 3);
}
END_TEST

/* One is found silent, but resumes while the rank that found it waits for a reply. */
START_TEST(silent_ranks_resume)
{
	struct trial trial = {.world = 6, .elsewhere = true};

	begin(&trial);
	stop(1, 4.4);
	pass(2);
	stop(4, 3);
	expect_nothing(&trial, 20, 1);
}
END_TEST

/* Its network waits until the goodbye is on its way. */
static void close_rank(int rank)
{
	struct zero_net *net = ranks[rank].ring->net;

	ck_assert(zero_ring_close(ranks[rank].ring));
	ranks[rank].gone = true;
	for (struct zero_link *link = net->links; link; link = link->next)
		while (link->out_bytes) {
			take_turns();
			zero_link_flush(link);
		}
	zero_net_close(net);
	ranks[rank].ring = NULL;
}

/* Ranks that exit may still call zero_close, in functions that run at exit. */
START_TEST(ranks_close)
{
	struct trial trial = {.world = 5, .elsewhere = _i};

	begin(&trial);
	zero_ring_send_exit_notice(ranks[2].ring, ZERO_RING_EXIT_NOTICE, 0);
	pass(20);
	close_rank(2);
	ck_assert_str_eq(text, "");
	pass(20);
	ck_assert_str_eq(text, "");
	/* The rank after the next victim has closed, so that the rank before it finds it. */
	trial.victim = 1;
	end_process(&ranks[1]);
	expect(&trial, 1.5, 1.6, "no reply from rank 2; ending");
	begin(&trial);
	for (int rank = 0; rank < 5; rank++) {
		close_rank(rank);
		pass(rank);
	}
	ck_assert_str_eq(text, "");
	finish();
}
END_TEST

/* A launcher ends all ranks, within a moment that its signals take. */
START_TEST(the_launcher_ends_all)
{
	struct trial trial = {.world = 2 + _i, .victim = 1};

	if (_i % 2)
		be_process(SIGKILL);
	begin(&trial);
	if (_i % 2)
		end_process(&ranks[1]);
	for (int rank = 0; rank < trial.world; rank++)
		atomic_store(&ranks[rank].ring->terminating, true);
	pass(0.3);
	for (int rank = 0; rank < trial.world; rank++) {
		if (ranks[rank].gone)
			continue;
		/* One that is ended says which rank was lost before, in time. */
		ck_assert(atomic_load(&ranks[rank].ring->may_end) == _i % 2);
		zero_ring_send_exit_notice(ranks[rank].ring, ZERO_RING_SIGNAL_NOTICE, SIGTERM);
		end_process(&ranks[rank]);
		pass(0.02);
	}
	ck_assert_int_eq(count_lines(), _i % 2);
	finish();
}
END_TEST

/* Each rank waits in one of two operations. `more`: the second has as many ranks besides. */
static void wait_in_two_operations(const struct trial *trial, unsigned more)
{
	for (int rank = 0; rank < trial->world; rank++) {
		ranks[rank].activity.waiting = 1;
		ranks[rank].activity.team = rank % 2;
		ranks[rank].activity.ranks =
			(unsigned)(rank % 2 ? trial->world / 2 : trial->world) + more * (rank % 2);
		sprintf(ranks[rank].activity.label, "gather %d", rank % 2);
		ranks[rank].activity.sequence = 5;
		ranks[rank].activity.teams = 0;
		ranks[rank].began_at = zero_seconds();
	}
}

/* Odd ranks have done that operation of all ranks, or an earlier one, or may have. */
static void pass_the_first(const struct trial *trial, uint64_t sequence, uint32_t teams)
{
	for (int rank = 1; rank < trial->world; rank += 2) {
		ranks[rank].activity.teams = teams;
		for (uint32_t i = 0; i < ZERO_TEAMS_REPORTED; i++)
			ranks[rank].activity.sequences[i] = (struct zero_team_sequence){
				.team = i + (teams > ZERO_TEAMS_REPORTED), .sequence = sequence};
	}
}

/* While one rank computes, or one operation has all its ranks, they may go on. So may they while
   the data of an operation still comes to some ranks that others have done. Once none of these is
   so, each is told within 10 s. */
START_TEST(deadlocks_are_found)
{
	struct trial trial = {.world = 2 + _i, .victim = rand() % (2 + _i)};
	char words[100];

	begin(&trial);
	wait_in_two_operations(&trial, 1);
	ranks[trial.victim].activity.waiting = 0;
	pass(20);
	wait_in_two_operations(&trial, 0);
	pass(20);
	wait_in_two_operations(&trial, 1);
	pass_the_first(&trial, 5, 1);
	pass(20);
	pass_the_first(&trial, 4, ZERO_TEAMS_REPORTED + 1);
	pass(20);
	for (int rank = 0; rank < world; rank++)
		ck_assert_str_eq(ranks[rank].deadlock, "");
	wait_in_two_operations(&trial, 1);
	pass_the_first(&trial, 4, 1);
	pass(10);
	snprintf(words, sizeof(words),
		 "rank 0 began 'gather 0' with %d ranks while rank 1 began 'gather 1' with %d",
		 world, world / 2 + 1);
	for (int rank = 0; rank < world; rank++)
		ck_assert_msg(strstr(ranks[rank].deadlock, words) != NULL, "rank %d of %d: %s",
			      rank, world, ranks[rank].deadlock);
	ck_assert_str_eq(text, "");
	finish();
}
END_TEST

/* ---- what the line says ---------------------------------------------------------------------- */

/* The lines after the first. */
static const char *places(void)
{
	const char *end = strchr(text, '\n');

	return end ? end + 1 : "";
}

START_TEST(a_rank_keeps_others_waiting)
{
	static const struct {
		int world, victim;
		const char *waiting, *behind;
	} table[] = {
		{2, 0, "rank 1", "rank 0"},
		{4, 2, "ranks 0 to 1, 3", "rank 2"},
		{5, 0, "ranks 1 to 4", "rank 0"},
		{60, 59, "ranks 0 to 58", "rank 59"},
	};
	struct trial trial = {.world = table[_i].world, .victim = table[_i].victim, .stall = 50};
	char line[200];

	begin(&trial);
	ranks[trial.victim].activity.running = 0;
	ranks[trial.victim].began_at += 2;
	expect(&trial, 47, 48.3,
	       " keeps the others waiting for more than 50 s (ZERO_STALL_SECONDS); ");
	snprintf(line, sizeof(line), "zero:   %s: in gather of group 'g' (operation 7) for 5",
		 table[_i].waiting);
	ck_assert_msg(strstr(places(), line) != NULL, "no '%s' in: %s", line, text);
	snprintf(line, sizeof(line), "zero:   %s: after gather of group 'g' (operation 7), done 4",
		 table[_i].behind);
	ck_assert_msg(strstr(places(), line) != NULL, "no '%s' in: %s", line, text);
}
END_TEST

/* All wait, in as many places as ranks; two share the first. */
START_TEST(ranks_wait_for_each_other)
{
	struct trial trial = {.world = 13, .stall = 20};
	char want[2000] =
		"zero: ranks wait for each other for more than 20 s (ZERO_STALL_SECONDS); "
		"ending the job\n";

	begin(&trial);
	for (int rank = 0; rank < 13; rank++) {
		ranks[rank].activity.operation = rank == 12 ? 7 : 7 + (unsigned)rank;
		ranks[rank].began_at -= 30 + rank;
	}
	strcpy(ranks[1].activity.call, "zero_load");
	pass_until_line(30);
	for (int rank = 0; rank < 8; rank++)
		snprintf(want + strlen(want), sizeof(want) - strlen(want),
			 "zero:   rank%s%d%s: in %sgather of group 'g' (operation %d) for %d.0 s\n",
			 rank ? " " : "s ", rank, rank ? "" : ", 12",
			 rank == 1 ? "zero_load, in " : "", 7 + rank, rank ? 33 + rank : 45);
	strcat(want, "zero:   further ranks are in other places\n");
	ck_assert_str_eq(text, want);
	finish();
}
END_TEST

/* All ranks return the fault, and print nothing. */
START_TEST(faults_are_returned)
{
	struct trial trial = {.world = 3 + 5 * _i, .victim = _i, .returns = true};

	be_process(SIGKILL);
	begin(&trial);
	end_process(&ranks[_i]);
	pass(1.1);
	check_faults(&trial);
	pass(20);
	ck_assert_str_eq(text, "");
	for (int rank = 0; rank < trial.world; rank++)
		ck_assert(ranks[rank].gone == (rank == _i));
	finish();
}
END_TEST

/* Ranks get no time for moments that are too short to be taken for a loss. */
START_TEST(random_rings)
{
	struct trial trial = {.world = 2 + rand() % 12, .timeout = 2 + rand() % 4};

	trial.victim = rand() % trial.world;
	be_process(rand() % 2 ? SIGKILL : SIGSEGV);
	begin(&trial);
	for (int i = 0; i < 20; i++) {
		stop(rand() % trial.world, (rand() % 900) * 1e-3);
		pass((rand() % 300) * 1e-3);
	}
	ck_assert_str_eq(text, "");
	end_process(&ranks[trial.victim]);
	expect(&trial, 0, 2, " ");
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("ring");
	struct timespec now;

	srand((unsigned)seed_of_test());
	clock_gettime(CLOCK_MONOTONIC, &now);
	watch_time = shared_memory(sizeof(*watch_time));
	atomic_store(watch_time, (uint64_t)now.tv_sec * 1000000000u);
	zero_ring_record_default_signals();
	tcase_add_loop_test(tcase, one_line_names_a_lost_rank, 0, 61);
	tcase_add_loop_test(tcase, a_stopped_rank_is_silent, 0, 8);
	tcase_add_test(tcase, a_stranger_is_not_killed);
	tcase_add_test(tcase, a_starved_rank_is_awaited);
	tcase_add_loop_test(tcase, all_are_suspended, 0, 2);
	tcase_add_test(tcase, silent_ranks_resume);
	tcase_add_loop_test(tcase, ranks_close, 0, 2);
	tcase_add_loop_test(tcase, the_launcher_ends_all, 0, 8);
	tcase_add_loop_test(tcase, deadlocks_are_found, 0, 12);
	tcase_add_loop_test(tcase, a_rank_keeps_others_waiting, 0, 4);
	tcase_add_test(tcase, ranks_wait_for_each_other);
	tcase_add_loop_test(tcase, faults_are_returned, 0, 3);
	tcase_add_loop_test(tcase, random_rings, 0, 20);
	add_process_tests(tcase);
	return run_cases(tcase, NULL);
}

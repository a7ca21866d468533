/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank tells of itself while its device is behind: random work of some teams. */
#include "backend/comm.h"
#include "core/clock.h"
#include "unit.h"

enum { TEAMS = 5, STEPS = 20000 };

static struct zero_progress progress;
static struct zero_comm comms[TEAMS];
static uint32_t team_of[STEPS]; /* of each submission, from 1 */
static uint64_t sequence_of[STEPS], seed = 1;

static void begin(uint64_t number, unsigned team)
{
	char label[20];

	sprintf(label, "of team %u", team);
	comms[team].team = team;
	comms[team].place.world = (int)team + 2;
	zero_progress_begin(&progress, &comms[team], label);
	team_of[number] = team;
	sequence_of[number] = comms[team].submissions;
}

static struct zero_recent_submission recent(uint32_t reached)
{
	struct zero_recent_submission recent;

	must(zero_progress_recent(&progress, reached, &recent), "nothing was begun");
	return recent;
}

/* How far a team is among the first submissions. */
static uint64_t done_of(uint64_t number, uint32_t team)
{
	while (number && team_of[number] != team)
		number--;
	return number ? sequence_of[number] : 0;
}

/* They go beyond 2^32, and leave out 0. */
static uint32_t mark_of(uint64_t number)
{
	const uint32_t before = UINT32_MAX - STEPS / 2;
	uint32_t mark = before + (uint32_t)number;

	return mark < before ? mark + 1 : mark;
}

/* The device has done all up to `done`, of `begun`. */
static void check_tells(uint64_t done, uint64_t begun)
{
	uint64_t next = done < begun ? done + 1 : begun;
	struct zero_recent_submission told = recent(mark_of(done));

	must(told.what.number == next && told.what.team == team_of[next] &&
		     told.what.sequence == sequence_of[next] &&
		     told.what.ranks == team_of[next] + 2,
	     "number %lu of team %u, not %lu", (unsigned long)told.what.number, told.what.team,
	     (unsigned long)next);
	must(told.waiting == (done < begun) && (told.what.done <= 0) == (done < begun),
	     "done %lu of %lu: waiting %d", (unsigned long)done, (unsigned long)begun,
	     told.waiting);
	for (unsigned i = 0; i < told.teams; i++)
		must(told.sequences[i].sequence == done_of(done, told.sequences[i].team),
		     "sequence %lu of team %u", (unsigned long)told.sequences[i].sequence,
		     told.sequences[i].team);
}

START_TEST(tells_what_the_device_has_not_done)
{
	uint64_t done = 0;

	zero_progress_init(&progress);
	zero_progress_end(&progress, 0, mark_of(0));
	for (uint64_t number = 1; number < STEPS; number++) {
		begin(number, (unsigned)(next_random(&seed) % TEAMS));
		zero_progress_end(&progress, mark_of(number), mark_of(done));
		if (number - done == ZERO_LAUNCHED || next_random(&seed) % 40 == 0)
			done += next_random(&seed) % (number - done) + 1;
		if (next_random(&seed) % 8 == 0)
			check_tells(done, number);
	}
	check_tells(STEPS - 1, STEPS - 1);
	zero_progress_destroy(&progress);
}
END_TEST

/* It counts from when it was first seen, and once the next one is first, from then. */
START_TEST(counts_from_when_it_was_next)
{
	double since, seen;

	zero_progress_init(&progress);
	for (uint32_t number = 1; number <= 2; number++) {
		begin(number, 0);
		zero_progress_end(&progress, number, 0);
	}
	seen = zero_seconds();
	since = recent(0).what.begun;
	ck_assert(since >= seen && recent(0).what.begun == since);
	seen = zero_seconds();
	ck_assert(recent(1).what.begun >= seen);
	zero_progress_destroy(&progress);
}
END_TEST

/* All time up to the last submission is its own or was waited for. */
START_TEST(adds_up_time)
{
	struct zero_spent spent;
	double first = 0, most, own = 0, waited = 0;

	progress = (struct zero_progress){.last = {.number = 0}};
	zero_progress_init(&progress);
	for (uint64_t number = 1; number <= 100; number++) {
		double done = progress.last.done;

		begin(number, 0);
		if (number == 1)
			first = progress.last.begun;
		else
			own += progress.last.begun - done;
		zero_progress_end(&progress, 0, 0);
		if (number < 100)
			waited += progress.last.done - progress.last.begun;
	}
	most = progress.last.begun - first;
	spent = zero_progress_spent(&progress);
	must(spent.own == own && spent.waited == waited, "%g s and %g s, not %g s and %g s",
	     spent.own, spent.waited, own, waited);
	must(own >= 0 && waited >= 0 && most > 0, "%g s, %g s of %g s", own, waited, most);
	must(own + waited <= most * 1.000001 && own + waited >= most * 0.999999,
	     "%g s and %g s are not %g s", own, waited, most);
	zero_progress_destroy(&progress);
}
END_TEST

/* What is beyond the room is not told, and until it is done the rank does not count as waiting. */
START_TEST(more_than_there_is_room_for)
{
	const uint32_t most = ZERO_LAUNCHED + 10;

	zero_progress_init(&progress);
	for (uint32_t number = 1; number <= most; number++) {
		begin(number, number % 2);
		zero_progress_end(&progress, number, 0);
	}
	ck_assert_uint_eq(recent(0).what.number, 1);
	ck_assert_uint_eq(recent(ZERO_LAUNCHED - 1).what.number, ZERO_LAUNCHED);
	begin(most + 1, 0);
	atomic_store(&progress.agreeing, true);
	ck_assert(!recent(ZERO_LAUNCHED).waiting && !recent(most - 1).waiting);
	ck_assert(recent(most).waiting);
	zero_progress_destroy(&progress);
}
END_TEST

/* Of a rank in more teams than are told it is said that there are more. */
START_TEST(many_teams)
{
	struct zero_comm many[ZERO_TEAMS_REPORTED + 3] = {{NULL}};

	zero_progress_init(&progress);
	for (uint32_t team = 0; team < COUNT_OF(many); team++) {
		many[team].team = team;
		zero_progress_begin(&progress, &many[team], "x");
		ck_assert_uint_eq(recent(0).teams,
				  team < ZERO_TEAMS_REPORTED ? team + 1 : ZERO_TEAMS_REPORTED + 1);
		ck_assert_uint_eq(recent(0).sequences[team % ZERO_TEAMS_REPORTED].sequence,
				  team >= ZERO_TEAMS_REPORTED);
	}
	zero_progress_destroy(&progress);
}
END_TEST

int main(void)
{
	TCase *tcase = tcase_create("progress");

	tcase_add_test(tcase, tells_what_the_device_has_not_done);
	tcase_add_test(tcase, counts_from_when_it_was_next);
	tcase_add_test(tcase, more_than_there_is_room_for);
	tcase_add_test(tcase, many_teams);
	tcase_add_test(tcase, adds_up_time);
	return run_cases(tcase, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this rank is doing, for the watchdog. On the host that is the submission which was begun
 * last. A device may be behind by many: where ranks have teams it says by a number how far it is,
 * so that ranks whose devices wait for each other are found.
 */
#include <stdatomic.h>
#include <string.h>

#include "comm.h"
#include "core/clock.h"

void zero_progress_init(struct zero_progress *progress)
{
	pthread_mutex_init(&progress->lock, NULL);
}

void zero_progress_destroy(struct zero_progress *progress)
{
	pthread_mutex_destroy(&progress->lock);
}

static void count_submission(struct zero_progress *progress, uint32_t team, uint64_t sequence)
{
	size_t i = 0;

	while (i < progress->teams && i < ZERO_TEAMS_REPORTED &&
	       progress->sequences[i].team != team)
		i++;
	if (i < ZERO_TEAMS_REPORTED)
		progress->sequences[i] =
			(struct zero_team_sequence){.team = team, .sequence = sequence};
	/* With one that has no room there are more than are told. */
	if (i >= progress->teams)
		progress->teams = i + 1;
}

void zero_progress_begin(struct zero_progress *progress, struct zero_comm *comm, const char *label)
{
	struct zero_begun *last = &progress->last;
	double now = zero_seconds();

	pthread_mutex_lock(&progress->lock);
	if (last->number) {
		progress->spent.waited += last->done - last->begun;
		progress->spent.own += now - last->done;
	}
	*last = (struct zero_begun){.number = last->number + 1,
				    .begun = now,
				    .team = comm->team,
				    .ranks = (uint32_t)comm->place.world,
				    .sequence = ++comm->submissions};
	strncpy(last->label, label, sizeof(last->label) - 1);
	count_submission(progress, last->team, last->sequence);
	pthread_mutex_unlock(&progress->lock);
}

/* Numbers of the device begin again after 2^32. */
static bool has_reached(uint32_t reached, uint32_t mark)
{
	return (int32_t)(reached - mark) >= 0;
}

static struct zero_launched *first_of(struct zero_progress *progress)
{
	return &progress->launched[progress->first % ZERO_LAUNCHED];
}

static void drop_reached(struct zero_progress *progress, uint32_t reached)
{
	while (progress->first < progress->launches &&
	       has_reached(reached, first_of(progress)->mark))
		progress->first++;
	if (has_reached(reached, progress->unreported))
		progress->unreported = reached;
}

void zero_progress_end(struct zero_progress *progress, uint32_t mark, uint32_t reached)
{
	struct zero_launched *launched;

	pthread_mutex_lock(&progress->lock);
	progress->last.done = zero_seconds();
	drop_reached(progress, reached);
	if (mark && progress->launches - progress->first == ZERO_LAUNCHED) {
		progress->unreported = mark;
	} else if (mark) {
		launched = &progress->launched[progress->launches++ % ZERO_LAUNCHED];
		*launched = (struct zero_launched){.mark = mark, .what = progress->last};
	}
	pthread_mutex_unlock(&progress->lock);
}

struct zero_spent zero_progress_spent(struct zero_progress *progress)
{
	struct zero_spent spent;

	pthread_mutex_lock(&progress->lock);
	spent = progress->spent;
	pthread_mutex_unlock(&progress->lock);
	return spent;
}

/* A submission that the device has not done counts from when it was first seen to be the next one:
   that is when all before it were done. */
static void report_launched(struct zero_progress *progress, struct zero_recent_submission *recent)
{
	struct zero_launched *first = first_of(progress);

	if (first->since <= 0)
		first->since = zero_seconds();
	recent->what = first->what;
	recent->what.begun = first->since;
	recent->what.done = 0;
	/* Whatever the host does: the device begins nothing else before it. */
	recent->waiting = true;
}

static void report_host(const struct zero_progress *progress, uint32_t reached,
			struct zero_recent_submission *recent)
{
	uint64_t device_wait = atomic_load(&progress->device_wait);

	recent->what = progress->last;
	recent->waiting = recent->what.done <= 0 && atomic_load(&progress->agreeing) &&
			  has_reached(reached, progress->unreported);
	if (device_wait) {
		recent->what.begun = 1e-9 * (double)device_wait;
		recent->what.done = 0;
	}
}

/* How far this rank is in each team, in the host and on the device. */
static void report_sequences(const struct zero_progress *progress,
			     struct zero_recent_submission *recent)
{
	recent->teams = (uint32_t)progress->teams;
	memcpy(recent->sequences, progress->sequences, sizeof(recent->sequences));
	for (size_t i = 0; i < progress->teams && i < ZERO_TEAMS_REPORTED; i++) {
		struct zero_team_sequence *done = &recent->sequences[i];

		if (progress->last.done <= 0 && progress->last.team == done->team)
			done->sequence = progress->last.sequence - 1;
		for (uint64_t l = progress->first; l < progress->launches; l++) {
			const struct zero_begun *what = &progress->launched[l % ZERO_LAUNCHED].what;

			if (what->team == done->team && what->sequence <= done->sequence)
				done->sequence = what->sequence - 1;
		}
	}
}

bool zero_progress_recent(struct zero_progress *progress, uint32_t reached,
			  struct zero_recent_submission *recent)
{
	bool any;

	pthread_mutex_lock(&progress->lock);
	drop_reached(progress, reached);
	any = progress->last.number;
	if (progress->first < progress->launches)
		report_launched(progress, recent);
	else
		report_host(progress, reached, recent);
	report_sequences(progress, recent);
	pthread_mutex_unlock(&progress->lock);
	return any;
}

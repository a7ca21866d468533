/* SPDX-License-Identifier: Apache-2.0 */
/* A job's ring: how its ranks get to know of each other, what they say of themselves, and how the
   job is ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "job/internal.h"
#include "core/clock.h"
#include "watch/ring.h"

enum { STATUS = 1 };

static void tell_doing(void *context, struct zero_doing *doing)
{
	zero_job *job = context;
	const char *call = atomic_load(&job->current_call);
	struct zero_recent_submission recent;

	memset(doing, 0, sizeof(*doing));
	if (call)
		snprintf(doing->call, sizeof(doing->call), "%s", call);
	if (!job->ops->recent(job->backend, &recent, 1))
		return;
	doing->number = recent.number;
	doing->under_way = recent.done <= 0;
	doing->seconds = (float)(zero_seconds() - (doing->under_way ? recent.begun : recent.done));
	snprintf(doing->label, sizeof(doing->label), "%s", recent.label);
}

static void end_job(void *context, const char *text)
{
	zero_job *job = context;

	job->ops->abort(job->backend, STATUS, text);
}

static zero_status join(zero_job *job, const struct zero_ring_rank *all)
{
	const struct zero_value *value = job->settings.value;
	struct zero_ring_config config = {
		.rank = job->place.rank,
		.world = job->place.world,
		.seconds = (double)value[ZERO_OPT_WATCH_SECONDS].number,
		.stall = (double)value[ZERO_OPT_STALL_SECONDS].number,
		.open_seconds = (double)value[ZERO_OPT_OPEN_SECONDS].number,
		.aborts = value[ZERO_OPT_ON_FAULT].number == ZERO_ON_FAULT_ABORT,
		.doing = tell_doing,
		.abort = end_job,
		.context = job,
		.out = STDERR_FILENO,
	};
	char why[1024];

	return zero_ring_join(job->ring, &config, all, why, sizeof(why))
		       ? ZERO_OK
		       : zero_fail(ZERO_E_COMM, "%s", why);
}

zero_status zero_job_watch(zero_job *job)
{
	struct zero_ring_rank mine = {.process = 0}, *all;
	struct zero_op op = {.kind = ZERO_OP_EXCHANGE, .send = &mine, .count = sizeof(mine)};
	size_t world = (size_t)job->place.world;
	zero_status status = ZERO_OK;
	char why[256];

	if (world == 1 || !job->settings.value[ZERO_OPT_WATCH_SECONDS].number)
		return ZERO_OK;
	all = calloc(world, sizeof(*all));
	job->ring = zero_ring_new(why, sizeof(why));
	if (!job->ring)
		status = zero_fail(ZERO_E_COMM, "%s", why);
	else if (!all)
		status = zero_fail(ZERO_E_MEMORY, "no memory for a ring of %zu ranks", world);
	else
		zero_ring_describe(job->ring, &mine);
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, "watch");
	/* All have come; what follows has a time of its own, and a better sentence. */
	zero_opening_again(job->opening);
	if (!status)
		status = zero_submit_wait(&job->all, join(job, all), NULL, 0,
					  "the ring of the watch");
	free(all);
	if (!status)
		zero_ring_begin(job->ring);
	return status;
}

bool zero_job_unwatch(zero_job *job)
{
	bool closed = zero_ring_close(job->ring);

	job->ring = NULL;
	return closed;
}

zero_status zero_job_check_watch(zero_job *job)
{
	char text[512];
	int rank;

	if (job->settings.value[ZERO_OPT_ON_FAULT].number == ZERO_ON_FAULT_ABORT)
		return ZERO_OK;
	/* Ranks with GPUs are told by their own connections, which end all that waits, too. */
	if (!job->ops->host_memory || !zero_ring_fault(job->ring, text, sizeof(text), &rank))
		return ZERO_OK;
	return zero_fail_on(rank, ZERO_E_COMM, text);
}

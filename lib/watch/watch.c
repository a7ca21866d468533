/* SPDX-License-Identifier: Apache-2.0 */
/* Connects the watchdog to a job: exchanges the addresses of its ranks, reports what this rank is
   doing, and ends the job when a rank is lost. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "watch.h"
#include "watch_internal.h"

enum { EXIT_STATUS = 1 }; /* of a job that lost a rank */

#define LONGEST_JOIN 20.0 /* seconds: all ranks have come to zero_open before */

static void get_activity(void *context, struct zero_activity *activity)
{
	zero_job *job = context;
	const char *call = atomic_load(&job->current_call);
	const char *waits_in = atomic_load(&job->waits_in);
	struct zero_recent_submission recent;

	memset(activity, 0, sizeof(*activity));
	if (call)
		snprintf(activity->call, sizeof(activity->call), "%s", call);
	if (waits_in) {
		snprintf(activity->call, sizeof(activity->call), "%s", waits_in);
		activity->waits = (float)(zero_seconds() - atomic_load(&job->waits_since));
	} else if (!call && job->ops->watch_only) {
		snprintf(activity->call, sizeof(activity->call), "the program's own code");
	}
	if (!zero_queue_recent(job->queue, &recent) ||
	    (job->ops->watch_only && recent.what.done > 0))
		return;
	activity->operation = recent.what.number;
	activity->running = recent.what.done <= 0;
	activity->seconds = (float)(zero_seconds() -
				    (activity->running ? recent.what.begun : recent.what.done));
	activity->waiting = recent.waiting;
	activity->team = recent.what.team;
	activity->ranks = recent.what.ranks;
	activity->sequence = recent.what.sequence;
	activity->teams = recent.teams;
	memcpy(activity->sequences, recent.sequences, sizeof(activity->sequences));
	snprintf(activity->label, sizeof(activity->label), "%s", recent.what.label);
}

static void end_deadlock(void *context, int rank, const char *message)
{
	zero_job *job = context;

	if (job->comm->net_team)
		zero_net_ops.fail_all(job->net, ZERO_E_ORDER, rank, message);
	else
		zero_agree_end_deadlock(job->comm, rank, message);
}

static void abort_job(void *context, const char *message)
{
	zero_job *job = context;

	job->ops->abort(job->backend, EXIT_STATUS, message);
}

static bool wants_end(void *context)
{
	zero_job *job = context;

	return atomic_load(&job->on_loss) != NULL;
}

static void before_end(void *context)
{
	zero_job *job = context;
	zero_loss_callback call = atomic_exchange(&job->on_loss, NULL);

	if (call)
		call(job->on_loss_context);
}

static zero_status address_of(void *context, int rank, struct zero_address *address)
{
	*address = ((const struct zero_ring_peer *)context)[rank].address;
	return ZERO_OK;
}

static void node_of(void *context, int rank, char *text, size_t size)
{
	snprintf(text, size, "%s", ((const struct zero_ring_peer *)context)[rank].node_name);
}

/* All ranks find the same, so that none waits for a rank that cannot be reached. Of two neighbours
   the higher rank connects to the lower one. */
static zero_status check_addresses(const struct zero_ring_peer *all, int world)
{
	for (int rank = 0; rank < world; rank++) {
		int lower = rank + 1 < world ? rank : 0,
		    higher = rank + 1 < world ? rank + 1 : rank;
		const struct zero_address *at = &all[lower].address;

		if (!at->count && strcmp(at->node, all[higher].address.node) != 0)
			return zero_fail(ZERO_E_COMM,
					 "rank %d (node %.64s) has no address on a network that "
					 "NCCL_SOCKET_IFNAME allows",
					 lower, at->node);
	}
	return ZERO_OK;
}

/* Where the backend has not joined the network. It ends well before zero_open times out, since its
   error says which rank is missing. */
static zero_status join_network(zero_job *job, struct zero_ring_peer *all)
{
	double half = (double)job->settings.value[ZERO_OPT_OPEN_SECONDS].number / 2;
	struct zero_net_config config = {.rank = job->place.rank,
					 .world = job->place.world,
					 .seconds = half < LONGEST_JOIN ? half : LONGEST_JOIN,
					 .address = address_of,
					 .node = node_of,
					 .context = all};
	zero_status status;

	if (zero_net_joined(job->net))
		return ZERO_OK;
	status = check_addresses(all, job->place.world);
	return status ? status : zero_net_ops.join(job->net, &config);
}

static zero_status join(zero_job *job, struct zero_ring_peer *all)
{
	const struct zero_value *value = job->settings.value;
	struct zero_ring_config config = {
		.rank = job->place.rank,
		.world = job->place.world,
		.heartbeat_timeout = (double)value[ZERO_OPT_WATCH_SECONDS].number,
		.stall_timeout = (double)value[ZERO_OPT_STALL_SECONDS].number,
		.aborts = value[ZERO_OPT_ON_FAULT].number == ZERO_ON_FAULT_ABORT,
		.watch_only = job->ops->watch_only,
		.end_timeout = (double)value[ZERO_OPT_END_SECONDS].number,
		.get_activity = get_activity,
		.before_end = before_end,
		.wants_end = wants_end,
		.end_deadlock = end_deadlock,
		.abort_job = abort_job,
		.context = job,
		.out_fd = STDERR_FILENO,
	};
	zero_status status = join_network(job, all);

	if (!status)
		status = zero_ring_join(job->ring, &config, all);
	if (status)
		return zero_fail(ZERO_E_COMM,
				 "the watchdog is not connected (ZERO_WATCH_SECONDS=0 turns it "
				 "off): %s",
				 zero_last_error());
	return ZERO_OK;
}

zero_status zero_watch_start(zero_job *job)
{
	struct zero_ring_peer mine = {.pid = 0}, *all;
	struct zero_op op = {.kind = ZERO_OP_ALLGATHER_BYTES, .send = &mine, .count = sizeof(mine)};
	size_t world = (size_t)job->place.world;
	zero_status status = ZERO_OK;

	if (world == 1 || !job->settings.value[ZERO_OPT_WATCH_SECONDS].number)
		return ZERO_OK;
	all = calloc(world, sizeof(*all));
	job->ring = zero_ring_new(job->net);
	if (!job->ring || !all)
		status =
			zero_fail(ZERO_E_MEMORY, "the watchdog has no memory for %zu ranks", world);
	else
		zero_ring_describe(job->ring, &mine);
	if (!status && !zero_net_joined(job->net))
		status = zero_net_ops.listen(job->net, &mine.address);
	op.recv = all;
	status = zero_submit_wait(&job->all, status, &op, 1, ZERO_WORK_OTHER, "watch");
	/* All ranks have come. Joining has a timeout of its own, and an error that says more. */
	zero_open_timeout_restart(job->open_timeout);
	if (!status)
		status = zero_submit_wait(&job->all, join(job, all), NULL, 0, ZERO_WORK_OTHER,
					  "connecting the watchdog");
	free(all);
	if (!status)
		zero_ring_start_watching(job->ring);
	return status;
}

/* ---- what a program says of itself ----------------------------------------------------------- */

void zero_on_loss(zero_job *job, zero_loss_callback call, void *context)
{
	atomic_store(&job->on_loss, NULL);
	job->on_loss_context = context;
	atomic_store(&job->on_loss, call);
}

void zero_set_wait_label(zero_job *job, const char *what)
{
	atomic_store(&job->waits_since, zero_seconds());
	atomic_store(&job->waits_in, what);
}

zero_status zero_finish(zero_job *job)
{
	job->finished = true;
	zero_ring_set_ending(job->ring, false);
	/* What others have asked exit to call until now may hang. */
	zero_ring_tell_exit_first();
	/* Not at exit, where threads of the program may no longer run: it would give them time. */
	if (job->ops->watch_only)
		job->ops->finalise();
	return ZERO_OK;
}

/* ---- checks, and the end --------------------------------------------------------------------- */

/* False: a rank was lost, and the threads that end the job still use it. */
static bool close_ring(zero_job *job)
{
	char text[512];
	bool closed;
	int rank;

	if (zero_ring_lost(job->ring, text, sizeof(text), &rank))
		zero_job_set_lost(rank, text);
	closed = zero_ring_close(job->ring);
	job->ring = NULL;
	return closed;
}

/* Under on_fault=return, where nothing else reports a lost rank. */
static zero_status check_ring(zero_job *job)
{
	char text[512];
	int rank;

	if (job->settings.value[ZERO_OPT_ON_FAULT].number == ZERO_ON_FAULT_ABORT)
		return ZERO_OK;
	/* A backend for GPUs finds lost ranks by its own connections, and fails what waits. */
	if (!job->ops->host_memory || !zero_ring_fault(job->ring, text, sizeof(text), &rank))
		return ZERO_OK;
	return zero_fail_on(rank, ZERO_E_COMM, text);
}

static zero_status check_peers(zero_job *job)
{
	return job->ring ? check_ring(job) : ZERO_OK;
}

const struct zero_hooks zero_watch_hooks = {.check_peers = check_peers, .close = close_ring};

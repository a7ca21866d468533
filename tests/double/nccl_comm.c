/* SPDX-License-Identifier: Apache-2.0 */
/* Creation, abort, finalization and destruction of communicators. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nccl.h"

/* Destroyed communicators stay allocated, so that a later use of them is detected. */
static struct {
	pthread_mutex_t mutex;
	struct ncclComm *alive, *dead;
} comms = {.mutex = PTHREAD_MUTEX_INITIALIZER};

struct ncclComm *comm_new(int rank, int world)
{
	struct ncclComm *comm = calloc(1, sizeof *comm);

	if (!comm)
		die("no memory");
	comm->rank = rank;
	comm->world = world;
	comm->blocking = true;
	comm->references = 1;
	comm->sent = calloc((size_t)world, sizeof *comm->sent);
	comm->received = calloc((size_t)world, sizeof *comm->received);
	pthread_mutex_init(&comm->mutex, NULL);
	pthread_cond_init(&comm->changed, NULL);
	pthread_mutex_lock(&comms.mutex);
	comm->next = comms.alive;
	comms.alive = comm;
	pthread_mutex_unlock(&comms.mutex);
	return comm;
}

void comm_get(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->mutex);
	comm->references++;
	pthread_mutex_unlock(&comm->mutex);
}

void comm_put(struct ncclComm *comm)
{
	bool last;

	pthread_mutex_lock(&comm->mutex);
	last = --comm->references == 0;
	pthread_mutex_unlock(&comm->mutex);
	if (!last)
		return;
	segment_detach(comm);
	free(comm->sent);
	free(comm->received);
	comm->sent = comm->received = NULL;
}

void comm_busy(struct ncclComm *comm)
{
	comm_get(comm);
	pthread_mutex_lock(&comm->mutex);
	comm->busy++;
	pthread_mutex_unlock(&comm->mutex);
}

void comm_idle(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->mutex);
	comm->busy--;
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->mutex);
	comm_put(comm);
}

/* Moves it from the live ones to the destroyed ones. */
static void bury(struct ncclComm *comm)
{
	struct ncclComm **at;

	pthread_mutex_lock(&comms.mutex);
	for (at = &comms.alive; *at && *at != comm; at = &(*at)->next)
		;
	if (*at) {
		*at = comm->next;
		comm->next = comms.dead;
		comms.dead = comm;
	}
	pthread_mutex_unlock(&comms.mutex);
}

unsigned comms_left(void)
{
	unsigned count = 0;

	pthread_mutex_lock(&comms.mutex);
	for (struct ncclComm *comm = comms.alive; comm; comm = comm->next)
		count++;
	pthread_mutex_unlock(&comms.mutex);
	return count;
}

static bool is_collective(const struct launch *launch)
{
	for (const struct op *op = launch->ops; op; op = op->next)
		if (op->kind != SEND && op->kind != RECV)
			return true;
	return false;
}

void comms_order(struct launch *launch)
{
	if (!is_collective(launch))
		return;
	pthread_mutex_lock(&comms.mutex);
	for (const struct ncclComm *comm = comms.alive; comm; comm = comm->next) {
		const struct segment *shared = atomic_load(&comm->shared);

		if (!shared || comm->world == 1 || launch->orders == ORDERS)
			continue;
		launch->order[launch->orders].id = shared->id.nonce[0];
		launch->order[launch->orders++].count = comm->collectives;
	}
	launch->comm->collectives++;
	pthread_mutex_unlock(&comms.mutex);
}

static bool uses(const struct ncclComm *comm, const void *data, size_t bytes)
{
	pthread_mutex_t *mutex = (pthread_mutex_t *)&comm->mutex;
	bool found = false;

	pthread_mutex_lock(mutex);
	for (const struct launch *launch = comm->launches; launch; launch = launch->next)
		for (const struct op *op = launch->ops; op && !comm->aborted; op = op->next)
			found = found || op_uses(op, data, bytes);
	pthread_mutex_unlock(mutex);
	return found;
}

bool comms_use(const struct ncclComm *only, const void *data, size_t bytes)
{
	bool found = false;

	pthread_mutex_lock(&comms.mutex);
	for (const struct ncclComm *comm = comms.alive; comm; comm = comm->next)
		if (!only || comm == only)
			found = found || uses(comm, data, bytes);
	pthread_mutex_unlock(&comms.mutex);
	return found;
}

struct ncclComm *comm_alive(struct ncclComm *comm, const char *function)
{
	struct ncclComm *at;

	if (!comm)
		return NULL;
	pthread_mutex_lock(&comms.mutex);
	for (at = comms.alive; at && at != comm; at = at->next)
		;
	pthread_mutex_unlock(&comms.mutex);
	if (!at)
		die("%s is given a communicator that does not exist, or not any more", function);
	return at;
}

static ncclResult_t comm_async(struct ncclComm *comm)
{
	struct segment *shared = comm->shared;
	ncclResult_t injected = injected_async();

	if (shared && shared->failed)
		return refuse(ncclRemoteError, "another rank found a mismatch and ended");
	if (injected)
		return refuse(injected, "an error that was asked for");
	return (ncclResult_t)comm->async;
}

ncclResult_t comm_ready(struct ncclComm *comm, const char *function)
{
	ncclResult_t state;

	if (!comm_alive(comm, function))
		return refuse(ncclInvalidArgument, "%s: the communicator is NULL", function);
	if (comm->finalized)
		return refuse(ncclInvalidUsage, "%s: the communicator has been finalized",
			      function);
	state = comm_async(comm);
	if (state == ncclInProgress)
		return refuse(ncclInvalidArgument,
			      "%s: what was begun before on the communicator is in progress",
			      function);
	return state;
}

void comm_discard(struct ncclComm *comm)
{
	set_state(comm, ABORTED);
	bury(comm);
	comm_put(comm);
}

void comm_set_pending(struct ncclComm *comm, struct ncclComm *child)
{
	pthread_mutex_lock(&comm->mutex);
	comm->pending = child;
	if (child && comm->aborted)
		child->aborted = true;
	pthread_mutex_unlock(&comm->mutex);
}

/* Waits until no launch of it is queued or runs. */
static void wait_for_launches(struct ncclComm *comm)
{
	pthread_mutex_lock(&comm->mutex);
	while (comm->done < comm->queued && !comm->aborted)
		pthread_cond_wait(&comm->changed, &comm->mutex);
	pthread_mutex_unlock(&comm->mutex);
}

static ncclResult_t run_finalize(struct job *job)
{
	struct ncclComm *comm = job->comm;
	struct segment *shared = comm->shared;

	wait_for_launches(comm);
	if (job->hang)
		wait_for_abort(comm);
	if (comm->aborted)
		return ncclInternalError;
	set_state(comm, FINALIZED);
	while (shared->ended < (unsigned)comm->world && !comm->aborted) {
		uint32_t seen = shared->lane[LANE_CALLS].word;

		if (shared->ended < (unsigned)comm->world && !comm->aborted)
			wait_word(comm, &shared->lane[LANE_CALLS].word, seen);
	}
	return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	struct job *job;
	ncclResult_t result;
	enum trouble trouble = trouble_in("ncclCommFinalize", false, &result);

	if (trouble == FAIL)
		return result;
	comm_hold(comm, "ncclCommFinalize");
	result = comm_ready(comm, "ncclCommFinalize");
	comm_release(comm);
	if (result)
		return result;
	comm->finalized = true;
	job = calloc(1, sizeof *job);
	*job = (struct job){.comm = comm, .run = run_finalize, .hang = trouble == HANG};
	return submit_job(job);
}

/* Waits for the threads of this process that use it, and drops the caller's reference. */
static void leave(struct ncclComm *comm, bool aborted)
{
	pthread_mutex_lock(&comm->mutex);
	while (comm->busy || comm->running)
		pthread_cond_wait(&comm->changed, &comm->mutex);
	if (comm->captured && !aborted)
		die("rank %d destroys a communicator while a graph has %u launches of it",
		    comm->rank, comm->captured);
	pthread_mutex_unlock(&comm->mutex);
	comm->gone = true;
	bury(comm);
	windows_free(comm, aborted);
	comm_put(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	struct job job = {.comm = comm, .run = run_finalize};
	ncclResult_t result;
	enum trouble trouble = trouble_in("ncclCommDestroy", false, &result);

	if (trouble == FAIL)
		return result;
	job.hang = trouble == HANG;
	if (!comm)
		return ncclSuccess;
	comm_alive(comm, "ncclCommDestroy");
	comm_hold(comm, "ncclCommDestroy");
	comm_release(comm);
	result = comm_async(comm);
	if (result == ncclInProgress)
		return refuse(ncclInvalidArgument, "ncclCommDestroy: the communicator is in "
						   "progress");
	if (result)
		return result;
	if (!comm->finalized)
		result = job.run(&job);
	leave(comm, false);
	return result;
}

/* What this rank had launched on other communicators may now run in another order. */
static void comms_abort(void)
{
	pthread_mutex_lock(&comms.mutex);
	for (const struct ncclComm *comm = comms.alive; comm; comm = comm->next) {
		struct segment *shared = atomic_load(&comm->shared);

		if (shared)
			shared->member[comm->rank].aborts = true;
	}
	pthread_mutex_unlock(&comms.mutex);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	ncclResult_t result;
	enum trouble trouble = trouble_in("ncclCommAbort", false, &result);

	if (trouble == FAIL)
		return result;
	if (!comm)
		return ncclSuccess;
	comm_alive(comm, "ncclCommAbort");
	if (trouble == SLOW)
		sleep(1);
	comms_abort();
	set_state(comm, ABORTED);
	pthread_mutex_lock(&comm->mutex);
	comm->aborted = true;
	if (comm->pending) {
		comm->pending->aborted = true;
		wake_own(comm->pending);
	}
	pthread_cond_broadcast(&comm->changed);
	pthread_mutex_unlock(&comm->mutex);
	wake_own(comm);
	leave(comm, true);
	return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	ncclResult_t result;

	if (trouble_in("ncclCommGetAsyncError", false, &result) == FAIL)
		return result;
	if (!comm_alive(comm, "ncclCommGetAsyncError") || !error)
		return ncclInvalidArgument;
	*error = comm_async(comm);
	return ncclSuccess;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of NCCL: init, split, abort, close, groups and registration. They are non-blocking:
 * calls return at once and their progress is polled, so that a rank that waits for a lost peer
 * learns of the failure and aborts.
 */
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "gpu_comm.h"

/* With this policy copy engines make the gathers where they can, and leave the processors to the
   program. */
static ncclConfig_t config_of(void)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
	if (zero_nccl.version >= 22800)
		config.CTAPolicy = ZERO_CTA_POLICY_ZERO;
#endif
	return config;
}

/* Says why it was aborted, if that is known. */
static zero_status fail_aborted(const struct zero_nccl_comm *nccl, const char *what)
{
	zero_status status;

	if (zero_device_has_lost_peer(nccl->device, &status))
		return status;
	return zero_core->fail(ZERO_E_COMM, "%s was aborted", what);
}

/* Waits until no call is in progress. `seconds` 0: without limit. */
static zero_status wait_idle(struct zero_nccl_comm *nccl, ncclComm_t comm, double seconds,
			     const char *call)
{
	struct timespec pause = {0, 2000};
	double end = seconds > 0 ? zero_seconds() + seconds : 0;
	ncclResult_t result = ncclInProgress;
	zero_status status;

	for (int poll = 0;; poll++) {
		/* This is checked first, because an abort in another thread may take long. */
		if (zero_device_has_lost_peer(nccl->device, &status))
			return status;
		pthread_mutex_lock(&nccl->lock);
		if (!nccl->aborted)
			result = zero_nccl_status(zero_nccl.comm_get_async_error(comm, &result),
						  call, comm)
					 ? ncclSystemError
					 : result;
		pthread_mutex_unlock(&nccl->lock);
		if (nccl->aborted)
			return fail_aborted(nccl, call);
		if (result != ncclInProgress)
			return zero_nccl_status(result, call, comm);
		if (end > 0 && zero_seconds() > end)
			return zero_core->fail(ZERO_E_COMM,
					       "%s is not done after %.0f s (ZERO_OPEN_SECONDS): "
					       "NCCL_DEBUG=INFO shows what it waits for",
					       call, seconds);
		if (poll < 100)
			continue;
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < 200000)
			pause.tv_nsec += pause.tv_nsec / 4;
	}
}

static zero_status finish_init(struct zero_nccl_comm *nccl, ncclResult_t result, double seconds,
			       const char *call)
{
	zero_status status = zero_nccl_status(result, call, NULL);

	if (!status && nccl->comm)
		status = wait_idle(nccl, nccl->comm, seconds, call);
	if (status)
		zero_nccl_abort(&nccl, 1);
	return status;
}

zero_status zero_nccl_init(struct zero_nccl_comm *nccl, struct zero_device *device, int rank,
			   int world, ncclUniqueId *ids, int id_count, double seconds)
{
	ncclConfig_t config = config_of();
	ncclResult_t result;
	bool for_caller = nccl->for_caller;

	config.blocking = for_caller;
	*nccl = (struct zero_nccl_comm){.device = device, .for_caller = for_caller};
	pthread_mutex_init(&nccl->lock, NULL);
	if (id_count > 1)
		result = zero_nccl.comm_init_rank_scalable(&nccl->comm, world, rank, id_count, ids,
							   &config);
	else
		result = zero_nccl.comm_init_rank_config(&nccl->comm, world, ids[0], rank, &config);
	return finish_init(nccl, result, seconds,
			   id_count > 1 ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig");
}

zero_status zero_nccl_split(struct zero_nccl_comm *from, int color, int key, double seconds,
			    struct zero_nccl_comm *made)
{
	ncclConfig_t config = config_of();
	ncclResult_t result;
	zero_status status;
	bool for_caller = made->for_caller;

	/* The caller expects its operations to be on the stream when its calls return. */
	config.blocking = for_caller;
	*made = (struct zero_nccl_comm){.device = from->device, .for_caller = for_caller};
	pthread_mutex_init(&made->lock, NULL);
	pthread_mutex_lock(&from->lock);
	result = from->aborted ? ncclInvalidUsage
			       : zero_nccl.comm_split(from->comm, color, key, &made->comm, &config);
	pthread_mutex_unlock(&from->lock);
	status = zero_nccl_status(result, "ncclCommSplit", NULL);
	if (!status)
		status = wait_idle(from, from->comm, seconds, "ncclCommSplit");
	/* A rank without a color has no communicator. */
	if (!status && color < 0)
		made->comm = NULL;
	/* After a failed split neither communicator may be used. */
	if (status)
		zero_nccl_abort(&from, 1);
	return status ? status : finish_init(made, ncclSuccess, seconds, "ncclCommSplit");
}

/* Returns NULL if it was aborted before. */
static ncclComm_t detach(struct zero_nccl_comm *nccl)
{
	ncclComm_t comm;

	pthread_mutex_lock(&nccl->lock);
	comm = nccl->comm;
	nccl->comm = NULL;
	nccl->aborted = true;
	pthread_mutex_unlock(&nccl->lock);
	return comm;
}

/*
 * All are aborted as one group, because freeing one would wait for the kernels of the others. The
 * locks are not held: an abort may take long (NVIDIA/nccl issue 1013), and an abort of gathers by
 * copy engines may never end.
 */
void zero_nccl_abort(struct zero_nccl_comm *const *nccl, size_t count)
{
	bool grouped = count > 1;

	if (grouped)
		zero_nccl.group_start();
	for (size_t i = 0; i < count; i++) {
		ncclComm_t comm = nccl[i] ? detach(nccl[i]) : NULL;

		if (comm)
			zero_nccl.comm_abort(comm);
	}
	if (grouped)
		zero_nccl.group_end();
	for (size_t i = 0; i < count; i++)
		if (nccl[i])
			nccl[i]->ended = true;
}

void zero_nccl_close(struct zero_nccl_comm *nccl, bool failed)
{
	enum { FINALIZE_SECONDS = 10 };

	if (nccl->comm && failed) {
		/* Operations that all ranks agreed on complete without an abort. */
		zero_driver.stream_finish(nccl->device->comm_stream);
		zero_nccl_abort(&nccl, 1);
	} else if (nccl->comm) {
		zero_nccl.comm_finalize(nccl->comm);
		if (wait_idle(nccl, nccl->comm, FINALIZE_SECONDS, "ncclCommFinalize"))
			zero_nccl_abort(&nccl, 1);
		else
			zero_nccl.comm_destroy(nccl->comm);
	}
	if (nccl->device)
		pthread_mutex_destroy(&nccl->lock);
	*nccl = (struct zero_nccl_comm){0};
}

zero_status zero_nccl_group_begin(struct zero_nccl_comm *nccl)
{
	zero_status status;

	pthread_mutex_lock(&nccl->lock);
	status = nccl->aborted ? fail_aborted(nccl, "NCCL")
			       : zero_nccl_status(zero_nccl.group_start(), "ncclGroupStart", NULL);
	if (status)
		pthread_mutex_unlock(&nccl->lock);
	return status;
}

/* After a failure. NCCL may still enqueue the group, whose buffers the caller wants to free. */
static void wait_enqueued(struct zero_nccl_comm *nccl, ncclComm_t comm)
{
	enum { ABORT_SECONDS = 10 };
	const struct timespec pause = {0, 100000};
	double end = zero_seconds() + ABORT_SECONDS;

	for (bool over = false; !over; nanosleep(&pause, NULL)) {
		ncclResult_t result = ncclSuccess;

		pthread_mutex_lock(&nccl->lock);
		over = nccl->aborted ? nccl->ended
				     : zero_nccl.comm_get_async_error(comm, &result) ||
					       result != ncclInProgress;
		pthread_mutex_unlock(&nccl->lock);
		if (zero_seconds() > end)
			nccl->device->hung = over = true;
	}
}

zero_status zero_nccl_group_end(struct zero_nccl_comm *nccl, zero_status status)
{
	ncclComm_t comm = nccl->comm;
	zero_status ended;

	ended = zero_nccl_status(zero_nccl.group_end(), "ncclGroupEnd", comm);
	pthread_mutex_unlock(&nccl->lock);
	status = status ? status : ended;
	if (status)
		return status;
	status = wait_idle(nccl, comm, 0, "ncclGroupEnd");
	if (status)
		wait_enqueued(nccl, comm);
	return status;
}

zero_status zero_nccl_register(struct zero_nccl_comm *nccl, void *data, size_t bytes,
			       bool symmetric, void **handle)
{
	zero_status status = zero_nccl_group_begin(nccl);

	if (status)
		return status;
	if (symmetric)
		status = zero_nccl_status(zero_nccl.comm_window_register(nccl->comm, data, bytes,
									 handle,
									 ZERO_WINDOW_SYMMETRIC),
					  "ncclCommWindowRegister", nccl->comm);
	else
		status = zero_nccl_status(zero_nccl.comm_register(nccl->comm, data, bytes, handle),
					  "ncclCommRegister", nccl->comm);
	return zero_nccl_group_end(nccl, status);
}

void zero_nccl_deregister(struct zero_nccl_comm *nccl, void *handle, bool symmetric)
{
	pthread_mutex_lock(&nccl->lock);
	if (nccl->comm && symmetric)
		zero_nccl.comm_window_deregister(nccl->comm, handle);
	else if (nccl->comm)
		zero_nccl.comm_deregister(nccl->comm, handle);
	pthread_mutex_unlock(&nccl->lock);
}

bool zero_nccl_failed(struct zero_nccl_comm *nccl, char *text, size_t size)
{
	ncclResult_t result = ncclSuccess;
	bool failed = false;

	pthread_mutex_lock(&nccl->lock);
	if (nccl->comm && !nccl->for_caller &&
	    zero_nccl.comm_get_async_error(nccl->comm, &result) == ncclSuccess)
		failed = zero_nccl_status(result, "NCCL", nccl->comm);
	pthread_mutex_unlock(&nccl->lock);
	if (failed)
		strncpy(text, zero_core->last_error(), size - 1);
	return failed;
}

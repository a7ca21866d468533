/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators of NCCL: init, split, abort, close, groups and registration.
 *
 * The first one is non-blocking: its init and splits return at once and their progress is polled,
 * so that a rank which waits for a lost peer learns of it. All others are split from it. These
 * carry the work and are blocking, so that a call has enqueued its operations when it returns, and
 * NCCL makes no thread for it. A call that waits for a lost peer ends when another thread aborts
 * the communicator.
 */
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "gpu_comm.h"

static ncclConfig_t config_of(bool blocking, bool copy_engines)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

	config.blocking = blocking;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
	if (copy_engines && zero_nccl.version >= 22900)
		config.CTAPolicy = ZERO_CTA_POLICY_ZERO | ZERO_CTA_POLICY_EFFICIENCY;
	else if (copy_engines && zero_nccl.version >= ZERO_NCCL_CTA_SINCE)
		config.CTAPolicy = ZERO_CTA_POLICY_ZERO;
#else
	(void)copy_engines;
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

/* Asks a non-blocking communicator whether a call is in progress. */
static zero_status query(struct zero_nccl_comm *nccl, ncclComm_t comm, const char *call,
			 ncclResult_t *result)
{
	zero_status status;

	pthread_mutex_lock(&nccl->lock);
	status = nccl->aborted ? fail_aborted(nccl, call)
			       : zero_nccl_status(zero_nccl.comm_get_async_error(comm, result),
						  call, comm);
	pthread_mutex_unlock(&nccl->lock);
	return status ? status : zero_nccl_status(*result, call, comm);
}

/* Waits until no call on it is in progress. */
static zero_status wait_idle(struct zero_nccl_comm *nccl, double seconds, const char *call)
{
	const struct timespec pause = {0, 100000};
	double end = zero_seconds() + seconds;
	ncclComm_t comm = nccl->comm;
	zero_status status;

	for (;; nanosleep(&pause, NULL)) {
		ncclResult_t result = ncclSuccess;

		/* This is checked first, because an abort in another thread may take long. */
		if (zero_device_has_lost_peer(nccl->device, &status))
			return status;
		status = query(nccl, comm, call, &result);
		if (status || result != ncclInProgress)
			return status;
		if (zero_seconds() > end)
			return zero_core->fail(ZERO_E_COMM,
					       "%s is not done after %.0f s (ZERO_OPEN_SECONDS): "
					       "NCCL_DEBUG=INFO shows what it waits for",
					       call, seconds);
	}
}

zero_status zero_nccl_init(struct zero_nccl_comm *nccl, struct zero_device *device, int rank,
			   int world, ncclUniqueId *ids, int id_count, double seconds)
{
	const char *call = id_count > 1 ? "ncclCommInitRankScalable" : "ncclCommInitRankConfig";
	ncclConfig_t config = config_of(world == 1, false);
	ncclResult_t result;
	zero_status status;

	*nccl = (struct zero_nccl_comm){.device = device, .blocking = world == 1};
	pthread_mutex_init(&nccl->lock, NULL);
	if (id_count > 1)
		result = zero_nccl.comm_init_rank_scalable(&nccl->comm, world, rank, id_count, ids,
							   &config);
	else
		result = zero_nccl.comm_init_rank_config(&nccl->comm, world, ids[0], rank, &config);
	status = zero_nccl_status(result, call, NULL);
	if (!status && !nccl->blocking)
		status = wait_idle(nccl, seconds, call);
	if (status)
		zero_nccl_abort(&nccl, 1);
	return status;
}

zero_status zero_nccl_split(struct zero_nccl_comm *from, int color, int key, double seconds,
			    bool copy_engines, struct zero_nccl_comm *made)
{
	ncclConfig_t config = config_of(true, copy_engines);
	ncclResult_t result;
	zero_status status;

	*made = (struct zero_nccl_comm){.device = from->device, .blocking = true};
	pthread_mutex_init(&made->lock, NULL);
	pthread_mutex_lock(&from->lock);
	result = from->aborted ? ncclInvalidUsage
			       : zero_nccl.comm_split(from->comm, color, key, &made->comm, &config);
	pthread_mutex_unlock(&from->lock);
	status = zero_nccl_status(result, "ncclCommSplit", NULL);
	if (!status)
		status = wait_idle(from, seconds, "ncclCommSplit");
	/* A rank without a color has no communicator. */
	if (!status && color < 0)
		made->comm = NULL;
	/* After a failed split neither communicator may be used. */
	if (status)
		zero_nccl_abort(&from, 1);
	return status;
}

/* Returns NULL if it was aborted before. A call that waits for a lost peer has the lock; only the
   abort ends it. */
static ncclComm_t detach(struct zero_nccl_comm *nccl)
{
	enum { CALL_SECONDS = 2 };
	struct timespec until;
	ncclComm_t comm;
	bool locked;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += CALL_SECONDS;
	locked = !pthread_mutex_timedlock(&nccl->lock, &until);
	comm = atomic_exchange(&nccl->aborted, true) ? NULL : nccl->comm;
	nccl->comm = NULL;
	if (locked)
		pthread_mutex_unlock(&nccl->lock);
	return comm;
}

/*
 * Those that carry work are aborted as one group, because freeing one would wait for the kernels of
 * the others; NCCL takes no non-blocking one into that group. The locks are not held: an abort may
 * take long (NVIDIA/nccl issue 1013), and one of gathers by copy engines may never end.
 */
void zero_nccl_abort(struct zero_nccl_comm *const *nccl, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!nccl[i]->blocking) {
			ncclComm_t comm = detach(nccl[i]);

			if (comm)
				zero_nccl.comm_abort(comm);
		}
	zero_nccl.group_start();
	for (size_t i = 0; i < count; i++)
		if (nccl[i]->blocking) {
			ncclComm_t comm = detach(nccl[i]);

			if (comm)
				zero_nccl.comm_abort(comm);
		}
	zero_nccl.group_end();
}

/* The operations on it are complete. */
static void destroy(struct zero_nccl_comm *nccl)
{
	enum { FINALIZE_SECONDS = 10 };
	zero_status status = zero_nccl_status(zero_nccl.comm_finalize(nccl->comm),
					      "ncclCommFinalize", nccl->comm);

	if (!status && !nccl->blocking)
		status = wait_idle(nccl, FINALIZE_SECONDS, "ncclCommFinalize");
	if (status)
		zero_nccl_abort(&nccl, 1);
	else
		zero_nccl.comm_destroy(nccl->comm);
}

void zero_nccl_close(struct zero_nccl_comm *nccl, bool failed)
{
	if (nccl->comm && failed)
		zero_nccl_abort(&nccl, 1);
	else if (nccl->comm)
		destroy(nccl);
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

zero_status zero_nccl_group_end(struct zero_nccl_comm *nccl, zero_status status)
{
	ncclComm_t comm = nccl->comm;
	zero_status ended;

	ended = zero_nccl_status(zero_nccl.group_end(), "ncclGroupEnd", comm);
	if (nccl->aborted)
		ended = fail_aborted(nccl, "NCCL");
	pthread_mutex_unlock(&nccl->lock);
	return status ? status : ended;
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

	/* What holds the lock meets the error by itself. */
	if (pthread_mutex_trylock(&nccl->lock))
		return false;
	if (nccl->comm && !nccl->for_caller &&
	    zero_nccl.comm_get_async_error(nccl->comm, &result) == ncclSuccess)
		failed = zero_nccl_status(result, "NCCL", nccl->comm);
	pthread_mutex_unlock(&nccl->lock);
	if (failed)
		strncpy(text, zero_core->last_error(), size - 1);
	return failed;
}

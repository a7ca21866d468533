/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator of NCCL that never blocks the thread which calls it: what is in progress is asked
 * for, so that a rank which waits for a lost peer can be told so, and aborts.
 */
#include <string.h>
#include <time.h>

#include "gpu.h"

/* Copy engines carry gathers where they can, and leave the processors to the program. */
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

/* Waits until nothing is in progress; `seconds` 0: as long as it takes. */
static zero_status settle(struct zero_nccl_comm *nccl, ncclComm_t comm, double seconds,
			  const char *call)
{
	struct timespec pause = {0, 2000};
	double end = seconds > 0 ? zero_seconds() + seconds : 0;
	ncclResult_t result = ncclInProgress;
	char text[1024];
	int rank = 0;

	for (int look = 0;; look++) {
		/* First: whoever aborts may take long. */
		if (nccl->device->is_broken && nccl->device->is_broken(nccl->device->on_failure_context,
								       text, sizeof(text), &rank))
			return zero_core->fail_on(rank, ZERO_E_COMM, text);
		pthread_mutex_lock(&nccl->lock);
		if (!nccl->aborted)
			result = zero_nccl_status(zero_nccl.comm_get_async_error(comm, &result),
						  call, comm)
					 ? ncclSystemError
					 : result;
		pthread_mutex_unlock(&nccl->lock);
		if (nccl->aborted)
			return zero_core->fail(ZERO_E_COMM, "%s was aborted", call);
		if (result != ncclInProgress)
			return zero_nccl_status(result, call, comm);
		if (end > 0 && zero_seconds() > end)
			return zero_core->fail(ZERO_E_COMM,
					       "%s is not done after %.0f s (ZERO_OPEN_SECONDS): "
					       "NCCL_DEBUG=INFO says what it waits for",
					       call, seconds);
		if (look < 100)
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
		status = settle(nccl, nccl->comm, seconds, call);
	if (status)
		zero_nccl_abort(&nccl, 1);
	return status;
}

zero_status zero_nccl_init(struct zero_nccl_comm *nccl, struct zero_device *device, int rank,
			   int world, ncclUniqueId *ids, int id_count, double seconds)
{
	ncclConfig_t config = config_of();
	ncclResult_t result;
	bool callers = nccl->callers;

	config.blocking = callers;
	*nccl = (struct zero_nccl_comm){.device = device, .callers = callers};
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
	bool callers = made->callers;

	/* A caller expects its calls to be on the stream when they return. */
	config.blocking = callers;
	*made = (struct zero_nccl_comm){.device = from->device, .callers = callers};
	pthread_mutex_init(&made->lock, NULL);
	pthread_mutex_lock(&from->lock);
	result = from->aborted ? ncclInvalidUsage
			       : zero_nccl.comm_split(from->comm, color, key, &made->comm, &config);
	pthread_mutex_unlock(&from->lock);
	status = zero_nccl_status(result, "ncclCommSplit", NULL);
	if (!status)
		status = settle(from, from->comm, seconds, "ncclCommSplit");
	/* A rank without a colour has no communicator. */
	if (!status && color < 0)
		made->comm = NULL;
	/* Nobody may use a split that is neither here nor given up. */
	if (status)
		zero_nccl_abort(&from, 1);
	return status ? status : finish_init(made, ncclSuccess, seconds, "ncclCommSplit");
}

/* NULL if it was aborted before. */
static ncclComm_t take_away(struct zero_nccl_comm *nccl)
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
 * All as one group: what one gives back would wait for the kernels of the others. Without the
 * locks: an abort may take long (NVIDIA/nccl issue 1013), and of gathers by copy engines it may not
 * end.
 */
void zero_nccl_abort(struct zero_nccl_comm *const *nccl, size_t count)
{
	bool grouped = count > 1;

	if (grouped)
		zero_nccl.group_start();
	for (size_t i = 0; i < count; i++) {
		ncclComm_t comm = nccl[i] ? take_away(nccl[i]) : NULL;

		if (comm)
			zero_nccl.comm_abort(comm);
	}
	if (grouped)
		zero_nccl.group_end();
}

void zero_nccl_close(struct zero_nccl_comm *nccl, bool apart)
{
	enum { FAREWELL_SECONDS = 10 };

	if (nccl->comm && apart) {
		/* What all ranks agreed on ends by itself. */
		zero_driver.stream_finish(nccl->device->comm);
		zero_nccl_abort(&nccl, 1);
	} else if (nccl->comm) {
		zero_nccl.comm_finalize(nccl->comm);
		if (settle(nccl, nccl->comm, FAREWELL_SECONDS, "ncclCommFinalize"))
			zero_nccl_abort(&nccl, 1);
		else
			zero_nccl.comm_destroy(nccl->comm);
	}
	if (nccl->device)
		pthread_mutex_destroy(&nccl->lock);
	*nccl = (struct zero_nccl_comm){0};
}

zero_status zero_nccl_begin(struct zero_nccl_comm *nccl)
{
	zero_status status;

	pthread_mutex_lock(&nccl->lock);
	status = nccl->aborted ? zero_core->fail(ZERO_E_COMM, "NCCL was aborted")
			       : zero_nccl_status(zero_nccl.group_start(), "ncclGroupStart", NULL);
	if (status)
		pthread_mutex_unlock(&nccl->lock);
	return status;
}

zero_status zero_nccl_end(struct zero_nccl_comm *nccl, zero_status status)
{
	ncclComm_t comm = nccl->comm;
	zero_status ended;

	ended = zero_nccl_status(zero_nccl.group_end(), "ncclGroupEnd", comm);
	pthread_mutex_unlock(&nccl->lock);
	status = status ? status : ended;
	return status ? status : settle(nccl, comm, 0, "ncclGroupEnd");
}

zero_status zero_nccl_register(struct zero_nccl_comm *nccl, void *data, size_t bytes,
			       bool symmetric, void **handle)
{
	zero_status status = zero_nccl_begin(nccl);

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
	return zero_nccl_end(nccl, status);
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
	if (nccl->comm && !nccl->callers &&
	    zero_nccl.comm_get_async_error(nccl->comm, &result) == ncclSuccess)
		failed = zero_nccl_status(result, "NCCL", nccl->comm);
	pthread_mutex_unlock(&nccl->lock);
	if (failed)
		strncpy(text, zero_core->last_error(), size - 1);
	return failed;
}

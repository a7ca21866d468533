/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state of the module, and calls of PMIx with a deadline: servers ignore PMIX_TIMEOUT or use
 * their own.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pmix.h"

const struct zero_core *zero_pmix_core;
struct zero_pmix_state zero_pmix;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t replied;
static pthread_once_t once = PTHREAD_ONCE_INIT;

zero_status zero_pmix_status(pmix_status_t status, const char *call)
{
	if (status == PMIX_SUCCESS)
		return ZERO_OK;
	return zero_pmix_core->fail(ZERO_E_COMM, "%s failed: %s", call, PMIx_Error_string(status));
}

static void make_condition(void)
{
	zero_cond_init(&replied);
}

struct zero_pmix_calls *zero_pmix_calls_new(size_t count, const char *key)
{
	struct zero_pmix_calls *calls;
	bool yes = true;

	pthread_once(&once, make_condition);
	calls = calloc(1, sizeof(*calls) + count * sizeof(calls->call[0]));
	if (!calls)
		return NULL;
	calls->users = 1;
	calls->count = count;
	snprintf(calls->key, sizeof(calls->key), "%s", key);
	PMIX_INFO_LOAD(&calls->immediate, PMIX_IMMEDIATE, &yes, PMIX_BOOL);
	for (size_t i = 0; i < count; i++) {
		calls->call[i].of = calls;
		calls->call[i].status = PMIX_ERR_NOT_FOUND;
	}
	return calls;
}

/* Called with the lock held, which is released. */
static void release_and_unlock(struct zero_pmix_calls *calls)
{
	bool last = --calls->users == 0;

	pthread_mutex_unlock(&lock);
	if (last)
		free(calls);
}

void zero_pmix_calls_release(struct zero_pmix_calls *calls)
{
	if (!calls)
		return;
	pthread_mutex_lock(&lock);
	release_and_unlock(calls);
}

static void begin(struct zero_pmix_call *call)
{
	pthread_mutex_lock(&lock);
	call->waiting = true;
	call->of->waiting++;
	call->of->users++;
	pthread_mutex_unlock(&lock);
}

static void set_status(struct zero_pmix_call *call, pmix_status_t status)
{
	struct zero_pmix_calls *calls = call->of;

	pthread_mutex_lock(&lock);
	call->waiting = false;
	call->status = status;
	if (--calls->waiting == 0)
		pthread_cond_broadcast(&replied);
	release_and_unlock(calls);
}

static void on_fence(pmix_status_t status, void *call)
{
	set_status(call, status);
}

/* PMIx versions differ in who frees the value, so it is left alone. It can be got from the cache
   now. */
static void on_value(pmix_status_t status, pmix_value_t *value, void *call)
{
	(void)value;
	set_status(call, status);
}

void zero_pmix_begin_get(struct zero_pmix_calls *calls, size_t i, int rank, bool local)
{
	pmix_status_t status;
	pmix_proc_t proc;

	PMIX_LOAD_PROCID(&proc, zero_pmix.self.nspace, (pmix_rank_t)rank);
	begin(&calls->call[i]);
	status = PMIx_Get_nb(&proc, calls->key, local ? &calls->immediate : NULL, local ? 1 : 0,
			     on_value, &calls->call[i]);
	if (status != PMIX_SUCCESS)
		set_status(&calls->call[i], status);
}

void zero_pmix_begin_fence(struct zero_pmix_calls *calls)
{
	bool yes = true;
	pmix_info_t collect;
	pmix_status_t status;

	/*
	 * PMIX_COLLECT_DATA sends all data to all nodes. A fence without it would be cheaper, but in
	 * Slurm 22.05 each node's part of such a fence ends by itself.
	 */
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	begin(&calls->call[0]);
	status = PMIx_Fence_nb(NULL, 0, &collect, 1, on_fence, &calls->call[0]);
	/* It is done already, and there will be no callback. */
	if (status == PMIX_OPERATION_SUCCEEDED)
		status = PMIX_SUCCESS;
	else if (status == PMIX_SUCCESS)
		return;
	set_status(&calls->call[0], status);
}

bool zero_pmix_wait(struct zero_pmix_calls *calls, double until)
{
	struct timespec end;
	bool all;

	end.tv_sec = (time_t)until;
	end.tv_nsec = (long)(1e9 * (until - (double)end.tv_sec));
	pthread_mutex_lock(&lock);
	while (calls->waiting && pthread_cond_timedwait(&replied, &lock, &end) == 0)
		;
	all = !calls->waiting;
	pthread_mutex_unlock(&lock);
	return all;
}

pmix_status_t zero_pmix_call_status(struct zero_pmix_calls *calls, size_t i)
{
	pmix_status_t status;

	pthread_mutex_lock(&lock);
	status = calls->call[i].waiting ? PMIX_ERR_WOULD_BLOCK : calls->call[i].status;
	pthread_mutex_unlock(&lock);
	return status;
}

pmix_status_t zero_pmix_get_cached(pmix_rank_t rank, const char *key, pmix_value_t **value)
{
	bool yes = true;
	pmix_info_t optional;
	pmix_status_t status;
	pmix_proc_t proc;

	*value = NULL;
	PMIX_LOAD_PROCID(&proc, zero_pmix.self.nspace, rank);
	PMIX_INFO_LOAD(&optional, PMIX_OPTIONAL, &yes, PMIX_BOOL);
	status = PMIx_Get(&proc, key, &optional, 1, value);
	return status == PMIX_SUCCESS && !*value ? PMIX_ERR_NOT_FOUND : status;
}

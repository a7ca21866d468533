/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of PMIx with a deadline of our own: the servers ignore PMIX_TIMEOUT or know only theirs. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pmix.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t answered;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_condition(void)
{
	zero_cond_init(&answered);
}

struct wire_calls *zero_bootstrap_calls(size_t count, const char *key)
{
	struct wire_calls *calls;
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

/* Holding the lock, which this gives up. */
static void leave_and_unlock(struct wire_calls *calls)
{
	bool last = --calls->users == 0;

	pthread_mutex_unlock(&lock);
	if (last)
		free(calls);
}

void zero_bootstrap_calls_leave(struct wire_calls *calls)
{
	if (!calls)
		return;
	pthread_mutex_lock(&lock);
	leave_and_unlock(calls);
}

static void begin(struct wire_call *call)
{
	pthread_mutex_lock(&lock);
	call->waiting = true;
	call->of->waiting++;
	call->of->users++;
	pthread_mutex_unlock(&lock);
}

static void answer(struct wire_call *call, pmix_status_t status)
{
	struct wire_calls *calls = call->of;

	pthread_mutex_lock(&lock);
	call->waiting = false;
	call->status = status;
	if (--calls->waiting == 0)
		pthread_cond_broadcast(&answered);
	leave_and_unlock(calls);
}

static void on_fence(pmix_status_t status, void *call)
{
	answer(call, status);
}

/* The value stays: releases of PMIx differ in who frees it, and the data can be looked up now. */
static void on_value(pmix_status_t status, pmix_value_t *value, void *call)
{
	(void)value;
	answer(call, status);
}

void zero_bootstrap_ask(struct wire_calls *calls, size_t i, int rank, bool local)
{
	pmix_status_t status;
	pmix_proc_t proc;

	PMIX_LOAD_PROCID(&proc, zero_bootstrap.self.nspace, (pmix_rank_t)rank);
	begin(&calls->call[i]);
	status = PMIx_Get_nb(&proc, calls->key, local ? &calls->immediate : NULL, local ? 1 : 0,
			     on_value, &calls->call[i]);
	if (status != PMIX_SUCCESS)
		answer(&calls->call[i], status);
}

void zero_bootstrap_begin_fence(struct wire_calls *calls)
{
	bool yes = true;
	pmix_info_t collect;
	pmix_status_t status;

	/*
	 * All data go to all nodes. A fence without data would be cheaper, but it is none in Slurm
	 * 22.05, where each node then goes on by itself.
	 */
	PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
	begin(&calls->call[0]);
	status = PMIx_Fence_nb(NULL, 0, &collect, 1, on_fence, &calls->call[0]);
	/* Done already, and there will be no callback. */
	if (status == PMIX_OPERATION_SUCCEEDED)
		status = PMIX_SUCCESS;
	else if (status == PMIX_SUCCESS)
		return;
	answer(&calls->call[0], status);
}

bool zero_bootstrap_wait(struct wire_calls *calls, double until)
{
	struct timespec end;
	bool all;

	end.tv_sec = (time_t)until;
	end.tv_nsec = (long)(1e9 * (until - (double)end.tv_sec));
	pthread_mutex_lock(&lock);
	while (calls->waiting && pthread_cond_timedwait(&answered, &lock, &end) == 0)
		;
	all = !calls->waiting;
	pthread_mutex_unlock(&lock);
	return all;
}

pmix_status_t zero_bootstrap_answer(struct wire_calls *calls, size_t i)
{
	pmix_status_t status;

	pthread_mutex_lock(&lock);
	status = calls->call[i].waiting ? PMIX_ERR_WOULD_BLOCK : calls->call[i].status;
	pthread_mutex_unlock(&lock);
	return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication queue: a thread that runs submissions one after the other, so that compute goes
 * on meanwhile. A caller that waits for one that has not begun runs the queue itself, which saves
 * two changes of thread. Where MPI forbids threads, submissions run at once, in the thread that
 * makes them.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "host.h"

struct zero_work {
	atomic_uint references;
	struct zero_work *next;
	struct zero_op *ops;
	size_t count;
	bool done;
	zero_status status;
	int rank; /* that the error is about; before it is run -1 if that is this one */
	uint64_t hash;
	char *error;
	char label[128];
};

struct zero_queue {
	struct zero_comm *comm;
	struct zero_pool *pool;
	const struct zero_kernels *kernels;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more, done;
	struct zero_work *first, *last;
	bool threaded, ending;
	pthread_t opener; /* the only one that may submit where MPI says so */
	bool busy;        /* a thread runs a submission */
	/* Set once an error has left the ranks apart: nothing is run any more. */
	struct zero_work *broken;
};

void zero_work_get(struct zero_work *work)
{
	atomic_fetch_add(&work->references, 1);
}

void zero_work_put(struct zero_work *work)
{
	if (!work || atomic_fetch_sub(&work->references, 1) != 1)
		return;
	free(work->ops);
	free(work->error);
	free(work);
}

/* ---- running ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = (hash ^ value) * UINT64_C(0xff51afd7ed558ccd);
	return hash ^ hash >> 32;
}

/* Of all that must be equal on all ranks. */
static uint64_t intent_hash(const struct zero_work *work)
{
	uint64_t hash = work->hash;

	for (size_t i = 0; i < work->count; i++) {
		const struct zero_op *op = &work->ops[i];

		if (op->kind == ZERO_OP_FREE)
			continue;
		hash = mix(hash, (uint64_t)op->kind << 32 | (uint64_t)op->from << 16 |
					 (uint64_t)op->to << 8 | op->accumulate);
		hash = mix(mix(hash, (uint64_t)op->root), op->count);
	}
	return hash;
}

static zero_status all_gather(struct zero_queue *queue, const struct zero_op *op)
{
	size_t bytes = op->count * zero_core->dtype_size(op->to);
	const void *send = op->send;

	if (op->from != op->to) {
		char *own = (char *)op->recv + bytes * (size_t)queue->comm->place.rank;

		queue->kernels->cast(op->to, own, op->from, op->send, op->count);
		send = own;
	}
	/* Counted here, since small exchanges go the same way. */
	queue->comm->bytes_sent += bytes * (size_t)(queue->comm->place.world - 1);
	return queue->comm->ops->all_gather(queue->comm, send, op->recv, bytes);
}

static zero_status run_op(struct zero_queue *queue, const struct zero_op *op)
{
	struct zero_comm *comm = queue->comm;
	size_t size = zero_core->dtype_size(op->from);

	if (op->kind != ZERO_OP_EXCHANGE)
		comm->collectives++;
	switch (op->kind) {
	case ZERO_OP_ALL_GATHER:
		return all_gather(queue, op);
	case ZERO_OP_REDUCE_SCATTER:
		return comm->ops->reduce_scatter(comm, op->send, op->recv, op->count,
						 op->accumulate);
	case ZERO_OP_SCATTER:
		return comm->ops->scatter(comm, op->root, op->send, op->recv, op->bounds, size,
					  op->piece * size);
	case ZERO_OP_BROADCAST:
		return comm->ops->broadcast(comm, op->root, op->send, op->recv, op->count * size,
					    op->piece * size);
	case ZERO_OP_EXCHANGE:
		return comm->ops->all_gather(comm, op->send, op->recv, op->count);
	case ZERO_OP_FREE:
		break;
	}
	return ZERO_OK;
}

static void keep_error(struct zero_work *work, zero_status status, int rank, const char *text)
{
	work->status = status;
	work->rank = rank;
	free(work->error);
	work->error = strdup(text);
}

static void run(struct zero_queue *queue, struct zero_work *work)
{
	struct zero_comm *comm = queue->comm;
	struct zero_intent intent = {.label = work->label,
				     .hash = intent_hash(work),
				     .status = work->status,
				     .error = work->error ? work->error : "",
				     .error_rank = work->rank};
	char text[1024] = "";
	zero_status status;
	int rank = comm->place.rank;

	status = comm->ops->agree(comm, &intent, text, sizeof(text), &rank);
	if (status && !*text)
		snprintf(text, sizeof(text), "%s: %s", work->label, zero_core->last_error());
	for (size_t i = 0; !status && i < work->count; i++) {
		if (work->ops[i].kind == ZERO_OP_FREE)
			continue;
		status = run_op(queue, &work->ops[i]);
		if (status)
			snprintf(text, sizeof(text), "%s: %s", work->label,
				 zero_core->last_error());
	}
	for (size_t i = 0; i < work->count; i++)
		if (work->ops[i].kind == ZERO_OP_FREE)
			zero_pool_free(queue->pool, work->ops[i].recv);
	work->status = ZERO_OK;
	if (status)
		keep_error(work, status, rank, text);
}

/* After such an error the ranks no longer stand at the same place. */
static bool breaks(zero_status status)
{
	return status == ZERO_E_ORDER || status == ZERO_E_COMM;
}

/* Nothing is communicated any more; what is to be given back still is. */
static void run_broken(struct zero_queue *queue, struct zero_work *work)
{
	const struct zero_work *broken = queue->broken;

	for (size_t i = 0; i < work->count; i++)
		if (work->ops[i].kind == ZERO_OP_FREE)
			zero_pool_free(queue->pool, work->ops[i].recv);
	keep_error(work, broken->status, broken->rank,
		   broken->error ? broken->error : "communication is broken");
}

/* With the lock, which is let go meanwhile. One thread at a time runs, whoever it is. */
static void run_first(struct zero_queue *queue)
{
	struct zero_work *work = queue->first;

	queue->first = work->next;
	queue->busy = true;
	pthread_mutex_unlock(&queue->lock);
	if (queue->broken)
		run_broken(queue, work);
	else
		run(queue, work);
	pthread_mutex_lock(&queue->lock);
	if (!queue->broken && breaks(work->status)) {
		zero_work_get(work);
		queue->broken = work;
	}
	queue->busy = false;
	work->done = true;
	pthread_cond_broadcast(&queue->done);
	/* A caller that ran its own work leaves the rest to the queue's thread. */
	if (queue->first)
		pthread_cond_signal(&queue->more);
	zero_work_put(work);
}

/* With the lock. Runs what comes before the work and the work itself, unless others do. */
static void run_until_done(struct zero_queue *queue, const struct zero_work *work)
{
	while (!work->done) {
		if (queue->first && !queue->busy)
			run_first(queue);
		else
			pthread_cond_wait(&queue->done, &queue->lock);
	}
}

static void *serve(void *context)
{
	struct zero_queue *queue = context;

	/* Short sleeps while peers are late must be short. */
	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
	pthread_setname_np(pthread_self(), "zero-comm");
	pthread_mutex_lock(&queue->lock);
	while (queue->first || !queue->ending) {
		if (queue->first && !queue->busy)
			run_first(queue);
		else
			pthread_cond_wait(&queue->more, &queue->lock);
	}
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

/* ---- the other side ------------------------------------------------------------------------ */

zero_status zero_queue_new(struct zero_comm *comm, struct zero_pool *pool,
			   const struct zero_kernels *kernels, struct zero_queue **queue)
{
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
	struct zero_queue *made = calloc(1, sizeof(*made));
	sigset_t all, before;
	int error;

	if (!made)
		return zero_core->fail(ZERO_E_MEMORY, "no memory for a queue");
	made->comm = comm;
	made->pool = pool;
	made->kernels = kernels;
	made->threaded = comm->threaded;
	made->opener = pthread_self();
	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->more, NULL);
	pthread_cond_init(&made->done, NULL);
	if (made->threaded) {
		/* Signals are the program's, but for those that say that this thread went wrong. */
		sigfillset(&all);
		for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
			sigdelset(&all, faults[i]);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = pthread_create(&made->thread, NULL, serve, made);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		if (error) {
			free(made);
			return zero_core->fail(ZERO_E_MEMORY,
					       "cannot start the communication thread: %s",
					       strerror(error));
		}
	}
	*queue = made;
	return ZERO_OK;
}

void zero_queue_delete(struct zero_queue *queue)
{
	if (!queue)
		return;
	if (queue->threaded) {
		pthread_mutex_lock(&queue->lock);
		queue->ending = true;
		pthread_cond_signal(&queue->more);
		pthread_mutex_unlock(&queue->lock);
		pthread_join(queue->thread, NULL);
	}
	zero_work_put(queue->broken);
	pthread_cond_destroy(&queue->more);
	pthread_cond_destroy(&queue->done);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
}

zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work)
{
	struct zero_work *made;
	struct zero_op *ops;

	if (queue->comm->main_only && !pthread_equal(queue->opener, pthread_self()))
		return zero_core->fail(ZERO_E_STATE,
				       "%s is begun in another thread than zero_open's, which the "
				       "program's MPI_Init does not allow: it needs "
				       "MPI_THREAD_MULTIPLE",
				       submission->label);
	made = calloc(1, sizeof(*made));
	ops = malloc((submission->count + 1) * sizeof(*ops));
	if (!made || !ops) {
		free(made);
		free(ops);
		return zero_core->fail(ZERO_E_MEMORY, "no memory to begin %s", submission->label);
	}
	if (submission->count)
		memcpy(ops, submission->ops, submission->count * sizeof(*ops));
	/* One reference is the queue's, one the caller's. */
	atomic_init(&made->references, 2);
	made->ops = ops;
	made->count = submission->count;
	made->hash = submission->hash;
	snprintf(made->label, sizeof(made->label), "%s", submission->label);
	if (submission->status)
		keep_error(made, submission->status, submission->error_rank, submission->error);
	pthread_mutex_lock(&queue->lock);
	if (queue->first)
		queue->last->next = made;
	else
		queue->first = made;
	queue->last = made;
	if (!queue->threaded)
		run_until_done(queue, made);
	else if (!submission->waited)
		pthread_cond_signal(&queue->more);
	pthread_mutex_unlock(&queue->lock);
	*work = made;
	return ZERO_OK;
}

zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work)
{
	pthread_mutex_lock(&queue->lock);
	run_until_done(queue, work);
	pthread_mutex_unlock(&queue->lock);
	if (!work->status)
		return ZERO_OK;
	return zero_core->fail_on(work->rank, work->status,
				  work->error ? work->error : zero_core->strerror(work->status));
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The communication queue. On the host a thread runs submissions one after the other, while the
 * caller computes. A caller that waits for a submission which has not begun runs the queue itself,
 * which saves two context switches. Where the program's MPI_Init forbids threads, and on a device,
 * which overlaps communication and compute by itself, a submission runs at once, in the thread that
 * makes it.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "comm.h"
#include "meter.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/thread.h"

struct zero_work {
	atomic_uint references;
	struct zero_comm *comm;
	struct zero_work *next;
	struct zero_op *ops;
	size_t count;
	struct zero_device_order order;
	bool done, agreed, leaving;
	zero_status status;
	int rank; /* that the error is about; before the run, -1 for this one */
	uint64_t hash;
	char *error;
	enum zero_work_kind kind;
	char group[ZERO_WORK_GROUP];
	char label[128];
};

struct zero_queue {
	struct zero_comm *comm;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t more, done;
	struct zero_work *first, *last;
	bool threaded, ending;
	pthread_t opener; /* the only thread that may submit if comm->main_thread_only */
	bool busy;        /* a thread runs a submission */
	/* The first submission after whose error ranks may differ in what they do next. Nothing
	   more is run on its communicator, and later ones on other communicators fail with its
	   error. */
	struct zero_work *broken;
	struct zero_progress progress;
};

void zero_work_get(struct zero_work *work)
{
	atomic_fetch_add(&work->references, 1);
}

void zero_work_put(struct zero_work *work)
{
	if (!work || atomic_fetch_sub(&work->references, 1) != 1)
		return;
	if (work->comm->ops->device_order_free)
		work->comm->ops->device_order_free(work->comm, &work->order);
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

/* The hash of all that must be equal on all ranks. */
static uint64_t intent_hash(const struct zero_work *work)
{
	uint64_t hash = work->hash;

	for (size_t i = 0; i < work->count; i++) {
		const struct zero_op *op = &work->ops[i];

		/* What no other rank shares may have memory on one rank already. */
		if (op->kind == ZERO_OP_FREE || (op->kind == ZERO_OP_ALLOC && op->own))
			continue;
		hash = mix(hash, (uint64_t)op->kind << 32 | (uint64_t)op->from << 16 |
					 (uint64_t)op->to << 8 | op->accumulate);
		hash = mix(hash, op->divides ? UINT64_MAX : (uint64_t)op->root);
		/* Nodes with fewer ranks allocate smaller buffers. */
		if (op->kind != ZERO_OP_ALLOC)
			hash = mix(hash, op->count);
		for (size_t m = 0; op->kind == ZERO_OP_TEAM_COMM && !op->divides && m < op->count;
		     m++)
			hash = mix(hash, (uint64_t)op->members[m]);
	}
	return hash;
}

static void set_error(struct zero_work *work, zero_status status, int rank, const char *text)
{
	work->status = status;
	work->rank = rank;
	free(work->error);
	work->error = strdup(text);
}

static void free_buffers(const struct zero_work *work)
{
	for (size_t i = 0; i < work->count; i++)
		if (work->ops[i].kind == ZERO_OP_FREE)
			work->comm->ops->free(work->comm, work->ops[i].recv, &work->order);
}

static const char *broken_text(const struct zero_queue *queue)
{
	return queue->broken->error ? queue->broken->error : "communication is broken";
}

static void report_to_meter(const struct zero_queue *queue, const struct zero_work *work,
			    struct zero_metered metered)
{
	const struct zero_meter *meter = queue->comm->meter;

	if (!meter)
		return;
	metered.kind = work->kind;
	metered.group = work->group;
	metered.label = work->label;
	metered.done = zero_meter_now(meter);
	metered.bytes = queue->comm->bytes_sent - metered.bytes;
	metered.failed = work->status != ZERO_OK;
	meter->add(meter->context, &metered);
}

/* After such an error ranks may differ in what they do next. */
static bool breaks_order(zero_status status)
{
	return status == ZERO_E_ORDER || status == ZERO_E_COMM;
}

static bool must_agree(const struct zero_work *work)
{
	return work->agreed || work->leaving || !work->comm->in_order;
}

/* Returns the error, if any, that all ranks have. Without an agreement it is this rank's alone. */
static zero_status reach_agreement(const struct zero_work *work, const struct zero_intent *intent,
				   char *text, size_t size, int *rank)
{
	struct zero_sequence *sequence = &work->comm->sequence;

	if (work->leaving)
		return zero_agree_leave(work->comm, intent, text, size, rank);
	if (must_agree(work)) {
		zero_comm_of_job(work->comm)->agreements++;
		return zero_agree_on(work->comm, intent, text, size, rank);
	}
	sequence->hash = mix(sequence->hash, intent->hash);
	sequence->count++;
	snprintf(sequence->last, sizeof(sequence->last), "%s", work->label);
	if (intent->error_rank >= 0)
		*rank = intent->error_rank;
	if (intent->status)
		snprintf(text, size, "%s", intent->error);
	return intent->status;
}

static void run_submission(struct zero_queue *queue, struct zero_work *work)
{
	const struct zero_meter *meter = queue->comm->meter;
	struct zero_metered metered = {.begun = zero_meter_now(meter),
				       .bytes = queue->comm->bytes_sent};
	struct zero_comm *comm = work->comm;
	struct zero_intent intent = {.label = work->label,
				     .hash = intent_hash(work),
				     .status = work->status,
				     .error = work->error ? work->error : "",
				     .error_rank = work->rank,
				     .leaving = work->leaving};
	char text[1024] = "", mine[1024];
	zero_status status, agreed;
	int rank = queue->comm->place.rank;

	if (queue->broken && !intent.status) {
		intent.status = queue->broken->status;
		intent.error = broken_text(queue);
		intent.error_rank = queue->broken->rank;
	}
	status = comm->ops->begin(comm, work->ops, work->count);
	if (status && !intent.status) {
		snprintf(mine, sizeof(mine), "%s: %s", work->label, zero_last_error());
		intent.status = status;
		intent.error = mine;
		intent.error_rank = -1;
	}
	metered.ready = zero_meter_now(meter);
	atomic_store(&queue->progress.agreeing, must_agree(work) && !work->leaving);
	agreed = reach_agreement(work, &intent, text, sizeof(text), &rank);
	atomic_store(&queue->progress.agreeing, false);
	metered.agreed = zero_meter_now(meter);
	if (agreed && !*text) {
		snprintf(text, sizeof(text), "%s: %s", work->label, zero_last_error());
		rank = zero_last_error_rank();
	}
	status = comm->ops->run(comm, work->ops, work->count, agreed, &work->order);
	if (status && !agreed) {
		snprintf(text, sizeof(text), "%s: %s", work->label, zero_last_error());
		rank = zero_last_error_rank();
	}
	free_buffers(work);
	/* The other ranks wait in what this rank did not run; or their devices do, in what this
	   rank's device did not finish when it failed. */
	if (status && comm->ops->fail_all &&
	    (!agreed || !must_agree(work) ||
	     (intent.status == ZERO_E_COMM && intent.error_rank < 0)))
		comm->ops->fail_all(comm, text);
	if (comm->diverged && comm->ops->abandon)
		comm->ops->abandon(comm);
	work->status = ZERO_OK;
	if (status)
		set_error(work, status, rank, text);
	report_to_meter(queue, work, metered);
}

/* Communicates nothing, but frees what the submission frees. */
static void fail_submission(struct zero_queue *queue, struct zero_work *work)
{
	const struct zero_work *broken = queue->broken;

	for (size_t i = 0; i < work->count; i++)
		if (work->ops[i].kind == ZERO_OP_ALLOC)
			*work->ops[i].shared = (struct zero_shared){0};
	free_buffers(work);
	set_error(work, broken->status, broken->rank, broken_text(queue));
}

static uint32_t device_reached(const struct zero_queue *queue)
{
	const struct zero_comm *comm = queue->comm;

	return comm->ops->device_reached ? comm->ops->device_reached(comm) : 0;
}

bool zero_queue_recent(struct zero_queue *queue, struct zero_recent_submission *recent)
{
	return zero_progress_recent(&queue->progress, device_reached(queue), recent);
}

struct zero_spent zero_queue_spent(struct zero_queue *queue)
{
	if (queue->comm->ops->spent)
		return queue->comm->ops->spent(queue->comm);
	return zero_progress_spent(&queue->progress);
}

void zero_queue_device_wait(struct zero_queue *queue, bool waits)
{
	atomic_store(&queue->progress.device_wait, waits ? zero_nanoseconds() : 0);
}

/* Called with the lock held, which is released during the run. One thread at a time is here. */
static void run_first(struct zero_queue *queue)
{
	struct zero_work *work = queue->first;

	zero_progress_begin(&queue->progress, work->comm, work->label);
	queue->first = work->next;
	queue->busy = true;
	pthread_mutex_unlock(&queue->lock);
	/* A rank that closes the job still notifies the communicators that are not broken. */
	if (work->comm->broken && !work->leaving)
		fail_submission(queue, work);
	else
		run_submission(queue, work);
	pthread_mutex_lock(&queue->lock);
	work->comm->broken |= breaks_order(work->status);
	if (!queue->broken && breaks_order(work->status)) {
		zero_work_get(work);
		queue->broken = work;
	}
	queue->busy = false;
	zero_progress_end(&queue->progress, work->order.mark, device_reached(queue));
	work->done = true;
	pthread_cond_broadcast(&queue->done);
	/* If a caller ran its own work, the queue's thread goes on with the rest. */
	if (queue->first)
		pthread_cond_signal(&queue->more);
	zero_work_put(work);
}

static void meter_wait(struct zero_comm *comm, bool begins)
{
	if (comm->ops->wait)
		comm->ops->wait(comm, begins);
}

/* Called with the lock held. Runs the queue up to this work, unless another thread does. */
static void run_until_done(struct zero_queue *queue, const struct zero_work *work)
{
	while (!work->done) {
		if (queue->first && !queue->busy)
			run_first(queue);
		else
			pthread_cond_wait(&queue->done, &queue->lock);
	}
}

static void *queue_thread(void *context)
{
	struct zero_queue *queue = context;

	/* While peers are late the backend sleeps for microseconds; the default slack is 50 us. */
	prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
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

/* ---- the interface ------------------------------------------------------------------------- */

zero_status zero_queue_new(struct zero_comm *comm, struct zero_queue **queue)
{
	struct zero_queue *made = calloc(1, sizeof(*made));
	int error;

	if (!made)
		return zero_fail(ZERO_E_MEMORY, "no memory for a queue");
	made->comm = comm;
	made->threaded = comm->threaded;
	made->opener = pthread_self();
	pthread_mutex_init(&made->lock, NULL);
	pthread_cond_init(&made->more, NULL);
	pthread_cond_init(&made->done, NULL);
	zero_progress_init(&made->progress);
	if (made->threaded) {
		error = zero_thread_start(&made->thread, "zero-comm", queue_thread, made);
		if (error) {
			free(made);
			return zero_fail(ZERO_E_MEMORY, "cannot start the communication thread: %s",
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
	zero_progress_destroy(&queue->progress);
	pthread_cond_destroy(&queue->more);
	pthread_cond_destroy(&queue->done);
	pthread_mutex_destroy(&queue->lock);
	free(queue);
}

zero_status zero_queue_submit(struct zero_queue *queue, const struct zero_submission *submission,
			      struct zero_work **work)
{
	struct zero_comm *comm = submission->team_comm ? submission->team_comm->comm : queue->comm;
	struct zero_work *made;
	struct zero_op *ops;
	bool waits;

	if (queue->comm->main_thread_only && !pthread_equal(queue->opener, pthread_self()))
		return zero_fail(ZERO_E_STATE,
				 "%s is begun in another thread than zero_open's, which the "
				 "program's MPI_Init does not allow: it needs "
				 "MPI_THREAD_MULTIPLE",
				 submission->label);
	made = calloc(1, sizeof(*made));
	ops = malloc((submission->count + 1) * sizeof(*ops));
	if (!made || !ops) {
		free(made);
		free(ops);
		return zero_fail(ZERO_E_MEMORY, "no memory to begin %s", submission->label);
	}
	if (submission->count)
		memcpy(ops, submission->ops, submission->count * sizeof(*ops));
	/* One is the queue's reference, one the caller's. */
	atomic_init(&made->references, 2);
	made->comm = comm;
	made->ops = ops;
	made->count = submission->count;
	made->hash = submission->hash;
	made->agreed = submission->agreed;
	made->leaving = submission->leaving;
	made->kind = submission->kind;
	snprintf(made->group, sizeof(made->group), "%s",
		 submission->group ? submission->group : "");
	snprintf(made->label, sizeof(made->label), "%s", submission->label);
	if (submission->status)
		set_error(made, submission->status, submission->error_rank, submission->error);
	if (comm->ops->device_order_begin)
		comm->ops->device_order_begin(comm, &made->order);
	/* The host does so in an agreement. */
	waits = !queue->threaded && must_agree(made);
	if (waits)
		meter_wait(comm, true);
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
	if (waits)
		meter_wait(comm, false);
	*work = made;
	return ZERO_OK;
}

zero_status zero_queue_wait(struct zero_queue *queue, struct zero_work *work)
{
	zero_status joined = ZERO_OK;

	meter_wait(work->comm, true);
	pthread_mutex_lock(&queue->lock);
	run_until_done(queue, work);
	pthread_mutex_unlock(&queue->lock);
	/* Also after an error: what was begun must end before its buffers are freed. */
	if (work->order.after)
		joined = work->comm->ops->device_order_join(work->comm, &work->order);
	meter_wait(work->comm, false);
	if (!work->status)
		return joined;
	return zero_fail_on(work->rank, work->status,
			    work->error ? work->error : zero_strerror(work->status));
}

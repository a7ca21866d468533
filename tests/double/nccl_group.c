/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: calls between ncclGroupStart and ncclGroupEnd take effect at ncclGroupEnd. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "nccl.h"

/* The thread's group. A call outside a group is a group of its own. */
static _Thread_local struct {
	int depth;
	ncclResult_t error; /* the first of its calls */
	struct op *ops, **last_op;
	struct job *jobs, **last_job;
	struct ncclComm *held[64];
	int holds;
} group;

/* Operations that a helper thread enqueues. */
struct batch {
	struct op *ops;
};

static void job_free(struct job *job)
{
	free(job->ids);
	free(job);
}

static void ops_free(struct op *ops)
{
	while (ops) {
		struct op *next = ops->next;

		free(ops);
		ops = next;
	}
}

void comm_hold(struct ncclComm *comm, const char *function)
{
	uintptr_t holder = 0, self = (uintptr_t)pthread_self();

	if (!comm || atomic_compare_exchange_strong(&comm->holder, &holder, self))
		return;
	if (holder != self)
		die("rank %d: %s is called while another thread is in a call on the communicator",
		    comm->rank, function);
}

void comm_release(struct ncclComm *comm)
{
	if (comm)
		atomic_store(&comm->holder, 0);
}

/* Until the group ends. */
static void hold(struct ncclComm *comm, const char *function)
{
	static _Atomic unsigned calls;
	int i = 0;

	comm_hold(comm, function);
	/* another thread that calls now is seen */
	if (setting_seed() && ++calls % 8 == 0)
		nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
	while (i < group.holds && group.held[i] != comm)
		i++;
	if (i == 64)
		die("more than 64 communicators in a group");
	group.held[i] = comm;
	group.holds += i == group.holds;
}

static void enter(void)
{
	if (group.depth++)
		return;
	group.error = ncclSuccess;
	group.ops = NULL;
	group.last_op = &group.ops;
	group.jobs = NULL;
	group.last_job = &group.jobs;
}

static void *job_thread(void *data)
{
	struct job *job = data;
	struct ncclComm *comm = job->comm;

	driver_push(comm->context);
	job->result = job->run(job);
	driver_pop(comm->context);
	if (comm->blocking)
		return NULL;
	job_free(job);
	return NULL;
}

static void *detached_job(void *data)
{
	struct job *job = data;
	struct ncclComm *comm = job->comm;

	driver_push(comm->context);
	atomic_store(&comm->async, job->run(job));
	driver_pop(comm->context);
	job_free(job);
	comm_idle(comm);
	return NULL;
}

static void start_detached(void *(*run)(void *), void *data)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, data) || pthread_detach(thread))
		die("no thread");
}

static ncclResult_t begin_jobs(struct job *jobs)
{
	while (jobs) {
		struct job *job = jobs;

		jobs = job->next;
		comm_busy(job->comm);
		atomic_store(&job->comm->async, ncclInProgress);
		start_detached(detached_job, job);
	}
	return ncclInProgress;
}

/* The jobs run at the same time, because jobs of one process may wait for each other. An abort in
   another thread waits for them. */
static ncclResult_t run_jobs(struct job *jobs)
{
	ncclResult_t result = ncclSuccess;
	bool alone = !jobs->next;

	for (struct job *job = jobs; job; job = job->next)
		comm_busy(job->comm);
	if (alone)
		jobs->result = jobs->run(jobs);
	for (struct job *job = jobs; job && !alone; job = job->next)
		if (pthread_create(&job->thread, NULL, job_thread, job))
			die("no thread");
	while (jobs) {
		struct job *job = jobs;

		jobs = job->next;
		if (!alone)
			pthread_join(job->thread, NULL);
		atomic_store(&job->comm->async, job->result);
		if (!result)
			result = job->result;
		comm_idle(job->comm);
		job_free(job);
	}
	return result;
}

/* Removes from the list the operations of the first operation's communicator. */
static struct op *take_comm(struct op **ops)
{
	struct ncclComm *comm = (*ops)->comm;
	struct op *taken = NULL, **last = &taken;

	while (*ops) {
		struct op *op = *ops;

		if (op->comm != comm) {
			ops = &op->next;
			continue;
		}
		*ops = op->next;
		op->next = NULL;
		*last = op;
		last = &op->next;
	}
	return taken;
}

/* Finds the streams of a launch besides that of its first operation. Returns how many. */
static int other_streams(const struct launch *launch, cudaStream_t *other, int room)
{
	int others = 0;

	for (const struct op *op = launch->ops; op; op = op->next) {
		bool known = op->stream == launch->ops->stream;

		for (int i = 0; i < others && !known; i++)
			known = op->stream == other[i];
		if (!known && others == room)
			die("more than %d streams in a group", room + 1);
		if (!known)
			other[others++] = op->stream;
	}
	return others;
}

/* Takes ownership of the launch. */
static bool queue_captured(struct launch *launch, cudaStream_t stream)
{
	struct ncclComm *comm = launch->comm;

	pthread_mutex_lock(&comm->mutex);
	comm->captured++;
	comm->references++;
	pthread_mutex_unlock(&comm->mutex);
	if (driver_run(stream, run_launch, launch, launch_renew, launch_drop))
		return true;
	launch_drop(launch);
	return false;
}

/* Takes ownership of the launch. */
static bool queue(struct launch *launch, cudaStream_t stream)
{
	struct ncclComm *comm = launch->comm;

	if (driver_captures(stream))
		return queue_captured(launch, stream);
	launch_add(launch);
	if (driver_run(stream, run_launch, launch, NULL, NULL))
		return true;
	pthread_mutex_lock(&comm->mutex);
	comm->queued--;
	comm->launches = launch->next;
	pthread_mutex_unlock(&comm->mutex);
	comm_put(comm);
	launch_free(launch);
	return false;
}

/* As NCCL's: it runs on the first stream, which waits for the others, and they for it. Takes the
   launch. */
static ncclResult_t put_on_stream(struct launch *launch)
{
	cudaStream_t stream = launch->ops->stream, other[16];
	int others = other_streams(launch, other, 16);
	bool good = true;

	for (int i = 0; i < others && good; i++)
		good = driver_order(stream, other[i]);
	if (!good)
		launch_free(launch);
	good = good && queue(launch, stream);
	for (int i = 0; i < others && good; i++)
		good = driver_order(other[i], stream);
	return good ? ncclSuccess
		    : refuse(ncclUnhandledCudaError, "the driver refuses to launch a kernel");
}

/* Takes ownership of the operations. */
static ncclResult_t launch_all(struct op *ops)
{
	ncclResult_t result = ncclSuccess;

	while (ops && !result) {
		struct launch *launch = calloc(1, sizeof *launch);
		struct ncclComm *comm;

		if (!launch)
			die("no memory");
		launch->comm = comm = ops->comm;
		launch->ops = take_comm(&ops);
		driver_push(comm->context);
		result = put_on_stream(launch);
		driver_pop(comm->context);
	}
	ops_free(ops);
	return result;
}

/* Whether the operation is the first of its communicator. */
static bool is_first(const struct op *ops, const struct op *op)
{
	while (ops->comm != op->comm)
		ops = ops->next;
	return ops == op;
}

static void *batch_thread(void *data)
{
	struct batch *batch = data;
	struct timespec late = {.tv_nsec = 300000};
	struct ncclComm *comms[64];
	ncclResult_t result;
	int count = 0;

	for (const struct op *op = batch->ops; op; op = op->next) {
		if (is_first(batch->ops, op))
			comms[count++] = op->comm;
		if (op->slow)
			late.tv_nsec = 500000000;
	}
	/* the delay makes a caller that does not wait fail */
	nanosleep(&late, NULL);
	result = launch_all(batch->ops);
	for (int i = 0; i < count; i++) {
		atomic_store(&comms[i]->async, result);
		comm_idle(comms[i]);
	}
	free(batch);
	return NULL;
}

static ncclResult_t begin_batch(struct op *ops)
{
	struct batch *batch = calloc(1, sizeof *batch);
	int count = 0;

	if (!batch)
		die("no memory");
	batch->ops = ops;
	for (struct op *op = ops; op; op = op->next) {
		if (!is_first(ops, op))
			continue;
		if (++count > 64)
			die("more than 64 communicators in a group");
		comm_busy(op->comm);
		atomic_store(&op->comm->async, ncclInProgress);
	}
	start_detached(batch_thread, batch);
	return ncclInProgress;
}

/* Communicators of one group must all be blocking, or all non-blocking. */
static ncclResult_t check_blocking(bool *blocking)
{
	int yes = 0, no = 0;

	for (const struct op *op = group.ops; op; op = op->next)
		*(op->comm->blocking ? &yes : &no) += 1;
	for (const struct job *job = group.jobs; job; job = job->next)
		*(job->comm->blocking ? &yes : &no) += 1;
	if (yes && no)
		return refuse(ncclInvalidUsage,
			      "blocking and non-blocking communicators in one group");
	if (group.ops && group.jobs)
		return refuse(ncclInvalidUsage,
			      "operations and calls on communicators in one group");
	*blocking = yes > 0;
	return ncclSuccess;
}

static ncclResult_t close_group(void)
{
	struct op *ops = group.ops;
	struct job *jobs = group.jobs;
	bool blocking = true;

	if (!group.error)
		group.error = check_blocking(&blocking);
	if (!group.error)
		group.error = check_group(ops);
	if (group.error) {
		ops_free(ops);
		while (jobs) {
			jobs = jobs->next;
			job_free(group.jobs);
			group.jobs = jobs;
		}
		return group.error;
	}
	if (jobs)
		return blocking ? run_jobs(jobs) : begin_jobs(jobs);
	if (ops)
		return blocking ? launch_all(ops) : begin_batch(ops);
	return ncclSuccess;
}

static ncclResult_t leave(void)
{
	ncclResult_t result;

	if (--group.depth)
		return group.error;
	result = close_group();
	while (group.holds)
		comm_release(group.held[--group.holds]);
	return result;
}

ncclResult_t submit_job(struct job *job)
{
	enter();
	hold(job->comm, "a call");
	*group.last_job = job;
	group.last_job = &job->next;
	return leave();
}

static ncclResult_t prepare_op(struct op *op, const char *function)
{
	ncclResult_t result;

	switch (trouble_in(function, true, &result)) {
	case FAIL:
		return result;
	case KILL:
		op->kill = true;
		break;
	case HANG:
		op->hang = true;
		break;
	case SLOW:
		op->slow = true;
		break;
	case NO_TROUBLE:
		break;
	}
	result = comm_ready(op->comm, function);
	if (!result && !op->comm->blocking && driver_captures(op->stream))
		result = refuse(ncclInvalidUsage,
				"%s: the stream is captured, and the communicator does not block",
				function);
	/* The stream would wait for the event of a launch, and copy engines have recorded none. */
	if (!result && op->comm->copy_engines && op->kind == ALL_GATHER &&
	    driver_captures(op->stream) && getenv("NCCL_LAUNCH_ORDER_IMPLICIT"))
		result = refuse(ncclUnhandledCudaError,
				"%s: a capture of copy engines with NCCL_LAUNCH_ORDER_IMPLICIT",
				function);
	return result ? result : check_op(op);
}

ncclResult_t submit_op(const struct op *op, const char *function)
{
	struct op *copy = malloc(sizeof *copy);
	ncclResult_t result;

	if (!copy)
		die("no memory");
	*copy = *op;
	enter();
	if (comm_alive(copy->comm, function))
		hold(copy->comm, function);
	result = prepare_op(copy, function);
	if (result) {
		if (!group.error)
			group.error = result;
		free(copy);
		leave();
		return result;
	}
	*group.last_op = copy;
	group.last_op = &copy->next;
	return leave();
}

ncclResult_t ncclGroupStart(void)
{
	ncclResult_t result;

	if (trouble_in("ncclGroupStart", false, &result) == FAIL)
		return result;
	enter();
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	ncclResult_t result;
	bool fail = trouble_in("ncclGroupEnd", false, &result) == FAIL;

	if (group.depth == 0)
		return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
	if (fail && !group.error)
		group.error = result;
	return leave();
}

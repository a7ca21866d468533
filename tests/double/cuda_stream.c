/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events. Each stream is a thread that runs the queued operations in order. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "cuda.h"

static bool id_taken[DOUBLE_CLOCKS];
static uint64_t sequences[DOUBLE_CLOCKS];
static uint64_t stream_count;
static bool held;

struct double_op *double_op_new(const char *call, CUresult (*run)(struct double_op *op))
{
	struct double_op *op = double_new(1, sizeof(*op));

	op->call = call;
	op->run = run;
	return op;
}

void double_op_free(struct double_op *op)
{
	free(op->accesses);
	free(op->arguments);
	free(op->staging);
	free(op);
}

static unsigned take_id(void)
{
	unsigned id = 0;

	while (id < DOUBLE_CLOCKS && id_taken[id])
		id++;
	if (id < DOUBLE_CLOCKS)
		id_taken[id] = true;
	return id;
}

static void give_id(unsigned id)
{
	if (id < DOUBLE_CLOCKS)
		id_taken[id] = false;
}

CUstream double_stream_new(CUcontext context, unsigned flags)
{
	CUstream stream = double_new(1, sizeof(*stream));

	double_object_add(stream, DOUBLE_STREAM);
	stream->context = context;
	stream->flags = flags;
	stream->id = take_id();
	double_schedule_begin(stream, ++stream_count);
	pthread_cond_init(&stream->work, NULL);
	return stream;
}

CUresult double_stream_of(CUstream handle, const char *call, CUstream *stream)
{
	CUcontext context = double_current();

	*stream = handle;
	if (handle && handle != CU_STREAM_LEGACY) {
		CUresult result = double_object_check(handle, DOUBLE_STREAM, call);

		return result ? result : double_capture_state(handle);
	}
	if (!context->legacy)
		context->legacy = double_stream_new(context, CU_STREAM_DEFAULT);
	*stream = context->legacy;
	return double_capture_legacy();
}

/* Called with the lock held, which is released while the operation runs. */
static void run(CUstream stream, struct double_op *op)
{
	CUresult result = CUDA_SUCCESS;

	if (!op->always)
		result = stream->context->fault;
	if (!result)
		result = double_access(op, 0);
	if (!result) {
		double_unlock();
		result = op->run(op);
		double_lock();
	}
	if (result && !stream->context->fault)
		stream->context->fault = result;
	double_access_done(op);
}

/* Runs the first operation of the queue. Called with the lock held. */
static void run_first(CUstream stream)
{
	struct double_op *op = stream->first;

	if (!op->always)
		double_schedule(stream);
	while (held)
		double_wait();
	run(stream, op);
	stream->first = op->next;
	if (!op->next)
		stream->last = NULL;
	stream->done++;
	double_happened();
	double_op_free(op);
}

static void *work(void *argument)
{
	CUstream stream = argument;

	prctl(PR_SET_TIMERSLACK, 1000UL); /* the default would make 50 us the shortest delay */
	double_lock();
	for (;;) {
		while (!stream->first && !stream->object.dead)
			double_sleep(stream);
		if (!stream->first)
			break;
		run_first(stream);
	}
	give_id(stream->id);
	double_unlock();
	return NULL;
}

/* The program's threads handle signals, not those of the driver. */
static void start(CUstream stream)
{
	pthread_attr_t attributes;
	pthread_t thread;
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attributes, work, stream))
		double_die("the host starts no thread for a stream");
	pthread_attr_destroy(&attributes);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	stream->started = true;
}

static void wait_for(CUstream stream, uint64_t operations, const struct double_clock *clock)
{
	const struct double_clock upto = *clock;

	double_count("round_trips");
	double_host_waits(true);
	while (stream->done < operations)
		double_wait();
	double_host_waits(false);
	double_host_saw(&upto);
}

void double_stream_drain(CUstream stream)
{
	wait_for(stream, stream->queued, &stream->clock);
}

void double_context_drain(CUcontext context)
{
	for (struct double_object *o = double_objects(); o; o = o->next)
		if (o->kind == DOUBLE_STREAM && ((CUstream)o)->context == context)
			double_stream_drain((CUstream)o);
}

void double_queue(CUstream stream, struct double_op *op)
{
	if (stream->capture) {
		double_capture_op(stream, op);
		return;
	}
	op->stream = stream;
	double_clock_join(&stream->clock, double_host_clock());
	if (stream->id < DOUBLE_CLOCKS) {
		op->sequence = ++sequences[stream->id];
		stream->clock.at[stream->id] = op->sequence;
	}
	op->clock = stream->clock;
	double_access_queue(op, true);
	if (stream->last)
		stream->last->next = op;
	else
		stream->first = op;
	stream->last = op;
	stream->queued++;
	/* The caller would wait for another thread at each call: it runs its own operation. */
	if (stream == stream->context->legacy && double_settings.legacy_waits) {
		double_host_waits(true);
		while (stream->first != op)
			double_wait();
		run_first(stream);
		double_host_waits(false);
		double_host_saw(&stream->clock);
		return;
	}
	if (!stream->started)
		start(stream);
	pthread_cond_signal(&stream->work);
}

void double_cuda_hold(bool hold)
{
	double_lock();
	held = hold;
	double_happened();
	double_unlock();
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	(void)priority; /* clamped to the range of priorities, as by the driver */
	if (!result && flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		*stream = double_stream_new(double_current(), flags);
	return double_leave(result);
}

void double_stream_end(CUstream stream)
{
	if (stream->capture)
		double_capture_spoil(stream->capture, CUDA_SUCCESS);
	stream->object.dead = true;
	if (stream->started)
		pthread_cond_signal(&stream->work);
	else
		give_id(stream->id);
}

/* Queued operations still run. */
CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);

	if (!result)
		result = double_object_check(stream, DOUBLE_STREAM, __func__);
	if (!result) {
		double_stream_end(stream);
		result = stream->context->fault;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && stream->capture)
		result = double_capture_spoil(stream->capture,
					      CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (!result) {
		double_stream_drain(stream);
		double_pools_trim(stream->context);
		result = stream->context->fault;
	}
	return double_leave(result);
}

void double_marker_put(struct double_marker *marker)
{
	if (marker && !--marker->references)
		free(marker);
}

static CUresult run_record(struct double_op *op)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	double_lock();
	op->marker->time = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	op->marker->done = true;
	double_marker_put(op->marker);
	double_happened();
	double_unlock();
	return CUDA_SUCCESS;
}

static CUresult run_wait(struct double_op *op)
{
	double_lock();
	while (!op->marker->done)
		double_wait();
	double_marker_put(op->marker);
	double_unlock();
	return CUDA_SUCCESS;
}

struct double_marker *double_marker_record(CUstream stream)
{
	struct double_op *op = double_op_new("cuEventRecord", run_record);
	struct double_marker *marker = double_new(1, sizeof(*marker));

	op->always = true;
	op->marker = marker;
	marker->references = 2;
	double_clock_join(&marker->clock, &stream->clock);
	double_clock_join(&marker->clock, double_host_clock());
	/* It may run before this returns. */
	double_queue(stream, op);
	return marker;
}

void double_marker_wait(CUstream stream, struct double_marker *marker)
{
	struct double_op *op = double_op_new("cuStreamWaitEvent", run_wait);

	op->always = true;
	op->marker = marker;
	marker->references++;
	double_clock_join(&stream->clock, &marker->clock);
	double_queue(stream, op);
}

CUresult CUDAAPI cuEventCreate(CUevent *event, unsigned int flags)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);

	if (!result && flags & ~(unsigned)(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING |
					   CU_EVENT_INTERPROCESS))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		*event = double_new(1, sizeof(**event));
		double_object_add(*event, DOUBLE_EVENT);
		(*event)->context = double_current();
		(*event)->flags = flags;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent event)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT_OR_FAULT);

	if (!result)
		result = double_object_check(event, DOUBLE_EVENT, __func__);
	if (!result) {
		event->object.dead = true;
		double_marker_put(event->marker);
		event->marker = NULL;
		result = event->context->fault;
	}
	return double_leave(result);
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream handle)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	struct double_marker *before;
	CUstream stream;

	if (!result)
		result = double_object_check(event, DOUBLE_EVENT, __func__);
	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && event->context != stream->context)
		result = CUDA_ERROR_INVALID_HANDLE;
	if (!result) {
		before = event->marker;
		event->marker = stream->capture ? double_capture_record(stream)
						: double_marker_record(stream);
		double_marker_put(before);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUstream stream;

	if (!result)
		result = double_object_check(event, DOUBLE_EVENT, __func__);
	if (!result)
		result = double_stream_of(handle, __func__, &stream);
	if (!result && flags)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && event->marker) {
		if (stream->capture || event->marker->capture)
			result = double_capture_wait(stream, event->marker);
		else
			double_marker_wait(stream, event->marker);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuEventQuery(CUevent event)
{
	CUresult result = double_enter(__func__, DOUBLE_INIT);

	if (!result)
		result = double_object_check(event, DOUBLE_EVENT, __func__);
	if (!result)
		result = event->context->fault;
	if (!result && event->marker && event->marker->capture)
		result = double_capture_spoil(event->marker->capture, CUDA_ERROR_CAPTURED_EVENT);
	if (!result && event->marker && !event->marker->done) {
		/* who asks until it is ready makes one round trip */
		if (!event->marker->asked)
			double_count("round_trips");
		event->marker->asked = true;
		result = CUDA_ERROR_NOT_READY;
	}
	if (!result && event->marker)
		double_host_saw(&event->marker->clock);
	return double_leave(result);
}

/* Newer headers give it another name, which older drivers do not have. */
#undef cuEventElapsedTime
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end);

/* CUDA refuses events that have no timing, were never recorded, or were in a capture. Who only
   measures learns nothing of the order of operations. */
CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent begin, CUevent end)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	CUevent events[] = {begin, end};

	for (int i = 0; !result && i < 2; i++) {
		result = double_object_check(events[i], DOUBLE_EVENT, __func__);
		if (!result && (events[i]->flags & CU_EVENT_DISABLE_TIMING || !events[i]->marker ||
				events[i]->marker->capture))
			result = CUDA_ERROR_INVALID_HANDLE;
	}
	if (!result && !(begin->marker->done && end->marker->done))
		result = CUDA_ERROR_NOT_READY;
	if (!result)
		*milliseconds =
			(float)(1e-6 * ((double)end->marker->time - (double)begin->marker->time));
	return double_leave(result);
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
	CUresult result = double_enter(__func__, DOUBLE_CONTEXT);
	struct double_marker *marker;

	if (!result)
		result = double_object_check(event, DOUBLE_EVENT, __func__);
	if (!result && event->marker && event->marker->capture)
		result = double_capture_spoil(event->marker->capture, CUDA_ERROR_CAPTURED_EVENT);
	if (!result && event->marker) {
		marker = event->marker;
		marker->references++;
		double_count("round_trips");
		double_host_waits(true);
		while (!marker->done)
			double_wait();
		double_host_waits(false);
		double_host_saw(&marker->clock);
		double_marker_put(marker);
		double_pools_trim(event->context);
		result = event->context->fault;
	}
	return double_leave(result);
}

static CUresult run_function(struct double_op *op)
{
	double_in_function = op;
	op->function(op->user);
	double_in_function = NULL;
	return CUDA_SUCCESS;
}

static CUresult launch(const char *call, CUstream handle, CUhostFn function, void *user,
		       void *(*renew)(void *), void (*drop)(void *))
{
	CUresult result = double_enter(call, DOUBLE_CONTEXT);
	struct double_op *op;
	CUstream stream;

	if (!result)
		result = double_stream_of(handle, call, &stream);
	if (!result && !function)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		op = double_op_new("cuLaunchHostFunc", run_function);
		op->function = function;
		op->user = user;
		op->renew = renew;
		op->drop = drop;
		double_queue(stream, op);
	}
	return double_leave(result);
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user)
{
	return launch(__func__, handle, function, user, NULL, NULL);
}

CUresult double_cuda_launch(CUstream handle, CUhostFn function, void *user, void *(*renew)(void *),
			    void (*drop)(void *))
{
	return launch(__func__, handle, function, user, renew, drop);
}

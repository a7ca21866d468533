/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capture of streams. What a program does on a stream that is capturing is written down, one step
 * after the other, and cuda_graph.c repeats the steps. A stream joins a capture when it waits for
 * an event of it, and is then a lane of it. What could wait for work that does not run, or depend
 * on it, is refused as the driver does, and spoils the capture.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

struct double_capture {
	uint64_t id;
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool spoilt, ended;
	CUstream lanes[DOUBLE_CLOCKS]; /* from the one that began it */
	int lane_count;
	/* for each lane, how many operations of each lane are ordered before what comes next on
	   it */
	struct double_clock before[DOUBLE_CLOCKS];
	struct double_script *script;
	struct double_capture *next; /* of those that have not ended, or have */
};

static struct double_capture *open_captures, *ended_captures; /* events know of ended ones */
static uint64_t capture_count;
static _Thread_local CUstreamCaptureMode own_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* Calls that may wait for a device, or for what is captured. */
static const char *const unsafe[] = {
	"cuMemAlloc_v2",  "cuMemFree_v2",       "cuMemHostAlloc",      "cuMemFreeHost",
	"cuEventQuery",   "cuEventSynchronize", "cuStreamSynchronize", "cuModuleLoadData",
	"cuModuleUnload", "cuCtxSynchronize",
};

static bool is_prohibited(const struct double_capture *capture)
{
	bool own = pthread_equal(capture->thread, pthread_self());

	if (capture->spoilt || own_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (own)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return own_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
	       capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult double_capture_allows(const char *call)
{
	CUresult result = CUDA_SUCCESS;
	size_t i = 0;

	if (!open_captures)
		return CUDA_SUCCESS;
	while (i < sizeof(unsafe) / sizeof(*unsafe) && strcmp(unsafe[i], call))
		i++;
	if (i == sizeof(unsafe) / sizeof(*unsafe))
		return CUDA_SUCCESS;
	for (struct double_capture *capture = open_captures; capture; capture = capture->next) {
		if (!is_prohibited(capture))
			continue;
		capture->spoilt = true;
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return result;
}

CUresult double_capture_spoil(struct double_capture *capture, CUresult result)
{
	capture->spoilt = true;
	return result;
}

/* Streams of the ordinary kind and the legacy stream wait for each other. */
CUresult double_capture_legacy(void)
{
	for (struct double_capture *capture = open_captures; capture; capture = capture->next)
		for (int i = 0; i < capture->lane_count; i++)
			if (!(capture->lanes[i]->flags & CU_STREAM_NON_BLOCKING))
				return double_capture_spoil(capture,
							    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	return CUDA_SUCCESS;
}

CUresult double_capture_state(CUstream stream)
{
	return stream->capture && stream->capture->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
							  : CUDA_SUCCESS;
}

static int lane_of(CUstream stream)
{
	int lane = 0;

	while (stream->capture->lanes[lane] != stream)
		lane++;
	return lane;
}

static void join(struct double_capture *capture, CUstream stream)
{
	if (capture->lane_count == DOUBLE_CLOCKS)
		double_die("more than %d streams in a capture", DOUBLE_CLOCKS);
	stream->capture = capture;
	capture->lanes[capture->lane_count++] = stream;
}

static struct double_step *new_step(struct double_script *script)
{
	if (script->count == script->size) {
		script->size = script->size ? 2 * script->size : 16;
		script->steps = realloc(script->steps, script->size * sizeof(*script->steps));
		if (!script->steps)
			double_die("the host has no memory for a graph");
	}
	memset(&script->steps[script->count], 0, sizeof(*script->steps));
	return &script->steps[script->count++];
}

void double_capture_op(CUstream stream, struct double_op *op)
{
	struct double_step *step = new_step(stream->capture->script);

	step->lane = lane_of(stream);
	step->op = op;
	stream->capture->before[step->lane].at[step->lane]++;
	double_access_queue(op, false);
}

struct double_marker *double_capture_record(CUstream stream)
{
	struct double_capture *capture = stream->capture;
	struct double_marker *marker = double_new(1, sizeof(*marker));
	struct double_step *step = new_step(capture->script);

	step->lane = lane_of(stream);
	step->marks = true;
	step->marker = marker->number = capture->script->markers++;
	marker->references = 1;
	marker->capture = capture;
	marker->clock = capture->before[step->lane];
	return marker;
}

CUresult double_capture_wait(CUstream stream, const struct double_marker *marker)
{
	struct double_capture *capture = marker->capture;
	struct double_step *step;

	if (!capture)
		return double_capture_spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
	if (capture->ended) {
		if (stream->capture)
			stream->capture->spoilt = true;
		return CUDA_ERROR_CAPTURED_EVENT;
	}
	if (capture->spoilt)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture && stream->capture != capture) {
		stream->capture->spoilt = true;
		return double_capture_spoil(capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	if (stream == stream->context->legacy)
		return double_capture_spoil(capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	if (!stream->capture)
		join(capture, stream);
	step = new_step(capture->script);
	step->lane = lane_of(stream);
	step->waits = true;
	step->marker = marker->number;
	double_clock_join(&capture->before[step->lane], &marker->clock);
	return CUDA_SUCCESS;
}

/* Like double_stream_of, but the stream's capture may be spoilt. */
static CUresult stream_of(CUstream handle, const char *call)
{
	CUresult result = double_enter(call, DOUBLE_CONTEXT);

	if (result || !handle || handle == CU_STREAM_LEGACY)
		return result;
	return double_object_check(handle, DOUBLE_STREAM, call);
}

CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	CUresult result = stream_of(stream, __func__);
	struct double_capture *capture;

	if (!result &&
	    (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && (!stream || stream == CU_STREAM_LEGACY))
		result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!result && stream->capture)
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (!result) {
		capture = double_new(1, sizeof(*capture));
		capture->id = ++capture_count;
		capture->mode = mode;
		capture->thread = pthread_self();
		capture->script = double_script_new();
		capture->next = open_captures;
		open_captures = capture;
		join(capture, stream);
	}
	return double_leave(result);
}

/* Whether all that was captured is ordered before the end of the first stream. */
static bool is_joined(const struct double_capture *capture)
{
	for (int i = 1; i < capture->lane_count; i++)
		if (capture->before[0].at[i] < capture->before[i].at[i])
			return false;
	return true;
}

static void end(struct double_capture *capture)
{
	struct double_capture **at;

	for (at = &open_captures; *at != capture; at = &(*at)->next)
		;
	*at = capture->next;
	capture->next = ended_captures;
	ended_captures = capture;
	capture->ended = true;
	for (int i = 0; i < capture->lane_count; i++)
		capture->lanes[i]->capture = NULL;
	capture->script->lanes = capture->lane_count;
}

static CUresult take(struct double_capture *capture, CUgraph *graph)
{
	end(capture);
	if (!capture->spoilt && is_joined(capture)) {
		*graph = double_graph_new(capture->script);
		return CUDA_SUCCESS;
	}
	double_script_put(capture->script);
	return capture->spoilt ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
			       : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	CUresult result = stream_of(stream, __func__);

	if (!result && !graph)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result && (!stream || stream == CU_STREAM_LEGACY || !stream->capture))
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (!result && stream->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(stream->capture->thread, pthread_self()))
		result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (!result && stream->capture->lanes[0] != stream)
		result = double_capture_spoil(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	if (!result) {
		*graph = NULL;
		result = take(stream->capture, graph);
	}
	return double_leave(result);
}

static CUresult state_of(CUstream stream, CUstreamCaptureStatus *status)
{
	if (!stream || stream == CU_STREAM_LEGACY) {
		*status = CU_STREAM_CAPTURE_STATUS_NONE;
		return double_capture_legacy();
	}
	*status = !stream->capture          ? CU_STREAM_CAPTURE_STATUS_NONE
		  : stream->capture->spoilt ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUresult result = stream_of(stream, __func__);

	return double_leave(result ? result : state_of(stream, status));
}

/* The graph and its nodes are not told. */
static CUresult tell(const char *call, CUstream stream, CUstreamCaptureStatus *status,
		     cuuint64_t *id)
{
	CUresult result = stream_of(stream, call);

	if (!result && !status)
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result)
		result = state_of(stream, status);
	if (!result && id && *status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
		*id = stream->capture->id;
	return double_leave(result);
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
					   cuuint64_t *id, CUgraph *graph,
					   const CUgraphNode **nodes, size_t *count);

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
					   cuuint64_t *id, CUgraph *graph,
					   const CUgraphNode **nodes, size_t *count)
{
	if (graph || nodes || count)
		double_die("%s: the stand-in tells the state and the id", __func__);
	return tell(__func__, stream, status, id);
}

CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status,
					   cuuint64_t *id, CUgraph *graph,
					   const CUgraphNode **nodes, const CUgraphEdgeData **edges,
					   size_t *count)
{
	if (graph || nodes || edges || count)
		double_die("%s: the stand-in tells the state and the id", __func__);
	return tell(__func__, stream, status, id);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult result = double_enter(__func__, DOUBLE_NOTHING);
	CUstreamCaptureMode before = own_mode;

	if (!result && (!mode || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
			*mode > CU_STREAM_CAPTURE_MODE_RELAXED))
		result = CUDA_ERROR_INVALID_VALUE;
	if (!result) {
		own_mode = *mode;
		*mode = before;
	}
	return double_leave(result);
}
